//! `federation.toml`: the contents of a federation folder and their source.

use std::fs;
use std::path::Path;

use deltafl::data::{DeviceSplit, FeatureColumn, InputKind, Provenance, TableCoding, TargetKind};
use serde::{Deserialize, Serialize};

use super::OpenError;

/// The version of the folder's format.
pub(crate) const FORMAT: u32 = 2;

/// Name of the file.
pub(crate) const FILE_NAME: &str = "federation.toml";

/// The part of the file that every version has.
#[derive(Deserialize)]
struct Versioned {
    format: u32,
}

/// The contents of a federation folder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The version of the format: 2.
    pub format: u32,
    /// The name of the federation.
    pub name: String,
    /// Number of classes; 0 if targets are real numbers.
    pub classes: usize,
    /// The format of the targets.
    #[serde(default, skip_serializing_if = "TargetFormat::is_u16")]
    pub targets: TargetFormat,
    /// The names of the classes, in the order of their numbers, if they have names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub class_names: Vec<String>,
    /// Number of devices.
    pub devices: u64,
    /// Number of examples of all devices.
    pub examples: u64,
    /// BLAKE3 of the contents, in hexadecimal.
    pub hash: String,
    /// For windows: the symbols of the alphabet, in the order of their codes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub symbols: Option<String>,
    /// For tokens: entries per word vector; 0 if the words have no vectors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub word_dim: Option<usize>,
    /// The kind and shape of an input.
    pub input: InputKind,
    /// The columns from which the features were computed, if they are known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub features: Vec<FeatureColumn>,
    /// The conversion of the table or images of origin, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<TableCoding>,
    /// The split of the devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split: Option<DeviceSplit>,
    /// The source of the examples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Provenance>,
}

/// The format of the targets of a federation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TargetFormat {
    /// Classes, two bytes each.
    #[default]
    U16,
    /// Classes, four bytes each, for more than 65,536 classes.
    U32,
    /// Real numbers.
    F32,
}

impl TargetFormat {
    fn is_u16(&self) -> bool {
        *self == Self::U16
    }

    /// Returns the format for these targets.
    pub fn for_targets(target: TargetKind) -> Self {
        match target {
            TargetKind::Values => Self::F32,
            TargetKind::Classes(0..=0x1_0000) => Self::U16,
            TargetKind::Classes(_) => Self::U32,
        }
    }
}

impl Manifest {
    /// Returns the kind of targets.
    pub fn target(&self) -> TargetKind {
        match self.targets {
            TargetFormat::F32 => TargetKind::Values,
            TargetFormat::U16 | TargetFormat::U32 => TargetKind::Classes(self.classes),
        }
    }

    /// Reads the manifest of a federation folder.
    pub fn read(dir: &Path) -> Result<Self, OpenError> {
        let path = dir.join(FILE_NAME);
        let text =
            fs::read_to_string(&path).map_err(|source| OpenError::Io { path: path.clone(), source })?;
        let invalid = |source| OpenError::Manifest { path: path.clone(), source: Box::new(source) };
        // The version first: another version may have other keys.
        let Versioned { format } = toml::from_str(&text).map_err(invalid)?;
        if format != FORMAT {
            return Err(OpenError::Format { path, got: format });
        }
        toml::from_str(&text).map_err(invalid)
    }
}
