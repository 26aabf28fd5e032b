//! `deltafl device`: take part in a federation with the data of this machine, which stays here.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use deltafl::data::Federation;
use deltafl::kernel::Isa;
use deltafl::model::ModelSpec;
use deltafl::trainer::LocalTrainer;
use deltafl_device::{
    Consent, Credentials, Data, Device, DeviceState, Offer, SessionError, model_trainer, offer,
};
use deltafl_device::{DialError, Server, Trust, is_refused_certificate};
use deltafl_server::engine::Permille;
use deltafl_wire::identity::DeviceIdentity;
use deltafl_wire::loopback;
use deltafl_wire::threat::{Adversary, ThreatAssumptions};
use miette::{IntoDiagnostic, Result};

use crate::certs::identity_error;
use crate::error::bad_input;
use crate::interrupt::stop_on_interrupt;
use crate::logs::LogArgs;
use crate::run::KernelArgs;
use crate::settings::ConfigArgs;

mod audit;
mod conditions;

/// How often a server may say that it does not know a device that starts.
const REFUSALS: u32 = 5;
/// The longest wait between two attempts to reach a server.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// Take part in a federation with this machine's data, which stays here
#[derive(clap::Args, Debug)]
#[command(
    subcommand_negates_reqs = true,
    after_help = "Examples:\n  deltafl device --server localhost:7700 --data data/mine --insecure --allow-model linear\n  deltafl device --server fl.example.org:7700 --identity identity --data data/mine\n  deltafl device audit identity/state/transcript.jsonl neighbour.jsonl"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<DeviceCommand>,
    #[command(flatten)]
    part: TakePart,
}

/// What else a device does.
#[derive(clap::Subcommand, Debug)]
enum DeviceCommand {
    Audit(audit::Args),
}

/// How a device takes part. Whoever starts one should read why it stays away: when its owner's conditions are not met, too.
#[derive(clap::Args, Debug)]
#[command(mut_arg("level", |level| level.default_value("info")))]
pub(crate) struct TakePart {
    #[command(flatten)]
    _config: ConfigArgs,
    /// The address of the server
    #[arg(long, value_name = "HOST:PORT", required = true, value_parser = host_and_port)]
    server: Option<String>,
    /// The federation folder that holds this device's examples
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
    /// The folder in which the device remembers what servers showed it [default: state in the identity's folder; none with --insecure]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    #[command(flatten)]
    kernel: KernelArgs,
    #[command(flatten)]
    consent: ConsentArgs,
    #[command(flatten)]
    logs: LogArgs,
}

/// What the owner of the device agrees to.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "What this device agrees to")]
pub(crate) struct ConsentArgs {
    /// Take part in this experiment alone; may be repeated [default: any]
    #[arg(long = "allow-experiment", value_name = "NAME")]
    experiments: Vec<String>,
    /// Train this kind of model alone, such as linear; may be repeated [default: any that fits the data]
    #[arg(long = "allow-model", value_name = "KIND")]
    models: Vec<String>,
    /// Let the server see the loss of this device by itself, and not only sums over cohorts
    #[arg(long)]
    open: bool,
    /// Answer only in sums over at least so many devices [default: 30; 3 with --insecure]
    #[arg(long, value_name = "N")]
    min_cohort: Option<usize>,
    /// Stay away from federations whose server chooses the cohorts and does not draw them
    #[arg(long)]
    drawn_only: bool,
    /// The largest share of the drawn that a server may leave out as unreachable
    #[arg(long, value_name = "SHARE", default_value_t = 0.5)]
    max_left_out: f64,
    /// Minutes of computing per day, at most
    #[arg(long, value_name = "MINUTES", default_value_t = 24 * 60)]
    work_per_day: u64,
    /// Passes over this device's examples for one question, at most
    #[arg(long, value_name = "N", default_value_t = 100)]
    max_passes: u32,
    /// Do not tell how models serve the examples that this device holds out, not even inside sums
    #[arg(long)]
    no_evaluation: bool,
    /// Rounds of a run that must lie between two rounds that this device answers
    #[arg(long, value_name = "N", default_value_t = 0)]
    rounds_between: u64,
    /// Draw batches from the server's seed, for the bits of a simulation: the server then knows every random number of this device
    #[arg(long)]
    reproducible: bool,
    #[command(flatten)]
    guard: GuardArgs,
    #[command(flatten)]
    conditions: conditions::ConditionArgs,
}

/// Against whom rounds protect their devices: what a server offers and a device insists on.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Against whom rounds protect their devices")]
pub(crate) struct GuardArgs {
    /// What the server is taken to do: lie (active), or follow the protocol and look at everything (curious)
    #[arg(long, value_name = "WHO", default_value = "active")]
    adversary: TakenTo,
    /// The share of a cohort that may collude with the server
    #[arg(long, value_name = "SHARE", default_value_t = 0.05)]
    gamma: f64,
    /// Devices of a cohort that may collude with the server, however small the cohort is
    #[arg(long, value_name = "N", default_value_t = 1)]
    accomplices: u32,
}

