//! A federation folder, opened: mapped, not read.
//!
//! Opening checks the metadata and the device table, in O(devices), so that every device's examples lie
//! inside the columns. The examples themselves are not touched. A class or token out of range can only be in
//! a file that somebody changed; it is read as the highest valid one (see [`super::Examples::label`]), so that
//! no model indexes outside its memory, and [`Federation::verify`] tells.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};

use super::arrow_file::{ArrowFile, Column, ColumnType, InvalidArrowFile, Number};
use super::manifest::Manifest;
use super::mapped::map;
use super::{DeviceTable, Federation, InputColumn, InputKind, InvalidDevice, Split, WordVectors, check};

pub(crate) const DEVICES: &str = "devices.arrow";
pub(crate) const EXAMPLES: &str = "examples.arrow";
pub(crate) const WORDS: &str = "words.arrow";

/// Why a federation folder cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// A file that cannot be read.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A manifest that is none.
    #[error("{path}: {source}")]
    Manifest {
        /// The file.
        path: PathBuf,
        /// What and where.
        source: Box<toml::de::Error>,
    },
    /// A format that we do not know.
    #[error("{path}: format {got} is not known to this version; it reads format 1")]
    Format {
        /// The file.
        path: PathBuf,
        /// Its format.
        got: u32,
    },
    /// A kind of input that nothing can have.
    #[error("{path}: {what} must be at least 1 and at most {most}, got {got}")]
    Shape {
        /// The file.
        path: PathBuf,
        /// Which number.
        what: &'static str,
        /// Its bound.
        most: usize,
        /// The number.
        got: usize,
    },
    /// A damaged file.
    #[error("{path}: {source}")]
    Arrow {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: InvalidArrowFile,
    },
    /// The device table and the examples do not fit together.
    #[error("{path}: device {device} points outside the examples, or has none, or has split {split}")]
    Device {
        /// The file.
        path: PathBuf,
        /// Row of the device.
        device: usize,
        /// Its split: 0 train, 1 test, 2 validation.
        split: u8,
    },
    /// The files and the manifest do not fit together.
    #[error("{path}: holds {got} {what}, the manifest says {expected}")]
    Count {
        /// The file.
        path: PathBuf,
        /// Devices or words.
        what: &'static str,
        /// As the manifest says.
        expected: u64,
        /// As found.
        got: u64,
    },
}

/// Why the contents of a federation are not what they should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unverified {
    /// A device that could not have been written.
    #[error(transparent)]
    Device(#[from] InvalidDevice),
    /// The contents were changed.
    #[error("the contents have BLAKE3 {got}, the manifest says {expected}")]
    Hash {
        /// As the manifest says.
        expected: String,
        /// As found.
        got: String,
    },
}

impl Federation {
    /// Opens a federation folder: maps its files and checks the device table.
    ///
    /// O(devices), whatever the number of examples. Nobody may change the files while they are mapped.
    pub fn open(dir: impl AsRef<Path>) -> Result<Self, OpenError> {
        let dir = dir.as_ref();
        let manifest = Manifest::read(dir)?;
        check_shape(&dir.join(super::manifest::FILE_NAME), &manifest)?;
        let (rows, inputs, labels) = open_examples(dir, manifest.input)?;
        let devices = open_devices(dir, &manifest, rows)?;
        let (words, vectors) = match (manifest.input, manifest.word_dim) {
            (InputKind::Tokens { vocabulary, .. }, Some(dim)) => {
                let (words, vectors) = open_words(dir, vocabulary, dim)?;
                (Some(words), Some(vectors))
            }
            _ => (None, None),
        };
        Ok(Self {
            name: manifest.name,
            kind: manifest.input,
            classes: manifest.classes,
            devices,
            inputs,
            labels,
            words,
            vectors,
            symbols: manifest.symbols,
            affine: None,
            source: manifest.source,
            device_split: manifest.split,
            hash: manifest.hash,
        })
    }

    /// Reads everything and checks it as if it were imported again, and its hash.
    pub fn verify(&self) -> Result<(), Unverified> {
        let shape = check::Shape { kind: self.kind, classes: self.classes };
        let mut seen = HashSet::with_capacity(self.len());
        for k in 0..self.len() as u32 {
            let (inputs, labels) = self.stored(k);
            shape.count(self.id(k), inputs, &labels)?;
            if !seen.insert(self.id(k)) {
                return Err(InvalidDevice::Duplicate { id: self.id(k).to_owned() }.into());
            }
        }
        let got = self.content_hash();
        if got == self.hash { Ok(()) } else { Err(Unverified::Hash { expected: self.hash.clone(), got }) }
    }
}

/// The columns of the device table.
pub(crate) const DEVICE_COLUMNS: [Column; 5] = [
    Column::new("id", ColumnType::Utf8),
    Column::new("split", ColumnType::Number(Number::U8)),
    Column::new("offset", ColumnType::Number(Number::U64)),
    Column::new("count", ColumnType::Number(Number::U64)),
    Column::new("weight", ColumnType::Number(Number::U64)),
];

