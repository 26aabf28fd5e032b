//! Reads Arrow IPC files from untrusted sources, without copying them.

use std::marker::PhantomData;

use bytes::Bytes;
use deltafl::data::{self, TextColumn};

use super::metadata::{
    self, Damaged, MetadataTable, Structs, field, footer, key_value, message, of_type, record_batch, schema,
};
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
    /// The numbers of the file are in the order of big-endian machines.
    #[error("the numbers are in big-endian order")]
    Endianness,
    /// The buffers of a table are compressed by an unknown codec.
    #[error("the buffers are compressed by codec {codec}, which is neither LZ4 nor zstd")]
    Codec {
        /// The number of the codec.
        codec: u8,
    },
    /// A compressed buffer of a table is damaged.
    #[error("column {column:?} of record batch {batch} cannot be decompressed: {problem}")]
    Decompression {
        /// The column.
        column: String,
        /// The batch, from 1.
        batch: usize,
        /// The error of the codec.
        problem: String,
    },
    /// The buffers of a column of a table do not fit its rows.
    #[error("column {column:?} of record batch {batch} is damaged")]
    DamagedColumn {
        /// The column.
        column: String,
        /// The batch, from 1.
        batch: usize,
    },
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
    buffers: Vec<Vec<Bytes>>,
    columns: Vec<ArrowColumn>,
}

impl ArrowFile {
    /// Checks that the file contains one batch of these columns. O(1) in the number of rows.
    pub(crate) fn new(file: &Bytes, columns: &[ArrowColumn]) -> Result<Self, InvalidArrowFile> {
        let (footer_at, footer) = footer_table(file)?;
        let damaged = |_: Damaged| InvalidArrowFile::Metadata { what: "footer", offset: footer_at };
        check_schema(footer, footer_at, columns)?;
        let blocks = footer.structs(footer::RECORD_BATCHES).map_err(damaged)?;
        if blocks.len() != 1 {
            return Err(InvalidArrowFile::Batches { got: blocks.len() });
        }
        let block = BatchPlace::new(blocks.get(0).map_err(damaged)?);
        let (metadata, body_at, body_len) = block_parts(file, block)?;
        let damaged =
            InvalidArrowFile::Metadata { what: "record batch message", offset: block.offset as usize };
        let batch = batch_table(metadata).map_err(|_| damaged.clone())?.ok_or(damaged.clone())?;
        let part = |_: Damaged| damaged.clone();
        if batch.table(record_batch::COMPRESSION).map_err(part)?.is_some() {
            return Err(InvalidArrowFile::Compressed);
        }
        let rows = batch.i64(record_batch::LENGTH).map_err(part)?;
        let rows = u64::try_from(rows).map_err(|_| damaged.clone())?;
        let nodes = batch.structs(record_batch::NODES).map_err(part)?;
        let buffers = batch.structs(record_batch::BUFFERS).map_err(part)?;
        let mut parts = BatchParts { file, body_at, body_len, nodes, buffers, node: 0, buffer: 0, damaged };
        let buffers = columns.iter().map(|column| parts.column(column, rows)).collect::<Result<_, _>>()?;
        Ok(Self { rows, buffers, columns: columns.to_vec() })
    }

    /// Returns the numbers of a column.
    pub(crate) fn numbers<T: data::Number>(&self, column: usize) -> data::Column<T> {
        data::Column::lent(NumberBuffer { bytes: self.buffers[column][0].clone(), of: PhantomData })
    }

    /// Returns the strings of a column, checked in O(rows).
    pub(crate) fn strings(&self, column: usize) -> Result<TextColumn, InvalidArrowFile> {
        let bytes = data::Column::lent(self.buffers[column][1].clone());
        TextColumn::new(self.numbers(column), bytes)
            .map_err(|bad| InvalidArrowFile::Utf8 { column: self.columns[column].name, row: bad.row })
    }
}

/// A buffer of numbers. Its place is aligned, and its length is a multiple of the size of a number.
struct NumberBuffer<T> {
    bytes: Bytes,
    of: PhantomData<T>,
}

impl<T: data::Number> AsRef<[T]> for NumberBuffer<T> {
    fn as_ref(&self) -> &[T] {
        // Empty bytes may have any address.
        if self.bytes.is_empty() { &[] } else { bytemuck::cast_slice(&self.bytes) }
    }
}

/// Returns the numbers of a column in memory.
pub(crate) fn bytes_of<T: data::Number>(numbers: &[T]) -> &[u8] {
    bytemuck::cast_slice(numbers)
}

/// Returns the value of a key in the metadata of a schema message.
pub(crate) fn schema_value(message: &[u8], key: &str) -> Option<String> {
    let message = MetadataTable::root(message.get(CONTINUATION.len() + 4..)?).ok()?;
    if message.u8(message::HEADER_TYPE).ok()? != metadata::HEADER_SCHEMA {
        return None;
    }
    let pairs = message.table(message::HEADER).ok()??.tables(schema::CUSTOM_METADATA).ok()?;
    let pairs = (0..pairs.len()).filter_map(|i| pairs.get(i).ok());
    let mut known = pairs.filter(|pair| pair.string(key_value::KEY).is_ok_and(|name| name == key.as_bytes()));
    Some(std::str::from_utf8(known.next()?.string(key_value::VALUE).ok()?).ok()?.to_owned())
}

/// A struct `Block`: the place of a record batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchPlace {
    pub(super) offset: i64,
    metadata_len: i64,
    body_len: i64,
}

impl BatchPlace {
    /// Reads a block. The length of the metadata has 32 bits, followed by padding.
    pub(super) fn new([offset, metadata_len, body_len]: [i64; 3]) -> Self {
        Self { offset, metadata_len: i64::from(metadata_len as i32), body_len }
    }
}

