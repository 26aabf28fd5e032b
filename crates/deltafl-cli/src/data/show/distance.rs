//! The distance of a device from the population.
//!
//! For inputs with features, it is the mean squared distance of the examples from the population's
//! mean example of their class, over all features. For words and symbols, it is the total variation
//! distance between the frequencies of the device and of the population.

use deltafl::data::{BatchBuffer, Federation, InputKind};

/// Returns the distance of each device.
pub(super) fn distances(federation: &Federation) -> Vec<f64> {
    match federation.kind() {
        InputKind::Bytes { dim } | InputKind::Dense { dim } => from_class_means(federation, dim),
        InputKind::Tokens { vocabulary: symbols, .. } | InputKind::Windows { alphabet: symbols, .. } => {
            from_use_of_symbols(federation, symbols)
        }
    }
}

fn from_class_means(federation: &Federation, dim: usize) -> Vec<f64> {
    // Numeric targets count as one class.
    let classes = federation.classes().max(1);
    let mut means = vec![0.0f64; classes * dim];
    let mut counts = vec![0u64; classes];
    for_each_example(federation, |_, label, x| {
        counts[label] += 1;
        means[label * dim..(label + 1) * dim].iter_mut().zip(x).for_each(|(sum, &x)| *sum += f64::from(x));
    });
    for (mean, &count) in means.chunks_exact_mut(dim).zip(&counts) {
        mean.iter_mut().for_each(|sum| *sum /= count.max(1) as f64);
    }
    let mut distances = vec![0.0; federation.len()];
    for_each_example(federation, |device, label, x| {
        let mean = &means[label * dim..(label + 1) * dim];
        let squared: f64 = x.iter().zip(mean).map(|(&x, mean)| (f64::from(x) - mean).powi(2)).sum();
        distances[device] += squared / dim as f64;
    });
    distances
        .iter()
        .zip(federation.devices())
        .map(|(sum, device)| sum / federation.example_count(device) as f64)
        .collect()
}

/// Calls `f` with the device, the label and the features of every example.
fn for_each_example(federation: &Federation, mut f: impl FnMut(usize, usize, &[f32])) {
    let mut buffer = BatchBuffer::default();
    for device in federation.devices() {
        let examples = federation.examples(device);
        for i in 0..examples.len() {
            let batch = buffer.gather(&examples, i..i + 1);
            f(device.place(), examples.label(i) as usize, batch.inputs.dense());
        }
    }
}

fn from_use_of_symbols(federation: &Federation, symbols: usize) -> Vec<f64> {
    let mut buffer = BatchBuffer::default();
    let mut population = vec![0.0; symbols];
    let mut uses = Vec::with_capacity(federation.len());
    for device in federation.devices() {
        let examples = federation.examples(device);
        let mut used = vec![0.0; symbols];
        for i in 0..examples.len() {
            let batch = buffer.gather(&examples, i..i + 1);
            batch.inputs.tokens().iter().for_each(|&symbol| used[symbol as usize] += 1.0);
        }
        population.iter_mut().zip(&used).for_each(|(sum, n)| *sum += n);
        uses.push(used);
    }
    uses.iter().map(|used| total_variation(used, &population)).collect()
}

/// Returns half the ℓ₁ distance between two normalised histograms.
fn total_variation(a: &[f64], b: &[f64]) -> f64 {
    let (total_a, total_b): (f64, f64) = (a.iter().sum(), b.iter().sum());
    0.5 * a.iter().zip(b).map(|(a, b)| (a / total_a - b / total_b).abs()).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use deltafl::data::{DeviceExamples, FederationBuilder, Split};

    use super::*;

    #[test]
    fn the_atypical_device_has_the_greatest_distance() {
        let mut builder = FederationBuilder::new("t", InputKind::Dense { dim: 1 }, 1);
        for (id, x) in [("a", 1.0), ("b", 1.0), ("c", 4.0)] {
            builder.push(id, Split::Train, DeviceExamples::Dense(&[x]), &[0]).unwrap();
        }
        assert_eq!(distances(&builder.build()), [1.0, 1.0, 4.0]);
    }

    #[test]
    fn histograms_without_common_symbols_have_distance_one() {
        assert!((total_variation(&[2.0, 0.0], &[0.0, 5.0]) - 1.0).abs() < 1e-12);
        assert!(total_variation(&[2.0, 2.0], &[3.0, 3.0]).abs() < 1e-12);
    }
}
