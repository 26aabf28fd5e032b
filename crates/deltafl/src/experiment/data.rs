//! The `[data]` section.

use std::fmt;
use std::path::PathBuf;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::Probability;
use crate::data::{Normalise, synthetic};

/// The devices and their examples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataSection {
    /// A federation folder, or a synthetic federation.
    pub source: Source,
    /// Splits the devices anew; without it they are split as stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split: Option<SplitSection>,
    /// How dense features are normalised.
    #[serde(default)]
    pub normalise: Normalise,
}

/// A split of the devices.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SplitSection {
    /// Share of the devices that train.
    pub train: Probability,
    /// The data seed.
    #[serde(default)]
    pub seed: u64,
    /// Devices with fewer examples are left out.
    #[serde(default)]
    pub min_points: u64,
}

/// Where the devices come from.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Source {
    /// A federation folder.
    Folder(PathBuf),
    /// Made up, from a seed.
    Synthetic(synthetic::Spec),
}

impl DataSection {
    /// A short name for tables.
    pub fn name(&self) -> String {
        match &self.source {
            Source::Folder(path) => path
                .file_name()
                .map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into_owned()),
            Source::Synthetic(spec) => match toml::Table::try_from(spec) {
                Ok(table) => table["kind"].as_str().unwrap_or_default().to_owned(),
                Err(_) => String::new(),
            },
        }
    }
}

impl<'de> Deserialize<'de> for Source {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SourceVisitor)
    }
}

struct SourceVisitor;

impl<'de> Visitor<'de> for SourceVisitor {
    type Value = Source;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the path of a federation folder, or a table such as { kind = \"glyphs\" }")
    }

    fn visit_str<E: serde::de::Error>(self, path: &str) -> Result<Source, E> {
        Ok(Source::Folder(path.into()))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Source, A::Error> {
        synthetic::Spec::deserialize(MapAccessDeserializer::new(map)).map(Source::Synthetic)
    }
}
