//! Parquet files with one row per example, the format of federated data sets on Hugging Face.
//!
//! Flat tables are read by `table.rs`. Otherwise feature columns are numbers, lists of numbers (nested
//! or not), or images: PNG or JPEG bytes, alone or in the field `bytes` of a struct. The features of a
//! row are the concatenated features of its columns.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};

use parquet::errors::ParquetError;
use parquet::file::reader::FileReader as _;

use super::encoding::{LabelCoder, missing_value};
use super::error::{FilePosition, ImportError, ImportProblem};
use super::features::{FeatureSpool, Features};
use super::image;
use super::table::{
    self, TableColumns, TableFormat, feature_columns, finite, in_range, parse_split, whole_label,
};
use super::{ImportTarget, Imported};
use crate::parquet_file::batch::LeafBatch;
use crate::parquet_file::columns::{self, Leaf, LeafType, NoLeaf, ParquetReader};
use deltafl::data::{Provenance, TableCoding};

/// Rows read at a time.
const BATCH: usize = 1024;

/// Imports Parquet files, one after the other.
pub fn import(
    paths: &[PathBuf],
    columns: &TableColumns,
    features: Features,
    target: &ImportTarget,
) -> Result<Imported, ImportError> {
    if !is_nested(paths, columns)? {
        return table::import_files(paths, TableFormat::Parquet, columns, features, target);
    }
    refuse_options(paths, columns)?;
    let path = paths.first().map_or(Path::new("."), PathBuf::as_path);
    let first = WantedColumns::find(path, &header(&open(path)?), columns)?;
    // The features of all files have the order of the first file.
    let columns = &TableColumns { features: first.names, ..columns.clone() };
    let mut source = Provenance::new("parquet");
    let (mut spool, mut widths) = (None, Vec::new());
    let label = survey(paths, columns, target)?;
    for path in paths {
        source.file(path);
        read_file(path, columns, &label, features, target, (&mut spool, &mut widths))?;
    }
    match spool {
        Some(mut spool) => {
            let coding = TableCoding {
                device: columns.device.clone(),
                label: Some(columns.label.clone()),
                ..TableCoding::default()
            };
            spool.set_coding(label.class_names(), Vec::new(), coding);
            spool.finish(target, source)
        }
        None => {
            let path = paths.first().map_or(Path::new("."), PathBuf::as_path);
            Err(ImportError::file(path, ImportProblem::Nothing("no examples")))
        }
    }
}

/// Whether a feature column contains lists, structs or bytes.
fn is_nested(paths: &[PathBuf], columns: &TableColumns) -> Result<bool, ImportError> {
    let Some(path) = paths.first().filter(|path| path.is_file()) else { return Ok(false) };
    if !columns.texts.is_empty() {
        return Ok(false);
    }
    let file = open(path)?;
    let wanted = WantedColumns::find(path, &header(&file), columns)?;
    let schema = file.metadata().file_metadata().schema_descr();
    let nested = |&at: &usize| match Leaf::find(schema, at) {
        Ok(leaf) => leaf.list || leaf.in_struct || leaf.of == LeafType::Binary,
        Err(_) => true,
    };
    Ok(wanted.features.iter().any(nested))
}

/// Refuses the options of flat tables, which lists and images do not have.
fn refuse_options(paths: &[PathBuf], columns: &TableColumns) -> Result<(), ImportError> {
    let named = columns.categories.iter().chain(&columns.dates).chain(&columns.group);
    let Some(column) = named.into_iter().next() else { return Ok(()) };
    let path = paths.first().map_or(Path::new("."), PathBuf::as_path);
    Err(ImportError::file(path, ImportProblem::NestedOption { column: column.clone() }))
}

