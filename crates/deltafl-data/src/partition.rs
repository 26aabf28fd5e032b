//! Assigns the examples of data without devices to new devices.
//!
//! ```text
//! iid         every example goes to a device at random; counts differ by at most one
//! shards      examples sorted by label, cut into devices × s shards, s shards per device (McMahan et al. 2017)
//! dirichlet   for each class, shares of the devices ~ Dirichlet(α, …, α): small α, much skew (Hsu et al. 2019)
//! ```

use std::path::Path;

use serde::{Deserialize, Serialize};

use deltafl::data::{DeviceExamples, Federation, FederationIndex, InputKind, Provenance, Split, TargetKind};
use deltafl::stream::{Purpose, Stream};

use super::{FederationWriter, Heading, Manifest, SaveError};

/// How examples are assigned to devices.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum PartitionScheme {
    /// At random.
    Iid,
    /// A fixed number of shards per device, each of one or two labels.
    Shards {
        /// Shards per device.
        per_device: usize,
    },
    /// Random shares of each class.
    Dirichlet {
        /// Concentration α.
        alpha: f64,
    },
}

/// A partition into devices.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Partition {
    /// Number of devices; devices without an example are omitted.
    pub devices: usize,
    /// How examples are assigned.
    #[serde(rename = "deal")]
    pub scheme: PartitionScheme,
    /// The data seed.
    pub seed: u64,
}

/// The reason why examples cannot be assigned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PartitionError {
    /// Windows belong to the text of their device.
    #[error("windows over a text belong to their device and cannot be assigned to others")]
    Windows,
    /// There are fewer examples than devices or shards.
    #[error("cannot split {examples} examples into {parts} parts")]
    TooFew {
        /// Number of examples.
        examples: usize,
        /// Devices or shards.
        parts: usize,
    },
    /// The concentration is out of range.
    #[error("alpha must be positive and finite, got {alpha}")]
    Alpha {
        /// Its value.
        alpha: f64,
    },
    /// The federation cannot be written.
    #[error(transparent)]
    Save(#[from] SaveError),
}

impl Partition {
    /// Returns the examples of each device, given the labels of all examples.
    ///
    /// ```
    /// use deltafl_data::{Partition, PartitionScheme};
    /// let halves = Partition { devices: 2, scheme: PartitionScheme::Shards { per_device: 1 }, seed: 1 };
    /// let mut dealt = halves.assign(&[7, 3, 7, 3]).unwrap();
    /// dealt.sort();
    /// assert_eq!(dealt, [[0, 2], [1, 3]]);
    /// ```
    pub fn assign(&self, labels: &[u32]) -> Result<Vec<Vec<usize>>, PartitionError> {
        let parts = match self.scheme {
            PartitionScheme::Shards { per_device } => self.devices.saturating_mul(per_device),
            _ => self.devices,
        };
        if parts == 0 || parts > labels.len() {
            return Err(PartitionError::TooFew { examples: labels.len(), parts });
        }
        // Round 0 of this purpose is the split of devices.
        let mut stream = Stream::new(self.seed, Purpose::Split, 1, 0);
        let mut order: Vec<usize> = (0..labels.len()).collect();
        stream.shuffle(&mut order);
        let mut dealt = match self.scheme {
            PartitionScheme::Iid => cuts(&order, parts).map(<[usize]>::to_vec).collect(),
            PartitionScheme::Shards { per_device } => {
                deal_shards(labels, order, parts, per_device, &mut stream)
            }
            PartitionScheme::Dirichlet { alpha } if alpha > 0.0 && alpha.is_finite() => {
                deal_dirichlet(labels, &order, self.devices, alpha, &mut stream)
            }
            PartitionScheme::Dirichlet { alpha } => return Err(PartitionError::Alpha { alpha }),
        };
        dealt.iter_mut().for_each(|examples| examples.sort_unstable());
        Ok(dealt)
    }
}

