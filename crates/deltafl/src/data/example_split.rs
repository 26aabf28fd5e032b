//! Splits within each device, or of devices by a list.
//!
//! Within a device, a share of its *examples* trains and the rest is held out, as personal models
//! and LEAF's "by sample" protocol require. The device is then in several splits with different
//! examples, and is evaluated on those it did not train on.

use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Serialize};

use super::synthetic::Fraction;
use super::{
    DeviceExamples, Federation, FederationBuilder, FederationIndex, InputKind, InvalidSplit, Split,
    StoredTargets,
};
use crate::device::stream_key;
use crate::stream::{Purpose, Stream};

/// The parameters of splitting the examples of each device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WithinSplit {
    /// The share of a device's examples that trains: rounded down, but one at least.
    pub train: Fraction,
    /// The share that is held out for validation, rounded down; the rest tests.
    pub validation: Fraction,
    /// The data seed.
    pub seed: u64,
    /// A device is kept if it has more examples than this.
    pub min_examples: u64,
}

impl Default for WithinSplit {
    /// The default of LEAF: nine of ten examples train.
    fn default() -> Self {
        Self {
            train: const { Fraction::new(0.9).unwrap() },
            validation: Fraction::NONE,
            seed: 1,
            min_examples: 0,
        }
    }
}

/// The devices of each split. Devices that are not listed are removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GivenSplit {
    /// Identities of the devices that train.
    pub train: Vec<String>,
    /// Identities of the test devices.
    pub test: Vec<String>,
    /// Identities of the devices held out for validation.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub validation: Vec<String>,
}

impl Federation {
    /// Returns the same federation with the examples of each device split. A device is in each
    /// split for which it has examples. The examples are copied. Examples are drawn at random, but
    /// a text is cut and its end is for testing, so that predicted symbols were not trained on.
    ///
    /// ```
    /// use deltafl::data::{DeviceExamples, FederationBuilder, InputKind, Split, WithinSplit};
    /// let mut builder = FederationBuilder::new("tiny", InputKind::Bytes { dim: 1 }, 2);
    /// builder.push("a", Split::Train, DeviceExamples::Bytes(&[1; 20]), &[0; 20]).unwrap();
    /// let federation = builder.build().split_within(&WithinSplit::default()).unwrap();
    /// let examples = |split| federation.split(split).iter().map(|&k| federation.example_count(k)).sum::<u64>();
    /// assert_eq!((examples(Split::Train), examples(Split::Test)), (18, 2));
    /// ```
    pub fn split_within(self, plan: &WithinSplit) -> Result<Self, InvalidSplit> {
        if plan.train.get() + plan.validation.get() > 1.0 {
            return Err(InvalidSplit::Fraction {
                name: "train + validation",
                got: plan.train.get() + plan.validation.get(),
            });
        }
        let mut builder = FederationBuilder::with_target(&self.name, self.kind, self.target);
        let mut largest = 0;
        for k in self.devices() {
            largest = largest.max(self.example_count(k));
            if self.example_count(k) > plan.min_examples {
                self.push_parts(k, plan, &mut builder)?;
            }
        }
        if builder.is_empty() {
            return Err(InvalidSplit::NoDevices { min_examples: plan.min_examples, largest });
        }
        let split = builder.build();
        // Data independent of the split is kept: vocabulary, names, origin.
        Ok(Self {
            devices: split.devices,
            inputs: split.inputs,
            targets: split.targets,
            hash: split.hash,
            affine: None,
            device_split: None,
            ..self
        })
    }

    fn push_parts(
        &self,
        device: FederationIndex,
        plan: &WithinSplit,
        builder: &mut FederationBuilder,
    ) -> Result<(), InvalidSplit> {
        let (id, n) = (self.id(device), self.example_count(device) as usize);
        let mut order: Vec<usize> = (0..n).collect();
        if !matches!(self.kind, InputKind::Windows { .. }) {
            Stream::new(plan.seed, Purpose::Split, 2, stream_key(id)).shuffle(&mut order);
        }
        let share = |share: Fraction| (share.get() * n as f64).floor() as usize;
        let train = share(plan.train).max(1);
        let validation = share(plan.validation).min(n - train);
        let (_, targets) = self.stored(device);
        let parts = [
            (Split::Train, 0..train),
            (Split::Validation, train..train + validation),
            (Split::Test, train + validation..n),
        ];
        for (split, range) in parts.into_iter().filter(|(_, range)| !range.is_empty()) {
            let examples = &mut order[range];
            examples.sort_unstable();
            let pushed = self.push_picked(device, split, examples, &targets, builder);
            pushed.map_err(|_| InvalidSplit::Held { id: id.to_owned() })?;
        }
        Ok(())
    }

