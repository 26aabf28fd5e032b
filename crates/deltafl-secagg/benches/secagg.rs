//! The parts of secure aggregation on one core: Shamir, masks and noise. `rounds.rs` measures
//! complete steps.

use std::hint::black_box;

use chacha20::ChaCha20Rng;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use deltafl_secagg::field::FieldElement;
use deltafl_secagg::mask::{self, MaskKey, MaskSign, MaskSuite};
use deltafl_secagg::noise::DiscreteGaussian;
use deltafl_secagg::ring::{Ring, RingVector};
use deltafl_secagg::shamir::{Interpolation, split};
use rand_core::{Rng, SeedableRng};

const MILLION: u32 = 1_000_000;

fn shamir(c: &mut Criterion) {
    let mut rng = ChaCha20Rng::seed_from_u64(1);
    let points: Vec<FieldElement> = (1..=100).map(FieldElement::from).collect();
    let secret = [7; 32];
    c.bench_function("shamir/split n=100 t=51", |b| {
        b.iter(|| split(black_box(&secret), &points, 51, &mut rng).expect("sound parameters"));
    });
    let shares = split(&secret, &points, 51, &mut rng).expect("sound parameters");
    c.bench_function("shamir/recover t=51", |b| {
        b.iter(|| {
            let interpolation = Interpolation::new(points[..51].to_vec()).expect("distinct");
            interpolation.recover(black_box(&shares[..51])).expect("a secret")
        });
    });
}

/// Sixteen masks on a million coordinates.
fn masks(c: &mut Criterion) {
    let mut group = c.benchmark_group("masks/16 x 1M");
    group.sample_size(20);
    let keys: Vec<(MaskSign, MaskKey)> = (0..16)
        .map(|i| (if i % 2 == 0 { MaskSign::Plus } else { MaskSign::Minus }, MaskKey::from_bytes([i; 32])))
        .collect();
    for ring in [Ring::Z32, Ring::Z64] {
        group.throughput(Throughput::Bytes(16 * u64::from(MILLION) * ring.width() as u64));
        for suite in MaskSuite::ALL {
            let mut vector = RingVector::zeros(ring, MILLION as usize);
            group.bench_function(format!("{ring:?} {suite:?}"), |b| {
                b.iter(|| mask::apply(&mut vector, suite, &keys));
            });
        }
    }
    group.finish();
}

/// Noise for the 2^17 entries of a ConvNet.
fn noise(c: &mut Criterion) {
    let mut group = c.benchmark_group("noise/131072");
    group.throughput(Throughput::Elements(1 << 17));
    let mut rng = ChaCha20Rng::seed_from_u64(1);
    let mut entries = vec![0; 1 << 17];
    for variance in [16, 1_000, 1 << 20] {
        let noise = DiscreteGaussian::new(variance).expect("a variance in range");
        group.bench_function(format!("variance {variance}"), |b| {
            b.iter(|| noise.add_to(&mut entries, &mut || rng.next_u64()));
        });
    }
    group.finish();
}

criterion_group!(benches, shamir, masks, noise);
criterion_main!(benches);
