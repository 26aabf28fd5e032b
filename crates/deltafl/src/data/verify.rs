//! Whether the contents of a federation are what they should be.

use std::collections::HashSet;

use super::check::{DeviceExamples, InvalidDevice, Shape};
use super::{DeviceInputs, DeviceTargets, Federation, FederationIndex, StoredTargets};

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
        let shape = Shape { kind: self.kind, targets: self.target };
        let mut seen = HashSet::with_capacity(self.len());
        for k in self.devices() {
            let (inputs, targets) = self.stored(k);
            shape.count(self.id(k), inputs, targets.lent())?;
            if !seen.insert((self.id(k), self.split_of(k))) {
                return Err(InvalidDevice::Duplicate { id: self.id(k).to_owned() }.into());
            }
        }
        let got = self.content_hash();
        if got == self.hash { Ok(()) } else { Err(Unverified::Hash { expected: self.hash.clone(), got }) }
    }

    /// What the columns hold of a device, as it was pushed: its inputs and its targets.
    pub fn stored(&self, device: FederationIndex) -> (DeviceExamples<'_>, StoredTargets) {
        let targets = match self.examples(device).targets {
            DeviceTargets::Few(labels) => StoredTargets::Classes(labels.iter().map(|&y| y.into()).collect()),
            DeviceTargets::Many(labels) => StoredTargets::Classes(labels.to_vec()),
            DeviceTargets::Values(values) => StoredTargets::Values(values.to_vec()),
            DeviceTargets::InText => StoredTargets::Classes(Vec::new()),
        };
        (self.stored_inputs(device), targets)
    }

    /// The inputs of a device, as they were pushed.
    pub fn stored_inputs(&self, device: FederationIndex) -> DeviceExamples<'_> {
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
