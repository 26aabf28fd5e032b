//! The values of a column of a record batch.

use bytes::Bytes;

use super::types::WholeType;

/// The values of a column.
#[derive(Clone, Debug)]
pub(super) struct ColumnValues {
    pub(super) rows: usize,
    /// A bit per value that exists; `None` if all do.
    pub(super) validity: Option<Bytes>,
    pub(super) stored: Stored,
}

/// The buffers of a column. Their lengths fit the number of rows.
#[derive(Clone, Debug)]
pub(super) enum Stored {
    Nothing,
    Unused(&'static str),
    Bits(Bytes),
    Whole(WholeType, Bytes),
    Float(usize, Bytes),
    Decimal {
        width: usize,
        scale: i32,
        bytes: Bytes,
    },
    Time {
        width: usize,
        per_day: f64,
        bytes: Bytes,
    },
    Variable {
        offset: usize,
        offsets: Bytes,
        bytes: Bytes,
        is_text: bool,
    },
    Views {
        views: Bytes,
        buffers: Vec<Bytes>,
        is_text: bool,
    },
    /// Indices of the values of a dictionary, which consists of parts.
    Indexed {
        index: WholeType,
        indices: Bytes,
        parts: Vec<ColumnValues>,
    },
}

/// A value of a table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ArrowValue<'b> {
    /// No value.
    Missing,
    /// A whole number.
    Whole(i128),
    /// A real number of at most 32 bits.
    Single(f32),
    /// A real number.
    Real(f64),
    /// Days since 1970-01-01.
    Days(f64),
    /// `true` or `false`.
    Truth(bool),
    /// A string.
    Text(&'b str),
    /// A string that is not UTF-8, or whose place is outside of its buffer.
    Invalid,
    /// A value of a type that is not used.
    Unused(&'static str),
}

impl ColumnValues {
    /// Returns a value.
    pub(super) fn value(&self, row: usize) -> ArrowValue<'_> {
        if row >= self.rows {
            return ArrowValue::Invalid;
        }
        if self.validity.as_ref().is_some_and(|bits| !bit(bits, row)) {
            return ArrowValue::Missing;
        }
        match &self.stored {
            Stored::Nothing => ArrowValue::Missing,
            Stored::Unused(name) => ArrowValue::Unused(name),
            Stored::Bits(bits) => ArrowValue::Truth(bit(bits, row)),
            Stored::Whole(of, bytes) => ArrowValue::Whole(whole(bytes, row, of.width, of.is_signed)),
            Stored::Float(8, bytes) => ArrowValue::Real(float(bytes, row, 8)),
            Stored::Float(width, bytes) => ArrowValue::Single(float(bytes, row, *width) as f32),
            Stored::Decimal { width: width @ ..=16, scale: 0, bytes } => {
                ArrowValue::Whole(whole_decimal(bytes, row, *width))
            }
            Stored::Decimal { width, scale, bytes } => {
                ArrowValue::Real(decimal(bytes, row, *width) / 10f64.powi(*scale))
            }
            Stored::Time { width, per_day, bytes } => {
                ArrowValue::Days(whole(bytes, row, *width, true) as f64 / per_day)
            }
            Stored::Variable { offset, offsets, bytes, is_text } => {
                let at = |i| usize::try_from(whole(offsets, i, *offset, true)).ok();
                let found = at(row).zip(at(row + 1)).and_then(|(start, end)| bytes.get(start..end));
                text(found, *is_text)
            }
            Stored::Views { views, buffers, is_text } => text(view(views, buffers, row), *is_text),
            Stored::Indexed { index, indices, parts } => {
                let mut at = usize::try_from(whole(indices, row, index.width, index.is_signed));
                for part in parts {
                    match at {
                        Ok(i) if i < part.rows => return part.value(i),
                        Ok(i) => at = Ok(i - part.rows),
                        Err(_) => break,
                    }
                }
                ArrowValue::Invalid
            }
        }
    }
}

fn bit(bits: &[u8], row: usize) -> bool {
    bits.get(row / 8).is_some_and(|byte| byte >> (row % 8) & 1 == 1)
}

fn text(bytes: Option<&[u8]>, is_text: bool) -> ArrowValue<'_> {
    match bytes.map(std::str::from_utf8) {
        _ if !is_text => ArrowValue::Unused("bytes"),
        Some(Ok(text)) => ArrowValue::Text(text),
        _ => ArrowValue::Invalid,
    }
}

