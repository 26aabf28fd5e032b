//! The `[data]` section.

use std::fmt;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::OpenError;
use deltafl::data::{Federation, InputKind, InvalidSplit, Normalise, synthetic};

use super::SplitSection;

/// The devices and their examples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataSection {
    /// A federation folder, or a synthetic federation.
    pub source: DataSource,
    /// A new split of the federation. If `None`, devices are split as stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split: Option<SplitSection>,
    /// The normalisation of features; if `None`, the columns of a table are standardised, and other
    /// features are used as stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub normalise: Option<Normalise>,
    /// Evaluates a fixed random sample of this many devices of each split; all devices if `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evaluate_sample: Option<NonZeroUsize>,
}

/// The source of the devices.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum DataSource {
    /// A federation folder.
    Folder(PathBuf),
    /// A synthetic federation, from a seed.
    Synthetic(synthetic::Spec),
    /// A federation in the memory of a program, under this name: written `"memory:NAME"`.
    #[serde(serialize_with = "in_memory")]
    Memory(String),
}

/// The prefix of a name in memory.
const MEMORY: &str = "memory:";

fn in_memory<S: Serializer>(name: &str, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{MEMORY}{name}"))
}

/// An error that occurs when the data of an experiment is loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The folder is not a federation.
    #[error("cannot open the federation {path}")]
    Open {
        /// The folder.
        path: PathBuf,
        /// The error of the folder.
        source: OpenError,
    },
    /// The data is only in the memory of another program.
    #[error("the federation {name} is only in the memory of the program that trains on it")]
    Memory {
        /// Its name.
        name: String,
    },
    /// Words or symbols cannot be normalised.
    #[error("[data] normalise is for features; the data contains words or symbols: leave it out")]
    Normalise,
    /// The devices cannot be split.
    #[error(transparent)]
    Split(#[from] InvalidSplit),
}

impl DataSection {
    /// Opens or generates the federation, splits and normalises it.
    pub fn load(&self) -> Result<Federation, LoadError> {
        let federation = match &self.source {
            DataSource::Folder(path) => {
                crate::open(path).map_err(|source| LoadError::Open { path: path.clone(), source })?
            }
            DataSource::Synthetic(spec) => spec.build(),
            DataSource::Memory(name) => return Err(LoadError::Memory { name: name.clone() }),
        };
        self.prepare(federation)
    }

    /// Splits, normalises and samples a federation.
    pub fn prepare(&self, federation: Federation) -> Result<Federation, LoadError> {
        let federation = match &self.split {
            Some(split) => split.apply(federation)?,
            None => federation,
        };
        let is_words = matches!(federation.kind(), InputKind::Tokens { .. } | InputKind::Windows { .. });
        if is_words && self.normalise.is_some_and(|normalise| normalise != Normalise::None) {
            return Err(LoadError::Normalise);
        }
        let normalise = self.normalisation(&federation);
        Ok(federation.normalised(normalise).evaluating(self.evaluate_sample))
    }

    /// Returns the normalisation of a federation: as given, or that of its kind of data.
    pub fn normalisation(&self, federation: &Federation) -> Normalise {
        let is_table = federation.coding().is_some() && matches!(federation.kind(), InputKind::Dense { .. });
        self.normalise.unwrap_or(if is_table { Normalise::Standard } else { Normalise::None })
    }

    /// The section for a content address. A file without a normalisation has the address of the
    /// files of earlier versions, in which it meant `none`. They wrote it out in their run folders,
    /// for which `is_old` is set.
    pub(super) fn canonical(&self, is_old: bool) -> Self {
        let is_folder = matches!(self.source, DataSource::Folder(_));
        let normalise = match self.normalise {
            None => Some(Normalise::None),
            Some(Normalise::None) if is_folder && !is_old => None,
            given => given,
        };
        Self { normalise, ..self.clone() }
    }

    /// Returns a short name for tables.
    pub fn name(&self) -> String {
        match &self.source {
            DataSource::Folder(path) => path
                .file_name()
                .map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into_owned()),
            DataSource::Synthetic(spec) => match toml::Table::try_from(spec) {
                Ok(table) => table["kind"].as_str().unwrap_or_default().to_owned(),
                Err(_) => String::new(),
            },
            DataSource::Memory(name) => name.clone(),
        }
    }
}

impl<'de> Deserialize<'de> for DataSource {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SourceVisitor)
    }
}

struct SourceVisitor;

impl<'de> Visitor<'de> for SourceVisitor {
    type Value = DataSource;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the path of a federation folder, or a table such as { kind = \"glyphs\" }")
    }

    fn visit_str<E: serde::de::Error>(self, path: &str) -> Result<DataSource, E> {
        Ok(match path.strip_prefix(MEMORY) {
            Some(name) => DataSource::Memory(name.to_owned()),
            None => DataSource::Folder(path.into()),
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<DataSource, A::Error> {
        synthetic::Spec::deserialize(MapAccessDeserializer::new(map)).map(DataSource::Synthetic)
    }
}