/// Consecutive parts whose lengths differ by at most one.
fn cuts(order: &[usize], parts: usize) -> impl Iterator<Item = &[usize]> {
    let cut = move |part: usize| (part as u128 * order.len() as u128 / parts as u128) as usize;
    (0..parts).map(move |part| &order[cut(part)..cut(part + 1)])
}

fn deal_shards(
    labels: &[u32],
    mut order: Vec<usize>,
    parts: usize,
    per_device: usize,
    stream: &mut Stream,
) -> Vec<Vec<usize>> {
    order.sort_by_key(|&example| labels[example]); // stable: at random inside a class
    let mut shards: Vec<&[usize]> = cuts(&order, parts).collect();
    stream.shuffle(&mut shards);
    shards.chunks(per_device).map(<[_]>::concat).collect()
}

fn deal_dirichlet(
    labels: &[u32],
    order: &[usize],
    devices: usize,
    alpha: f64,
    stream: &mut Stream,
) -> Vec<Vec<usize>> {
    let classes = labels.iter().max().map_or(0, |&label| label as usize + 1);
    let mut of_class = vec![Vec::new(); classes];
    order.iter().for_each(|&example| of_class[labels[example] as usize].push(example));
    let mut dealt = vec![Vec::new(); devices];
    for examples in of_class.iter().filter(|examples| !examples.is_empty()) {
        let shares = dirichlet(devices, alpha, stream);
        let (mut start, mut cumulative) = (0, 0.0);
        for (device, share) in shares.iter().enumerate() {
            cumulative += share;
            let last = device + 1 == devices;
            let end =
                if last { examples.len() } else { (cumulative * examples.len() as f64).round() as usize };
            let end = end.clamp(start, examples.len());
            dealt[device].extend_from_slice(&examples[start..end]);
            start = end;
        }
    }
    dealt
}

/// Draws from Dirichlet(α, …, α). It uses logarithms of gamma variables, which underflow for small
/// α.
fn dirichlet(n: usize, alpha: f64, stream: &mut Stream) -> Vec<f64> {
    let logs: Vec<f64> = (0..n).map(|_| log_gamma_variable(alpha, stream)).collect();
    let highest = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let shares: Vec<f64> = logs.iter().map(|log| (log - highest).exp()).collect();
    let total: f64 = shares.iter().sum();
    shares.iter().map(|share| share / total).collect()
}

/// Returns the logarithm of a draw from Gamma(α, 1) (Marsaglia and Tsang 2000; for α < 1, Gamma(α +
/// 1)·U^{1/α}).
fn log_gamma_variable(alpha: f64, stream: &mut Stream) -> f64 {
    if alpha < 1.0 {
        return log_gamma_variable(alpha + 1.0, stream) + (1.0 - stream.unit()).ln() / alpha;
    }
    let d = alpha - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        let x = stream.normal();
        let v = (1.0 + c * x).powi(3);
        if v > 0.0 && (1.0 - stream.unit()).ln() < 0.5 * x * x + d - d * v + d * v.ln() {
            return (d * v).ln();
        }
    }
}

/// Assigns the examples of all devices to new devices and writes them to a folder.
pub fn partition(
    federation: &Federation,
    plan: &Partition,
    target: impl AsRef<Path>,
) -> Result<Manifest, PartitionError> {
    if matches!(federation.kind(), InputKind::Windows { .. }) {
        return Err(PartitionError::Windows);
    }
    // Examples by device: (device, index among its examples).
    let places: Vec<(FederationIndex, usize)> =
        federation.devices().flat_map(|k| (0..federation.examples(k).len()).map(move |i| (k, i))).collect();
    let examples = |k: FederationIndex| federation.examples(k);
    // Real targets are treated as one class.
    let labels: Vec<u32> = places.iter().map(|&(k, i)| examples(k).label(i)).collect();
    let dealt = plan.assign(&labels)?;
    let heading =
        Heading { name: federation.name().to_owned(), kind: federation.kind(), target: federation.targets() };
    let mut writer = FederationWriter::create(target, heading)?;
    let empty = dealt.iter().filter(|examples| examples.is_empty()).count() as u64;
    writer.source(partition_source(federation, plan, empty));
    writer.class_names(federation.class_names().to_vec());
    writer.feature_columns(federation.feature_columns().to_vec());
    if let Some(vectors) = federation.vectors() {
        writer.words(federation.word_list(vectors), vectors)?;
    } else if let Some(words) = federation.words() {
        writer.word_list(words.iter())?;
    }
    if let Some(coding) = federation.coding() {
        writer.coding(coding.clone());
    }
    for (k, examples) in dealt.iter().enumerate().filter(|(_, examples)| !examples.is_empty()) {
        let rows: Vec<(FederationIndex, usize)> = examples.iter().map(|&example| places[example]).collect();
        push_rows(federation, &mut writer, &format!("device-{k}"), &rows)?;
    }
    Ok(writer.finish()?)
}

