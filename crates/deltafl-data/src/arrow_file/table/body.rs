//! The buffers of a record batch, column by column.

use std::io::Read as _;

use bytes::Bytes;

use super::super::read::InvalidArrowFile;
use super::types::{TableField, ValueType};
use super::values::{ColumnValues, Stored};

/// Most bytes of a decompressed buffer.
const LARGEST_BUFFER: i64 = 1 << 32;

/// The compression of buffers.
#[derive(Clone, Copy, Debug)]
pub(super) enum Codec {
    Lz4Frame,
    Zstd,
}

/// Iterates over the nodes and buffers of a batch.
pub(super) struct BodyReader {
    body: Bytes,
    codec: Option<Codec>,
    pub(super) rows: usize,
    /// Values and nulls of each node.
    nodes: std::vec::IntoIter<[i64; 2]>,
    /// Offset and length of each buffer.
    buffers: std::vec::IntoIter<[i64; 2]>,
    /// The number of data buffers of each column of views.
    counts: std::vec::IntoIter<i64>,
    /// The index of the batch, for errors.
    batch: usize,
}

impl BodyReader {
    pub(super) fn new(
        body: Bytes,
        codec: Option<Codec>,
        rows: usize,
        nodes: Vec<[i64; 2]>,
        buffers: Vec<[i64; 2]>,
        counts: Vec<i64>,
        batch: usize,
    ) -> Self {
        let (nodes, buffers, counts) = (nodes.into_iter(), buffers.into_iter(), counts.into_iter());
        Self { body, codec, rows, nodes, buffers, counts, batch }
    }

    /// Reads the values of a column, through its dictionary if it has one.
    pub(super) fn column(
        &mut self,
        field: &TableField,
        dictionaries: &[(i64, Vec<ColumnValues>)],
    ) -> Result<ColumnValues, InvalidArrowFile> {
        let Some(dictionary) = field.dictionary else { return self.plain_column(field) };
        let (rows, nulls) = self.node(field)?;
        self.check_rows(field, rows)?;
        let validity = self.validity(field, rows, nulls)?;
        let indices = self.numbers(field, rows, dictionary.index.width)?;
        let parts = dictionaries.iter().find(|(id, _)| *id == dictionary.id);
        let parts = parts.map(|(_, parts)| parts.clone()).unwrap_or_default();
        let stored = Stored::Indexed { index: dictionary.index, indices, parts };
        Ok(ColumnValues { rows, validity, stored })
    }

    /// Reads the values of a column, without its dictionary.
    pub(super) fn plain_column(&mut self, field: &TableField) -> Result<ColumnValues, InvalidArrowFile> {
        let values = self.values(field)?;
        self.check_rows(field, values.rows)?;
        Ok(values)
    }

    fn values(&mut self, field: &TableField) -> Result<ColumnValues, InvalidArrowFile> {
        let (rows, nulls) = self.node(field)?;
        let plain = |validity, stored| Ok(ColumnValues { rows, validity, stored });
        match field.of {
            ValueType::Null => plain(None, Stored::Nothing),
            ValueType::Bool => {
                let validity = self.validity(field, rows, nulls)?;
                let bits = self.bytes(field, rows.div_ceil(8))?;
                plain(validity, Stored::Bits(bits))
            }
            ValueType::Whole(of) => {
                let validity = self.validity(field, rows, nulls)?;
                plain(validity, Stored::Whole(of, self.numbers(field, rows, of.width)?))
            }
            ValueType::Float(width) => {
                let validity = self.validity(field, rows, nulls)?;
                plain(validity, Stored::Float(width, self.numbers(field, rows, width)?))
            }
            ValueType::Decimal { width, scale } => {
                let validity = self.validity(field, rows, nulls)?;
                plain(validity, Stored::Decimal { width, scale, bytes: self.numbers(field, rows, width)? })
            }
            ValueType::Time { width, per_day } => {
                let validity = self.validity(field, rows, nulls)?;
                plain(validity, Stored::Time { width, per_day, bytes: self.numbers(field, rows, width)? })
            }
            ValueType::Variable { offset, is_text } => {
                let validity = self.validity(field, rows, nulls)?;
                // A column without rows may have no offsets.
                let count = if rows == 0 { 0 } else { rows + 1 };
                let offsets = self.numbers(field, count, offset)?;
                let bytes = self.buffer(field)?;
                plain(validity, Stored::Variable { offset, offsets, bytes, is_text })
            }
            ValueType::View { is_text } => {
                let validity = self.validity(field, rows, nulls)?;
                let views = self.numbers(field, rows, 16)?;
                let count = self.counts.next().and_then(|count| usize::try_from(count).ok());
                let count = count.filter(|&count| count <= self.buffers.len());
                let count = count.ok_or_else(|| self.damaged(field))?;
                let buffers = (0..count).map(|_| self.buffer(field)).collect::<Result<_, _>>()?;
                plain(validity, Stored::Views { views, buffers, is_text })
            }
            ValueType::Fixed { name } => {
                self.skip(2);
                plain(None, Stored::Unused(name))
            }
            ValueType::Nested { buffers, has_validity, name } => {
                self.skip(buffers + usize::from(has_validity));
                for child in &field.children {
                    self.skip_column(child)?;
                }
                plain(None, Stored::Unused(name))
            }
        }
    }

