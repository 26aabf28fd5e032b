//! The values of the columns of a Parquet file, row by row.
//!
//! A column of a table has one leaf: itself, the items of its lists, or the field `bytes` of its
//! structs. The lists of a row are concatenated.

use std::fmt;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};

use parquet::basic::{ConvertedType, LogicalType, Repetition, TimeUnit, Type as PhysicalType};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_column_reader};
use parquet::data_type::{ByteArray, DataType, FixedLenByteArray, Int96};
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader as _, RowGroupReader};
use parquet::file::serialized_reader::SerializedFileReader;
use parquet::schema::types::{SchemaDescriptor, Type};

use super::pages::CheckedPages;
use crate::import::cell::Number;

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

/// The values of some rows.
pub(crate) struct LeafBatch {
    of: LeafType,
    pub(crate) values: LeafValues,
    /// The end of the values of each row.
    ends: Vec<usize>,
    /// The rows with a missing value, in ascending order.
    missing: Vec<usize>,
}

/// Values in the physical types of the format.
pub(crate) enum LeafValues {
    None,
    Bool(Vec<bool>),
    I32(Vec<i32>),
    I64(Vec<i64>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    I96(Vec<Int96>),
    Bytes(Vec<ByteArray>),
    Fixed(Vec<FixedLenByteArray>),
}

impl LeafBatch {
    pub(crate) fn rows(&self) -> usize {
        self.ends.len()
    }

    /// Whether a value of the row is null.
    pub(crate) fn is_missing(&self, row: usize) -> bool {
        self.missing.binary_search(&row).is_ok()
    }

    /// Whether a value of any row is null.
    pub(crate) fn has_missing(&self) -> bool {
        !self.missing.is_empty()
    }

    /// Returns the indices of the values of a row.
    pub(crate) fn range(&self, row: usize) -> std::ops::Range<usize> {
        let start = if row == 0 { 0 } else { self.ends[row - 1] };
        start..self.ends[row]
    }

    /// Returns a number, or `None` if the leaf contains none.
    pub(crate) fn exact_number(&self, i: usize) -> Option<Number> {
        Some(match (&self.values, self.of) {
            (values, LeafType::Decimal { scale }) => decimal(values, i, scale)?,
            (LeafValues::I32(values), LeafType::UInt32) => Number::Whole((values[i] as u32).into()),
            (LeafValues::I32(values), LeafType::Int32) => Number::Whole(values[i].into()),
            (LeafValues::I64(values), LeafType::UInt64) => Number::Whole((values[i] as u64).into()),
            (LeafValues::I64(values), LeafType::Int64) => Number::Whole(values[i].into()),
            (LeafValues::F64(values), _) => Number::Double(values[i]),
            _ => Number::Single(self.number(i)?),
        })
    }

    /// Returns the nearest `f32` of a number, or `None` if the leaf contains none.
    pub(crate) fn number(&self, i: usize) -> Option<f32> {
        Some(match (&self.values, self.of) {
            (values, LeafType::Decimal { scale }) => decimal(values, i, scale)?.as_f32(),
            (LeafValues::Fixed(values), LeafType::Float16) => half(values[i].data())?,
            (LeafValues::Bool(values), _) => f32::from(u8::from(values[i])),
            (LeafValues::I32(values), LeafType::UInt8) => f32::from(values[i] as u8),
            (LeafValues::I32(values), LeafType::Int8) => f32::from(values[i] as i8),
            (LeafValues::I32(values), LeafType::UInt16) => f32::from(values[i] as u16),
            (LeafValues::I32(values), LeafType::Int16) => f32::from(values[i] as i16),
            (LeafValues::I32(values), LeafType::UInt32) => values[i] as u32 as f32,
            (LeafValues::I32(values), LeafType::Int32) => values[i] as f32,
            (LeafValues::I64(values), LeafType::UInt64) => values[i] as u64 as f32,
            (LeafValues::I64(values), LeafType::Int64) => values[i] as f32,
            (LeafValues::F32(values), _) => values[i],
            (LeafValues::F64(values), _) => values[i] as f32,
            _ => return None,
        })
    }

