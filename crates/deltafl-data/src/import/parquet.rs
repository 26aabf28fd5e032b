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

use super::error::{ImportError, Position, Problem};
use super::features::{FeatureSpool, Features};
use super::image;
use super::table::{Columns, feature_columns, in_range};
use super::{Imported, Target};
use deltafl::data::Source;

/// Rows read at a time.
const BATCH: usize = 1024;

/// Imports Parquet files, one after the other.
pub fn import(
    paths: &[PathBuf],
    columns: &Columns,
    features: Features,
    target: &Target,
) -> Result<Imported, ImportError> {
    let mut source = Source::new("parquet");
    let mut spool = None;
    for path in paths {
        source.file(path);
        read_file(path, columns, features, target, &mut spool)?;
    }
    match spool {
        Some(spool) => spool.finish(target, source),
        None => {
            let path = paths.first().map_or(Path::new("."), PathBuf::as_path);
            Err(ImportError::file(path, Problem::Nothing("no examples")))
        }
    }
}

fn read_file(
    path: &Path,
    columns: &Columns,
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
        let mut rows = Rows::new(path, &batch, &header, &wanted, target)?;
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
    label: usize,
    features: Vec<usize>,
}

impl Wanted {
    fn find(path: &Path, header: &[String], columns: &Columns) -> Result<Self, ImportError> {
        let column = |name: &str| super::delimited::column(path, header, name);
        Ok(Self {
            device: columns.device.as_deref().map(column).transpose()?,
            label: column(&columns.label)?,
            features: feature_columns(path, header, columns)?,
        })
    }

    fn all(&self) -> impl Iterator<Item = usize> {
        self.features.iter().copied().chain(self.device).chain([self.label])
    }
}

/// The rows of a batch.
struct Rows<'b> {
    device: Option<&'b ArrayRef>,
    label: &'b ArrayRef,
    features: Vec<&'b ArrayRef>,
    classes: Option<usize>,
    row: Vec<f32>,
}

impl<'b> Rows<'b> {
    fn new(
        path: &Path,
        batch: &'b RecordBatch,
        header: &[String],
        wanted: &Wanted,
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
            label: column(&wanted.label)?,
            features: wanted.features.iter().map(column).collect::<Result<_, _>>()?,
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
        for column in &self.features {
            append(column, i, &mut self.row)?;
        }
        spool.check(&self.row)?;
        let mut label = Vec::with_capacity(1);
        append(self.label, i, &mut label)?;
        let class = match label[..] {
            [label] if label.fract() == 0.0 && (0.0..=65535.0).contains(&label) => label as u32,
            _ => return Err(Problem::Label(format!("{label:?}")).into()),
        };
        let class = in_range(class, self.classes)?;
        let id = self.device.map_or(Ok("all".to_owned()), |device| id(device, i))?;
        let device = spool.spool.device(&id);
        spool.row(device, &self.row)?;
        spool.spool.label(class);
        Ok(())
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
        return Err(Problem::Missing { what: "the value of", name: "device".to_owned() });
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
fn append(column: &ArrayRef, i: usize, row: &mut Vec<f32>) -> Result<(), Problem> {
    if column.is_null(i) {
        return Err(Problem::Missing { what: "the value of", name: "a feature or label".to_owned() });
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
        DataType::List(_) => append_all(&column.as_list::<i32>().value(i), row)?,
        DataType::LargeList(_) => append_all(&column.as_list::<i64>().value(i), row)?,
        DataType::FixedSizeList(..) => append_all(&column.as_fixed_size_list().value(i), row)?,
        DataType::Binary => append_image(column.as_binary::<i32>().value(i), row)?,
        DataType::LargeBinary => append_image(column.as_binary::<i64>().value(i), row)?,
        DataType::Struct(_) => match column.as_struct().column_by_name("bytes") {
            Some(bytes) => append(bytes, i, row)?,
            None => return Err(Problem::Missing { what: "the field", name: "bytes".to_owned() }),
        },
        other => {
            return Err(Problem::Unsupported {
                what: "a feature or label column".to_owned(),
                found: other.to_string(),
                supported: "numbers, lists of numbers and PNG images",
            });
        }
    }
    Ok(())
}

fn append_all(values: &ArrayRef, row: &mut Vec<f32>) -> Result<(), Problem> {
    (0..values.len()).try_for_each(|i| append(values, i, row))
}

fn append_image(bytes: &[u8], row: &mut Vec<f32>) -> Result<(), Problem> {
    let image = image::decode_png(bytes)?;
    row.extend(image.pixels.iter().map(|&level| f32::from(level)));
    Ok(())
}
