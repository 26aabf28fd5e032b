//! Whether the contents of a federation are what they should be.

use std::collections::HashSet;

use super::check::{DeviceExamples, InvalidDevice, Shape};
use super::{DeviceInputs, Federation, InputKind};

/// Why the contents of a federation are not what they should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unverified {
    /// A device that could not have been written.
    #[error(transparent)]
    Device(#[from] InvalidDevice),
    /// The contents were changed.
    #[error("the contents have BLAKE3 {got}, the manifest says {expected}")]
    Hash {
        /// As the manifest says.
        expected: String,
        /// As found.
        got: String,
    },
}

impl Federation {
    /// Reads everything and checks it as if it were imported again, and its hash.
    pub fn verify(&self) -> Result<(), Unverified> {
        let shape = Shape { kind: self.kind, classes: self.classes };
        let mut seen = HashSet::with_capacity(self.len());
        for k in 0..self.len() as u32 {
            let (inputs, labels) = self.stored(k);
            shape.count(self.id(k), inputs, &labels)?;
            if !seen.insert(self.id(k)) {
                return Err(InvalidDevice::Duplicate { id: self.id(k).to_owned() }.into());
            }
        }
        let got = self.content_hash();
        if got == self.hash { Ok(()) } else { Err(Unverified::Hash { expected: self.hash.clone(), got }) }
    }

    /// What the columns hold of a device, as it was pushed: its inputs and its labels.
    pub fn stored(&self, device: u32) -> (DeviceExamples<'_>, Vec<u32>) {
        let start = self.devices.offset[device as usize] as usize;
        let labels = match self.kind {
            InputKind::Windows { .. } => &[][..],
            _ => &self.labels[start..start + self.devices.count[device as usize] as usize],
        };
        (self.stored_inputs(device), labels.iter().map(|&label| u32::from(label)).collect())
    }

    /// The inputs of a device, as they were pushed.
    pub fn stored_inputs(&self, device: u32) -> DeviceExamples<'_> {
        match self.examples(device).inputs {
            DeviceInputs::Bytes { values, .. } => DeviceExamples::Bytes(values),
            DeviceInputs::Dense { values, .. } => DeviceExamples::Dense(values),
            DeviceInputs::Tokens { ids, .. } => DeviceExamples::Tokens(ids),
            DeviceInputs::Windows { text, .. } => DeviceExamples::Text(text),
        }
    }
}

impl DeviceExamples<'_> {
    /// The inputs as they lie in memory.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(values) | Self::Text(values) => values,
            Self::Dense(values) => bytemuck::cast_slice(values),
            Self::Tokens(ids) => bytemuck::cast_slice(ids),
        }
    }
}
