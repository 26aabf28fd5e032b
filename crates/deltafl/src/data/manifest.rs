//! `federation.toml`: what a federation folder holds and where it came from.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{DeviceSplit, InputKind, OpenError};

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

/// Where a federation came from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// The importer or generator.
    pub importer: String,
    /// The files that were read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
    /// Preprocessing: each option with its value.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub options: BTreeMap<String, String>,
    /// What was left out, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dropped: Vec<Dropped>,
}

/// Something an importer left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dropped {
    /// What and why.
    pub reason: String,
    /// How many.
    pub count: u64,
}

impl Source {
    /// An importer that has read nothing yet.
    pub fn new(importer: &str) -> Self {
        Self { importer: importer.to_owned(), ..Self::default() }
    }

    /// Notes a file that was read.
    pub fn file(&mut self, path: &Path) {
        let name = path.file_name().unwrap_or(path.as_os_str());
        self.files.push(name.to_string_lossy().into_owned());
    }

    /// Notes an option of the preprocessing.
    pub fn option(&mut self, name: &str, value: impl ToString) {
        self.options.insert(name.to_owned(), value.to_string());
    }

    /// Notes what was left out, if anything.
    pub fn dropped(&mut self, reason: &str, count: u64) {
        if count > 0 {
            self.dropped.push(Dropped { reason: reason.to_owned(), count });
        }
    }
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
