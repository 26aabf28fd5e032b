//! Tables of any format, row by row, from one or several files.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use super::arrow_rows::ArrowRows;
use super::cell::{Cell, Decimal, number};
use super::delimited::{Delimited, Dialect};
use super::error::{ImportError, ImportProblem};
use super::json_lines::JsonLines;
use super::parquet_rows::ParquetRows;

/// The format of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableFormat {
    /// Delimited text.
    Delimited(Dialect),
    /// A JSON object per line.
    JsonLines,
    /// Parquet.
    Parquet,
    /// Arrow IPC: files (Feather version 2) and streams.
    Arrow,
}

impl TableFormat {
    /// Returns the name of the importer.
    pub fn name(self) -> &'static str {
        match self {
            Self::Delimited(Dialect::Csv) => "csv",
            Self::Delimited(Dialect::Tsv) => "tsv",
            Self::JsonLines => "jsonl",
            Self::Parquet => "parquet",
            Self::Arrow => "arrow",
        }
    }
}

/// A reader of one file of a table.
pub(crate) trait TableRows {
    /// Returns the names of the columns.
    fn header(&mut self) -> Result<Vec<String>, ImportError>;

    /// Moves to the next row. Returns `false` after the last.
    fn next(&mut self) -> Result<bool, ImportError>;

    /// Returns a value of this row.
    fn cell(&self, column: usize) -> Result<Cell<'_>, ImportError>;

    /// Returns a value of this row as text, or `None` if it is missing.
    fn text(&self, column: usize) -> Result<Option<Cow<'_, str>>, ImportError>;

    /// Returns an error with the place of this row.
    fn error(&self, problem: ImportProblem) -> ImportError;

    /// Whether numbers may have decimal commas, because semicolons separate the fields.
    fn has_semicolons(&self) -> bool {
        false
    }
}

/// The files of a table. Each can be read several times.
#[derive(Debug)]
pub(crate) struct TableFiles {
    files: Vec<LocalFile>,
    format: TableFormat,
    /// The names of the columns of the first file. The other files have the same in any order.
    pub(crate) header: Vec<String>,
    /// Whether numbers may have decimal commas.
    pub(crate) decimal: Decimal,
}

/// A file that can be read several times: `-` and pipes are copied.
#[derive(Debug)]
pub(crate) struct LocalFile {
    /// The file to read.
    pub(crate) path: PathBuf,
    /// The name in messages.
    pub(crate) name: PathBuf,
    _copy: Option<NamedTempFile>,
}

impl LocalFile {
    pub(crate) fn new(path: &Path) -> Result<Self, ImportError> {
        let name = path.to_owned();
        let is_stdin = path == Path::new("-");
        let metadata = (!is_stdin).then(|| std::fs::metadata(path)).transpose();
        let metadata = metadata.map_err(|source| ImportError::file(path, source))?;
        if metadata.as_ref().is_some_and(std::fs::Metadata::is_dir) {
            return Err(ImportError::file(path, ImportProblem::Folder));
        }
        if metadata.is_some_and(|metadata| metadata.is_file()) {
            return Ok(Self { path: name.clone(), name, _copy: None });
        }
        let copy = || -> io::Result<NamedTempFile> {
            let mut copy = NamedTempFile::new()?;
            match is_stdin {
                true => io::copy(&mut io::stdin().lock(), &mut copy)?,
                false => io::copy(&mut File::open(path)?, &mut copy)?,
            };
            Ok(copy)
        };
        let copy = copy().map_err(|source| ImportError::file(path, source))?;
        let name = if is_stdin { PathBuf::from("standard input") } else { name };
        Ok(Self { path: copy.path().to_owned(), name, _copy: Some(copy) })
    }
}

impl TableFiles {
    /// Opens the files and reads the names of their columns.
    pub(crate) fn open(
        paths: &[PathBuf],
        format: TableFormat,
        decimal: Option<Decimal>,
    ) -> Result<Self, ImportError> {
        let files = paths.iter().map(|path| LocalFile::new(path)).collect::<Result<Vec<_>, _>>()?;
        let mut table = Self { files, format, header: Vec::new(), decimal: decimal.unwrap_or_default() };
        for (i, file) in table.files.iter().enumerate() {
            let mut rows = open(file, format)?;
            let header = rows.header()?;
            if decimal.is_none() && rows.has_semicolons() {
                table.decimal = Decimal::Comma;
            }
            if matches!(format, TableFormat::Delimited(_)) && is_data(&header) {
                return Err(ImportError::file(&file.name, ImportProblem::NoHeader));
            }
            let mut seen = HashSet::new();
            if let Some(twice) = header.iter().find(|name| !seen.insert(name.as_str())) {
                let problem = ImportProblem::DuplicateColumn(twice.clone());
                return Err(ImportError::file(&file.name, problem));
            }
            if i == 0 {
                table.header = header;
            } else if format == TableFormat::JsonLines {
                // A key that no object of a file has is missing in all of them.
                let further = header.into_iter().filter(|name| !table.header.contains(name));
                let further: Vec<String> = further.collect();
                table.header.extend(further);
            } else if let Some(missing) = table.header.iter().find(|name| !header.contains(name)) {
                let problem = ImportProblem::NoColumn { name: missing.clone(), columns: header };
                return Err(ImportError::file(&file.name, problem));
            }
        }
        Ok(table)
    }

