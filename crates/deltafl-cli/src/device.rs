//! `deltafl device`: takes part in a federation with the data of this machine, which never leaves
//! it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use chrono::{Local, Timelike as _};
use deltafl_device::{DeviceConfig, DeviceError, Participation, check_address};
use deltafl_wire::threat::{ServerBehaviour, ThreatOptions};
use miette::{Report, Result};

use crate::certs::identity_error;
use crate::error::{bad_input, reported};
use crate::interrupt::disconnect_on_interrupt;
use crate::logs::LogArgs;
use crate::run::KernelArgs;
use crate::settings::ConfigArgs;

mod audit;
mod conditions;
mod status;

/// Take part in a federation with this machine's data, which never leaves it
#[derive(clap::Args, Debug)]
#[command(
    subcommand_negates_reqs = true,
    after_help = "Examples:\n  deltafl device --server localhost:7700 --data data/mine --insecure --allow-model linear\n  deltafl device --server fl.example.org:7700 --identity identity --data data/mine\n  deltafl device audit identity/state/transcript.jsonl neighbour.jsonl\n  deltafl device status identity/state"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<DeviceCommand>,
    #[command(flatten)]
    part: TakePart,
}

/// Other commands of a device.
#[derive(clap::Subcommand, Debug)]
enum DeviceCommand {
    Audit(audit::Args),
    Status(status::Args),
}

/// The options of a device that takes part. It logs why it does not take part, for example because
/// its owner's conditions are not met.
#[derive(clap::Args, Debug)]
#[command(mut_arg("level", |level| level.default_value("info")))]
pub(crate) struct TakePart {
    #[command(flatten)]
    _config: ConfigArgs,
    /// The address of the server
    #[arg(long, value_name = "HOST:PORT", required = true, value_parser = check_address)]
    server: Option<String>,
    /// The federation folder with this device's examples
    #[arg(long, value_name = "DIR", required = true)]
    data: Option<PathBuf>,
    /// The device in it [default: the only one that trains]
    #[arg(long, value_name = "ID")]
    name: Option<String>,
    /// The folder with this device's certificate and keys, as `deltafl enrol` wrote it
    #[arg(long, value_name = "DIR", required_unless_present = "insecure")]
    identity: Option<PathBuf>,
    /// Without certificates, on a loopback address: for demonstrations
    #[arg(long, conflicts_with = "identity")]
    insecure: bool,
    /// The folder for the device's record of its servers [default: state in the identity's folder;
    /// none with --insecure]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    #[command(flatten)]
    kernel: KernelArgs,
    #[command(flatten)]
    consent: ConsentArgs,
    #[command(flatten)]
    logs: LogArgs,
}

/// The consent of the device's owner.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Consent of the owner")]
pub(crate) struct ConsentArgs {
    /// Take part only in this experiment; may be repeated [default: any]
    #[arg(long = "allow-experiment", value_name = "NAME")]
    experiments: Vec<String>,
    /// Train only this kind of model, for example linear; may be repeated [default: any that fits
    /// the data]
    #[arg(long = "allow-model", value_name = "KIND")]
    models: Vec<String>,
    /// Let the server see the loss of this device, not only sums over cohorts
    #[arg(long)]
    open: bool,
    /// Answer only in sums over at least this many devices [default: 30; 3 with --insecure]
    #[arg(long, value_name = "N")]
    min_cohort: Option<usize>,
    /// Reject federations whose server chooses the cohorts instead of drawing them
    #[arg(long)]
    drawn_only: bool,
    /// The largest share of the drawn devices that a server may leave out as unreachable
    #[arg(long, value_name = "SHARE", default_value_t = DeviceConfig::default().max_left_out)]
    max_left_out: f64,
    /// Maximum computing time per day in minutes
    #[arg(long, value_name = "MINUTES", default_value_t = DeviceConfig::default().work_per_day)]
    work_per_day: u64,
    /// Maximum number of passes over this device's examples for one question
    #[arg(long, value_name = "N", default_value_t = DeviceConfig::default().max_passes)]
    max_passes: u32,
    /// Maximum number of answers under one authority; an answer is a contribution to one sum
    #[arg(long, value_name = "N", default_value_t = DeviceConfig::default().answers)]
    answers: u64,
    /// Maximum number of answers per day
    #[arg(long, value_name = "N", default_value_t = DeviceConfig::default().answers_per_day)]
    answers_per_day: u64,
    /// The smallest batch of an update
    #[arg(long, value_name = "N", default_value_t = DeviceConfig::default().min_batch)]
    min_batch: u64,
    /// The smallest number of steps of an update
    #[arg(long, value_name = "N", default_value_t = DeviceConfig::default().min_steps)]
    min_steps: u64,
    /// The smallest number of examples behind an answer
    #[arg(long, value_name = "N", default_value_t = DeviceConfig::default().min_examples)]
    min_examples: u64,
    /// Let the server weight devices by five classes of their numbers of examples
    #[arg(long)]
    bucketed: bool,
    /// Do not report metrics on held-out examples, not even inside sums
    #[arg(long)]
    no_evaluation: bool,
    /// Minimum number of rounds of a run between two rounds that this device answers
    #[arg(long, value_name = "N", default_value_t = DeviceConfig::default().rounds_between)]
    rounds_between: u64,
    /// The largest ε under one authority, over everything that this device has ever answered;
    /// answers without noise exceed it [default: no limit]
    #[arg(long, value_name = "EPSILON")]
    max_epsilon: Option<f64>,
    /// δ of --max-epsilon
    #[arg(long, value_name = "DELTA", default_value_t = DeviceConfig::default().delta)]
    delta: f64,
    /// Draw batches from the server's seed, which reproduces the bits of a simulation: the server
    /// then knows every random number of this device
    #[arg(long)]
    reproducible: bool,
    #[command(flatten)]
    guard: GuardArgs,
    #[command(flatten)]
    conditions: conditions::ConditionArgs,
}

