//! What cohorts tell of the examples that their devices hold out, against the same devices' figures
//! in the open.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::num::NonZeroUsize;

use deltafl::algorithm::{Quantile, Tail, Track};
use deltafl::cohort::{Availability, Draw};
use deltafl::data::synthetic::{Fraction, Glyphs, Spec};
use deltafl::data::{DeviceExamples, Federation, FederationBuilder, InputKind, Split, WithinSplit};
use deltafl::evaluation::Measure;
use deltafl::exchange::{Evaluation, Exchange, Reachable, Simulation, SplitEvaluation};
use deltafl::kernel::Isa;
use deltafl::metrics::Figures;
use deltafl::model::{Model, ModelSpec};
use deltafl::stream::{Purpose, Stream};
use deltafl::superquantile::Conformity;
use deltafl::superquantile::private::PrivateQuantile;
use deltafl::terms::{Terms, TrackSchedule};
use deltafl::trainer::Sgd;
use deltafl::training::{Plan, Records, RoundRecord, train};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

const SEED: u64 = 7;
const ROUNDS: u64 = 5;

/// y = 2a − b + noise, with another noise on every device; 2 to 21 examples each.
fn planes(devices: u32, seed: u64) -> Federation {
    let mut builder = FederationBuilder::of_values("planes", InputKind::Dense { dim: 2 });
    for k in 0..devices {
        let stream = &mut Stream::new(seed, Purpose::Synthesis, 0, u64::from(k));
        let noise = stream.uniform(0.0, 4.0);
        let (mut x, mut y) = (Vec::new(), Vec::new());
        for _ in 0..2 + stream.below(20) {
            let (a, b) = (stream.normal(), stream.normal());
            x.extend([a as f32, b as f32]);
            y.push((2.0 * a - b + noise * stream.normal()) as f32);
        }
        builder.push(&format!("d{k}"), Split::Train, DeviceExamples::Dense(&x), &y).unwrap();
    }
    builder.build()
}

fn glyphs(devices: u32, seed: u64) -> Federation {
    let spec: Glyphs = toml::from_str(&format!("devices = {devices}\nseed = {seed}")).unwrap();
    Spec::Glyphs(spec).build()
}

/// A federation of which every device holds some of its examples out.
fn split(federation: Federation, train: f64, seed: u64) -> Federation {
    let train = Fraction::new(train).unwrap();
    federation.split_within(&WithinSplit { train, seed, ..WithinSplit::default() }).unwrap()
}

/// FedAvg, and a level whose η is found in secure sums or in the open.
fn plan(
    model: &dyn Model,
    cohort: usize,
    quantile: Quantile,
    schedule: TrackSchedule,
    drop_out: f64,
) -> Plan {
    let tail = Tail { quantile, ..Tail::new(Conformity::try_from(0.5).unwrap()) };
    let availability: Availability = toml::from_str(&format!("drop_out = {drop_out:?}")).unwrap();
    Plan::builder()
        .rounds(ROUNDS)
        .cohort(cohort)
        .availability(availability)
        .learning_rate(0.05)
        .evaluate_every(2)
        .held_out(model.task())
        .terms(Terms { schedule, ..Terms::PRIVATE })
        .track(Track::fed_avg())
        .track(tail)
        .build()
        .unwrap()
}

fn run(exchange: &mut dyn Exchange, plan: &Plan, model: &dyn Model) -> Records {
    let mut state = plan.start(SEED, &Sgd::new(model));
    let mut records = Records::default();
    train(exchange, plan, &mut state, &mut records).unwrap();
    records
}

fn simulated(federation: &Federation, plan: &Plan, model: &dyn Model) -> Records {
    let trainer = Sgd::new(model);
    let threads = NonZeroUsize::new(2);
    run(&mut Simulation::with_threads(&trainer, federation, threads).unwrap(), plan, model)
}

/// What the devices of a cohort come to under a track, told in the open.
fn open(
    federation: &Federation,
    plan: &Plan,
    round: u64,
    split: &SplitEvaluation,
    track: usize,
) -> Vec<Evaluation> {
    let train = federation.split(Split::Train);
    let draw = Draw { seed: SEED, round, attempt: 0 };
    let cohort = plan.sampling().cohort(train.len(), draw, &Reachable::Everyone);
    let known: HashMap<&str, &Evaluation> =
        split.devices.iter().map(|device| device.id.as_str()).zip(&split.tracks[track]).collect();
    let answering = cohort.iter().filter(|drawn| !drawn.dropped);
    let told = |place: usize| known.get(federation.id(train[place])).map(|&&evaluation| evaluation);
    answering.filter_map(|drawn| told(drawn.device.place())).collect()
}

