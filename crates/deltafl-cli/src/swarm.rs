//! `deltafl swarm`: many devices of a federation in one process, over real sockets.

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use deltafl::cohort::Probability;
use deltafl::data::{Federation, Split};
use deltafl::trainer::LocalTrainer;
use deltafl_device::fault::Misconduct;
use deltafl_device::swarm::{Day, SimulatedDevice, Swarm, SwarmOptions};
use deltafl_device::{
    Backoff, Consent, Credentials, ServerEndpoint, ServerTrust, check_address, model_trainer,
};
use deltafl_run::{experiment_file, session};
use deltafl_server::authority::FleetIdentities;
use deltafl_wire::identity::DeviceIdentity;
use deltafl_wire::loopback;
use miette::{IntoDiagnostic, Result};

use crate::device::GuardArgs;
use crate::error::{bad_input, explained};
use crate::interrupt::disconnect_on_interrupt;
use crate::logs::LogArgs;
use crate::run::{KernelArgs, at_least_one};

/// How long a server may take to accept a connection before its absence is reported.
const PATIENCE: Duration = Duration::from_secs(10);

/// Let many devices of a federation take part, from one process: to try a server, and to load it
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Example:\n  deltafl swarm experiments/deployed.toml --insecure --drop-out 0.3 --garbage 0.05",
    // A line for each of many devices would bury everything else.
    mut_arg("level", |level| level.default_value("off"))
)]
pub(crate) struct Args {
    /// The experiment: its data and its model
    experiment: PathBuf,
    /// Override a key of the experiment; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// The address of the server
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7700", value_parser = check_address)]
    server: String,
    /// How many devices, the first of the federation [default: all that train]
    #[arg(long, value_name = "N")]
    devices: Option<usize>,
    /// The certificates and keys of the devices, as `deltafl certs device --fleet` wrote them;
    /// number k plays the k-th train device
    #[arg(long, value_name = "FILE", required_unless_present = "insecure")]
    fleet: Option<PathBuf>,
    /// Without certificates, on a loopback address: for demonstrations
    #[arg(long, conflicts_with = "fleet")]
    insecure: bool,
    /// Let the server ask for losses one by one
    #[arg(long)]
    open: bool,
    /// Answer only in sums over at least so many devices [default: 30; 3 with --insecure]
    #[arg(long, value_name = "N")]
    min_cohort: Option<usize>,
    /// New connections per second
    #[arg(long, value_name = "N", default_value_t = 500)]
    arrivals: u32,
    /// Threads on which the devices compute, together [default: one per core]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    threads: Option<NonZeroUsize>,
    #[command(flatten)]
    kernel: KernelArgs,
    #[command(flatten)]
    guard: GuardArgs,
    #[command(flatten)]
    faults: FaultArgs,
    #[command(flatten)]
    day: DayArgs,
    #[command(flatten)]
    logs: LogArgs,
}

/// What goes wrong.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Faults")]
struct FaultArgs {
    /// Probability that a device vanishes in a round, at a phase drawn at random
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    drop_out: f64,
    /// Probability that a device sends noise instead of one message of a round
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    garbage: f64,
    /// Milliseconds after which a device answers, at most
    #[arg(long, value_name = "MS", default_value_t = 0)]
    delay: u64,
    /// Bytes per second of a device's link [default: no bound]
    #[arg(long, value_name = "BYTES")]
    bandwidth: Option<NonZeroU64>,
    /// The seed from which faults are drawn
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    fault_seed: u64,
}

/// When devices are online.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "A day")]
struct DayArgs {
    /// Let devices come and go with the hours of a day that takes so many seconds: most are online
    /// at night, few at noon
    #[arg(long = "day", value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    length: Option<u32>,
    /// Seconds for which a device is online or away at least
    #[arg(long, value_name = "SECONDS", default_value_t = 5, requires = "length", value_parser = clap::value_parser!(u32).range(1..))]
    stay: u32,
    /// The share of the devices that is online at noon
    #[arg(long, value_name = "SHARE", default_value_t = 0.1, requires = "length")]
    noon: f64,
}

