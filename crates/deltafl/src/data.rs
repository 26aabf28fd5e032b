//! Federations: devices and their examples.
//!
//! The examples of all devices lie in a few flat columns, sorted by device; a device is an offset and a
//! number of examples. A [`Column`] is a vector in memory or a mapped file alike, and a million devices cost an index and
//! not a heap. Folders, importers and run folders are the crate `deltafl-data`.
//!
//! ```text
//! devices   id      split   offset  examples   inputs  [ x x x x x x x x x … ]
//!           "anna"  train   0       3                    ╰anna─╯ ╰─boris─╯
//!           "boris" test    3       4          labels  [ y y y y y y y y y … ]
//! ```

use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::num::NonZeroUsize;

use crate::kernel::prefetch;

pub mod batch;
pub mod builder;
mod check;
mod column;
mod columns;
mod content_hash;
mod device_split;
mod evaluation_sample;
mod example_split;
mod from_columns;
pub mod normalise;
mod source;
mod summary;
pub mod synthetic;
mod targets;
mod verify;

pub use batch::BatchBuffer;
pub use builder::FederationBuilder;
pub use check::{DeviceExamples, InvalidDevice, Shape};
pub use column::{Column, InvalidText, Number, TextColumn};
pub use content_hash::ContentHash;
pub use device_split::{DeviceSplit, InvalidSplit};
pub use example_split::{GivenSplit, WithinSplit};
pub use from_columns::{Columns, InvalidColumns};
pub use normalise::{Affine, Normalise};
pub use source::{Dropped, Provenance};
pub use summary::{Bin, FederationSummary, Splits, Spread};
pub(crate) use targets::DeviceTargets;
pub use targets::{FeatureColumn, StoredTargets, TargetBuffer, TargetColumn, TargetKind};
pub use verify::Unverified;

/// A device, by its place in the table of its federation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FederationIndex(pub u32);

impl FederationIndex {
    /// Where it stands in a list of all devices.
    pub fn place(self) -> usize {
        self.0 as usize
    }
}

/// Which part of the population a device belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum Split {
    /// Devices that train.
    Train = 0,
    /// Devices unseen in training, on which the error is reported.
    Test = 1,
    /// Train devices held out to choose hyperparameters.
    Validation = 2,
}

impl Split {
    /// Its name in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Test => "test",
            Self::Validation => "validation",
        }
    }

    /// The split of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Train, Self::Test, Self::Validation].into_iter().find(|split| split.name() == name)
    }
}

/// The kind and shape of one example's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum InputKind {
    /// `dim` grey levels in 0–255; a model sees value / 255.
    Bytes {
        /// Features per example.
        dim: usize,
    },
    /// `dim` real features.
    Dense {
        /// Features per example.
        dim: usize,
    },
    /// `len` words of a vocabulary; word 0 is padding and everything unknown.
    Tokens {
        /// Words per example.
        len: usize,
        /// Number of words, padding included.
        vocabulary: usize,
    },
    /// Windows of `len` symbols over the device's text, stride 1; the label is the symbol that follows.
    Windows {
        /// Symbols per example.
        len: usize,
        /// Number of symbols; also the number of classes.
        alphabet: usize,
    },
}

/// The inputs of all devices.
#[derive(Clone, Debug)]
pub enum InputColumn {
    /// Grey levels.
    Bytes(Column<u8>),
    /// Real features.
    Dense(Column<f32>),
    /// Words.
    Tokens(Column<u32>),
    /// The texts of the devices, one after the other, a symbol per byte.
    Text(Column<u8>),
}

/// The devices, sorted as their examples are.
#[derive(Clone, Debug)]
pub struct DeviceTable {
    /// Their identities.
    pub ids: TextColumn,
    /// Their splits, as numbers of [`Split`].
    pub split: Column<u8>,
    /// First example of the device; for windows, first symbol of its text.
    pub offset: Column<u64>,
    /// n_k, the number of examples.
    pub examples: Column<u64>,
}

/// Frozen word vectors, a row per word; row 0 is zero.
#[derive(Clone, Debug)]
pub struct WordVectors {
    /// Entries per word.
    pub dim: usize,
    /// `vocabulary × dim` entries.
    pub values: Column<f32>,
}

/// Devices and their examples.
#[derive(Clone, Debug)]
pub struct Federation {
    pub(crate) name: String,
    pub(crate) kind: InputKind,
    pub(crate) target: TargetKind,
    pub(crate) devices: DeviceTable,
    pub(crate) inputs: InputColumn,
    pub(crate) targets: TargetColumn,
    /// The names of the classes, where they have any.
    pub(crate) class_names: Vec<String>,
    /// What the features were made of, where it is known.
    pub(crate) feature_columns: Vec<FeatureColumn>,
    /// The words of the vocabulary; word 0 is empty.
    pub(crate) words: Option<TextColumn>,
    pub(crate) vectors: Option<WordVectors>,
    /// The symbols of the alphabet, in the order of their codes.
    pub(crate) symbols: Option<String>,
    pub(crate) affine: Option<Affine>,
    pub(crate) source: Option<Provenance>,
    pub(crate) device_split: Option<DeviceSplit>,
    /// At most so many devices of each split are evaluated.
    pub(crate) evaluation_sample: Option<NonZeroUsize>,
    /// BLAKE3 of the contents, in hexadecimal.
    pub(crate) hash: String,
}

