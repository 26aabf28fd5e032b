//! Parquet files with one row per example, the format of federated data sets on Hugging Face.
//!
//! Feature columns may be numbers, lists of numbers (nested or not), or images: PNG bytes, alone or
//! in the field `bytes` of a struct. The features of a row are the concatenated features of its
//! columns.

use std::fs::File;
use std::path::{Path, PathBuf};

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type, UInt32Type,
    UInt64Type,
};
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::DataType;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use super::encoding::{
    FeatureEncoding, LabelEncoding, MOST_CATEGORIES, TableEncoding, WordCollection, WordSet,
};
use super::error::{FilePosition, ImportError, ImportProblem};
use super::features::{FeatureSpool, Features};
use super::image;
use super::table::{TableColumns, class, feature_columns, finite, in_range, parse_split};
use super::{ImportTarget, Imported};
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
    let parquet =
        |error: &dyn std::fmt::Display| ImportError::file(path, ImportProblem::Parquet(error.to_string()));
    let file = File::open(path).map_err(|source| ImportError::file(path, source))?;
    let builder = ParquetRecordBatchReaderBuilder::try_new(file).map_err(|error| parquet(&error))?;
    let header: Vec<String> = builder.schema().fields().iter().map(|field| field.name().clone()).collect();
    let wanted = WantedColumns::find(path, &header, columns)?;
    let mask = ProjectionMask::roots(builder.parquet_schema(), wanted.all());
    let reader =
        builder.with_projection(mask).with_batch_size(BATCH).build().map_err(|error| parquet(&error))?;
    let mut row = 0;
    for batch in reader {
        let batch = batch.map_err(|error| parquet(&error))?;
        let mut rows = BatchRows::new(path, &batch, &header, &wanted, encoding, target)?;
        if spool.is_none() {
            let grey = features == Features::Auto && rows.are_bytes();
            let features = if grey { Features::GreyLevels } else { features };
            *spool = Some(FeatureSpool::new(target, features)?);
        }
        let spool = spool.as_mut().expect("it was just made");
        for i in 0..batch.num_rows() {
            rows.push(i, spool).map_err(|failure| failure.at(path, row))?;
            row += 1;
        }
    }
    Ok(())
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
    let parquet =
        |error: &dyn std::fmt::Display| ImportError::file(path, ImportProblem::Parquet(error.to_string()));
    let file = File::open(path).map_err(|source| ImportError::file(path, source))?;
    let builder = ParquetRecordBatchReaderBuilder::try_new(file).map_err(|error| parquet(&error))?;
    let fields = builder.schema().fields().clone();
    let header: Vec<String> = fields.iter().map(|field| field.name().clone()).collect();
    let wanted = WantedColumns::find(path, &header, columns)?;
    let survey = survey.get_or_insert_with(|| {
        let feature = |&at: &usize| {
            let words = holds_words(fields[at].data_type()) || columns.categories.contains(&header[at]);
            (header[at].clone(), words.then(|| WordSet::new(&header[at], MOST_CATEGORIES)))
        };
        let words = !target.regression && holds_words(fields[wanted.label].data_type());
        let label = words.then(|| WordSet::new(&header[wanted.label], MOST_CLASSES));
        WordCollection { features: wanted.features.iter().map(feature).collect(), label }
    });
    if survey.features.len() != wanted.features.len() {
        let problem = ImportProblem::Dim { expected: survey.features.len(), got: wanted.features.len() };
        return Err(ImportError::file(path, problem));
    }
    let features = wanted.features.iter().zip(&mut survey.features);
    let mut sets: Vec<(usize, &mut WordSet)> =
        features.filter_map(|(&at, (_, set))| Some((at, set.as_mut()?))).collect();
    sets.extend(survey.label.as_mut().map(|set| (wanted.label, set)));
    if sets.is_empty() {
        return Ok(());
    }
    let mask = ProjectionMask::roots(builder.parquet_schema(), sets.iter().map(|(at, _)| *at));
    let reader =
        builder.with_projection(mask).with_batch_size(BATCH).build().map_err(|error| parquet(&error))?;
    let mut before = 0;
    for batch in reader {
        let batch = batch.map_err(|error| parquet(&error))?;
        for (at, set) in &mut sets {
            let name = &header[*at];
            let missing = || ImportProblem::Missing { what: "the column", name: name.clone() };
            let column =
                batch.column_by_name(name).ok_or_else(missing).map_err(|p| ImportError::file(path, p))?;
            for i in 0..batch.num_rows() {
                let added = word(column, name, i).and_then(|word| set.add(&word));
                added.map_err(|p| ImportError::at(path, FilePosition::Row(before + i as u64), p))?;
            }
        }
        before += batch.num_rows() as u64;
    }
    Ok(())
}

