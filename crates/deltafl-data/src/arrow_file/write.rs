//! Writes Arrow IPC files whose bodies are larger than memory.
//!
//! The message before the body contains the length of each buffer, which is only known at the end.
//! The length of the message does not depend on these numbers. Therefore it is written twice: first
//! as a placeholder, and at the end with the numbers.

use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::Path;

use arrow_ipc::convert::IpcSchemaEncoder;
use arrow_ipc::{
    Block, Buffer, FieldNode, FooterArgs, MessageArgs, MessageHeader, MetadataVersion, RecordBatchArgs,
};
use flatbuffers::{FlatBufferBuilder, UnionWIPOffset, WIPOffset};

use super::{ALIGNMENT, ArrowColumn, CONTINUATION, ColumnType, MAGIC, schema};

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
        let block = Block::new(self.batch_at as i64, batch.len() as i32, self.body as i64);
        self.file.write_all(&CONTINUATION)?;
        self.file.write_all(&[0; 4])?;
        let footer = footer(&self.columns, block);
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

fn message(
    builder: &mut FlatBufferBuilder<'_>,
    kind: MessageHeader,
    header: WIPOffset<UnionWIPOffset>,
    body: u64,
) -> Vec<u8> {
    let args = MessageArgs {
        version: MetadataVersion::V5,
        header_type: kind,
        header: Some(header),
        bodyLength: body as i64,
        custom_metadata: None,
    };
    let message = arrow_ipc::Message::create(builder, &args);
    builder.finish(message, None);
    encapsulated(builder)
}

fn schema_message(columns: &[ArrowColumn]) -> Vec<u8> {
    let mut builder = FlatBufferBuilder::new();
    let schema = IpcSchemaEncoder::new().schema_to_fb_offset(&mut builder, &schema(columns));
    message(&mut builder, MessageHeader::Schema, schema.as_union_value(), 0)
}

/// Returns the message of the batch; `written` are the buffers that are not empty.
fn batch_message(columns: &[ArrowColumn], rows: u64, body: u64, written: &[(u64, u64)]) -> Vec<u8> {
    let mut written = written.iter().copied();
    let (mut nodes, mut buffers) = (Vec::new(), Vec::new());
    for column in columns {
        nodes.push(FieldNode::new(rows as i64, 0));
        buffers.push(Buffer::new(0, 0)); // nothing is null
        let data = match column.of {
            ColumnType::Utf8 => 2,
            ColumnType::Number(_) => 1,
            ColumnType::List(_, len) => {
                nodes.push(FieldNode::new((rows * len as u64) as i64, 0));
                buffers.push(Buffer::new(0, 0));
                1
            }
        };
        for _ in 0..data {
            let (offset, len) = written.next().unwrap_or_default();
            buffers.push(Buffer::new(offset as i64, len as i64));
        }
    }
    let mut builder = FlatBufferBuilder::new();
    builder.force_defaults(true);
    let nodes = builder.create_vector(&nodes);
    let buffers = builder.create_vector(&buffers);
    let batch = arrow_ipc::RecordBatch::create(
        &mut builder,
        &RecordBatchArgs {
            length: rows as i64,
            nodes: Some(nodes),
            buffers: Some(buffers),
            compression: None,
            variadicBufferCounts: None,
        },
    );
    message(&mut builder, MessageHeader::RecordBatch, batch.as_union_value(), body)
}

fn footer(columns: &[ArrowColumn], block: Block) -> Vec<u8> {
    let mut builder = FlatBufferBuilder::new();
    let schema = IpcSchemaEncoder::new().schema_to_fb_offset(&mut builder, &schema(columns));
    let dictionaries = builder.create_vector::<Block>(&[]);
    let batches = builder.create_vector(&[block]);
    let footer = arrow_ipc::Footer::create(
        &mut builder,
        &FooterArgs {
            version: MetadataVersion::V5,
            schema: Some(schema),
            dictionaries: Some(dictionaries),
            recordBatches: Some(batches),
            custom_metadata: None,
        },
    );
    builder.finish(footer, None);
    builder.finished_data().to_vec()
}