/// The examples of one device.
#[derive(Clone, Copy, Debug)]
pub struct Examples<'a> {
    pub(crate) inputs: DeviceInputs<'a>,
    pub(crate) targets: DeviceTargets<'a>,
    pub(crate) affine: Option<&'a Affine>,
    len: usize,
    classes: usize,
}

/// The part of the columns that belongs to one device.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DeviceInputs<'a> {
    Bytes { values: &'a [u8], dim: usize },
    Dense { values: &'a [f32], dim: usize },
    Tokens { ids: &'a [u32], len: usize, highest: u32 },
    Windows { text: &'a [u8], len: usize, highest: u8 },
}

impl Federation {
    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The kind and shape of an input.
    pub fn kind(&self) -> InputKind {
        self.kind
    }

    /// What is to be predicted.
    pub fn targets(&self) -> TargetKind {
        self.target
    }

    /// Number of classes; labels lie in `0..classes`. 0 where targets are real numbers.
    pub fn classes(&self) -> usize {
        self.target.classes()
    }

    /// The names of the classes, in the order of their numbers; empty where they have none.
    pub fn class_names(&self) -> &[String] {
        &self.class_names
    }

    /// The name of a class: as the data has it, or its number.
    pub fn class_name(&self, class: u32) -> String {
        self.class_names.get(class as usize).cloned().unwrap_or_else(|| class.to_string())
    }

    /// The columns that the features were made of, where they are known.
    pub fn feature_columns(&self) -> &[FeatureColumn] {
        &self.feature_columns
    }

    /// BLAKE3 of the contents, in hexadecimal.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// The frozen word vectors of a federation of words.
    pub fn vectors(&self) -> Option<&WordVectors> {
        self.vectors.as_ref()
    }

    /// The words of the vocabulary, if they are known; word 0 is empty.
    pub fn words(&self) -> Option<&TextColumn> {
        self.words.as_ref()
    }

    /// The symbols of the alphabet in the order of their codes, if they are known.
    pub fn symbols(&self) -> Option<&str> {
        self.symbols.as_deref()
    }

    /// Where the federation came from, if it was imported.
    pub fn source(&self) -> Option<&Provenance> {
        self.source.as_ref()
    }

    /// How its devices were split, if they were.
    pub fn device_split(&self) -> Option<&DeviceSplit> {
        self.device_split.as_ref()
    }

    /// Number of devices of all splits.
    pub fn len(&self) -> usize {
        self.devices.examples.len()
    }

    /// Whether there is no device.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All devices, in the order of the table.
    pub fn devices(
        &self,
    ) -> impl DoubleEndedIterator<Item = FederationIndex> + ExactSizeIterator + Clone + use<> {
        (0..self.len() as u32).map(FederationIndex)
    }

    /// The devices of a split, in the order of the table.
    pub fn split(&self, split: Split) -> Vec<FederationIndex> {
        let (wanted, splits) = (split as u8, &self.devices.split[..]);
        self.devices().filter(|&k| splits[k.place()] == wanted).collect()
    }

    /// By index, where the examples lie that each train device holds out: a device of its identity in the test split, as
    /// [`Federation::split_within`] makes one.
    ///
    /// ```
    /// use deltafl::data::{DeviceExamples, FederationBuilder, InputKind, Split};
    /// let mut builder = FederationBuilder::new("tiny", InputKind::Bytes { dim: 1 }, 2);
    /// builder.push("a", Split::Train, DeviceExamples::Bytes(&[1, 2]), &[0, 1]).unwrap();
    /// builder.push("a", Split::Test, DeviceExamples::Bytes(&[3]), &[0]).unwrap();
    /// builder.push("b", Split::Train, DeviceExamples::Bytes(&[4]), &[0]).unwrap();
    /// let places: Vec<_> = builder.build().held_out().iter().map(|k| k.map(|k| k.place())).collect();
    /// assert_eq!(places, [Some(1), None, None]);
    /// ```
    pub fn held_out(&self) -> Vec<Option<FederationIndex>> {
        let test: HashMap<&str, FederationIndex> =
            self.split(Split::Test).into_iter().map(|k| (self.id(k), k)).collect();
        let of_device = |k: FederationIndex| match self.split_of(k) {
            Split::Train if !test.is_empty() => test.get(self.id(k)).copied(),
            _ => None,
        };
        self.devices().map(of_device).collect()
    }

    /// The identity of a device.
    pub fn id(&self, device: FederationIndex) -> &str {
        self.devices.ids.value(device.place())
    }

    /// Which split a device belongs to.
    pub fn split_of(&self, device: FederationIndex) -> Split {
        match self.devices.split[device.place()] {
            0 => Split::Train,
            1 => Split::Test,
            _ => Split::Validation,
        }
    }

    /// n_k, the number of examples of a device: its weight α_k, unnormalised.
    pub fn example_count(&self, device: FederationIndex) -> u64 {
        self.devices.examples[device.place()]
    }

    /// Asks for the row of a device in the table to be brought near, without waiting for it.
    pub(crate) fn prefetch_row(&self, device: FederationIndex) {
        let k = device.place();
        prefetch(self.devices.ids.offset(k));
        prefetch(&self.devices.offset[k..][..1]);
        prefetch(&self.devices.examples[k..][..1]);
    }

    /// Asks for the name and the examples of a device to be brought near, without waiting for them.
    pub(crate) fn prefetch(&self, device: FederationIndex) {
        prefetch(self.devices.ids.value_bytes(device.place()));
        let examples = self.examples(device);
        match examples.inputs {
            DeviceInputs::Bytes { values, .. } => prefetch(values),
            DeviceInputs::Dense { values, .. } => prefetch(values),
            DeviceInputs::Tokens { ids, .. } => prefetch(ids),
            DeviceInputs::Windows { text, .. } => prefetch(text),
        }
        match examples.targets {
            DeviceTargets::Few(labels) => prefetch(labels),
            DeviceTargets::Many(labels) => prefetch(labels),
            DeviceTargets::Values(values) => prefetch(values),
            DeviceTargets::InText => {}
        }
    }

    /// The examples of a device, in O(1).
    pub fn examples(&self, device: FederationIndex) -> Examples<'_> {
        let start = self.devices.offset[device.place()] as usize;
        let len = self.devices.examples[device.place()] as usize;
        let inputs = match (&self.inputs, self.kind) {
            (InputColumn::Bytes(values), InputKind::Bytes { dim }) => {
                DeviceInputs::Bytes { values: &values[start * dim..(start + len) * dim], dim }
            }
            (InputColumn::Dense(values), InputKind::Dense { dim }) => {
                DeviceInputs::Dense { values: &values[start * dim..(start + len) * dim], dim }
            }
            (InputColumn::Tokens(ids), InputKind::Tokens { len: words, vocabulary }) => {
                let ids = &ids[start * words..(start + len) * words];
                DeviceInputs::Tokens { ids, len: words, highest: vocabulary.saturating_sub(1) as u32 }
            }
            (InputColumn::Text(text), InputKind::Windows { len: window, alphabet }) => {
                let text = &text[start..start + len + window];
                DeviceInputs::Windows { text, len: window, highest: alphabet.saturating_sub(1) as u8 }
            }
            _ => unreachable!("the column of inputs is of the kind the federation was built with"),
        };
        let targets = match &self.targets {
            TargetColumn::Few(labels) => DeviceTargets::Few(&labels[start..start + len]),
            TargetColumn::Many(labels) => DeviceTargets::Many(&labels[start..start + len]),
            TargetColumn::Values(values) => DeviceTargets::Values(&values[start..start + len]),
            TargetColumn::InText => DeviceTargets::InText,
        };
        Examples { inputs, targets, affine: self.affine.as_ref(), len, classes: self.classes() }
    }
}

impl Examples<'_> {
    /// Reads a byte of every page, so that a mapped file is in memory by the time the device trains.
    pub fn touch(&self) {
        const PAGE: usize = 4096;
        fn read<T: Copy>(values: &[T]) {
            let stride = PAGE / size_of::<T>();
            for value in values.iter().step_by(stride) {
                std::hint::black_box(*value);
            }
        }
        match self.inputs {
            DeviceInputs::Bytes { values, .. } => read(values),
            DeviceInputs::Dense { values, .. } => read(values),
            DeviceInputs::Tokens { ids, .. } => read(ids),
            DeviceInputs::Windows { text, .. } => read(text),
        }
        match self.targets {
            DeviceTargets::Few(labels) => read(labels),
            DeviceTargets::Many(labels) => read(labels),
            DeviceTargets::Values(values) => read(values),
            DeviceTargets::InText => {}
        }
    }

    /// Number of examples.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no example.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The class of example `i`, below the number of classes; 0 where targets are real numbers.
    ///
    /// Labels are checked when a federation is made, not when it is mapped. In a file that was changed since, a
    /// label out of range reads as the highest class, so that no model indexes outside its memory;
    /// [`Federation::verify`] finds such files.
    pub fn label(&self, i: usize) -> u32 {
        let label = match (self.targets, self.inputs) {
            (DeviceTargets::Few(labels), _) => u32::from(labels[i]),
            (DeviceTargets::Many(labels), _) => labels[i],
            (DeviceTargets::InText, DeviceInputs::Windows { text, len, .. }) => u32::from(text[i + len]),
            (DeviceTargets::Values(_) | DeviceTargets::InText, _) => 0,
        };
        label.min(self.classes.saturating_sub(1) as u32)
    }

    /// The real number of example `i`; its class where targets are classes.
    pub fn value(&self, i: usize) -> f32 {
        match self.targets {
            DeviceTargets::Values(values) => values[i],
            _ => self.label(i) as f32,
        }
    }
}
