//! Memory-mapped files.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::path::Path;

use bytes::Bytes;
use memmap2::Mmap;

/// Maps the contents of a file. The system reads pages from disk when they are accessed, and shares
/// them between processes. An empty file gives an empty buffer.
pub(crate) fn map(path: &Path) -> io::Result<Bytes> {
    let file = File::open(path)?;
    if file.metadata()?.len() == 0 {
        return Ok(Bytes::new());
    }
    // SAFETY: the map is only read, as plain bytes and numbers for which any bit pattern is valid.
    // The readers check values that must be UTF-8 or in a range. A map is sound as long as no
    // process changes the file. A federation's files are written under another name, synced,
    // renamed and never opened for writing again; `docs/src/how-to/data.md` requires the same of
    // other programs, and that an Arrow file does not change during its import.
    let map = unsafe { Mmap::map(&file)? };
    Ok(Bytes::from_owner(map))
}
