//! `deltafl serve`: train an experiment with devices that connect over a network.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use deltafl::data::{Federation, Split, WithinSplit};
use deltafl::kernel::Isa;
use deltafl::model::Model;
use deltafl::task::Task;
use deltafl::terms::Weights;
use deltafl::trainer::{LocalTrainer, Sgd};
use deltafl::training::{Outcome, Plan, RoundRecord, train};
use deltafl_data::experiment::{ComputedOn, Experiment, Resolved, SecureAggregation, SplitSection};
use deltafl_data::run_folder::{RunFolder, RunFolderError};
use deltafl_server::Deadlines;
use deltafl_server::committer::{CatchUpError, RoundCommitter};
use deltafl_server::engine::{Remote, Rules};
use deltafl_server::listener::ConnectionLimits;
use deltafl_server::live::Role;
use deltafl_server::refusal::Refusal;
use deltafl_server::serve::{Host, Introduction, Limits, Setup};
use deltafl_wire::contract::DataContract;
use deltafl_wire::loopback;
use deltafl_wire::roster::Edition;
use miette::{IntoDiagnostic, Report, Result};

use crate::device::GuardArgs;
use crate::error::bad_input;
use crate::experiment_file;
use crate::run::Machine;
use crate::session::{self, Seeds, folder_error, stop_on_interrupt};
use crate::settings::ConfigArgs;

mod audience;
mod deployment;
mod logs;

pub(crate) use audience::Audience;
use audience::Console;
use deployment::{Deployment, DeploymentArgs};
pub(crate) use deployment::{StoreArgs, renewal_error, store_error};

/// Devices of a cohort by which two levels must differ.
const APART: f64 = 10.0;

/// The roster of a server without certificates is that of its data, and does not change.
const LOOPBACK: Edition = Edition { version: 1, expires: u64::MAX };

/// Train an experiment with devices that connect over a network
///
/// The server learns sums (docs/threat-model.md says what they tell). Every finished round is kept: started again with the same arguments, the
/// server goes on where it was.
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
    /// Where devices connect to
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7700")]
    listen: SocketAddr,
    /// Without certificates, on a loopback address: for demonstrations
    #[arg(long)]
    insecure: bool,
    /// Train levels θ that lie fewer than ten devices of a cohort apart: their sums tell of the devices between them
    #[arg(long)]
    allow_close_levels: bool,
    /// The contract of the data, a JSON file: the shape of the devices' examples and how they are normalised, in place of the experiment's data
    #[arg(long, value_name = "FILE", conflicts_with = "insecure")]
    contract: Option<PathBuf>,
    /// Print the contract of the experiment's data, and end
    #[arg(long)]
    print_contract: bool,
    /// Let the experiment ask devices for their losses one by one; devices must agree too
    #[arg(long)]
    open: bool,
    #[command(flatten)]
    logs: logs::LogArgs,
    #[command(flatten)]
    deployment: DeploymentArgs,
    #[command(flatten)]
    rounds: Rounds,
    #[command(flatten)]
    machine: Machine,
    /// Say nothing about rounds
    #[arg(long, short)]
    quiet: bool,
}

impl Args {
    /// The instruction set of the kernels.
    pub(crate) fn kernel(&self) -> Isa {
        self.machine.kernel()
    }

    /// Whether there are no certificates.
    pub(crate) fn is_insecure(&self) -> bool {
        self.insecure
    }
}

