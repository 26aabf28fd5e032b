//! Masked inputs are uniformly distributed, independent of the inputs.

use chacha20::ChaCha20Rng;
use deltafl_secagg::graph::GraphRule;
use deltafl_secagg::identity::DeviceId;
use deltafl_secagg::mask::MaskSuite;
use deltafl_secagg::message::DeviceBody;
use deltafl_secagg::message::wire::decode_device;
use deltafl_secagg::simulate::{SimulatedRound, SimulationConfig};
use rand_core::SeedableRng;

const LEN: u32 = 512;

/// The masked inputs of one round in which every coordinate of every input is `value`.
fn masked_inputs(seed: u64, suite: MaskSuite, value: u64) -> Vec<Vec<u8>> {
    let ids = [DeviceId(0), DeviceId(1), DeviceId(2)];
    let config = SimulationConfig {
        graph: GraphRule::Full { threshold: 2 },
        suite,
        record: true,
        ..SimulationConfig::default()
    };
    let mut round = SimulatedRound::new(&config, &ids, &[], &mut ChaCha20Rng::seed_from_u64(seed))
        .expect("three devices");
    let sum = round.sum(LEN, b"", |_| vec![value; LEN as usize]).expect("three devices");
    assert_eq!(sum.sum, vec![value.wrapping_mul(3); LEN as usize]);
    let sent = round.recording().iter().filter(|delivery| delivery.from.is_some());
    let bodies = sent.filter_map(|delivery| decode_device(delivery.bytes.clone(), usize::MAX).ok());
    let inputs = bodies.filter_map(|message| match message.body {
        DeviceBody::MaskedInput { input, .. } => Some(input.to_vec()),
        _ => None,
    });
    inputs.collect()
}

/// χ² of byte counts against the uniform distribution: 255 degrees of freedom, mean 255, standard
/// deviation √510 ≈ 22.6.
fn chi_squared(bytes: impl Iterator<Item = u8>) -> f64 {
    let mut counts = [0u32; 256];
    bytes.for_each(|byte| counts[usize::from(byte)] += 1);
    let expected = f64::from(counts.iter().sum::<u32>()) / 256.0;
    counts.iter().map(|&count| (f64::from(count) - expected).powi(2) / expected).sum()
}

#[test]
fn bytes_of_masked_inputs_are_uniform_for_every_input() {
    for suite in MaskSuite::ALL {
        for value in [0, 1, u64::MAX] {
            let bytes: Vec<u8> =
                (0..12).flat_map(|seed| masked_inputs(seed, suite, value)).flatten().collect();
            let statistic = chi_squared(bytes.into_iter());
            // Five standard deviations in both directions: too even is as suspicious as too uneven.
            assert!((statistic - 255.0).abs() < 113.0, "{suite:?}, input {value}: χ² = {statistic}");
        }
    }
}

#[test]
fn masked_inputs_of_one_device_differ_uniformly_between_rounds() {
    // The same input in two rounds: the difference of the masked inputs is uniform too.
    let differences = (0..12).flat_map(|seed| {
        let (a, b) = (
            masked_inputs(seed, MaskSuite::default(), 7),
            masked_inputs(seed + 100, MaskSuite::default(), 7),
        );
        let pairs: Vec<u8> = a.concat().into_iter().zip(b.concat()).map(|(a, b)| a.wrapping_sub(b)).collect();
        pairs
    });
    let statistic = chi_squared(differences);
    assert!((statistic - 255.0).abs() < 113.0, "χ² = {statistic}");
}
