//! What every import can be told, and what it says at the end.

use std::path::PathBuf;

use deltafl::data::DeviceSplit;
use deltafl_data::import::{ImportError, Imported, Target};
use deltafl_data::{Manifest, SaveError};
use miette::{Report, Result};

use crate::error::bad_input;

/// Where an import goes.
#[derive(clap::Args, Debug)]
pub(crate) struct TargetArgs {
    /// The federation folder to write
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// What the federation is called [default: the importer's name]
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Number of classes [default: one more than the highest label]
    #[arg(long, value_name = "N")]
    classes: Option<usize>,
    #[command(flatten)]
    pub(crate) split: SplitArgs,
    /// Print the manifest as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// How devices are split.
#[derive(clap::Args, Debug)]
pub(crate) struct SplitArgs {
    /// Fraction of the devices that train; the others are test devices
    #[arg(long, value_name = "FRACTION")]
    pub(crate) train: Option<f64>,
    /// Fraction of the train devices held out for validation
    #[arg(long, value_name = "FRACTION", default_value_t = 0.0)]
    pub(crate) validation: f64,
    /// Data seed of the split
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Keep the devices with more examples than this (LEAF's rule)
    #[arg(long, value_name = "N")]
    pub(crate) min_points: Option<u64>,
}

impl SplitArgs {
    /// The plan, with defaults for what was not given.
    pub(crate) fn plan(&self, train: f64, min_points: u64) -> DeviceSplit {
        DeviceSplit {
            train: self.train.unwrap_or(train),
            validation: self.validation,
            seed: self.seed,
            min_points: self.min_points.unwrap_or(min_points),
        }
    }
}

impl TargetArgs {
    /// The target; all devices train unless a split was asked for.
    pub(crate) fn target(&self, min_points: u64) -> Target {
        Target {
            name: self.name.clone(),
            classes: self.classes,
            split: self.split.plan(1.0, min_points),
            ..Target::new(&self.out)
        }
    }

    /// Says what was made.
    pub(crate) fn report(&self, imported: Result<Imported, ImportError>) -> Result<()> {
        let imported = imported.map_err(import_error)?;
        report(&imported.manifest, &self.out, self.json)
    }
}

/// Says what a folder holds now.
pub(crate) fn report(manifest: &Manifest, out: &std::path::Path, json: bool) -> Result<()> {
    if json {
        let text = serde_json::to_string_pretty(manifest).expect("a manifest is a table of plain values");
        println!("{text}");
        return Ok(());
    }
    let Manifest { name, devices, examples, classes, .. } = manifest;
    println!("{}: {name}, {devices} devices, {examples} examples, {classes} classes", out.display());
    for dropped in manifest.source.iter().flat_map(|source| &source.dropped) {
        println!("  left out: {} {}", dropped.count, dropped.reason);
    }
    Ok(())
}

/// A file that is wrong is bad input; a disk that is full is not.
pub(crate) fn import_error(error: ImportError) -> Report {
    match error {
        ImportError::Save(error) => save_error(error),
        error => bad_input(error.to_string()).into(),
    }
}

/// A folder that cannot be written.
pub(crate) fn save_error(error: SaveError) -> Report {
    match error {
        SaveError::Io { .. } => miette::miette!("{error}"),
        error => bad_input(error.to_string()).into(),
    }
}
