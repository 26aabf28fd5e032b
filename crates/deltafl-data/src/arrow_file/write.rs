//! Writes Arrow IPC files whose bodies are larger than memory.
//!
//! The message before the body contains the length of each buffer, which is only known at the end.
//! The length of the message does not depend on these numbers. Therefore it is written twice: first
//! as a placeholder, and at the end with the numbers.

use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::Path;

use flatbuffers::{FlatBufferBuilder, TableFinishedWIPOffset, Vector, WIPOffset};

use super::metadata::{self, field, footer, message, of_type, record_batch, schema};
use super::{ALIGNMENT, ArrowColumn, ArrowNumber, CONTINUATION, ColumnType, MAGIC};

/// A complete table of a buffer under construction.
type TableOffset = WIPOffset<TableFinishedWIPOffset>;

/// An incomplete file. Buffers are written in the order of the columns: offsets and bytes for
/// strings, the numbers for numbers.
#[derive(Debug)]
pub(crate) struct ArrowFileWriter {
    file: BufWriter<File>,
    columns: Vec<ArrowColumn>,
    /// The place of the batch message, and its length.
    batch_at: u64,
    batch_len: usize,
    /// Bytes of the body written so far.
    body: u64,
    /// The start of the current buffer in the body.
    start: u64,
    /// Offset and length of the complete buffers.
    buffers: Vec<(u64, u64)>,
}

impl ArrowFileWriter {
    pub(crate) fn create(path: &Path, columns: &[ArrowColumn]) -> io::Result<Self> {
        let mut file = BufWriter::with_capacity(1 << 18, File::create_new(path)?);
        let mut start = vec![0; ALIGNMENT];
        start[..MAGIC.len()].copy_from_slice(MAGIC);
        let schema = schema_message(columns);
        file.write_all(&start)?;
        file.write_all(&schema)?;
        let batch_at = (start.len() + schema.len()) as u64;
        let placeholder = batch_message(columns, 0, 0, &[]);
        file.write_all(&placeholder)?;
        Ok(Self {
            file,
            columns: columns.to_vec(),
            batch_at,
            batch_len: placeholder.len(),
            body: 0,
            start: 0,
            buffers: Vec::new(),
        })
    }

    /// Appends to the current buffer.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.body += bytes.len() as u64;
        self.file.write_all(bytes)
    }

    /// Ends the current buffer.
    pub(crate) fn end_buffer(&mut self) -> io::Result<()> {
        self.buffers.push((self.start, self.body - self.start));
        let padding = padding(self.body as usize);
        self.file.write_all(&[0; ALIGNMENT][..padding])?;
        self.body += padding as u64;
        self.start = self.body;
        Ok(())
    }

    /// Writes a complete buffer.
    pub(crate) fn buffer(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write(bytes)?;
        self.end_buffer()
    }

    /// Writes the final message and the footer, and syncs the file.
    pub(crate) fn finish(mut self, rows: u64) -> io::Result<()> {
        let batch = batch_message(&self.columns, rows, self.body, &self.buffers);
        assert_eq!(batch.len(), self.batch_len, "the length of the message does not depend on its numbers");
        let block = [self.batch_at as i64, batch.len() as i64, self.body as i64];
        self.file.write_all(&CONTINUATION)?;
        self.file.write_all(&[0; 4])?;
        let footer = footer_bytes(&self.columns, block);
        self.file.write_all(&footer)?;
        self.file.write_all(&(footer.len() as u32).to_le_bytes())?;
        self.file.write_all(MAGIC)?;
        self.file.seek(SeekFrom::Start(self.batch_at))?;
        self.file.write_all(&batch)?;
        self.file.flush()?;
        self.file.get_ref().sync_all()
    }
}

/// Returns the bytes from here to the next multiple of the alignment.
fn padding(len: usize) -> usize {
    len.next_multiple_of(ALIGNMENT) - len
}

/// Returns the message with its prefix, padded so that the following bytes are aligned.
fn encapsulated(builder: &FlatBufferBuilder<'_>) -> Vec<u8> {
    let metadata = builder.finished_data();
    let prefix = CONTINUATION.len() + 4;
    let total = (prefix + metadata.len()).next_multiple_of(ALIGNMENT);
    let mut message = Vec::with_capacity(total);
    message.extend_from_slice(&CONTINUATION);
    message.extend_from_slice(&((total - prefix) as u32).to_le_bytes());
    message.extend_from_slice(metadata);
    message.resize(total, 0);
    message
}

fn message_bytes(builder: &mut FlatBufferBuilder<'_>, kind: u8, header: TableOffset, body: u64) -> Vec<u8> {
    let table = builder.start_table();
    builder.push_slot(message::BODY_LENGTH, body as i64, 0);
    builder.push_slot_always(message::HEADER, header);
    builder.push_slot_always(message::VERSION, metadata::V5);
    builder.push_slot_always(message::HEADER_TYPE, kind);
    let message = builder.end_table(table);
    builder.finish(message, None);
    encapsulated(builder)
}

