//! Federations: devices and their examples.
//!
//! The examples of all devices are stored in a few flat columns, sorted by device. A device is an
//! offset and a number of examples. A [`Column`] is a vector in memory or a mapped file, so that a
//! million devices need an index and no heap. The crate `deltafl-data` contains folders, importers
//! and run folders.
//!
//! ```text
//! devices   id      split   offset  examples   inputs  [ x x x x x x x x x … ]
//!           "anna"  train   0       3                    ╰anna─╯ ╰─boris─╯
//!           "boris" test    3       4          labels  [ y y y y y y y y y … ]
//! ```

use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::Arc;

use crate::kernel::prefetch;

pub mod batch;
pub mod builder;
mod check;
mod column;
mod columns;
mod content_hash;
pub mod contract;
mod device_split;
mod evaluation_sample;
mod example_split;
mod from_columns;
mod groups;
pub mod normalise;
mod source;
mod summary;
pub mod synthetic;
mod table;
mod targets;
mod verify;

pub use batch::BatchBuffer;
pub use builder::FederationBuilder;
pub use check::{DeviceExamples, InvalidDevice, Shape};
pub use column::{Column, InvalidText, Number, TextColumn};
pub use content_hash::ContentHash;
pub use contract::DataContract;
pub use device_split::{DeviceSplit, InvalidSplit};
pub use example_split::{GivenSplit, WithinSplit};
pub use from_columns::{Columns, InvalidColumns};
pub(crate) use groups::DeviceGroups;
pub use groups::{InvalidGroups, MAX_GROUPS};
pub use normalise::{Affine, Normalise};
pub use source::{Dropped, Provenance};
pub use summary::{Bin, FederationSummary, Splits, Spread};
pub use table::{
    FeatureColumn, IgnoredColumn, ImageShape, MISSING, MissingRule, TableCoding, TextCoding, TextUnit,
};
pub(crate) use targets::DeviceTargets;
pub use targets::{StoredTargets, TargetBuffer, TargetColumn, TargetKind};
pub use verify::Unverified;

/// A device, as its index in the table of its federation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FederationIndex(pub u32);

impl FederationIndex {
    /// Returns its position in a list of all devices.
    pub fn place(self) -> usize {
        self.0 as usize
    }
}

/// The part of the population that a device belongs to.
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
    /// Returns its name in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Test => "test",
            Self::Validation => "validation",
        }
    }

    /// Returns the split of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Train, Self::Test, Self::Validation].into_iter().find(|split| split.name() == name)
    }
}

/// The kind and shape of one example's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum InputKind {
    /// `dim` grey levels in 0–255. A model receives value / 255.
    Bytes {
        /// Features per example.
        dim: usize,
    },
    /// `dim` real features.
    Dense {
        /// Features per example.
        dim: usize,
    },
    /// `len` words of a vocabulary. Word 0 represents padding and unknown words.
    Tokens {
        /// Words per example.
        len: usize,
        /// Number of words, padding included.
        vocabulary: usize,
    },
    /// Windows of `len` symbols over the device's text, with stride 1. The label is the next
    /// symbol.
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
    /// The texts of the devices, contiguously, a symbol per byte.
    Text(Column<u8>),
}

/// The devices, in the order of their examples.
#[derive(Clone, Debug)]
pub struct DeviceTable {
    /// Their identities.
    pub ids: TextColumn,
    /// Their splits, as numbers of [`Split`].
    pub split: Column<u8>,
    /// The first example of the device, or the first symbol of its text for windows.
    pub offset: Column<u64>,
    /// n_k, the number of examples.
    pub examples: Column<u64>,
}

