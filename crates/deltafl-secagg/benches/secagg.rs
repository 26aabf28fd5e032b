//! The parts of secure aggregation on one core: Shamir and masks. `rounds.rs` measures complete
//! steps.

use std::hint::black_box;

use chacha20::ChaCha20Rng;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use deltafl_secagg::field::FieldElement;
use deltafl_secagg::mask::{self, MaskKey, MaskSign, MaskSuite};
use deltafl_secagg::ring::{Ring, RingVector};
use deltafl_secagg::shamir::{Interpolation, split};
use rand_core::SeedableRng;

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

criterion_group!(benches, shamir, masks);
criterion_main!(benches);
