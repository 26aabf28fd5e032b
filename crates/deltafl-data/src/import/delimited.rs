//! CSV and TSV files.

use std::borrow::Cow;
use std::io::{BufRead, Read};
use std::path::{Path, PathBuf};

use csv::{ByteRecord, Reader, ReaderBuilder};

use super::cell::{Cell, trimmed};
use super::error::{FilePosition, ImportError, ImportProblem};
use super::input::Input;
use super::rows::TableRows;

/// The delimiter of the fields of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// Commas, with quotes if needed; semicolons if the header contains semicolons and no comma, as
    /// spreadsheets write them in many countries.
    Csv,
    /// Tabs, without quotes.
    Tsv,
}

/// A delimited file, record by record.
pub(crate) struct Delimited {
    path: PathBuf,
    reader: Reader<EndReader>,
    record: ByteRecord,
    /// Whether lines end in a carriage return and a line feed. At the start of a record the parser
    /// has only read the first of the two.
    is_crlf: bool,
    has_semicolons: bool,
}

/// A reader that keeps the last byte of the file that does not end a line.
struct EndReader {
    reader: Box<dyn Read>,
    last: u8,
}

impl Read for EndReader {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.reader.read(buffer)?;
        let last = buffer[..count].iter().rev().find(|byte| !matches!(byte, b'\n' | b'\r'));
        self.last = *last.unwrap_or(&self.last);
        Ok(count)
    }
}

impl Delimited {
    /// Opens a file with or without a header.
    pub(crate) fn open(path: &Path, dialect: Dialect, has_header: bool) -> Result<Self, ImportError> {
        Self::open_as(path, path, dialect, has_header)
    }

    /// Opens a file that has another name in messages.
    pub(crate) fn open_as(
        path: &Path,
        name: &Path,
        dialect: Dialect,
        has_header: bool,
    ) -> Result<Self, ImportError> {
        let mut reader = Input::open_text(path, name)?.into_reader();
        let beginning = reader.fill_buf().map_err(|source| ImportError::file(name, source))?;
        let first_line = beginning.split_inclusive(|&byte| byte == b'\n').next().unwrap_or_default();
        let is_crlf = first_line.ends_with(b"\r\n");
        let delimiter = match dialect {
            Dialect::Tsv => b'\t',
            Dialect::Csv if !first_line.contains(&b',') && first_line.contains(&b';') => b';',
            Dialect::Csv => b',',
        };
        let reader = EndReader { reader: Box::new(reader), last: 0 };
        let reader = ReaderBuilder::new()
            .delimiter(delimiter)
            .quoting(dialect == Dialect::Csv)
            .has_headers(has_header)
            .buffer_capacity(1 << 17)
            .from_reader(reader);
        let has_semicolons = delimiter == b';';
        Ok(Self { path: name.to_owned(), reader, record: ByteRecord::new(), is_crlf, has_semicolons })
    }

    /// Returns the names of the columns.
    pub(crate) fn header(&mut self) -> Result<Vec<String>, ImportError> {
        match self.reader.byte_headers() {
            Ok(header) => {
                let name = |name: &[u8]| std::str::from_utf8(name).map(str::to_owned);
                let names: Result<_, _> = header.iter().map(name).collect();
                names.map_err(|_| ImportError::at(&self.path, FilePosition::Line(1), ImportProblem::Utf8))
            }
            Err(error) => Err(self.convert(error)),
        }
    }

    /// Moves to the next record. Returns `false` after the last.
    pub(crate) fn next(&mut self) -> Result<bool, ImportError> {
        let is_line_end = |byte: &u8| matches!(byte, b'\n' | b'\r');
        let quoted = self.record.iter().next_back().filter(|field| field.iter().any(is_line_end));
        let quoted = quoted.and(self.record.position()).map(|position| self.line(position));
        match (self.reader.read_byte_record(&mut self.record), quoted) {
            // The last field contains all further rows if its quote is not closed.
            (Ok(false), Some(line)) if self.reader.get_ref().last != b'"' => {
                Err(ImportError::at(&self.path, FilePosition::Line(line), ImportProblem::Quote))
            }
            (Ok(more), _) => Ok(more),
            (Err(error), _) => Err(self.convert(error)),
        }
    }

    /// Returns a field of this record. Every record has as many fields as the first.
    pub(crate) fn field(&self, index: usize) -> &[u8] {
        self.record.get(index).unwrap_or_default()
    }

    /// Returns a field that must be UTF-8.
    pub(crate) fn text(&self, index: usize) -> Result<&str, ImportError> {
        std::str::from_utf8(self.field(index)).map_err(|_| self.error(ImportProblem::Utf8))
    }

    /// Returns the number of fields of this record.
    pub(crate) fn len(&self) -> usize {
        self.record.len()
    }

    /// Returns an error with the place of this record.
    pub(crate) fn error(&self, problem: ImportProblem) -> ImportError {
        let line = self.record.position().map_or(1, |position| self.line(position));
        ImportError::at(&self.path, FilePosition::Line(line), problem)
    }

    /// Returns the line in which a record starts. The header is line 1.
    fn line(&self, position: &csv::Position) -> u64 {
        position.line() + u64::from(self.is_crlf && position.byte() > 0)
    }

    fn convert(&self, error: csv::Error) -> ImportError {
        let line = error.position().map_or(self.reader.position().line(), |position| self.line(position));
        let problem = match error.into_kind() {
            csv::ErrorKind::Io(source) => ImportProblem::Io(source),
            csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
                ImportProblem::Count { what: "fields", expected: expected_len, got: len }
            }
            _ => ImportProblem::Utf8,
        };
        ImportError::at(&self.path, FilePosition::Line(line), problem)
    }
}

impl TableRows for Delimited {
    fn header(&mut self) -> Result<Vec<String>, ImportError> {
        Self::header(self)
    }

    fn next(&mut self) -> Result<bool, ImportError> {
        Self::next(self)
    }

    fn cell(&self, column: usize) -> Result<Cell<'_>, ImportError> {
        Ok(Cell::Text(trimmed(Self::text(self, column)?).into()))
    }

    fn text(&self, column: usize) -> Result<Option<Cow<'_, str>>, ImportError> {
        Ok(Some(Self::text(self, column)?.into()))
    }

    fn error(&self, problem: ImportProblem) -> ImportError {
        Self::error(self, problem)
    }

    fn has_semicolons(&self) -> bool {
        self.has_semicolons
    }
}

/// Returns the index of a column.
pub(crate) fn column(path: &Path, header: &[String], name: &str) -> Result<usize, ImportError> {
    header.iter().position(|column| column == name).ok_or_else(|| {
        ImportError::file(path, ImportProblem::NoColumn { name: name.to_owned(), columns: header.to_vec() })
    })
}
