//! Claims about the algorithms beside FedAvg and Δ-FL, each trained through the table as an
//! experiment would.
// Weights are whole numbers: they are compared to the bit.
#![allow(clippy::unwrap_used, clippy::float_cmp)]

use std::num::NonZeroUsize;

use deltafl::algorithm::{Quantile, Tail, Track, find};
use deltafl::cohort::Draw;
use deltafl::data::synthetic::Glyphs;
use deltafl::data::{Federation, Split};
use deltafl::exchange::{CohortMember, Reachable, Simulation};
use deltafl::kernel::Isa;
use deltafl::model::ModelSpec;
use deltafl::options::OptionValue;
use deltafl::params::Params;
use deltafl::superquantile::Conformity;
use deltafl::superquantile::private::PrivateQuantile;
use deltafl::terms::{Terms, TrackSchedule, Weights};
use deltafl::trainer::{Sgd, Work};
use deltafl::training::{Plan, Records, State, train};

fn federation() -> Federation {
    Glyphs { devices: 24.try_into().unwrap(), seed: 3, ..Glyphs::default() }.build()
}

fn track(kind: &str, given: &[(&str, f64)]) -> Track {
    let algorithm = find(kind).unwrap();
    let given = given.iter().map(|&(name, value)| (name, OptionValue::Real(value)));
    Track::from_options(algorithm, &algorithm.options_with(given).unwrap(), 1e-4).unwrap()
}

fn plan(tracks: Vec<Track>) -> Plan {
    let builder = Plan::builder().rounds(5).cohort(6).work(Work::Epochs(2)).evaluate_every(5);
    builder.tracks(tracks).build().unwrap()
}

/// The last state of a run that is stopped and taken up again after each of these rounds.
fn run(plan: &Plan, stops: &[u64]) -> State {
    let federation = federation();
    let model = ModelSpec::LINEAR.build(&federation, Isa::detect()).unwrap();
    let trainer = Sgd::new(&*model);
    let mut exchange = Simulation::with_threads(&trainer, &federation, NonZeroUsize::new(2)).unwrap();
    let mut state = plan.start(7, &trainer);
    for &stop in stops {
        let mut records = Records { stop_after: Some(stop), ..Records::default() };
        train(&mut exchange, plan, &mut state, &mut records).unwrap();
        state = records.checkpoint.unwrap();
    }
    train(&mut exchange, plan, &mut state, &mut Records::default()).unwrap();
    state
}

fn distance(a: &Params, b: &Params) -> f64 {
    let squares = a.as_slice().iter().zip(b.as_slice()).map(|(a, b)| f64::from(a - b).powi(2));
    squares.sum::<f64>().sqrt()
}

#[path = "algorithms/behaviour.rs"]
mod behaviour;
#[path = "algorithms/clipping.rs"]
mod clipping;
#[path = "paper/documented.rs"]
mod documented;
#[path = "algorithms/identities.rs"]
mod identities;
#[path = "algorithms/minimax.rs"]
mod minimax;
#[path = "algorithms/numpy.rs"]
mod numpy;
#[path = "algorithms/personal.rs"]
mod personal;
#[path = "algorithms/scaffold.rs"]
mod scaffold;
#[path = "algorithms/small.rs"]
mod small;
#[path = "algorithms/stragglers.rs"]
mod stragglers;

#[test]
fn devices_count_alike_with_uniform_weights_and_by_their_class_with_buckets() {
    let weight = |weights: Weights| {
        let terms = Terms { weights, ..Terms::OPEN };
        let federation = federation();
        let model = ModelSpec::LINEAR.build(&federation, Isa::detect()).unwrap();
        let trainer = Sgd::new(&*model);
        let mut exchange = Simulation::with_threads(&trainer, &federation, NonZeroUsize::new(1)).unwrap();
        let plan = plan(vec![track("fedavg", &[])]).into_builder().rounds(1).terms(terms).build().unwrap();
        let (mut state, mut records) = (plan.start(7, &trainer), Records::default());
        train(&mut exchange, &plan, &mut state, &mut records).unwrap();
        records.rounds[0].tail_weight
    };
    let cohort = plan(vec![track("fedavg", &[])]).sampling().cohort(
        federation().split(Split::Train).len(),
        Draw { seed: 7, round: 0, attempt: 0 },
        &Reachable::Everyone,
    );
    let train = federation().split(Split::Train);
    let sum = |weights: Weights| {
        let of =
            |drawn: &CohortMember| weights.weight(federation().example_count(train[drawn.device.place()]));
        cohort.iter().map(of).sum::<u64>() as f64
    };
    for weights in Weights::ALL {
        assert_eq!(weight(weights), sum(weights), "{weights:?}");
    }
    assert_eq!(sum(Weights::Uniform), 6.0);
}

/// A private tail at θ.
fn private_tail(theta: f64) -> Track {
    let quantile = Quantile::Private(PrivateQuantile::TwoLevel);
    Tail { quantile, ..Tail::new(Conformity::try_from(theta).unwrap()) }.into()
}

