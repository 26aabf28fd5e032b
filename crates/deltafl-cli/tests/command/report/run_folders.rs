//! Run folders for reports: a small trained one, and a large generated one.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use deltafl::data::Split;
use deltafl::data::synthetic::{Glyphs, Spec};
use deltafl::exchange::{EvaluatedDevice, Evaluation, Simulation, SplitEvaluation};
use deltafl::kernel::Isa;
use deltafl::stream::{Purpose, Stream};
use deltafl::task::Task;
use deltafl::trainer::Sgd;
use deltafl::training::{Event, Observer, ObserverResult, RoundRecord, train};
use deltafl_data::experiment::{BackendName, Experiment, Resolved};
use deltafl_data::run_folder::{RunFolder, Summary};

/// Trains FedAvg and three levels of Δ-FL with two seeds for twenty rounds on synthetic glyphs.
pub(crate) fn trained(folder: &Path) -> Summary {
    trained_as(
        folder,
        "glyphs-linear",
        "[[algorithm]]\nkind = 'fedavg'\n[[algorithm]]\nkind = 'delta-fl'\ntheta = [0.8, 0.5, 0.1]\n",
    )
}

/// Trains the same with other algorithms.
pub(crate) fn trained_as(folder: &Path, name: &str, algorithms: &str) -> Summary {
    let experiment = experiment(&format!(
        "name = '{name}'\nseeds = [1, 2]\nrounds = 20\ncohort = 10\nevaluate_every = 4\n\
         [data]\nsource = {{ kind = 'glyphs', devices = 40, seed = 3 }}\n\
         [model]\nkind = 'linear'\n[local]\nepochs = 1\nbatch = 10\nlearning_rate = 0.1\n{algorithms}"
    ));
    let spec: Glyphs = toml::from_str("devices = 40\nseed = 3").unwrap();
    let federation = Spec::Glyphs(spec).build();
    let resolved = experiment.resolved().cloned();
    let experiment =
        experiment.with_resolved(resolved.map(|r| Resolved { data_hash: federation.hash().to_owned(), ..r }));
    let model = experiment.model().spec().build(&federation, Isa::detect()).unwrap();
    let trainer = Sgd::new(&*model);
    let mut exchange = Simulation::with_threads(&trainer, &federation, NonZeroUsize::new(2)).unwrap();
    let plan = experiment.plan();
    let mut scribe =
        Scribe { seed: 0, folder: RunFolder::create(folder, &experiment).unwrap(), deployed: false };
    for &seed in experiment.seeds() {
        scribe.seed = seed;
        let mut state = plan.start(seed, &trainer);
        train(&mut exchange, &plan, &mut state, &mut scribe).unwrap();
    }
    scribe.folder.summarise().unwrap()
}

/// Writes the run folder of a server whose cohorts send histograms over held-out examples, without
/// results of single devices.
pub(crate) fn deployed(folder: &Path) -> Summary {
    let experiment = experiment(
        "name = 'deployed'\nrounds = 20\ncohort = 20\nevaluate_every = 4\n\
         [data]\nsource = { kind = 'glyphs', devices = 60, seed = 3 }\nsplit = { within = { train = 0.7 } }\n\
         [model]\nkind = 'linear'\n[local]\nepochs = 1\nbatch = 10\nlearning_rate = 0.05\n[[algorithm]]\nkind = 'fedavg'\n\
         [[algorithm]]\nkind = 'delta-fl'\ntheta = [0.8, 0.5]\nquantile = 'histogram'\n",
    );
    let federation = experiment.data().load().unwrap();
    let model = experiment.model().spec().build(&federation, Isa::detect()).unwrap();
    let trainer = Sgd::new(&*model);
    let mut exchange = Simulation::with_threads(&trainer, &federation, NonZeroUsize::new(2)).unwrap();
    let plan = experiment.plan().into_builder().held_out(model.task()).build().unwrap();
    let mut scribe =
        Scribe { seed: 1, folder: RunFolder::create(folder, &experiment).unwrap(), deployed: true };
    let mut state = plan.start(1, &trainer);
    train(&mut exchange, &plan, &mut state, &mut scribe).unwrap();
    scribe.folder.summarise().unwrap()
}

