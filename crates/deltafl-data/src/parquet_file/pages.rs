//! Pages whose declared numbers of values are plausible.
//!
//! The `parquet` crate allocates memory for the number of lengths that the delta encodings of byte
//! arrays declare. A damaged page can declare more than any machine can store, and the process
//! would be aborted. [`CheckedPages`] compares the number with the page first.

use parquet::basic::Encoding;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::ParquetError;
use parquet::schema::types::ColumnDescPtr;

/// The most values that a byte of a delta encoding can represent. Blocks of the usual 128 equal
/// values have 26 per byte.
const VALUES_PER_BYTE: usize = 1024;

/// The pages of a column. A page with an implausible number of values is an error.
pub(super) struct CheckedPages {
    pages: Box<dyn PageReader>,
    column: ColumnDescPtr,
}

impl CheckedPages {
    pub(super) fn new(pages: Box<dyn PageReader>, column: ColumnDescPtr) -> Self {
        Self { pages, column }
    }

    fn check(&self, page: &Page) -> Result<(), ParquetError> {
        let streams = match page.encoding() {
            Encoding::DELTA_LENGTH_BYTE_ARRAY => 1,
            // The lengths of the prefixes, then those of the suffixes.
            Encoding::DELTA_BYTE_ARRAY => 2,
            _ => return Ok(()),
        };
        let damaged = || ParquetError::General("a page has a damaged delta encoding".to_owned());
        let mut rest = self.values(page).ok_or_else(damaged)?;
        for _ in 0..streams {
            let (count, length) = delta_stream(rest).ok_or_else(damaged)?;
            if count > page.num_values() as usize {
                return Err(damaged());
            }
            rest = rest.get(length..).ok_or_else(damaged)?;
        }
        Ok(())
    }

    /// Returns the bytes of a page after its levels.
    fn values<'a>(&self, page: &'a Page) -> Option<&'a [u8]> {
        match page {
            Page::DataPage { buf, num_values, rep_level_encoding, def_level_encoding, .. } => {
                let mut rest = &buf[..];
                let levels = [
                    (self.column.max_rep_level(), rep_level_encoding),
                    (self.column.max_def_level(), def_level_encoding),
                ];
                for (most, encoding) in levels.into_iter().filter(|(most, _)| *most > 0) {
                    let length = if *encoding == Encoding::RLE {
                        4 + u32::from_le_bytes(*rest.first_chunk()?) as usize
                    } else {
                        let bits = i16::BITS - most.leading_zeros();
                        (*num_values as usize * bits as usize).div_ceil(8)
                    };
                    rest = rest.get(length..)?;
                }
                Some(rest)
            }
            Page::DataPageV2 { buf, def_levels_byte_len, rep_levels_byte_len, .. } => {
                buf.get(*def_levels_byte_len as usize + *rep_levels_byte_len as usize..)
            }
            Page::DictionaryPage { buf, .. } => Some(&buf[..]),
        }
    }
}

/// Returns the number of values that a stream of packed deltas declares, and its length in bytes.
/// `None`: the stream is too short for that number.
fn delta_stream(bytes: &[u8]) -> Option<(usize, usize)> {
    let mut at = 0;
    let block = usize::try_from(variable_length(bytes, &mut at)?).ok()?;
    let parts = usize::try_from(variable_length(bytes, &mut at)?).ok()?;
    let count = usize::try_from(variable_length(bytes, &mut at)?).ok()?;
    variable_length(bytes, &mut at)?; // the first value
    let values_per_part = block.checked_div(parts)?;
    if values_per_part == 0 || count > bytes.len().saturating_mul(VALUES_PER_BYTE) {
        return None;
    }
    let mut left = count.saturating_sub(1);
    while left > 0 {
        variable_length(bytes, &mut at)?; // the smallest delta
        let widths = bytes.get(at..at.checked_add(parts)?)?;
        at += parts;
        for &width in widths {
            if left == 0 {
                break;
            }
            at = at.checked_add(values_per_part.checked_mul(width.into())? / 8)?;
            left = left.saturating_sub(values_per_part);
        }
    }
    Some((count, at))
}

/// Reads a number of seven bits per byte, the least significant bits first.
fn variable_length(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.get(*at)?;
        *at += 1;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

impl Iterator for CheckedPages {
    type Item = Result<Page, ParquetError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for CheckedPages {
    fn get_next_page(&mut self) -> Result<Option<Page>, ParquetError> {
        let page = self.pages.get_next_page()?;
        page.as_ref().map_or(Ok(()), |page| self.check(page))?;
        Ok(page)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>, ParquetError> {
        self.pages.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<(), ParquetError> {
        self.pages.skip_next_page()
    }

    fn at_record_boundary(&mut self) -> Result<bool, ParquetError> {
        self.pages.at_record_boundary()
    }
}