fn holds_words(of: &DataType) -> bool {
    match of {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => true,
        DataType::Dictionary(_, values) => holds_words(values),
        _ => false,
    }
}

/// Returns the word of a row; a number as text if a column of numbers is read as words.
fn word(column: &ArrayRef, name: &str, i: usize) -> Result<String, ImportProblem> {
    if column.is_null(i) {
        return Err(ImportProblem::MissingValue { column: name.to_owned() });
    }
    Ok(match column.data_type() {
        DataType::Utf8 => column.as_string::<i32>().value(i).to_owned(),
        DataType::LargeUtf8 => column.as_string::<i64>().value(i).to_owned(),
        DataType::Utf8View => column.as_string_view().value(i).to_owned(),
        DataType::Dictionary(..) => {
            let dictionary = column.as_any_dictionary();
            let key = dictionary.normalized_keys()[i];
            return word(dictionary.values(), name, key);
        }
        _ => {
            let mut number = Vec::with_capacity(1);
            append(column, name, i, &mut number)?;
            number.iter().map(f32::to_string).collect::<Vec<_>>().join(" ")
        }
    })
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
    device: Option<&'b ArrayRef>,
    split: Option<&'b ArrayRef>,
    label: &'b ArrayRef,
    label_name: &'b str,
    features: Vec<&'b ArrayRef>,
    encoding: &'b TableEncoding,
    classes: Option<usize>,
    row: Vec<f32>,
}

impl<'b> BatchRows<'b> {
    fn new(
        path: &Path,
        batch: &'b RecordBatch,
        header: &'b [String],
        wanted: &WantedColumns,
        encoding: &'b TableEncoding,
        target: &ImportTarget,
    ) -> Result<Self, ImportError> {
        let column = |&index: &usize| {
            let name = &header[index];
            batch.column_by_name(name).ok_or_else(|| {
                ImportError::file(path, ImportProblem::Missing { what: "the column", name: name.clone() })
            })
        };
        Ok(Self {
            device: wanted.device.as_ref().map(column).transpose()?,
            split: wanted.split.as_ref().map(column).transpose()?,
            label: column(&wanted.label)?,
            label_name: &header[wanted.label],
            features: wanted.features.iter().map(column).collect::<Result<_, _>>()?,
            encoding,
            classes: target.classes,
            row: Vec::new(),
        })
    }

    /// Whether the features are bytes or images, that is, grey levels.
    fn are_bytes(&self) -> bool {
        self.features.iter().all(|column| holds_bytes(column.data_type()))
    }

