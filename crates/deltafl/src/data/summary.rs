//! Summary statistics of a federation: number, size and skew of its devices.

use serde::Serialize;

use super::{Federation, FederationIndex, InputKind, Provenance, Split, TargetKind};

/// The summary statistics of a federation.
#[derive(Clone, Debug, Serialize)]
pub struct FederationSummary {
    /// The name of the federation.
    pub name: String,
    /// The kind and shape of an input.
    pub input: InputKind,
    /// The number of classes, or 0 for real-valued targets.
    pub classes: usize,
    /// The names of the classes, if they have any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub class_names: Vec<String>,
    /// The distribution of real-valued targets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub targets: Option<Spread>,
    /// Number of devices.
    pub devices: usize,
    /// Devices per split.
    pub splits: Splits,
    /// Number of examples of all devices.
    pub examples: u64,
    /// Examples per device.
    pub examples_per_device: Spread,
    /// Devices by their number of examples, in bins that double.
    pub histogram: Vec<Bin>,
    /// Examples of each class.
    pub labels: Vec<u64>,
    /// Classes that occur on a device.
    pub classes_per_device: Spread,
    /// The distance of the labels of a device from those of the federation: ½ Σ_c |p_k(c) − p(c)|,
    /// from 0 to 1.
    pub label_skew: Spread,
    /// BLAKE3 of the contents.
    pub hash: String,
    /// The origin of the federation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<Provenance>,
}

/// Devices per split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Splits {
    /// Devices that train.
    pub train: usize,
    /// Devices on which the error is reported.
    pub test: usize,
    /// Devices held out of train.
    pub validation: usize,
}

/// A distribution over devices.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Smallest.
    pub min: f64,
    /// The median: the mean of the two middle values for an even number.
    pub median: f64,
    /// Mean.
    pub mean: f64,
    /// Largest.
    pub max: f64,
}

/// Devices with `from ≤ examples < to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Bin {
    /// The smallest number of examples.
    pub from: u64,
    /// One more than the largest number of examples.
    pub to: u64,
    /// Number of devices.
    pub devices: usize,
}

impl FederationSummary {
    /// Reads the labels of all devices.
    pub fn new(federation: &Federation) -> Self {
        let counts: Vec<u64> = federation.devices().map(|k| federation.example_count(k)).collect();
        let mut labels = vec![0; federation.classes()];
        for k in federation.devices() {
            label_counts(federation, k).iter().for_each(|&(class, count)| labels[class] += count);
        }
        let examples = counts.iter().sum();
        let devices = federation.devices().map(|k| {
            let mine = label_counts(federation, k);
            (mine.len() as f64, skew(&mine, counts[k.place()], &labels, examples))
        });
        let (occurring, skews): (Vec<f64>, Vec<f64>) = devices.unzip();
        let in_split = |split| federation.split(split).len();
        Self {
            name: federation.name().to_owned(),
            input: federation.kind(),
            classes: federation.classes(),
            class_names: federation.class_names().to_vec(),
            targets: values(federation),
            devices: federation.len(),
            splits: Splits {
                train: in_split(Split::Train),
                test: in_split(Split::Test),
                validation: in_split(Split::Validation),
            },
            examples,
            examples_per_device: Spread::from_values(counts.iter().map(|&count| count as f64).collect()),
            histogram: histogram(&counts),
            labels,
            classes_per_device: Spread::from_values(occurring),
            label_skew: Spread::from_values(skews),
            hash: federation.hash().to_owned(),
            source: federation.source().cloned(),
        }
    }
}

/// Returns the distribution of real-valued targets.
fn values(federation: &Federation) -> Option<Spread> {
    let of_device = |k: FederationIndex| {
        let examples = federation.examples(k);
        (0..examples.len()).map(move |i| f64::from(examples.value(i)))
    };
    let valued = federation.targets() == TargetKind::Values;
    valued.then(|| Spread::from_values(federation.devices().flat_map(of_device).collect()))
}

/// Returns the classes that occur on a device, with their counts.
fn label_counts(federation: &Federation, device: FederationIndex) -> Vec<(usize, u64)> {
    if federation.targets() == TargetKind::Values {
        return Vec::new();
    }
    let examples = federation.examples(device);
    let mut labels: Vec<u32> = (0..examples.len()).map(|i| examples.label(i)).collect();
    labels.sort_unstable();
    labels.chunk_by(|a, b| a == b).map(|run| (run[0] as usize, run.len() as u64)).collect()
}

/// Returns the total variation between the labels of a device and all labels: Σ_c (p_k(c) − p(c))₊.
fn skew(mine: &[(usize, u64)], count: u64, all: &[u64], examples: u64) -> f64 {
    let excess =
        |&(class, n): &(usize, u64)| (n as f64 / count as f64 - all[class] as f64 / examples as f64).max(0.0);
    mine.iter().map(excess).sum()
}

impl Spread {
    /// Of no values: zero.
    fn from_values(mut values: Vec<f64>) -> Self {
        values.sort_unstable_by(f64::total_cmp);
        let n = values.len();
        let (Some(&min), Some(&max)) = (values.first(), values.last()) else {
            return Self { min: 0.0, median: 0.0, mean: 0.0, max: 0.0 };
        };
        let median = (values[(n - 1) / 2] + values[n / 2]) / 2.0;
        Self { min, median, mean: values.iter().sum::<f64>() / n as f64, max }
    }
}

/// Returns bins [2^b, 2^{b+1}) from the smallest to the largest device.
fn histogram(counts: &[u64]) -> Vec<Bin> {
    let (Some(&min), Some(&max)) = (counts.iter().min(), counts.iter().max()) else { return Vec::new() };
    let bits = min.max(1).ilog2()..=max.max(1).ilog2();
    let bin = |b: u32| {
        let (from, to) = (1u64 << b, 1u64.checked_shl(b + 1).unwrap_or(u64::MAX));
        Bin { from, to, devices: counts.iter().filter(|&&count| (from..to).contains(&count)).count() }
    };
    bits.map(bin).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{DeviceExamples, FederationBuilder};

    #[test]
    fn numbers_one_can_check_by_hand() {
        let mut builder = FederationBuilder::new("t", InputKind::Bytes { dim: 1 }, 3);
        builder.push("a", Split::Train, DeviceExamples::Bytes(&[0; 4]), &[0, 0, 0, 0]).unwrap();
        builder.push("b", Split::Test, DeviceExamples::Bytes(&[0; 4]), &[0, 0, 1, 1]).unwrap();
        builder.push("c", Split::Test, DeviceExamples::Bytes(&[0]), &[0]).unwrap();
        let summary = FederationSummary::new(&builder.build());
        assert_eq!((summary.devices, summary.examples, &summary.labels[..]), (3, 9, &[7, 2, 0][..]));
        assert_eq!(summary.examples_per_device, Spread { min: 1.0, median: 4.0, mean: 3.0, max: 4.0 });
        assert_eq!(summary.splits, Splits { train: 1, test: 2, validation: 0 });
        assert_eq!(summary.classes_per_device.max, 2.0);
        assert!((summary.label_skew.min - 2.0 / 9.0).abs() < 1e-12, "{:?}", summary.label_skew);
        assert!((summary.label_skew.max - (0.5 - 2.0 / 9.0)).abs() < 1e-12);
        let bins: Vec<_> = summary.histogram.iter().map(|bin| (bin.from, bin.devices)).collect();
        assert_eq!(bins, [(1, 1), (2, 0), (4, 2)]);
    }
}