    /// Returns a truth value, or `None` if the leaf contains none.
    pub(crate) fn truth(&self, i: usize) -> Option<bool> {
        match &self.values {
            LeafValues::Bool(values) => Some(values[i]),
            _ => None,
        }
    }

    /// Returns the days since 1970-01-01, or `None` if the leaf contains no dates.
    pub(crate) fn days(&self, i: usize) -> Option<f64> {
        const JULIAN_EPOCH: f64 = 2_440_588.0;
        match (&self.values, self.of) {
            (LeafValues::I32(values), LeafType::Date) => Some(values[i].into()),
            (LeafValues::I64(values), LeafType::Timestamp { per_day }) => {
                Some(values[i] as f64 / per_day as f64)
            }
            (LeafValues::I96(values), LeafType::Timestamp { .. }) => {
                let [low, high, day] = values[i].data() else { return None };
                let nanoseconds = (u64::from(*high) << 32) | u64::from(*low);
                Some(f64::from(*day) - JULIAN_EPOCH + nanoseconds as f64 / 86_400e9)
            }
            _ => None,
        }
    }

    /// Whether the values are text.
    pub(crate) fn holds_text(&self) -> bool {
        self.of == LeafType::Utf8
    }

    /// Returns a whole number as text, or `None` if the leaf contains none of 32 or 64 bits.
    pub(crate) fn whole_number(&self, i: usize) -> Option<String> {
        match self.exact_number(i)? {
            Number::Whole(whole) => Some(whole.to_string()),
            Number::Single(_) | Number::Double(_) => None,
        }
    }

    /// Returns bytes, or `None` if the leaf contains numbers.
    pub(crate) fn bytes(&self, i: usize) -> Option<&[u8]> {
        match &self.values {
            LeafValues::Bytes(values) => Some(values[i].data()),
            _ => None,
        }
    }
}

/// Returns a decimal: a whole number in two's complement, the most significant byte first, divided
/// by a power of ten.
fn decimal(values: &LeafValues, i: usize, scale: i32) -> Option<Number> {
    let unscaled = match values {
        LeafValues::I32(values) if scale == 0 => return Some(Number::Whole(values[i].into())),
        LeafValues::I64(values) if scale == 0 => return Some(Number::Whole(values[i].into())),
        LeafValues::Bytes(values) if scale == 0 && values[i].len() <= 16 => {
            return Some(Number::Whole(big_endian_whole(values[i].data())));
        }
        LeafValues::Fixed(values) if scale == 0 && values[i].len() <= 16 => {
            return Some(Number::Whole(big_endian_whole(values[i].data())));
        }
        LeafValues::I32(values) => f64::from(values[i]),
        LeafValues::I64(values) => values[i] as f64,
        LeafValues::Bytes(values) => big_endian(values[i].data()),
        LeafValues::Fixed(values) => big_endian(values[i].data()),
        _ => return None,
    };
    Some(Number::Double(unscaled / 10f64.powi(scale)))
}

fn big_endian_whole(bytes: &[u8]) -> i128 {
    let sign = bytes.first().map_or(0, |&byte| i128::from(byte.cast_signed()) >> 7);
    bytes.iter().fold(sign, |number, &byte| number << 8 | i128::from(byte))
}

fn big_endian(bytes: &[u8]) -> f64 {
    let sign = bytes.first().map_or(0.0, |byte| if byte & 0x80 == 0 { 0.0 } else { -1.0 });
    bytes.iter().fold(sign, |number, &byte| number * 256.0 + f64::from(byte))
}

/// Returns a half-precision number: a sign, 5 bits of exponent and 10 of the fraction.
fn half(bytes: &[u8]) -> Option<f32> {
    let bits = u16::from_le_bytes(bytes.try_into().ok()?);
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f32::from(bits & 0x3ff));
    let magnitude = match exponent {
        0 => fraction * 2f32.powi(-24),
        31 if fraction > 0.0 => f32::NAN,
        31 => f32::INFINITY,
        _ => (1.0 + fraction / 1024.0) * 2f32.powi(exponent - 15),
    };
    Some(if bits >> 15 == 0 { magnitude } else { -magnitude })
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