/// How rounds are run with devices that come and go.
#[derive(clap::Args, Debug)]
pub(crate) struct Rounds {
    /// Devices that must be there before a round begins [default: a cohort]
    #[arg(long, value_name = "N")]
    wait_for: Option<usize>,
    /// Devices invited beyond the cohort, as a share of it; the first to come take part
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    over_select: f64,
    /// The share of the cohort that must stay for a sum
    #[arg(long, value_name = "SHARE", default_value_t = 0.5)]
    quorum: f64,
    /// The share of the cohort that may drop out, for which keys are shared
    #[arg(long, value_name = "SHARE", default_value_t = 0.2)]
    drop_out: f64,
    #[command(flatten)]
    guard: GuardArgs,
    /// Seconds for each step of the key set-up
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    setup_deadline: u64,
    /// Seconds to fetch parameters, train and answer
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    answer_deadline: u64,
    /// Seconds for the consistency check, and for the unmasking
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    unmask_deadline: u64,
    /// Kilobytes per second at which a device must send its answer, or it is cut off
    #[arg(long, value_name = "KB", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    min_rate: u32,
    /// Seconds for the devices of a round to come back to a server that goes on with it
    #[arg(long, value_name = "SECONDS", default_value_t = 150)]
    come_back_deadline: u64,
    /// Cohorts with which a round is begun before it is given up and moves nothing
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    attempts: u32,
    /// The longest step that a round may take, as the norm of the change of the params; a longer one is given up
    #[arg(long, value_name = "NORM")]
    max_step: Option<f64>,
    /// Ask for no histogram of losses that training does not need: the card of a level without a threshold then has none
    #[arg(long)]
    no_survey: bool,
    /// Do not ask cohorts how the models serve the examples that devices hold out: nothing is then known of the error
    #[arg(long)]
    no_evaluation: bool,
}

impl Rounds {
    /// The plan with more devices to invite, and the rules for `devices` devices.
    fn rules(&self, plan: &mut Plan, devices: usize) -> Result<Rules> {
        let share = |option: &str, value: f64, most: f64| {
            let fits = (0.0..=most).contains(&value);
            fits.then_some(value).ok_or_else(|| bad_input(format!("--{option} {value} is not in 0..={most}")))
        };
        let cohort = plan.sampling.cohort_size.min(devices);
        // Where the server may lie, more than half of those invited must stay (docs/threat-model.md).
        let extra = share("over-select", self.over_select, 0.5)? * cohort as f64;
        plan.sampling.cohort_size += extra.ceil() as usize;
        let quorum = (share("quorum", self.quorum, 1.0)? * cohort as f64).ceil() as usize;
        let dropping = (1000.0 * share("drop-out", self.drop_out, 0.5)?) as u16;
        Ok(Rules {
            present: self.wait_for.unwrap_or(cohort).min(devices),
            quorum: quorum.max(2),
            dropping: deltafl_server::engine::Permille::new(dropping).unwrap_or_default(),
            deadlines: Deadlines {
                setup: Duration::from_secs(self.setup_deadline),
                input: Duration::from_secs(self.answer_deadline),
                unmask: Duration::from_secs(self.unmask_deadline),
            },
            max_step: self.max_step,
            attempts: self.attempts,
            come_back: Duration::from_secs(self.come_back_deadline),
            guard: self.guard.guard()?,
            ..Rules::new(cohort, devices)
        })
    }
}

pub(crate) fn run(args: Args) -> Result<()> {
    args.logs.start();
    let experiment = experiment_file::read(&args.experiment, &args.overrides)?;
    if args.print_contract {
        let (_, contract) = declared(&args, &experiment)?;
        println!("{}", serde_json::to_string_pretty(&contract).into_diagnostic()?);
        return Ok(());
    }
    check(&args, &experiment)?;
    let (federation, contract) = declared(&args, &experiment)?;
    let model = session::build_model(&experiment, &federation, args.machine.kernel())?;
    let served = Served {
        trainer: &Sgd::new(&*model),
        data_hash: match &args.contract {
            Some(_) => contract.hash().to_hex().to_string(),
            None => federation.hash().to_owned(),
        },
        contract: Some(contract),
        devices: train_devices(&federation),
    };
    let quiet = args.quiet;
    let out = out(&args, &experiment);
    match serve(&args, experiment, &served, &Console { quiet }, stop_on_interrupt())? {
        Outcome::Stopped => eprintln!("stopped; every finished round is kept in {}", out.display()),
        Outcome::Finished => println!("Run folder: {}", out.display()),
    }
    Ok(())
}

/// What a server trains, and with whom.
pub(crate) struct Served<'a> {
    /// Names w and where it starts; the devices train by their own.
    pub(crate) trainer: &'a dyn LocalTrainer,
    /// The contract of the data; none where devices bring their own trainer.
    pub(crate) contract: Option<DataContract>,
    /// What the run folder records of the data.
    pub(crate) data_hash: String,
    /// The devices of a server without certificates, by name.
    pub(crate) devices: Vec<String>,
}