impl DayArgs {
    fn day(&self) -> Result<Option<Day>> {
        let Some(length) = self.length else { return Ok(None) };
        let low = Probability::try_from(self.noon).map_err(|e| bad_input("--noon is no share").because(e))?;
        let seconds = |seconds: u32| Duration::from_secs(seconds.into());
        Ok(Some(Day { length: seconds(length), stay: seconds(self.stay), low }))
    }
}

pub(crate) fn run(args: Args) -> Result<()> {
    args.logs.start();
    let experiment = experiment_file::read(&args.experiment, &args.overrides).map_err(explained)?;
    let federation = session::load(&experiment).map_err(explained)?;
    let model = session::build_model(&experiment, &federation, args.kernel.isa()).map_err(explained)?;
    let federation: Arc<Federation> = Arc::new(federation);
    let trainer: Arc<dyn LocalTrainer> = Arc::new(model_trainer(model.into()));
    let devices = devices(&args, &federation)?;
    let options = options(&args)?;
    eprintln!("{} devices on their way to {}", devices.len(), args.server);
    let runtime = tokio::runtime::Runtime::new().into_diagnostic()?;
    let stop = disconnect_on_interrupt();
    runtime.block_on(async {
        tokio::spawn(report_absence(args.server.clone()));
        let mut swarm = Swarm::start(devices, &trainer, &federation, &options);
        let stopped = async {
            while !stop.load(Ordering::Relaxed) {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::select! {
            reason = swarm.ended() => match reason {
                Some(reason) => Err(bad_input("no device takes part").because(reason).into()),
                None => Ok(()),
            },
            () = stopped => Ok(()),
        }
    })
}

/// Reports that no server responds. The devices keep trying and report nothing.
async fn report_absence(server: String) {
    let mut reported = false;
    loop {
        let connected = tokio::time::timeout(PATIENCE, tokio::net::TcpStream::connect(&server)).await;
        let reason = match connected {
            Ok(Ok(_)) if reported => return eprintln!("a server answers at {server} now"),
            Ok(Ok(_)) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {} s", PATIENCE.as_secs()),
        };
        if !reported {
            eprintln!("no server answers at {server}: {reason}; the devices keep trying");
            reported = true;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

fn devices(args: &Args, federation: &Federation) -> Result<Vec<SimulatedDevice>> {
    let mut devices = federation.split(Split::Train);
    devices.truncate(args.devices.unwrap_or(devices.len()));
    let Some(path) = &args.fleet else {
        let server = ServerEndpoint { address: args.server.clone(), trust: ServerTrust::Loopback };
        let device = |data| {
            let credentials = loopback::credentials(federation.id(data));
            SimulatedDevice { credentials, server: server.clone(), data }
        };
        return Ok(devices.into_iter().map(device).collect());
    };
    let fleet = FleetIdentities::read(path).map_err(|e| bad_input("the fleet cannot be used").because(e))?;
    let plays = |identity: &DeviceIdentity| {
        let data = *devices.get(identity.number() as usize)?;
        let server = ServerEndpoint::certified(&args.server, identity);
        let device = |server| SimulatedDevice { credentials: Credentials::from(identity), server, data };
        Some(server.map(device).map_err(|e| bad_input("the server cannot be known").because(e).into()))
    };
    fleet.devices.iter().filter_map(plays).collect()
}

fn options(args: &Args) -> Result<SwarmOptions> {
    let FaultArgs { drop_out, garbage, delay, bandwidth, fault_seed } = args.faults;
    let every_core = || std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let least = if args.insecure { 3 } else { Consent::default().min_cohort };
    let min_cohort = args.min_cohort.unwrap_or(least);
    Ok(SwarmOptions {
        consent: Consent {
            open: args.open,
            min_cohort,
            guard: args.guard.options().assumptions().map_err(|e| bad_input(e.to_string()))?,
            // Made-up devices: their runs are compared with simulations, and nothing of them is
            // private.
            reproducible: true,
            bucketed: true,
            answers: u64::MAX,
            answers_per_day: u64::MAX,
            min_examples: 1,
            ..Consent::default()
        },
        misconduct: Misconduct { drop_out, garbage, delay_ms: delay, bandwidth },
        seed: fault_seed,
        threads: args.threads.unwrap_or_else(every_core),
        arrivals: args.arrivals,
        backoff: Backoff { first: Duration::from_millis(500), longest: Duration::from_secs(10) },
        day: args.day.day()?,
    })
}
