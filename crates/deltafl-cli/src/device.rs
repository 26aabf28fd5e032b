//! `deltafl device`: take part in a federation with the data of this machine, which stays here.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use deltafl::data::Federation;
use deltafl::model::ModelSpec;
use deltafl_device::{
    Consent, Credentials, Data, Device, DeviceState, Offer, Reason, SessionError, model_trainer, offer,
};
use deltafl_device::{DialError, Server, Trust, is_refused_certificate};
use deltafl_server::engine::Permille;
use deltafl_wire::guard::{Adversary, Guard};
use deltafl_wire::identity::DeviceIdentity;
use deltafl_wire::loopback;
use miette::{IntoDiagnostic, Result};

use crate::certs::identity_error;
use crate::error::bad_input;
use crate::run::Machine;
use crate::session::stop_on_interrupt;
use crate::settings::ConfigArgs;

mod audit;

/// How often a server may say that it does not know a device that starts.
const REFUSALS: u32 = 5;
/// The longest wait between two attempts to reach a server.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// Take part in a federation with this machine's data, which stays here
#[derive(clap::Args, Debug)]
#[command(
    subcommand_negates_reqs = true,
    after_help = "Examples:\n  deltafl device --server localhost:7700 --data data/mine --insecure --allow-model linear\n  deltafl device audit identity/state/transcript.jsonl neighbour.jsonl"
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

/// How a device takes part.
#[derive(clap::Args, Debug)]
pub(crate) struct TakePart {
    #[command(flatten)]
    _config: ConfigArgs,
    /// The server
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
    consent: ConsentArgs,
    #[command(flatten)]
    machine: Machine,
}

/// What the owner of the device agrees to.
#[derive(clap::Args, Debug)]
pub(crate) struct ConsentArgs {
    /// An experiment to take part in; may be repeated [default: any]
    #[arg(long = "allow-experiment", value_name = "NAME")]
    experiments: Vec<String>,
    /// A model to train; may be repeated [default: any that fits the data]
    #[arg(long = "allow-model", value_name = "KIND")]
    models: Vec<String>,
    /// Let the server ask for this device's loss
    #[arg(long)]
    open: bool,
    /// The fewest devices to hide among [default: 30; 3 with --insecure]
    #[arg(long, value_name = "N")]
    min_cohort: Option<usize>,
    #[command(flatten)]
    guard: GuardArgs,
    /// Stay away from federations whose server chooses the cohorts and does not draw them
    #[arg(long)]
    drawn_only: bool,
    /// The largest share of the drawn that a server may leave out as unreachable
    #[arg(long, value_name = "SHARE", default_value_t = 0.5)]
    max_left_out: f64,
    /// Minutes of computing per day
    #[arg(long, value_name = "MINUTES", default_value_t = 24 * 60)]
    work_per_day: u64,
    /// Passes over this device's examples for one question, at most
    #[arg(long, value_name = "N", default_value_t = 100)]
    max_passes: u32,
    /// Take part only while the machine is on mains power
    #[arg(long)]
    on_mains: bool,
}

/// Against whom rounds protect their devices: what a server offers and a device insists on.
#[derive(clap::Args, Debug)]
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
    pub(crate) fn guard(&self) -> Result<Guard> {
        let gamma = permille("--gamma", (1000.0 * self.gamma).ceil())?;
        let adversary = match self.adversary {
            TakenTo::Active => Adversary::Active,
            TakenTo::Curious => Adversary::Curious,
        };
        Ok(Guard { adversary, gamma, accomplices: self.accomplices })
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
        let on_mains = self.on_mains;
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
            willing: Arc::new(move || if on_mains && on_battery() { Err(Reason::Battery) } else { Ok(()) }),
        })
    }
}

/// Whether Linux says that a battery is being emptied. A machine without one is on mains.
fn on_battery() -> bool {
    let supplies = std::fs::read_dir("/sys/class/power_supply").into_iter().flatten().flatten();
    let status = supplies.filter_map(|supply| std::fs::read_to_string(supply.path().join("status")).ok());
    status.into_iter().any(|status| status.trim() == "Discharging")
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

/// What the server trains, as soon as it can be reached; `None` if the device is to stop before. A server that does not know the
/// device yet may be reading the roster that it was just added to.
async fn first_offer(server: &Server, name: &str, stop: &AtomicBool) -> Result<Option<Offer>> {
    let mut refused = 0;
    let mut wait = Duration::from_secs(1);
    while !stop.load(Ordering::Relaxed) {
        let error = match offer(server, name).await {
            Ok(offer) => return Ok(Some(offer)),
            Err(error) => error,
        };
        match &error {
            error if is_refused_certificate(error) => {
                return Err(bad_input("the server refuses this device's certificate")
                    .help("it was revoked or has expired: deltafl certs show DIR says until when; ask whoever keeps the authority")
                    .into());
            }
            SessionError::Dial(DialError::Transport(_)) => {
                eprintln!("{} cannot be reached; trying again in {} s", server.address, wait.as_secs());
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
    Ok(None)
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
    // Clap has asked for both: they may be missing before a subcommand alone.
    let (Some(address), Some(folder)) = (&args.server, &args.data) else {
        return Err(bad_input("a device needs --server and --data").into());
    };
    let federation = deltafl_data::open(folder)
        .map_err(|e| bad_input(format!("cannot open the federation {}", folder.display())).because(e))?;
    let federation = Arc::new(federation);
    let data = data(args.name.as_deref(), folder, &federation)?;
    let (credentials, server) = known(&args, address, &data)?;
    let (state, consent) = (state(&args)?, args.consent.consent(args.insecure)?);
    let stop = stop_on_interrupt();
    let runtime = tokio::runtime::Runtime::new().into_diagnostic()?;
    runtime.block_on(async {
        let Some(offer) = first_offer(&server, &credentials.name, stop).await? else { return Ok(()) };
        let spec: ModelSpec = serde_json::from_str(&offer.model).map_err(|e| {
            bad_input(format!("the server trains a model unknown here: {}", offer.model)).because(e)
        })?;
        let contract = offer.contract.ok_or_else(|| {
            bad_input(
                "the server names no contract of the data: it is for devices that bring their own trainer",
            )
        })?;
        let federation = contract.fit(Federation::clone(&federation)).map_err(|e| {
            bad_input(format!("the data in {} does not fit the federation", folder.display())).because(e)
        })?;
        let federation = Arc::new(federation);
        let model = spec
            .build(&federation, args.machine.kernel())
            .map_err(|e| bad_input("the server's model does not fit this data").because(e))?;
        let data = data.within(federation);
        eprintln!("{} takes part in {} ({})", data.name(), offer.experiment, spec.name());
        let device = Device::connect(server, credentials, consent).with_state(state).with_contract(&contract);
        let trainer = Arc::new(model_trainer(model.into()));
        let stopped = async {
            while !stop.load(Ordering::Relaxed) {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::select! {
            ended = device.serve(trainer, data) => {
                ended.map_err(|reason| bad_input("this device does not take part").because(reason).into())
            }
            () = stopped => Ok(()),
        }
    })
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
