//! Opens federation folders: maps the files without reading them.
//!
//! Opening checks the metadata and the device table in O(devices), so that every device's examples
//! are inside the columns. It does not access the examples. Only a file that was changed can
//! contain a class or token out of range. Such a value is read as the highest valid one (see
//! [`Examples::label`](deltafl::data::Examples::label)), so that no model indexes outside its
//! memory. [`Federation::verify`] reports it.

use std::io;
use std::path::{Path, PathBuf};

use deltafl::data::{
    Columns, DeviceTable, Federation, InputColumn, InputKind, InvalidColumns, TargetColumn, TextColumn,
    WordVectors,
};

use super::arrow_file::{ArrowColumn, ArrowFile, ArrowNumber, ColumnType, InvalidArrowFile};
use super::groups;
use super::manifest::{Manifest, TargetFormat};
use super::mapped::map;
use super::writer::MOST_CLASSES;

pub(crate) const DEVICES: &str = "devices.arrow";
pub(crate) const EXAMPLES: &str = "examples.arrow";
pub(crate) const WORDS: &str = "words.arrow";

/// An error that occurs when a federation folder is opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// A file that cannot be read.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The manifest is invalid.
    #[error("{path}: {source}")]
    Manifest {
        /// The file.
        path: PathBuf,
        /// The error with its place.
        source: Box<toml::de::Error>,
    },
    /// The version of the format is unknown.
    #[error("{path}: unknown format {got}: this version reads format 2; import the data again")]
    Format {
        /// The file.
        path: PathBuf,
        /// Its format.
        got: u32,
    },
    /// A number of the manifest is out of range.
    #[error("{path}: {what} must be at least 1 and at most {most}, got {got}")]
    Shape {
        /// The file.
        path: PathBuf,
        /// The name of the number.
        what: &'static str,
        /// Its upper bound.
        most: usize,
        /// The number.
        got: usize,
    },
    /// A file is damaged.
    #[error("{path}: {source}")]
    Arrow {
        /// The file.
        path: PathBuf,
        /// The error in the file.
        source: InvalidArrowFile,
    },
    /// The device table does not match the examples.
    #[error("{path}: {source}")]
    Columns {
        /// The file.
        path: PathBuf,
        /// The mismatch.
        source: InvalidColumns,
    },
    /// The declared groups are invalid.
    #[error("{path}: {problem}")]
    Groups {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// A file does not match the manifest.
    #[error("{path}: contains {got} {what}, but the manifest lists {expected}")]
    Count {
        /// The file.
        path: PathBuf,
        /// Devices or words.
        what: &'static str,
        /// The number in the manifest.
        expected: u64,
        /// The number in the file.
        got: u64,
    },
}

/// Opens a federation folder: maps its files and checks the device table.
///
/// Takes O(devices), independently of the number of examples. The files must not change while they
/// are mapped.
pub fn open(dir: impl AsRef<Path>) -> Result<Federation, OpenError> {
    let dir = dir.as_ref();
    let manifest = Manifest::read(dir)?;
    check_shape(&dir.join(super::manifest::FILE_NAME), &manifest)?;
    let (inputs, targets) = open_examples(dir, manifest.input, manifest.targets)?;
    let devices = open_devices(dir, &manifest)?;
    let (words, vectors) = match (manifest.input, manifest.word_dim) {
        (InputKind::Tokens { vocabulary, .. }, Some(dim)) => {
            let (words, vectors) = open_words(dir, vocabulary, dim)?;
            (Some(words), vectors)
        }
        _ => (None, None),
    };
    let target = manifest.target();
    let columns = Columns {
        name: manifest.name,
        kind: manifest.input,
        target,
        devices,
        inputs,
        targets,
        class_names: manifest.class_names,
        feature_columns: manifest.features,
        coding: manifest.table,
        words,
        vectors,
        symbols: manifest.symbols,
        source: manifest.source,
        device_split: manifest.split,
        hash: manifest.hash,
    };
    let federation = Federation::from_columns(columns);
    let federation = federation.map_err(|source| OpenError::Columns { path: dir.join(DEVICES), source })?;
    groups::declared(dir, federation)
}

/// The columns of the device table.
pub(crate) const DEVICE_COLUMNS: [ArrowColumn; 4] = [
    ArrowColumn::new("id", ColumnType::Utf8),
    ArrowColumn::new("split", ColumnType::Number(ArrowNumber::U8)),
    ArrowColumn::new("offset", ColumnType::Number(ArrowNumber::U64)),
    ArrowColumn::new("examples", ColumnType::Number(ArrowNumber::U64)),
];

