//! The `deltafl` command: federated learning for heterogeneous devices.
//!
//! It parses arguments, calls `deltafl-run`, `deltafl-server` or `deltafl-device`, and prints. It
//! is a library, so that the Python wheel can contain the command:
//!
//! ```no_run
//! let words = ["deltafl", "demo"].map(Into::into);
//! assert_eq!(deltafl_cli::command(words.into()), 0);
//! ```
//!
//! A program that trains without a terminal uses `deltafl-run`.

use std::ffi::OsString;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

mod bench;
#[cfg(feature = "net")]
mod certs;
mod compare;
mod dashboard;
mod data;
mod demo;
#[cfg(feature = "net")]
mod device;
#[cfg(feature = "net")]
mod doctor;
#[cfg(feature = "net")]
mod enrol;
mod error;
mod evaluate;
mod export;
mod field;
mod illustrate;
mod init;
mod interrupt;
#[cfg(feature = "net")]
mod logs;
mod man;
#[cfg(feature = "net")]
mod model;
mod paper;
mod predict;
mod privacy;
mod progress;
mod reference;
mod report;
mod run;
mod runs;
#[cfg(feature = "net")]
mod serve;
#[cfg(feature = "net")]
mod settings;
#[cfg(feature = "net")]
mod swarm;
mod sweep;
mod tune;

/// Federated learning for heterogeneous devices: one model per conformity level
#[derive(Parser, Debug)]
#[command(name = "deltafl", version, propagate_version = true)]
#[command(after_help = "Start with:  deltafl demo")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Demo(demo::Args),
    Init(init::Args),
    Run(run::Args),
    /// Train every combination of values of an experiment
    #[command(subcommand)]
    Sweep(sweep::SweepCommand),
    Tune(tune::Args),
    Field(field::Args),
    Paper(paper::Args),
    Report(report::Args),
    Compare(compare::Args),
    Evaluate(evaluate::Args),
    Predict(predict::Args),
    Runs(runs::Args),
    Export(export::Args),
    Experiment(reference::Args),
    Privacy(privacy::Args),
    /// Import, display and split data
    #[command(subcommand)]
    Data(data::DataCommand),
    Illustrate(illustrate::Args),
    Bench(bench::Args),
    #[cfg(feature = "net")]
    Serve(serve::Args),
    #[cfg(feature = "net")]
    Device(device::Args),
    #[cfg(feature = "net")]
    Swarm(swarm::Args),
    /// Create, show and revoke certificates
    #[cfg(feature = "net")]
    #[command(subcommand)]
    Certs(certs::CertsCommand),
    /// Enrol the devices of a fleet
    #[cfg(feature = "net")]
    #[command(subcommand)]
    Enrol(enrol::EnrolCommand),
    /// Download the model of a level, and find the best level for this device
    #[cfg(feature = "net")]
    #[command(subcommand)]
    Model(model::ModelCommand),
    #[cfg(feature = "net")]
    Doctor(doctor::Args),
    Man(man::Args),
    /// Print a completion script for a shell
    #[command(after_help = "Example:\n  deltafl completions bash > /etc/bash_completion.d/deltafl")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

impl Command {
    /// Returns whether the command has long-lived network connections. A closed connection is then
    /// an error of that connection, and not a signal that ends the program.
    fn has_peers(&self) -> bool {
        #[cfg(feature = "net")]
        return matches!(self, Self::Serve(_) | Self::Device(_) | Self::Swarm(_));
        #[cfg(not(feature = "net"))]
        return false;
    }
}

/// Runs the command with these arguments, the name of the program first. Returns its exit code.
pub fn command(words: Vec<OsString>) -> u8 {
    error::note_words(&words);
    if let Some((command, feature)) = absent_command(&words, cfg!(feature = "net"), cfg!(feature = "fetch")) {
        eprintln!(
            "error: this build has no `deltafl {command}`\n\n  install one that has it: \
             cargo install --path crates/deltafl-cli --features {feature}"
        );
        return 2;
    }
    match parsed(words).and_then(|cli| dispatch(cli.command)) {
        Ok(()) => 0,
        Err(report) => {
            if report.downcast_ref::<error::Interrupted>().is_none() {
                eprintln!("Error: {report:?}");
            }
            error::exit_code(&report)
        }
    }
}

