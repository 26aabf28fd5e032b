//! The common options of all imports, and their final report.

use std::path::PathBuf;

use deltafl::data::{DeviceSplit, Split};
use deltafl_data::import::table::UNSEEN;
use deltafl_data::import::{ImportError, ImportTarget, Imported};
use deltafl_data::{Manifest, SaveError, TargetFormat};
use miette::{Report, Result};

use crate::error::bad_input;

/// The target of an import.
#[derive(clap::Args, Debug)]
pub(crate) struct TargetArgs {
    /// The federation folder to write
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// The name of the federation [default: the importer's name]
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

/// The split of the devices.
#[derive(clap::Args, Debug)]
pub(crate) struct SplitArgs {
    /// Fraction of train devices; the others are test devices
    #[arg(long, value_name = "FRACTION")]
    pub(crate) train: Option<f64>,
    /// Fraction of the train devices held out for validation
    #[arg(long, value_name = "FRACTION", default_value_t = 0.0)]
    pub(crate) validation: f64,
    /// Data seed of the split
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Keep the devices with more examples than this (LEAF's rule) [default: 0; emnist and
    /// shakespeare 100, sent140 50, as in the paper]
    #[arg(long, value_name = "N")]
    pub(crate) min_examples: Option<u64>,
    /// Keep a random fraction of the devices (the paper keeps half of EMNIST's writers)
    #[arg(long, default_value_t = 1.0, value_name = "FRACTION")]
    pub(crate) sample: f64,
}

impl SplitArgs {
    /// Returns the plan, with defaults for missing options.
    pub(crate) fn plan(&self, train: f64, min_examples: u64) -> DeviceSplit {
        DeviceSplit {
            train: self.train.unwrap_or(train),
            validation: self.validation,
            seed: self.seed,
            min_examples: self.min_examples.unwrap_or(min_examples),
            sample: self.sample,
        }
    }
}

impl TargetArgs {
    /// Returns the target. All devices are train devices unless a split was requested.
    pub(crate) fn target(&self, min_examples: u64) -> ImportTarget {
        ImportTarget {
            name: self.name.clone(),
            classes: self.classes,
            split: self.split.plan(1.0, min_examples),
            ..ImportTarget::new(&self.out)
        }
    }

    /// Reports the result of an import.
    pub(crate) fn report(&self, imported: Result<Imported, ImportError>) -> Result<()> {
        let imported = imported.map_err(import_error)?;
        report(&imported.manifest, &self.out, self.json)?;
        if self.json { Ok(()) } else { report_splits(&self.out) }
    }
}

/// Reports the contents of a folder.
pub(crate) fn report(manifest: &Manifest, out: &std::path::Path, json: bool) -> Result<()> {
    if json {
        let text = serde_json::to_string_pretty(manifest).expect("a manifest contains only plain values");
        println!("{text}");
        return Ok(());
    }
    let Manifest { name, devices, examples, .. } = manifest;
    println!("{}: {name}, {devices} devices, {examples} examples, {}", out.display(), targets(manifest));
    if let Some(what) = manifest.source.iter().find_map(|source| source.options.get("train and test parts")) {
        println!("  train and test parts: {what} (--keep-split keeps them apart)");
    }
    const TOLD: [&str; 7] = [
        "images",
        "resized",
        "colours",
        "missing values replaced",
        UNSEEN,
        "texts are cut after",
        "vocabulary",
    ];
    if let Some(source) = &manifest.source {
        for name in TOLD {
            if let Some(value) = source.options.get(name) {
                println!("  {name}: {value}");
            }
        }
    }
    if manifest.classes == 1 && manifest.targets != TargetFormat::F32 {
        println!("  warning: all examples have the same label, so there is nothing to predict");
    }
    for dropped in manifest.source.iter().flat_map(|source| &source.dropped) {
        println!("  left out: {} {}", dropped.count, dropped.reason);
    }
    Ok(())
}

/// Describes the targets: the number of classes, with their names if they have any.
fn targets(manifest: &Manifest) -> String {
    const NAMED: usize = 10;
    let (classes, names) = (manifest.classes, &manifest.class_names);
    match manifest.targets {
        TargetFormat::F32 => "numbers to predict".to_owned(),
        _ if names.is_empty() => format!("{classes} classes"),
        _ if names.len() <= NAMED => format!("{classes} classes ({})", names.join(", ")),
        _ => format!("{classes} classes ({}, …)", names[..NAMED].join(", ")),
    }
}

/// Reports the split of the devices in a folder, and how to split them if there are no test
/// devices.
fn report_splits(out: &std::path::Path) -> Result<()> {
    let federation = deltafl_data::open(out).map_err(|error| bad_input(error.to_string()))?;
    let count = |split| federation.split(split).len();
    let (train, test, validation) = (count(Split::Train), count(Split::Test), count(Split::Validation));
    println!("  {train} train, {test} test, {validation} validation devices");
    if test == 0 {
        println!(
            "  no test devices: give --train 0.5 here, split = {{ train = 0.5 }} under [data] in the experiment, or\n  \
             split = {{ within = {{ train = 0.8 }} }} to hold back examples of each device"
        );
    }
    Ok(())
}

/// Classifies the error: an invalid file is invalid input, a full disk is not.
pub(crate) fn import_error(error: ImportError) -> Report {
    match error {
        ImportError::Save(error) => save_error(error),
        error => match error.help() {
            Some(help) => bad_input(error.to_string()).help(help).into(),
            None => bad_input(error.to_string()).into(),
        },
    }
}

/// Converts the error of a folder that cannot be written.
pub(crate) fn save_error(error: SaveError) -> Report {
    match error {
        SaveError::Io { .. } => miette::miette!("{error}"),
        error => bad_input(error.to_string()).into(),
    }
}
