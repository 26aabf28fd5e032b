//! Input files, plain or compressed with gzip.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;

use super::error::{FilePosition, ImportError, ImportProblem};

const GZIP: [u8; 2] = [0x1f, 0x8b];

/// An input file that is decompressed while it is read.
pub(crate) struct Input {
    path: PathBuf,
    reader: Box<dyn BufRead>,
    /// Lines read so far.
    line: u64,
}

impl Input {
    /// Opens a file. Its first bytes determine whether it is compressed.
    pub(crate) fn open(path: &Path) -> Result<Self, ImportError> {
        let open = || -> io::Result<Box<dyn BufRead>> {
            let mut file = BufReader::with_capacity(1 << 17, File::open(path)?);
            Ok(if file.fill_buf()?.starts_with(&GZIP) {
                Box::new(BufReader::with_capacity(1 << 18, MultiGzDecoder::new(file)))
            } else {
                Box::new(file)
            })
        };
        let reader = open().map_err(|source| ImportError::file(path, source))?;
        Ok(Self { path: path.to_owned(), reader, line: 0 })
    }

    /// Returns the whole file if it is not longer than `limit`.
    pub(crate) fn read_all(path: &Path, limit: usize) -> Result<Vec<u8>, ImportError> {
        let mut input = Self::open(path)?;
        let mut bytes = Vec::new();
        let read = input.reader.by_ref().take(limit as u64 + 1).read_to_end(&mut bytes);
        read.map_err(|source| ImportError::at(path, FilePosition::Byte(bytes.len() as u64), source.into()))?;
        if bytes.len() > limit {
            return Err(ImportError::file(path, ImportProblem::TooLong { what: "a file", limit }));
        }
        Ok(bytes)
    }

    /// Returns a reader for a parser that keeps its own position.
    pub(crate) fn into_reader(self) -> Box<dyn BufRead> {
        self.reader
    }

    /// Returns the next line without its end; `None` after the last.
    pub(crate) fn line<'b>(&mut self, buffer: &'b mut Vec<u8>) -> Result<Option<&'b [u8]>, ImportError> {
        const LONGEST: usize = 1 << 24;
        buffer.clear();
        self.line += 1;
        let read = self.reader.by_ref().take(LONGEST as u64).read_until(b'\n', buffer);
        let read = read.map_err(|source| self.error(source.into()))?;
        if read == LONGEST {
            return Err(self.error(ImportProblem::TooLong { what: "a line", limit: LONGEST }));
        }
        if read == 0 {
            return Ok(None);
        }
        let line = buffer.strip_suffix(b"\n").unwrap_or(buffer);
        Ok(Some(line.strip_suffix(b"\r").unwrap_or(line)))
    }

    /// Returns an error with the place of the last line.
    pub(crate) fn error(&self, problem: ImportProblem) -> ImportError {
        ImportError::at(&self.path, FilePosition::Line(self.line), problem)
    }
}