/// Returns the record batch of a message, or `None` if the message has another content.
fn batch_table(metadata: &[u8]) -> Result<Option<MetadataTable<'_>>, Damaged> {
    let message = MetadataTable::root(metadata)?;
    if message.u8(message::HEADER_TYPE)? != metadata::HEADER_RECORD_BATCH {
        return Ok(None);
    }
    message.table(message::HEADER)
}

/// Returns the footer and its place.
pub(super) fn footer_table(file: &[u8]) -> Result<(usize, MetadataTable<'_>), InvalidArrowFile> {
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
    match MetadataTable::root(&file[start..end]) {
        Ok(footer) => Ok((start, footer)),
        Err(Damaged) => Err(InvalidArrowFile::Metadata { what: "footer", offset: start }),
    }
}

/// Returns the metadata of a block, and the place of its body.
pub(super) fn block_parts(file: &[u8], block: BatchPlace) -> Result<(&[u8], usize, usize), InvalidArrowFile> {
    let BatchPlace { offset, metadata_len: metadata, body_len: body } = block;
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
    file: &'f Bytes,
    body_at: usize,
    body_len: usize,
    /// Values and nulls of each node.
    nodes: Structs<'f, 2>,
    /// Offset and length of each buffer.
    buffers: Structs<'f, 2>,
    node: usize,
    buffer: usize,
    damaged: InvalidArrowFile,
}

impl BatchParts<'_> {
    fn column(&mut self, column: &ArrowColumn, rows: u64) -> Result<Vec<Bytes>, InvalidArrowFile> {
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
        let [length, nulls] = self.nodes.get(self.node).map_err(|_| self.damaged.clone())?;
        self.node += 1;
        if nulls != 0 {
            return Err(InvalidArrowFile::Nulls { column });
        }
        match u64::try_from(length) {
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
    ) -> Result<Bytes, InvalidArrowFile> {
        let buffer = self.next_buffer(column)?;
        let got = (buffer.len() / number.width()) as u64;
        if got < expected {
            return Err(InvalidArrowFile::Length { column, expected, got });
        }
        Ok(buffer.slice(..expected as usize * number.width()))
    }

    fn next_buffer(&mut self, column: &'static str) -> Result<Bytes, InvalidArrowFile> {
        let [offset, len] = self.buffers.get(self.buffer).map_err(|_| self.damaged.clone())?;
        self.buffer += 1;
        let inside = range(self.body_len, offset, len).ok_or(InvalidArrowFile::OutOfBounds {
            what: "a buffer",
            offset,
            len,
            file: self.file.len(),
        })?;
        let offset = self.body_at + inside.start;
        let bytes = &self.file[offset..offset + inside.len()];
        // A map starts at a page; other memory may have any alignment.
        if !offset.is_multiple_of(ALIGNMENT) || bytes.as_ptr().align_offset(align_of::<u64>()) != 0 {
            return Err(InvalidArrowFile::Alignment { column, offset });
        }
        Ok(self.file.slice(offset..offset + inside.len()))
    }
}

fn check_schema(
    footer: MetadataTable<'_>,
    at: usize,
    columns: &[ArrowColumn],
) -> Result<(), InvalidArrowFile> {
    let damaged = |_: Damaged| InvalidArrowFile::Metadata { what: "schema", offset: at };
    let schema = footer.table(footer::SCHEMA).map_err(damaged)?.ok_or_else(|| damaged(Damaged))?;
    let fields = schema.tables(schema::FIELDS).map_err(damaged)?;
    for (index, column) in columns.iter().enumerate() {
        let matches = fields.len() == columns.len()
            && fields.get(index).and_then(|field| is_column(field, column)).map_err(damaged)?;
        if !matches {
            let expected = format!("{:?}: {}", column.name, column.of);
            return Err(InvalidArrowFile::ArrowColumn { index, expected });
        }
    }
    Ok(())
}

fn is_column(field: MetadataTable<'_>, column: &ArrowColumn) -> Result<bool, Damaged> {
    if field.string(field::NAME)? != column.name.as_bytes() || field.table(field::DICTIONARY)?.is_some() {
        return Ok(false);
    }
    match column.of {
        ColumnType::Utf8 => Ok(field.u8(field::TYPE_TYPE)? == metadata::TYPE_UTF8),
        ColumnType::Number(number) => is_number(field, number),
        ColumnType::List(number, len) => {
            let Some(list) = type_table(field, metadata::TYPE_FIXED_SIZE_LIST)? else { return Ok(false) };
            let children = field.tables(field::CHILDREN)?;
            Ok(usize::try_from(list.i32(of_type::LIST_SIZE)?) == Ok(len)
                && children.len() == 1
                && is_number(children.get(0)?, number)?)
        }
    }
}

fn is_number(field: MetadataTable<'_>, number: ArrowNumber) -> Result<bool, Damaged> {
    if number == ArrowNumber::F32 {
        let float = type_table(field, metadata::TYPE_FLOATING_POINT)?;
        return float.map_or(Ok(false), |float| Ok(float.i16(of_type::FLOAT_PRECISION)? == metadata::SINGLE));
    }
    let Some(int) = type_table(field, metadata::TYPE_INT)? else { return Ok(false) };
    let bits = usize::try_from(int.i32(of_type::INT_BIT_WIDTH)?);
    Ok(int.u8(of_type::INT_IS_SIGNED)? == 0 && bits == Ok(8 * number.width()))
}

/// Returns the details of the type of a field, or `None` if it has another type.
fn type_table<'b>(field: MetadataTable<'b>, of: u8) -> Result<Option<MetadataTable<'b>>, Damaged> {
    if field.u8(field::TYPE_TYPE)? == of { field.table(field::TYPE) } else { Ok(None) }
}