/// The columns of the examples.
pub(crate) fn example_columns(kind: InputKind, targets: TargetFormat) -> Vec<ArrowColumn> {
    let label = match targets {
        TargetFormat::U16 => ArrowColumn::new("label", ColumnType::Number(ArrowNumber::U16)),
        TargetFormat::U32 => ArrowColumn::new("label", ColumnType::Number(ArrowNumber::U32)),
        TargetFormat::F32 => ArrowColumn::new("target", ColumnType::Number(ArrowNumber::F32)),
    };
    match kind {
        InputKind::Bytes { dim } => {
            vec![ArrowColumn::new("input", ColumnType::List(ArrowNumber::U8, dim)), label]
        }
        InputKind::Dense { dim } => {
            vec![ArrowColumn::new("input", ColumnType::List(ArrowNumber::F32, dim)), label]
        }
        InputKind::Tokens { len, .. } => {
            vec![ArrowColumn::new("input", ColumnType::List(ArrowNumber::U32, len)), label]
        }
        InputKind::Windows { .. } => vec![ArrowColumn::new("symbol", ColumnType::Number(ArrowNumber::U8))],
    }
}

/// The columns of the vocabulary. Without vectors, `dim` is 0.
pub(crate) fn word_columns(dim: usize) -> Vec<ArrowColumn> {
    let word = ArrowColumn::new("word", ColumnType::Utf8);
    match dim {
        0 => vec![word],
        dim => vec![word, ArrowColumn::new("vector", ColumnType::List(ArrowNumber::F32, dim))],
    }
}

/// Bounds that the columns and the code rely on: a label has two or four bytes, a symbol one.
fn check_shape(path: &Path, manifest: &Manifest) -> Result<(), OpenError> {
    let bounded = |what, got: usize, most: usize| match got {
        0 => Err(OpenError::Shape { path: path.to_owned(), what, most, got }),
        _ if got > most => Err(OpenError::Shape { path: path.to_owned(), what, most, got }),
        _ => Ok(()),
    };
    const LONGEST: usize = i32::MAX as usize;
    match manifest.targets {
        TargetFormat::U16 => bounded("classes", manifest.classes, 1 << 16)?,
        TargetFormat::U32 => bounded("classes", manifest.classes, MOST_CLASSES)?,
        TargetFormat::F32 => {}
    }
    match manifest.input {
        InputKind::Bytes { dim } | InputKind::Dense { dim } => bounded("input.dim", dim, LONGEST),
        InputKind::Tokens { len, vocabulary } => {
            bounded("input.len", len, LONGEST)?;
            bounded("input.vocabulary", vocabulary, LONGEST)?;
            bounded("word_dim", manifest.word_dim.unwrap_or(1).max(1), LONGEST)
        }
        InputKind::Windows { len, alphabet } => {
            bounded("input.len", len, LONGEST)?;
            bounded("input.alphabet", alphabet, manifest.classes.min(256))
        }
    }
}

fn open_file(path: &Path, columns: &[ArrowColumn]) -> Result<ArrowFile, OpenError> {
    let file = map(path).map_err(|source| OpenError::Io { path: path.to_owned(), source })?;
    ArrowFile::new(&file, columns).map_err(|source| OpenError::Arrow { path: path.to_owned(), source })
}

fn open_examples(
    dir: &Path,
    kind: InputKind,
    targets: TargetFormat,
) -> Result<(InputColumn, TargetColumn), OpenError> {
    let file = open_file(&dir.join(EXAMPLES), &example_columns(kind, targets))?;
    let inputs = match kind {
        InputKind::Bytes { .. } => InputColumn::Bytes(file.numbers(0)),
        InputKind::Dense { .. } => InputColumn::Dense(file.numbers(0)),
        InputKind::Tokens { .. } => InputColumn::Tokens(file.numbers(0)),
        InputKind::Windows { .. } => InputColumn::Text(file.numbers(0)),
    };
    let targets = match (kind, targets) {
        (InputKind::Windows { .. }, _) => TargetColumn::InText,
        (_, TargetFormat::U16) => TargetColumn::Few(file.numbers(1)),
        (_, TargetFormat::U32) => TargetColumn::Many(file.numbers(1)),
        (_, TargetFormat::F32) => TargetColumn::Values(file.numbers(1)),
    };
    Ok((inputs, targets))
}

fn open_devices(dir: &Path, manifest: &Manifest) -> Result<DeviceTable, OpenError> {
    let path = dir.join(DEVICES);
    let file = open_file(&path, &DEVICE_COLUMNS)?;
    if file.rows != manifest.devices || file.rows > u64::from(u32::MAX) {
        return Err(OpenError::Count { path, what: "devices", expected: manifest.devices, got: file.rows });
    }
    let ids = file.strings(0).map_err(|source| OpenError::Arrow { path: path.clone(), source })?;
    Ok(DeviceTable { ids, split: file.numbers(1), offset: file.numbers(2), examples: file.numbers(3) })
}

fn open_words(
    dir: &Path,
    vocabulary: usize,
    dim: usize,
) -> Result<(TextColumn, Option<WordVectors>), OpenError> {
    let path = dir.join(WORDS);
    let file = open_file(&path, &word_columns(dim))?;
    if file.rows != vocabulary as u64 {
        return Err(OpenError::Count { path, what: "words", expected: vocabulary as u64, got: file.rows });
    }
    let words = file.strings(0).map_err(|source| OpenError::Arrow { path, source })?;
    Ok((words, (dim > 0).then(|| WordVectors { dim, values: file.numbers(1) })))
}
