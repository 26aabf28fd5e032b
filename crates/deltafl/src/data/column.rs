//! Columns of numbers and text that are cheap to clone and may be in a vector or in borrowed
//! memory, such as a mapped file.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;

use bytes::Bytes;

/// The number types of a column. Every bit pattern is valid.
pub trait Number: bytemuck::Pod + Send + Sync + PartialEq + fmt::Debug {}

impl Number for u8 {}
impl Number for u16 {}
impl Number for u32 {}
impl Number for u64 {}
impl Number for i32 {}
impl Number for f32 {}

/// A column of numbers. A clone shares the memory.
///
/// ```
/// use deltafl::data::Column;
/// let column = Column::from(vec![1.0f32, 2.0]);
/// let lent: Column<u8> = Column::lent(&b"of a file"[..]);
/// assert_eq!((column[1], lent.len()), (2.0, 9));
/// ```
pub struct Column<T> {
    /// Aligned for `T`, and a multiple of its size, because it was a slice of `T`.
    bytes: Bytes,
    of: PhantomData<T>,
}

impl<T: Number> Column<T> {
    /// Returns a column over an owner's numbers, without a copy.
    pub fn lent(owner: impl AsRef<[T]> + Send + Sync + 'static) -> Self {
        Self { bytes: Bytes::from_owner(Lent { owner, of: PhantomData }), of: PhantomData }
    }
}

/// An owner of numbers as an owner of their bytes.
struct Lent<O, T> {
    owner: O,
    of: PhantomData<T>,
}

impl<O: AsRef<[T]>, T: Number> AsRef<[u8]> for Lent<O, T> {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(self.owner.as_ref())
    }
}

impl<T: Number> Deref for Column<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // An empty vector of bytes may have any address.
        if self.bytes.is_empty() { &[] } else { bytemuck::cast_slice(&self.bytes) }
    }
}

impl<T> Clone for Column<T> {
    fn clone(&self) -> Self {
        Self { bytes: self.bytes.clone(), of: PhantomData }
    }
}

impl<T: Number> Default for Column<T> {
    fn default() -> Self {
        Self { bytes: Bytes::new(), of: PhantomData }
    }
}

impl<T: Number> From<Vec<T>> for Column<T> {
    fn from(numbers: Vec<T>) -> Self {
        Self::lent(numbers)
    }
}

impl<T: Number> FromIterator<T> for Column<T> {
    fn from_iter<I: IntoIterator<Item = T>>(numbers: I) -> Self {
        numbers.into_iter().collect::<Vec<T>>().into()
    }
}

impl<T: Number> PartialEq for Column<T> {
    fn eq(&self, other: &Self) -> bool {
        self[..] == other[..]
    }
}

impl<T: Number> fmt::Debug for Column<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Column({} numbers)", self.len())
    }
}

/// A column of strings: the end of each string, and the bytes of all.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TextColumn {
    /// One more than there are strings, or none. Offsets never decrease.
    offsets: Column<i32>,
    bytes: Column<u8>,
}

/// A row that is not valid UTF-8, or whose bytes are outside the column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("row {row} is not a string in UTF-8")]
pub struct InvalidText {
    /// The first invalid row.
    pub row: usize,
}

impl TextColumn {
    /// Creates a column of the strings between these offsets and checks them. O(bytes).
    pub fn new(offsets: Column<i32>, bytes: Column<u8>) -> Result<Self, InvalidText> {
        let column = Self { offsets, bytes };
        if column.is_valid() { Ok(column) } else { Err(InvalidText { row: column.first_invalid() }) }
    }

    fn is_valid(&self) -> bool {
        let offsets = &self.offsets[..];
        let (Some(&first), Some(&last)) = (offsets.first(), offsets.last()) else { return true };
        // Without an early exit, the check takes a few instructions per row.
        let ordered = offsets.windows(2).fold(first >= 0, |ok, pair| ok & (pair[0] <= pair[1]));
        if !ordered || last as usize > self.bytes.len() {
            return false;
        }
        let text = std::str::from_utf8(&self.bytes[first as usize..last as usize]);
        text.is_ok_and(|text| offsets.iter().all(|&at| text.is_char_boundary((at - first) as usize)))
    }

    fn first_invalid(&self) -> usize {
        let valid = |row: usize| {
            let (start, end) = (usize::try_from(self.offsets[row]), usize::try_from(self.offsets[row + 1]));
            let (Ok(start), Ok(end)) = (start, end) else { return false };
            self.bytes.get(start..end).is_some_and(|bytes| std::str::from_utf8(bytes).is_ok())
        };
        (0..self.len()).find(|&row| !valid(row)).unwrap_or_default()
    }

    /// Returns the number of strings.
    pub fn len(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    /// Returns true if there are no strings.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the string of a row.
    pub fn value(&self, row: usize) -> &str {
        // They were checked at creation. Only a mapped file that was changed afterwards contains
        // others.
        std::str::from_utf8(self.value_bytes(row)).unwrap_or_default()
    }

    /// Returns the bytes of a row.
    pub(crate) fn value_bytes(&self, row: usize) -> &[u8] {
        let (start, end) = (self.offsets[row] as usize, self.offsets[row + 1] as usize);
        self.bytes.get(start..end).unwrap_or_default()
    }

    /// Returns the range of the row in the column of offsets.
    pub(crate) fn offset(&self, row: usize) -> &[i32] {
        &self.offsets[row..=row]
    }

    /// Returns the strings in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> + Clone {
        (0..self.len()).map(|row| self.value(row))
    }
}

impl<S: AsRef<str>> FromIterator<S> for TextColumn {
    fn from_iter<I: IntoIterator<Item = S>>(strings: I) -> Self {
        let (mut offsets, mut bytes) = (vec![0], Vec::new());
        for string in strings {
            bytes.extend_from_slice(string.as_ref().as_bytes());
            offsets.push(i32::try_from(bytes.len()).expect("names and words have less than 2 GiB in all"));
        }
        Self { offsets: offsets.into(), bytes: bytes.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_come_back_in_order() {
        let column: TextColumn = ["abc", "", "å"].into_iter().collect();
        assert_eq!(column.iter().collect::<Vec<_>>(), ["abc", "", "å"]);
        assert_eq!(TextColumn::default().iter().len(), 0);
    }

    #[test]
    fn a_row_that_is_no_string_is_named() {
        let text = |offsets: &[i32], bytes: &[u8]| {
            TextColumn::new(offsets.to_vec().into(), bytes.to_vec().into()).map(|column| column.len())
        };
        assert_eq!(text(&[0, 3, 5], "abcå".as_bytes()), Ok(2));
        assert_eq!(text(&[0, 4, 5], "abcå".as_bytes()), Err(InvalidText { row: 0 }));
        assert_eq!(text(&[0, 3, 9], "abcå".as_bytes()), Err(InvalidText { row: 1 }));
        assert_eq!(text(&[0, 3, 1], "abcå".as_bytes()), Err(InvalidText { row: 1 }));
        assert_eq!(text(&[-1, 3], b"abc"), Err(InvalidText { row: 0 }));
        assert_eq!(text(&[0, 1, 2], b"a\xff"), Err(InvalidText { row: 1 }));
    }

    #[test]
    fn a_clone_shares_the_memory() {
        let column = Column::from(vec![1u64, 2, 3]);
        assert!(std::ptr::eq(&raw const column[0], &raw const column.clone()[0]));
        assert_eq!(column, [1, 2, 3].into_iter().collect());
    }
}
