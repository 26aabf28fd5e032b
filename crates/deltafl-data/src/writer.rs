//! Federation folders, written device by device.
//!
//! Inputs go to disk as they come; the device table and the labels wait in memory. Everything is written to a
//! hidden folder beside the target, synced, and renamed at the end: there is never half a federation, and what
//! was begun is removed when the writer is dropped.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use deltafl::data::{
    ContentHash, DeviceExamples, DeviceSplit, FeatureColumn, Federation, InputKind, InvalidDevice,
    Provenance, Shape, Split, TargetBuffer, TargetKind, WordVectors,
};
use deltafl::task::Targets;

use super::arrow_file::{ArrowFileWriter, bytes_of};
use super::manifest::{self, Manifest, TargetFormat};
use super::open::{DEVICE_COLUMNS, DEVICES, EXAMPLES, WORDS, example_columns, word_columns};

/// Most classes of a federation: a model has a parameter or more for each.
pub(crate) const MOST_CLASSES: usize = 1 << 24;

/// Why a federation folder cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SaveError {
    /// A file that cannot be written.
    #[error("{path}: {source}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// There is something already.
    #[error("{path} exists already and is not empty: remove it or choose another folder")]
    Exists {
        /// The folder.
        path: PathBuf,
    },
    /// A device that is refused.
    #[error(transparent)]
    Device(#[from] InvalidDevice),
    /// Identities too long for 32-bit offsets.
    #[error("the device ids have more than 2 GiB in all")]
    IdsTooLong,
    /// Nothing to write.
    #[error("there is no device")]
    NoDevices,
    /// More classes or symbols than the columns can hold.
    #[error("{classes} classes do not fit: at most 16777216, and 256 for windows over a text")]
    Classes {
        /// Number of classes.
        classes: usize,
    },
}

/// What a federation is, apart from its devices.
#[derive(Clone, Debug)]
pub struct Heading {
    /// What it is called.
    pub name: String,
    /// The kind and shape of an input.
    pub kind: InputKind,
    /// What is to be predicted.
    pub target: TargetKind,
}

/// Writes a federation folder.
#[derive(Debug)]
pub struct FederationWriter {
    heading: Heading,
    target: PathBuf,
    partial: Partial,
    examples: ArrowFileWriter,
    seen: HashSet<(String, Split)>,
    table: Table,
    /// Symbols or examples written so far.
    rows: u64,
    targets: TargetBuffer,
    class_names: Vec<String>,
    features: Vec<FeatureColumn>,
    hash: ContentHash,
    symbols: Option<String>,
    word_dim: Option<usize>,
    source: Option<Provenance>,
    split: Option<DeviceSplit>,
}

#[derive(Debug, Default)]
struct Table {
    /// All ids, one after the other, and where each ends.
    ids: String,
    id_ends: Vec<i32>,
    split: Vec<u8>,
    offset: Vec<u64>,
    examples: Vec<u64>,
}

impl FederationWriter {
    /// Begins a federation that will lie in `target`, which must not exist or be an empty folder.
    pub fn create(target: impl AsRef<Path>, heading: Heading) -> Result<Self, SaveError> {
        let target = target.as_ref();
        let (classes, windows) =
            (heading.target.classes(), matches!(heading.kind, InputKind::Windows { .. }));
        if classes > if windows { 256 } else { MOST_CLASSES } {
            return Err(SaveError::Classes { classes });
        }
        let targets = TargetBuffer::new(heading.kind, heading.target);
        let partial = Partial::beside(target)?;
        let path = partial.path.join(EXAMPLES);
        let examples =
            ArrowFileWriter::create(&path, &example_columns(heading.kind, TargetFormat::of(heading.target)))
                .map_err(|source| SaveError::Io { path, source })?;
        Ok(Self {
            heading,
            target: target.to_owned(),
            partial,
            examples,
            seen: HashSet::new(),
            table: Table::default(),
            rows: 0,
            targets,
            class_names: Vec::new(),
            features: Vec::new(),
            hash: ContentHash::default(),
            symbols: None,
            word_dim: None,
            source: None,
            split: None,
        })
    }

