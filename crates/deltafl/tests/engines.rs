//! Every engine, any number of threads, interrupted or not: the same bits.
#![allow(clippy::unwrap_used)]

use std::ops::ControlFlow;
use std::sync::{Barrier, Mutex};

use deltafl::algorithm::{Algorithm, DeltaFl, FedAvg, Quantile};
use deltafl::cohort::{Availability, Sampling};
use deltafl::data::synthetic::{Glyphs, Spec};
use deltafl::data::{DeviceExamples, Federation, FederationBuilder, InputKind, Split};
use deltafl::device::Work;
use deltafl::engine::{EngineError, Masked, Peers, SplitEvaluation, Threads};
use deltafl::kernel::Isa;
use deltafl::model::{Batch, Model, ModelSpec, Score};
use deltafl::stream::Stream;
use deltafl::superquantile::private::PrivateQuantile;
use deltafl::superquantile::{Conformity, LossDistribution};
use deltafl::training::{
    Local, Observer, ObserverError, Outcome, Plan, RoundRecord, State, Survey, Track, TrainingError, train,
};

/// Remembers everything; stops after some rounds if asked to.
#[derive(Default)]
struct Diary {
    records: Vec<RoundRecord>,
    evaluations: Vec<(u64, Vec<SplitEvaluation>)>,
    checkpoint: Option<State>,
    stop_after: Option<u64>,
}

impl Observer for Diary {
    fn round(&mut self, records: &[RoundRecord]) -> Result<ControlFlow<()>, ObserverError> {
        self.records.extend_from_slice(records);
        let stop = self.stop_after.is_some_and(|rounds| records[0].round + 1 >= rounds);
        Ok(if stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }

    fn evaluation(&mut self, round: u64, splits: &[SplitEvaluation]) -> Result<(), ObserverError> {
        self.evaluations.push((round, splits.to_vec()));
        Ok(())
    }

    fn checkpoint(&mut self, state: &State) -> Result<(), ObserverError> {
        self.checkpoint = Some(state.clone());
        Ok(())
    }
}

fn federation() -> Federation {
    let spec: Glyphs = toml::from_str("devices = 24\nseed = 3").unwrap();
    Spec::Glyphs(spec).build()
}

fn theta(theta: f64) -> Conformity {
    Conformity::try_from(theta).unwrap()
}

fn plan(algorithms: Vec<Box<dyn Algorithm>>) -> Plan {
    Plan {
        rounds: 5,
        sampling: Sampling { cohort_size: 6, with_replacement: false, availability: Availability::default() },
        local: Local { work: Work::Epochs(1), batch: 10, learning_rate: 0.1, decay: None },
        evaluate_every: 2,
        tracks: algorithms.into_iter().map(|algorithm| Track { algorithm, l2: 1e-4 }).collect(),
    }
}

fn run(federation: &Federation, plan: &Plan, threads: usize) -> Diary {
    let model = ModelSpec::LINEAR.build(federation, Isa::detect()).unwrap();
    let mut engine = Threads::new(&*model, federation, threads).unwrap();
    let mut state = State::new(7, plan.tracks.len(), &*model);
    let mut diary = Diary::default();
    assert_eq!(train(&mut engine, plan, &mut state, &mut diary).unwrap(), Outcome::Finished);
    assert_eq!(diary.checkpoint.as_ref(), Some(&state));
    diary
}

fn all_algorithms() -> Vec<Box<dyn Algorithm>> {
    let delta_fl = DeltaFl::new(theta(0.5));
    let private = |kind| DeltaFl { quantile: Quantile::Private(kind), ..delta_fl };
    vec![
        Box::new(FedAvg),
        Box::new(delta_fl),
        Box::new(private(PrivateQuantile::TwoLevel)),
        Box::new(private(PrivateQuantile::Mm)),
        Box::new(DeltaFl { nu: Some(0.1.try_into().unwrap()), eta_every: 2, ..delta_fl }),
    ]
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let federation = federation();
    let plan = plan(all_algorithms());
    let one = run(&federation, &plan, 1);
    for threads in [2, 5] {
        let more = run(&federation, &plan, threads);
        assert_eq!(one.checkpoint, more.checkpoint);
        assert_eq!(one.records, more.records);
        assert_eq!(one.evaluations, more.evaluations);
    }
}

/// Asks for the losses of every track, in every round.
#[derive(Default)]
struct Surveyor {
    diary: Diary,
    known: Vec<Vec<Option<LossDistribution>>>,
}

impl Observer for Surveyor {
    fn round(&mut self, records: &[RoundRecord]) -> Result<ControlFlow<()>, ObserverError> {
        self.diary.round(records)
    }

