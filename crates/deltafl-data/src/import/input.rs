//! Input files: plain, compressed with gzip, or the only file of a zip archive.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;

use super::error::{FilePosition, ImportError, ImportProblem};

const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZIP: &[u8] = b"PK\x03\x04";
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The first bytes of files that are not text, and their kind.
const BINARY: [(&[u8], &str); 14] = [
    (b"PAR1", "a Parquet file: import it with `data import parquet`"),
    (b"ARROW1", "an Arrow file: import it with `data import arrow`"),
    (b"\xff\xff\xff\xff", "an Arrow stream: import it with `data import arrow`"),
    (b"FEA1", "a Feather file of version 1: write it as version 2"),
    (b"\x93NUMPY", "a NumPy array: import an .npz with `data import npz`"),
    (b"\x89PNG", "a PNG image: import a folder of images with `data import auto`"),
    (b"\xff\xd8\xff", "a JPEG image: import a folder of images with `data import auto`"),
    (b"\x89HDF", "an HDF5 file: convert it to Parquet or CSV"),
    (b"SQLite format 3", "an SQLite database: export a table as CSV"),
    (b"%PDF", "a PDF document"),
    (b"\xd0\xcf\x11\xe0", "an Excel file: save it as CSV"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd: unpack it, or compress it with gzip"),
    (b"\xff\xfe", "UTF-16: save it as UTF-8"),
    (b"\xfe\xff", "UTF-16: save it as UTF-8"),
];

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
        Self::open_as(path, path)
    }

    /// Opens a file that has another name in messages.
    fn open_as(path: &Path, name: &Path) -> Result<Self, ImportError> {
        let open = || -> Result<Box<dyn BufRead>, ImportProblem> {
            let mut file = BufReader::with_capacity(1 << 17, File::open(path)?);
            let beginning = file.fill_buf()?;
            Ok(if beginning.starts_with(&GZIP) {
                Box::new(BufReader::with_capacity(1 << 18, MultiGzDecoder::new(file)))
            } else if beginning.starts_with(ZIP) {
                Box::new(BufReader::with_capacity(1 << 17, only_member(file)?))
            } else {
                Box::new(file)
            })
        };
        let reader = open().map_err(|problem| ImportError::file(name, problem))?;
        Ok(Self { path: name.to_owned(), reader, line: 0 })
    }

    /// Opens a file that must contain text. A byte order mark is skipped.
    pub(crate) fn open_text(path: &Path, name: &Path) -> Result<Self, ImportError> {
        let mut input = Self::open_as(path, name)?;
        let beginning = input.reader.fill_buf().map_err(|source| ImportError::file(name, source))?;
        let kind = BINARY.iter().find(|(magic, _)| beginning.starts_with(magic)).map(|(_, kind)| *kind);
        let kind = kind.or_else(|| beginning.contains(&0).then_some("a binary file"));
        if let Some(kind) = kind {
            return Err(ImportError::file(name, ImportProblem::Binary(kind)));
        }
        if beginning.starts_with(BYTE_ORDER_MARK) {
            input.reader.consume(BYTE_ORDER_MARK.len());
        }
        Ok(input)
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

/// Unpacks the only file of a zip archive into an unnamed temporary file.
fn only_member(file: BufReader<File>) -> Result<File, ImportProblem> {
    let invalid = |error: zip::result::ZipError| ImportProblem::Zip(error.to_string());
    let mut archive = zip::ZipArchive::new(file).map_err(invalid)?;
    let members: Vec<String> = archive
        .file_names()
        .filter(|name| !name.ends_with('/') && !name.starts_with("__MACOSX/"))
        .map(str::to_owned)
        .collect();
    let [member] = &members[..] else {
        let is_workbook = members.iter().any(|name| name == "xl/workbook.xml");
        return Err(if is_workbook {
            ImportProblem::Binary("an Excel workbook: save it as CSV")
        } else {
            ImportProblem::Members { count: members.len() }
        });
    };
    let mut unpacked = tempfile::tempfile()?;
    io::copy(&mut archive.by_name(member).map_err(invalid)?, &mut unpacked)?;
    unpacked.rewind()?;
    Ok(unpacked)
}