/// The columns of the examples.
pub(crate) fn example_columns(kind: InputKind) -> Vec<Column> {
    let label = Column::new("label", ColumnType::Number(Number::U16));
    match kind {
        InputKind::Bytes { dim } => vec![Column::new("input", ColumnType::List(Number::U8, dim)), label],
        InputKind::Dense { dim } => vec![Column::new("input", ColumnType::List(Number::F32, dim)), label],
        InputKind::Tokens { len, .. } => {
            vec![Column::new("input", ColumnType::List(Number::U32, len)), label]
        }
        InputKind::Windows { .. } => vec![Column::new("symbol", ColumnType::Number(Number::U8))],
    }
}

/// The columns of the vocabulary.
pub(crate) fn word_columns(dim: usize) -> [Column; 2] {
    [Column::new("word", ColumnType::Utf8), Column::new("vector", ColumnType::List(Number::F32, dim))]
}

/// Bounds that the columns and the code rely on: a label is a `u16`, a symbol is a byte.
fn check_shape(path: &Path, manifest: &Manifest) -> Result<(), OpenError> {
    let bounded = |what, got: usize, most: usize| match got {
        0 => Err(OpenError::Shape { path: path.to_owned(), what, most, got }),
        _ if got > most => Err(OpenError::Shape { path: path.to_owned(), what, most, got }),
        _ => Ok(()),
    };
    const LONGEST: usize = i32::MAX as usize;
    bounded("classes", manifest.classes, 1 << 16)?;
    match manifest.input {
        InputKind::Bytes { dim } | InputKind::Dense { dim } => bounded("input.dim", dim, LONGEST),
        InputKind::Tokens { len, vocabulary } => {
            bounded("input.len", len, LONGEST)?;
            bounded("input.vocabulary", vocabulary, LONGEST)?;
            bounded("word_dim", manifest.word_dim.unwrap_or(1), LONGEST)
        }
        InputKind::Windows { len, alphabet } => {
            bounded("input.len", len, LONGEST)?;
            bounded("input.alphabet", alphabet, manifest.classes.min(256))
        }
    }
}

fn open_file(path: &Path, columns: &[Column]) -> Result<ArrowFile, OpenError> {
    let file = map(path).map_err(|source| OpenError::Io { path: path.to_owned(), source })?;
    ArrowFile::new(&file, columns).map_err(|source| OpenError::Arrow { path: path.to_owned(), source })
}

type Labels = arrow_buffer::ScalarBuffer<u16>;

fn open_examples(dir: &Path, kind: InputKind) -> Result<(u64, InputColumn, Labels), OpenError> {
    let file = open_file(&dir.join(EXAMPLES), &example_columns(kind))?;
    let inputs = match kind {
        InputKind::Bytes { .. } => InputColumn::Bytes(file.numbers(0)),
        InputKind::Dense { .. } => InputColumn::Dense(file.numbers(0)),
        InputKind::Tokens { .. } => InputColumn::Tokens(file.numbers(0)),
        InputKind::Windows { .. } => InputColumn::Text(file.numbers(0)),
    };
    let labels = match kind {
        InputKind::Windows { .. } => Labels::from(Vec::new()),
        _ => file.numbers(1),
    };
    Ok((file.rows, inputs, labels))
}

fn open_devices(dir: &Path, manifest: &Manifest, rows: u64) -> Result<DeviceTable, OpenError> {
    let path = dir.join(DEVICES);
    let file = open_file(&path, &DEVICE_COLUMNS)?;
    if file.rows != manifest.devices || file.rows > u64::from(u32::MAX) {
        return Err(OpenError::Count { path, what: "devices", expected: manifest.devices, got: file.rows });
    }
    let ids = file.strings(0).map_err(|source| OpenError::Arrow { path: path.clone(), source })?;
    let table = DeviceTable { ids, split: file.numbers(1), offset: file.numbers(2), count: file.numbers(3) };
    match table.first_invalid(manifest.input, rows) {
        None => Ok(table),
        Some(device) => Err(OpenError::Device { path, device, split: table.split[device] }),
    }
}

impl DeviceTable {
    /// The first device that has no examples, or some outside the `rows` of the examples, or no split.
    fn first_invalid(&self, kind: InputKind, rows: u64) -> Option<usize> {
        let window = match kind {
            InputKind::Windows { len, .. } => len as u64,
            _ => 0,
        };
        let valid = |k: usize| {
            let end = self.offset[k].saturating_add(self.count[k]).saturating_add(window);
            (self.count[k] > 0) & (end <= rows) & (self.split[k] <= Split::Validation as u8)
        };
        // Without an early exit the check is a few instructions per device.
        let all = (0..self.count.len()).fold(true, |all, k| all & valid(k));
        if all { None } else { (0..self.count.len()).find(|&k| !valid(k)) }
    }
}

fn open_words(
    dir: &Path,
    vocabulary: usize,
    dim: usize,
) -> Result<(arrow_array::StringArray, WordVectors), OpenError> {
    let path = dir.join(WORDS);
    let file = open_file(&path, &word_columns(dim))?;
    if file.rows != vocabulary as u64 {
        return Err(OpenError::Count { path, what: "words", expected: vocabulary as u64, got: file.rows });
    }
    let words = file.strings(0).map_err(|source| OpenError::Arrow { path, source })?;
    Ok((words, WordVectors { dim, values: file.numbers(1) }))
}
