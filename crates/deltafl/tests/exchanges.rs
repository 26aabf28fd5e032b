//! Every exchange, any number of threads, interrupted or not: the same bits.
#![allow(clippy::unwrap_used)]

#[path = "exchanges/audit.rs"]
mod audit;
#[path = "exchanges/intercepted.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared by tests of several crates")]
mod intercepted;
#[path = "exchanges/noisy.rs"]
mod noisy;
#[path = "exchanges/peers.rs"]
mod peers;

use std::num::NonZeroUsize;

use deltafl::algorithm::{
    AFL, Algorithm, DITTO, DRFA, EtaRule, FED_DYN, FED_NOVA, KRUM, Q_FFL, Quantile, SCAFFOLD, Tail, Track,
};
use deltafl::cohort::Availability;
use deltafl::compute::Threads;
use deltafl::data::synthetic::{Glyphs, Spec};
use deltafl::data::{DeviceExamples, Federation, FederationBuilder, InputKind, Split};
use deltafl::exchange::{CohortMember, Exchange, ExchangeError, Simulation};
use deltafl::kernel::Isa;
use deltafl::model::{Batch, Model, ModelSpec, Score};
use deltafl::stream::Stream;
use deltafl::superquantile::Conformity;
use deltafl::superquantile::private::PrivateQuantile;
use deltafl::terms::{Terms, TrackSchedule};
use deltafl::trainer::{LocalTrainer, Sgd};
use deltafl::training::{
    Event, LossReporting, Observer as _, Outcome, Plan, Records, RoundRecord, TrainOptions, TrainingError,
    train, train_with,
};
use intercepted::Intercepted;
use peers::{AtTable, Table};

fn federation() -> Federation {
    let spec: Glyphs = toml::from_str("devices = 24\nseed = 3").unwrap();
    Spec::Glyphs(spec).build()
}

fn theta(theta: f64) -> Conformity {
    Conformity::try_from(theta).unwrap()
}

fn plan(tracks: Vec<Track>) -> Plan {
    let tracks = tracks.into_iter().map(|track| Track { l2: 1e-4, ..track });
    Plan::builder().rounds(5).cohort(6).evaluate_every(2).tracks(tracks).build().unwrap()
}

/// The same plan with devices that drop out.
fn with_drop_out(plan: Plan, drop_out: f64) -> Plan {
    let availability = Availability { drop_out: drop_out.try_into().unwrap(), ..Availability::default() };
    plan.into_builder().availability(availability).build().unwrap()
}

fn linear(federation: &Federation) -> Box<dyn Model> {
    ModelSpec::LINEAR.build(federation, Isa::detect()).unwrap()
}

/// The records of a run on threads, added up as they are.
fn run(federation: &Federation, plan: &Plan, threads: usize) -> Records {
    let model = linear(federation);
    let trainer = Sgd::new(&*model);
    let threads = NonZeroUsize::new(threads);
    run_on(&mut Simulation::with_threads(&trainer, federation, threads).unwrap(), plan, &trainer)
}

fn run_on(exchange: &mut dyn Exchange, plan: &Plan, trainer: &dyn LocalTrainer) -> Records {
    let mut state = plan.start(7, trainer);
    let mut records = Records::default();
    assert_eq!(train(exchange, plan, &mut state, &mut records).unwrap(), Outcome::Finished);
    assert_eq!(records.checkpoint.as_ref(), Some(&state));
    records
}

fn half() -> Tail {
    Tail::new(theta(0.5))
}

fn private(kind: PrivateQuantile, tail: Tail) -> Tail {
    Tail { quantile: Quantile::Private(kind), ..tail }
}

fn all_algorithms() -> Vec<Track> {
    let nu = Some(0.1.try_into().unwrap());
    let of = |algorithm: &Algorithm| {
        Track::from_options(algorithm, &algorithm.options_with([]).unwrap(), 0.0).unwrap()
    };
    vec![
        Track::fed_avg(),
        half().into(),
        private(PrivateQuantile::TwoLevel, half()).into(),
        private(PrivateQuantile::Mm, half()).into(),
        Tail { nu, eta_every: 2, ..half() }.into(),
        private(PrivateQuantile::OneShot, Tail { nu, ..half() }).into(),
        of(&SCAFFOLD),
        of(&Q_FFL),
        of(&FED_NOVA),
        of(&FED_DYN),
        of(&DITTO),
    ]
}

/// Algorithms whose server sees the answers of individual devices.
fn open_algorithms() -> Vec<Track> {
    let of = |algorithm: &Algorithm| {
        Track::from_options(algorithm, &algorithm.options_with([]).unwrap(), 0.0).unwrap()
    };
    [&AFL, &DRFA, &KRUM].map(of).into_iter().chain(all_algorithms()).collect()
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let federation = federation();
    let plan = plan(open_algorithms());
    let one = run(&federation, &plan, 1);
    for threads in [2, 5] {
        let more = run(&federation, &plan, threads);
        assert_eq!(one.checkpoint, more.checkpoint);
    }
}

