//! The origin of a federation.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// The origin of a federation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provenance {
    /// The importer or generator.
    pub importer: String,
    /// The files that were read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
    /// Preprocessing: each option with its value.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub options: BTreeMap<String, String>,
    /// The omitted data, and the reasons.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dropped: Vec<Dropped>,
}

/// Data that an importer omitted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dropped {
    /// The kind of data and the reason.
    pub reason: String,
    /// The number.
    pub count: u64,
}

impl Provenance {
    /// An importer that has read nothing yet.
    pub fn new(importer: &str) -> Self {
        Self { importer: importer.to_owned(), ..Self::default() }
    }

    /// Records a file that was read.
    pub fn file(&mut self, path: &Path) {
        let name = path.file_name().unwrap_or(path.as_os_str());
        self.files.push(name.to_string_lossy().into_owned());
    }

    /// Records an option of the preprocessing.
    pub fn option(&mut self, name: &str, value: impl ToString) {
        self.options.insert(name.to_owned(), value.to_string());
    }

    /// Records omitted data, if there is any.
    pub fn dropped(&mut self, reason: &str, count: u64) {
        if count > 0 {
            self.dropped.push(Dropped { reason: reason.to_owned(), count });
        }
    }
}
