//! `deltafl serve`: train an experiment with devices that connect over a network.

use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::path::PathBuf;

use deltafl::trainer::Sgd;
use deltafl::training::{Observer, ObserverResult, Outcome};
use deltafl_data::experiment::Experiment;
use deltafl_run::session::thin_tail_warnings;
use deltafl_run::{experiment_file, session};
use deltafl_server::server::allocator;
use deltafl_server::{ServedModel, Server, ServerConfig, ServerError, ServerEvent};
use miette::{IntoDiagnostic, Report, Result};

use crate::error::{bad_input, explained, folder_error, reported};
use crate::interrupt::stop_on_interrupt;
use crate::logs::LogArgs;
use crate::run::KernelArgs;
use crate::settings::ConfigArgs;

mod contract;
mod deployment;
mod rounds;

use contract::declared;
use deployment::DeploymentArgs;
pub(crate) use deployment::{StoreArgs, renewal_error, store_error};
use rounds::RoundArgs;

/// Train an experiment with devices that connect over a network
///
/// The server receives sums only. docs/src/explanation/threat-model.md describes their information
/// about single devices.
/// Every finished round is stored. A server started again with the same arguments continues.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  deltafl serve experiments/deployed.toml --insecure --http 127.0.0.1:7780 &\n  deltafl swarm experiments/deployed.toml --insecure\n\n  deltafl serve clinics.toml --certs certs --listen 0.0.0.0:7700 --http 0.0.0.0:7780"
)]
pub(crate) struct Args {
    #[command(flatten)]
    _config: ConfigArgs,
    /// The experiment, a TOML file
    experiment: PathBuf,
    /// The run folder [default: runs/NAME]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Override a key of the experiment; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// The address at which devices connect
    #[arg(long, value_name = "ADDRESS", default_value_t = ServerConfig::default().listen)]
    listen: SocketAddr,
    /// Without certificates, on a loopback address: for demonstrations
    #[arg(long)]
    insecure: bool,
    /// Train levels θ although their tails differ by fewer than ten devices of a cohort, about
    /// which the two sums reveal more
    #[arg(long)]
    allow_close_levels: bool,
    /// The contract of the data, a JSON file with the shape and the normalisation of the devices'
    /// examples; replaces the experiment's data
    #[arg(long, value_name = "FILE", conflicts_with = "insecure")]
    contract: Option<PathBuf>,
    /// Print the contract of the experiment's data and exit
    #[arg(long)]
    print_contract: bool,
    /// Let the experiment request the loss of each device; only devices with --open take part
    #[arg(long)]
    open: bool,
    #[command(flatten)]
    kernel: KernelArgs,
    /// Print nothing about rounds
    #[arg(long, short)]
    quiet: bool,
    #[command(flatten)]
    deployment: DeploymentArgs,
    #[command(flatten)]
    rounds: RoundArgs,
    #[command(flatten)]
    logs: LogArgs,
}

impl Args {
    /// Returns the configuration of the server.
    fn config(&self) -> ServerConfig {
        let mut config = ServerConfig {
            out: self.out.clone(),
            listen: self.listen,
            open: self.open,
            allow_close_levels: self.allow_close_levels,
            kernel: Some(self.kernel.isa()),
            ..ServerConfig::default()
        };
        self.deployment.apply(&mut config);
        self.rounds.apply(&mut config);
        config
    }
}

pub(crate) fn run(args: Args) -> Result<()> {
    args.logs.start();
    allocator::return_long_buffers();
    let experiment = experiment_file::read(&args.experiment, &args.overrides).map_err(explained)?;
    if args.print_contract {
        let (_, contract) = declared(&args, &experiment)?;
        println!("{}", serde_json::to_string_pretty(&contract).into_diagnostic()?);
        return Ok(());
    }
    if !args.insecure && args.deployment.certs.is_none() {
        return Err(bad_input("a server needs --certs DIR, or --insecure on a loopback address")
            .help("deltafl certs init and deltafl certs server make the folder")
            .into());
    }
    Server::check(&args.config(), &experiment).map_err(server_error)?;
    let (federation, contract) = declared(&args, &experiment)?;
    let model = session::build_model(&experiment, &federation, args.kernel.isa()).map_err(explained)?;
    let trainer = Sgd::boxed(&*model);
    let mut served = ServedModel::for_data(&*trainer, &federation, &experiment);
    if args.contract.is_some() {
        served.data_hash = contract.hash().to_hex().to_string();
    }
    served.contract = Some(contract);
    // A server needs no examples: those that showed their shape are freed before devices connect.
    drop(federation);
    let console = Console { quiet: args.quiet };
    console.warn_of_thin_tails(&experiment);
    console.note_exact_sums(&experiment);
    let server = Server::new(args.config(), experiment, served).map_err(server_error)?;
    let out = server.folder().display();
    match server.run(stop_on_interrupt(), console).map_err(server_error)? {
        Outcome::Stopped => eprintln!("stopped; every finished round is kept in {out}"),
        Outcome::Finished => println!("Run folder: {out}"),
    }
    Ok(())
}

/// A report of an error of a server.
pub(crate) fn server_error(error: ServerError) -> Report {
    match error {
        ServerError::Folder(error) => folder_error(error),
        error => {
            let (invalid, help) = (error.is_invalid_input(), error.help());
            reported(error, invalid, help)
        }
    }
}

/// Prints events on standard error.
struct Console {
    /// Whether to print nothing about rounds.
    quiet: bool,
}

impl Console {
    /// Prints a line that `--quiet` suppresses.
    fn note(&self, line: &str) {
        if !self.quiet {
            eprintln!("{line}");
        }
    }

    fn warn_of_thin_tails(&self, experiment: &Experiment) {
        thin_tail_warnings(experiment).iter().for_each(|text| self.note(&format!("warning: {text}")));
    }
}

impl Console {
    /// States what sums without noise mean for the devices of a private federation.
    fn note_exact_sums(&self, experiment: &Experiment) {
        if experiment.is_private() && experiment.privacy().is_none() {
            self.note(
                "note: the sums of this federation have no noise, so that many sums and the models may reveal \
                 information about a device; a section [privacy] bounds it",
            );
        }
    }
}

impl Observer<ServerEvent<'_>> for Console {
    fn handle(&mut self, event: ServerEvent<'_>) -> ObserverResult {
        match event {
            ServerEvent::Round { .. } | ServerEvent::NothingHeldOut | ServerEvent::Refused { .. } => {
                self.note(&event.to_string());
            }
            ServerEvent::SeedBegins { .. } => {}
            event => eprintln!("{event}"),
        }
        Ok(ControlFlow::Continue(()))
    }
}