/// Holds every evaluation of a run against the figures of the same devices.
fn check(federation: &Federation, plan: &Plan, records: &Records) -> TestCaseResult {
    let task = plan.held_out().unwrap();
    let mut versions = Vec::new();
    for RoundRecord { round, track, evaluations, .. } in &records.rounds {
        for told in evaluations {
            let (_, splits) = records.evaluations.iter().find(|(done, _)| *done == told.version).unwrap();
            let test = splits.iter().find(|split| split.split == Split::Test).unwrap();
            let devices = open(federation, plan, *round, test, *track);
            prop_assert_eq!(told.devices(), devices.len() as u64);
            prop_assert_eq!(told.measures.len(), Measure::of_task(task).len());
            for histogram in &told.measures {
                let measure = histogram.measure;
                let values: Vec<_> =
                    devices.iter().map(|device| measure.value(task, device).unwrap()).collect();
                // No end is known only where a device is beyond the last edge: R² of a few examples
                // that hardly differ.
                let ends = || values.iter().map(|&value| measure.ends(measure.place(value)));
                let (open_below, open_above) = (
                    ends().any(|(lower, _)| lower.is_infinite()),
                    ends().any(|(_, upper)| upper.is_infinite()),
                );
                let exact = Figures::unweighted(&values).unwrap();
                let exact = std::iter::once(exact.mean).chain(exact.percentiles);
                for (value, bounds) in exact.zip(histogram.figures().unwrap().columns()) {
                    let rounding = 1e-9 * value.abs();
                    let within = bounds.lower.map_or(open_below, |lower| lower <= value + rounding)
                        && bounds.upper.map_or(open_above, |upper| value <= upper + rounding);
                    prop_assert!(within, "{:?} of {:?} in {:?}", value, measure, bounds);
                }
            }
            versions.push((told.version, *track));
        }
    }
    // The round whose cohort answers, the version of the params, and the track.
    let expected: &[(u64, u64, usize)] = match plan.terms().schedule {
        // Track 1 trains in rounds 1 and 3. Its last params are evaluated after round 3.
        TrackSchedule::InTurn => {
            &[(0, 0, 0), (1, 0, 1), (2, 2, 0), (3, 2, 1), (3, 5, 1), (4, 4, 0), (4, 5, 0)]
        }
        _ => &[(0, 0, 0), (0, 0, 1), (2, 2, 0), (2, 2, 1), (4, 4, 0), (4, 5, 0), (4, 4, 1), (4, 5, 1)],
    };
    // A cohort whose devices all drop out evaluates nothing.
    let (_, splits) = &records.evaluations[0];
    let test = splits.iter().find(|split| split.split == Split::Test).unwrap();
    let answers = |round: u64| !open(federation, plan, round, test, 0).is_empty();
    let expected = expected.iter().filter(|(round, ..)| answers(*round));
    let expected: Vec<(u64, usize)> = expected.map(|&(_, version, track)| (version, track)).collect();
    prop_assert_eq!(versions, expected);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn bounds_from_secure_sums_hold_the_figures_of_the_same_devices(
        devices in 8u32..30, cohort in 3usize..12, seed in 0u64..1000, train in 0.3..0.9, private: bool, classes: bool, in_turn: bool,
        drop_out in prop::sample::select(vec![0.0, 0.3]),
    ) {
        let federation = split(if classes { glyphs(devices, seed) } else { planes(devices, seed) }, train, seed);
        let model = ModelSpec::LINEAR.build(&federation, Isa::detect()).unwrap();
        let quantile = if private { Quantile::Private(PrivateQuantile::TwoLevel) } else { Quantile::Open };
        let schedule = if in_turn { TrackSchedule::InTurn } else { TrackSchedule::Together };
        let plan = plan(&*model, cohort, quantile, schedule, drop_out);
        check(&federation, &plan, &simulated(&federation, &plan, &*model))?;
    }
}

#[test]
fn masked_cohorts_tell_the_same_and_neither_changes_a_bit_of_training() {
    let federation = split(glyphs(20, 3), 0.8, 1);
    let model = ModelSpec::LINEAR.build(&federation, Isa::detect()).unwrap();
    let trainer = Sgd::new(&*model);
    let quantile = Quantile::Private(PrivateQuantile::TwoLevel);
    let plan = plan(&*model, 8, quantile, TrackSchedule::Together, 0.0);
    let exchange = Simulation::with_threads(&trainer, &federation, NonZeroUsize::new(2)).unwrap();
    let masked = run(&mut exchange.masked(0.0), &plan, &*model);
    let direct = simulated(&federation, &plan, &*model);
    check(&federation, &plan, &masked).unwrap();
    let told = |records: &Records| -> Vec<_> {
        records.rounds.iter().map(|record| record.evaluations.clone()).collect()
    };
    assert_eq!(told(&masked), told(&direct));
    let without = plan.into_builder().held_out(None).build().unwrap();
    let silent = simulated(&federation, &without, &*model);
    assert_eq!(silent.checkpoint, direct.checkpoint);
    assert_eq!(silent.checkpoint, masked.checkpoint);
    assert!(silent.rounds.iter().all(|record| record.evaluations.is_empty()));
    // Riding along costs no call; the params after the last round cost one.
    let calls = |records: &Records| -> Vec<u64> {
        (0..ROUNDS).map(|t| records.rounds.iter().filter(|r| r.round == t).map(|r| r.sums).sum()).collect()
    };
    let (asked, not_asked) = (calls(&direct), calls(&silent));
    assert_eq!(asked[..4], not_asked[..4]);
    assert_eq!(asked[4], not_asked[4] + 2, "one more for each track");
}

#[test]
fn devices_that_hold_nothing_out_tell_nothing() {
    let federation = glyphs(12, 3);
    let model = ModelSpec::LINEAR.build(&federation, Isa::detect()).unwrap();
    let plan = plan(&*model, 5, Quantile::Open, TrackSchedule::Together, 0.0);
    let records = simulated(&federation, &plan, &*model);
    assert!(records.rounds.iter().all(|record| record.evaluations.is_empty()));
}
