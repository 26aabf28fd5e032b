//! Arrow IPC files of one record batch: the types of columns, and files with several columns.
//! `table` reads the files of other programs.
//!
//! pyarrow reads these files without conversion. Two properties are specific to this
//! implementation. The body of the batch is written incrementally, so that a file larger than
//! memory needs little memory. The reader checks everything, so that a hostile or truncated file is
//! an error and never a panic.
//!
//! ```text
//! "ARROW1" │ schema message │ batch message │ body: buffers, each at a multiple of 64 bytes │ footer │ "ARROW1"
//! ```

use std::fmt;

mod metadata;
mod read;
mod table;
mod write;

pub use read::InvalidArrowFile;
pub(crate) use read::{ArrowFile, bytes_of, schema_value};
pub(crate) use table::{ArrowBatch, ArrowTable, ArrowValue};
pub(crate) use write::ArrowFileWriter;

/// Buffers start at multiples of this, in the file and therefore in memory.
const ALIGNMENT: usize = 64;

/// First and last bytes of a file.
const MAGIC: &[u8; 6] = b"ARROW1";

/// Precedes the length of a message.
const CONTINUATION: [u8; 4] = [0xff; 4];

/// A column of a file. It has no nulls and is in one record batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ArrowColumn {
    pub(crate) name: &'static str,
    pub(crate) of: ColumnType,
}

/// The type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ColumnType {
    /// Strings with 32-bit offsets.
    Utf8,
    /// A number per row.
    Number(ArrowNumber),
    /// A fixed number of numbers per row.
    List(ArrowNumber, usize),
}

/// The types of numbers in columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ArrowNumber {
    U8,
    U16,
    U32,
    U64,
    F32,
}

impl ArrowColumn {
    pub(crate) const fn new(name: &'static str, of: ColumnType) -> Self {
        Self { name, of }
    }
}

impl fmt::Display for ColumnType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Utf8 => f.write_str("Utf8"),
            Self::Number(number) => number.fmt(f),
            Self::List(number, len) => write!(f, "FixedSizeList({len} x non-null {number})"),
        }
    }
}

impl fmt::Display for ArrowNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::U8 => "UInt8",
            Self::U16 => "UInt16",
            Self::U32 => "UInt32",
            Self::U64 => "UInt64",
            Self::F32 => "Float32",
        })
    }
}

impl ArrowNumber {
    /// Bytes of one number.
    pub(crate) fn width(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::U16 => 2,
            Self::U32 | Self::F32 => 4,
            Self::U64 => 8,
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    const COLUMNS: [ArrowColumn; 3] = [
        ArrowColumn::new("id", ColumnType::Utf8),
        ArrowColumn::new("x", ColumnType::List(ArrowNumber::F32, 2)),
        ArrowColumn::new("y", ColumnType::Number(ArrowNumber::U16)),
    ];

    fn file() -> Vec<u8> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.arrow");
        let mut file = ArrowFileWriter::create(&path, &COLUMNS).unwrap();
        file.buffer(bytes_of(&[0i32, 3, 5])).unwrap();
        file.buffer("abcå".as_bytes()).unwrap();
        file.write(bytes_of(&[1.0f32, 2.0])).unwrap();
        file.write(bytes_of(&[3.0f32, 4.0])).unwrap();
        file.end_buffer().unwrap();
        file.buffer(bytes_of(&[7u16, 8])).unwrap();
        file.finish(2).unwrap();
        std::fs::read(path).unwrap()
    }

    /// Returns a copy with the alignment of a map.
    fn aligned(bytes: &[u8]) -> Bytes {
        let mut words = vec![0u64; bytes.len().div_ceil(8)];
        bytemuck::cast_slice_mut(&mut words)[..bytes.len()].copy_from_slice(bytes);
        struct Words(Vec<u64>);
        impl AsRef<[u8]> for Words {
            fn as_ref(&self) -> &[u8] {
                bytemuck::cast_slice(&self.0)
            }
        }
        Bytes::from_owner(Words(words)).slice(..bytes.len())
    }

    type Columns = (Vec<String>, Vec<f32>, Vec<u16>);

    fn read(bytes: &[u8]) -> Result<Columns, InvalidArrowFile> {
        let file = ArrowFile::new(&aligned(bytes), &COLUMNS)?;
        let strings = file.strings(0)?.iter().map(str::to_owned).collect();
        Ok((strings, file.numbers(1).to_vec(), file.numbers(2).to_vec()))
    }

    #[test]
    fn columns_come_back() {
        let (strings, x, y) = read(&file()).unwrap();
        assert_eq!((strings, x, y), (vec!["abc".into(), "å".into()], vec![1.0, 2.0, 3.0, 4.0], vec![7, 8]));
    }

    #[test]
    fn a_file_is_refused_wherever_it_is_cut() {
        let whole = file();
        for len in 0..whole.len() {
            read(&whole[..len]).unwrap_err();
        }
    }

    #[test]
    fn no_changed_bit_makes_the_reader_panic() {
        let whole = file();
        for bit in 0..8 * whole.len() {
            let mut changed = whole.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let _ = read(&changed);
        }
    }

    #[test]
    fn other_columns_are_refused() {
        let other = [ArrowColumn::new("id", ColumnType::Utf8)];
        let refused = ArrowFile::new(&aligned(&file()), &other).unwrap_err();
        assert_eq!(refused, InvalidArrowFile::ArrowColumn { index: 0, expected: "\"id\": Utf8".into() });
    }
}