/// Trains an experiment with devices that connect, until all seeds are done or `stop` is raised.
pub(crate) fn serve(
    args: &Args,
    mut experiment: Experiment,
    served: &Served<'_>,
    audience: &dyn Audience,
    stop: &Arc<AtomicBool>,
) -> Result<Outcome> {
    // Deployed, sums are always secure.
    experiment.secagg = SecureAggregation::Real;
    experiment.resolved = Some(Resolved {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        data_hash: served.data_hash.clone(),
        kernel: args.machine.kernel(),
        compute: ComputedOn::default(),
        params: served.trainer.num_params(),
        population: None, // Devices keep their figures to themselves.
    });
    audience.warn(&experiment);
    let out = out(args, &experiment);
    let mut folder = open(&out, &experiment)?;
    let mut plan = experiment.plan();
    plan.held_out = held_out(args, served, audience);
    // With certificates the devices are those on the roster, which may grow; the data only shows their shape.
    let devices = if args.insecure { served.devices.len() } else { usize::MAX };
    let rules = args.rounds.rules(&mut plan, devices)?;

    let runtime = tokio::runtime::Runtime::new().into_diagnostic()?;
    let contract = served.contract.as_ref();
    let deployment = runtime.block_on(Deployment::open(&args.deployment, &experiment, contract, &out))?;
    let http = runtime.block_on(deployment.serve_http(&args.deployment))?;
    if let Some((_, url)) = &http {
        audience.page(url);
    }
    let Some(lease) = runtime.block_on(deployment.lead(stop))? else { return Ok(Outcome::Stopped) };
    let (host, engine) =
        runtime.block_on(start(args, &experiment, &served.devices, &deployment, rules, Arc::clone(stop)))?;
    let mut engine = engine.kept_in(deployment.run.journal(&lease));
    if let Some((state, _)) = http {
        let _ = state.refusals.set(host.refusals());
    }
    audience.listening(host.address(), rules.present);
    let host = Arc::new(host);
    let following = {
        let _entered = runtime.enter();
        deployment.follow(&host)
    };
    let heard = |record: &RoundRecord, seconds: f64| audience.round(record, seconds);
    let mut committer =
        RoundCommitter::new(&deployment.run, &lease, &host, runtime.handle(), &mut folder, stop);
    (committer.survey, committer.heard) = (!args.rounds.no_survey, &heard);
    let ended = all_seeds(&experiment, &plan, served.trainer, &mut engine, committer, audience);
    if matches!(ended, Ok(Outcome::Finished)) {
        deployment.live.role(Role::Finished);
    }
    if plan.held_out.is_some() && matches!(ended, Ok(Outcome::Finished)) {
        match folder.summarise() {
            // No device holds examples out.
            Ok(_) | Err(RunFolderError::NotEvaluated { .. }) => {}
            Err(error) => audience.say(&format!("summary.json could not be written: {error}")),
        }
    }
    report_refusals(&host, audience);
    if args.deployment.stay && matches!(ended, Ok(Outcome::Finished)) {
        audience.say("all rounds are done; serving the models until stopped");
        while !stop.load(Ordering::Relaxed) && lease.is_held() {
            std::thread::sleep(Duration::from_millis(200));
        }
    }
    runtime.block_on(async {
        following.abort();
        let _ = following.await;
        if let Some(host) = Arc::into_inner(host) {
            host.shut_down().await;
        }
        // The next server need not wait; if the database is gone, it waits for the lease to run out.
        let _ = lease.release().await;
    });
    ended
}

/// The run folder.
fn out(args: &Args, experiment: &Experiment) -> PathBuf {
    args.out.clone().unwrap_or_else(|| PathBuf::from("runs").join(&experiment.name))
}

/// The devices of a federation that train, by name.
pub(crate) fn train_devices(federation: &Federation) -> Vec<String> {
    federation.split(Split::Train).into_iter().map(|k| federation.id(k).to_owned()).collect()
}