/// Returns the command and its feature if the arguments name a command that needs a feature which
/// this build does not have.
fn absent_command(words: &[OsString], net: bool, fetch: bool) -> Option<(&'static str, &'static str)> {
    const NET: [&str; 7] = ["serve", "device", "swarm", "certs", "enrol", "model", "doctor"];
    let word = |i: usize| words.get(i).and_then(|word| word.to_str());
    match word(1)? {
        "data" if word(2) == Some("fetch") => (!fetch).then_some(("data fetch", "fetch")),
        first => NET.into_iter().find(|command| *command == first && !net).map(|command| (command, "net")),
    }
}

#[cfg(not(feature = "net"))]
fn parsed(words: Vec<OsString>) -> miette::Result<Cli> {
    Ok(Cli::from_arg_matches(&command_line().get_matches_from(words)).unwrap_or_else(|e| e.exit()))
}

/// Returns the command line. `deltafl help experiment` lists every key.
fn command_line() -> clap::Command {
    Cli::command().mut_subcommand("experiment", |command| command.after_long_help(reference::plain()))
}

/// Returns the command line with additions from the environment and a settings file.
#[cfg(feature = "net")]
fn parsed(words: Vec<OsString>) -> miette::Result<Cli> {
    let command = settings::by_environment(command_line());
    let matches = settings::matches(command, words)?;
    Ok(Cli::from_arg_matches(&matches).unwrap_or_else(|e| e.exit()))
}

fn dispatch(command: Command) -> miette::Result<()> {
    if !command.has_peers() {
        // `deltafl … | head` ends silently like other commands, instead of failing to print.
        sigpipe::reset();
    }
    match command {
        Command::Demo(args) => demo::run(args),
        Command::Init(args) => init::run(args),
        Command::Run(args) => run::run(args),
        Command::Sweep(command) => sweep::run(command),
        Command::Tune(args) => tune::run(args),
        Command::Field(args) => field::run(args),
        Command::Paper(args) => paper::run(args),
        Command::Report(args) => report::run(args),
        Command::Compare(args) => compare::run(args),
        Command::Evaluate(args) => evaluate::run(args),
        Command::Predict(args) => predict::run(args),
        Command::Runs(args) => runs::run(args),
        Command::Export(args) => export::run(args),
        Command::Experiment(args) => reference::run(args),
        Command::Privacy(args) => privacy::run(args),
        Command::Data(command) => data::run(command),
        Command::Illustrate(args) => illustrate::run(args),
        Command::Bench(args) => bench::run(args),
        #[cfg(feature = "net")]
        Command::Serve(args) => serve::run(args),
        #[cfg(feature = "net")]
        Command::Device(args) => device::run(args),
        #[cfg(feature = "net")]
        Command::Swarm(args) => swarm::run(args),
        #[cfg(feature = "net")]
        Command::Certs(command) => certs::run(command),
        #[cfg(feature = "net")]
        Command::Enrol(command) => enrol::run(command),
        #[cfg(feature = "net")]
        Command::Model(command) => model::run(command),
        #[cfg(feature = "net")]
        Command::Doctor(args) => doctor::run(args),
        Command::Man(args) => man::run(&args, command_line()),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "deltafl", &mut std::io::stdout());
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::absent_command;

    #[test]
    fn a_command_of_an_absent_feature_is_named_with_the_feature() {
        let absent = |line: &str, net, fetch| {
            let words: Vec<_> = line.split(' ').map(Into::into).collect();
            absent_command(&words, net, fetch)
        };
        assert_eq!(absent("deltafl serve x.toml", false, false), Some(("serve", "net")));
        assert_eq!(absent("deltafl data fetch emnist", false, false), Some(("data fetch", "fetch")));
        assert_eq!(absent("deltafl serve x.toml", true, true), None);
        assert_eq!(absent("deltafl data fetch emnist", false, true), None);
        for present in ["deltafl", "deltafl run serve", "deltafl data import", "deltafl --help"] {
            assert_eq!(absent(present, false, false), None, "{present}");
        }
    }
}
