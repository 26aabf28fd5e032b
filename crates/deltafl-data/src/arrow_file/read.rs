//! Reads Arrow IPC files from untrusted sources, without copying them.

use arrow_buffer::{ArrowNativeType, Buffer, ScalarBuffer};
use arrow_ipc::{Block, Field, Footer, Precision, RecordBatch, Type};
use deltafl::data::{self, TextColumn};

use super::{ALIGNMENT, ArrowColumn, ArrowNumber, CONTINUATION, ColumnType, MAGIC};

/// The reason why a file is not the expected Arrow IPC file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidArrowFile {
    /// The first or last bytes are wrong.
    #[error("not an Arrow IPC file, or cut short: `ARROW1` is missing at byte {position}")]
    Magic {
        /// The expected place.
        position: usize,
    },
    /// A part is outside the file.
    #[error("{what} of {len} bytes at byte {offset} is outside the file of {file} bytes")]
    OutOfBounds {
        /// The part.
        what: &'static str,
        /// Its first byte.
        offset: i64,
        /// Its length.
        len: i64,
        /// Length of the file.
        file: usize,
    },
    /// The metadata is not a valid Arrow flatbuffer.
    #[error("the {what} at byte {offset} is damaged")]
    Metadata {
        /// The metadata.
        what: &'static str,
        /// Its place.
        offset: usize,
    },
    /// There is not exactly one batch.
    #[error("contains {got} record batches; a federation has one per file")]
    Batches {
        /// Number of batches.
        got: usize,
    },
    /// A compressed body cannot be mapped.
    #[error("the record batch is compressed and cannot be mapped")]
    Compressed,
    /// The columns differ from the expected ones.
    #[error("column {index} should be {expected}")]
    ArrowColumn {
        /// Index of the column.
        index: usize,
        /// Its name and type.
        expected: String,
    },
    /// A column with nulls.
    #[error("column {column:?} has nulls")]
    Nulls {
        /// The column.
        column: &'static str,
    },
    /// The length of a column differs from that of the table.
    #[error("column {column:?} has {got} values where {expected} were expected")]
    Length {
        /// The column.
        column: &'static str,
        /// Values expected.
        expected: u64,
        /// Values found.
        got: u64,
    },
    /// The alignment of a buffer does not allow use in place.
    #[error("column {column:?} starts at byte {offset}, which is not a multiple of 64")]
    Alignment {
        /// The column.
        column: &'static str,
        /// First byte of the buffer.
        offset: usize,
    },
    /// A string is invalid.
    #[error("column {column:?}, row {row}: not a string in UTF-8")]
    Utf8 {
        /// The column.
        column: &'static str,
        /// The first bad row; for bad UTF-8, that of the first bad byte.
        row: usize,
    },
}

/// An open file: its rows and the buffers of its columns, which are inside the file.
#[derive(Debug)]
pub(crate) struct ArrowFile {
    pub(crate) rows: u64,
    /// Per column, one buffer for numbers and two for strings (offsets, bytes).
    buffers: Vec<Vec<Buffer>>,
    columns: Vec<ArrowColumn>,
}

impl ArrowFile {
    /// Checks that the file contains one batch of these columns. O(1) in the number of rows.
    pub(crate) fn new(file: &Buffer, columns: &[ArrowColumn]) -> Result<Self, InvalidArrowFile> {
        let (footer_at, footer) = footer(file)?;
        check_schema(&footer, footer_at, columns)?;
        let blocks = footer.recordBatches().unwrap_or_default();
        if blocks.len() != 1 {
            return Err(InvalidArrowFile::Batches { got: blocks.len() });
        }
        let (metadata, body_at, body_len) = block_parts(file, blocks.get(0))?;
        let damaged = InvalidArrowFile::Metadata {
            what: "record batch message",
            offset: blocks.get(0).offset() as usize,
        };
        let message = arrow_ipc::root_as_message(metadata).map_err(|_| damaged.clone())?;
        let batch = message.header_as_record_batch().ok_or(damaged.clone())?;
        if batch.compression().is_some() {
            return Err(InvalidArrowFile::Compressed);
        }
        let rows = u64::try_from(batch.length()).map_err(|_| damaged.clone())?;
        let mut parts = BatchParts { file, body_at, body_len, batch, node: 0, buffer: 0, damaged };
        let buffers = columns.iter().map(|column| parts.column(column, rows)).collect::<Result<_, _>>()?;
        Ok(Self { rows, buffers, columns: columns.to_vec() })
    }