    /// Adds some examples of a device in their order. Those of a text are consecutive.
    fn push_picked(
        &self,
        device: FederationIndex,
        split: Split,
        examples: &[usize],
        targets: &StoredTargets,
        builder: &mut FederationBuilder,
    ) -> Result<(), super::InvalidDevice> {
        fn picked<T: Copy>(values: &[T], width: usize, rows: &[usize]) -> Vec<T> {
            rows.iter().flat_map(|&row| &values[row * width..(row + 1) * width]).copied().collect()
        }
        let id = self.id(device);
        match (self.stored_inputs(device), self.kind) {
            (DeviceExamples::Bytes(values), InputKind::Bytes { dim }) => {
                let inputs = picked(values, dim, examples);
                builder.push(id, split, DeviceExamples::Bytes(&inputs), targets.picked(examples).lent())
            }
            (DeviceExamples::Dense(values), InputKind::Dense { dim }) => {
                let inputs = picked(values, dim, examples);
                builder.push(id, split, DeviceExamples::Dense(&inputs), targets.picked(examples).lent())
            }
            (DeviceExamples::Tokens(ids), InputKind::Tokens { len, .. }) => {
                let inputs = picked(ids, len, examples);
                builder.push(id, split, DeviceExamples::Tokens(&inputs), targets.picked(examples).lent())
            }
            (DeviceExamples::Text(text), InputKind::Windows { len, .. }) => {
                let (first, last) = (examples[0], examples[examples.len() - 1]);
                builder.push(id, split, DeviceExamples::Text(&text[first..=last + len]), targets.lent())
            }
            _ => unreachable!("the column of inputs is of the kind the federation was built with"),
        }
    }

    /// Returns the same federation with the listed devices in their splits, without the others.
    pub fn split_given(mut self, plan: &GivenSplit) -> Result<Self, InvalidSplit> {
        let mut wanted: HashMap<&str, Split> = HashMap::new();
        for (split, ids) in
            [(Split::Train, &plan.train), (Split::Test, &plan.test), (Split::Validation, &plan.validation)]
        {
            for id in ids {
                if wanted.insert(id, split).is_some() {
                    return Err(InvalidSplit::Twice { id: id.clone() });
                }
            }
        }
        self.check_ids_are_unique()?;
        let (mut kept, mut splits) = (Vec::new(), Vec::new());
        for k in 0..self.len() {
            if let Some(split) = wanted.remove(self.devices.ids.value(k)) {
                kept.push(k);
                splits.push(split as u8);
            }
        }
        if let Some(id) = wanted.into_keys().min() {
            return Err(InvalidSplit::Unknown { id: id.to_owned() });
        }
        if kept.is_empty() {
            return Err(InvalidSplit::NoDevices { min_examples: 0, largest: 0 });
        }
        let text = format!("{} given {:?}", self.hash, plan);
        self.devices = self.devices.subset(&kept, splits);
        self.hash = blake3::hash(text.as_bytes()).to_hex().to_string();
        self.device_split = None;
        self.affine = None;
        Ok(self)
    }