#[test]
fn asking_everybody_for_losses_changes_no_bit_of_training() {
    let federation = federation();
    let model = linear(&federation);
    let trainer = Sgd::new(&*model);
    let at = |level| private(PrivateQuantile::TwoLevel, Tail::new(theta(level))).into();
    // With open tracks, in private mode alone, and where nobody looks for a threshold.
    let modes = [all_algorithms(), vec![Track::fed_avg(), at(0.5), at(0.2)], vec![Track::fed_avg()]];
    for (mode, tracks) in modes.into_iter().enumerate() {
        let plan = plan(tracks);
        let plain = run(&federation, &plan, 2);
        let mut state = plan.start(7, &trainer);
        let options = TrainOptions { losses: LossReporting::All, ..TrainOptions::default() };
        let (mut records, mut reported) = (Records::default(), Vec::new());
        let mut observer = |event: Event<'_>| {
            if let Event::Losses { round, tracks } = event {
                assert_eq!(round, reported.len() as u64);
                reported.push(tracks.to_vec());
            }
            records.handle(event)
        };
        let threads = NonZeroUsize::new(2);
        let mut exchange = Simulation::with_threads(&trainer, &federation, threads).unwrap();
        train_with(&mut exchange, &plan, &mut state, options, &mut observer).unwrap();
        assert_eq!(plain.checkpoint, records.checkpoint);
        assert_eq!(reported.len() as u64, plan.rounds());
        for known in reported.iter().flatten().enumerate() {
            // The paper's search by means tells no distribution.
            let (i, by_means) =
                (known.0 % plan.tracks().len(), mode == 0 && known.0 % plan.tracks().len() == 3);
            assert_eq!(known.1.is_none(), by_means, "mode {mode}, track {i}");
            assert!(known.1.as_ref().is_none_or(|known| known.devices() == 6));
        }
    }
}

/// The records of each of several processes.
fn at_table(size: usize, federation: &Federation, plan: &Plan, is_masked: bool) -> Vec<Records> {
    let model = linear(federation);
    let trainer = Sgd::new(&*model);
    let table = Table::new(size);
    let part = |rank| {
        let compute = Threads::new(&trainer, federation, NonZeroUsize::new(1)).unwrap();
        let peers = AtTable { rank, table: &table };
        let mut exchange = Simulation::with_peers(compute, federation, peers).unwrap();
        if is_masked {
            exchange = exchange.masked(0.0);
        }
        run_on(&mut exchange, plan, &trainer)
    };
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..size).map(|rank| scope.spawn(move || part(rank))).collect();
        handles.into_iter().map(|handle| handle.join().unwrap()).collect()
    })
}

#[test]
fn any_number_of_processes_gives_the_same_bits() {
    let federation = federation();
    let plan = plan(open_algorithms());
    let one = run(&federation, &plan, 1);
    for size in [2, 3] {
        for records in at_table(size, &federation, &plan, false) {
            assert_eq!(records, one);
        }
    }
}

