//! Tables in Arrow files of other programs: the file format (Feather version 2) and the stream
//! format.
//!
//! All types of flat columns are read, with nulls, dictionaries and compressed buffers. A record
//! batch is decoded at a time. Every offset is checked, so that a hostile or truncated file is an
//! error and never a panic.

use bytes::Bytes;

use super::metadata::{
    Damaged, MetadataTable, Structs, compression, dictionary_batch, footer, message, record_batch, schema,
};
use super::read::{BatchPlace, InvalidArrowFile, block_parts, footer_table};
use super::{CONTINUATION, MAGIC, metadata};

mod body;
mod types;
mod values;

use body::{BodyReader, Codec};
use types::TableField;
pub(crate) use values::ArrowValue;
use values::ColumnValues;

/// Most columns of a table.
const MOST_COLUMNS: usize = 1 << 16;

/// A table in an Arrow file, read batch by batch.
pub(crate) struct ArrowTable {
    file: Bytes,
    fields: Vec<TableField>,
    dictionaries: Vec<(i64, Vec<ColumnValues>)>,
    source: Source,
    /// The number of batches that were read.
    batches: usize,
}

/// The remaining messages of a file.
enum Source {
    /// The places of the record batches of a file.
    File { blocks: Vec<BatchPlace>, next: usize },
    /// The place of the next message of a stream.
    Stream { next: usize },
}

/// The values of a record batch.
pub(crate) struct ArrowBatch {
    pub(crate) rows: usize,
    columns: Vec<ColumnValues>,
}

impl ArrowBatch {
    /// Returns a value of a column.
    pub(crate) fn value(&self, column: usize, row: usize) -> ArrowValue<'_> {
        self.columns[column].value(row)
    }
}

/// A message with its body.
struct Message {
    /// The metadata and its place.
    metadata: Bytes,
    at: usize,
    body: Bytes,
    /// The place of the next message.
    next: usize,
}

impl ArrowTable {
    /// Reads the schema and, of a file, the dictionaries.
    pub(crate) fn new(file: Bytes) -> Result<Self, InvalidArrowFile> {
        if file.starts_with(&CONTINUATION) {
            return Self::new_stream(file);
        }
        if !file.starts_with(MAGIC) {
            return Err(InvalidArrowFile::Magic { position: 0 });
        }
        let (at, footer) = footer_table(&file)?;
        let damaged = |_: Damaged| InvalidArrowFile::Metadata { what: "footer", offset: at };
        let schema =
            footer.table(footer::SCHEMA).and_then(|schema| schema.ok_or(Damaged)).map_err(damaged)?;
        let fields = fields(schema, at)?;
        let blocks = |slot| -> Result<Vec<BatchPlace>, Damaged> {
            let blocks: Structs<'_, 3> = footer.structs(slot)?;
            (0..blocks.len()).map(|i| Ok(BatchPlace::new(blocks.get(i)?))).collect()
        };
        let dictionaries = blocks(footer::DICTIONARIES).map_err(damaged)?;
        let blocks = blocks(footer::RECORD_BATCHES).map_err(damaged)?;
        let source = Source::File { blocks, next: 0 };
        let mut table = Self { file, fields, dictionaries: Vec::new(), source, batches: 0 };
        for block in dictionaries {
            let message = table.block(block)?;
            if !table.add_dictionary(&message)? {
                return Err(message.damaged("dictionary batch"));
            }
        }
        Ok(table)
    }

    fn new_stream(file: Bytes) -> Result<Self, InvalidArrowFile> {
        let source = Source::Stream { next: 0 };
        let mut table = Self { file, fields: Vec::new(), dictionaries: Vec::new(), source, batches: 0 };
        let Some(message) = table.message(0)? else {
            return Err(InvalidArrowFile::Metadata { what: "schema", offset: 0 });
        };
        let root = message.root().map_err(|_| message.damaged("schema"))?;
        let header = message.header(root, metadata::HEADER_SCHEMA).map_err(|_| message.damaged("schema"))?;
        table.fields = fields(header.ok_or_else(|| message.damaged("schema"))?, message.at)?;
        table.source = Source::Stream { next: message.next };
        Ok(table)
    }

