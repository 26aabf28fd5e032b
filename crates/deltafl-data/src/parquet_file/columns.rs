//! The values of the columns of a Parquet file, row by row.
//!
//! A column of a table has one leaf: itself, the items of its lists, or the field `bytes` of its
//! structs. The lists of a row are concatenated.

use std::fmt;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};

use parquet::basic::{ConvertedType, LogicalType, Repetition, TimeUnit, Type as PhysicalType};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_column_reader};
use parquet::data_type::DataType;
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader as _, RowGroupReader};
use parquet::file::serialized_reader::SerializedFileReader;
use parquet::schema::types::{SchemaDescriptor, Type};

use super::batch::{LeafBatch, LeafValues};
use super::pages::CheckedPages;

/// An open file.
pub(crate) type ParquetReader = SerializedFileReader<File>;

/// The type of the values of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeafType {
    Boolean,
    Int8,
    Int16,
    Int32,
    Int64,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
    Float32,
    Float64,
    Utf8,
    Binary,
    /// A half-precision number, in two bytes.
    Float16,
    /// Days since 1970-01-01.
    Date,
    /// This many ticks per day since 1970-01-01.
    Timestamp {
        per_day: i64,
    },
    /// Whole numbers divided by a power of ten.
    Decimal {
        scale: i32,
    },
}

impl fmt::Display for LeafType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// The leaf of a column.
#[derive(Clone, Debug)]
pub(crate) struct Leaf {
    pub(crate) of: LeafType,
    /// Whether the value of a row is a list.
    pub(crate) list: bool,
    /// Whether the leaf is a field of a struct.
    pub(crate) in_struct: bool,
    /// Index among all leaves of the file.
    index: usize,
    /// The definition level of a value.
    defined: i16,
    /// The definition levels of empty lists.
    empty: Vec<i16>,
}

/// The reason why a column has no leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoLeaf {
    /// A struct without the field `bytes`.
    NoBytes,
    /// A column that is a map, a list that violates the format, or a type without use.
    Other(&'static str),
}

impl Leaf {
    /// Returns the leaf of a column of the table.
    pub(crate) fn find(schema: &SchemaDescriptor, column: usize) -> Result<Self, NoLeaf> {
        let fields = schema.root_schema().get_fields();
        let index = fields[..column].iter().map(|field| leaves(field)).sum();
        let of = LeafType::Binary;
        let mut leaf = Self { of, list: false, in_struct: false, index, defined: 0, empty: Vec::new() };
        leaf.descend(&fields[column])?;
        Ok(leaf)
    }

    /// Adds the levels of a node, and continues with its leaf.
    fn descend(&mut self, node: &Type) -> Result<(), NoLeaf> {
        let info = node.get_basic_info();
        match info.has_repetition().then(|| info.repetition()) {
            Some(Repetition::OPTIONAL) => self.defined += 1,
            Some(Repetition::REPEATED) => {
                self.empty.push(self.defined);
                self.defined += 1;
                self.list = true;
            }
            _ => {}
        }
        if node.is_primitive() {
            self.of = leaf_type(node)?;
            return Ok(());
        }
        let fields = node.get_fields();
        let annotated = |logical: &LogicalType, converted: &[ConvertedType]| {
            info.logical_type_ref() == Some(logical) || converted.contains(&info.converted_type())
        };
        if annotated(&LogicalType::Map, &[ConvertedType::MAP, ConvertedType::MAP_KEY_VALUE]) {
            return Err(NoLeaf::Other("Map"));
        }
        if annotated(&LogicalType::List, &[ConvertedType::LIST]) {
            let [repeated] = fields else { return Err(NoLeaf::Other("List")) };
            return self.descend_items(node.name(), repeated);
        }
        self.in_struct = true;
        let at = fields.iter().position(|field| field.name() == "bytes").ok_or(NoLeaf::NoBytes)?;
        self.index += fields[..at].iter().map(|field| leaves(field)).sum::<usize>();
        self.descend(&fields[at])
    }

    /// Descends into the items of a list. The repeated group around an item is part of the list,
    /// except in the old forms of the format, in which it is the item.
    fn descend_items(&mut self, list: &str, repeated: &Type) -> Result<(), NoLeaf> {
        let is_item = repeated.is_primitive()
            || repeated.get_fields().len() != 1
            || repeated.name() == "array"
            || repeated.name() == format!("{list}_tuple");
        if is_item {
            return self.descend(repeated);
        }
        self.empty.push(self.defined);
        self.defined += 1;
        self.list = true;
        self.descend(&repeated.get_fields()[0])
    }

    /// Whether no value can be missing.
    pub(crate) fn is_required(&self) -> bool {
        self.defined == 0
    }