/// The tails of three private tracks in two rounds, and the tracks that they are of.
fn tails(terms: Terms) -> [Vec<(usize, u64)>; 2] {
    let tracks = vec![track("fedavg", &[]), private_tail(0.8), private_tail(0.5)];
    let federation = federation();
    let model = ModelSpec::LINEAR.build(&federation, Isa::detect()).unwrap();
    let trainer = Sgd::new(&*model);
    let mut exchange = Simulation::with_threads(&trainer, &federation, NonZeroUsize::new(2)).unwrap();
    let plan = plan(tracks).into_builder().rounds(2).cohort(12).terms(terms).build().unwrap();
    let (mut state, mut records) = (plan.start(7, &trainer), Records::default());
    train(&mut exchange, &plan, &mut state, &mut records).unwrap();
    assert_ne!(state.tracks[0].params, state.tracks[1].params);
    let of_round = |round| {
        let records = records.rounds.iter().filter(move |record| record.round == round);
        records.map(|record| (record.track, record.tail)).collect()
    };
    [of_round(0), of_round(1)]
}

#[test]
fn tracks_that_divide_the_cohort_share_no_device_in_any_round() {
    // At w₀ all losses are equal up to the resolution of the histograms: the tail is everyone.
    assert_eq!(tails(Terms { weights: Weights::Uniform, ..Terms::OPEN })[0], [(0, 12), (1, 12), (2, 12)]);
    let [first, second] = tails(Terms { schedule: TrackSchedule::Apart, ..Terms::PRIVATE });
    let devices = |round: &[(usize, u64)]| round.iter().map(|(_, tail)| tail).sum::<u64>();
    assert_eq!(devices(&first), 12, "each device is in one of the sums: {first:?}");
    assert!(first.iter().all(|&(_, tail)| tail > 0), "{first:?}");
    assert!(devices(&second) <= 12 && second[0].1 < 12, "nor in a later round: {second:?}");
}

#[test]
fn tracks_in_turn_have_the_whole_cohort_every_third_round() {
    let [first, second] = tails(Terms::PRIVATE);
    assert_eq!(first, [(0, 12)]);
    assert_eq!(second, [(1, 12)], "the second track starts at w₀, at which the tail is everyone");
}

#[test]
fn thresholds_of_tracks_in_turn_age_with_the_rounds_of_their_track() {
    let aged = Track::from(Tail { eta_every: 2, ..Tail::new(Conformity::try_from(0.5).unwrap()) });
    let terms = Terms { schedule: TrackSchedule::InTurn, ..Terms::OPEN };
    let plan = plan(vec![aged, Track::fed_avg()]).into_builder().rounds(8).terms(terms).build().unwrap();
    let mut records = Records::default();
    let federation = federation();
    let model = ModelSpec::LINEAR.build(&federation, Isa::detect()).unwrap();
    let trainer = Sgd::new(&*model);
    let mut exchange = Simulation::with_threads(&trainer, &federation, NonZeroUsize::new(2)).unwrap();
    train(&mut exchange, &plan, &mut plan.start(7, &trainer), &mut records).unwrap();
    let ages: Vec<(u64, Option<u64>)> = records
        .rounds
        .iter()
        .filter(|record| record.track == 0)
        .map(|record| (record.round, record.eta_age))
        .collect();
    assert_eq!(ages, [(0, Some(0)), (2, Some(1)), (4, Some(0)), (6, Some(1))]);
    let trained: Vec<usize> = records.rounds.iter().map(|record| record.track).collect();
    assert_eq!(trained, [0, 1, 0, 1, 0, 1, 0, 1]);
}

#[test]
fn fed_prox_without_its_term_is_fed_avg() {
    let state = run(&plan(vec![track("fedavg", &[]), track("fedprox", &[("mu", 0.0)])]), &[]);
    assert_eq!(state.tracks[0].params, state.tracks[1].params);
}

#[test]
fn the_proximal_term_holds_devices_near_the_model_that_they_were_sent() {
    let one_round = |mu| {
        let plan = plan(vec![track("fedprox", &[("mu", mu)])]);
        plan.into_builder().rounds(1).build().unwrap()
    };
    let start = Params::from(vec![0.0; 784 * 62]);
    let moved = [0.0, 1.0, 5.0].map(|mu| distance(&run(&one_round(mu), &[]).tracks[0].params, &start));
    assert!(moved[0] > 1.05 * moved[1] && moved[1] > 1.05 * moved[2] && moved[2] > 0.0, "{moved:?}");
}

#[test]
fn fed_adam_goes_on_to_the_same_bits_after_an_interruption() {
    let plan = plan(vec![track("fedavg", &[]), track("fedadam", &[("server_rate", 0.05)])]);
    let whole = run(&plan, &[]);
    assert_eq!(run(&plan, &[1, 3]), whole);
    assert_ne!(whole.tracks[0].params, whole.tracks[1].params);
    let remembered: Vec<&str> = whole.tracks[1].memory.vectors().map(|(name, _)| name).collect();
    assert_eq!(remembered, ["adam.m", "adam.v"]);
}
