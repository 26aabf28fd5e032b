//! What can be wrong with a file that somebody hands us, and where.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::SaveError;
use deltafl::data::InvalidSplit;

/// Why an import failed. Nothing was written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// Something is wrong in a file.
    #[error("{path}, {at}: {problem}", path = path.display())]
    At {
        /// The file.
        path: PathBuf,
        /// Where in it (after decompression).
        at: Position,
        /// What.
        problem: Box<Problem>,
    },
    /// Something is wrong with a file as a whole.
    #[error("{path}: {problem}", path = path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// What.
        problem: Box<Problem>,
    },
    /// The federation cannot be written.
    #[error(transparent)]
    Save(#[from] SaveError),
    /// The devices cannot be split as asked.
    #[error(transparent)]
    Split(#[from] InvalidSplit),
}

/// A place in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Position {
    /// Bytes from the start.
    Byte(u64),
    /// Lines, from 1.
    Line(u64),
    /// Rows of a table, from 0.
    Row(u64),
    /// A member of an archive.
    Member(String),
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Byte(byte) => write!(f, "byte {byte}"),
            Self::Line(line) => write!(f, "line {line}"),
            Self::Row(row) => write!(f, "row {row}"),
            Self::Member(name) => write!(f, "member {name:?}"),
        }
    }
}

/// What is wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// It cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It ends too early.
    #[error("the file ends in the middle of {0}")]
    Truncated(&'static str),
    /// Something else was expected.
    #[error("expected {expected}, found {found}")]
    Expected {
        /// What.
        expected: &'static str,
        /// What is there.
        found: Found,
    },
    /// Not text.
    #[error("not valid UTF-8")]
    Utf8,
    /// A number that is none.
    #[error("{0:?} is not a number")]
    Number(String),
    /// A word among numbers.
    #[error(
        "{text:?} is not a number, and the column {column:?} begins with one: correct it, leave the column out with \
         --columns, or read the whole column as words with --category {column:?}"
    )]
    Word {
        /// What is there.
        text: String,
        /// Where.
        column: String,
    },
    /// Nothing where a value is needed.
    #[error("the value of column {column:?} is missing: fill it in, or leave the row or the column out")]
    MissingValue {
        /// The column.
        column: String,
    },
    /// Words without end.
    #[error("the column {column:?} has more than {most} different words: leave it out with --columns")]
    Categories {
        /// The column.
        column: String,
        /// The bound.
        most: usize,
    },
    /// A device without a name.
    #[error("the id of the device is empty")]
    UnnamedDevice,
    /// A number to predict that is none.
    #[error("the number to predict is not finite")]
    Value,
    /// A split that is none.
    #[error("{0:?} is none of train, test and validation")]
    Split(String),
    /// NaN or infinite.
    #[error("a feature is not finite")]
    NonFinite,
    /// Not a grey level.
    #[error("{0} is not a whole number from 0 to 255")]
    GreyLevel(f32),
    /// A label that is none.
    #[error(
        "label {0} is not a whole number from 0 to 16777215; numbers to predict are imported with --regression"
    )]
    Label(String),
    /// A polarity that is none.
    #[error("polarity {0:?} is none of 0 (negative), 2 (neutral), 4 (positive)")]
    Polarity(String),
    /// A label beyond the number of classes that was asked for.
    #[error("label {label} is not below the number of classes, {classes}")]
    LabelRange {
        /// The label.
        label: u32,
        /// Number of classes.
        classes: usize,
    },
    /// A row of another length.
    #[error("an example has {got} features, those before it have {expected}")]
    Dim {
        /// As before.
        expected: usize,
        /// Here.
        got: usize,
    },
    /// A row, string or nesting beyond any use.
    #[error("{what} longer than {limit}")]
    TooLong {
        /// Of what.
        what: &'static str,
        /// The bound.
        limit: usize,
    },
    /// A key that is there twice.
    #[error("the key {0:?} occurs twice")]
    DuplicateKey(String),
    /// A device that is there twice.
    #[error("device {0:?} occurs twice in this file")]
    DuplicateDevice(String),
    /// A device with nothing.
    #[error("device {0:?} has no examples")]
    EmptyDevice(String),
    /// As many labels as examples are needed.
    #[error("device {device:?} has {examples} examples and {labels} labels")]
    Lengths {
        /// The device.
        device: String,
        /// Its examples.
        examples: u64,
        /// Its labels.
        labels: u64,
    },
    /// The table of users is wrong.
    #[error("device {device:?} has {got} examples, `num_samples` says {expected}")]
    NumSamples {
        /// The device.
        device: String,
        /// As declared.
        expected: u64,
        /// As found.
        got: u64,
    },
    /// Listed, but not there.
    #[error("{what} {name:?} is missing")]
    Missing {
        /// Key, column, member…
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// Not there, with what is.
    #[error("there is no column {name:?}; the columns are {}", columns.join(", "))]
    NoColumn {
        /// Its name.
        name: String,
        /// Those there are.
        columns: Vec<String>,
    },
    /// Not there, with what is.
    #[error("there is no array {name:?}; the arrays are {}", arrays.join(", "))]
    NoArray {
        /// Its name.
        name: String,
        /// Those there are.
        arrays: Vec<String>,
    },
    /// Two files or parts that should have as many.
    #[error("{what}: expected {expected}, found {got}")]
    Count {
        /// Of what.
        what: &'static str,
        /// Expected.
        expected: u64,
        /// Found.
        got: u64,
    },
    /// Contents beyond the end.
    #[error("more bytes follow the end of the data")]
    Trailing,
    /// Examples of two devices.
    #[error("devices {first:?} and {second:?} share examples")]
    Overlap {
        /// One device.
        first: String,
        /// The other.
        second: String,
    },
    /// A type we do not read.
    #[error("{what} has type {found}, which is not supported; {supported} are")]
    Unsupported {
        /// Column, array…
        what: String,
        /// Its type.
        found: String,
        /// Those we read.
        supported: &'static str,
    },
    /// An image that is none.
    #[error("not an image that can be read: {0}")]
    Image(String),
    /// A Parquet file that is none.
    #[error("not a Parquet file that can be read: {0}")]
    Parquet(String),
    /// A zip archive that is none.
    #[error("not a zip archive that can be read: {0}")]
    Zip(String),
    /// Nothing useful inside.
    #[error("holds {0}")]
    Nothing(&'static str),
}

/// What was found where something else was expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// A byte.
    Byte(u8),
    /// The end of the file.
    End,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Byte(byte @ 0x20..0x7f) => write!(f, "`{}`", char::from(*byte)),
            Self::Byte(byte) => write!(f, "byte 0x{byte:02x}"),
            Self::End => write!(f, "the end of the file"),
        }
    }
}

impl ImportError {
    pub(crate) fn at(path: &Path, at: Position, problem: Problem) -> Self {
        Self::At { path: path.to_owned(), at, problem: Box::new(problem) }
    }

    pub(crate) fn file(path: &Path, problem: impl Into<Problem>) -> Self {
        Self::File { path: path.to_owned(), problem: Box::new(problem.into()) }
    }
}