    /// Returns the numbers of a column.
    pub(crate) fn numbers<T: ArrowNativeType + data::Number>(&self, column: usize) -> data::Column<T> {
        data::Column::lent(ScalarBuffer::<T>::from(self.buffers[column][0].clone()))
    }

    /// Returns the strings of a column, checked in O(rows).
    pub(crate) fn strings(&self, column: usize) -> Result<TextColumn, InvalidArrowFile> {
        let bytes = data::Column::lent(self.buffers[column][1].clone());
        TextColumn::new(self.numbers(column), bytes)
            .map_err(|bad| InvalidArrowFile::Utf8 { column: self.columns[column].name, row: bad.row })
    }
}

/// Returns the numbers of a column in memory.
pub(crate) fn bytes_of<T: ArrowNativeType>(numbers: &[T]) -> &[u8] {
    arrow_buffer::ToByteSlice::to_byte_slice(numbers)
}

/// Returns the footer and its place.
fn footer(file: &Buffer) -> Result<(usize, Footer<'_>), InvalidArrowFile> {
    let trailer = MAGIC.len() + 4;
    if !file.starts_with(MAGIC) {
        return Err(InvalidArrowFile::Magic { position: 0 });
    }
    if file.len() < ALIGNMENT + trailer || !file.ends_with(MAGIC) {
        return Err(InvalidArrowFile::Magic { position: file.len().saturating_sub(MAGIC.len()) });
    }
    let end = file.len() - trailer;
    let mut len = [0; 4];
    len.copy_from_slice(&file[end..end + 4]);
    let len = u32::from_le_bytes(len) as usize;
    let out = InvalidArrowFile::OutOfBounds {
        what: "footer",
        offset: end as i64 - len as i64,
        len: len as i64,
        file: file.len(),
    };
    let start = end.checked_sub(len).ok_or(out)?;
    match arrow_ipc::root_as_footer(&file[start..end]) {
        Ok(footer) => Ok((start, footer)),
        Err(_) => Err(InvalidArrowFile::Metadata { what: "footer", offset: start }),
    }
}

/// Returns the metadata of a block, and the place of its body.
fn block_parts<'f>(file: &'f Buffer, block: &Block) -> Result<(&'f [u8], usize, usize), InvalidArrowFile> {
    let (offset, metadata, body) = (block.offset(), i64::from(block.metaDataLength()), block.bodyLength());
    let out = |what, offset, len| InvalidArrowFile::OutOfBounds { what, offset, len, file: file.len() };
    let prefix = CONTINUATION.len() + 4;
    let start = range(file.len(), offset, metadata).ok_or(out("record batch message", offset, metadata))?;
    if start.len() < prefix || file[start.start..start.start + 4] != CONTINUATION {
        return Err(InvalidArrowFile::Metadata { what: "record batch message", offset: start.start });
    }
    let body_range = range(file.len(), offset.saturating_add(metadata), body).ok_or(out(
        "record batch",
        offset.saturating_add(metadata),
        body,
    ))?;
    Ok((&file[start.start + prefix..start.end], body_range.start, body_range.len()))
}

/// Returns `offset .. offset + len` if it is inside `0 .. total`.
fn range(total: usize, offset: i64, len: i64) -> Option<std::ops::Range<usize>> {
    let start = usize::try_from(offset).ok()?;
    let end = start.checked_add(usize::try_from(len).ok()?)?;
    (end <= total).then_some(start..end)
}

/// Iterates over the nodes and buffers of a batch, column by column.
struct BatchParts<'f> {
    file: &'f Buffer,
    body_at: usize,
    body_len: usize,
    batch: RecordBatch<'f>,
    node: usize,
    buffer: usize,
    damaged: InvalidArrowFile,
}

