//! `deltafl device status`: the answers and the privacy budget of a device.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;

use deltafl::privacy::Delta;
use deltafl_device::{DeviceState, PrivacyLimit};
use deltafl_wire::identity::hex;
use miette::{IntoDiagnostic, Result, WrapErr, bail};

/// Print the answers and the privacy that a device has spent under each authority
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The state of the device, `state` in the folder of its identity
    #[arg(value_name = "DIR")]
    state: PathBuf,
    /// δ of the printed ε [default: 1e-6]
    #[arg(long, value_name = "DELTA")]
    delta: Option<f64>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if !args.state.is_dir() {
        bail!("{} is not the state of a device", args.state.display());
    }
    let delta = match args.delta {
        Some(delta) => Delta::try_from(delta).into_diagnostic().wrap_err("--delta")?,
        None => PrivacyLimit::default().delta,
    };
    print!("{}", described(args, delta)?);
    Ok(())
}

fn described(args: &Args, delta: Delta) -> Result<String> {
    let answers = DeviceState::read_answers(&args.state).into_diagnostic()?;
    let privacy = DeviceState::read_privacy(&args.state).into_diagnostic()?;
    let authorities: BTreeSet<&[u8; 32]> = answers.keys().chain(privacy.keys()).collect();
    let mut text = String::new();
    if authorities.is_empty() {
        text.push_str("no answers\n");
    }
    for authority in authorities {
        let counted = answers.get(authority).map_or((0, 0), |count| (count.total, count.on_day));
        let _ = write!(
            text,
            "authority {}: {} answers, {} of them on the last day; ",
            &hex(authority)[..16],
            counted.0,
            counted.1
        );
        let _ = match privacy.get(authority) {
            None => writeln!(text, "no privacy spent"),
            Some(spent) if spent.exact > 0 => {
                writeln!(text, "{} answers had no noise, so that ε is infinite", spent.exact)
            }
            Some(spent) => writeln!(text, "ε = {:.3} at δ = {}", spent.epsilon(delta), delta.get()),
        };
    }
    Ok(text)
}
