//! `deltafl man`: writes the manual pages, for packages.

use std::path::PathBuf;

use deltafl_run::error::create_folder;
use miette::{IntoDiagnostic, Result, WrapErr};

use crate::error::explained;

/// Write the manual pages, one for each command
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  deltafl man --out man1 && man man1/deltafl-run.1")]
pub(crate) struct Args {
    /// The folder
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

pub(crate) fn run(args: &Args, command: clap::Command) -> Result<()> {
    create_folder(&args.out).map_err(explained)?;
    clap_mangen::generate_to(command, &args.out)
        .into_diagnostic()
        .wrap_err_with(|| args.out.display().to_string())
}