impl BatchParts<'_> {
    fn column(&mut self, column: &ArrowColumn, rows: u64) -> Result<Vec<Buffer>, InvalidArrowFile> {
        let name = column.name;
        self.next_node(name, rows)?;
        self.buffer += 1; // validity
        match column.of {
            ColumnType::Number(number) => Ok(vec![self.next_numbers(name, number, rows)?]),
            ColumnType::List(number, len) => {
                let values = rows.checked_mul(len as u64).ok_or(self.damaged.clone())?;
                self.next_node(name, values)?;
                self.buffer += 1;
                Ok(vec![self.next_numbers(name, number, values)?])
            }
            ColumnType::Utf8 => {
                let offsets = rows.checked_add(1).ok_or(self.damaged.clone())?;
                let offsets = self.next_numbers(name, ArrowNumber::U32, offsets)?;
                Ok(vec![offsets, self.next_buffer(name)?])
            }
        }
    }

    /// Checks that the next node has this many values and no nulls.
    fn next_node(&mut self, column: &'static str, expected: u64) -> Result<(), InvalidArrowFile> {
        let nodes = self.batch.nodes().unwrap_or_default();
        if self.node >= nodes.len() {
            return Err(self.damaged.clone());
        }
        let node = nodes.get(self.node);
        self.node += 1;
        if node.null_count() != 0 {
            return Err(InvalidArrowFile::Nulls { column });
        }
        match u64::try_from(node.length()) {
            Ok(got) if got == expected => Ok(()),
            Ok(got) => Err(InvalidArrowFile::Length { column, expected, got }),
            Err(_) => Err(self.damaged.clone()),
        }
    }

    fn next_numbers(
        &mut self,
        column: &'static str,
        number: ArrowNumber,
        expected: u64,
    ) -> Result<Buffer, InvalidArrowFile> {
        let buffer = self.next_buffer(column)?;
        let got = (buffer.len() / number.width()) as u64;
        if got < expected {
            return Err(InvalidArrowFile::Length { column, expected, got });
        }
        Ok(buffer.slice_with_length(0, expected as usize * number.width()))
    }

    fn next_buffer(&mut self, column: &'static str) -> Result<Buffer, InvalidArrowFile> {
        let buffers = self.batch.buffers().unwrap_or_default();
        if self.buffer >= buffers.len() {
            return Err(self.damaged.clone());
        }
        let buffer = buffers.get(self.buffer);
        self.buffer += 1;
        let inside =
            range(self.body_len, buffer.offset(), buffer.length()).ok_or(InvalidArrowFile::OutOfBounds {
                what: "a buffer",
                offset: buffer.offset(),
                len: buffer.length(),
                file: self.file.len(),
            })?;
        let offset = self.body_at + inside.start;
        let bytes = self.file.slice_with_length(offset, inside.len());
        // A map starts at a page; other memory may have any alignment.
        if !offset.is_multiple_of(ALIGNMENT) || bytes.as_ptr().align_offset(align_of::<u64>()) != 0 {
            return Err(InvalidArrowFile::Alignment { column, offset });
        }
        Ok(bytes)
    }
}

fn check_schema(footer: &Footer<'_>, at: usize, columns: &[ArrowColumn]) -> Result<(), InvalidArrowFile> {
    let schema = footer.schema().ok_or(InvalidArrowFile::Metadata { what: "schema", offset: at })?;
    let fields = schema.fields().unwrap_or_default();
    for (index, column) in columns.iter().enumerate() {
        let matches = index < fields.len() && is_column(&fields.get(index), column);
        if !matches || fields.len() != columns.len() {
            let expected = format!("{:?}: {}", column.name, column.of.data_type());
            return Err(InvalidArrowFile::ArrowColumn { index, expected });
        }
    }
    Ok(())
}

fn is_column(field: &Field<'_>, column: &ArrowColumn) -> bool {
    field.name() == Some(column.name)
        && field.dictionary().is_none()
        && match column.of {
            ColumnType::Utf8 => field.type_type() == Type::Utf8,
            ColumnType::Number(number) => is_number(field, number),
            ColumnType::List(number, len) => {
                let children = field.children().unwrap_or_default();
                field
                    .type_as_fixed_size_list()
                    .is_some_and(|list| usize::try_from(list.listSize()) == Ok(len))
                    && children.len() == 1
                    && is_number(&children.get(0), number)
            }
        }
}

fn is_number(field: &Field<'_>, number: ArrowNumber) -> bool {
    match number {
        ArrowNumber::F32 => {
            field.type_as_floating_point().is_some_and(|f| f.precision() == Precision::SINGLE)
        }
        _ => field
            .type_as_int()
            .is_some_and(|int| !int.is_signed() && usize::try_from(int.bitWidth()) == Ok(8 * number.width())),
    }
}