fn schema_message(columns: &[ArrowColumn]) -> Vec<u8> {
    let mut builder = FlatBufferBuilder::new();
    let schema = schema_table(&mut builder, columns);
    message_bytes(&mut builder, metadata::HEADER_SCHEMA, schema, 0)
}

fn schema_table(builder: &mut FlatBufferBuilder<'_>, columns: &[ArrowColumn]) -> TableOffset {
    let fields: Vec<TableOffset> =
        columns.iter().map(|column| field_table(builder, column.name, column.of)).collect();
    let fields = builder.create_vector(&fields);
    let table = builder.start_table();
    builder.push_slot_always(schema::FIELDS, fields);
    builder.end_table(table)
}

fn field_table(builder: &mut FlatBufferBuilder<'_>, name: &str, of: ColumnType) -> TableOffset {
    let name = builder.create_string(name);
    // Readers expect the children of a field also if there are none.
    let none: [TableOffset; 0] = [];
    let (kind, details, children) = match of {
        ColumnType::Utf8 => {
            let table = builder.start_table();
            let details = builder.end_table(table);
            (metadata::TYPE_UTF8, details, builder.create_vector(&none))
        }
        ColumnType::Number(ArrowNumber::F32) => {
            let children = builder.create_vector(&none);
            let table = builder.start_table();
            builder.push_slot_always(of_type::FLOAT_PRECISION, metadata::SINGLE);
            (metadata::TYPE_FLOATING_POINT, builder.end_table(table), children)
        }
        ColumnType::Number(number) => {
            let children = builder.create_vector(&none);
            let table = builder.start_table();
            builder.push_slot_always(of_type::INT_BIT_WIDTH, 8 * number.width() as i32);
            (metadata::TYPE_INT, builder.end_table(table), children)
        }
        ColumnType::List(number, len) => {
            let item = field_table(builder, "item", ColumnType::Number(number));
            let table = builder.start_table();
            builder.push_slot(of_type::LIST_SIZE, i32::try_from(len).unwrap_or(i32::MAX), 0);
            let details = builder.end_table(table);
            (metadata::TYPE_FIXED_SIZE_LIST, details, builder.create_vector(&[item]))
        }
    };
    let table = builder.start_table();
    builder.push_slot_always(field::NAME, name);
    builder.push_slot_always(field::TYPE_TYPE, kind);
    builder.push_slot_always(field::CHILDREN, children);
    builder.push_slot_always(field::TYPE, details);
    builder.end_table(table)
}

/// Writes a vector of structs of `N` numbers of 64 bits.
fn structs<'b, const N: usize>(
    builder: &mut FlatBufferBuilder<'b>,
    structs: &[[i64; N]],
) -> WIPOffset<Vector<'b, i64>> {
    builder.start_vector::<i64>(N * structs.len());
    for number in structs.as_flattened().iter().rev() {
        builder.push(*number);
    }
    builder.end_vector(structs.len())
}

/// Returns the message of the batch; `written` are the buffers that are not empty.
fn batch_message(columns: &[ArrowColumn], rows: u64, body: u64, written: &[(u64, u64)]) -> Vec<u8> {
    let mut written = written.iter().copied();
    // Values and nulls of each node, offset and length of each buffer.
    let (mut nodes, mut buffers) = (Vec::new(), Vec::new());
    for column in columns {
        nodes.push([rows as i64, 0]);
        buffers.push([0, 0]); // nothing is null
        let data = match column.of {
            ColumnType::Utf8 => 2,
            ColumnType::Number(_) => 1,
            ColumnType::List(_, len) => {
                nodes.push([(rows * len as u64) as i64, 0]);
                buffers.push([0, 0]);
                1
            }
        };
        for _ in 0..data {
            let (offset, len) = written.next().unwrap_or_default();
            buffers.push([offset as i64, len as i64]);
        }
    }
    let mut builder = FlatBufferBuilder::new();
    builder.force_defaults(true);
    let nodes = structs(&mut builder, &nodes);
    let buffers = structs(&mut builder, &buffers);
    let table = builder.start_table();
    builder.push_slot(record_batch::LENGTH, rows as i64, 0);
    builder.push_slot_always(record_batch::BUFFERS, buffers);
    builder.push_slot_always(record_batch::NODES, nodes);
    let batch = builder.end_table(table);
    message_bytes(&mut builder, metadata::HEADER_RECORD_BATCH, batch, body)
}

/// Returns the footer. A block contains the offset of a batch, the length of its message and the
/// length of its body.
fn footer_bytes(columns: &[ArrowColumn], block: [i64; 3]) -> Vec<u8> {
    let mut builder = FlatBufferBuilder::new();
    let schema = schema_table(&mut builder, columns);
    let dictionaries = structs::<3>(&mut builder, &[]);
    let batches = structs(&mut builder, &[block]);
    let table = builder.start_table();
    builder.push_slot_always(footer::RECORD_BATCHES, batches);
    builder.push_slot_always(footer::DICTIONARIES, dictionaries);
    builder.push_slot_always(footer::SCHEMA, schema);
    builder.push_slot_always(footer::VERSION, metadata::V5);
    let footer = builder.end_table(table);
    builder.finish(footer, None);
    builder.finished_data().to_vec()
}