fn read_file(
    path: &Path,
    columns: &TableColumns,
    label: &LabelCoder,
    features: Features,
    target: &ImportTarget,
    (spool, widths): (&mut Option<FeatureSpool>, &mut Vec<usize>),
) -> Result<(), ImportError> {
    let file = open(path)?;
    let wanted = WantedColumns::find(path, &header(&file), columns)?;
    let leaves = wanted.all().map(|at| leaf(path, &file, at)).collect::<Result<Vec<_>, _>>()?;
    let grey = features == Features::Auto && wanted.features.iter().zip(&leaves).all(|(_, leaf)| grey(leaf));
    let features = if grey { Features::GreyLevels } else { features };
    let mut values = Vec::new();
    let mut row = 0;
    columns::for_each_batch(
        &file,
        &leaves,
        BATCH,
        |error| damaged(path, &error),
        |batches| {
            if spool.is_none() {
                *spool = Some(FeatureSpool::new(target, features)?);
            }
            let spool = spool.as_mut().expect("it was just made");
            let read: Vec<Column<'_>> =
                leaves.iter().zip(batches).map(|(leaf, batch)| Column { leaf, batch }).collect();
            let mut rows = BatchRows::new(&read, &wanted, columns, label, target, (&mut values, widths));
            for i in 0..batches.first().map_or(0, LeafBatch::rows) {
                rows.push(i, spool).map_err(|failure| failure.at(path, row))?;
                row += 1;
            }
            Ok(())
        },
    )
}

fn damaged(path: &Path, error: &ParquetError) -> ImportError {
    ImportError::file(path, ImportProblem::Parquet(error.to_string()))
}

fn open(path: &Path) -> Result<ParquetReader, ImportError> {
    let file = File::open(path).map_err(|source| ImportError::file(path, source))?;
    columns::open(file).map_err(|error| damaged(path, &error))
}

/// Returns the names of the columns.
fn header(file: &ParquetReader) -> Vec<String> {
    let schema = file.metadata().file_metadata().schema_descr().root_schema();
    schema.get_fields().iter().map(|field| field.name().to_owned()).collect()
}

/// Returns the leaf of a column.
fn leaf(path: &Path, file: &ParquetReader, at: usize) -> Result<Leaf, ImportError> {
    let schema = file.metadata().file_metadata().schema_descr();
    Leaf::find(schema, at).map_err(|reason| {
        let problem = match reason {
            NoLeaf::NoBytes => ImportProblem::Missing { what: "the field", name: "bytes".to_owned() },
            NoLeaf::Other(found) => unsupported(&header(file)[at], found),
        };
        ImportError::file(path, problem)
    })
}

fn unsupported(column: &str, found: impl ToString) -> ImportProblem {
    ImportProblem::Unsupported {
        what: format!("the column {column:?}"),
        found: found.to_string(),
        supported: "numbers, words, lists of numbers and PNG images",
    }
}

/// Returns the conversion of the label. All names of classes must be known before the first row is
/// written.
fn survey(
    paths: &[PathBuf],
    columns: &TableColumns,
    target: &ImportTarget,
) -> Result<LabelCoder, ImportError> {
    let mut names = None;
    for path in paths {
        let file = open(path)?;
        let wanted = WantedColumns::find(path, &header(&file), columns)?;
        let label = leaf(path, &file, wanted.label)?;
        if target.regression || !holds_words(&label) {
            continue;
        }
        let (names, mut row) = (names.get_or_insert_with(BTreeSet::new), 0);
        let leaves = [label];
        columns::for_each_batch(
            &file,
            &leaves,
            BATCH,
            |error| damaged(path, &error),
            |batches| {
                let column = Column { leaf: &leaves[0], batch: &batches[0] };
                for i in 0..batches[0].rows() {
                    let word = column.word(&columns.label, i);
                    let at = |problem| ImportError::at(path, FilePosition::Row(row), problem);
                    let word = word.map_err(at)?;
                    if !names.contains(&word) {
                        names.insert(word);
                    }
                    row += 1;
                }
                Ok(())
            },
        )?;
    }
    Ok(match names {
        Some(names) => LabelCoder::words(names.into_iter().collect()),
        None if target.regression => LabelCoder::Value(table::Decimal::Point),
        None => LabelCoder::Class,
    })
}

