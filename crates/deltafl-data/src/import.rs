//! Importers: read the formats of other programs and write a federation folder.
//!
//! Every importer checks its input: labels are in range, features are finite, no device is empty,
//! and no identity occurs twice in a file. The manifest lists the omitted parts with the reasons.
//! An error leaves no file behind. Files may be compressed with gzip; their names do not matter. An
//! unnamed temporary file contains the rows until they are sorted by device. Memory contains the
//! identities and a few bytes per example, but not the features.

use std::path::PathBuf;

use deltafl::data::{DeviceSplit, Federation, InputKind, Provenance, Split, TargetKind};

use super::writer::MOST_CLASSES;
use super::{FederationWriter, Heading, Manifest, SaveError};

mod arrow_rows;
pub mod auto;
pub(crate) mod cell;
mod delimited;
pub mod emnist;
mod encoding;
mod error;
mod fast_hash;
mod features;
pub mod idx;
mod image;
pub mod images;
mod input;
mod json;
mod json_lines;
pub mod leaf;
mod npy;
pub mod npz;
mod number;
pub mod parquet;
mod parquet_rows;
mod rows;
pub mod sent140;
pub mod shakespeare;
mod spool;
mod survey;
pub mod table;
mod text_units;
mod texts;
mod tokens;
pub mod word_vectors;

pub use error::{FilePosition, FoundItem, ImportError, ImportProblem};
pub use features::Features;
pub use tokens::tokens;

/// The target of an import, and the options of every importer.
#[derive(Clone, Debug)]
pub struct ImportTarget {
    /// The federation folder to write.
    pub out: PathBuf,
    /// The name of the federation; the name of the importer if `None`.
    pub name: Option<String>,
    /// Number of classes; one more than the highest label if `None`.
    pub classes: Option<usize>,
    /// The devices to keep, and their split.
    pub split: DeviceSplit,
    /// Whether the targets are real numbers.
    pub regression: bool,
    /// Whether the splits of LEAF's `train` and `test` folders are kept. Otherwise a device
    /// consists of both its parts.
    pub keep_split: bool,
}

impl ImportTarget {
    /// Keeps every device; all devices train.
    pub fn new(out: impl Into<PathBuf>) -> Self {
        let split = DeviceSplit { train: 1.0, ..DeviceSplit::default() };
        Self { out: out.into(), name: None, classes: None, split, regression: false, keep_split: false }
    }

    /// Returns the folder that contains the target.
    fn parent(&self) -> PathBuf {
        match self.out.parent() {
            Some(parent) if parent != std::path::Path::new("") => parent.to_owned(),
            _ => PathBuf::from("."),
        }
    }

    fn heading(&self, importer: &str, kind: InputKind, target: TargetKind) -> Heading {
        Heading { name: self.name.clone().unwrap_or_else(|| importer.to_owned()), kind, target }
    }

    /// Returns the devices to keep with their splits. The source lists the others as dropped.
    fn roster(&self, counts: &[u64], source: &mut Provenance) -> Result<Vec<(usize, Split)>, ImportError> {
        let (kept, splits) = self.split.draw(counts)?;
        let bound = self.split.min_examples;
        let reason = format!("devices with no more than {bound} examples");
        source.dropped(&reason, (counts.len() - kept.len()) as u64);
        let examples: u64 = counts.iter().filter(|&&count| count <= bound).sum();
        source.dropped(&format!("examples of {reason}"), examples);
        Ok(kept.into_iter().zip(splits).collect())
    }

    /// Returns the devices to keep, in the splits that the files name, if they name any.
    fn given_roster(
        &self,
        counts: &[u64],
        splits: &[Option<Split>],
        source: &mut Provenance,
    ) -> Result<Vec<(usize, Split)>, ImportError> {
        if splits.iter().all(Option::is_none) {
            return self.roster(counts, source);
        }
        // All devices train in this plan, so that it only drops the small ones.
        let all =
            Self { split: DeviceSplit { train: 1.0, validation: 0.0, ..self.split.clone() }, ..self.clone() };
        let kept = all.roster(counts, source)?;
        source.option("split", "as given");
        Ok(kept.into_iter().map(|(device, _)| (device, splits[device].unwrap_or(Split::Train))).collect())
    }

    /// Records the source of the federation, and its split if there is one.
    fn record(&self, writer: &mut FederationWriter, source: Provenance) {
        writer.source(source);
        if self.split != Self::new("").split {
            writer.device_split(self.split.clone());
        }
    }

    /// Returns the number of classes if every label is below it.
    fn classes(&self, highest_label: u32) -> Result<usize, ImportError> {
        let classes = self.classes.unwrap_or(highest_label as usize + 1);
        match classes {
            0..=MOST_CLASSES => Ok(classes),
            _ => Err(SaveError::Classes { classes }.into()),
        }
    }
}

/// The result of an import.
#[derive(Clone, Debug)]
pub struct Imported {
    /// The manifest that was written.
    pub manifest: Manifest,
    /// The folder.
    pub out: PathBuf,
}

impl Imported {
    fn new(manifest: Manifest, target: &ImportTarget) -> Self {
        Self { manifest, out: target.out.clone() }
    }

    /// Opens the federation.
    pub fn open(&self) -> Result<Federation, super::OpenError> {
        crate::open(&self.out)
    }
}
