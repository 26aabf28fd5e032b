//! Federations from existing columns.

use super::{
    DeviceSplit, DeviceTable, FeatureColumn, Federation, InputColumn, InputKind, Provenance, Split,
    TableCoding, TargetColumn, TargetKind, TextColumn, WordVectors,
};

/// The parts of a federation.
#[derive(Clone, Debug)]
pub struct Columns {
    /// The name of the federation.
    pub name: String,
    /// The kind and shape of an input.
    pub kind: InputKind,
    /// The kind of target.
    pub target: TargetKind,
    /// The devices.
    pub devices: DeviceTable,
    /// The inputs of all devices.
    pub inputs: InputColumn,
    /// One target per example.
    pub targets: TargetColumn,
    /// The names of the classes, if they have any.
    pub class_names: Vec<String>,
    /// The source columns of the features, if known.
    pub feature_columns: Vec<FeatureColumn>,
    /// The conversion of the table or images of origin, if known.
    pub coding: Option<TableCoding>,
    /// The words of the vocabulary. Word 0 is empty.
    pub words: Option<TextColumn>,
    /// The vectors of the words.
    pub vectors: Option<WordVectors>,
    /// The symbols of the alphabet, in the order of their codes.
    pub symbols: Option<String>,
    /// Where the examples came from.
    pub source: Option<Provenance>,
    /// How the devices were split.
    pub device_split: Option<DeviceSplit>,
    /// BLAKE3 of the contents, in hexadecimal. [`Federation::verify`] compares it.
    pub hash: String,
}

/// The reason why columns do not form a federation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidColumns {
    /// The inputs are of a different kind, or the columns of the device table differ in length.
    #[error("the columns do not fit together")]
    Shape,
    /// A device has no examples, examples outside the columns, or no valid split.
    #[error("device {device} points outside the examples, or has none, or has split {split}")]
    Device {
        /// Row of the device.
        device: usize,
        /// Its split.
        split: u8,
    },
}

impl Federation {
    /// Creates the federation of these columns and checks its device table. O(devices).
    pub fn from_columns(columns: Columns) -> Result<Self, InvalidColumns> {
        let rows = columns.rows().ok_or(InvalidColumns::Shape)?;
        let table = &columns.devices;
        let devices = table.examples.len();
        if [table.ids.len(), table.split.len(), table.offset.len()].iter().any(|&len| len != devices) {
            return Err(InvalidColumns::Shape);
        }
        if let Some(device) = table.first_invalid(columns.kind, rows as u64) {
            return Err(InvalidColumns::Device { device, split: table.split[device] });
        }
        Ok(Self {
            name: columns.name,
            kind: columns.kind,
            target: columns.target,
            devices: columns.devices,
            inputs: columns.inputs,
            targets: columns.targets,
            class_names: columns.class_names,
            feature_columns: columns.feature_columns,
            coding: columns.coding,
            words: columns.words,
            vectors: columns.vectors,
            symbols: columns.symbols,
            affine: None,
            source: columns.source,
            device_split: columns.device_split,
            groups: None,
            evaluation_sample: None,
            hash: columns.hash,
        })
    }
}

impl Columns {
    /// Returns the number of examples, or symbols of a text, in the columns. `None` if inputs are
    /// of a different kind.
    fn rows(&self) -> Option<usize> {
        let inputs = match (&self.inputs, self.kind) {
            (InputColumn::Bytes(values), InputKind::Bytes { dim }) => values.len() / dim.max(1),
            (InputColumn::Dense(values), InputKind::Dense { dim }) => values.len() / dim.max(1),
            (InputColumn::Tokens(ids), InputKind::Tokens { len, .. }) => ids.len() / len.max(1),
            (InputColumn::Text(text), InputKind::Windows { .. }) => text.len(),
            _ => return None,
        };
        let windows = matches!(self.kind, InputKind::Windows { .. });
        let targets = match (&self.targets, self.target) {
            (TargetColumn::Few(labels), TargetKind::Classes(_)) => labels.len(),
            (TargetColumn::Many(labels), TargetKind::Classes(_)) => labels.len(),
            (TargetColumn::Values(values), TargetKind::Values) => values.len(),
            (TargetColumn::InText, TargetKind::Classes(_)) if windows => usize::MAX,
            _ => return None,
        };
        Some(inputs.min(targets))
    }
}

impl DeviceTable {
    /// Returns the first device without examples, with examples outside `rows`, or without a valid
    /// split.
    fn first_invalid(&self, kind: InputKind, rows: u64) -> Option<usize> {
        let window = match kind {
            InputKind::Windows { len, .. } => len as u64,
            _ => 0,
        };
        let (offset, count, split) = (&self.offset[..], &self.examples[..], &self.split[..]);
        let valid = |k: usize| {
            let end = offset[k].saturating_add(count[k]).saturating_add(window);
            (count[k] > 0) & (end <= rows) & (split[k] <= Split::Validation as u8)
        };
        // Without an early exit, the check takes a few instructions per device.
        let all = (0..count.len()).fold(true, |all, k| all & valid(k));
        if all { None } else { (0..count.len()).find(|&k| !valid(k)) }
    }
}
