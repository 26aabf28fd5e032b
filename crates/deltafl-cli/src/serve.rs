//! `deltafl serve`: train an experiment with devices that connect over a network.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use deltafl::data::{Federation, Split};
use deltafl::kernel::Isa;
use deltafl::model::Model;
use deltafl::task::Task;
use deltafl::trainer::{LocalTrainer, Sgd};
use deltafl::training::{Outcome, Plan, RoundRecord, train_with};
use deltafl_data::experiment::{ComputedOn, Experiment, Resolved, SecureAggregation};
use deltafl_data::run_folder::{RunFolder, RunFolderError};
use deltafl_run::experiment_file;
use deltafl_run::session::{self, Seeds};
use deltafl_server::committer::{CatchUpError, RoundCommitter};
use deltafl_server::engine::{Remote, Rules};
use deltafl_server::listener::ConnectionLimits;
use deltafl_server::live::Role;
use deltafl_server::refusal::Refusal;
use deltafl_server::serve::{Host, Introduction, Setup};
use deltafl_wire::contract::DataContract;
use deltafl_wire::loopback;
use deltafl_wire::roster::{Roster, RosterVersion};
use miette::{IntoDiagnostic, Report, Result};

use crate::error::{bad_input, explained, folder_error};
use crate::interrupt::stop_on_interrupt;
use crate::logs::LogArgs;
use crate::run::KernelArgs;
use crate::settings::ConfigArgs;

mod audience;
mod checks;
mod contract;
mod deployment;
mod heap;
mod rounds;

pub(crate) use audience::Audience;
use audience::Console;
pub(crate) use checks::check;
pub(crate) use contract::contract_of;
use contract::declared;
use deployment::{Deployment, DeploymentArgs};
pub(crate) use deployment::{StoreArgs, renewal_error, store_error};
use rounds::Rounds;

/// The roster of a server without certificates is that of its data, and does not change.
const LOOPBACK: RosterVersion = RosterVersion { version: 1, expires: u64::MAX };

/// Train an experiment with devices that connect over a network
///
/// The server learns sums (docs/src/explanation/threat-model.md says what they tell). Every finished round is kept: started again with the same arguments, the
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
    /// The address at which devices connect
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7700")]
    listen: SocketAddr,
    /// Without certificates, on a loopback address: for demonstrations
    #[arg(long)]
    insecure: bool,
    /// Train levels θ although fewer than ten devices of a cohort lie between two of them, of which the two sums then tell
    #[arg(long)]
    allow_close_levels: bool,
    /// The contract of the data, a JSON file: the shape of the devices' examples and how they are normalised, in place of the experiment's data
    #[arg(long, value_name = "FILE", conflicts_with = "insecure")]
    contract: Option<PathBuf>,
    /// Print the contract of the experiment's data, and end
    #[arg(long)]
    print_contract: bool,
    /// Let the experiment ask devices for their losses one by one; only devices that say --open too take part
    #[arg(long)]
    open: bool,
    #[command(flatten)]
    kernel: KernelArgs,
    /// Say nothing about rounds
    #[arg(long, short)]
    quiet: bool,
    #[command(flatten)]
    deployment: DeploymentArgs,
    #[command(flatten)]
    rounds: Rounds,
    #[command(flatten)]
    logs: LogArgs,
}

impl Args {
    /// The instruction set of the kernels.
    pub(crate) fn kernel(&self) -> Isa {
        self.kernel.isa()
    }

    /// Whether there are no certificates.
    pub(crate) fn is_insecure(&self) -> bool {
        self.insecure
    }
}

