//! Parquet files with a row per example, as the federated data sets of Hugging Face come.
//!
//! Feature columns may be numbers, lists of numbers (nested or not), or images: PNG bytes, alone or in the field
//! `bytes` of a struct. The features of a row are those of its columns, one after the other.

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

use super::encoding::{Encoding, Feature, Label, MOST_CATEGORIES, Survey, WordSet};
use super::error::{ImportError, Position, Problem};
use super::features::{FeatureSpool, Features};
use super::image;
use super::table::{Columns, class, feature_columns, finite, in_range, parse_split};
use super::{Imported, Target};
use crate::writer::MOST_CLASSES;
use deltafl::data::Provenance;

/// Rows read at a time.
const BATCH: usize = 1024;

/// Imports Parquet files, one after the other.
pub fn import(
    paths: &[PathBuf],
    columns: &Columns,
    features: Features,
    target: &Target,
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
            Err(ImportError::file(path, Problem::Nothing("no examples")))
        }
    }
}

fn read_file(
    path: &Path,
    columns: &Columns,
    encoding: &Encoding,
    features: Features,
    target: &Target,
    spool: &mut Option<FeatureSpool>,
) -> Result<(), ImportError> {
    let parquet =
        |error: &dyn std::fmt::Display| ImportError::file(path, Problem::Parquet(error.to_string()));
    let file = File::open(path).map_err(|source| ImportError::file(path, source))?;
    let builder = ParquetRecordBatchReaderBuilder::try_new(file).map_err(|error| parquet(&error))?;
    let header: Vec<String> = builder.schema().fields().iter().map(|field| field.name().clone()).collect();
    let wanted = Wanted::find(path, &header, columns)?;
    let mask = ProjectionMask::roots(builder.parquet_schema(), wanted.all());
    let reader =
        builder.with_projection(mask).with_batch_size(BATCH).build().map_err(|error| parquet(&error))?;
    let mut row = 0;
    for batch in reader {
        let batch = batch.map_err(|error| parquet(&error))?;
        let mut rows = Rows::new(path, &batch, &header, &wanted, encoding, target)?;
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

/// How the columns are read: strings hold words, and all of them must be known before the first row is written.
fn survey(paths: &[PathBuf], columns: &Columns, target: &Target) -> Result<Encoding, ImportError> {
    let mut survey = None;
    for path in paths {
        survey_file(path, columns, target, &mut survey)?;
    }
    Ok(survey.unwrap_or_default().finish(target.regression))
}

fn survey_file(
    path: &Path,
    columns: &Columns,
    target: &Target,
    survey: &mut Option<Survey>,
) -> Result<(), ImportError> {
    let parquet =
        |error: &dyn std::fmt::Display| ImportError::file(path, Problem::Parquet(error.to_string()));
    let file = File::open(path).map_err(|source| ImportError::file(path, source))?;
    let builder = ParquetRecordBatchReaderBuilder::try_new(file).map_err(|error| parquet(&error))?;
    let fields = builder.schema().fields().clone();
    let header: Vec<String> = fields.iter().map(|field| field.name().clone()).collect();
    let wanted = Wanted::find(path, &header, columns)?;
    let survey = survey.get_or_insert_with(|| {
        let feature = |&at: &usize| {
            let words = holds_words(fields[at].data_type()) || columns.categories.contains(&header[at]);
            (header[at].clone(), words.then(|| WordSet::new(&header[at], MOST_CATEGORIES)))
        };
        let words = !target.regression && holds_words(fields[wanted.label].data_type());
        let label = words.then(|| WordSet::new(&header[wanted.label], MOST_CLASSES));
        Survey { features: wanted.features.iter().map(feature).collect(), label }
    });
    if survey.features.len() != wanted.features.len() {
        let problem = Problem::Dim { expected: survey.features.len(), got: wanted.features.len() };
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
            let missing = || Problem::Missing { what: "the column", name: name.clone() };
            let column =
                batch.column_by_name(name).ok_or_else(missing).map_err(|p| ImportError::file(path, p))?;
            for i in 0..batch.num_rows() {
                let added = word(column, name, i).and_then(|word| set.add(&word));
                added.map_err(|p| ImportError::at(path, Position::Row(before + i as u64), p))?;
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

/// The word of a row; a number where a column of numbers is read as words.
fn word(column: &ArrayRef, name: &str, i: usize) -> Result<String, Problem> {
    if column.is_null(i) {
        return Err(Problem::MissingValue { column: name.to_owned() });
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

/// A problem in a row, or an error that has its place already.
enum Failure {
    Row(Problem),
    Placed(ImportError),
}

impl Failure {
    fn at(self, path: &Path, row: u64) -> ImportError {
        match self {
            Self::Row(problem) => ImportError::at(path, Position::Row(row), problem),
            Self::Placed(error) => error,
        }
    }
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        Self::Row(problem)
    }
}

impl From<ImportError> for Failure {
    fn from(error: ImportError) -> Self {
        Self::Placed(error)
    }
}

/// The columns to read.
struct Wanted {
    device: Option<usize>,
    split: Option<usize>,
    label: usize,
    features: Vec<usize>,
}

impl Wanted {
    fn find(path: &Path, header: &[String], columns: &Columns) -> Result<Self, ImportError> {
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
struct Rows<'b> {
    device: Option<&'b ArrayRef>,
    split: Option<&'b ArrayRef>,
    label: &'b ArrayRef,
    label_name: &'b str,
    features: Vec<&'b ArrayRef>,
    encoding: &'b Encoding,
    classes: Option<usize>,
    row: Vec<f32>,
}

impl<'b> Rows<'b> {
    fn new(
        path: &Path,
        batch: &'b RecordBatch,
        header: &'b [String],
        wanted: &Wanted,
        encoding: &'b Encoding,
        target: &Target,
    ) -> Result<Self, ImportError> {
        let column = |&index: &usize| {
            let name = &header[index];
            batch.column_by_name(name).ok_or_else(|| {
                ImportError::file(path, Problem::Missing { what: "the column", name: name.clone() })
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

    /// Whether the features are bytes or images, which are grey levels.
    fn are_bytes(&self) -> bool {
        self.features.iter().all(|column| holds_bytes(column.data_type()))
    }

    fn push(&mut self, i: usize, spool: &mut FeatureSpool) -> Result<(), Failure> {
        self.row.clear();
        for (column, (name, feature)) in self.features.iter().zip(&self.encoding.features) {
            match feature {
                Feature::Number => append(column, name, i, &mut self.row)?,
                Feature::Words(words) => words.push_one_hot(&word(column, name, i)?, &mut self.row)?,
            }
        }
        spool.check(&self.row)?;
        let id = self.device.map_or(Ok("all".to_owned()), |device| id(device, i))?;
        if id.trim().is_empty() {
            return Err(Problem::UnnamedDevice.into());
        }
        let split = match self.split {
            None => None,
            Some(column) => Some(parse_split(&word(column, "split", i)?)?),
        };
        let device = spool.spool.device_in(&id, split);
        spool.row(device, &self.row)?;
        match &self.encoding.label {
            Label::Words(words) => {
                let class = words.number(&word(self.label, self.label_name, i)?)?;
                spool.spool.label(in_range(class, self.classes)?);
            }
            Label::Value => spool.spool.value(finite(self.number(i)? as f32)?),
            Label::Class => {
                let label = self.number(i)?;
                if label.fract() != 0.0 || !(0.0..=f64::from(u32::MAX)).contains(&label) {
                    return Err(Problem::Label(label.to_string()).into());
                }
                spool.spool.label(class(label as u32, self.classes)?);
            }
        }
        Ok(())
    }

    /// The label as a number. A whole number above 2^24 is none of the classes, whatever a float makes of it.
    fn number(&self, i: usize) -> Result<f64, Problem> {
        let mut label = Vec::with_capacity(1);
        append(self.label, self.label_name, i, &mut label)?;
        match label[..] {
            [label] => Ok(label.into()),
            _ => Err(Problem::Label(format!("{label:?}"))),
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

/// The identity of a device: a string or a whole number.
fn id(column: &ArrayRef, i: usize) -> Result<String, Problem> {
    if column.is_null(i) {
        return Err(Problem::UnnamedDevice);
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
            return Err(Problem::Unsupported {
                what: "the device column".to_owned(),
                found: other.to_string(),
                supported: "strings and whole numbers",
            });
        }
    })
}

/// Appends the numbers of a value.
fn append(column: &ArrayRef, name: &str, i: usize, row: &mut Vec<f32>) -> Result<(), Problem> {
    if column.is_null(i) {
        return Err(Problem::MissingValue { column: name.to_owned() });
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
            None => return Err(Problem::Missing { what: "the field", name: "bytes".to_owned() }),
        },
        other => {
            return Err(Problem::Unsupported {
                what: format!("the column {name:?}"),
                found: other.to_string(),
                supported: "numbers, words, lists of numbers and PNG images",
            });
        }
    }
    Ok(())
}

fn append_all(values: &ArrayRef, name: &str, row: &mut Vec<f32>) -> Result<(), Problem> {
    (0..values.len()).try_for_each(|i| append(values, name, i, row))
}

fn append_image(bytes: &[u8], row: &mut Vec<f32>) -> Result<(), Problem> {
    let image = image::decode_png(bytes)?;
    row.extend(image.pixels.iter().map(|&level| f32::from(level)));
    Ok(())
}