    /// Returns the names of the columns.
    pub(crate) fn header(&self) -> Vec<String> {
        self.fields.iter().map(|field| field.name.clone()).collect()
    }

    /// Decodes the next record batch. Returns `None` after the last.
    pub(crate) fn next_batch(&mut self) -> Result<Option<ArrowBatch>, InvalidArrowFile> {
        loop {
            let message = match &mut self.source {
                Source::File { blocks, next } => {
                    let Some(&block) = blocks.get(*next) else { return Ok(None) };
                    *next += 1;
                    self.block(block)?
                }
                Source::Stream { next } => {
                    let at = *next;
                    let Some(message) = self.message(at)? else { return Ok(None) };
                    self.source = Source::Stream { next: message.next };
                    if self.add_dictionary(&message)? {
                        continue;
                    }
                    message
                }
            };
            let damaged = || message.damaged("record batch message");
            let batch = message.root().and_then(|root| message.header(root, metadata::HEADER_RECORD_BATCH));
            let batch = batch.map_err(|_| damaged())?.ok_or_else(damaged)?;
            self.batches += 1;
            let mut reader = self.reader(&message, batch)?;
            let fields = self.fields.iter();
            let columns =
                fields.map(|field| reader.column(field, &self.dictionaries)).collect::<Result<_, _>>()?;
            return Ok(Some(ArrowBatch { rows: reader.rows, columns }));
        }
    }

    /// Stores the values of a dictionary. Returns `false` if the message contains none.
    fn add_dictionary(&mut self, message: &Message) -> Result<bool, InvalidArrowFile> {
        let damaged = |_: Damaged| message.damaged("dictionary batch");
        let root = message.root().map_err(damaged)?;
        let header = message.header(root, metadata::HEADER_DICTIONARY_BATCH).map_err(damaged)?;
        let Some(header) = header else { return Ok(false) };
        let id = header.i64(dictionary_batch::ID).map_err(damaged)?;
        let is_delta = header.u8(dictionary_batch::IS_DELTA).map_err(damaged)? != 0;
        let data = header.table(dictionary_batch::DATA).and_then(|data| data.ok_or(Damaged));
        let mut reader = self.reader(message, data.map_err(damaged)?)?;
        let owner = self.fields.iter().find_map(|field| field.with_dictionary(id));
        let Some(owner) = owner else { return Ok(true) };
        let values = reader.plain_column(owner)?;
        match self.dictionaries.iter_mut().find(|(known, _)| *known == id) {
            Some((_, parts)) if is_delta => parts.push(values),
            Some((_, parts)) => *parts = vec![values],
            None => self.dictionaries.push((id, vec![values])),
        }
        Ok(true)
    }

    /// Returns a reader of the buffers of a batch.
    fn reader(&self, message: &Message, batch: MetadataTable<'_>) -> Result<BodyReader, InvalidArrowFile> {
        let damaged = |_: Damaged| message.damaged("record batch message");
        let codec = match batch.table(record_batch::COMPRESSION).map_err(damaged)? {
            None => None,
            Some(table) => Some(match table.u8(compression::CODEC).map_err(damaged)? {
                0 => Codec::Lz4Frame,
                1 => Codec::Zstd,
                codec => return Err(InvalidArrowFile::Codec { codec }),
            }),
        };
        let rows = batch.i64(record_batch::LENGTH).map_err(damaged)?;
        let rows = usize::try_from(rows).map_err(|_| message.damaged("record batch message"))?;
        let pairs = |slot| -> Result<Vec<[i64; 2]>, Damaged> {
            let pairs: Structs<'_, 2> = batch.structs(slot)?;
            (0..pairs.len()).map(|i| pairs.get(i)).collect()
        };
        let counts: Structs<'_, 1> = batch.structs(record_batch::VARIADIC_COUNTS).map_err(damaged)?;
        let counts = (0..counts.len()).map(|i| Ok(counts.get(i)?[0])).collect::<Result<Vec<_>, _>>();
        Ok(BodyReader::new(
            message.body.clone(),
            codec,
            rows,
            pairs(record_batch::NODES).map_err(damaged)?,
            pairs(record_batch::BUFFERS).map_err(damaged)?,
            counts.map_err(damaged)?,
            self.batches,
        ))
    }

