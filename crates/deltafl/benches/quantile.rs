//! The quantile of a cohort: open, smoothed, and each private search with the answers of all
//! devices.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use deltafl::superquantile::private::{LossRange, PrivateQuantile, Search};
use deltafl::superquantile::smooth::Smoothing;
use deltafl::superquantile::{Conformity, DeviceLoss, quantile, superquantile};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

fn cohort(devices: usize) -> Vec<DeviceLoss> {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let device = |_| DeviceLoss::new(rng.random_range(0.0..5.0), f64::from(rng.random_range(100..2000_u32)));
    (0..devices).map(device).collect::<Result<_, _>>().expect("finite losses and positive weights")
}

fn half() -> Conformity {
    Conformity::try_from(0.5).expect("in (0, 1]")
}

fn search(kind: PrivateQuantile, range: &LossRange, cohort: &[DeviceLoss]) -> Option<f64> {
    let mut search = Search::new(kind, half(), None, range);
    while let Some(query) = search.query() {
        let mut sum = vec![0; query.len()];
        cohort.iter().for_each(|&device| query.answer(device, &mut sum));
        search.take(&sum).expect("a sum of answers to the query");
    }
    search.eta()
}

fn open(c: &mut Criterion) {
    let nu = Smoothing::try_from(0.1).expect("positive");
    let mut group = c.benchmark_group("open");
    for devices in [100, 10_000] {
        let cohort = cohort(devices);
        group.throughput(Throughput::Elements(devices as u64));
        group.bench_with_input(BenchmarkId::new("quantile", devices), &cohort, |b, cohort| {
            b.iter(|| quantile(half(), black_box(cohort)));
        });
        group.bench_with_input(BenchmarkId::new("superquantile", devices), &cohort, |b, cohort| {
            b.iter(|| superquantile(half(), black_box(cohort)));
        });
        group.bench_with_input(BenchmarkId::new("smoothed minimisers", devices), &cohort, |b, cohort| {
            b.iter(|| nu.minimisers(half(), black_box(cohort)));
        });
    }
    group.finish();
}

fn private(c: &mut Criterion) {
    let mut group = c.benchmark_group("private");
    for kind in
        [PrivateQuantile::TwoLevel, PrivateQuantile::OneShot, PrivateQuantile::Bisection, PrivateQuantile::Mm]
    {
        let cohort = cohort(100);
        group.throughput(Throughput::Elements(100));
        group.bench_with_input(BenchmarkId::new(format!("{kind:?}"), 100), &cohort, |b, cohort| {
            b.iter(|| search(kind, &LossRange::default(), black_box(cohort)));
        });
    }
    group.finish();
}

criterion_group!(benches, open, private);
criterion_main!(benches);