    /// Skips the nodes and buffers of the child of a nested column.
    fn skip_column(&mut self, field: &TableField) -> Result<(), InvalidArrowFile> {
        self.node(field)?;
        if field.dictionary.is_some() {
            self.skip(2);
            return Ok(());
        }
        match field.of {
            ValueType::Null => {}
            ValueType::Variable { .. } => self.skip(3),
            ValueType::View { .. } => {
                let count = self.counts.next().and_then(|count| usize::try_from(count).ok());
                self.skip(2usize.saturating_add(count.unwrap_or(0)).min(self.buffers.len()));
            }
            ValueType::Nested { buffers, has_validity, .. } => {
                self.skip(buffers + usize::from(has_validity));
                field.children.iter().try_for_each(|child| self.skip_column(child))?;
            }
            _ => self.skip(2),
        }
        Ok(())
    }

    fn skip(&mut self, buffers: usize) {
        if let Some(last) = buffers.checked_sub(1) {
            self.buffers.nth(last);
        }
    }

    /// Returns the number of values and of nulls of the next node.
    fn node(&mut self, field: &TableField) -> Result<(usize, i64), InvalidArrowFile> {
        let node = self.nodes.next().and_then(|[len, nulls]| Some((usize::try_from(len).ok()?, nulls)));
        node.ok_or_else(|| self.damaged(field))
    }

    fn check_rows(&self, field: &TableField, got: usize) -> Result<(), InvalidArrowFile> {
        if got == self.rows { Ok(()) } else { Err(self.damaged(field)) }
    }

    /// Returns the bits of the values that exist, or `None` if all do.
    fn validity(
        &mut self,
        field: &TableField,
        rows: usize,
        nulls: i64,
    ) -> Result<Option<Bytes>, InvalidArrowFile> {
        let bits = self.buffer(field)?;
        if nulls == 0 || bits.is_empty() {
            return Ok(None);
        }
        if bits.len() < rows.div_ceil(8) { Err(self.damaged(field)) } else { Ok(Some(bits)) }
    }

    /// Returns a buffer of numbers.
    fn numbers(&mut self, field: &TableField, rows: usize, width: usize) -> Result<Bytes, InvalidArrowFile> {
        let len = rows.checked_mul(width).ok_or_else(|| self.damaged(field))?;
        self.bytes(field, len)
    }

    /// Returns the next buffer if it has at least this many bytes.
    fn bytes(&mut self, field: &TableField, len: usize) -> Result<Bytes, InvalidArrowFile> {
        let bytes = self.buffer(field)?;
        if bytes.len() < len { Err(self.damaged(field)) } else { Ok(bytes) }
    }

    /// Returns the next buffer, decompressed.
    fn buffer(&mut self, field: &TableField) -> Result<Bytes, InvalidArrowFile> {
        let [offset, len] = self.buffers.next().ok_or_else(|| self.damaged(field))?;
        let range = usize::try_from(offset).ok().zip(usize::try_from(len).ok());
        let range = range.and_then(|(start, len)| Some(start..start.checked_add(len)?));
        let range = range.filter(|range| range.end <= self.body.len());
        let range = range.ok_or_else(|| InvalidArrowFile::OutOfBounds {
            what: "a buffer",
            offset,
            len,
            file: self.body.len(),
        })?;
        let bytes = self.body.slice(range);
        match self.codec {
            Some(codec) if !bytes.is_empty() => self.decompressed(field, codec, &bytes),
            _ => Ok(bytes),
        }
    }

    /// Decompresses a buffer: its length in 8 bytes, or −1 if it is not compressed, and its
    /// contents.
    fn decompressed(
        &self,
        field: &TableField,
        codec: Codec,
        bytes: &Bytes,
    ) -> Result<Bytes, InvalidArrowFile> {
        let Some(prefix) = bytes.first_chunk() else { return Err(self.damaged(field)) };
        let (len, contents) = (i64::from_le_bytes(*prefix), bytes.slice(8..));
        if len == -1 {
            return Ok(contents);
        }
        if !(0..=LARGEST_BUFFER).contains(&len) {
            return Err(self.damaged(field));
        }
        let failed = |source: std::io::Error| InvalidArrowFile::Decompression {
            column: field.name.clone(),
            batch: self.batch,
            problem: source.to_string(),
        };
        let mut out = Vec::new();
        // One byte more than announced shows that the buffer is longer.
        let limit = len as u64 + 1;
        match codec {
            Codec::Lz4Frame => {
                lz4_flex::frame::FrameDecoder::new(&contents[..]).take(limit).read_to_end(&mut out)
            }
            Codec::Zstd => zstd::Decoder::with_buffer(&contents[..])
                .and_then(|decoder| decoder.take(limit).read_to_end(&mut out)),
        }
        .map_err(failed)?;
        if out.len() as i64 != len {
            return Err(self.damaged(field));
        }
        Ok(Bytes::from(out))
    }

    fn damaged(&self, field: &TableField) -> InvalidArrowFile {
        InvalidArrowFile::DamagedColumn { column: field.name.clone(), batch: self.batch }
    }
}