/// Refuses what must not be deployed.
pub(crate) fn check(args: &Args, experiment: &Experiment) -> Result<()> {
    if !args.insecure && args.deployment.certs.is_none() {
        return Err(bad_input("a server needs --certs DIR, or --insecure on a loopback address")
            .help("deltafl certs init and deltafl certs server make the folder")
            .into());
    }
    if experiment.is_open() && !args.open {
        return Err(bad_input("the experiment finds η in open mode: devices would tell their losses one by one")
            .help("private mode: --set algorithm.N.quantile=histogram, counted from 0; or choose the open mode with --open")
            .into());
    }
    if !experiment.is_open() && experiment.weights == Weights::Exact {
        return Err(bad_input("devices do not tell how many examples they have")
            .help("write weights = \"uniform\" or \"bucketed\" into the experiment, or --set weights=uniform")
            .into());
    }
    if experiment.with_replacement {
        return Err(bad_input("the experiment draws cohorts with replacement, which a deployment refuses")
            .help("a device that counts twice could be read off a sum: remove with_replacement, or --set with_replacement=false")
            .into());
    }
    if !args.insecure && !args.allow_close_levels {
        check_levels(experiment)?;
    }
    Ok(())
}

/// Refuses levels whose tails differ by a few devices: where two tracks stand at one w, as all do in round 0, the difference of
/// their sums is the sum over those few.
fn check_levels(experiment: &Experiment) -> Result<()> {
    let cohort = experiment.cohort.get();
    let mut levels: Vec<f64> = experiment.tracks().into_iter().map(|track| track.label.theta.get()).collect();
    levels.sort_by(f64::total_cmp);
    levels.dedup();
    for pair in levels.windows(2) {
        let apart = (pair[1] - pair[0]) * cohort as f64;
        if apart < APART - 1e-6 {
            let (low, high) = (pair[0], pair[1]);
            let what = format!("θ = {low} and {high} are {apart:.1} devices apart in a cohort of {cohort}");
            return Err(bad_input(what)
                .help("what lies between is the sum over those: take larger cohorts or levels further apart, or --allow-close-levels")
                .into());
        }
    }
    let parts = levels.len();
    if parts > 1 && (cohort as f64) < APART * parts as f64 {
        let what = format!("{parts} levels part a cohort of {cohort} into fewer than ten devices each");
        return Err(bad_input(what)
            .help("all levels start at one w, and there a device trains for one of them: take larger cohorts or fewer levels, or --allow-close-levels")
            .into());
    }
    Ok(())
}

/// What cohorts are asked about the examples that their devices hold out.
fn held_out(args: &Args, served: &Served<'_>, audience: &dyn Audience) -> Option<Task> {
    let contract = served.contract.as_ref().filter(|_| !args.rounds.no_evaluation)?;
    if contract.split.is_none() {
        audience.note(
            "devices hold no examples out, and nothing will be known of their error: under [data] write split = { within = { train = 0.8 } }",
        );
    }
    contract.split.map(|_| served.trainer.task())
}

/// The contract of data as a federation has it, and as the experiment says that devices split their own examples.
pub(crate) fn contract_of(federation: &Federation, experiment: &Experiment) -> DataContract {
    DataContract { split: split_within(experiment), ..DataContract::of(federation) }
}

fn split_within(experiment: &Experiment) -> Option<WithinSplit> {
    match &experiment.data.split {
        Some(SplitSection::Within(within)) => Some(*within),
        _ => None,
    }
}

/// The shape of the data and its contract: as a file declares it, or as the experiment's data has it. How devices split their own
/// examples the experiment says, or the file.
fn declared(args: &Args, experiment: &Experiment) -> Result<(Federation, DataContract)> {
    let Some(path) = &args.contract else {
        let federation = session::load(experiment)?;
        let contract = contract_of(&federation, experiment);
        return Ok((federation, contract));
    };
    let within = split_within(experiment);
    let refused = || bad_input(format!("{} holds no contract of the data", path.display()));
    let bytes = std::fs::read(path).map_err(|e| refused().because(e))?;
    let mut contract = DataContract::from_bytes(&bytes).map_err(|e| {
        refused().help("deltafl serve EXPERIMENT --print-contract prints one to start from").because(e)
    })?;
    if within.is_some() && contract.split.is_some() && contract.split != within {
        return Err(bad_input(format!(
            "{} splits the examples of devices otherwise than the experiment",
            path.display()
        ))
        .help("leave \"split\" out of the one, or data.split out of the other")
        .into());
    }
    contract.split = contract.split.or(within);
    Ok((contract.shape(), contract))
}