    /// Returns a reader of the values of a row group.
    pub(crate) fn reader(&self, group: &dyn RowGroupReader) -> Result<LeafReader, ParquetError> {
        let column = group.metadata().column(self.index).column_descr_ptr();
        let pages = undamaged(|| group.get_column_page_reader(self.index))?;
        let values = get_column_reader(column.clone(), Box::new(CheckedPages::new(pages, column)));
        Ok(LeafReader { leaf: self.clone(), values })
    }
}

/// Returns the number of leaves of a node.
fn leaves(node: &Type) -> usize {
    if node.is_primitive() { 1 } else { node.get_fields().iter().map(|field| leaves(field)).sum() }
}

fn leaf_type(node: &Type) -> Result<LeafType, NoLeaf> {
    let info = node.get_basic_info();
    let (logical, converted) = (info.logical_type_ref(), info.converted_type());
    let plain = logical.is_none() && converted == ConvertedType::NONE;
    let int = match (logical, converted) {
        (Some(LogicalType::Integer(int)), _) => Some((int.bit_width, int.is_signed)),
        (None, ConvertedType::INT_8) => Some((8, true)),
        (None, ConvertedType::INT_16) => Some((16, true)),
        (None, ConvertedType::INT_32) => Some((32, true)),
        (None, ConvertedType::INT_64) => Some((64, true)),
        (None, ConvertedType::UINT_8) => Some((8, false)),
        (None, ConvertedType::UINT_16) => Some((16, false)),
        (None, ConvertedType::UINT_32) => Some((32, false)),
        (None, ConvertedType::UINT_64) => Some((64, false)),
        _ => None,
    };
    if let Some(special) = special_type(node) {
        return Ok(special);
    }
    Ok(match (node.get_physical_type(), int) {
        (PhysicalType::BOOLEAN, _) => LeafType::Boolean,
        (PhysicalType::INT32, Some((8, true))) => LeafType::Int8,
        (PhysicalType::INT32, Some((16, true))) => LeafType::Int16,
        (PhysicalType::INT32, Some((32, true))) => LeafType::Int32,
        (PhysicalType::INT32, Some((8, false))) => LeafType::UInt8,
        (PhysicalType::INT32, Some((16, false))) => LeafType::UInt16,
        (PhysicalType::INT32, Some((32, false))) => LeafType::UInt32,
        (PhysicalType::INT32, None) if plain => LeafType::Int32,
        (PhysicalType::INT64, Some((64, true))) => LeafType::Int64,
        (PhysicalType::INT64, Some((64, false))) => LeafType::UInt64,
        (PhysicalType::INT64, None) if plain => LeafType::Int64,
        (PhysicalType::INT32 | PhysicalType::INT64, _) => {
            return Err(NoLeaf::Other("times of day"));
        }
        (PhysicalType::FLOAT, _) => LeafType::Float32,
        (PhysicalType::DOUBLE, _) => LeafType::Float64,
        (PhysicalType::BYTE_ARRAY, _) => match (logical, converted) {
            (Some(LogicalType::String | LogicalType::Json), _)
            | (None, ConvertedType::UTF8 | ConvertedType::JSON) => LeafType::Utf8,
            _ => LeafType::Binary,
        },
        (PhysicalType::INT96, _) => return Err(NoLeaf::Other("times")),
        (PhysicalType::FIXED_LEN_BYTE_ARRAY, _) => {
            return Err(NoLeaf::Other("bytes of a fixed length"));
        }
    })
}

/// Returns the type of dates, timestamps, decimals and half-precision numbers.
fn special_type(node: &Type) -> Option<LeafType> {
    const SECONDS: i64 = 86_400;
    let info = node.get_basic_info();
    let (logical, converted, physical) =
        (info.logical_type_ref(), info.converted_type(), node.get_physical_type());
    let timestamp = |per_second: i64| LeafType::Timestamp { per_day: SECONDS * per_second };
    match (logical, converted, physical) {
        (Some(LogicalType::Date), ..) | (None, ConvertedType::DATE, _) if physical == PhysicalType::INT32 => {
            Some(LeafType::Date)
        }
        (Some(LogicalType::Timestamp(stamp)), _, PhysicalType::INT64) => Some(timestamp(match stamp.unit {
            TimeUnit::MILLIS => 1_000,
            TimeUnit::MICROS => 1_000_000,
            TimeUnit::NANOS => 1_000_000_000,
        })),
        (None, ConvertedType::TIMESTAMP_MILLIS, PhysicalType::INT64) => Some(timestamp(1_000)),
        (None, ConvertedType::TIMESTAMP_MICROS, PhysicalType::INT64) => Some(timestamp(1_000_000)),
        // The old form of timestamps: nanoseconds of the day, then the Julian day.
        (_, _, PhysicalType::INT96) => Some(LeafType::Timestamp { per_day: 1 }),
        (Some(LogicalType::Decimal(decimal)), ..) => Some(LeafType::Decimal { scale: decimal.scale }),
        (None, ConvertedType::DECIMAL, _) => match node {
            Type::PrimitiveType { scale, .. } => Some(LeafType::Decimal { scale: *scale }),
            Type::GroupType { .. } => None,
        },
        (Some(LogicalType::Float16), ..) => Some(LeafType::Float16),
        // A column without values, of no type.
        (Some(LogicalType::Unknown), _, PhysicalType::INT32) => Some(LeafType::Int32),
        _ => None,
    }
}

