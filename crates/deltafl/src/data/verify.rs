//! Verification of the contents of a federation.

use std::collections::HashSet;

use super::check::{DeviceExamples, InvalidDevice, Shape};
use super::{DeviceInputs, DeviceTargets, Federation, FederationIndex, StoredTargets};

/// The reason why the contents of a federation are invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unverified {
    /// A device is invalid.
    #[error(transparent)]
    Device(#[from] InvalidDevice),
    /// The contents were changed.
    #[error("the contents have BLAKE3 {got}, the manifest contains {expected}")]
    Hash {
        /// The hash in the manifest.
        expected: String,
        /// The computed hash.
        got: String,
    },
}

impl Federation {
    /// Reads everything, checks it as an importer would, and compares the hash.
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

    /// Returns the inputs and targets of a device as they were added.
    pub fn stored(&self, device: FederationIndex) -> (DeviceExamples<'_>, StoredTargets) {
        let targets = match self.examples(device).targets {
            DeviceTargets::Few(labels) => StoredTargets::Classes(labels.iter().map(|&y| y.into()).collect()),
            DeviceTargets::Many(labels) => StoredTargets::Classes(labels.to_vec()),
            DeviceTargets::Values(values) => StoredTargets::Values(values.to_vec()),
            DeviceTargets::InText => StoredTargets::Classes(Vec::new()),
        };
        (self.stored_inputs(device), targets)
    }

    /// Returns the inputs of a device as they were added.
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
    /// Returns the inputs in their memory layout.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(values) | Self::Text(values) => values,
            Self::Dense(values) => bytemuck::cast_slice(values),
            Self::Tokens(ids) => bytemuck::cast_slice(ids),
        }
    }
}
