//! Errors in imported files, with their places.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::{InvalidArrowFile, SaveError};
use deltafl::data::InvalidSplit;

/// An error of an import, which has written nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// An error in a file.
    #[error("{path}, {at}: {problem}", path = path.display())]
    At {
        /// The file.
        path: PathBuf,
        /// The place in the file, after decompression.
        at: FilePosition,
        /// The error.
        problem: Box<ImportProblem>,
    },
    /// An error of a file as a whole.
    #[error("{path}: {problem}", path = path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// The error.
        problem: Box<ImportProblem>,
    },
    /// The federation cannot be written.
    #[error(transparent)]
    Save(#[from] SaveError),
    /// The devices cannot be split as requested.
    #[error(transparent)]
    Split(#[from] InvalidSplit),
}

/// A place in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FilePosition {
    /// Bytes from the start.
    Byte(u64),
    /// Lines, from 1.
    Line(u64),
    /// Rows of a table, from 0.
    Row(u64),
    /// A member of an archive.
    Member(String),
}

impl fmt::Display for FilePosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Byte(byte) => write!(f, "byte {byte}"),
            Self::Line(line) => write!(f, "line {line}"),
            Self::Row(row) => write!(f, "row {row}"),
            Self::Member(name) => write!(f, "member {name:?}"),
        }
    }
}

