//! Compares the samples of the discrete Gaussian with those of two independent crates, `prio` and
//! `opendp`, by χ² tests of homogeneity. Exits with status 1 if a test fails.
//!
//! ```sh
//! cargo run --release --manifest-path crates/deltafl-secagg/tests/oracles/Cargo.toml
//! ```

use std::collections::BTreeMap;
use std::process::ExitCode;

use chacha20::ChaCha20Rng;
use dashu::rational::RBig;
use deltafl_secagg::noise::DiscreteGaussian;
use opendp::traits::samplers::sample_discrete_gaussian;
use prio::dp::Rational;
use prio::dp::distributions::DiscreteGaussian as PrioGaussian;
use rand::distr::Distribution as _;
use rand::{Rng as _, SeedableRng as _};

/// The samples of an independent crate, which takes 10 to 30 µs for each.
const THEIRS: usize = 100_000;
const OURS: usize = 1_000_000;
/// The number of standard deviations of χ² that a test accepts.
const DEVIATIONS: f64 = 4.5;

fn main() -> ExitCode {
    let mut passed = true;
    for deviation in [1_u32, 3, 17, 100] {
        let own = ours(deviation * deviation);
        for (name, samples) in [("prio", prio(deviation)), ("opendp", opendp(deviation))] {
            passed &= report(&format!("σ = {deviation}, {name}"), distance(&own, &samples), true);
        }
    }
    // A variance that is 3 % larger is noticed.
    passed &= report("σ² = 298 against 289, prio", distance(&ours(298), &prio(17)), false);
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints the distance of a test. Returns true if it is as expected.
fn report(name: &str, distance: f64, is_equal: bool) -> bool {
    println!("{name}: χ² is {distance:.2} standard deviations from its mean");
    (distance.abs() < DEVIATIONS) == is_equal
}

fn ours(variance: u32) -> Vec<i64> {
    let noise = DiscreteGaussian::new(variance).expect("a supported variance");
    let mut rng = ChaCha20Rng::seed_from_u64(variance.into());
    let words: Vec<u32> = (0..OURS).map(|_| rng.next_u32()).collect();
    let mut entries = vec![0; OURS];
    noise.add_words(&mut entries, &words, &mut || rng.next_u64());
    entries.into_iter().map(|entry| entry as i64).collect()
}

fn prio(deviation: u32) -> Vec<i64> {
    let noise = PrioGaussian::new(Rational::from_unsigned(deviation, 1).expect("a number")).expect("a number");
    let mut rng = ChaCha20Rng::seed_from_u64(7);
    let sample = |_| noise.sample(&mut rng).try_into().expect("samples are short");
    (0..THEIRS).map(sample).collect()
}

fn opendp(deviation: u32) -> Vec<i64> {
    let sample = |_| {
        let sample = sample_discrete_gaussian(RBig::from(deviation)).expect("random bytes are available");
        sample.try_into().expect("samples are short")
    };
    (0..THEIRS).map(sample).collect()
}

/// Returns the distance of χ² from its mean, in standard deviations, for the claim that both samples
/// have one distribution. Neighbouring values with fewer than 20 samples are merged.
fn distance(one: &[i64], other: &[i64]) -> f64 {
    let mut counts: BTreeMap<i64, [f64; 2]> = BTreeMap::new();
    for (i, samples) in [one, other].into_iter().enumerate() {
        samples.iter().for_each(|sample| counts.entry(*sample).or_default()[i] += 1.0);
    }
    let (sizes, all) = ([one.len() as f64, other.len() as f64], (one.len() + other.len()) as f64);
    let (mut chi, mut cells, mut cell) = (0.0, 0.0, [0.0; 2]);
    for count in counts.values() {
        (cell[0], cell[1]) = (cell[0] + count[0], cell[1] + count[1]);
        let expected = sizes.map(|size| (cell[0] + cell[1]) * size / all);
        if expected[1] >= 20.0 {
            chi += (0..2).map(|i| (cell[i] - expected[i]).powi(2) / expected[i]).sum::<f64>();
            cells += 1.0;
            cell = [0.0; 2];
        }
    }
    let freedom: f64 = cells - 1.0;
    (chi - freedom) / (2.0 * freedom).sqrt()
}