fn holds_words(leaf: &Leaf) -> bool {
    leaf.of == LeafType::Utf8 && !leaf.list && !leaf.in_struct
}

/// Whether the values are bytes or images, that is, grey levels.
fn grey(leaf: &Leaf) -> bool {
    leaf.in_struct || matches!(leaf.of, LeafType::UInt8 | LeafType::Binary)
}

/// A column of a batch.
#[derive(Clone, Copy)]
struct Column<'b> {
    leaf: &'b Leaf,
    batch: &'b LeafBatch,
}

impl Column<'_> {
    /// Returns the word of a row; a number as text if a column of numbers is read as words.
    fn word(self, name: &str, row: usize) -> Result<String, ImportProblem> {
        if !holds_words(self.leaf) {
            let mut number = Vec::with_capacity(1);
            self.append(name, row, &mut number)?;
            return Ok(number.iter().map(f32::to_string).collect::<Vec<_>>().join(" "));
        }
        self.text(row)?.ok_or_else(|| missing_value(name))
    }

    /// Returns the string of a row, or `None` if it is missing.
    fn text(self, row: usize) -> Result<Option<String>, ImportProblem> {
        let bytes = self.batch.range(row).next().and_then(|i| self.batch.bytes(i));
        let text = bytes.map(std::str::from_utf8).transpose();
        text.map(|text| text.map(str::to_owned)).map_err(|error| ImportProblem::Parquet(error.to_string()))
    }

    /// Returns the identity of a device: a string or a whole number.
    fn id(self, row: usize) -> Result<String, ImportProblem> {
        if self.batch.is_missing(row) {
            return Err(ImportProblem::UnnamedDevice);
        }
        if holds_words(self.leaf) {
            return self.text(row)?.ok_or(ImportProblem::UnnamedDevice);
        }
        let scalar = !self.leaf.list && !self.leaf.in_struct;
        let number = self.batch.range(row).next().filter(|_| scalar).and_then(|i| self.batch.whole_number(i));
        number.ok_or_else(|| ImportProblem::Unsupported {
            what: "the device column".to_owned(),
            found: if scalar { self.leaf.of.to_string() } else { "lists or structs".to_owned() },
            supported: "strings and whole numbers",
        })
    }

    /// Appends the numbers of a row.
    fn append(self, name: &str, row: usize, numbers: &mut Vec<f32>) -> Result<(), ImportProblem> {
        if self.batch.is_missing(row) {
            return Err(missing_value(name));
        }
        for i in self.batch.range(row) {
            match (self.leaf.of, self.batch.number(i), self.batch.bytes(i)) {
                (_, Some(number), _) => numbers.push(number.as_f32()),
                (LeafType::Binary, _, Some(bytes)) => append_image(bytes, numbers)?,
                (other, ..) => return Err(unsupported(name, other)),
            }
        }
        Ok(())
    }
}

/// A problem in a row, or an error that already has a place.
enum RowFailure {
    Row(ImportProblem),
    Placed(ImportError),
}

impl RowFailure {
    fn at(self, path: &Path, row: u64) -> ImportError {
        match self {
            Self::Row(problem) => ImportError::at(path, FilePosition::Row(row), problem),
            Self::Placed(error) => error,
        }
    }
}

impl From<ImportProblem> for RowFailure {
    fn from(problem: ImportProblem) -> Self {
        Self::Row(problem)
    }
}

impl From<ImportError> for RowFailure {
    fn from(error: ImportError) -> Self {
        Self::Placed(error)
    }
}

/// The columns to read.
struct WantedColumns {
    device: Option<usize>,
    split: Option<usize>,
    label: usize,
    features: Vec<usize>,
    /// The names of the features.
    names: Vec<String>,
}

impl WantedColumns {
    fn find(path: &Path, header: &[String], columns: &TableColumns) -> Result<Self, ImportError> {
        let column = |name: &str| super::delimited::column(path, header, name);
        let features = feature_columns(path, header, columns)?;
        Ok(Self {
            device: columns.device.as_deref().map(column).transpose()?,
            split: columns.split.as_deref().map(column).transpose()?,
            label: column(&columns.label)?,
            names: features.iter().map(|&at| header[at].clone()).collect(),
            features,
        })
    }