    fn push(&mut self, i: usize, spool: &mut FeatureSpool) -> Result<(), RowFailure> {
        self.row.clear();
        for (column, (name, feature)) in self.features.iter().zip(&self.encoding.features) {
            match feature {
                FeatureEncoding::Number => append(column, name, i, &mut self.row)?,
                FeatureEncoding::Words(words) => {
                    words.push_one_hot(&word(column, name, i)?, &mut self.row)?;
                }
            }
        }
        spool.check(&self.row)?;
        let id = self.device.map_or(Ok("all".to_owned()), |device| id(device, i))?;
        if id.trim().is_empty() {
            return Err(ImportProblem::UnnamedDevice.into());
        }
        let split = match self.split {
            None => None,
            Some(column) => Some(parse_split(&word(column, "split", i)?)?),
        };
        let device = spool.spool.device_in(&id, split);
        spool.row(device, &self.row)?;
        match &self.encoding.label {
            LabelEncoding::Words(words) => {
                let class = words.number(&word(self.label, self.label_name, i)?)?;
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
        append(self.label, self.label_name, i, &mut label)?;
        match label[..] {
            [label] => Ok(label.into()),
            _ => Err(ImportProblem::Label(format!("{label:?}"))),
        }
    }
}

fn holds_bytes(of: &DataType) -> bool {
    match of {
        DataType::UInt8 | DataType::Binary | DataType::LargeBinary | DataType::Struct(_) => true,
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            holds_bytes(item.data_type())
        }
        _ => false,
    }
}

/// Returns the identity of a device: a string or a whole number.
fn id(column: &ArrayRef, i: usize) -> Result<String, ImportProblem> {
    if column.is_null(i) {
        return Err(ImportProblem::UnnamedDevice);
    }
    Ok(match column.data_type() {
        DataType::Utf8 => column.as_string::<i32>().value(i).to_owned(),
        DataType::LargeUtf8 => column.as_string::<i64>().value(i).to_owned(),
        DataType::Utf8View => column.as_string_view().value(i).to_owned(),
        DataType::Int32 => column.as_primitive::<Int32Type>().value(i).to_string(),
        DataType::Int64 => column.as_primitive::<Int64Type>().value(i).to_string(),
        DataType::UInt32 => column.as_primitive::<UInt32Type>().value(i).to_string(),
        DataType::UInt64 => column.as_primitive::<UInt64Type>().value(i).to_string(),
        other => {
            return Err(ImportProblem::Unsupported {
                what: "the device column".to_owned(),
                found: other.to_string(),
                supported: "strings and whole numbers",
            });
        }
    })
}

/// Appends the numbers of a value.
fn append(column: &ArrayRef, name: &str, i: usize, row: &mut Vec<f32>) -> Result<(), ImportProblem> {
    if column.is_null(i) {
        return Err(ImportProblem::MissingValue { column: name.to_owned() });
    }
    match column.data_type() {
        DataType::UInt8 => row.push(column.as_primitive::<UInt8Type>().value(i).into()),
        DataType::Int8 => row.push(column.as_primitive::<Int8Type>().value(i).into()),
        DataType::UInt16 => row.push(column.as_primitive::<UInt16Type>().value(i).into()),
        DataType::Int16 => row.push(column.as_primitive::<Int16Type>().value(i).into()),
        DataType::UInt32 => row.push(column.as_primitive::<UInt32Type>().value(i) as f32),
        DataType::Int32 => row.push(column.as_primitive::<Int32Type>().value(i) as f32),
        DataType::UInt64 => row.push(column.as_primitive::<UInt64Type>().value(i) as f32),
        DataType::Int64 => row.push(column.as_primitive::<Int64Type>().value(i) as f32),
        DataType::Float32 => row.push(column.as_primitive::<Float32Type>().value(i)),
        DataType::Float64 => row.push(column.as_primitive::<Float64Type>().value(i) as f32),
        DataType::Boolean => row.push(f32::from(u8::from(column.as_boolean().value(i)))),
        DataType::List(_) => append_all(&column.as_list::<i32>().value(i), name, row)?,
        DataType::LargeList(_) => append_all(&column.as_list::<i64>().value(i), name, row)?,
        DataType::FixedSizeList(..) => append_all(&column.as_fixed_size_list().value(i), name, row)?,
        DataType::Binary => append_image(column.as_binary::<i32>().value(i), row)?,
        DataType::LargeBinary => append_image(column.as_binary::<i64>().value(i), row)?,
        DataType::Struct(_) => match column.as_struct().column_by_name("bytes") {
            Some(bytes) => append(bytes, name, i, row)?,
            None => return Err(ImportProblem::Missing { what: "the field", name: "bytes".to_owned() }),
        },
        other => {
            return Err(ImportProblem::Unsupported {
                what: format!("the column {name:?}"),
                found: other.to_string(),
                supported: "numbers, words, lists of numbers and PNG images",
            });
        }
    }
    Ok(())
}

fn append_all(values: &ArrayRef, name: &str, row: &mut Vec<f32>) -> Result<(), ImportProblem> {
    (0..values.len()).try_for_each(|i| append(values, name, i, row))
}

fn append_image(bytes: &[u8], row: &mut Vec<f32>) -> Result<(), ImportProblem> {
    let image = image::decode_png(bytes)?;
    row.extend(image.pixels.iter().map(|&level| f32::from(level)));
    Ok(())
}
