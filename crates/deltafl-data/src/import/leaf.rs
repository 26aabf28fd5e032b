//! LEAF's JSON shards: `{"users": […], "num_samples": […], "user_data": {ID: {"x": […], "y": […]}}}`.
//!
//! The keys may have any order. A shard is read once, sequentially, and is never in memory as a
//! whole. A device with examples in several files (LEAF's train and test parts) is one device: its
//! parts have the order of the files. An `x` is a list of numbers, nested or not, or a text whose
//! `y` is the next character.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use super::error::{ImportError, ImportProblem};
use super::features::{FeatureSpool, Features, MOST_FEATURES};
use super::json::JsonReader;
use super::shakespeare::{SYMBOLS, symbol};
use super::spool::{Spool, as_u32};
use super::{ImportTarget, Imported};
use crate::FederationWriter;
use crate::arrow_file::bytes_of;
use deltafl::data::{DeviceExamples, InputKind, Provenance, Split, TargetKind};

/// Imports shards: files, or folders with `*.json` files or with `train/` and `test/` folders of them.
pub fn import(paths: &[PathBuf], features: Features, target: &ImportTarget) -> Result<Imported, ImportError> {
    let files = shards(paths)?;
    let mut source = Provenance::new("leaf");
    files.iter().for_each(|file| source.file(file));
    if holds_text(&files[0])? {
        return import_text(&files, target, source);
    }
    if target.regression {
        return Err(ImportError::file(
            &files[0],
            ImportProblem::Nothing("classes: --regression is for tables and arrays"),
        ));
    }
    let mut sink = Numbers { rows: FeatureSpool::new(target, features)?, row: Vec::new(), split: None };
    for file in &files {
        sink.split = kept_split(file, target);
        read_shard(file, &mut sink)?;
    }
    note_folders(&files, target, &mut source);
    sink.rows.finish(target, source)
}

/// Returns the split of a shard, if LEAF's split is kept.
fn kept_split(file: &Path, target: &ImportTarget) -> Option<Split> {
    target.keep_split.then(|| split_of(file).unwrap_or(Split::Train))
}

/// Returns the split in LEAF's names: a folder `train` or `test`, or `…_train_9.json` and
/// `…_test_9.json`.
fn split_of(file: &Path) -> Option<Split> {
    let name = file.file_name()?.to_string_lossy();
    let folder = file.parent().and_then(Path::file_name).unwrap_or_default();
    if folder == "test" || name.contains("_test_") {
        Some(Split::Test)
    } else if folder == "train" || name.contains("_train_") {
        Some(Split::Train)
    } else {
        None
    }
}

/// Records that train and test parts were joined.
fn note_folders(files: &[PathBuf], target: &ImportTarget, source: &mut Provenance) {
    let holds = |split: Split| files.iter().any(|file| split_of(file) == Some(split));
    if holds(Split::Train) && holds(Split::Test) && !target.keep_split {
        source.option("train and test parts", "put together, device by device");
    }
}

/// Returns the shards of files and folders in order: train parts before test parts.
pub fn shards(paths: &[PathBuf]) -> Result<Vec<PathBuf>, ImportError> {
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let before = files.len();
        for folder in [path.clone(), path.join("train"), path.join("test")] {
            if folder.is_dir() {
                files.extend(json_files(&folder)?);
            }
        }
        if files.len() == before {
            return Err(ImportError::file(path, ImportProblem::Nothing("no .json or .json.gz files")));
        }
    }
    match files.is_empty() {
        true => Err(ImportError::file(Path::new("."), ImportProblem::Nothing("no shards"))),
        false => Ok(files),
    }
}

