//! One round of FedAvg and Δ-FL with a cohort of 100, and the draw of that cohort, for ever more
//! devices.
//!
//! A round touches its cohort and nothing else, so neither grows with N. What a large federation
//! costs is that a cohort is no longer in the caches when its round begins: a fraction of a
//! microsecond per device, which shows with the smallest model there is and drowns in a larger one.
//! Figures in ARCHITECTURE.md.

use std::hint::black_box;
use std::num::NonZeroUsize;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use deltafl::algorithm::{Tail, Track};
use deltafl::cohort::{Availability, Draw, Sampling};
use deltafl::data::{DeviceExamples, Federation, FederationBuilder, InputKind, Split};
use deltafl::exchange::{Reachable, Simulation};
use deltafl::kernel::Isa;
use deltafl::model::ModelSpec;
use deltafl::superquantile::Conformity;
use deltafl::trainer::Sgd;
use deltafl::training::{Plan, Records, train};

fn sampling() -> Sampling {
    Sampling { cohort_size: 100, with_replacement: false, availability: Availability::default() }
}

/// Devices of ten examples with sixteen features.
fn federation(devices: u32, classes: u32) -> Federation {
    let mut builder = FederationBuilder::new("bench", InputKind::Dense { dim: 16 }, classes as usize);
    for k in 0..devices {
        let features: Vec<f32> = (0..160).map(|i| ((i * 7 + k) % 23) as f32 / 11.0 - 1.0).collect();
        let labels: Vec<u32> = (0..10).map(|i| (i + k) % classes).collect();
        let pushed = builder.push(&k.to_string(), Split::Train, DeviceExamples::Dense(&features), &labels);
        pushed.expect("a device of the kind of its federation");
    }
    builder.build()
}

fn logistic(criterion: &mut Criterion) {
    rounds(criterion, "round of 100 devices, logistic", &ModelSpec::LOGISTIC, 2);
}

fn softmax(criterion: &mut Criterion) {
    rounds(criterion, "round of 100 devices, softmax of 62 classes", &ModelSpec::LINEAR, 62);
}

fn rounds(criterion: &mut Criterion, name: &str, model: &ModelSpec, classes: u32) {
    let mut group = criterion.benchmark_group(name);
    for devices in [1_000, 10_000, 100_000, 1_000_000] {
        let federation = federation(devices, classes);
        let model = model.build(&federation, Isa::detect()).expect("the model fits the features");
        let trainer = Sgd::new(&*model);
        let one = Some(NonZeroUsize::MIN);
        let mut exchange = Simulation::with_threads(&trainer, &federation, one).expect("there are devices");
        let half = Conformity::try_from(0.5).expect("in (0, 1]");
        let plan = Plan::builder().rounds(u64::MAX).evaluate_every(u64::MAX).sampling(sampling());
        let plan = plan.learning_rate(0.01).track(Track::fed_avg()).track(Tail::new(half));
        let plan = plan.build().expect("a valid plan");
        let mut state = plan.start(1, &trainer);
        state.round = 1; // round 0 would evaluate every device
        group.bench_function(BenchmarkId::from_parameter(devices), |bencher| {
            bencher.iter(|| {
                let mut one_round = Records { stop_after: Some(1), ..Records::default() };
                train(&mut exchange, &plan, &mut state, &mut one_round).expect("a round")
            });
        });
    }
    group.finish();
}

fn cohorts(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("draw of 100 devices");
    for devices in [1_000, 100_000, 10_000_000] {
        let mut round = 0;
        group.bench_function(BenchmarkId::from_parameter(devices), |bencher| {
            bencher.iter(|| {
                round += 1;
                black_box(sampling().cohort(
                    devices,
                    Draw { seed: 1, round, attempt: 0 },
                    &Reachable::Everyone,
                ))
            });
        });
    }
    group.finish();
}

criterion_group!(benches, logistic, softmax, cohorts);
criterion_main!(benches);