/// What a server is taken to do.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum TakenTo {
    Active,
    Curious,
}

impl GuardArgs {
    pub(crate) fn guard(&self) -> Result<ThreatAssumptions> {
        let gamma = permille("--gamma", (1000.0 * self.gamma).ceil())?;
        let adversary = match self.adversary {
            TakenTo::Active => Adversary::Active,
            TakenTo::Curious => Adversary::Curious,
        };
        Ok(ThreatAssumptions { adversary, gamma, accomplices: self.accomplices })
    }
}

/// An option that is a share, in thousandths.
fn permille(option: &str, thousandths: f64) -> Result<Permille> {
    let share = (0.0..=500.0).contains(&thousandths).then(|| Permille::new(thousandths as u16)).flatten();
    Ok(share.ok_or_else(|| bad_input(format!("{option} {} is not in 0..=0.5", thousandths / 1000.0)))?)
}

impl ConsentArgs {
    fn consent(&self, demonstration: bool) -> Result<Consent> {
        let list = |names: &[String]| (!names.is_empty()).then(|| names.to_vec());
        Ok(Consent {
            experiments: list(&self.experiments),
            models: list(&self.models),
            open: self.open,
            min_cohort: self.min_cohort.unwrap_or(if demonstration {
                3
            } else {
                Consent::default().min_cohort
            }),
            guard: self.guard.guard()?,
            max_left_out: permille("--max-left-out", (1000.0 * self.max_left_out).floor())?,
            drawn_only: self.drawn_only,
            work_per_day: Duration::from_secs(60 * self.work_per_day),
            max_passes: self.max_passes,
            evaluate: !self.no_evaluation,
            rounds_between: self.rounds_between,
            reproducible: self.reproducible,
            willing: self.conditions.willing()?,
        })
    }
}

/// An address to which devices connect, as the user wrote it.
pub(crate) fn host_and_port(text: &str) -> std::result::Result<String, String> {
    if let Some((scheme, rest)) = text.split_once("://") {
        return Err(format!("devices speak a protocol of their own: without {scheme}://, as in {rest}"));
    }
    match text.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => Ok(text.to_owned()),
        _ => Err("host:port is expected, as in localhost:7700".to_owned()),
    }
}

/// Who this device is, and how it knows its server.
fn known(args: &TakePart, address: &str, data: &Data) -> Result<(Credentials, Server)> {
    let Some(folder) = &args.identity else {
        let server = Server { address: address.to_owned(), trust: Trust::Loopback };
        return Ok((loopback::credentials(data.name()), server));
    };
    let identity = DeviceIdentity::open(folder).map_err(identity_error)?;
    let server = Server::certified(address, &identity)
        .map_err(|e| bad_input("the server cannot be known").because(e))?;
    Ok((Credentials::from(&identity), server))
}

/// Waits until the owner's conditions are met, before anything is sent.
async fn wait_until_willing(consent: &Consent, say: &(dyn Fn(&str) + Sync)) {
    let mut seconds = 0u32;
    while (consent.willing)().is_err() {
        if seconds == 2 {
            say("the owner's conditions are not met; waiting until they are");
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        seconds = seconds.saturating_add(1);
    }
}

/// What the server trains, as soon as it can be reached. A server that does not know the device yet may be reading the roster
/// that it was just added to.
async fn first_offer(server: &Server, name: &str, say: &(dyn Fn(&str) + Sync)) -> Result<Offer> {
    let mut refused = 0;
    let mut wait = Duration::from_secs(1);
    loop {
        let error = match offer(server, name).await {
            Ok(offer) => return Ok(offer),
            Err(error) => error,
        };
        match &error {
            error if is_refused_certificate(error) => {
                return Err(bad_input("the server refuses this device's certificate")
                    .help("it was revoked or has expired: deltafl certs show DIR says until when; ask whoever keeps the authority")
                    .into());
            }
            SessionError::Dial(DialError::Transport(_)) => {
                say(&format!("{} cannot be reached; trying again in {} s", server.address, wait.as_secs()));
            }
            error if error.is_unavailable() => {
                say(&format!("{error}; trying again in {} s", wait.as_secs()));
            }
            SessionError::Status(_) if refused < REFUSALS => {
                refused += 1;
                wait = Duration::from_secs(1);
            }
            _ => return Err(bad_input("the server does not know this device").because(error).into()),
        }
        tokio::time::sleep(wait).await;
        wait = (2 * wait).min(LONGEST_WAIT);
    }
}

/// What the device remembers, from its folder.
fn state(args: &TakePart) -> Result<DeviceState> {
    let beside = args.identity.as_ref().map(|identity| identity.join("state"));
    let Some(folder) = args.state.clone().or(beside) else { return Ok(DeviceState::default()) };
    DeviceState::open(&folder).map_err(|e| bad_input("the device's state cannot be used").because(e).into())
}

pub(crate) fn run(args: Args) -> Result<()> {
    match args.command {
        Some(DeviceCommand::Audit(args)) => audit::run(&args),
        None => take_part(args.part),
    }
}

/// This device's examples in the folder that it was given.
fn data(name: Option<&str>, folder: &Path, federation: &Arc<Federation>) -> Result<Data> {
    match name {
        Some(name) => Data::named(federation, name)
            .ok_or_else(|| bad_input(format!("{} has no device {name}", folder.display())).into()),
        None => Data::only_device(federation).ok_or_else(|| {
            bad_input(format!("{} does not have one device that trains", folder.display()))
                .help("say which one with --name")
                .into()
        }),
    }
}

fn take_part(args: TakePart) -> Result<()> {
    args.logs.start();
    // Clap has asked for it: it may be missing before a subcommand alone.
    let Some(folder) = &args.data else {
        return Err(bad_input("a device needs --server and --data").into());
    };
    let federation = deltafl_data::open(folder)
        .map_err(|e| bad_input(format!("cannot open the federation {}", folder.display())).because(e))?;
    let stop = stop_on_interrupt();
    let watched = Watched { ended: &|| stop.load(Ordering::Relaxed), say: &|text| eprintln!("{text}") };
    take_part_with(&args, Arc::new(federation), None, &watched)
}

/// What a program that holds a device does beside it.
pub(crate) struct Watched<'a> {
    /// Whether the device is to end; asked ten times a second.
    pub(crate) ended: &'a (dyn Fn() -> bool + Sync),
    /// Hears what a person should know.
    pub(crate) say: &'a (dyn Fn(&str) + Sync),
}

