//! Federations built in memory, device by device.

use std::collections::HashSet;

use super::check::{DeviceExamples, InvalidDevice, Shape};
use super::{
    DeviceTable, FeatureColumn, Federation, InputColumn, InputKind, Split, TableCoding, TargetBuffer,
    TargetKind, WordVectors,
};
use crate::task::Targets;

/// Builds a [`Federation`] in memory.
#[derive(Debug)]
pub struct FederationBuilder {
    name: String,
    kind: InputKind,
    target: TargetKind,
    ids: Vec<String>,
    seen: HashSet<(String, Split)>,
    split: Vec<u8>,
    offset: Vec<u64>,
    count: Vec<u64>,
    inputs: InputBuffer,
    targets: TargetBuffer,
    class_names: Vec<String>,
    feature_columns: Vec<FeatureColumn>,
    coding: Option<TableCoding>,
    words: Option<Vec<String>>,
    vectors: Option<WordVectors>,
    symbols: Option<String>,
}

#[derive(Debug)]
enum InputBuffer {
    Bytes(Vec<u8>),
    Dense(Vec<f32>),
    Tokens(Vec<u32>),
    Text(Vec<u8>),
}

impl FederationBuilder {
    /// Creates an empty federation.
    pub fn new(name: &str, kind: InputKind, classes: usize) -> Self {
        Self::with_target(name, kind, TargetKind::Classes(classes))
    }

    /// Creates an empty federation with real-valued targets.
    pub fn of_values(name: &str, kind: InputKind) -> Self {
        Self::with_target(name, kind, TargetKind::Values)
    }

    /// Creates an empty federation with this kind of target.
    pub fn with_target(name: &str, kind: InputKind, target: TargetKind) -> Self {
        let inputs = match kind {
            InputKind::Bytes { .. } => InputBuffer::Bytes(Vec::new()),
            InputKind::Dense { .. } => InputBuffer::Dense(Vec::new()),
            InputKind::Tokens { .. } => InputBuffer::Tokens(Vec::new()),
            InputKind::Windows { .. } => InputBuffer::Text(Vec::new()),
        };
        Self {
            name: name.to_owned(),
            kind,
            target,
            ids: Vec::new(),
            seen: HashSet::new(),
            split: Vec::new(),
            offset: Vec::new(),
            count: Vec::new(),
            inputs,
            targets: TargetBuffer::new(kind, target),
            class_names: Vec::new(),
            feature_columns: Vec::new(),
            coding: None,
            words: None,
            vectors: None,
            symbols: None,
        }
    }

    /// Sets the names of the classes, in the order of their numbers.
    pub fn class_names(&mut self, names: Vec<String>) -> &mut Self {
        self.class_names = names;
        self
    }

    /// Sets the source columns of the features.
    pub fn feature_columns(&mut self, columns: Vec<FeatureColumn>) -> &mut Self {
        self.feature_columns = columns;
        self
    }

    /// Sets the conversion of the table or images of origin.
    pub fn coding(&mut self, coding: TableCoding) -> &mut Self {
        self.coding = Some(coding);
        self
    }

    /// Sets the frozen word vectors of the vocabulary.
    pub fn vectors(&mut self, vectors: WordVectors) -> &mut Self {
        self.vectors = Some(vectors);
        self
    }

    /// Sets the words of the vocabulary. Word 0 is empty.
    pub fn words(&mut self, words: Vec<String>) -> &mut Self {
        self.words = Some(words);
        self
    }

    /// Sets the symbols of the alphabet, in the order of their codes.
    pub fn symbols(&mut self, symbols: &str) -> &mut Self {
        self.symbols = Some(symbols.to_owned());
        self
    }

