//! What one rank of a test does, as its environment says.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;

use deltafl::algorithm::Track;
use deltafl::cohort::Availability;
use deltafl::compute::Threads;
use deltafl::data::synthetic::{Glyphs, Spec};
use deltafl::data::{DeviceExamples, Federation, FederationBuilder, InputKind, Split};
use deltafl::exchange::Simulation;
use deltafl::kernel::Isa;
use deltafl::model::{Batch, Model, ModelSpec, Score};
use deltafl::stream::Stream;
use deltafl::trainer::Sgd;
use deltafl::training::{Event, Observer, ObserverResult, Outcome, train};
use deltafl_data::experiment::Experiment;
use deltafl_data::run_folder::{RunFolder, checkpoint_bytes, state_of_checkpoint};
use deltafl_mpi::World;

use crate::intercepted::Intercepted;

const EXPERIMENT: &str = r#"
    name = "ranks"
    seeds = [7]
    rounds = 6
    cohort = 8
    evaluate_every = 2
    data = { source = { kind = "glyphs", devices = 24, seed = 3 } }
    model = { kind = "linear", l2 = 1e-4 }
    local = { epochs = 1, batch = 10, learning_rate = 0.1 }
    availability = { drop_out = 0.1 }
    [[algorithm]]
    kind = "fedavg"
    [[algorithm]]
    kind = "delta-fl"
    theta = [0.8, 0.3]
    [[algorithm]]
    kind = "delta-fl"
    theta = 0.5
    quantile = "histogram"
    [[algorithm]]
    kind = "delta-fl"
    theta = 0.5
    nu = 0.1
    eta_every = 2
    [[algorithm]]
    kind = "scaffold"
"#;

fn experiment() -> Experiment {
    Experiment::parse(EXPERIMENT).expect("the experiment of this test is valid")
}

fn federation(seed: u64) -> Federation {
    let spec: Glyphs = toml::from_str(&format!("devices = 24\nseed = {seed}")).expect("a valid spec");
    Spec::Glyphs(spec).build()
}

/// Writes the run folder. Stops the run after `stop_after` rounds.
struct Recorder {
    folder: RunFolder,
    stop_after: Option<u64>,
}