    fn all(&self) -> impl Iterator<Item = usize> {
        self.features.iter().copied().chain(self.device).chain(self.split).chain([self.label])
    }
}

/// The rows of a batch.
struct BatchRows<'b> {
    device: Option<Column<'b>>,
    split: Option<Column<'b>>,
    label: Column<'b>,
    label_name: &'b str,
    features: &'b [Column<'b>],
    names: &'b [String],
    encoding: &'b LabelCoder,
    classes: Option<usize>,
    row: &'b mut Vec<f32>,
    /// The number of features of each column.
    widths: &'b mut Vec<usize>,
}

impl<'b> BatchRows<'b> {
    /// Assigns the columns in the order of [`WantedColumns::all`].
    fn new(
        columns: &'b [Column<'b>],
        wanted: &'b WantedColumns,
        table: &'b TableColumns,
        encoding: &'b LabelCoder,
        target: &ImportTarget,
        (row, widths): (&'b mut Vec<f32>, &'b mut Vec<usize>),
    ) -> Self {
        let (features, rest) = columns.split_at(wanted.features.len());
        let mut rest = rest.iter().copied();
        let mut next = || rest.next().expect("each wanted column is read");
        Self {
            device: wanted.device.map(|_| next()),
            split: wanted.split.map(|_| next()),
            label: next(),
            label_name: &table.label,
            features,
            names: &wanted.names,
            encoding,
            classes: target.classes,
            row,
            widths,
        }
    }

    fn push(&mut self, i: usize, spool: &mut FeatureSpool) -> Result<(), RowFailure> {
        self.row.clear();
        for (place, (column, name)) in self.features.iter().zip(self.names).enumerate() {
            let before = self.row.len();
            column.append(name, i, self.row)?;
            let got = self.row.len() - before;
            match self.widths.get(place) {
                None => self.widths.push(got),
                Some(&expected) if expected != got => {
                    let column = name.clone();
                    return Err(ImportProblem::ListLength { column, expected, got }.into());
                }
                Some(_) => {}
            }
        }
        spool.check(self.row)?;
        let id = self.device.map_or(Ok("all".to_owned()), |device| device.id(i))?;
        if id.trim().is_empty() {
            return Err(ImportProblem::UnnamedDevice.into());
        }
        let split = match self.split {
            None => None,
            Some(column) => Some(parse_split(&column.word("split", i)?)?),
        };
        let device = spool.spool.device_in(&id, split);
        spool.row(device, self.row)?;
        match self.encoding {
            LabelCoder::Words(index, names) => {
                let word = self.label.word(self.label_name, i)?;
                let class = index.get(&word).copied();
                let class =
                    class.ok_or_else(|| ImportProblem::UnknownClass { name: word, known: names.clone() })?;
                spool.spool.label(in_range(class, self.classes)?);
            }
            LabelCoder::Value(_) => spool.spool.value(finite(self.number(i)? as f32)?),
            LabelCoder::Class => spool.spool.label(whole_label(self.number(i)?, self.classes)?),
        }
        Ok(())
    }

    /// Returns the label as a number. A whole number above 2^24 is not a class, even if a float
    /// rounds it.
    fn number(&self, i: usize) -> Result<f64, ImportProblem> {
        let mut label = Vec::with_capacity(1);
        self.label.append(self.label_name, i, &mut label)?;
        match label[..] {
            [label] => Ok(label.into()),
            _ => Err(ImportProblem::Label(format!("{label:?}"))),
        }
    }
}

fn append_image(bytes: &[u8], row: &mut Vec<f32>) -> Result<(), ImportProblem> {
    let image = image::decode(bytes)?.into_grey();
    row.extend(image.pixels.iter().map(|&level| f32::from(level)));
    Ok(())
}