    fn evaluation(&mut self, round: u64, splits: &[SplitEvaluation]) -> Result<(), ObserverError> {
        self.diary.evaluation(round, splits)
    }

    fn checkpoint(&mut self, state: &State) -> Result<(), ObserverError> {
        self.diary.checkpoint(state)
    }

    fn survey(&self, _: u64) -> Survey {
        Survey::All
    }

    fn losses(&mut self, round: u64, tracks: &[Option<LossDistribution>]) -> Result<(), ObserverError> {
        assert_eq!(round, self.known.len() as u64);
        self.known.push(tracks.to_vec());
        Ok(())
    }
}

#[test]
fn asking_everybody_for_losses_changes_no_bit_of_training() {
    let federation = federation();
    let model = ModelSpec::LINEAR.build(&federation, Isa::detect()).unwrap();
    let private = |theta_of| {
        let quantile = Quantile::Private(PrivateQuantile::TwoLevel);
        Box::new(DeltaFl { quantile, ..DeltaFl::new(theta(theta_of)) }) as Box<dyn Algorithm>
    };
    // With open tracks, in private mode alone, and where nobody looks for a threshold.
    let modes =
        [all_algorithms(), vec![Box::new(FedAvg), private(0.5), private(0.2)], vec![Box::new(FedAvg)]];
    for (mode, algorithms) in modes.into_iter().enumerate() {
        let plan = plan(algorithms);
        let plain = run(&federation, &plan, 2);
        let mut engine = Threads::new(&*model, &federation, 2).unwrap();
        let mut state = State::new(7, plan.tracks.len(), &*model);
        let mut surveyor = Surveyor::default();
        train(&mut engine, &plan, &mut state, &mut surveyor).unwrap();
        assert_eq!(plain.checkpoint, surveyor.diary.checkpoint);
        for known in surveyor.known.iter().flatten().enumerate() {
            // The paper's search by means tells no distribution.
            let (i, by_means) = (known.0 % plan.tracks.len(), mode == 0 && known.0 % plan.tracks.len() == 3);
            assert_eq!(known.1.is_none(), by_means, "mode {mode}, track {i}");
            assert!(known.1.as_ref().is_none_or(|known| known.devices() == 6));
        }
    }
}

/// Peers that are threads of this process: what each brings lies on a table until all have seen it.
struct AtTable<'a> {
    rank: usize,
    table: &'a Table,
}

struct Table {
    scores: Mutex<Vec<Vec<Score>>>,
    sums: Mutex<Vec<Vec<u64>>>,
    all: Barrier,
}

impl AtTable<'_> {
    fn meet<T: Clone + Default>(&self, seats: &Mutex<Vec<T>>, mine: T) -> Vec<T> {
        seats.lock().unwrap()[self.rank] = mine;
        self.table.all.wait();
        let everyone = seats.lock().unwrap().clone();
        self.table.all.wait();
        everyone
    }
}

impl Peers for AtTable<'_> {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.table.sums.lock().unwrap().len()
    }

    fn gather(&mut self, part: Vec<Score>, lengths: &[usize]) -> Result<Vec<Score>, EngineError> {
        assert_eq!(part.len(), lengths[self.rank]);
        Ok(self.meet(&self.table.scores, part).concat())
    }

    fn sum(
        &mut self,
        values: Vec<u64>,
        meanwhile: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<u64>, EngineError> {
        while meanwhile() {}
        let everyone = self.meet(&self.table.sums, values);
        let entry = |i: usize| everyone.iter().fold(0u64, |sum, values| sum.wrapping_add(values[i]));
        Ok((0..everyone[0].len()).map(entry).collect())
    }
}

