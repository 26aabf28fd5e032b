//! NumPy's `.npy`: a header in Python's notation, then the elements.
//!
//! ```text
//! \x93NUMPY  major minor  header length  {'descr': '<f4', 'fortran_order': False, 'shape': (3, 28, 28), }
//! ```

use std::io::{self, Read};

use super::error::ImportProblem;

/// The type of an element: a letter of NumPy and a size in bytes, or in characters of `U`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NpyElement {
    letter: u8,
    size: usize,
}

/// The type and shape of an array.
#[derive(Clone, Debug, Default)]
pub(crate) struct NpyHeader {
    pub(crate) element: NpyElement,
    pub(crate) shape: Vec<usize>,
    /// Whether the first axis is contiguous.
    pub(crate) is_fortran: bool,
}

/// Longest header, and longest string.
const LONGEST: usize = 1 << 16;

impl NpyHeader {
    pub(crate) fn read(reader: &mut impl Read) -> Result<Self, ImportProblem> {
        let mut start = [0; 8];
        fill(reader, &mut start)?;
        if &start[..6] != b"\x93NUMPY" {
            return Err(ImportProblem::Nothing("no NumPy array"));
        }
        let len = match start[6] {
            1 => {
                let mut len = [0; 2];
                fill(reader, &mut len)?;
                usize::from(u16::from_le_bytes(len))
            }
            _ => {
                let mut len = [0; 4];
                fill(reader, &mut len)?;
                u32::from_le_bytes(len) as usize
            }
        };
        if len > LONGEST {
            return Err(ImportProblem::TooLong { what: "an array header", limit: LONGEST });
        }
        let mut text = vec![0; len];
        fill(reader, &mut text)?;
        Self::parse(std::str::from_utf8(&text).map_err(|_| ImportProblem::Utf8)?)
    }

    fn parse(text: &str) -> Result<Self, ImportProblem> {
        let missing =
            |name: &str| ImportProblem::Missing { what: "in the array header", name: name.to_owned() };
        let descr = value_of(text, "descr").and_then(|rest| rest.split(['\'', '"']).nth(1));
        let element = NpyElement::parse(descr.ok_or_else(|| missing("descr"))?)?;
        let order = value_of(text, "fortran_order").ok_or_else(|| missing("fortran_order"))?;
        let is_fortran = order.trim_start().starts_with("True");
        if !is_fortran && !order.trim_start().starts_with("False") {
            return Err(missing("fortran_order"));
        }
        let shape = value_of(text, "shape").and_then(|rest| rest.split(['(', ')']).nth(1));
        let numbers = shape.ok_or_else(|| missing("shape"))?.split(',').map(str::trim);
        let shape = numbers
            .filter(|number| !number.is_empty())
            .map(|number| number.parse().map_err(|_| ImportProblem::Number(number.to_owned())))
            .collect::<Result<Vec<usize>, _>>()?;
        match shape.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim)) {
            Some(_) if !shape.is_empty() => Ok(Self { element, shape, is_fortran }),
            _ => Err(missing("shape")),
        }
    }

    /// Returns the length of the first axis.
    pub(crate) fn rows(&self) -> usize {
        self.shape[0]
    }

    /// Returns the elements per row.
    pub(crate) fn row_len(&self) -> usize {
        self.shape[1..].iter().product()
    }

    /// Returns the number of elements.
    pub(crate) fn len(&self) -> usize {
        self.shape.iter().product()
    }
}

/// Returns the text after `'key':`.
fn value_of<'t>(text: &'t str, key: &str) -> Option<&'t str> {
    let (_, rest) = text.split_once(key)?;
    rest.split_once(':').map(|(_, value)| value)
}

impl NpyElement {
    /// One byte without a sign.
    pub(crate) const BYTE: Self = Self { letter: b'u', size: 1 };

    fn parse(descr: &str) -> Result<Self, ImportProblem> {
        let parts = || {
            let (letter, digits) = descr.strip_prefix(['<', '|', '='])?.split_at_checked(1)?;
            Some((letter.as_bytes()[0], digits.parse().ok()?))
        };
        match parts() {
            Some(
                (letter @ b'b', size @ 1)
                | (letter @ (b'u' | b'i'), size @ (1 | 2 | 4 | 8))
                | (letter @ b'f', size @ (4 | 8)),
            ) => Ok(Self { letter, size }),
            Some((letter @ (b'U' | b'S'), size)) if size <= LONGEST => Ok(Self { letter, size }),
            _ => Err(ImportProblem::Unsupported {
                what: "the array".to_owned(),
                found: descr.to_owned(),
                supported: "little-endian integers, f4, f8 and strings",
            }),
        }
    }

    /// Whether the elements are strings.
    pub(crate) fn is_string(self) -> bool {
        matches!(self.letter, b'U' | b'S')
    }

    pub(crate) fn read_number(self, reader: &mut impl Read) -> Result<f64, ImportProblem> {
        let mut bytes = [0; 8];
        let size = self.size.min(bytes.len());
        if !matches!(self.letter, b'U' | b'S') {
            fill(reader, &mut bytes[..size])?;
        }
        let bits = u64::from_le_bytes(bytes);
        match (self.letter, size) {
            (b'b' | b'u', _) => Ok(bits as f64),
            // The sign of a shorter integer is extended.
            (b'i', size) => Ok((bits.cast_signed() << (64 - 8 * size) >> (64 - 8 * size)) as f64),
            (b'f', 4) => Ok(f32::from_bits(bits as u32).into()),
            (b'f', 8) => Ok(f64::from_bits(bits)),
            _ => Err(ImportProblem::Unsupported {
                what: "the array".to_owned(),
                found: "string".to_owned(),
                supported: "numbers",
            }),
        }
    }

    /// Reads a string, or a number as text.
    pub(crate) fn read_string(self, reader: &mut impl Read) -> Result<String, ImportProblem> {
        let mut bytes = vec![0; if self.letter == b'U' { 4 * self.size } else { self.size }];
        match self.letter {
            b'S' => {
                fill(reader, &mut bytes)?;
                let text = String::from_utf8(bytes).map_err(|_| ImportProblem::Utf8)?;
                Ok(text.trim_end_matches('\0').to_owned())
            }
            b'U' => {
                fill(reader, &mut bytes)?;
                let codes = bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
                let text: Option<String> = codes.take_while(|&code| code != 0).map(char::from_u32).collect();
                text.ok_or(ImportProblem::Utf8)
            }
            b'u' | b'i' => {
                let mut bytes = [0; 8];
                fill(reader, &mut bytes[..self.size])?;
                let unused = 64 - 8 * self.size as u32;
                let bits = u64::from_le_bytes(bytes) << unused;
                Ok(match self.letter {
                    b'u' => (bits >> unused).to_string(),
                    _ => (bits.cast_signed() >> unused).to_string(),
                })
            }
            _ => self.read_number(reader).map(|number| number.to_string()),
        }
    }
}

fn fill(reader: &mut impl Read, out: &mut [u8]) -> Result<(), ImportProblem> {
    reader.read_exact(out).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => ImportProblem::Truncated("an array"),
        _ => error.into(),
    })
}