/// A reader of the values of one leaf in a row group.
pub(crate) struct LeafReader {
    leaf: Leaf,
    values: ColumnReader,
}

impl LeafReader {
    /// Reads at most so many rows. The batch is empty at the end of the row group.
    pub(crate) fn read(&mut self, rows: usize) -> Result<LeafBatch, ParquetError> {
        let leaf = &self.leaf;
        match &mut self.values {
            ColumnReader::BoolColumnReader(reader) => read(reader, leaf, rows, LeafValues::Bool),
            ColumnReader::Int32ColumnReader(reader) => read(reader, leaf, rows, LeafValues::I32),
            ColumnReader::Int64ColumnReader(reader) => read(reader, leaf, rows, LeafValues::I64),
            ColumnReader::FloatColumnReader(reader) => read(reader, leaf, rows, LeafValues::F32),
            ColumnReader::DoubleColumnReader(reader) => read(reader, leaf, rows, LeafValues::F64),
            ColumnReader::ByteArrayColumnReader(reader) => read(reader, leaf, rows, LeafValues::Bytes),
            ColumnReader::Int96ColumnReader(reader) => read(reader, leaf, rows, LeafValues::I96),
            ColumnReader::FixedLenByteArrayColumnReader(reader) => {
                read(reader, leaf, rows, LeafValues::Fixed)
            }
        }
    }
}

/// Calls a function of the crate, which panics on some damaged columns. A panic is an error here.
fn undamaged<T>(call: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, ParquetError> {
    let damaged = |_| ParquetError::General("a column is damaged".to_owned());
    catch_unwind(AssertUnwindSafe(call)).map_err(damaged)?
}

fn read<T: DataType>(
    reader: &mut ColumnReaderImpl<T>,
    leaf: &Leaf,
    rows: usize,
    values: impl Fn(Vec<T::T>) -> LeafValues,
) -> Result<LeafBatch, ParquetError> {
    let (mut read, mut definitions, mut repetitions) = (Vec::new(), Vec::new(), Vec::new());
    let (rows, ..) =
        undamaged(|| reader.read_records(rows, Some(&mut definitions), Some(&mut repetitions), &mut read))?;
    let mut batch =
        LeafBatch { of: leaf.of, values: LeafValues::None, ends: Vec::new(), missing: Vec::new() };
    if definitions.is_empty() && repetitions.is_empty() {
        batch.ends = (1..=read.len()).collect();
    } else {
        batch.ends.reserve(rows);
        let mut count = 0;
        for i in 0..definitions.len().max(repetitions.len()) {
            if i > 0 && repetitions.get(i).is_none_or(|&level| level == 0) {
                batch.ends.push(count);
            }
            match definitions.get(i) {
                Some(&level) if level != leaf.defined => {
                    if !leaf.empty.contains(&level) {
                        batch.missing.push(batch.ends.len());
                    }
                }
                _ => count += 1,
            }
        }
        batch.ends.push(count);
        if count != read.len() {
            return Err(ParquetError::General("a column has fewer values than its levels".to_owned()));
        }
    }
    if batch.rows() != rows {
        return Err(ParquetError::General("a column has fewer rows than its levels".to_owned()));
    }
    batch.values = values(read);
    Ok(batch)
}

/// Opens a file and reads its metadata.
pub(crate) fn open(file: File) -> Result<ParquetReader, ParquetError> {
    SerializedFileReader::new(file)
}

/// Calls a function with the columns of each batch of rows.
pub(crate) fn for_each_batch<E>(
    file: &ParquetReader,
    leaves: &[Leaf],
    rows: usize,
    failed: impl Fn(ParquetError) -> E,
    mut batch: impl FnMut(&[LeafBatch]) -> Result<(), E>,
) -> Result<(), E> {
    for group in 0..file.num_row_groups() {
        let group = file.get_row_group(group).map_err(&failed)?;
        let readers = leaves.iter().map(|leaf| leaf.reader(&*group));
        let mut readers = readers.collect::<Result<Vec<_>, _>>().map_err(&failed)?;
        loop {
            let read = readers.iter_mut().map(|reader| reader.read(rows));
            let read = read.collect::<Result<Vec<_>, _>>().map_err(&failed)?;
            let count = read.first().map_or(0, LeafBatch::rows);
            if read.iter().any(|column| column.rows() != count) {
                let error = "the columns of a row group have different numbers of rows";
                return Err(failed(ParquetError::General(error.to_owned())));
            }
            if count == 0 {
                break;
            }
            batch(&read)?;
        }
    }
    Ok(())
}
