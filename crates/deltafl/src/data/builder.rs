//! Federations built in memory, device by device.

use std::collections::HashSet;

use arrow_array::StringArray;
use arrow_buffer::ScalarBuffer;

use super::{DeviceTable, Federation, InputColumn, InputKind, Split, WordVectors};

/// The inputs of one device, of the kind the federation holds.
#[derive(Clone, Copy, Debug)]
pub enum DeviceExamples<'a> {
    /// Grey levels, `count × dim`.
    Bytes(&'a [u8]),
    /// Real features, `count × dim`.
    Dense(&'a [f32]),
    /// Words, `count × len`.
    Tokens(&'a [u32]),
    /// The device's text, a symbol per byte: `count + len` of them, and no labels.
    Text(&'a [u8]),
}

/// Why a device cannot join a federation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidDevice {
    /// No examples.
    #[error("device {id:?} has no examples")]
    Empty {
        /// The device.
        id: String,
    },
    /// The identity is taken.
    #[error("device {id:?} occurs twice")]
    Duplicate {
        /// The device.
        id: String,
    },
    /// The inputs do not fit the labels or the kind of the federation.
    #[error("device {id:?} has {got} input values where {expected} were expected")]
    Shape {
        /// The device.
        id: String,
        /// Values expected.
        expected: usize,
        /// Values found.
        got: usize,
    },
    /// The inputs are of another kind.
    #[error("device {id:?} has inputs of another kind than the federation")]
    Kind {
        /// The device.
        id: String,
    },
    /// A label out of range.
    #[error("device {id:?}, example {example}: label {label} is not below the number of classes, {classes}")]
    Label {
        /// The device.
        id: String,
        /// Index of the example.
        example: usize,
        /// The label.
        label: u32,
        /// Number of classes.
        classes: usize,
    },
    /// A token or symbol out of range.
    #[error("device {id:?}, example {example}: token {token} is not below {vocabulary}")]
    Token {
        /// The device.
        id: String,
        /// Index of the example, or of the symbol in a text.
        example: usize,
        /// The token.
        token: u32,
        /// Size of the vocabulary or the alphabet.
        vocabulary: usize,
    },
    /// A feature that is not finite.
    #[error("device {id:?}, example {example}: feature {feature} is not finite")]
    NonFinite {
        /// The device.
        id: String,
        /// Index of the example.
        example: usize,
        /// Index of the feature.
        feature: usize,
    },
}

/// Builds a [`Federation`] in memory.
#[derive(Debug)]
pub struct FederationBuilder {
    name: String,
    kind: InputKind,
    classes: usize,
    ids: Vec<String>,
    seen: HashSet<String>,
    split: Vec<u8>,
    offset: Vec<u64>,
    count: Vec<u64>,
    inputs: Column,
    labels: Vec<u16>,
    vectors: Option<WordVectors>,
}

#[derive(Debug)]
enum Column {
    Bytes(Vec<u8>),
    Dense(Vec<f32>),
    Tokens(Vec<u32>),
    Text(Vec<u8>),
}

impl FederationBuilder {
    /// An empty federation.
    pub fn new(name: &str, kind: InputKind, classes: usize) -> Self {
        let inputs = match kind {
            InputKind::Bytes { .. } => Column::Bytes(Vec::new()),
            InputKind::Dense { .. } => Column::Dense(Vec::new()),
            InputKind::Tokens { .. } => Column::Tokens(Vec::new()),
            InputKind::Windows { .. } => Column::Text(Vec::new()),
        };
        Self {
            name: name.to_owned(),
            kind,
            classes,
            ids: Vec::new(),
            seen: HashSet::new(),
            split: Vec::new(),
            offset: Vec::new(),
            count: Vec::new(),
            inputs,
            labels: Vec::new(),
            vectors: None,
        }
    }

    /// The frozen word vectors of the vocabulary.
    pub fn vectors(&mut self, vectors: WordVectors) -> &mut Self {
        self.vectors = Some(vectors);
        self
    }

    /// Adds a device; the federation is unchanged when it is refused.
    pub fn push(
        &mut self,
        id: &str,
        split: Split,
        inputs: DeviceExamples<'_>,
        labels: &[u32],
    ) -> Result<(), InvalidDevice> {
        let count = self.checked_count(id, inputs, labels)?;
        if !self.seen.insert(id.to_owned()) {
            return Err(InvalidDevice::Duplicate { id: id.to_owned() });
        }
        self.ids.push(id.to_owned());
        self.split.push(split as u8);
        self.count.push(count as u64);
        self.offset.push(match &self.inputs {
            Column::Text(text) => text.len() as u64,
            _ => self.labels.len() as u64,
        });
        self.labels.extend(labels.iter().map(|&label| label as u16));
        match (&mut self.inputs, inputs) {
            (Column::Bytes(column), DeviceExamples::Bytes(values)) => column.extend_from_slice(values),
            (Column::Dense(column), DeviceExamples::Dense(values)) => column.extend_from_slice(values),
            (Column::Tokens(column), DeviceExamples::Tokens(ids)) => column.extend_from_slice(ids),
            (Column::Text(column), DeviceExamples::Text(text)) => column.extend_from_slice(text),
            _ => unreachable!("checked_count refuses inputs of another kind"),
        }
        Ok(())
    }

    /// The federation.
    pub fn build(self) -> Federation {
        let mut federation = Federation {
            name: self.name,
            kind: self.kind,
            classes: self.classes,
            devices: DeviceTable {
                ids: StringArray::from(self.ids),
                split: ScalarBuffer::from(self.split),
                offset: ScalarBuffer::from(self.offset),
                count: ScalarBuffer::from(self.count),
            },
            inputs: match self.inputs {
                Column::Bytes(values) => InputColumn::Bytes(ScalarBuffer::from(values)),
                Column::Dense(values) => InputColumn::Dense(ScalarBuffer::from(values)),
                Column::Tokens(ids) => InputColumn::Tokens(ScalarBuffer::from(ids)),
                Column::Text(text) => InputColumn::Text(ScalarBuffer::from(text)),
            },
            labels: ScalarBuffer::from(self.labels),
            vectors: self.vectors,
            affine: None,
            hash: String::new(),
        };
        federation.hash = federation.content_hash();
        federation
    }

    /// The number of examples, when inputs and labels are what the federation holds.
    fn checked_count(
        &self,
        id: &str,
        inputs: DeviceExamples<'_>,
        labels: &[u32],
    ) -> Result<usize, InvalidDevice> {
        let id = || id.to_owned();
        let shape = |expected, got| {
            if expected == got { Ok(()) } else { Err(InvalidDevice::Shape { id: id(), expected, got }) }
        };
        let vocabulary_check =
            |tokens: &mut dyn Iterator<Item = u32>, vocabulary: usize, per_example: usize| {
                for (i, token) in tokens.enumerate() {
                    if token as usize >= vocabulary {
                        return Err(InvalidDevice::Token {
                            id: id(),
                            example: i / per_example,
                            token,
                            vocabulary,
                        });
                    }
                }
                Ok(())
            };
        let count = match (self.kind, inputs) {
            (InputKind::Bytes { dim }, DeviceExamples::Bytes(values)) => {
                shape(labels.len() * dim, values.len())?;
                labels.len()
            }
            (InputKind::Dense { dim }, DeviceExamples::Dense(values)) => {
                shape(labels.len() * dim, values.len())?;
                if let Some(i) = values.iter().position(|x| !x.is_finite()) {
                    return Err(InvalidDevice::NonFinite { id: id(), example: i / dim, feature: i % dim });
                }
                labels.len()
            }
            (InputKind::Tokens { len, vocabulary }, DeviceExamples::Tokens(ids)) => {
                shape(labels.len() * len, ids.len())?;
                vocabulary_check(&mut ids.iter().copied(), vocabulary, len)?;
                labels.len()
            }
            (InputKind::Windows { len, alphabet }, DeviceExamples::Text(text)) => {
                shape(0, labels.len())?;
                vocabulary_check(&mut text.iter().map(|&symbol| u32::from(symbol)), alphabet, 1)?;
                text.len().saturating_sub(len)
            }
            _ => return Err(InvalidDevice::Kind { id: id() }),
        };
        if count == 0 {
            return Err(InvalidDevice::Empty { id: id() });
        }
        match labels.iter().position(|&label| label as usize >= self.classes) {
            None => Ok(count),
            Some(example) => {
                Err(InvalidDevice::Label { id: id(), example, label: labels[example], classes: self.classes })
            }
        }
    }
}

impl Federation {
    /// BLAKE3 over the kind, the device table and the columns.
    pub(crate) fn content_hash(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        hasher.update(format!("{:?} {} {}", self.kind, self.classes, self.len()).as_bytes());
        for id in &self.devices.ids {
            hasher.update(id.unwrap_or_default().as_bytes()).update(&[0]);
        }
        let columns = [
            self.devices.split.inner(),
            self.devices.offset.inner(),
            self.devices.count.inner(),
            self.inputs.bytes(),
            self.labels.inner(),
        ];
        for column in columns {
            hasher.update(column.as_slice());
        }
        if let Some(vectors) = &self.vectors {
            hasher.update(vectors.values.inner().as_slice());
        }
        hasher.finalize().to_hex().to_string()
    }
}

impl InputColumn {
    /// The bytes of the column, as they lie in memory.
    pub(crate) fn bytes(&self) -> &arrow_buffer::Buffer {
        match self {
            Self::Bytes(values) | Self::Text(values) => values.inner(),
            Self::Dense(values) => values.inner(),
            Self::Tokens(ids) => ids.inner(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_device_leaves_the_federation_as_it_was() {
        let mut builder = FederationBuilder::new("t", InputKind::Bytes { dim: 2 }, 2);
        builder.push("a", Split::Train, DeviceExamples::Bytes(&[1, 2]), &[1]).unwrap();
        let push = |builder: &mut FederationBuilder, id, values: &[u8], labels: &[u32]| {
            builder.push(id, Split::Train, DeviceExamples::Bytes(values), labels).unwrap_err()
        };
        assert_eq!(push(&mut builder, "b", &[], &[]), InvalidDevice::Empty { id: "b".into() });
        assert_eq!(push(&mut builder, "a", &[1, 2], &[0]), InvalidDevice::Duplicate { id: "a".into() });
        assert!(matches!(push(&mut builder, "b", &[1], &[0]), InvalidDevice::Shape { .. }));
        assert!(matches!(push(&mut builder, "b", &[1, 2], &[2]), InvalidDevice::Label { label: 2, .. }));
        let federation = builder.build();
        assert_eq!((federation.len(), federation.count(0), federation.id(0)), (1, 1, "a"));
    }

    #[test]
    fn windows_take_their_labels_from_the_text() {
        let mut builder = FederationBuilder::new("t", InputKind::Windows { len: 2, alphabet: 5 }, 5);
        builder.push("a", Split::Train, DeviceExamples::Text(&[0, 1, 2, 3]), &[]).unwrap();
        builder.push("b", Split::Train, DeviceExamples::Text(&[4, 4, 1]), &[]).unwrap();
        let federation = builder.build();
        assert_eq!((federation.count(0), federation.count(1)), (2, 1));
        assert_eq!((federation.examples(0).label(1), federation.examples(1).label(0)), (3, 1));
    }
}