/// An error in a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportProblem {
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file ends too early.
    #[error("the file ends in the middle of {0}")]
    Truncated(&'static str),
    /// The file contains something else than expected.
    #[error("expected {expected}, found {found}")]
    Expected {
        /// The expected item.
        expected: &'static str,
        /// The item in the file.
        found: FoundItem,
    },
    /// A quote is not closed.
    #[error(
        "a quote of the row is not closed, so that the row contains the rest of the file: close it, or write it twice"
    )]
    Quote,
    /// A text is not UTF-8.
    #[error("not valid UTF-8")]
    Utf8,
    /// A file that must contain text contains something else.
    #[error("expected text, but this is {0}")]
    Binary(&'static str),
    /// A zip archive contains not exactly one file.
    #[error("a zip archive of {count} files: unpack it, and name the files to import")]
    Members {
        /// The number of files.
        count: usize,
    },
    /// A folder where a file is expected.
    #[error("a folder, not a file: `data import auto` imports folders of images")]
    Folder,
    /// An image is in the wrong place of a folder.
    #[error("an image must be in a folder DEVICE/CLASS, or CLASS if there is one device")]
    ImagePlace,
    /// A line is not JSON.
    #[error("not a JSON object: {0}")]
    Json(String),
    /// The first line of a delimited file contains numbers only.
    #[error(
        "the first line contains numbers only, but it must name the columns: insert a line such as a,b,label"
    )]
    NoHeader,
    /// Two columns have the same name.
    #[error("two columns are called {0:?}: rename one of them")]
    DuplicateColumn(String),
    /// A column has two roles.
    #[error("the column {column:?} cannot be {first} and {second} at the same time")]
    TwoRoles {
        /// The column.
        column: String,
        /// A role.
        first: &'static str,
        /// The other role.
        second: &'static str,
    },
    /// A column of dates contains something else.
    #[error("{text:?} is not a date, and the column {column:?} is read as dates")]
    Date {
        /// The text.
        text: String,
        /// The column.
        column: String,
    },
    /// A column has decimal points, and it or another column has decimal commas.
    #[error(
        "the column {column:?} has numbers with a decimal comma and numbers with a decimal point, or another column \
         has decimal commas: write all numbers in one way"
    )]
    MixedDecimals {
        /// The column.
        column: String,
    },
    /// A date with slashes has the day first.
    #[error(
        "the date {text:?} in the column {column:?} has the day first, but dates with slashes have the month first: \
         write dates as 2024-03-31"
    )]
    DayFirst {
        /// The text.
        text: String,
        /// The column.
        column: String,
    },
    /// All labels are equal.
    #[error("every label is {label}: there is nothing to predict")]
    OneClass {
        /// The label.
        label: String,
    },
    /// The labels look like numbers to predict.
    #[error(
        "the labels are {distinct} different numbers up to {highest}: --regression predicts them as numbers, and \
         --classes {classes} imports them as classes"
    )]
    SparseLabels {
        /// The number of different labels.
        distinct: usize,
        /// The highest label.
        highest: u32,
        /// One more than the highest label.
        classes: usize,
    },
    /// A class is not among those of the coding.
    #[error("the class {name:?} is not among those that the model knows: {}", known.join(", "))]
    UnknownClass {
        /// The class.
        name: String,
        /// The known classes.
        known: Vec<String>,
    },
    /// The earlier import has no conversion that can be applied to tables.
    #[error("the conversion of the earlier data is not known: it was not imported from a table")]
    NoCoding,
    /// No column is a feature.
    #[error("no column is left as a feature: --columns, --number, --category, --date and --text name some")]
    NoFeatures,
    /// The words of a column are numbers with commas.
    #[error(
        "the column {column:?} contains numbers with commas: give --decimal , or remove the commas if they separate \
         thousands; --category {column} reads them as words"
    )]
    DecimalCommas {
        /// The column.
        column: String,
    },
    /// A `tokenizer.json` cannot be used.
    #[error("not a usable tokenizer.json: {0}")]
    Tokenizer(String),
    /// This build cannot use a `tokenizer.json`.
    #[error("this build has no tokenizers: install deltafl with --features tokenizers")]
    NoTokenizers,
    /// A table names an image that does not exist.
    #[error("there is no image {}: paths are relative to the folder of the table", .0.display())]
    NoImageFile(PathBuf),
    /// A table is given, but the model was trained on images.
    #[error("this is a table, but the earlier data were images: give a folder DEVICE/CLASS/*.png")]
    ImagesExpected,
    /// Images are given, but the model was trained on other inputs.
    #[error("these are images, but the model was not trained on images")]
    NoImages,
    /// A text is not a number.
    #[error("{0:?} is not a number")]
    Number(String),
    /// A column of numbers contains a word.
    #[error(
        "{text:?} is not a number, and the column {column:?} begins with one: correct it, leave the column out with \
         --columns, or read the whole column as words with --category {column:?}"
    )]
    Word {
        /// The word.
        text: String,
        /// The column.
        column: String,
    },
    /// A required value is missing.
    #[error(
        "the value of column {column:?} is missing: fill it in, or choose a rule with --missing drop, mean or category"
    )]
    MissingValue {
        /// The column.
        column: String,
    },
    /// A column contains too many different words.
    #[error("the column {column:?} has more than {most} different words: leave it out with --columns")]
    Categories {
        /// The column.
        column: String,
        /// The bound.
        most: usize,
    },
    /// The name of a device is empty.
    #[error("the id of the device is empty")]
    UnnamedDevice,
    /// A device has no group.
    #[error("the group of device {device:?} is empty")]
    NoGroup {
        /// The device.
        device: String,
    },
    /// The rows of a device have different groups.
    #[error("device {device:?} is in the group {first:?} before, and in {second:?} here")]
    TwoGroups {
        /// The device.
        device: String,
        /// The group of earlier rows.
        first: String,
        /// The group of this row.
        second: String,
    },
    /// There are too many groups of devices.
    #[error("the column of the group has more than {most} different values: name a coarser one with --group")]
    Groups {
        /// The bound.
        most: usize,
    },
    /// A real target is not a finite number.
    #[error("the number to predict is not finite")]
    Value,
    /// A split is unknown.
    #[error("{0:?} is none of train, test and validation")]
    Split(String),
    /// A feature is NaN or infinite.
    #[error("a feature is not finite")]
    NonFinite,
    /// A number is not a grey level.
    #[error("{0} is not a whole number from 0 to 255")]
    GreyLevel(f32),
    /// A label is not a class.
    #[error(
        "label {0} is not a whole number from 0 to 16777215; numbers to predict are imported with --regression"
    )]
    Label(String),
    /// A polarity is unknown.
    #[error("polarity {0:?} is none of 0 (negative), 2 (neutral), 4 (positive)")]
    Polarity(String),
    /// A label exceeds the requested number of classes.
    #[error("label {label} is not below the number of classes, {classes}")]
    LabelRange {
        /// The label.
        label: u32,
        /// Number of classes.
        classes: usize,
    },
    /// The number of features of an example differs.
    #[error("an example has {got} features, those before it have {expected}")]
    Dim {
        /// The number of features of earlier examples.
        expected: usize,
        /// The number of features of this example.
        got: usize,
    },
    /// A row, string or nesting is too long.
    #[error("{what} longer than {limit}")]
    TooLong {
        /// The item.
        what: &'static str,
        /// The bound.
        limit: usize,
    },
    /// A key occurs twice.
    #[error("the key {0:?} occurs twice")]
    DuplicateKey(String),
    /// A device occurs twice.
    #[error("device {0:?} occurs twice in this file")]
    DuplicateDevice(String),
    /// A device has no examples.
    #[error("device {0:?} has no examples")]
    EmptyDevice(String),
    /// The number of labels differs from the number of examples.
    #[error("device {device:?} has {examples} examples and {labels} labels")]
    Lengths {
        /// The device.
        device: String,
        /// Its examples.
        examples: u64,
        /// Its labels.
        labels: u64,
    },
    /// The list of users does not match the data.
    #[error("device {device:?} has {got} examples, but `num_samples` lists {expected}")]
    NumSamples {
        /// The device.
        device: String,
        /// The declared number.
        expected: u64,
        /// The number found.
        got: u64,
    },
    /// A listed item does not exist.
    #[error("{what} {name:?} is missing")]
    Missing {
        /// Key, column, member…
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// A column does not exist.
    #[error("there is no column {name:?}; the columns are {}", columns.join(", "))]
    NoColumn {
        /// Its name.
        name: String,
        /// The existing columns.
        columns: Vec<String>,
    },
    /// No column looks like a label.
    #[error("no column looks like a label: name it with --label; the columns are {}", columns.join(", "))]
    NoLabel {
        /// The existing columns.
        columns: Vec<String>,
    },
    /// An array does not exist.
    #[error("there is no array {name:?}; the arrays are {}", arrays.join(", "))]
    NoArray {
        /// Its name.
        name: String,
        /// The existing arrays.
        arrays: Vec<String>,
    },
    /// Two files or parts have different numbers of items.
    #[error("{what}: expected {expected}, found {got}")]
    Count {
        /// The items.
        what: &'static str,
        /// Expected.
        expected: u64,
        /// The number found.
        got: u64,
    },
    /// Bytes follow the end of the data.
    #[error("more bytes follow the end of the data")]
    Trailing,
    /// Two devices share examples.
    #[error("devices {first:?} and {second:?} share examples")]
    Overlap {
        /// One device.
        first: String,
        /// The other.
        second: String,
    },
    /// A type is not supported.
    #[error("{what} has type {found}, which is not supported; {supported} are")]
    Unsupported {
        /// Column, array…
        what: String,
        /// Its type.
        found: String,
        /// The supported types.
        supported: &'static str,
    },
    /// The lists of a column have different lengths.
    #[error("the column {column:?} has {got} features, and {expected} in the rows before")]
    ListLength {
        /// The column.
        column: String,
        /// The number of features of earlier rows.
        expected: usize,
        /// The number of features of this row.
        got: usize,
    },
    /// An option of flat tables names a column of a table with lists or images.
    #[error(
        "the table has lists or images, so the column {column:?} cannot be a category, a date or a group: leave out \
         the option, or leave out the lists with --columns"
    )]
    NestedOption {
        /// The column.
        column: String,
    },
    /// An image is invalid.
    #[error("not an image that can be read: {0}")]
    Image(String),
    /// A Parquet file is invalid.
    #[error("not a Parquet file that can be read: {0}")]
    Parquet(String),
    /// An Arrow file is invalid.
    #[error("not an Arrow file that can be read: {0}")]
    Arrow(#[from] InvalidArrowFile),
    /// A zip archive is invalid.
    #[error("not a zip archive that can be read: {0}")]
    Zip(String),
    /// The file contains nothing useful.
    #[error("holds {0}")]
    Nothing(&'static str),
}

/// The item in a file instead of the expected one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FoundItem {
    /// A byte.
    Byte(u8),
    /// The end of the file.
    End,
}

impl fmt::Display for FoundItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Byte(byte @ 0x20..0x7f) => write!(f, "`{}`", char::from(*byte)),
            Self::Byte(byte) => write!(f, "byte 0x{byte:02x}"),
            Self::End => write!(f, "the end of the file"),
        }
    }
}

impl ImportError {
    /// Returns instructions to fix the error, if its message contains none.
    pub fn help(&self) -> Option<&'static str> {
        match self {
            Self::At { problem, .. } | Self::File { problem, .. } => match **problem {
                ImportProblem::Utf8 => {
                    Some("save the file as UTF-8, for example with `iconv -f latin1 -t utf-8`")
                }
                _ => None,
            },
            Self::Save(_) | Self::Split(_) => None,
        }
    }

    pub(crate) fn at(path: &Path, at: FilePosition, problem: ImportProblem) -> Self {
        Self::At { path: path.to_owned(), at, problem: Box::new(problem) }
    }

    pub(crate) fn file(path: &Path, problem: impl Into<ImportProblem>) -> Self {
        Self::File { path: path.to_owned(), problem: Box::new(problem.into()) }
    }
}
