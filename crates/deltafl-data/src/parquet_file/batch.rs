//! The values of a batch of rows of a column.

use parquet::data_type::{ByteArray, FixedLenByteArray, Int96};

use super::columns::LeafType;
use crate::import::cell::Number;

/// The values of some rows.
pub(crate) struct LeafBatch {
    pub(super) of: LeafType,
    pub(crate) values: LeafValues,
    /// The end of the values of each row.
    pub(super) ends: Vec<usize>,
    /// The rows with a missing value, in ascending order.
    pub(super) missing: Vec<usize>,
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
    pub(crate) fn number(&self, i: usize) -> Option<Number> {
        Some(match (&self.values, self.of) {
            (values, LeafType::Decimal { scale }) => decimal(values, i, scale)?,
            (LeafValues::Fixed(values), LeafType::Float16) => Number::Single(half(values[i].data())?),
            (LeafValues::Bool(values), _) => Number::Single(f32::from(u8::from(values[i]))),
            (LeafValues::I32(values), LeafType::UInt8) => Number::Whole((values[i] as u8).into()),
            (LeafValues::I32(values), LeafType::Int8) => Number::Whole((values[i] as i8).into()),
            (LeafValues::I32(values), LeafType::UInt16) => Number::Whole((values[i] as u16).into()),
            (LeafValues::I32(values), LeafType::Int16) => Number::Whole((values[i] as i16).into()),
            (LeafValues::I32(values), LeafType::UInt32) => Number::Whole((values[i] as u32).into()),
            (LeafValues::I32(values), LeafType::Int32) => Number::Whole(values[i].into()),
            (LeafValues::I64(values), LeafType::UInt64) => Number::Whole((values[i] as u64).into()),
            (LeafValues::I64(values), LeafType::Int64) => Number::Whole(values[i].into()),
            (LeafValues::F32(values), _) => Number::Single(values[i]),
            (LeafValues::F64(values), _) => Number::Double(values[i]),
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

    /// Returns a whole number as text, or `None` if the leaf contains none.
    pub(crate) fn whole_number(&self, i: usize) -> Option<String> {
        match self.number(i)? {
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