#[test]
fn any_number_of_processes_gives_the_same_bits() {
    let federation = federation();
    let model = ModelSpec::LINEAR.build(&federation, Isa::detect()).unwrap();
    let plan = plan(all_algorithms());
    let one = run(&federation, &plan, 1);
    for size in [2, 3] {
        let table = Table {
            scores: Mutex::new(vec![Vec::new(); size]),
            sums: Mutex::new(vec![Vec::new(); size]),
            all: Barrier::new(size),
        };
        let part = |rank| {
            let peers = AtTable { rank, table: &table };
            let mut engine = Threads::with_peers(&*model, &federation, 1, peers).unwrap();
            let mut state = State::new(7, plan.tracks.len(), &*model);
            let mut diary = Diary::default();
            train(&mut engine, &plan, &mut state, &mut diary).unwrap();
            (diary, engine.share())
        };
        let parts: Vec<_> = std::thread::scope(|scope| {
            let handles: Vec<_> = (0..size).map(|rank| scope.spawn(move || part(rank))).collect();
            handles.into_iter().map(|handle| handle.join().unwrap()).collect()
        });
        for (diary, share) in &parts {
            assert_eq!(diary.checkpoint, one.checkpoint);
            assert_eq!(diary.records, one.records);
            assert_eq!(diary.evaluations, one.evaluations);
            assert!(share.updates > 0, "{share:?}");
        }
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

#[test]
fn a_device_that_cannot_be_computed_is_named() {
    let mut builder = FederationBuilder::new("t", InputKind::Dense { dim: 2 }, 2);
    for (id, label) in [("anna", 0), ("boris", 1), ("clara", 0)] {
        builder.push(id, Split::Train, DeviceExamples::Dense(&[1.0, -1.0]), &[label]).unwrap();
    }
    let federation = builder.build();
    let model = Brittle(ModelSpec::LINEAR.build(&federation, Isa::detect()).unwrap());
    let mut engine = Threads::new(&model, &federation, 2).unwrap();
    let mut state = State::new(7, 1, &model);
    let error = train(&mut engine, &plan(vec![Box::new(FedAvg)]), &mut state, &mut Diary::default());
    let Err(TrainingError::Engine(error)) = error else { panic!("{error:?}") };
    assert_eq!(error.to_string(), "device boris: no gradient for class 1");
}

#[test]
fn real_secure_aggregation_gives_the_same_bits_as_plain_sums() {
    let federation = federation();
    let mut plan = plan(all_algorithms());
    plan.rounds = 3;
    plan.sampling.cohort_size = 10;
    plan.sampling.availability.drop_out = 0.1;
    let plain = run(&federation, &plan, 2);
    assert!(plain.records.iter().any(|record| record.dropped > 0));

    let model = ModelSpec::LINEAR.build(&federation, Isa::detect()).unwrap();
    let mut engine = Masked::new(Threads::new(&*model, &federation, 2).unwrap(), 0.1);
    let mut state = State::new(7, plan.tracks.len(), &*model);
    let mut masked = Diary::default();
    train(&mut engine, &plan, &mut state, &mut masked).unwrap();
    assert_eq!(masked.checkpoint, plain.checkpoint);
    for (masked, plain) in masked.records.iter().zip(&plain.records) {
        assert_eq!((masked.tail, masked.sums, masked.eta), (plain.tail, plain.sums, plain.eta));
    }
    let sent = |diary: &Diary| diary.records.iter().map(|record| record.bytes_up).sum::<u64>();
    assert!(sent(&masked) > sent(&plain), "keys and shares come on top of the inputs");
}

#[test]
fn full_conformity_is_fed_avg() {
    let federation = federation();
    let full = DeltaFl::new(Conformity::FULL);
    let private = DeltaFl { quantile: Quantile::Private(PrivateQuantile::TwoLevel), ..full };
    let diary = run(&federation, &plan(vec![Box::new(FedAvg), Box::new(full), Box::new(private)]), 2);
    let tracks = diary.checkpoint.unwrap().tracks;
    assert_eq!(tracks[0].params, tracks[1].params);
    assert_eq!(tracks[0].params, tracks[2].params);
}

#[test]
fn a_private_tail_is_the_open_tail_when_no_loss_lies_near() {
    let federation = federation();
    let open = DeltaFl::new(theta(0.5));
    let private = DeltaFl { quantile: Quantile::Private(PrivateQuantile::TwoLevel), ..open };
    // At w₀ = 0 every loss is ln 62 but for rounding, which no private quantile resolves: start from a trained w.
    let mut state = run(&federation, &plan(vec![Box::new(FedAvg), Box::new(FedAvg)]), 2).checkpoint.unwrap();
    let model = ModelSpec::LINEAR.build(&federation, Isa::detect()).unwrap();
    let mut engine = Threads::new(&*model, &federation, 2).unwrap();
    let plan = Plan { rounds: 10, ..plan(vec![Box::new(open), Box::new(private)]) };
    let mut diary = Diary::default();
    train(&mut engine, &plan, &mut state, &mut diary).unwrap();
    assert!(diary.records.iter().all(|record| record.tail < record.cohort));
    assert_eq!(state.tracks[0].params, state.tracks[1].params);
}

#[test]
fn the_tail_holds_at_least_theta_of_the_weight() {
    let diary = run(&federation(), &plan(vec![Box::new(FedAvg), Box::new(DeltaFl::new(theta(0.5)))]), 2);
    for pair in diary.records.chunks(2) {
        assert_eq!(pair[0].tail, 6);
        assert!(pair[1].tail < 6 && pair[1].weight >= 0.5 * pair[0].weight, "{pair:?}");
    }
}

#[test]
fn an_interrupted_run_goes_on_to_the_same_bits() {
    let federation = federation();
    let plan = plan(all_algorithms());
    let whole = run(&federation, &plan, 2);

    let model = ModelSpec::LINEAR.build(&federation, Isa::detect()).unwrap();
    let mut engine = Threads::new(&*model, &federation, 1).unwrap();
    let mut state = State::new(7, plan.tracks.len(), &*model);
    for rounds in 1..5 {
        let mut diary = Diary { stop_after: Some(rounds), ..Diary::default() };
        assert_eq!(train(&mut engine, &plan, &mut state, &mut diary).unwrap(), Outcome::Stopped);
        state = diary.checkpoint.unwrap();
    }
    let mut diary = Diary::default();
    assert_eq!(train(&mut engine, &plan, &mut state, &mut diary).unwrap(), Outcome::Finished);
    assert_eq!(Some(state), whole.checkpoint);
}

#[test]
fn dropped_devices_leave_the_round_and_are_counted() {
    let mut plan = plan(vec![Box::new(FedAvg), Box::new(DeltaFl::new(theta(0.5)))]);
    plan.sampling.availability.drop_out = 0.4;
    let diary = run(&federation(), &plan, 2);
    assert!(diary.records.iter().any(|record| record.dropped > 0));
    for record in diary.records.iter().filter(|record| record.algorithm == "fedavg") {
        assert_eq!(record.tail, record.cohort - record.dropped);
    }
}

#[test]
fn with_everyone_gone_the_round_moves_nothing() {
    let mut plan = plan(vec![Box::new(FedAvg), Box::new(DeltaFl::new(theta(0.5)))]);
    plan.sampling.availability.drop_out = 1.0;
    let federation = federation();
    let model = ModelSpec::LINEAR.build(&federation, Isa::detect()).unwrap();
    let diary = run(&federation, &plan, 2);
    assert_eq!(diary.checkpoint.unwrap().tracks[1].params, State::new(7, 1, &*model).tracks[0].params);
}

#[test]
fn a_device_that_diverges_is_left_out_and_counted() {
    let mut builder = FederationBuilder::new("t", InputKind::Dense { dim: 2 }, 2);
    for k in 0..5 {
        builder
            .push(&format!("fine-{k}"), Split::Train, DeviceExamples::Dense(&[1.0, -1.0]), &[k % 2])
            .unwrap();
    }
    // The loss at w₀ = 0 is finite; the first step is not.
    builder.push("huge", Split::Train, DeviceExamples::Dense(&[f32::MAX, f32::MAX]), &[0]).unwrap();
    builder.push("test", Split::Test, DeviceExamples::Dense(&[1.0, -1.0]), &[0]).unwrap();
    let federation = builder.build();
    let diary = run(&federation, &plan(vec![Box::new(FedAvg)]), 2);
    assert!(
        diary.records.iter().all(|record| (record.tail, record.refused) == (5, 1)),
        "{:?}",
        diary.records
    );
    assert!(diary.checkpoint.unwrap().tracks[0].params.as_slice().iter().all(|entry| entry.is_finite()));
}
