//! A small problem: softmax regression on synthetic(1, 1), with steps that do not magnify rounding.

use deltafl::data::FederationIndex;
use deltafl::data::synthetic::{ExamplesPerDevice, Fraction, SyntheticLogistic};

use super::*;

/// The seed of a run.
pub(super) const SEED: u64 = 7;

/// Nine train devices with 10 to 60 examples.
pub(super) fn devices() -> Federation {
    federation_of(12, 0.75)
}

/// The same devices in three groups.
pub(super) fn grouped(federation: Federation) -> Federation {
    let group = |k: FederationIndex| format!("group {}", k.place() % 3);
    let groups: Vec<_> = federation.devices().map(|k| (federation.id(k).to_owned(), group(k))).collect();
    federation.with_groups(groups).unwrap()
}

/// One train device.
pub(super) fn one_device() -> Federation {
    federation_of(1, 1.0)
}

fn federation_of(devices: u32, train: f64) -> Federation {
    let (devices, examples) = (devices.try_into().unwrap(), ExamplesPerDevice::new(10, 30, 60).unwrap());
    let train = Fraction::new(train).unwrap();
    SyntheticLogistic { devices, seed: 5, examples, train, ..SyntheticLogistic::default() }.build()
}

/// Three rounds of five devices.
pub(super) fn small_plan(tracks: Vec<Track>) -> Plan {
    let builder = Plan::builder().rounds(3).cohort(5).work(Work::Epochs(2)).evaluate_every(3);
    builder.learning_rate(0.01).tracks(tracks).build().unwrap()
}

/// The last state of a run that is stopped and taken up again after each of these rounds.
pub(super) fn last_state(plan: &Plan, federation: &Federation, stops: &[u64]) -> State {
    let model = ModelSpec::LINEAR.build(federation, Isa::detect()).unwrap();
    let trainer = Sgd::new(&*model);
    let mut exchange = Simulation::with_threads(&trainer, federation, NonZeroUsize::new(1)).unwrap();
    let mut state = plan.start(SEED, &trainer);
    for &stop in stops {
        let mut records = Records { stop_after: Some(stop), ..Records::default() };
        train(&mut exchange, plan, &mut state, &mut records).unwrap();
        state = records.checkpoint.unwrap();
    }
    train(&mut exchange, plan, &mut state, &mut Records::default()).unwrap();
    state
}
