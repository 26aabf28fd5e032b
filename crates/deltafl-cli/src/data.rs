//! `deltafl data`: import, display and split data.

use miette::Result;

mod auto;
mod columns;
#[cfg(feature = "fetch")]
mod fetch;
mod import;
pub(crate) mod info;
mod partition;
mod show;
mod split;
mod synth;
mod target;

#[derive(clap::Subcommand, Debug)]
pub(crate) enum DataCommand {
    #[command(subcommand)]
    Import(Box<import::ImportCommand>),
    #[cfg(feature = "fetch")]
    Fetch(fetch::Args),
    Synth(synth::Args),
    Info(info::Args),
    Show(show::Args),
    Split(split::Args),
    Partition(partition::Args),
}

pub(crate) fn run(command: DataCommand) -> Result<()> {
    match command {
        DataCommand::Import(command) => import::run(*command),
        #[cfg(feature = "fetch")]
        DataCommand::Fetch(args) => fetch::run(args),
        DataCommand::Synth(args) => synth::run(args),
        DataCommand::Info(args) => info::run(args),
        DataCommand::Show(args) => show::run(args),
        DataCommand::Split(args) => split::run(args),
        DataCommand::Partition(args) => partition::run(args),
    }
}
