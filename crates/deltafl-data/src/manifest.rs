//! `federation.toml`: what a federation folder holds and where it came from.

use std::fs;
use std::path::Path;

use deltafl::data::{DeviceSplit, FeatureColumn, InputKind, Provenance, TargetKind};
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

/// What a federation folder holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The version of the format: 2.
    pub format: u32,
    /// What the federation is called.
    pub name: String,
    /// Number of classes; 0 where targets are real numbers.
    pub classes: usize,
    /// How targets are stored.
    #[serde(default, skip_serializing_if = "TargetFormat::is_u16")]
    pub targets: TargetFormat,
    /// The names of the classes, in the order of their numbers, where they have any.
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
    /// For tokens: entries per word vector.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub word_dim: Option<usize>,
    /// The kind and shape of an input.
    pub input: InputKind,
    /// The columns that the features were made of, where they are known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub features: Vec<FeatureColumn>,
    /// How the devices were split.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split: Option<DeviceSplit>,
    /// Where the examples came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Provenance>,
}

/// How the targets of a federation are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TargetFormat {
    /// Classes, two bytes each.
    #[default]
    U16,
    /// Classes, four bytes each: where there are more than 65,536.
    U32,
    /// Real numbers.
    F32,
}

impl TargetFormat {
    fn is_u16(&self) -> bool {
        *self == Self::U16
    }

    /// The format for these targets.
    pub fn of(target: TargetKind) -> Self {
        match target {
            TargetKind::Values => Self::F32,
            TargetKind::Classes(0..=0x1_0000) => Self::U16,
            TargetKind::Classes(_) => Self::U32,
        }
    }
}

impl Manifest {
    /// What is to be predicted.
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
        // The version first: a manifest of another one may have other keys.
        let Versioned { format } = toml::from_str(&text).map_err(invalid)?;
        if format != FORMAT {
            return Err(OpenError::Format { path, got: format });
        }
        toml::from_str(&text).map_err(invalid)
    }
}