    /// Where the federation came from.
    pub fn source(&mut self, source: Provenance) -> &mut Self {
        self.source = Some(source);
        self
    }

    /// How its devices were split.
    pub fn device_split(&mut self, split: DeviceSplit) -> &mut Self {
        self.split = Some(split);
        self
    }

    /// The names of the classes, in the order of their numbers.
    pub fn class_names(&mut self, names: Vec<String>) -> &mut Self {
        self.class_names = names;
        self
    }

    /// The columns that the features were made of.
    pub fn feature_columns(&mut self, columns: Vec<FeatureColumn>) -> &mut Self {
        self.features = columns;
        self
    }

    /// The symbols of the alphabet, for windows.
    pub fn symbols(&mut self, symbols: &str) -> &mut Self {
        self.symbols = Some(symbols.to_owned());
        self
    }

    /// The words of the vocabulary and their vectors, for tokens.
    pub fn words<'a>(
        &mut self,
        words: impl Iterator<Item = &'a str> + Clone,
        vectors: &WordVectors,
    ) -> Result<(), SaveError> {
        self.hash.words(words.clone(), &vectors.values);
        self.word_dim = Some(vectors.dim);
        let (mut text, mut ends) = (String::new(), Vec::new());
        for word in words {
            text.push_str(word);
            ends.push(i32::try_from(text.len()).map_err(|_| SaveError::IdsTooLong)?);
        }
        let path = self.partial.path.join(WORDS);
        let write = || {
            let mut file = ArrowFileWriter::create(&path, &word_columns(vectors.dim))?;
            write_strings(&mut file, &text, &ends)?;
            file.buffer(bytes_of(&vectors.values))?;
            file.finish(ends.len() as u64)
        };
        write().map_err(|source| SaveError::Io { path: path.clone(), source })
    }

    /// Adds a device; the federation is unchanged when it is refused.
    pub fn push<'a>(
        &mut self,
        id: &str,
        split: Split,
        inputs: DeviceExamples<'_>,
        targets: impl Into<Targets<'a>>,
    ) -> Result<(), SaveError> {
        let targets = targets.into();
        let shape = Shape { kind: self.heading.kind, targets: self.heading.target };
        let count = shape.count(id, inputs, targets)?;
        let key = (id.to_owned(), split);
        if self.seen.contains(&key) {
            return Err(InvalidDevice::Duplicate { id: id.to_owned() }.into());
        }
        self.table.push(id, split, self.rows, count as u64)?;
        self.seen.insert(key);
        self.hash.device(id, split as u8, count as u64);
        let bytes = inputs.bytes();
        self.hash.inputs(bytes);
        self.rows += match inputs {
            DeviceExamples::Text(text) => text.len(),
            _ => count,
        } as u64;
        let first = self.targets.len();
        self.targets.extend(targets);
        self.hash.targets(self.targets.bytes_from(first));
        self.examples.write(bytes).map_err(|source| self.partial.error(EXAMPLES, source))
    }

    /// Completes the folder and gives it its name.
    pub fn finish(mut self) -> Result<Manifest, SaveError> {
        if self.table.examples.is_empty() {
            return Err(SaveError::NoDevices);
        }
        let io = |name: &'static str| {
            let path = self.partial.path.join(name);
            move |source| SaveError::Io { path, source }
        };
        self.examples.end_buffer().map_err(io(EXAMPLES))?;
        if !matches!(self.heading.kind, InputKind::Windows { .. }) {
            self.examples.buffer(self.targets.bytes_from(0)).map_err(io(EXAMPLES))?;
        }
        self.examples.finish(self.rows).map_err(io(EXAMPLES))?;
        self.table.write(&self.partial.path.join(DEVICES)).map_err(io(DEVICES))?;
        let manifest = Manifest {
            format: manifest::FORMAT,
            hash: self.hash.finish(self.heading.kind, self.heading.target),
            name: self.heading.name,
            classes: self.heading.target.classes(),
            targets: TargetFormat::of(self.heading.target),
            class_names: self.class_names,
            devices: self.table.examples.len() as u64,
            examples: self.table.examples.iter().sum(),
            symbols: self.symbols,
            word_dim: self.word_dim,
            input: self.heading.kind,
            features: self.features,
            split: self.split,
            source: self.source,
        };
        let text = toml::to_string(&manifest).expect("a manifest is a table of plain values");
        write_synced(&self.partial.path.join(manifest::FILE_NAME), text.as_bytes())
            .map_err(io(manifest::FILE_NAME))?;
        self.partial.rename(&self.target)?;
        Ok(manifest)
    }
}