    /// Returns the name of the first file, for errors of the table as a whole.
    pub(crate) fn path(&self) -> &Path {
        self.files.first().map_or(Path::new("."), |file| &file.name)
    }

    /// Returns the names of the files.
    pub(crate) fn names(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|file| file.name.as_path())
    }

    /// Returns the index of a column.
    pub(crate) fn column(&self, name: &str) -> Result<usize, ImportError> {
        super::delimited::column(self.path(), &self.header, name)
    }

    /// Starts to read the rows of all files.
    pub(crate) fn rows(&self) -> Result<TableCursor<'_>, ImportError> {
        let mut cursor = TableCursor { table: self, next_file: 0, rows: None, places: Vec::new() };
        cursor.open_next()?;
        Ok(cursor)
    }
}

/// Whether the names of columns are numbers other than those of a data frame without names.
fn is_data(header: &[String]) -> bool {
    let is_number = |name: &String| number(name.trim(), Decimal::Comma).is_some();
    let is_counted = |first: usize| (first..).zip(header).all(|(i, name)| name.trim() == i.to_string());
    header.len() > 1 && header.iter().all(is_number) && !is_counted(0) && !is_counted(1)
}

fn open(file: &LocalFile, format: TableFormat) -> Result<Box<dyn TableRows>, ImportError> {
    Ok(match format {
        TableFormat::Delimited(dialect) => {
            Box::new(Delimited::open_as(&file.path, &file.name, dialect, true)?)
        }
        TableFormat::JsonLines => Box::new(JsonLines::open(&file.path, &file.name)?),
        TableFormat::Parquet => Box::new(ParquetRows::open(&file.path, &file.name)?),
        TableFormat::Arrow => Box::new(ArrowRows::open(&file.path, &file.name)?),
    })
}

/// The rows of all files of a table.
pub(crate) struct TableCursor<'t> {
    table: &'t TableFiles,
    next_file: usize,
    rows: Option<Box<dyn TableRows>>,
    /// The place of each column in this file; `None` if the file does not have it.
    places: Vec<Option<usize>>,
}

impl TableCursor<'_> {
    /// Opens the next file. Returns `false` after the last.
    fn open_next(&mut self) -> Result<bool, ImportError> {
        let Some(file) = self.table.files.get(self.next_file) else { return Ok(false) };
        let mut rows = open(file, self.table.format)?;
        let header = rows.header()?;
        self.places.clear();
        for name in &self.table.header {
            let place = header.iter().position(|column| column == name);
            if place.is_none() && self.table.format != TableFormat::JsonLines {
                let problem = ImportProblem::NoColumn { name: name.clone(), columns: header };
                return Err(ImportError::file(&file.name, problem));
            }
            self.places.push(place);
        }
        self.next_file += 1;
        self.rows = Some(rows);
        Ok(true)
    }

    /// Moves to the next row. Returns `false` after the last row of the last file.
    pub(crate) fn next(&mut self) -> Result<bool, ImportError> {
        loop {
            if let Some(rows) = &mut self.rows
                && rows.next()?
            {
                return Ok(true);
            }
            if !self.open_next()? {
                return Ok(false);
            }
        }
    }

    fn current(&self) -> &dyn TableRows {
        &**self.rows.as_ref().expect("the first file is opened before the first row")
    }

    /// Returns a value of this row.
    pub(crate) fn cell(&self, column: usize) -> Result<Cell<'_>, ImportError> {
        self.places[column].map_or(Ok(Cell::Missing), |place| self.current().cell(place))
    }

    /// Returns a value of this row as text, or `None` if it is missing.
    pub(crate) fn text(&self, column: usize) -> Result<Option<Cow<'_, str>>, ImportError> {
        self.places[column].map_or(Ok(None), |place| self.current().text(place))
    }

    /// Returns an error with the place of this row.
    pub(crate) fn error(&self, problem: ImportProblem) -> ImportError {
        match &self.rows {
            Some(rows) => rows.error(problem),
            None => ImportError::file(self.table.path(), problem),
        }
    }
}