fn partition_source(federation: &Federation, plan: &Partition, empty: u64) -> Provenance {
    let mut source = federation.source().cloned().unwrap_or_else(|| Provenance::new("partition"));
    let scheme = match plan.scheme {
        PartitionScheme::Iid => "iid".to_owned(),
        PartitionScheme::Shards { per_device } => format!("shards, {per_device} per device"),
        PartitionScheme::Dirichlet { alpha } => format!("dirichlet, alpha {alpha}"),
    };
    source.option("partition", format!("{scheme}, {} devices, seed {}", plan.devices, plan.seed));
    source.dropped("devices without an example", empty);
    source
}

fn push_rows(
    federation: &Federation,
    writer: &mut FederationWriter,
    id: &str,
    rows: &[(FederationIndex, usize)],
) -> Result<(), SaveError> {
    let (mut bytes, mut dense, mut tokens) = (Vec::new(), Vec::new(), Vec::new());
    for &(device, i) in rows {
        match (federation.stored_inputs(device), federation.kind()) {
            (DeviceExamples::Bytes(values), InputKind::Bytes { dim }) => {
                bytes.extend_from_slice(&values[i * dim..(i + 1) * dim]);
            }
            (DeviceExamples::Dense(values), InputKind::Dense { dim }) => {
                dense.extend_from_slice(&values[i * dim..(i + 1) * dim]);
            }
            (DeviceExamples::Tokens(ids), InputKind::Tokens { len, .. }) => {
                tokens.extend_from_slice(&ids[i * len..(i + 1) * len]);
            }
            _ => unreachable!("windows were refused, and inputs are of the kind of their federation"),
        }
    }
    let inputs = match federation.kind() {
        InputKind::Bytes { .. } => DeviceExamples::Bytes(&bytes),
        InputKind::Dense { .. } => DeviceExamples::Dense(&dense),
        InputKind::Tokens { .. } | InputKind::Windows { .. } => DeviceExamples::Tokens(&tokens),
    };
    match federation.targets() {
        TargetKind::Classes(_) => {
            let labels: Vec<u32> = rows.iter().map(|&(k, i)| federation.examples(k).label(i)).collect();
            writer.push(id, Split::Train, inputs, &labels)
        }
        TargetKind::Values => {
            let values: Vec<f32> = rows.iter().map(|&(k, i)| federation.examples(k).value(i)).collect();
            writer.push(id, Split::Train, inputs, &values)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use deltafl::data::FederationBuilder;

    /// 600 examples of 6 classes.
    fn labels() -> Vec<u32> {
        (0..600).map(|i| i % 6).collect()
    }

    fn dealt(devices: usize, scheme: PartitionScheme, seed: u64) -> Vec<Vec<usize>> {
        let dealt = Partition { devices, scheme, seed }.assign(&labels()).unwrap();
        let mut all = dealt.concat();
        all.sort_unstable();
        assert_eq!(all, (0..600).collect::<Vec<_>>(), "every example goes to exactly one device");
        dealt
    }

    fn classes(examples: &[usize]) -> usize {
        let mut seen: Vec<u32> = examples.iter().map(|&i| labels()[i]).collect();
        seen.sort_unstable();
        seen.dedup();
        seen.len()
    }

    #[test]
    fn iid_devices_have_equal_counts_and_all_classes() {
        let dealt = dealt(7, PartitionScheme::Iid, 1);
        assert!(dealt.iter().all(|examples| (85..=86).contains(&examples.len()) && classes(examples) == 6));
    }

    #[test]
    fn a_shard_holds_one_class_where_it_can() {
        let dealt = dealt(15, PartitionScheme::Shards { per_device: 2 }, 1);
        assert!(dealt.iter().all(|examples| examples.len() == 40 && classes(examples) <= 2));
    }

    #[test]
    fn dirichlet_skews_more_when_alpha_is_small() {
        let mean_classes = |alpha| {
            let dealt = dealt(10, PartitionScheme::Dirichlet { alpha }, 1);
            dealt.iter().map(|examples| classes(examples) as f64).sum::<f64>() / 10.0
        };
        let (skewed, even) = (mean_classes(0.05), mean_classes(100.0));
        assert!(skewed < 3.0 && even > 5.9, "{skewed} {even}");
        mean_classes(1e-9);
    }

    #[test]
    fn dirichlet_shares_have_the_mean_and_variance_of_the_law() {
        let (n, alpha) = (4, 0.5);
        let mut stream = Stream::new(3, Purpose::Split, 1, 0);
        let draws: Vec<f64> = (0..20_000).map(|_| dirichlet(n, alpha, &mut stream)[0]).collect();
        let mean = draws.iter().sum::<f64>() / 20_000.0;
        let variance = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 20_000.0;
        // Var = (1/n)(1 − 1/n)/(nα + 1)
        assert!((mean - 0.25).abs() < 0.01 && (variance - 0.0625).abs() < 0.003, "{mean} {variance}");
    }

    #[test]
    fn the_seed_decides_who_gets_what() {
        assert_eq!(dealt(5, PartitionScheme::Iid, 1), dealt(5, PartitionScheme::Iid, 1));
        assert_ne!(dealt(5, PartitionScheme::Iid, 1), dealt(5, PartitionScheme::Iid, 2));
    }

    #[test]
    fn a_partition_that_cannot_be_is_an_error() {
        let refused = |devices, scheme| {
            Partition { devices, scheme, seed: 1 }.assign(&labels()).unwrap_err().to_string()
        };
        assert_eq!(refused(601, PartitionScheme::Iid), "cannot split 600 examples into 601 parts");
        assert_eq!(refused(0, PartitionScheme::Iid), "cannot split 600 examples into 0 parts");
        let shards = PartitionScheme::Shards { per_device: 7 };
        assert_eq!(refused(100, shards), "cannot split 600 examples into 700 parts");
        let alpha = PartitionScheme::Dirichlet { alpha: -1.0 };
        assert_eq!(refused(3, alpha), "alpha must be positive and finite, got -1");
    }

    #[test]
    fn examples_keep_their_inputs_and_labels() {
        let mut builder = FederationBuilder::new("t", InputKind::Bytes { dim: 2 }, 6);
        let values: Vec<u8> = (0..60).flat_map(|i| [i, i + 1]).collect();
        let labels: Vec<u32> = (0..60).map(|i| i % 6).collect();
        builder.push("all", Split::Train, DeviceExamples::Bytes(&values), &labels).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let plan = Partition { devices: 4, scheme: PartitionScheme::Iid, seed: 1 };
        partition(&builder.build(), &plan, dir.path().join("f")).unwrap();
        let federation = crate::open(dir.path().join("f")).unwrap();
        assert_eq!(federation.len(), 4);
        for k in 0..4 {
            let (DeviceExamples::Bytes(values), targets) = federation.stored(FederationIndex(k)) else {
                panic!("bytes")
            };
            for (pair, &label) in values.chunks_exact(2).zip(targets.lent().classes()) {
                assert_eq!((pair[1], u32::from(pair[0]) % 6), (pair[0] + 1, label));
            }
        }
        federation.verify().unwrap();
    }
}