/// The shape of the data and the model for it.
pub(crate) fn load(experiment: &Experiment, machine: &Machine) -> Result<(Federation, Box<dyn Model>)> {
    let federation = experiment
        .data
        .load()
        .map_err(|e| bad_input("the data of the experiment cannot be used").because(e))?;
    let model = experiment
        .model
        .spec()
        .build(&federation, machine.kernel())
        .map_err(|e| bad_input("the model does not fit the data").because(e))?;
    Ok((federation, model))
}

/// The run folder: a new one, or the one in which an earlier server left off.
fn open(out: &Path, experiment: &Experiment) -> Result<RunFolder> {
    let begun = out.join("experiment.toml").exists();
    let folder = if begun { RunFolder::resume(out, experiment) } else { RunFolder::create(out, experiment) };
    folder.map_err(folder_error)
}

async fn start(
    args: &Args,
    experiment: &Experiment,
    devices: &[String],
    deployment: &Deployment,
    rules: Rules,
    stop: Arc<AtomicBool>,
) -> Result<(Host, Remote)> {
    let roster = match deployment.roster().await? {
        Some(roster) => roster,
        None => {
            loopback::roster(LOOPBACK, devices.iter().map(String::as_str), |_| false).into_diagnostic()?
        }
    };
    let mut session = [0; 16];
    getrandom::fill(&mut session).map_err(|e| miette::miette!("no randomness: {e}"))?;
    let setup = Setup {
        address: args.listen,
        protection: deployment.protection()?,
        connections: ConnectionLimits::default(),
        limits: Limits { min_rate: 1000 * args.rounds.min_rate, ..Limits::default() },
        introduction: Introduction {
            federation: deployment.federation.to_string(),
            session,
            experiment: experiment.name.clone(),
            model: serde_json::to_string(&experiment.model.spec()).into_diagnostic()?,
            params: experiment.resolved.as_ref().map_or(0, |resolved| resolved.params),
            open: experiment.is_open(),
            contract: deployment.contract.clone(),
        },
    };
    let mut host =
        Host::start(setup, &roster).await.map_err(|e| bad_input("the server cannot start").because(e))?;
    let engine = host.engine(rules, stop).expect("asked for once");
    Ok(match deployment.chain().await? {
        Some(chain) => (host, engine.drawing_by(chain)),
        None => (host, engine),
    })
}

/// Trains all seeds that are not done.
fn all_seeds(
    experiment: &Experiment,
    plan: &Plan,
    trainer: &dyn LocalTrainer,
    engine: &mut Remote,
    mut committer: RoundCommitter<'_>,
    audience: &dyn Audience,
) -> Result<Outcome> {
    let seeds = Seeds::new(experiment, trainer, |seed| {
        committer.begin(seed, trainer.num_params()).map_err(|error| match error {
            CatchUpError::Store(error) => store_error(error),
            CatchUpError::Folder(error) => folder_error(error),
            error => Report::from_err(error),
        })
    })?;
    let stopped = seeds.work(|state| {
        audience.begin(experiment, state.seed, state.round);
        engine.resume(state.seed, state.round).map_err(store_error)?;
        match train(engine, plan, state, &mut committer) {
            // It waited for devices: no further round was begun.
            Err(_) if committer.stop.load(Ordering::Relaxed) => Ok(Outcome::Stopped),
            ended => ended.map_err(Report::from_err),
        }
    })?;
    Ok(if stopped.is_some() { Outcome::Stopped } else { Outcome::Finished })
}

fn report_refusals(host: &Host, audience: &dyn Audience) {
    let counted = Refusal::ALL.map(|refusal| (refusal.name(), host.refused(refusal)));
    let told: Vec<String> = counted
        .iter()
        .filter(|(_, count)| *count > 0)
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    if !told.is_empty() {
        audience.refused(&told.join(", "));
    }
}