    /// Checks that no device is in two splits.
    pub(super) fn check_ids_are_unique(&self) -> Result<(), InvalidSplit> {
        let mut seen = HashSet::with_capacity(self.len());
        match self.devices().find(|&k| !seen.insert(self.id(k))) {
            None => Ok(()),
            Some(k) => Err(InvalidSplit::Held { id: self.id(k).to_owned() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::DeviceSplit;
    use crate::task::Targets;

    /// Device k has k + 1 examples with the values 0, 1, …, and the parity as label.
    fn growing(n: usize) -> Federation {
        let mut builder = FederationBuilder::new("t", InputKind::Bytes { dim: 1 }, 2);
        for k in 0..n {
            let values: Vec<u8> = (0..=k as u8).collect();
            let labels: Vec<u32> = values.iter().map(|&value| u32::from(value) % 2).collect();
            builder.push(&k.to_string(), Split::Train, DeviceExamples::Bytes(&values), &labels).unwrap();
        }
        builder.build()
    }

    fn share(share: f64) -> Fraction {
        Fraction::new(share).unwrap()
    }

    #[test]
    fn every_example_of_a_device_is_in_one_split_with_its_label() {
        let plan = WithinSplit { train: share(0.6), validation: share(0.2), ..WithinSplit::default() };
        let split = growing(30).split_within(&plan).unwrap();
        split.verify().unwrap();
        let mut of_device: HashMap<String, Vec<u8>> = HashMap::new();
        for k in split.devices() {
            let (DeviceExamples::Bytes(values), targets) = split.stored(k) else { panic!("bytes") };
            for (value, &label) in values.iter().zip(targets.lent().classes()) {
                assert_eq!(u32::from(*value) % 2, label);
            }
            of_device.entry(split.id(k).to_owned()).or_default().extend(values);
        }
        for (id, mut values) in of_device {
            values.sort_unstable();
            assert_eq!(values, (0..=id.parse::<u8>().unwrap()).collect::<Vec<_>>());
        }
        let count = |split_of| split.split(split_of).iter().map(|&k| split.example_count(k)).sum::<u64>();
        assert_eq!(split.split(Split::Train).len(), 30);
        assert!(
            count(Split::Train) > count(Split::Test) && count(Split::Test) > count(Split::Validation) / 2
        );
    }

    #[test]
    fn the_seed_alone_decides_which_examples_train() {
        let hash = |seed| growing(20).split_within(&WithinSplit { seed, ..Default::default() }).unwrap().hash;
        assert_eq!(hash(1), hash(1));
        assert_ne!(hash(1), hash(2));
    }

    #[test]
    fn the_end_of_a_text_tests() {
        let mut builder = FederationBuilder::new("t", InputKind::Windows { len: 2, alphabet: 9 }, 9);
        builder
            .push("a", Split::Train, DeviceExamples::Text(&[0, 1, 2, 3, 4, 5, 6]), Targets::IN_TEXT)
            .unwrap();
        let plan = WithinSplit { train: share(0.6), ..WithinSplit::default() };
        let split = builder.build().split_within(&plan).unwrap();
        let labels = |k: FederationIndex| {
            (0..split.examples(k).len()).map(|i| split.examples(k).label(i)).collect::<Vec<_>>()
        };
        assert_eq!((labels(FederationIndex(0)), labels(FederationIndex(1))), (vec![2, 3, 4], vec![5, 6]));
    }

    #[test]
    fn a_device_that_stands_in_two_splits_is_not_split_again() {
        let split = growing(9).split_within(&WithinSplit::default()).unwrap();
        let held = |result: Result<Federation, InvalidSplit>| {
            assert!(matches!(result.unwrap_err(), InvalidSplit::Held { .. }));
        };
        held(split.clone().split_within(&WithinSplit::default()));
        held(split.clone().split_devices(&DeviceSplit::default()));
        held(split.split_given(&GivenSplit { train: vec!["8".to_owned()], ..Default::default() }));
    }

    #[test]
    fn a_list_says_who_trains_and_who_tests() {
        let ids = |ids: &[&str]| ids.iter().map(|&id| id.to_owned()).collect::<Vec<_>>();
        let plan = GivenSplit { train: ids(&["3", "1"]), test: ids(&["4"]), validation: Vec::new() };
        let split = growing(6).split_given(&plan).unwrap();
        let names = |of| split.split(of).iter().map(|&k| split.id(k)).collect::<Vec<_>>();
        assert_eq!((names(Split::Train), names(Split::Test)), (vec!["1", "3"], vec!["4"]));
        let unknown = GivenSplit { test: ids(&["9"]), ..plan.clone() };
        assert_eq!(growing(6).split_given(&unknown).unwrap_err(), InvalidSplit::Unknown { id: "9".into() });
        let twice = GivenSplit { test: ids(&["1"]), ..plan };
        assert_eq!(growing(6).split_given(&twice).unwrap_err(), InvalidSplit::Twice { id: "1".into() });
    }
}