impl Observer<Event<'_>> for Recorder {
    fn handle(&mut self, event: Event<'_>) -> ObserverResult {
        match event {
            Event::RoundFinished { records } => {
                self.folder.append(records, 0.0)?;
                if self.stop_after == Some(records[0].round + 1) {
                    return Ok(ControlFlow::Break(()));
                }
            }
            Event::Evaluated { round, splits } => self.folder.evaluation(7, round, splits)?,
            Event::Checkpoint { state } => self.folder.checkpoint(state)?,
            _ => {}
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// The same run on the threads exchange, into a folder: what all ranks must come to.
pub(crate) fn train_on_threads(folder: &Path) {
    let (experiment, federation) = (experiment(), federation(3));
    let model = ModelSpec::LINEAR.build(&federation, Isa::detect()).expect("a linear model fits glyphs");
    let trainer = Sgd::new(&*model);
    let threads = NonZeroUsize::new(2);
    let mut exchange =
        Simulation::with_threads(&trainer, &federation, threads).expect("there are train devices");
    let plan = experiment.plan();
    let mut state = plan.start(7, &trainer);
    let folder = RunFolder::create(folder, &experiment).expect("the folder is new");
    let mut recorder = Recorder { folder, stop_after: None };
    train(&mut exchange, &plan, &mut state, &mut recorder).expect("the run can be trained");
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Trains the experiment of this test into `FOLDER`, on all ranks. `RESUME` goes on with a run,
/// `STOP_AFTER` a round stops it, `KILL_IN` a round kills rank 1, `MASKED` adds up under secure
/// aggregation.
pub(crate) fn train_on_ranks() {
    let world = World::init().unwrap_or_else(|error| refuse(&error));
    let path = PathBuf::from(std::env::var_os("FOLDER").expect("FOLDER is set"));
    let (experiment, federation) = (experiment(), federation(3));
    let isa = world.common_isa(Isa::detect());
    let model = ModelSpec::LINEAR.build(&federation, isa).expect("a linear model fits glyphs");
    let folder = world.is_root().then(|| {
        let resume = number("RESUME").is_some();
        let folder = if resume { RunFolder::resume } else { RunFolder::create }(&path, &experiment);
        folder.unwrap_or_else(|error| world.fail(&error, 2))
    });
    let saved = folder
        .as_ref()
        .and_then(|folder| folder.state(7, model.num_params()).unwrap_or_else(|error| world.fail(&error, 2)));
    let plan = experiment.plan();
    let saved = saved.map(|state| checkpoint_bytes(&state).expect("a state can be written"));
    let saved = world.bytes_of_root(saved.unwrap_or_default());
    let trainer = Sgd::new(&*model);
    let mut state = match saved.is_empty() {
        true => plan.start(7, &trainer),
        false => state_of_checkpoint(&saved).expect("rank 0 has read it"),
    };

    let threads = NonZeroUsize::new(2);
    let compute = Threads::new(&trainer, &federation, threads).unwrap_or_else(|error| world.fail(&error, 1));
    let mut exchange = world.exchange(compute, &federation).unwrap_or_else(|error| world.fail(&error, 1));
    if number("MASKED").is_some() {
        exchange = exchange.masked(0.1);
    }
    // The process dies at the update of a round, as by `kill -9`.
    let dies_in = number("KILL_IN").filter(|_| world.rank() == 1);
    let mut exchange = Intercepted::new(exchange).before_sum(|round, _| {
        if dies_in == Some(round.index) {
            let _ = Command::new("kill").args(["-9", &std::process::id().to_string()]).status();
        }
    });
    let mut observer =
        world.observe(folder.map(|folder| Recorder { folder, stop_after: number("STOP_AFTER") }));
    let outcome = train(&mut exchange, &plan, &mut state, &mut observer);
    let outcome = outcome.unwrap_or_else(|error| world.fail(&error, 1));
    assert_eq!(outcome == Outcome::Stopped, number("STOP_AFTER").is_some());
    if let Some(throughput) = world.throughput(&exchange.inner) {
        eprint!("{throughput}");
    }
}

/// Ranks of which the last has other data.
pub(crate) fn differ() {
    let world = World::init().unwrap_or_else(|error| refuse(&error));
    let last = world.rank() + 1 == world.size();
    let federation = federation(if last { 4 } else { 3 });
    if let Err(differs) = world.same("the data", federation.hash()) {
        if world.is_root() {
            eprintln!("{differs}");
        }
        drop(world);
        std::process::exit(2);
    }
}

/// A model that cannot learn the class 1.
struct Brittle(Box<dyn Model>);

impl Model for Brittle {
    fn num_params(&self) -> usize {
        self.0.num_params()
    }

    fn init(&self, stream: &mut Stream, params: &mut [f32]) {
        self.0.init(stream, params);
    }

    fn scratch_len(&self, batch: usize) -> usize {
        self.0.scratch_len(batch)
    }

    fn gradient(&self, params: &[f32], batch: Batch<'_>, gradient: &mut [f32], scratch: &mut [f32]) -> f64 {
        assert!(!batch.targets.classes().contains(&1), "no gradient for class 1");
        self.0.gradient(params, batch, gradient, scratch)
    }

    fn evaluate(&self, _: &[f32], batch: Batch<'_>, _: &mut [f32]) -> Score {
        Score::of_classes(batch.len() as f64, 0)
    }
}

/// Ranks one of which owns a device that cannot be computed.
pub(crate) fn fail_on_a_device() {
    let world = World::init().unwrap_or_else(|error| refuse(&error));
    let mut builder = FederationBuilder::new("t", InputKind::Dense { dim: 2 }, 2);
    for (id, label) in [("anna", 0), ("boris", 1), ("clara", 0), ("dora", 0)] {
        builder
            .push(id, Split::Train, DeviceExamples::Dense(&[1.0, -1.0]), &[label])
            .expect("a valid device");
    }
    let federation = builder.build();
    let model = ModelSpec::LINEAR.build(&federation, Isa::detect()).expect("a linear model fits");
    let model = Brittle(model);
    let trainer = Sgd::new(&model);
    let threads = Some(NonZeroUsize::MIN);
    let compute = Threads::new(&trainer, &federation, threads).unwrap_or_else(|error| world.fail(&error, 1));
    let mut exchange = world.exchange(compute, &federation).unwrap_or_else(|error| world.fail(&error, 1));
    let plan = experiment().plan().into_builder().tracks([Track::fed_avg()]);
    let plan = plan.availability(Availability::default()).build().expect("a valid plan");
    let mut state = plan.start(7, &trainer);
    let mut observer = world.observe::<Recorder>(None);
    if let Err(error) = train(&mut exchange, &plan, &mut state, &mut observer) {
        world.fail(&error, 3);
    }
}

fn refuse(error: &deltafl_mpi::WorldError) -> ! {
    eprintln!("{error}");
    std::process::exit(2);
}