/// Frozen word vectors, a row per word. Row 0 is zero.
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
    /// The names of the classes, if they have any.
    pub(crate) class_names: Vec<String>,
    /// The source columns of the features, if known.
    pub(crate) feature_columns: Vec<FeatureColumn>,
    /// The conversion of the table or images of origin, if known.
    pub(crate) coding: Option<TableCoding>,
    /// The words of the vocabulary. Word 0 is empty.
    pub(crate) words: Option<TextColumn>,
    pub(crate) vectors: Option<WordVectors>,
    /// The symbols of the alphabet, in the order of their codes.
    pub(crate) symbols: Option<String>,
    pub(crate) affine: Option<Affine>,
    pub(crate) source: Option<Provenance>,
    pub(crate) device_split: Option<DeviceSplit>,
    /// The declared groups of the devices, if there are any.
    pub(crate) groups: Option<Arc<DeviceGroups>>,
    /// The largest number of evaluated devices per split.
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
    /// Returns the name of the federation.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the kind and shape of an input.
    pub fn kind(&self) -> InputKind {
        self.kind
    }

    /// Returns the kind of target.
    pub fn targets(&self) -> TargetKind {
        self.target
    }

    /// Returns the number of classes. Labels are in `0..classes`. It is 0 for real-valued targets.
    pub fn classes(&self) -> usize {
        self.target.classes()
    }

    /// Returns the names of the classes in the order of their numbers, or an empty list.
    pub fn class_names(&self) -> &[String] {
        &self.class_names
    }

    /// Returns the name of a class, or its number if it has no name.
    pub fn class_name(&self, class: u32) -> String {
        self.class_names.get(class as usize).cloned().unwrap_or_else(|| class.to_string())
    }

    /// Returns the source columns of the features, if known.
    pub fn feature_columns(&self) -> &[FeatureColumn] {
        &self.feature_columns
    }

    /// Returns the conversion of the table or images of origin, if known.
    pub fn coding(&self) -> Option<&TableCoding> {
        self.coding.as_ref()
    }

    /// Returns the shape of the images, if the examples are images of known shape.
    pub fn image(&self) -> Option<ImageShape> {
        self.coding.as_ref()?.image
    }

    /// Returns BLAKE3 of the contents, in hexadecimal.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// Returns the frozen word vectors of a federation of words.
    pub fn vectors(&self) -> Option<&WordVectors> {
        self.vectors.as_ref()
    }

    /// Returns the words of the vocabulary, if known. Word 0 is empty.
    pub fn words(&self) -> Option<&TextColumn> {
        self.words.as_ref()
    }

    /// Returns the symbols of the alphabet in the order of their codes, if known.
    pub fn symbols(&self) -> Option<&str> {
        self.symbols.as_deref()
    }

    /// Where the federation came from, if it was imported.
    pub fn source(&self) -> Option<&Provenance> {
        self.source.as_ref()
    }

    /// Returns how its devices were split, if they were.
    pub fn device_split(&self) -> Option<&DeviceSplit> {
        self.device_split.as_ref()
    }

    /// Returns the number of devices of all splits.
    pub fn len(&self) -> usize {
        self.devices.examples.len()
    }

    /// Returns true if there are no devices.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns all devices in the order of the table.
    pub fn devices(
        &self,
    ) -> impl DoubleEndedIterator<Item = FederationIndex> + ExactSizeIterator + Clone + use<> {
        (0..self.len() as u32).map(FederationIndex)
    }

    /// Returns the devices of a split in the order of the table.
    pub fn split(&self, split: Split) -> Vec<FederationIndex> {
        let (wanted, splits) = (split as u8, &self.devices.split[..]);
        self.devices().filter(|&k| splits[k.place()] == wanted).collect()
    }

    /// Returns, by index, the device with the held-out examples of each train device: the device of
    /// the same identity in the test split, as created by [`Federation::split_within`].
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

    /// Returns the identity of a device.
    pub fn id(&self, device: FederationIndex) -> &str {
        self.devices.ids.value(device.place())
    }

    /// Returns the split of a device.
    pub fn split_of(&self, device: FederationIndex) -> Split {
        match self.devices.split[device.place()] {
            0 => Split::Train,
            1 => Split::Test,
            _ => Split::Validation,
        }
    }

    /// Returns n_k, the number of examples of a device: its weight α_k, unnormalised.
    pub fn example_count(&self, device: FederationIndex) -> u64 {
        self.devices.examples[device.place()]
    }

    /// Prefetches the row of a device in the table.
    pub(crate) fn prefetch_row(&self, device: FederationIndex) {
        let k = device.place();
        prefetch(self.devices.ids.offset(k));
        prefetch(&self.devices.offset[k..][..1]);
        prefetch(&self.devices.examples[k..][..1]);
    }

    /// Prefetches the name and the examples of a device.
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

    /// Returns the examples of a device, in O(1).
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
    /// Reads a byte of every page, so that a mapped file is in memory before the device trains.
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

    /// Returns the number of examples.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there are no examples.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the class of example `i`, below the number of classes, or 0 for real-valued targets.
    ///
    /// Labels are checked when a federation is created, not when it is mapped. If a file was
    /// changed afterwards, a label out of range is read as the highest class, so that no model
    /// indexes outside its memory. [`Federation::verify`] detects such files.
    pub fn label(&self, i: usize) -> u32 {
        let label = match (self.targets, self.inputs) {
            (DeviceTargets::Few(labels), _) => u32::from(labels[i]),
            (DeviceTargets::Many(labels), _) => labels[i],
            (DeviceTargets::InText, DeviceInputs::Windows { text, len, .. }) => u32::from(text[i + len]),
            (DeviceTargets::Values(_) | DeviceTargets::InText, _) => 0,
        };
        label.min(self.classes.saturating_sub(1) as u32)
    }

    /// Returns the real-valued target of example `i`, or its class.
    pub fn value(&self, i: usize) -> f32 {
        match self.targets {
            DeviceTargets::Values(values) => values[i],
            _ => self.label(i) as f32,
        }
    }
}
