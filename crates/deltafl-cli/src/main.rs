//! The `deltafl` command.

use clap::{Parser, Subcommand};

mod report;

/// Federated learning for devices that differ.
#[derive(Parser)]
#[command(name = "deltafl", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Report(report::Args),
}

fn main() -> miette::Result<()> {
    match Cli::parse().command {
        Command::Report(args) => report::run(args),
    }
}
