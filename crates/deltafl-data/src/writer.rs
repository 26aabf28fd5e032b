//! Writes federation folders device by device.
//!
//! Inputs are written to disk immediately. The device table and the labels stay in memory until the
//! end. All files are written to a hidden folder next to the target, synced, and renamed at the
//! end. An incomplete federation is never visible, and the writer removes the hidden folder when it
//! is dropped.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use deltafl::data::{
    ContentHash, DeviceExamples, DeviceSplit, FeatureColumn, Federation, InputKind, InvalidDevice,
    Provenance, Shape, Split, TableCoding, TargetBuffer, TargetKind, WordVectors,
};
use deltafl::task::Targets;

use super::arrow_file::{ArrowFileWriter, bytes_of};
use super::manifest::{self, Manifest, TargetFormat};
use super::open::{DEVICE_COLUMNS, DEVICES, EXAMPLES, WORDS, example_columns, word_columns};

/// Most classes of a federation: a model has at least one parameter for each.
pub(crate) const MOST_CLASSES: usize = 1 << 24;

/// An error that occurs when a federation folder is written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SaveError {
    /// A file cannot be written.
    #[error("{path}: {source}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The folder exists and is not empty.
    #[error("{path} exists already and is not empty: remove it or choose another folder")]
    Exists {
        /// The folder.
        path: PathBuf,
    },
    /// A device is invalid.
    #[error(transparent)]
    Device(#[from] InvalidDevice),
    /// The identities are too long for 32-bit offsets.
    #[error("the device ids have more than 2 GiB in all")]
    IdsTooLong,
    /// There is no device.
    #[error("there is no device")]
    NoDevices,
    /// There are more classes or symbols than the columns can contain.
    #[error("{classes} classes do not fit: at most 16777216, and 256 for windows over a text")]
    Classes {
        /// Number of classes.
        classes: usize,
    },
}

/// The properties of a federation, without its devices.
#[derive(Clone, Debug)]
pub struct Heading {
    /// The name of the federation.
    pub name: String,
    /// The kind and shape of an input.
    pub kind: InputKind,
    /// The kind of targets.
    pub target: TargetKind,
}

/// Writes a federation folder.
#[derive(Debug)]
pub struct FederationWriter {
    heading: Heading,
    target: PathBuf,
    partial: PartialFolder,
    examples: ArrowFileWriter,
    seen: HashSet<(String, Split)>,
    table: DeviceColumns,
    /// Symbols or examples written so far.
    rows: u64,
    targets: TargetBuffer,
    class_names: Vec<String>,
    features: Vec<FeatureColumn>,
    coding: Option<TableCoding>,
    hash: ContentHash,
    symbols: Option<String>,
    word_dim: Option<usize>,
    source: Option<Provenance>,
    split: Option<DeviceSplit>,
}

#[derive(Debug, Default)]
struct DeviceColumns {
    /// All identities, one after the other, and their ends.
    ids: String,
    id_ends: Vec<i32>,
    split: Vec<u8>,
    offset: Vec<u64>,
    examples: Vec<u64>,
}

impl FederationWriter {
    /// Starts a federation in `target`, which must not exist or be an empty folder.
    pub fn create(target: impl AsRef<Path>, heading: Heading) -> Result<Self, SaveError> {
        let target = target.as_ref();
        let (classes, windows) =
            (heading.target.classes(), matches!(heading.kind, InputKind::Windows { .. }));
        if classes > if windows { 256 } else { MOST_CLASSES } {
            return Err(SaveError::Classes { classes });
        }
        let targets = TargetBuffer::new(heading.kind, heading.target);
        let partial = PartialFolder::beside(target)?;
        let path = partial.path.join(EXAMPLES);
        let examples = ArrowFileWriter::create(
            &path,
            &example_columns(heading.kind, TargetFormat::for_targets(heading.target)),
        )
        .map_err(|source| SaveError::Io { path, source })?;
        Ok(Self {
            heading,
            target: target.to_owned(),
            partial,
            examples,
            seen: HashSet::new(),
            table: DeviceColumns::default(),
            rows: 0,
            targets,
            class_names: Vec::new(),
            features: Vec::new(),
            coding: None,
            hash: ContentHash::default(),
            symbols: None,
            word_dim: None,
            source: None,
            split: None,
        })
    }

    /// Sets the source of the federation.
    pub fn source(&mut self, source: Provenance) -> &mut Self {
        self.source = Some(source);
        self
    }