fn json_files(folder: &Path) -> Result<Vec<PathBuf>, ImportError> {
    let mut files = Vec::new();
    let entries = std::fs::read_dir(folder).map_err(|source| ImportError::file(folder, source))?;
    for entry in entries {
        let path = entry.map_err(|source| ImportError::file(folder, source))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.ends_with(".json") || name.ends_with(".json.gz") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Receives the examples of a shard.
pub(crate) trait ShardSink {
    /// Returns the index of the device whose examples follow.
    fn device(&mut self, id: &str) -> u32;
    /// Reads one element of `x`.
    fn example(&mut self, device: u32, json: &mut JsonReader) -> Result<(), ImportError>;
    /// Reads one element of `y`.
    fn label(&mut self, json: &mut JsonReader) -> Result<u32, ImportError>;
    /// Receives the labels of the device, after its examples.
    fn labels(&mut self, labels: &[u32]) -> Result<(), ImportError>;
}

/// Reads a shard sequentially.
pub(crate) fn read_shard(path: &Path, sink: &mut impl ShardSink) -> Result<(), ImportError> {
    let mut json = JsonReader::open(path)?;
    let (mut keys, mut users, mut counts) = (HashSet::new(), None, None);
    let mut found = HashMap::new();
    json.object(|json, key| {
        if !keys.insert(key.to_owned()) {
            return Err(json.error(ImportProblem::DuplicateKey(key.to_owned())));
        }
        match key {
            "users" => users = Some(read_users(json)?),
            "num_samples" => counts = Some(read_counts(json)?),
            "user_data" => json.object(|json, id| {
                let examples = read_device(json, id, sink)?;
                match found.insert(id.to_owned(), examples) {
                    None => Ok(()),
                    Some(_) => Err(json.error(ImportProblem::DuplicateDevice(id.to_owned()))),
                }
            })?,
            _ => json.skip()?,
        }
        Ok(())
    })?;
    json.end()?;
    if !keys.contains("user_data") {
        let problem = ImportProblem::Missing { what: "the key", name: "user_data".to_owned() };
        return Err(ImportError::file(path, problem));
    }
    check_counts(path, &users.unwrap_or_default(), &counts.unwrap_or_default(), &found)
}

fn read_users(json: &mut JsonReader) -> Result<Vec<String>, ImportError> {
    let mut users = Vec::new();
    json.array(|json| {
        users.push(String::new());
        json.string(users.last_mut().expect("one was pushed"))
    })?;
    Ok(users)
}

fn read_counts(json: &mut JsonReader) -> Result<Vec<u64>, ImportError> {
    let mut counts = Vec::new();
    json.array(|json| {
        counts.push(json.count()?);
        Ok(())
    })?;
    Ok(counts)
}

/// Checks the lists of users and counts, if there are any, against the data.
fn check_counts(
    path: &Path,
    users: &[String],
    counts: &[u64],
    found: &HashMap<String, u64>,
) -> Result<(), ImportError> {
    for (i, user) in users.iter().enumerate() {
        let Some(&got) = found.get(user) else {
            let problem = ImportProblem::Missing { what: "the data of device", name: user.clone() };
            return Err(ImportError::file(path, problem));
        };
        if let Some(&expected) = counts.get(i).filter(|&&expected| expected != got) {
            return Err(ImportError::file(
                path,
                ImportProblem::NumSamples { device: user.clone(), expected, got },
            ));
        }
    }
    Ok(())
}

/// Reads `{"x": […], "y": […]}`. Returns the number of examples.
fn read_device(json: &mut JsonReader, id: &str, sink: &mut impl ShardSink) -> Result<u64, ImportError> {
    if id.trim().is_empty() {
        return Err(json.error(ImportProblem::UnnamedDevice));
    }
    let device = sink.device(id);
    let (mut examples, mut labels) = (None, None);
    json.object(|json, key| {
        let is_new = match key {
            "x" => {
                let mut count = 0;
                json.array(|json| {
                    count += 1;
                    sink.example(device, json)
                })?;
                examples.replace(count).is_none()
            }
            "y" => {
                let mut list = Vec::new();
                json.array(|json| {
                    list.push(sink.label(json)?);
                    Ok(())
                })?;
                labels.replace(list).is_none()
            }
            _ => {
                json.skip()?;
                true
            }
        };
        if is_new { Ok(()) } else { Err(json.error(ImportProblem::DuplicateKey(key.to_owned()))) }
    })?;
    let (examples, labels) = (examples.unwrap_or_default(), labels.unwrap_or_default());
    if examples != labels.len() as u64 {
        let labels = labels.len() as u64;
        return Err(json.error(ImportProblem::Lengths { device: id.to_owned(), examples, labels }));
    }
    if examples == 0 {
        return Err(json.error(ImportProblem::EmptyDevice(id.to_owned())));
    }
    sink.labels(&labels)?;
    Ok(examples)
}

/// Examples that are lists of numbers.
struct Numbers {
    rows: FeatureSpool,
    row: Vec<f32>,
    split: Option<Split>,
}

impl ShardSink for Numbers {
    fn device(&mut self, id: &str) -> u32 {
        self.rows.spool.device_in(id, self.split)
    }

    fn example(&mut self, device: u32, json: &mut JsonReader) -> Result<(), ImportError> {
        self.row.clear();
        flatten(json, &mut self.row, 0)?;
        self.rows.check(&self.row).map_err(|problem| json.error(problem))?;
        self.rows.row(device, &self.row)
    }

    fn label(&mut self, json: &mut JsonReader) -> Result<u32, ImportError> {
        json.label()
    }

    fn labels(&mut self, labels: &[u32]) -> Result<(), ImportError> {
        labels.iter().for_each(|&label| self.rows.spool.label(label));
        Ok(())
    }
}

/// Reads a number, or the numbers of a list, nested or not.
fn flatten(json: &mut JsonReader, row: &mut Vec<f32>, depth: usize) -> Result<(), ImportError> {
    const DEEPEST: usize = 8;
    if json.peek()? != Some(b'[') {
        row.push(json.f32()?);
        return Ok(());
    }
    if depth == DEEPEST {
        return Err(json.error(ImportProblem::TooLong { what: "a nesting", limit: DEEPEST }));
    }
    json.array(|json| {
        if row.len() >= MOST_FEATURES {
            return Err(json.error(ImportProblem::TooLong { what: "an example", limit: MOST_FEATURES }));
        }
        match json.peek()? {
            Some(b'[') => flatten(json, row, depth + 1),
            _ => {
                row.push(json.f32()?);
                Ok(())
            }
        }
    })
}

/// Whether the examples of a shard are texts, according to the first one.
fn holds_text(path: &Path) -> Result<bool, ImportError> {
    struct Probe(Option<bool>);
    impl ShardSink for Probe {
        fn device(&mut self, _: &str) -> u32 {
            0
        }
        fn example(&mut self, _: u32, json: &mut JsonReader) -> Result<(), ImportError> {
            self.0 = Some(json.peek()? == Some(b'"'));
            // The result is known: any error ends the reading.
            Err(json.error(ImportProblem::Nothing("the probed example")))
        }
        fn label(&mut self, json: &mut JsonReader) -> Result<u32, ImportError> {
            json.skip().map(|()| 0)
        }
        fn labels(&mut self, _: &[u32]) -> Result<(), ImportError> {
            Ok(())
        }
    }
    let mut probe = Probe(None);
    let outcome = read_shard(path, &mut probe);
    match (probe.0, outcome) {
        (Some(is_text), _) => Ok(is_text),
        (None, Err(error)) => Err(error),
        (None, Ok(())) => Err(ImportError::file(path, ImportProblem::Nothing("no examples"))),
    }
}

/// Examples that are texts of one length, with the next character as label.
struct Texts {
    spool: Spool,
    text: String,
    row: Vec<u32>,
    len: Option<usize>,
    split: Option<Split>,
}

impl ShardSink for Texts {
    fn device(&mut self, id: &str) -> u32 {
        self.spool.device_in(id, self.split)
    }

    fn example(&mut self, device: u32, json: &mut JsonReader) -> Result<(), ImportError> {
        json.string(&mut self.text)?;
        self.row.clear();
        self.row.extend(self.text.chars().map(|c| u32::from(symbol(c))));
        let expected = *self.len.get_or_insert(self.row.len());
        if expected != self.row.len() || expected == 0 {
            return Err(json.error(ImportProblem::Dim { expected: expected.max(1), got: self.row.len() }));
        }
        self.spool.row(device, bytes_of(&self.row))
    }

    fn label(&mut self, json: &mut JsonReader) -> Result<u32, ImportError> {
        json.string(&mut self.text)?;
        let mut characters = self.text.chars();
        match (characters.next(), characters.next()) {
            (Some(character), None) => Ok(symbol(character).into()),
            _ => Err(json.error(ImportProblem::Label(format!("{:?}", self.text)))),
        }
    }

    fn labels(&mut self, labels: &[u32]) -> Result<(), ImportError> {
        labels.iter().for_each(|&label| self.spool.label(label));
        Ok(())
    }
}

fn import_text(
    files: &[PathBuf],
    target: &ImportTarget,
    mut source: Provenance,
) -> Result<Imported, ImportError> {
    let mut sink = Texts {
        spool: Spool::new(&target.parent())?,
        text: String::new(),
        row: Vec::new(),
        len: None,
        split: None,
    };
    for file in files {
        sink.split = kept_split(file, target);
        read_shard(file, &mut sink)?;
    }
    let kind = InputKind::Tokens { len: sink.len.unwrap_or_default(), vocabulary: SYMBOLS.len() };
    let mut sorted = sink.spool.finish()?;
    note_folders(files, target, &mut source);
    let roster = target.given_roster(&sorted.counts, &sorted.splits, &mut source)?;
    source.option("features", "characters");
    let heading = target.heading("leaf", kind, TargetKind::Classes(SYMBOLS.len()));
    let mut writer = FederationWriter::create(&target.out, heading)?;
    target.record(&mut writer, source);
    writer.symbols(SYMBOLS);
    let (mut bytes, mut labels, mut ids) = (Vec::new(), Vec::new(), Vec::new());
    for (device, split) in roster {
        sorted.load(device, &mut bytes, &mut labels)?;
        as_u32(&bytes, &mut ids);
        writer.push(&sorted.ids[device], split, DeviceExamples::Tokens(&ids), &labels)?;
    }
    Ok(Imported { manifest: writer.finish()?, out: target.out.clone() })
}