pub(crate) fn run(args: Args) -> Result<()> {
    args.logs.start();
    heap::return_long_buffers();
    let experiment = experiment_file::read(&args.experiment, &args.overrides).map_err(explained)?;
    if args.print_contract {
        let (_, contract) = declared(&args, &experiment)?;
        println!("{}", serde_json::to_string_pretty(&contract).into_diagnostic()?);
        return Ok(());
    }
    check(&args, &experiment)?;
    let (federation, contract) = declared(&args, &experiment)?;
    let model = session::build_model(&experiment, &federation, args.kernel.isa()).map_err(explained)?;
    let served = Served {
        trainer: &Sgd::new(&*model),
        data_hash: match &args.contract {
            Some(_) => contract.hash().to_hex().to_string(),
            None => federation.hash().to_owned(),
        },
        contract: Some(contract),
        devices: train_devices(&federation),
    };
    // A server needs no examples: those that showed their shape go before devices come.
    drop(federation);
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
    experiment: Experiment,
    served: &Served<'_>,
    audience: &dyn Audience,
    stop: &Arc<AtomicBool>,
) -> Result<Outcome> {
    // Deployed, sums are always secure.
    let schedule = checks::schedule(&experiment)?;
    let experiment = experiment.with_secagg(SecureAggregation::Real).with_schedule(Some(schedule));
    let experiment = experiment.with_resolved(Some(Resolved {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        data_hash: served.data_hash.clone(),
        kernel: args.kernel.isa(),
        compute: ComputedOn::default(),
        params: served.trainer.num_params(),
        population: None, // Devices keep their figures to themselves.
    }));
    audience.warn(&experiment);
    let out = out(args, &experiment);
    let mut folder = open(&out, &experiment)?;
    let held_out = held_out(args, served, audience);
    // With certificates the devices are those on the roster, which may grow; the data only shows their shape.
    let devices = if args.insecure { served.devices.len() } else { usize::MAX };
    let (rules, invited) = args.rounds.rules(experiment.cohort(), devices)?;
    let plan = experiment.plan().into_builder().held_out(held_out).cohort(invited);
    let plan = plan.build().into_diagnostic()?;

    let runtime = tokio::runtime::Runtime::new().into_diagnostic()?;
    let contract = served.contract.as_ref();
    let deployment = runtime.block_on(Deployment::open(&args.deployment, &experiment, contract, &out))?;
    let http = runtime.block_on(deployment.serve_http(&args.deployment))?;
    if let Some((_, url)) = &http {
        audience.page(url);
    }
    let Some(lease) = runtime.block_on(deployment.lead(stop))? else { return Ok(Outcome::Stopped) };
    let seeds = Seeds::new(&experiment, served.trainer, |seed| {
        let params = served.trainer.num_params();
        deployment.run.begin(runtime.handle(), &mut folder, seed, params).map_err(catch_up_error)
    })?;
    let setup = setup(args, &experiment, &deployment, &seeds)?;
    let (host, engine) =
        runtime.block_on(start(setup, &served.devices, &deployment, rules, Arc::clone(stop), &experiment))?;
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
    let heard = |record: &RoundRecord, seconds: f64| {
        heap::return_free_memory();
        audience.round(record, seconds);
    };
    let mut committer =
        RoundCommitter::new(&deployment.run, &lease, &host, runtime.handle(), &mut folder, stop);
    (committer.survey, committer.heard) = (!args.rounds.no_survey, &heard);
    let runs = first_run(&experiment, host.runs())?;
    let ended = train_all(&experiment, &plan, &seeds, (&mut engine, runs), committer, audience);
    if matches!(ended, Ok(Outcome::Finished)) {
        deployment.live.role(Role::Finished);
    }
    if held_out.is_some() && matches!(ended, Ok(Outcome::Finished)) {
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
    args.out.clone().unwrap_or_else(|| PathBuf::from("runs").join(experiment.name()))
}

/// The devices of a federation that train, by name.
pub(crate) fn train_devices(federation: &Federation) -> Vec<String> {
    federation.split(Split::Train).into_iter().map(|k| federation.id(k).to_owned()).collect()
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

/// The shape of the data and the model for it.
pub(crate) fn load(experiment: &Experiment, kernel: Isa) -> Result<(Federation, Box<dyn Model>)> {
    let federation = experiment
        .data
        .load()
        .map_err(|e| bad_input("the data of the experiment cannot be used").because(e))?;
    let model = experiment
        .model
        .spec()
        .build(&federation, kernel)
        .map_err(|e| bad_input("the model does not fit the data").because(e))?;
    Ok((federation, model))
}

/// The run folder: a new one, or the one in which an earlier server left off.
fn open(out: &Path, experiment: &Experiment) -> Result<RunFolder> {
    let begun = out.join("experiment.toml").exists();
    let folder = if begun { RunFolder::resume(out, experiment) } else { RunFolder::create(out, experiment) };
    folder.map_err(folder_error)
}

/// How the server is set up, and what it tells devices that come.
fn setup(args: &Args, experiment: &Experiment, deployment: &Deployment, seeds: &Seeds) -> Result<Setup> {
    let mut session = [0; 16];
    getrandom::fill(&mut session).map_err(|e| miette::miette!("no randomness: {e}"))?;
    let tracks = seeds.pending().iter().take(1).flat_map(|state| &state.tracks);
    Ok(Setup {
        address: args.listen,
        protection: deployment.protection()?,
        connections: ConnectionLimits::default(),
        limits: args.rounds.limits(),
        introduction: Introduction {
            federation: deployment.federation.to_string(),
            session,
            experiment: experiment.name().to_owned(),
            model: serde_json::to_string(&experiment.model().spec()).into_diagnostic()?,
            params: experiment.resolved().map_or(0, |resolved| resolved.params),
            open: experiment.is_open(),
            contract: deployment.contract.clone(),
        },
        newest: tracks.map(|track| track.params.clone()).collect(),
    })
}

async fn start(
    setup: Setup,
    devices: &[String],
    deployment: &Deployment,
    rules: Rules,
    stop: Arc<AtomicBool>,
    experiment: &Experiment,
) -> Result<(Host, Remote)> {
    let seeds = experiment.seeds().iter().len() as u64;
    let roster = match deployment.roster().await? {
        Some(roster) => roster,
        None => {
            let names = devices.iter().map(String::as_str);
            let signed = loopback::roster(LOOPBACK, names, |_| false).into_diagnostic()?;
            let roster = Roster::decode(signed.bytes).into_diagnostic()?;
            loopback::signed(&roster.with_runs(seeds))
        }
    };
    let mut host =
        Host::start(setup, &roster).await.map_err(|e| bad_input("the server cannot start").because(e))?;
    let engine = host.engine(rules, stop).expect("asked for once");
    Ok(match deployment.chain().await? {
        Some(chain) => (host, engine.drawing_by(chain)),
        None => (host, engine),
    })
}

/// The run as which the first seed trains: the seeds are the last of the runs that the authority has signed.
fn first_run(experiment: &Experiment, signed: u64) -> Result<u64> {
    let seeds = experiment.seeds().iter().len() as u64;
    let short = || {
        bad_input(format!("the authority has signed {signed} runs, and the experiment has {seeds} seeds"))
            .help(format!("where the authority's keys are: deltafl certs roster --runs {seeds}"))
    };
    Ok(signed.checked_sub(seeds).ok_or_else(short)?)
}

/// Trains all seeds that are not done.
fn train_all(
    experiment: &Experiment,
    plan: &Plan,
    seeds: &Seeds,
    (engine, first_run): (&mut Remote, u64),
    mut committer: RoundCommitter<'_>,
    audience: &dyn Audience,
) -> Result<Outcome> {
    let stopped = seeds.work(|state| {
        audience.begin(experiment, state.seed, state.round);
        let place = experiment.seeds().iter().position(|&seed| seed == state.seed).unwrap_or(0);
        engine.set_run(first_run + place as u64);
        engine.resume(state).map_err(store_error)?;
        match train_with(engine, plan, state, committer.train_options(), &mut committer) {
            // It waited for devices: no further round was begun.
            Err(_) if committer.stop.load(Ordering::Relaxed) => Ok(Outcome::Stopped),
            ended => ended.map_err(Report::from_err),
        }
    })?;
    Ok(if stopped.is_some() { Outcome::Stopped } else { Outcome::Finished })
}

fn catch_up_error(error: CatchUpError) -> Report {
    match error {
        CatchUpError::Store(error) => store_error(error),
        CatchUpError::Folder(error) => folder_error(error),
        error => Report::from_err(error),
    }
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