    /// Returns the message of a block of a file.
    fn block(&self, block: BatchPlace) -> Result<Message, InvalidArrowFile> {
        let (metadata, body_at, body_len) = block_parts(&self.file, block)?;
        Ok(Message {
            metadata: self.file.slice_ref(metadata),
            at: block.offset as usize,
            body: self.file.slice(body_at..body_at + body_len),
            next: body_at + body_len,
        })
    }

    /// Returns the message at a place of a stream, or `None` at its end.
    fn message(&self, at: usize) -> Result<Option<Message>, InvalidArrowFile> {
        let file = &self.file;
        if at == file.len() {
            return Ok(None);
        }
        let cut = |what, offset: usize, len: usize| InvalidArrowFile::OutOfBounds {
            what,
            offset: offset as i64,
            len: len as i64,
            file: file.len(),
        };
        let start = at + CONTINUATION.len() + 4;
        let prefix = file.get(at..start).ok_or_else(|| cut("a message", at, 8))?;
        if !prefix.starts_with(&CONTINUATION) {
            return Err(InvalidArrowFile::Metadata { what: "message", offset: at });
        }
        let len = u32::from_le_bytes([prefix[4], prefix[5], prefix[6], prefix[7]]) as usize;
        if len == 0 {
            return Ok(None);
        }
        let end = start.checked_add(len).filter(|&end| end <= file.len());
        let end = end.ok_or_else(|| cut("a message", start, len))?;
        let mut message = Message { metadata: file.slice(start..end), at, body: Bytes::new(), next: end };
        let body = message.root().and_then(|root| root.i64(message::BODY_LENGTH));
        let body = body.ok().and_then(|len| usize::try_from(len).ok());
        let body = body.ok_or_else(|| message.damaged("message"))?;
        let next = end.checked_add(body).filter(|&next| next <= file.len());
        message.next = next.ok_or_else(|| cut("the body of a message", end, body))?;
        message.body = file.slice(end..message.next);
        Ok(Some(message))
    }
}

impl Message {
    fn root(&self) -> Result<MetadataTable<'_>, Damaged> {
        MetadataTable::root(&self.metadata)
    }

    /// Returns the header of a message, or `None` if it has another type.
    fn header<'b>(&self, root: MetadataTable<'b>, of: u8) -> Result<Option<MetadataTable<'b>>, Damaged> {
        if root.u8(message::HEADER_TYPE)? != of {
            return Ok(None);
        }
        root.table(message::HEADER)?.ok_or(Damaged).map(Some)
    }

    fn damaged(&self, what: &'static str) -> InvalidArrowFile {
        InvalidArrowFile::Metadata { what, offset: self.at }
    }
}

fn fields(schema: MetadataTable<'_>, at: usize) -> Result<Vec<TableField>, InvalidArrowFile> {
    let damaged = |_: Damaged| InvalidArrowFile::Metadata { what: "schema", offset: at };
    if schema.i16(schema::ENDIANNESS).map_err(damaged)? != 0 {
        return Err(InvalidArrowFile::Endianness);
    }
    let fields = schema.tables(schema::FIELDS).map_err(damaged)?;
    if fields.len() > MOST_COLUMNS {
        return Err(damaged(Damaged));
    }
    let parse = |i| TableField::parse(fields.get(i)?, 0);
    (0..fields.len()).map(parse).collect::<Result<_, _>>().map_err(damaged)
}