    /// Adds a device.
    ///
    /// # Errors
    ///
    /// Returns an error if the device is invalid. The federation is then unchanged.
    pub fn push<'a>(
        &mut self,
        id: &str,
        split: Split,
        inputs: DeviceExamples<'_>,
        targets: impl Into<Targets<'a>>,
    ) -> Result<(), InvalidDevice> {
        let targets = targets.into();
        let shape = Shape { kind: self.kind, targets: self.target };
        let count = shape.count(id, inputs, targets)?;
        if !self.seen.insert((id.to_owned(), split)) {
            return Err(InvalidDevice::Duplicate { id: id.to_owned() });
        }
        self.ids.push(id.to_owned());
        self.split.push(split as u8);
        self.count.push(count as u64);
        self.offset.push(match &self.inputs {
            InputBuffer::Text(text) => text.len() as u64,
            _ => self.targets.len() as u64,
        });
        self.targets.extend(targets);
        match (&mut self.inputs, inputs) {
            (InputBuffer::Bytes(column), DeviceExamples::Bytes(values)) => column.extend_from_slice(values),
            (InputBuffer::Dense(column), DeviceExamples::Dense(values)) => column.extend_from_slice(values),
            (InputBuffer::Tokens(column), DeviceExamples::Tokens(ids)) => column.extend_from_slice(ids),
            (InputBuffer::Text(column), DeviceExamples::Text(text)) => column.extend_from_slice(text),
            _ => unreachable!("the shape refuses inputs of another kind"),
        }
        Ok(())
    }

    /// Returns true if no device has been added.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Returns the federation.
    pub fn build(self) -> Federation {
        let mut federation = Federation {
            name: self.name,
            kind: self.kind,
            target: self.target,
            devices: DeviceTable {
                ids: self.ids.into_iter().collect(),
                split: self.split.into(),
                offset: self.offset.into(),
                examples: self.count.into(),
            },
            inputs: match self.inputs {
                InputBuffer::Bytes(values) => InputColumn::Bytes(values.into()),
                InputBuffer::Dense(values) => InputColumn::Dense(values.into()),
                InputBuffer::Tokens(ids) => InputColumn::Tokens(ids.into()),
                InputBuffer::Text(text) => InputColumn::Text(text.into()),
            },
            targets: self.targets.into_column(),
            class_names: self.class_names,
            feature_columns: self.feature_columns,
            coding: self.coding,
            words: self.words.map(|words| words.into_iter().collect()),
            vectors: self.vectors,
            symbols: self.symbols,
            affine: None,
            source: None,
            device_split: None,
            groups: None,
            evaluation_sample: None,
            hash: String::new(),
        };
        federation.hash = federation.content_hash();
        federation
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::FederationIndex;

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
        assert_eq!(
            (
                federation.len(),
                federation.example_count(FederationIndex(0)),
                federation.id(FederationIndex(0))
            ),
            (1, 1, "a")
        );
    }

    #[test]
    fn a_device_may_stand_in_two_splits_and_twice_in_none() {
        let mut builder = FederationBuilder::of_values("t", InputKind::Dense { dim: 1 });
        let mut push = |split| builder.push("a", split, DeviceExamples::Dense(&[1.0]), &[0.5f32]);
        push(Split::Train).unwrap();
        push(Split::Test).unwrap();
        assert_eq!(push(Split::Test).unwrap_err(), InvalidDevice::Duplicate { id: "a".into() });
        let refused = builder.push("b", Split::Test, DeviceExamples::Dense(&[1.0]), &[1u32]).unwrap_err();
        assert_eq!(refused, InvalidDevice::Targets { id: "b".into() });
        let federation = builder.build();
        assert_eq!(
            (federation.targets(), federation.examples(FederationIndex(1)).value(0)),
            (TargetKind::Values, 0.5)
        );
        federation.verify().unwrap();
    }

    #[test]
    fn windows_take_their_labels_from_the_text() {
        let mut builder = FederationBuilder::new("t", InputKind::Windows { len: 2, alphabet: 5 }, 5);
        builder.push("a", Split::Train, DeviceExamples::Text(&[0, 1, 2, 3]), Targets::IN_TEXT).unwrap();
        builder.push("b", Split::Train, DeviceExamples::Text(&[4, 4, 1]), Targets::IN_TEXT).unwrap();
        let federation = builder.build();
        assert_eq!(
            (federation.example_count(FederationIndex(0)), federation.example_count(FederationIndex(1))),
            (2, 1)
        );
        assert_eq!(
            (
                federation.examples(FederationIndex(0)).label(1),
                federation.examples(FederationIndex(1)).label(0)
            ),
            (3, 1)
        );
    }
}
