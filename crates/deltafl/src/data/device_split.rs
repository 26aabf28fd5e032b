//! The split of devices into train, validation and test.
//!
//! The paper splits *devices*, not examples: half of them train, and the other half is never used
//! in training. LEAF keeps a device if it has *more* than a given number of examples.

use serde::{Deserialize, Serialize};

use super::{Column, DeviceTable, Federation, Split};
use crate::stream::{Purpose, Stream};

/// The parameters of splitting the devices of a federation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DeviceSplit {
    /// The fraction of devices that train, rounded down to whole devices.
    pub train: f64,
    /// The fraction of the train devices held out for validation, rounded down.
    pub validation: f64,
    /// The data seed.
    pub seed: u64,
    /// A device is kept if it has more examples than this.
    pub min_examples: u64,
    /// The fraction of these devices that is kept, drawn at random with the data seed and rounded
    /// down. The paper keeps half of EMNIST's writers.
    #[serde(skip_serializing_if = "is_everyone")]
    pub sample: f64,
}

/// The fraction that keeps all devices.
const EVERYONE: f64 = 1.0;

/// Returns true if a fraction keeps all devices. Files and hashes are then those of a split without
/// a sample.
fn is_everyone(sample: &f64) -> bool {
    *sample >= EVERYONE
}

impl Default for DeviceSplit {
    /// The default of the paper: half of the devices train.
    fn default() -> Self {
        Self { train: 0.5, validation: 0.0, seed: 1, min_examples: 0, sample: EVERYONE }
    }
}

/// An error from splitting devices.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidSplit {
    /// A fraction is outside its range.
    #[error("the fraction `{name}` must be in [0, 1], got {got}")]
    Fraction {
        /// `train`, `validation` or `sample`.
        name: &'static str,
        /// Its value.
        got: f64,
    },
    /// The federation has no such device.
    #[error("there is no device {id:?} in the federation")]
    Unknown {
        /// Its identity.
        id: String,
    },
    /// A device is in two lists.
    #[error("device {id:?} is listed twice")]
    Twice {
        /// Its identity.
        id: String,
    },
    /// The examples of a device are already split.
    #[error("the examples of device {id:?} are already split: it is in two splits and cannot be split again")]
    Held {
        /// Its identity.
        id: String,
    },
    /// No device has enough examples.
    #[error("no device has more than {min_examples} examples; the largest has {largest}")]
    NoDevices {
        /// The bound.
        min_examples: u64,
        /// Examples of the largest device.
        largest: u64,
    },
    /// The sample contains no device.
    #[error("a fraction of {sample} of {devices} devices is less than one device")]
    EmptySample {
        /// The fraction.
        sample: f64,
        /// The devices with enough examples.
        devices: usize,
    },
}

impl Federation {
    /// Returns the same federation with its devices split again and without small devices.
    ///
    /// The examples are not copied. The hash is derived from those of the federation and of the
    /// split, without reading the examples.
    ///
    /// ```
    /// use deltafl::data::{DeviceExamples, DeviceSplit, FederationBuilder, InputKind, Split};
    /// let mut builder = FederationBuilder::new("tiny", InputKind::Bytes { dim: 1 }, 2);
    /// for id in ["a", "b", "c", "d", "e"] {
    ///     builder.push(id, Split::Train, DeviceExamples::Bytes(&[0, 255]), &[0, 1]).unwrap();
    /// }
    /// let federation = builder.build().split_devices(&DeviceSplit::default()).unwrap();
    /// assert_eq!(federation.split(Split::Train).len(), 2);
    /// assert_eq!(federation.split(Split::Test).len(), 3);
    /// ```
    pub fn split_devices(mut self, plan: &DeviceSplit) -> Result<Self, InvalidSplit> {
        self.check_ids_are_unique()?;
        let (kept, splits) = plan.draw(&self.devices.examples)?;
        let splits: Vec<u8> = splits.into_iter().map(|split| split as u8).collect();
        self.devices = if kept.len() == self.len() {
            DeviceTable { split: splits.into(), ..self.devices }
        } else {
            self.devices.subset(&kept, splits)
        };
        self.hash = derived_hash(&self.hash, plan);
        self.device_split = Some(plan.clone());
        self.affine = None; // its constants belonged to the train devices of before
        Ok(self)
    }
}

impl DeviceSplit {
    /// Returns the devices to keep, given their numbers of examples, and the split of each.
    pub fn draw(&self, counts: &[u64]) -> Result<(Vec<usize>, Vec<Split>), InvalidSplit> {
        for (name, got) in [("train", self.train), ("validation", self.validation), ("sample", self.sample)] {
            if !(0.0..=1.0).contains(&got) {
                return Err(InvalidSplit::Fraction { name, got });
            }
        }
        let kept: Vec<usize> = (0..counts.len()).filter(|&k| counts[k] > self.min_examples).collect();
        if kept.is_empty() {
            let largest = counts.iter().copied().max().unwrap_or_default();
            return Err(InvalidSplit::NoDevices { min_examples: self.min_examples, largest });
        }
        let kept = self.sampled(kept)?;
        let splits = self.splits(kept.len());
        Ok((kept, splits))
    }

    /// Returns the devices of the sample in their order.
    fn sampled(&self, mut devices: Vec<usize>) -> Result<Vec<usize>, InvalidSplit> {
        if is_everyone(&self.sample) {
            return Ok(devices);
        }
        let wanted = (self.sample * devices.len() as f64).floor() as usize;
        if wanted == 0 {
            return Err(InvalidSplit::EmptySample { sample: self.sample, devices: devices.len() });
        }
        // The split itself uses the stream of round 0.
        Stream::new(self.seed, Purpose::Split, 1, 0).shuffle(&mut devices);
        devices.truncate(wanted);
        devices.sort_unstable();
        Ok(devices)
    }

