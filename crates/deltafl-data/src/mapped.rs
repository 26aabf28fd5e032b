//! A file as memory.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::path::Path;

use arrow_buffer::Buffer;
use bytes::Bytes;
use memmap2::Mmap;

/// The contents of a file, mapped: read from disk page by page as they are touched, and shared between
/// processes. An empty file gives an empty buffer.
pub(crate) fn map(path: &Path) -> io::Result<Buffer> {
    let file = File::open(path)?;
    if file.metadata()?.len() == 0 {
        return Ok(Buffer::from(Vec::<u8>::new()));
    }
    // SAFETY: the map is only read, as plain bytes and numbers for which any bit pattern is valid; what must
    // be UTF-8 or in range is checked by whoever reads it. A map is sound as long as nobody changes the file:
    // a federation's files are written under another name, synced, renamed and never opened for writing
    // again, as `docs/src/how-to/data.md` asks of everybody else.
    let map = unsafe { Mmap::map(&file)? };
    Ok(Buffer::from(Bytes::from_owner(map)))
}
