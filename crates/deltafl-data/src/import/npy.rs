//! NumPy's `.npy`: a header in Python's notation, then the elements.
//!
//! ```text
//! \x93NUMPY  major minor  header length  {'descr': '<f4', 'fortran_order': False, 'shape': (3, 28, 28), }
//! ```

use std::io::{self, Read};

use super::error::Problem;

/// The type of an element.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum NpyElement {
    #[default]
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    U64,
    I64,
    F32,
    F64,
    /// A fixed number of characters of four bytes.
    Unicode(usize),
    /// A fixed number of bytes.
    Bytes(usize),
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
    pub(crate) fn read(reader: &mut impl Read) -> Result<Self, Problem> {
        let mut start = [0; 8];
        fill(reader, &mut start)?;
        if &start[..6] != b"\x93NUMPY" {
            return Err(Problem::Nothing("no NumPy array"));
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
            return Err(Problem::TooLong { what: "an array header", limit: LONGEST });
        }
        let mut text = vec![0; len];
        fill(reader, &mut text)?;
        Self::parse(std::str::from_utf8(&text).map_err(|_| Problem::Utf8)?)
    }

    fn parse(text: &str) -> Result<Self, Problem> {
        let missing = |name: &str| Problem::Missing { what: "in the array header", name: name.to_owned() };
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
            .map(|number| number.parse().map_err(|_| Problem::Number(number.to_owned())))
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
    fn parse(descr: &str) -> Result<Self, Problem> {
        let unsupported = || Problem::Unsupported {
            what: "the array".to_owned(),
            found: descr.to_owned(),
            supported: "little-endian integers, f4, f8 and strings",
        };
        let kind = descr.strip_prefix(['<', '|', '=']).ok_or_else(unsupported)?;
        let string_len =
            |digits: &str| digits.parse().ok().filter(|&len| len <= LONGEST).ok_or_else(unsupported);
        Ok(match kind {
            "u1" | "b1" => Self::U8,
            "i1" => Self::I8,
            "u2" => Self::U16,
            "i2" => Self::I16,
            "u4" => Self::U32,
            "i4" => Self::I32,
            "u8" => Self::U64,
            "i8" => Self::I64,
            "f4" => Self::F32,
            "f8" => Self::F64,
            _ => match kind.split_at_checked(1).ok_or_else(unsupported)? {
                ("U", digits) => Self::Unicode(string_len(digits)?),
                ("S", digits) => Self::Bytes(string_len(digits)?),
                _ => return Err(unsupported()),
            },
        })
    }

    pub(crate) fn read_number(self, reader: &mut impl Read) -> Result<f64, Problem> {
        fn bytes<const N: usize>(reader: &mut impl Read) -> Result<[u8; N], Problem> {
            let mut bytes = [0; N];
            fill(reader, &mut bytes)?;
            Ok(bytes)
        }
        Ok(match self {
            Self::U8 => bytes::<1>(reader)?[0].into(),
            Self::I8 => i8::from_le_bytes(bytes(reader)?).into(),
            Self::U16 => u16::from_le_bytes(bytes(reader)?).into(),
            Self::I16 => i16::from_le_bytes(bytes(reader)?).into(),
            Self::U32 => u32::from_le_bytes(bytes(reader)?).into(),
            Self::I32 => i32::from_le_bytes(bytes(reader)?).into(),
            Self::U64 => u64::from_le_bytes(bytes(reader)?) as f64,
            Self::I64 => i64::from_le_bytes(bytes(reader)?) as f64,
            Self::F32 => f32::from_le_bytes(bytes(reader)?).into(),
            Self::F64 => f64::from_le_bytes(bytes(reader)?),
            Self::Unicode(_) | Self::Bytes(_) => {
                return Err(Problem::Unsupported {
                    what: "the array".to_owned(),
                    found: "string".to_owned(),
                    supported: "numbers",
                });
            }
        })
    }

    /// Reads a string, or a number as text.
    pub(crate) fn read_string(self, reader: &mut impl Read) -> Result<String, Problem> {
        match self {
            Self::Bytes(len) => {
                let mut bytes = vec![0; len];
                fill(reader, &mut bytes)?;
                let text = String::from_utf8(bytes).map_err(|_| Problem::Utf8)?;
                Ok(text.trim_end_matches('\0').to_owned())
            }
            Self::Unicode(len) => {
                let mut bytes = vec![0; 4 * len];
                fill(reader, &mut bytes)?;
                let codes = bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
                let text: Option<String> = codes.take_while(|&code| code != 0).map(char::from_u32).collect();
                text.ok_or(Problem::Utf8)
            }
            number => number.read_number(reader).map(|number| number.to_string()),
        }
    }
}

fn fill(reader: &mut impl Read, out: &mut [u8]) -> Result<(), Problem> {
    reader.read_exact(out).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => Problem::Truncated("an array"),
        _ => error.into(),
    })
}