    /// Returns the split of each of `n` devices.
    fn splits(&self, n: usize) -> Vec<Split> {
        let mut order: Vec<usize> = (0..n).collect();
        Stream::new(self.seed, Purpose::Split, 0, 0).shuffle(&mut order);
        let train = (self.train * n as f64).floor() as usize;
        let validation = (self.validation * train as f64).floor() as usize;
        let mut splits = vec![Split::Test; n];
        for (place, &device) in order[..train].iter().enumerate() {
            splits[device] = if place < train - validation { Split::Train } else { Split::Validation };
        }
        splits
    }
}

fn derived_hash(hash: &str, plan: &DeviceSplit) -> String {
    let DeviceSplit { train, validation, seed, min_examples, sample } = plan;
    let mut text = format!("{hash} split {train} {validation} {seed} {min_examples}");
    if !is_everyone(sample) {
        text.push_str(&format!(" sample {sample}"));
    }
    blake3::hash(text.as_bytes()).to_hex().to_string()
}

impl DeviceTable {
    pub(super) fn subset(&self, kept: &[usize], splits: Vec<u8>) -> Self {
        let pick = |column: &Column<u64>| kept.iter().map(|&k| column[k]).collect();
        Self {
            ids: kept.iter().map(|&k| self.ids.value(k)).collect(),
            split: splits.into(),
            offset: pick(&self.offset),
            examples: pick(&self.examples),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{DeviceExamples, FederationBuilder, FederationIndex, InputKind};

    /// Device k has k + 1 examples.
    fn growing(n: usize) -> Federation {
        let mut builder = FederationBuilder::new("t", InputKind::Bytes { dim: 1 }, 1);
        for k in 0..n {
            let (values, labels) = (vec![k as u8; k + 1], vec![0; k + 1]);
            builder.push(&k.to_string(), Split::Train, DeviceExamples::Bytes(&values), &labels).unwrap();
        }
        builder.build()
    }

    #[test]
    fn the_papers_halves_round_down_for_train() {
        let split = growing(21).split_devices(&DeviceSplit::default()).unwrap();
        assert_eq!((split.split(Split::Train).len(), split.split(Split::Test).len()), (10, 11));
    }

    #[test]
    fn a_device_with_exactly_the_bound_is_left_out() {
        let plan = DeviceSplit { min_examples: 3, ..DeviceSplit::default() };
        let split = growing(6).split_devices(&plan).unwrap();
        let ids: Vec<&str> = split.devices().map(|k| split.id(k)).collect();
        assert_eq!(ids, ["3", "4", "5"]);
        assert_eq!(split.examples(FederationIndex(0)).len(), 4);
    }

    #[test]
    fn the_seed_alone_decides_who_trains() {
        let trains = |seed| growing(40).split_devices(&DeviceSplit { seed, ..Default::default() }).unwrap();
        assert_eq!(trains(1).split(Split::Train), trains(1).split(Split::Train));
        assert_ne!(trains(1).split(Split::Train), trains(2).split(Split::Train));
        assert_ne!(trains(1).hash(), trains(2).hash());
    }

    #[test]
    fn validation_devices_come_out_of_train() {
        let plan = DeviceSplit { train: 0.5, validation: 0.2, ..DeviceSplit::default() };
        let (base, held_out) =
            (growing(40).split_devices(&DeviceSplit::default()), growing(40).split_devices(&plan));
        let (base, held_out) = (base.unwrap(), held_out.unwrap());
        assert_eq!(base.split(Split::Test), held_out.split(Split::Test));
        assert_eq!(held_out.split(Split::Validation).len(), 4);
        assert_eq!(held_out.split(Split::Train).len(), 16);
    }

    #[test]
    fn a_sample_is_a_random_half_of_the_devices_with_enough_examples() {
        let plan = |sample, seed| DeviceSplit { min_examples: 10, sample, seed, ..DeviceSplit::default() };
        let ids = |federation: &Federation| -> Vec<u32> {
            federation.devices().map(|k| federation.id(k).parse().unwrap()).collect()
        };
        let half = growing(51).split_devices(&plan(0.5, 1)).unwrap();
        let kept = ids(&half);
        assert_eq!((kept.len(), half.split(Split::Train).len(), half.split(Split::Test).len()), (20, 10, 10));
        assert!(kept.is_sorted() && kept.iter().all(|&k| k >= 10), "{kept:?}");
        assert_ne!(kept, (10..30).collect::<Vec<_>>());
        assert_ne!(kept, ids(&growing(51).split_devices(&plan(0.5, 2)).unwrap()));
        let all = growing(51).split_devices(&plan(1.0, 1)).unwrap();
        assert_eq!(all.len(), 41);
        assert_ne!(all.hash(), half.hash());
        assert!(matches!(
            growing(51).split_devices(&plan(0.01, 1)),
            Err(InvalidSplit::EmptySample { devices: 41, .. })
        ));
    }

    #[test]
    fn a_split_without_a_sample_is_written_as_before() {
        let text = serde_json::to_string(&DeviceSplit::default()).unwrap();
        assert!(!text.contains("sample"), "{text}");
        let half: DeviceSplit = serde_json::from_str(r#"{"sample": 0.5}"#).unwrap();
        assert!(serde_json::to_string(&half).unwrap().contains(r#""sample":0.5"#));
    }

    #[test]
    fn a_bound_above_every_device_is_an_error() {
        let plan = DeviceSplit { min_examples: 9, ..DeviceSplit::default() };
        assert_eq!(
            growing(4).split_devices(&plan).unwrap_err(),
            InvalidSplit::NoDevices { min_examples: 9, largest: 4 }
        );
    }
}