/// Takes part with examples that were opened, by the server's model or by a trainer that is brought, until it is to end.
pub(crate) fn take_part_with(
    args: &TakePart,
    federation: Arc<Federation>,
    brought: Option<Arc<dyn LocalTrainer>>,
    watched: &Watched<'_>,
) -> Result<()> {
    let (Some(address), Some(folder)) = (&args.server, &args.data) else {
        return Err(bad_input("a device needs --server and --data").into());
    };
    let data = data(args.name.as_deref(), folder, &federation)?;
    let (credentials, server) = known(args, address, &data)?;
    let (state, consent) = (state(args)?, args.consent.consent(args.insecure)?);
    let runtime = tokio::runtime::Runtime::new().into_diagnostic()?;
    let taking_part = async {
        wait_until_willing(&consent, watched.say).await;
        let offer = first_offer(&server, &credentials.name, watched.say).await?;
        let name = credentials.name.clone();
        let mut device = Device::connect(server, credentials, consent).with_state(state);
        let data = match &offer.contract {
            Some(contract) => {
                let fitted = contract.fit(Federation::clone(&federation)).map_err(|e| {
                    bad_input(format!("the data in {} does not fit the federation", folder.display()))
                        .because(e)
                })?;
                device = device.with_contract(contract);
                data.within(&Arc::new(fitted)).ok_or_else(|| {
                    let examples = "the federation is for devices with more examples than";
                    bad_input(format!("{examples} {} has in {}", data.name(), folder.display()))
                })?
            }
            None if brought.is_some() => data,
            None => {
                return Err(bad_input(
                    "the server names no contract of the data: it is for devices that bring their own trainer",
                )
                .into());
            }
        };
        let (trainer, trained) = match brought {
            Some(trainer) => (trainer, "a trainer of its own".to_owned()),
            None => offered_trainer(&offer, &data, args.kernel.isa())?,
        };
        (watched.say)(&format!("{name} takes part in {} ({trained})", offer.experiment));
        let ended = device.serve(trainer, data).await;
        ended.map_err(|reason| bad_input("this device does not take part").because(reason).into())
    };
    let stopped = async {
        while !(watched.ended)() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    runtime.block_on(async {
        tokio::select! {
            ended = taking_part => ended,
            () = stopped => Ok(()),
        }
    })
}

/// The server's model as a trainer, and its name.
fn offered_trainer(offer: &Offer, data: &Data, kernel: Isa) -> Result<(Arc<dyn LocalTrainer>, String)> {
    let spec: ModelSpec = serde_json::from_str(&offer.model).map_err(|e| {
        bad_input(format!("the server trains a model unknown here: {}", offer.model)).because(e)
    })?;
    let model = spec
        .build(data.federation(), kernel)
        .map_err(|e| bad_input("the server's model does not fit this data").because(e))?;
    Ok((Arc::new(model_trainer(model.into())), spec.name().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_a_port() {
        assert_eq!(host_and_port("[::1]:7700").unwrap(), "[::1]:7700");
        assert!(
            host_and_port("http://fl.example.org:7700").unwrap_err().ends_with("as in fl.example.org:7700")
        );
        for text in ["localhost", "localhost:", ":7700", "localhost:70000", ""] {
            assert!(host_and_port(text).unwrap_err().contains("host:port is expected"), "{text}");
        }
    }
}
