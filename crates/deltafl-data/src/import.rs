//! Importers: data as others keep it, into a federation folder.
//!
//! Every importer checks what it reads (labels in range, finite features, no empty device, no identity twice in
//! a file), notes in the manifest what it left out and why, and on any error leaves nothing behind. Files may be
//! compressed with gzip, whatever they are called. Rows wait in an unnamed file beside the target until they are
//! put in the order of their devices: memory holds the ids and a few bytes per example, not the features.

use std::path::PathBuf;

use deltafl::data::{DeviceSplit, Federation, InputKind, Provenance, Split, TargetKind};

use super::writer::MOST_CLASSES;
use super::{FederationWriter, Heading, Manifest, SaveError};

mod delimited;
pub mod emnist;
mod encoding;
mod error;
mod features;
pub mod idx;
mod image;
mod input;
mod json;
pub mod leaf;
mod npy;
pub mod npz;
mod number;
pub mod parquet;
pub mod sent140;
pub mod shakespeare;
mod spool;
pub mod table;
mod text_spool;
mod tokens;
pub mod word_vectors;

pub use error::{Found, ImportError, Position, Problem};
pub use features::Features;
pub use tokens::tokens;

/// Where an import goes, and what every importer can be told.
#[derive(Clone, Debug)]
pub struct Target {
    /// The federation folder to write.
    pub out: PathBuf,
    /// What the federation is called; the importer's name when absent.
    pub name: Option<String>,
    /// Number of classes; one more than the highest label when absent.
    pub classes: Option<usize>,
    /// Which devices to keep and how to split them.
    pub split: DeviceSplit,
    /// Whether the targets are real numbers, to be predicted as such.
    pub regression: bool,
    /// Whether LEAF's `train` and `test` folders are kept apart, instead of one device made of both its parts.
    pub keep_split: bool,
}

impl Target {
    /// Every device, all of them train devices.
    pub fn new(out: impl Into<PathBuf>) -> Self {
        let split = DeviceSplit { train: 1.0, ..DeviceSplit::default() };
        Self { out: out.into(), name: None, classes: None, split, regression: false, keep_split: false }
    }

    /// The folder in which the target will lie.
    fn parent(&self) -> PathBuf {
        match self.out.parent() {
            Some(parent) if parent != std::path::Path::new("") => parent.to_owned(),
            _ => PathBuf::from("."),
        }
    }

    fn heading(&self, importer: &str, kind: InputKind, target: TargetKind) -> Heading {
        Heading { name: self.name.clone().unwrap_or_else(|| importer.to_owned()), kind, target }
    }

    /// The devices to keep, with their splits; the others are noted as dropped.
    fn roster(&self, counts: &[u64], source: &mut Provenance) -> Result<Vec<(usize, Split)>, ImportError> {
        let (kept, splits) = self.split.draw(counts)?;
        let bound = self.split.min_examples;
        let reason = format!("devices with no more than {bound} examples");
        source.dropped(&reason, (counts.len() - kept.len()) as u64);
        let examples: u64 = counts.iter().filter(|&&count| count <= bound).sum();
        source.dropped(&format!("examples of {reason}"), examples);
        Ok(kept.into_iter().zip(splits).collect())
    }

    /// The devices to keep, in the splits that the files name, where they do.
    fn given_roster(
        &self,
        counts: &[u64],
        splits: &[Option<Split>],
        source: &mut Provenance,
    ) -> Result<Vec<(usize, Split)>, ImportError> {
        if splits.iter().all(Option::is_none) {
            return self.roster(counts, source);
        }
        // Every device trains in the plan, so that only the small ones are left out.
        let all =
            Self { split: DeviceSplit { train: 1.0, validation: 0.0, ..self.split.clone() }, ..self.clone() };
        let kept = all.roster(counts, source)?;
        source.option("split", "as given");
        Ok(kept.into_iter().map(|(device, _)| (device, splits[device].unwrap_or(Split::Train))).collect())
    }

    /// Notes in the federation where it came from and how it was split, if it was.
    fn record(&self, writer: &mut FederationWriter, source: Provenance) {
        writer.source(source);
        if self.split != Self::new("").split {
            writer.device_split(self.split.clone());
        }
    }

    /// The number of classes, when every label lies below it.
    fn classes(&self, highest_label: u32) -> Result<usize, ImportError> {
        let classes = self.classes.unwrap_or(highest_label as usize + 1);
        match classes {
            0..=MOST_CLASSES => Ok(classes),
            _ => Err(SaveError::Classes { classes }.into()),
        }
    }
}

/// What an import made.
#[derive(Clone, Debug)]
pub struct Imported {
    /// The manifest that was written.
    pub manifest: Manifest,
    /// The folder.
    pub out: PathBuf,
}

impl Imported {
    /// Opens what was made.
    pub fn open(&self) -> Result<Federation, super::OpenError> {
        crate::open(&self.out)
    }
}