/// The attackers against which rounds protect devices. A server offers a protection, and a device
/// requires one.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Assumed attackers")]
pub(crate) struct GuardArgs {
    /// The assumed behaviour of the server: it deviates from the protocol (active), or follows it
    /// and inspects everything (curious)
    #[arg(long, value_name = "WHO", default_value = "active")]
    adversary: BehaviourArg,
    /// The share of a cohort that may collude with the server
    #[arg(long, value_name = "SHARE", default_value_t = ThreatOptions::default().gamma)]
    gamma: f64,
    /// Number of devices of a cohort that may collude with the server, for any size of the cohort
    #[arg(long, value_name = "N", default_value_t = ThreatOptions::default().accomplices)]
    accomplices: u32,
}

/// The assumed behaviour of a server.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum BehaviourArg {
    Active,
    Curious,
}

impl GuardArgs {
    /// Returns the options.
    pub(crate) fn options(&self) -> ThreatOptions {
        let adversary = match self.adversary {
            BehaviourArg::Active => ServerBehaviour::Active,
            BehaviourArg::Curious => ServerBehaviour::Curious,
        };
        ThreatOptions { adversary, gamma: self.gamma, accomplices: self.accomplices }
    }
}

impl TakePart {
    /// Returns the configuration of the device.
    fn config(&self) -> DeviceConfig {
        let guard = self.consent.guard.options();
        let consent = &self.consent;
        let mut config = DeviceConfig {
            server: self.server.clone().unwrap_or_default(),
            identity: self.identity.clone(),
            name: self.name.clone(),
            state: self.state.clone(),
            kernel: Some(self.kernel.isa()),
            allow_experiment: consent.experiments.clone(),
            allow_model: consent.models.clone(),
            open: consent.open,
            min_cohort: consent.min_cohort,
            drawn_only: consent.drawn_only,
            max_left_out: consent.max_left_out,
            work_per_day: consent.work_per_day,
            max_passes: consent.max_passes,
            answers: consent.answers,
            answers_per_day: consent.answers_per_day,
            min_batch: consent.min_batch,
            min_steps: consent.min_steps,
            min_examples: consent.min_examples,
            bucketed: consent.bucketed,
            no_evaluation: consent.no_evaluation,
            rounds_between: consent.rounds_between,
            max_epsilon: consent.max_epsilon,
            delta: consent.delta,
            reproducible: consent.reproducible,
            adversary: guard.adversary,
            gamma: guard.gamma,
            accomplices: guard.accomplices,
            ..DeviceConfig::default()
        };
        consent.conditions.apply(&mut config);
        config
    }
}

pub(crate) fn run(args: Args) -> Result<()> {
    match args.command {
        Some(DeviceCommand::Audit(args)) => audit::run(&args),
        Some(DeviceCommand::Status(args)) => status::run(&args),
        None => take_part(args.part),
    }
}

fn take_part(args: TakePart) -> Result<()> {
    args.logs.start();
    // Clap requires both unless there is a subcommand.
    let (Some(_), Some(folder)) = (&args.server, &args.data) else {
        return Err(bad_input("a device needs --server and --data").into());
    };
    let federation = deltafl_data::open(folder)
        .map_err(|e| bad_input(format!("cannot open the federation {}", folder.display())).because(e))?;
    let stop = disconnect_on_interrupt();
    let participation = Participation {
        config: args.config(),
        data: Arc::new(federation),
        data_name: folder.display().to_string(),
        trainer: None,
        minute_of_day,
        notify: &|notice| eprintln!("{notice}"),
    };
    participation.run(&|| stop.load(Ordering::Relaxed)).map_err(device_error)
}

/// A report of an error of a device.
fn device_error(error: DeviceError) -> Report {
    match error {
        DeviceError::Identity(error) => identity_error(error),
        error => {
            let help = error.help().map(str::to_owned);
            let invalid = !matches!(error, DeviceError::Runtime(_));
            reported(error, invalid, help)
        }
    }
}

/// Returns the minute of the day by this machine's clock and time zone.
fn minute_of_day() -> u16 {
    let now = Local::now();
    (60 * now.hour() + now.minute()) as u16
}
