//! `deltafl illustrate`: the Gaussian-mixture figure of the paper (figure 3).

use std::path::PathBuf;

use deltafl::illustration::Illustration;
use deltafl::superquantile::Conformity;
use deltafl_run::illustration::write_illustration;
use miette::{IntoDiagnostic, Result};

use crate::error::explained;

/// Draw the paper's illustration: three Gaussian devices and the models of two conformity levels
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  deltafl illustrate --theta 0.6667 --out figures")]
pub(crate) struct Args {
    /// The conformity level of the second model [default: 2/3]
    #[arg(long, value_parser = level)]
    theta: Option<Conformity>,
    /// Seed of the mixtures drawn from P_θ
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The folder for illustration.svg and illustration.png
    #[arg(long, value_name = "DIR", default_value = "figures")]
    out: PathBuf,
}

fn level(text: &str) -> Result<Conformity, String> {
    let theta: f64 = text.parse().map_err(|_| "expected a number in (0, 1]".to_owned())?;
    Conformity::try_from(theta).map_err(|e| e.to_string())
}

pub(crate) fn run(args: Args) -> Result<()> {
    let two_thirds = Conformity::try_from(2.0 / 3.0).into_diagnostic()?;
    let illustration = Illustration::new(args.theta.unwrap_or(two_thirds), args.seed);
    for path in write_illustration(&illustration, &args.out).map_err(explained)? {
        println!("{}", path.display());
    }
    let Illustration { theta, w_full, w_theta, worst, .. } = &illustration;
    println!("w_1 = ({:.4}, {:.4}), the model of θ = 1", w_full[0], w_full[1]);
    println!("w_θ = ({:.4}, {:.4}), the model of θ = {:.4}", w_theta[0], w_theta[1], theta.get());
    println!("worst loss over P_θ: {:.4} for w_1, {:.4} for w_θ", worst.full, worst.theta);
    Ok(())
}