/// Returns the bytes of a view: up to 12 in the view itself, or a part of a buffer.
fn view<'b>(views: &'b [u8], buffers: &'b [Bytes], row: usize) -> Option<&'b [u8]> {
    let view = views.get(16 * row..16 * row + 16)?;
    let number = |at: usize| usize::try_from(whole(view, at / 4, 4, true)).ok();
    let len = number(0)?;
    if len <= 12 {
        return view.get(4..4 + len);
    }
    let start = number(12)?;
    buffers.get(number(8)?)?.get(start..start.checked_add(len)?)
}

/// Returns a whole number of 1, 2, 4 or 8 bytes.
fn whole(bytes: &[u8], i: usize, width: usize, is_signed: bool) -> i128 {
    let Some(bytes) = bytes.get(i * width..i * width + width) else { return -1 };
    let mut word = [0; 8];
    word[..width].copy_from_slice(bytes);
    let unsigned = u64::from_le_bytes(word);
    if is_signed {
        let unused = 64 - 8 * width as u32;
        return i128::from((unsigned << unused) as i64 >> unused);
    }
    i128::from(unsigned)
}

fn float(bytes: &[u8], i: usize, width: usize) -> f64 {
    let bytes = &bytes[i * width..i * width + width];
    match *bytes {
        [a, b] => half(u16::from_le_bytes([a, b])),
        [a, b, c, d] => f32::from_le_bytes([a, b, c, d]).into(),
        [a, b, c, d, e, f, g, h] => f64::from_le_bytes([a, b, c, d, e, f, g, h]),
        _ => f64::NAN,
    }
}

/// Converts a number of half precision: a sign, 5 bits of exponent, 10 bits of fraction.
fn half(bits: u16) -> f64 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f64::from(bits & 0x3ff));
    let magnitude = match exponent {
        0 => fraction * 2f64.powi(-24),
        31 if bits & 0x3ff == 0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1.0 + fraction / 1024.0) * 2f64.powi(exponent - 15),
    };
    if bits >> 15 == 1 { -magnitude } else { magnitude }
}

/// Returns a whole number of 4, 8 or 16 bytes in two's complement.
fn whole_decimal(bytes: &[u8], i: usize, width: usize) -> i128 {
    let bytes = &bytes[i * width..i * width + width];
    let sign = bytes.last().map_or(0, |&byte| i128::from(byte.cast_signed()) >> 7);
    bytes.iter().rev().fold(sign, |number, &byte| number << 8 | i128::from(byte))
}

/// Returns a whole number of 4, 8, 16 or 32 bytes in two's complement.
fn decimal(bytes: &[u8], i: usize, width: usize) -> f64 {
    let bytes = &bytes[i * width..i * width + width];
    let is_negative = bytes[width - 1] >= 0x80;
    let magnitude = |byte: u8| if is_negative { !byte } else { byte };
    let sum = bytes.iter().rev().fold(0.0, |sum, &byte| sum * 256.0 + f64::from(magnitude(byte)));
    if is_negative { -(sum + 1.0) } else { sum }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_every_width_are_read() {
        assert_eq!(whole(&[0xff, 0x7f], 0, 2, true), 0x7fff);
        assert_eq!(whole(&[0xff, 0xff], 0, 2, true), -1);
        assert_eq!(whole(&[0xff, 0xff], 0, 2, false), 0xffff);
        assert_eq!(whole(&u64::MAX.to_le_bytes(), 0, 8, false), i128::from(u64::MAX));
        for (bits, expected) in [(0x3c00, 1.0), (0xc000, -2.0), (0x0001, 2f64.powi(-24)), (0x7bff, 65504.0)] {
            assert_eq!(half(bits), expected);
        }
        assert!(half(0x7e00).is_nan() && half(0x7c00).is_infinite());
        assert_eq!(decimal(&(-12345i128).to_le_bytes(), 0, 16), -12345.0);
        assert_eq!(decimal(&12345i64.to_le_bytes(), 0, 8), 12345.0);
    }
}
