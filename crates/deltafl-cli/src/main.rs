//! The `deltafl` command.

use clap::{Parser, Subcommand};

mod compare;
mod export;
mod report;
mod runs;

/// Federated learning for devices that differ.
#[derive(Parser)]
#[command(name = "deltafl", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Compare(compare::Args),
    Export(export::Args),
    Report(report::Args),
    Runs(runs::Args),
}

fn main() -> miette::Result<()> {
    match Cli::parse().command {
        Command::Compare(args) => compare::run(args),
        Command::Export(args) => export::run(args),
        Command::Report(args) => report::run(args),
        Command::Runs(args) => runs::run(args),
    }
}