    /// Sets the split of its devices.
    pub fn device_split(&mut self, split: DeviceSplit) -> &mut Self {
        self.split = Some(split);
        self
    }

    /// Sets the names of the classes, in the order of their numbers.
    pub fn class_names(&mut self, names: Vec<String>) -> &mut Self {
        self.class_names = names;
        self
    }

    /// Sets the columns from which the features were computed.
    pub fn feature_columns(&mut self, columns: Vec<FeatureColumn>) -> &mut Self {
        self.features = columns;
        self
    }

    /// Sets the conversion of the table or images of origin.
    pub fn coding(&mut self, coding: TableCoding) -> &mut Self {
        self.coding = Some(coding);
        self
    }

    /// Sets the symbols of the alphabet, for windows.
    pub fn symbols(&mut self, symbols: &str) -> &mut Self {
        self.symbols = Some(symbols.to_owned());
        self
    }

    /// Writes the words of the vocabulary and their vectors, for tokens.
    pub fn words<'a>(
        &mut self,
        words: impl Iterator<Item = &'a str> + Clone,
        vectors: &WordVectors,
    ) -> Result<(), SaveError> {
        self.write_words(words, vectors.dim, &vectors.values)
    }

    /// Writes the words of the vocabulary, for tokens whose vectors are trained.
    pub fn word_list<'a>(&mut self, words: impl Iterator<Item = &'a str> + Clone) -> Result<(), SaveError> {
        self.write_words(words, 0, &[])
    }

    fn write_words<'a>(
        &mut self,
        words: impl Iterator<Item = &'a str> + Clone,
        dim: usize,
        vectors: &[f32],
    ) -> Result<(), SaveError> {
        self.hash.words(words.clone(), vectors);
        self.word_dim = Some(dim);
        let (mut text, mut ends) = (String::new(), Vec::new());
        for word in words {
            text.push_str(word);
            ends.push(i32::try_from(text.len()).map_err(|_| SaveError::IdsTooLong)?);
        }
        let path = self.partial.path.join(WORDS);
        let write = || {
            let mut file = ArrowFileWriter::create(&path, &word_columns(dim))?;
            write_strings(&mut file, &text, &ends)?;
            if dim > 0 {
                file.buffer(bytes_of(vectors))?;
            }
            file.finish(ends.len() as u64)
        };
        write().map_err(|source| SaveError::Io { path: path.clone(), source })
    }

    /// Adds a device. An invalid device leaves the federation unchanged.
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

    /// Completes the folder and renames it to the target.
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
            targets: TargetFormat::for_targets(self.heading.target),
            class_names: self.class_names,
            devices: self.table.examples.len() as u64,
            examples: self.table.examples.iter().sum(),
            symbols: self.symbols,
            word_dim: self.word_dim,
            input: self.heading.kind,
            features: self.features,
            table: self.coding,
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

/// Writes a federation with all its devices to a folder.
pub fn save(federation: &Federation, target: impl AsRef<Path>) -> Result<Manifest, SaveError> {
    let heading =
        Heading { name: federation.name().to_owned(), kind: federation.kind(), target: federation.targets() };
    let mut writer = FederationWriter::create(target, heading)?;
    writer.source = federation.source().cloned();
    writer.split = federation.device_split().cloned();
    writer.class_names = federation.class_names().to_vec();
    writer.features = federation.feature_columns().to_vec();
    writer.symbols = federation.symbols().map(str::to_owned);
    writer.coding = federation.coding().cloned();
    if let Some(vectors) = federation.vectors() {
        writer.words(federation.word_list(vectors), vectors)?;
    } else if let Some(words) = federation.words() {
        writer.word_list(words.iter())?;
    }
    for k in federation.devices() {
        let (inputs, targets) = federation.stored(k);
        writer.push(federation.id(k), federation.split_of(k), inputs, targets.lent())?;
    }
    writer.finish()
}

impl DeviceColumns {
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

/// The hidden folder of an incomplete federation, which is removed unless it is renamed.
#[derive(Debug)]
struct PartialFolder {
    path: PathBuf,
}

impl PartialFolder {
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

impl Drop for PartialFolder {
    fn drop(&mut self) {
        // After the rename the folder no longer exists; before it, an incomplete federation is
        // useless.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Returns the folder that contains a path.
fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

/// Syncs the entries of a folder; only Unix can and needs to.
fn sync_folder(path: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(path)?.sync_all() } else { Ok(()) }
}