/// Writes a generated run with as many devices (half of them train devices), tracks and evaluations
/// as a page must support.
pub(crate) fn made_up(folder: &Path, devices: usize, evaluations: u64) -> Summary {
    let experiment = experiment(&format!(
        "name = 'made-up'\nseeds = [1]\nrounds = {}\ncohort = 100\nevaluate_every = 10\n\
         [data]\nsource = {{ kind = 'glyphs', devices = {devices} }}\n\
         [model]\nkind = 'linear'\n[local]\nepochs = 1\nbatch = 10\nlearning_rate = 0.1\n\
         [[algorithm]]\nkind = 'fedavg'\n[[algorithm]]\nkind = 'delta-fl'\ntheta = [0.8, 0.5, 0.2, 0.1]\n",
        10 * (evaluations - 1)
    ));
    let mut run = RunFolder::create(folder, &experiment).unwrap();
    let labels = experiment.labels();
    for evaluation in 0..evaluations {
        let splits =
            [Split::Train, Split::Test].map(|split| drawn_up(split, devices / 2, labels.len(), evaluation));
        run.evaluation(1, 10 * evaluation, &splits).unwrap();
    }
    for round in 0..10 * (evaluations - 1) {
        let records: Vec<RoundRecord> = labels
            .iter()
            .enumerate()
            .map(|(track, label)| RoundRecord {
                seed: 1,
                track,
                name: label.name.clone(),
                eta_age: None,
                round,
                eta: None,
                loss: None,
                cohort: 100,
                dropped: 0,
                tail: (100.0 * label.theta.get()) as u64 + (round * 7 + track as u64) % 5,
                tail_weight: 1000.0,
                refused: 0,
                sums: 1,
                messages: 200,
                bytes_up: 8,
                bytes_down: 8,
                evaluations: Vec::new(),
                privacy: None,
            })
            .collect();
        run.append(&records, 0.0).unwrap();
    }
    run.summarise().unwrap()
}

/// Generates errors that decrease over the rounds, faster for hard devices if θ is small.
fn drawn_up(split: Split, devices: usize, tracks: usize, evaluation: u64) -> SplitEvaluation {
    let device =
        |k: usize| EvaluatedDevice { id: format!("writer-{k:05}"), examples: 20 + (k as u64 * 37) % 400 };
    let of = |track: usize, k: usize| {
        let mut stream = Stream::new(split as u64, Purpose::Synthesis, 0, k as u64);
        let hard = stream.unit().powi(2);
        let mut noise = Stream::new(track as u64, Purpose::Synthesis, evaluation + 1, k as u64);
        let learnt = 1.0 - (-(evaluation as f64) / 20.0).exp();
        let end = 0.12 + 0.5 * hard - 0.05 * track as f64 * (hard - 0.3);
        let error = (0.98 + learnt * (end - 0.98) + 0.01 * noise.normal()).clamp(0.0, 1.0);
        Evaluation::of_primary(4.0 * error + 0.05, error)
    };
    SplitEvaluation {
        split,
        task: Task::Classes,
        devices: (0..devices).map(device).collect::<Arc<[_]>>(),
        tracks: (0..tracks).map(|track| (0..devices).map(|k| of(track, k)).collect()).collect(),
    }
}

fn experiment(text: &str) -> Experiment {
    let resolved = Resolved {
        version: "test".into(),
        data_hash: "none".into(),
        kernel: Isa::detect(),
        compute: BackendName::Cpu,
        params: 48_608,
        normalise: None,
        population: None,
    };
    Experiment::parse(text).unwrap().with_resolved(Some(resolved))
}

/// Writes events into a run folder.
struct Scribe {
    seed: u64,
    folder: RunFolder,
    /// Whether devices keep their metrics private.
    deployed: bool,
}

impl Observer<Event<'_>> for Scribe {
    fn handle(&mut self, event: Event<'_>) -> ObserverResult {
        match event {
            Event::RoundFinished { records } => self.folder.append(records, 0.0)?,
            Event::Evaluated { round, splits } if !self.deployed => {
                self.folder.evaluation(self.seed, round, splits)?;
            }
            Event::Checkpoint { state } => self.folder.checkpoint(state)?,
            _ => {}
        }
        Ok(ControlFlow::Continue(()))
    }
}