/// Writes a federation to a folder: the devices it has, in their order.
pub fn save(federation: &Federation, target: impl AsRef<Path>) -> Result<Manifest, SaveError> {
    let heading =
        Heading { name: federation.name().to_owned(), kind: federation.kind(), target: federation.targets() };
    let mut writer = FederationWriter::create(target, heading)?;
    writer.source = federation.source().cloned();
    writer.split = federation.device_split().cloned();
    writer.class_names = federation.class_names().to_vec();
    writer.features = federation.feature_columns().to_vec();
    writer.symbols = federation.symbols().map(str::to_owned);
    if let Some(vectors) = federation.vectors() {
        writer.words(federation.word_list(vectors), vectors)?;
    }
    for k in federation.devices() {
        let (inputs, targets) = federation.stored(k);
        writer.push(federation.id(k), federation.split_of(k), inputs, targets.lent())?;
    }
    writer.finish()
}

impl Table {
    fn push(&mut self, id: &str, split: Split, offset: u64, examples: u64) -> Result<(), SaveError> {
        let end = i32::try_from(self.ids.len() + id.len()).map_err(|_| SaveError::IdsTooLong)?;
        self.ids.push_str(id);
        self.id_ends.push(end);
        self.split.push(split as u8);
        self.offset.push(offset);
        self.examples.push(examples);
        Ok(())
    }

    fn write(&self, path: &Path) -> io::Result<()> {
        let mut file = ArrowFileWriter::create(path, &DEVICE_COLUMNS)?;
        write_strings(&mut file, &self.ids, &self.id_ends)?;
        file.buffer(&self.split)?;
        file.buffer(bytes_of(&self.offset))?;
        file.buffer(bytes_of(&self.examples))?;
        file.finish(self.examples.len() as u64)
    }
}

fn write_strings(file: &mut ArrowFileWriter, text: &str, ends: &[i32]) -> io::Result<()> {
    file.write(&0i32.to_le_bytes())?;
    file.buffer(bytes_of(ends))?;
    file.buffer(text.as_bytes())
}

fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// The hidden folder of a federation under way, removed unless it gets its name.
#[derive(Debug)]
struct Partial {
    path: PathBuf,
}

impl Partial {
    fn beside(target: &Path) -> Result<Self, SaveError> {
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| SaveError::Io { path, source }
        };
        if fs::read_dir(target).is_ok_and(|mut entries| entries.next().is_some()) || target.is_file() {
            return Err(SaveError::Exists { path: target.to_owned() });
        }
        let Some(name) = target.file_name() else {
            return Err(SaveError::Exists { path: target.to_owned() });
        };
        let parent = parent_of(target);
        fs::create_dir_all(parent).map_err(io(parent))?;
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}.partial", std::process::id()));
        let path = parent.join(hidden);
        fs::create_dir(&path).map_err(io(&path))?;
        Ok(Self { path })
    }

    fn rename(&self, target: &Path) -> Result<(), SaveError> {
        let parent = parent_of(target);
        let rename = || {
            sync_folder(&self.path)?;
            fs::rename(&self.path, target)?;
            sync_folder(parent)
        };
        rename().map_err(|source| SaveError::Io { path: target.to_owned(), source })
    }

    fn error(&self, name: &str, source: io::Error) -> SaveError {
        SaveError::Io { path: self.path.join(name), source }
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // After the rename there is nothing here; before it, what was begun is of no use to anybody.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// The folder in which a path lies.
fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

/// Makes the entries of a folder last; only Unix can, and needs to.
fn sync_folder(path: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(path)?.sync_all() } else { Ok(()) }
}
