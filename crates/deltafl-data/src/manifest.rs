//! `federation.toml`: what a federation folder holds and where it came from.

use std::fs;
use std::path::Path;

use deltafl::data::{DeviceSplit, InputKind, Source};
use serde::{Deserialize, Serialize};

use super::OpenError;

/// The version of the folder's format.
pub(crate) const FORMAT: u32 = 1;

/// Name of the file.
pub(crate) const FILE_NAME: &str = "federation.toml";

/// What a federation folder holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The version of the format: 1.
    pub format: u32,
    /// What the federation is called.
    pub name: String,
    /// Number of classes.
    pub classes: usize,
    /// Number of devices.
    pub devices: u64,
    /// Number of examples of all devices.
    pub examples: u64,
    /// BLAKE3 of the contents, in hexadecimal.
    pub hash: String,
    /// For windows: the symbols of the alphabet, in the order of their codes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub symbols: Option<String>,
    /// For tokens: entries per word vector.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub word_dim: Option<usize>,
    /// The kind and shape of an input.
    pub input: InputKind,
    /// How the devices were split.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split: Option<DeviceSplit>,
    /// Where the examples came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
}

impl Manifest {
    /// Reads the manifest of a federation folder.
    pub fn read(dir: &Path) -> Result<Self, OpenError> {
        let path = dir.join(FILE_NAME);
        let text =
            fs::read_to_string(&path).map_err(|source| OpenError::Io { path: path.clone(), source })?;
        let manifest: Self = toml::from_str(&text)
            .map_err(|source| OpenError::Manifest { path: path.clone(), source: Box::new(source) })?;
        if manifest.format != FORMAT {
            return Err(OpenError::Format { path, got: manifest.format });
        }
        Ok(manifest)
    }
}
