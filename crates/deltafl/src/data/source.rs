//! Where a federation came from.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Where a federation came from.
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

impl Provenance {
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
