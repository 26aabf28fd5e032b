//! Parquet files with one row per example, the format of federated data sets on Hugging Face.
//!
//! Feature columns may be numbers, lists of numbers (nested or not), or images: PNG bytes, alone or
//! in the field `bytes` of a struct. The features of a row are the concatenated features of its
//! columns.

use std::fs::File;
use std::path::{Path, PathBuf};

use parquet::errors::ParquetError;
use parquet::file::reader::FileReader as _;

use super::encoding::{
    FeatureEncoding, LabelEncoding, MOST_CATEGORIES, TableEncoding, WordCollection, WordSet,
};
use super::error::{FilePosition, ImportError, ImportProblem};
use super::features::{FeatureSpool, Features};
use super::image;
use super::table::{TableColumns, class, feature_columns, finite, in_range, parse_split};
use super::{ImportTarget, Imported};
use crate::parquet_file::columns::{self, Leaf, LeafBatch, LeafType, NoLeaf, ParquetReader};
use crate::writer::MOST_CLASSES;
use deltafl::data::Provenance;

/// Rows read at a time.
const BATCH: usize = 1024;

/// Imports Parquet files, one after the other.
pub fn import(
    paths: &[PathBuf],
    columns: &TableColumns,
    features: Features,
    target: &ImportTarget,
) -> Result<Imported, ImportError> {
    let mut source = Provenance::new("parquet");
    let mut spool = None;
    let encoding = survey(paths, columns, target)?;
    for path in paths {
        source.file(path);
        read_file(path, columns, &encoding, features, target, &mut spool)?;
    }
    match spool {
        Some(mut spool) => {
            spool.set_encoding(&encoding);
            spool.finish(target, source)
        }
        None => {
            let path = paths.first().map_or(Path::new("."), PathBuf::as_path);
            Err(ImportError::file(path, ImportProblem::Nothing("no examples")))
        }
    }
}