#[test]
fn masked_sums_over_several_processes_give_the_same_bits() {
    let federation = federation();
    let apart = Terms { schedule: TrackSchedule::Apart, ..Terms::PRIVATE };
    for terms in [Terms::OPEN, Terms::PRIVATE, apart] {
        let plan = plan(all_algorithms()).into_builder().rounds(2).terms(terms).build().unwrap();
        let one = run(&federation, &plan, 1);
        for records in at_table(2, &federation, &plan, true) {
            assert_eq!(records.checkpoint, one.checkpoint);
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
    let trainer = Sgd::new(&model);
    let threads = NonZeroUsize::new(2);
    let mut exchange = Simulation::with_threads(&trainer, &federation, threads).unwrap();
    let plan = plan(vec![Track::fed_avg()]);
    let error = train(&mut exchange, &plan, &mut plan.start(7, &trainer), &mut Records::default());
    let Err(TrainingError::Exchange(error)) = error else { panic!("{error:?}") };
    assert_eq!(error.to_string(), "device boris: no gradient for class 1");
}

#[test]
fn real_secure_aggregation_gives_the_same_bits_as_plain_sums() {
    let federation = federation();
    let plan = plan(all_algorithms()).into_builder().rounds(3).cohort(10).build().unwrap();
    let plan = with_drop_out(plan, 0.1);
    let plain = run(&federation, &plan, 2);
    assert!(plain.rounds.iter().any(|record| record.dropped > 0));

    let model = linear(&federation);
    let trainer = Sgd::new(&*model);
    let exchange = Simulation::with_threads(&trainer, &federation, NonZeroUsize::new(2)).unwrap();
    let masked = run_on(&mut exchange.masked(0.1), &plan, &trainer);
    assert_eq!(masked.checkpoint, plain.checkpoint);
    for (masked, plain) in masked.rounds.iter().zip(&plain.rounds) {
        assert_eq!((masked.tail, masked.sums, masked.eta), (plain.tail, plain.sums, plain.eta));
    }
    let bytes = |records: &Records| {
        let sum = |bytes: fn(&RoundRecord) -> u64| records.rounds.iter().map(bytes).sum::<u64>();
        (sum(|record| record.bytes_up), sum(|record| record.bytes_down))
    };
    assert!(bytes(&masked).0 > bytes(&plain).0, "keys and shares come on top of the inputs");
    assert!(bytes(&masked).1 > bytes(&plain).1, "the params go down under masks too");
}

#[test]
fn masked_sums_give_no_answers_of_individual_devices() {
    let federation = federation();
    let model = linear(&federation);
    let trainer = Sgd::new(&*model);
    let exchange = Simulation::with_threads(&trainer, &federation, NonZeroUsize::new(1)).unwrap();
    let krum = Track::from_options(&KRUM, &KRUM.options_with([]).unwrap(), 0.0).unwrap();
    let plan = plan(vec![Track::fed_avg(), krum]);
    let mut state = plan.start(7, &trainer);
    let refused = train(&mut exchange.masked(0.0), &plan, &mut state, &mut Records::default());
    assert!(matches!(refused, Err(TrainingError::Exchange(ExchangeError::SumsOnly))), "{refused:?}");
}

#[test]
fn full_conformity_is_fed_avg() {
    let federation = federation();
    let full = Tail::new(Conformity::FULL);
    let private = private(PrivateQuantile::TwoLevel, full);
    let records = run(&federation, &plan(vec![Track::fed_avg(), full.into(), private.into()]), 2);
    let tracks = records.checkpoint.unwrap().tracks;
    assert_eq!(tracks[0].params, tracks[1].params);
    assert_eq!(tracks[0].params, tracks[2].params);
}

#[test]
fn a_private_tail_is_the_open_tail_when_no_loss_lies_near() {
    let federation = federation();
    let private = private(PrivateQuantile::TwoLevel, half());
    // At w₀ = 0 every loss is ln 62 but for rounding, which no private quantile resolves: start
    // from a trained w.
    let both = vec![Track::fed_avg(), Track::fed_avg()];
    let mut state = run(&federation, &plan(both), 2).checkpoint.unwrap();
    let model = linear(&federation);
    let trainer = Sgd::new(&*model);
    let mut exchange = Simulation::with_threads(&trainer, &federation, NonZeroUsize::new(2)).unwrap();
    let plan = plan(vec![half().into(), private.into()]).into_builder().rounds(10).build().unwrap();
    let mut records = Records::default();
    train(&mut exchange, &plan, &mut state, &mut records).unwrap();
    assert!(records.rounds.iter().all(|record| record.tail < record.cohort));
    assert_eq!(state.tracks[0].params, state.tracks[1].params);
}

#[test]
fn the_tail_holds_at_least_theta_of_the_weight() {
    let records = run(&federation(), &plan(vec![Track::fed_avg(), half().into()]), 2);
    for pair in records.rounds.chunks(2) {
        assert_eq!(pair[0].tail, 6);
        // At w₀ = 0 all losses are equal, and nobody is left out.
        assert_eq!(pair[1].tail == 6, pair[1].round == 0);
        assert!(pair[1].tail_weight >= 0.5 * pair[0].tail_weight, "{pair:?}");
    }
}

#[test]
fn an_interrupted_run_goes_on_to_the_same_bits() {
    let federation = federation();
    let plan = plan(all_algorithms());
    let whole = run(&federation, &plan, 2);

    let model = linear(&federation);
    let trainer = Sgd::new(&*model);
    let mut exchange = Simulation::with_threads(&trainer, &federation, NonZeroUsize::new(1)).unwrap();
    let mut state = plan.start(7, &trainer);
    for rounds in 1..5 {
        let mut records = Records { stop_after: Some(rounds), ..Records::default() };
        assert_eq!(train(&mut exchange, &plan, &mut state, &mut records).unwrap(), Outcome::Stopped);
        state = records.checkpoint.unwrap();
    }
    let mut records = Records::default();
    assert_eq!(train(&mut exchange, &plan, &mut state, &mut records).unwrap(), Outcome::Finished);
    assert_eq!(Some(state), whole.checkpoint);
}

#[test]
fn dropped_devices_leave_the_round_and_are_counted() {
    let plan = with_drop_out(plan(vec![Track::fed_avg(), half().into()]), 0.4);
    let records = run(&federation(), &plan, 2);
    assert!(records.rounds.iter().any(|record| record.dropped > 0));
    for record in records.rounds.iter().filter(|record| record.track == 0) {
        assert_eq!(record.tail, record.cohort - record.dropped);
    }
}

#[test]
fn with_everyone_gone_the_round_moves_nothing() {
    let plan = with_drop_out(plan(vec![Track::fed_avg(), half().into()]), 1.0);
    let federation = federation();
    let model = linear(&federation);
    let start = plan.start(7, &Sgd::new(&*model));
    let records = run(&federation, &plan, 2);
    assert_eq!(records.checkpoint.unwrap().tracks[1].params, start.tracks[0].params);
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
    let records = run(&federation, &plan(vec![Track::fed_avg()]), 2);
    assert!(
        records.rounds.iter().all(|record| (record.tail, record.refused) == (5, 1)),
        "{:?}",
        records.rounds
    );
    assert!(records.checkpoint.unwrap().tracks[0].params.as_slice().iter().all(|entry| entry.is_finite()));
}

#[test]
fn a_cohort_that_comes_to_no_sum_is_replaced_under_masks_as_over_a_network() {
    let federation = federation();
    let model = linear(&federation);
    let trainer = Sgd::new(&*model);
    let plan = with_drop_out(plan(vec![Track::fed_avg(), half().into()]), 0.55);
    let threads = NonZeroUsize::new(2);
    let masked = Simulation::with_threads(&trainer, &federation, threads).unwrap().masked(0.2);
    let mut failed: Vec<Vec<CohortMember>> = Vec::new();
    let mut masked = Intercepted::new(masked).on_sum(|masked, round, queries| {
        let sums = masked.secure_sum(round, queries);
        if let Err(ExchangeError::NoSum { .. }) = sums {
            failed.push(round.cohort.to_vec());
        }
        sums
    });
    let records = run_on(&mut masked, &plan, &trainer);
    drop(masked);
    assert!(!failed.is_empty(), "too few of some cohort stayed");
    // No round was passed over in silence: w moved in each of them.
    assert!(records.rounds.iter().filter(|record| record.track == 0).all(|record| record.tail > 0));

    // Another exchange on which the same cohorts come to no sum ends with the same bits.
    let threads = NonZeroUsize::new(1);
    let direct = Simulation::with_threads(&trainer, &federation, threads).unwrap();
    let mut network = Intercepted::new(direct).on_sum(|direct, round, queries| {
        if failed.iter().any(|cohort| cohort == round.cohort) {
            return Err(ExchangeError::NoSum { source: "too few are left".into() });
        }
        direct.secure_sum(round, queries)
    });
    assert_eq!(run_on(&mut network, &plan, &trainer).checkpoint, records.checkpoint);
}

#[test]
fn a_run_whose_cohorts_all_fail_ends_with_an_error() {
    let federation = federation();
    let model = linear(&federation);
    let trainer = Sgd::new(&*model);
    let plan = with_drop_out(plan(vec![Track::fed_avg()]), 1.0);
    let threads = NonZeroUsize::new(1);
    let mut masked = Simulation::with_threads(&trainer, &federation, threads).unwrap().masked(0.2);
    let mut state = plan.start(7, &trainer);
    let error = train(&mut masked, &plan, &mut state, &mut Records::default()).unwrap_err();
    assert!(matches!(error, TrainingError::NoSum { round: 0, .. }), "{error}");
    assert!(error.to_string().contains("the aggregation of"), "{error}");
}

#[test]
fn the_record_says_how_old_eta_is_and_a_watched_one_is_found_anew() {
    let federation = federation();
    let every = |eta_rule| Tail { eta_every: 100, eta_rule, ..half() };
    let plan = plan(vec![every(EtaRule::Watched).into(), every(EtaRule::Fixed).into()]);
    let plan = plan.into_builder().rounds(30).cohort(12).build().unwrap();
    let records = run(&federation, &plan, 2);
    let ages = |track| -> Vec<u64> {
        records.rounds.iter().filter(|record| record.track == track).filter_map(|r| r.eta_age).collect()
    };
    assert_eq!(ages(1), (0..30).collect::<Vec<u64>>());
    assert!(ages(0).iter().skip(1).any(|age| *age == 0), "{:?}", ages(0));
    // Of twelve devices six should be kept: as many are on average where η is watched.
    let kept = |track| records.rounds.iter().filter(|r| r.track == track).map(|r| r.tail).sum::<u64>() / 30;
    assert!((4..=9).contains(&kept(0)), "{} of 12 are kept", kept(0));
}