fn read_file(
    path: &Path,
    columns: &TableColumns,
    encoding: &TableEncoding,
    features: Features,
    target: &ImportTarget,
    spool: &mut Option<FeatureSpool>,
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
            let mut rows = BatchRows::new(&read, &wanted, &columns.label, encoding, target, &mut values);
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

/// Returns the conversion of the columns. Strings are words, and all words must be known before the
/// first row is written.
fn survey(
    paths: &[PathBuf],
    columns: &TableColumns,
    target: &ImportTarget,
) -> Result<TableEncoding, ImportError> {
    let mut survey = None;
    for path in paths {
        survey_file(path, columns, target, &mut survey)?;
    }
    Ok(survey.unwrap_or_default().finish(target.regression))
}

fn survey_file(
    path: &Path,
    columns: &TableColumns,
    target: &ImportTarget,
    survey: &mut Option<WordCollection>,
) -> Result<(), ImportError> {
    let file = open(path)?;
    let header = header(&file);
    let wanted = WantedColumns::find(path, &header, columns)?;
    let leaf = |at: usize| leaf(path, &file, at);
    let features = wanted.features.iter().map(|&at| leaf(at)).collect::<Result<Vec<_>, _>>()?;
    let label = leaf(wanted.label)?;
    let survey = survey.get_or_insert_with(|| {
        let feature = |(&at, leaf): (&usize, &Leaf)| {
            let words = holds_words(leaf) || columns.categories.contains(&header[at]);
            (header[at].clone(), words.then(|| WordSet::new(&header[at], MOST_CATEGORIES)))
        };
        let words = !target.regression && holds_words(&label);
        let label = words.then(|| WordSet::new(&header[wanted.label], MOST_CLASSES));
        WordCollection { features: wanted.features.iter().zip(&features).map(feature).collect(), label }
    });
    if survey.features.len() != wanted.features.len() {
        let problem = ImportProblem::Dim { expected: survey.features.len(), got: wanted.features.len() };
        return Err(ImportError::file(path, problem));
    }
    let mut sets: Vec<(&str, Leaf, &mut WordSet)> = Vec::new();
    for ((&at, leaf), (_, set)) in wanted.features.iter().zip(features).zip(&mut survey.features) {
        sets.extend(set.as_mut().map(|set| (header[at].as_str(), leaf, set)));
    }
    sets.extend(survey.label.as_mut().map(|set| (header[wanted.label].as_str(), label, set)));
    let leaves: Vec<Leaf> = sets.iter().map(|(_, leaf, _)| leaf.clone()).collect();
    let mut before = 0;
    columns::for_each_batch(
        &file,
        &leaves,
        BATCH,
        |error| damaged(path, &error),
        |batches| {
            for ((name, leaf, set), batch) in sets.iter_mut().zip(batches) {
                let column = Column { leaf, batch };
                for i in 0..batch.rows() {
                    let added = column.word(name, i).and_then(|word| set.add(&word));
                    added.map_err(|p| ImportError::at(path, FilePosition::Row(before + i as u64), p))?;
                }
            }
            before += batches.first().map_or(0, LeafBatch::rows) as u64;
            Ok(())
        },
    )
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
        self.text(row)?.ok_or_else(|| ImportProblem::MissingValue { column: name.to_owned() })
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
            return Err(ImportProblem::MissingValue { column: name.to_owned() });
        }
        for i in self.batch.range(row) {
            match (self.leaf.of, self.batch.number(i), self.batch.bytes(i)) {
                (_, Some(number), _) => numbers.push(number),
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
}

impl WantedColumns {
    fn find(path: &Path, header: &[String], columns: &TableColumns) -> Result<Self, ImportError> {
        let column = |name: &str| super::delimited::column(path, header, name);
        Ok(Self {
            device: columns.device.as_deref().map(column).transpose()?,
            split: columns.split.as_deref().map(column).transpose()?,
            label: column(&columns.label)?,
            features: feature_columns(path, header, columns)?,
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
    encoding: &'b TableEncoding,
    classes: Option<usize>,
    row: &'b mut Vec<f32>,
}

impl<'b> BatchRows<'b> {
    /// Assigns the columns in the order of [`WantedColumns::all`].
    fn new(
        columns: &'b [Column<'b>],
        wanted: &WantedColumns,
        label_name: &'b str,
        encoding: &'b TableEncoding,
        target: &ImportTarget,
        row: &'b mut Vec<f32>,
    ) -> Self {
        let (features, rest) = columns.split_at(wanted.features.len());
        let mut rest = rest.iter().copied();
        let mut next = || rest.next().expect("each wanted column is read");
        Self {
            device: wanted.device.map(|_| next()),
            split: wanted.split.map(|_| next()),
            label: next(),
            label_name,
            features,
            encoding,
            classes: target.classes,
            row,
        }
    }

    fn push(&mut self, i: usize, spool: &mut FeatureSpool) -> Result<(), RowFailure> {
        self.row.clear();
        for (column, (name, feature)) in self.features.iter().zip(&self.encoding.features) {
            match feature {
                FeatureEncoding::Number => column.append(name, i, self.row)?,
                FeatureEncoding::Words(words) => {
                    words.push_one_hot(&column.word(name, i)?, self.row)?;
                }
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
        match &self.encoding.label {
            LabelEncoding::Words(words) => {
                let class = words.number(&self.label.word(self.label_name, i)?)?;
                spool.spool.label(in_range(class, self.classes)?);
            }
            LabelEncoding::Value => spool.spool.value(finite(self.number(i)? as f32)?),
            LabelEncoding::Class => {
                let label = self.number(i)?;
                if label.fract() != 0.0 || !(0.0..=f64::from(u32::MAX)).contains(&label) {
                    return Err(ImportProblem::Label(label.to_string()).into());
                }
                spool.spool.label(class(label as u32, self.classes)?);
            }
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
    let image = image::decode_png(bytes)?;
    row.extend(image.pixels.iter().map(|&level| f32::from(level)));
    Ok(())
}
