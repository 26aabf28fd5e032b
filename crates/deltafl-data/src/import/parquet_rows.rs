//! The rows of flat Parquet files: numbers, words, dates and decimals.

use std::borrow::Cow;
use std::fs::File;
use std::path::{Path, PathBuf};

use parquet::file::reader::FileReader as _;

use super::cell::Cell;
use super::error::{FilePosition, ImportError, ImportProblem};
use super::rows::TableRows;
use crate::parquet_file::batch::LeafBatch;
use crate::parquet_file::columns::{self, Leaf, LeafReader, NoLeaf, ParquetReader};

/// Rows read at a time.
const BATCH: usize = 1024;

/// A Parquet file, row by row.
pub(crate) struct ParquetRows {
    name: PathBuf,
    file: ParquetReader,
    columns: Vec<Result<Leaf, &'static str>>,
    /// The next row group, and the readers and batches of the current one.
    group: usize,
    readers: Vec<Option<LeafReader>>,
    batches: Vec<Option<LeafBatch>>,
    /// The row in the batch, and in the file.
    at: usize,
    rows: usize,
    row: u64,
    started: bool,
}

impl ParquetRows {
    pub(crate) fn open(path: &Path, name: &Path) -> Result<Self, ImportError> {
        let damaged = |error: parquet::errors::ParquetError| {
            ImportError::file(name, ImportProblem::Parquet(error.to_string()))
        };
        let file = File::open(path).map_err(|source| ImportError::file(name, source))?;
        let file = columns::open(file).map_err(damaged)?;
        let schema = file.metadata().file_metadata().schema_descr();
        let count = schema.root_schema().get_fields().len();
        let leaf = |at| match Leaf::find(schema, at) {
            Ok(leaf) if leaf.list => Err("lists"),
            Ok(leaf) if leaf.in_struct => Err("structs"),
            Ok(leaf) => Ok(leaf),
            Err(NoLeaf::NoBytes) => Err("structs"),
            Err(NoLeaf::Other(found)) => Err(found),
        };
        let columns = (0..count).map(leaf).collect();
        Ok(Self {
            name: name.to_owned(),
            file,
            columns,
            group: 0,
            readers: Vec::new(),
            batches: Vec::new(),
            at: 0,
            rows: 0,
            row: 0,
            started: false,
        })
    }

    fn damaged(&self, error: &parquet::errors::ParquetError) -> ImportError {
        ImportError::file(&self.name, ImportProblem::Parquet(error.to_string()))
    }

    /// Reads the next batch. Returns `false` at the end of the file.
    fn next_batch(&mut self) -> Result<bool, ImportError> {
        loop {
            let mut batches = Vec::with_capacity(self.readers.len());
            for reader in &mut self.readers {
                batches.push(reader.as_mut().map(|reader| reader.read(BATCH)).transpose());
            }
            let batches: Result<Vec<_>, _> = batches.into_iter().collect();
            self.batches = batches.map_err(|error| self.damaged(&error))?;
            let mut counts = self.batches.iter().flatten().map(LeafBatch::rows);
            self.rows = counts.next().unwrap_or(0);
            if counts.any(|count| count != self.rows) {
                let error = "the columns of a row group have different numbers of rows";
                return Err(ImportError::file(&self.name, ImportProblem::Parquet(error.to_owned())));
            }
            self.at = 0;
            if self.rows > 0 {
                return Ok(true);
            }
            if self.group == self.file.num_row_groups() {
                return Ok(false);
            }
            let opened = self.file.get_row_group(self.group).and_then(|group| {
                let reader =
                    |leaf: &Result<Leaf, _>| leaf.as_ref().ok().map(|leaf| leaf.reader(&*group)).transpose();
                self.columns.iter().map(reader).collect::<Result<Vec<_>, _>>()
            });
            self.readers = opened.map_err(|error| self.damaged(&error))?;
            self.group += 1;
        }
    }
}

impl TableRows for ParquetRows {
    fn header(&mut self) -> Result<Vec<String>, ImportError> {
        let schema = self.file.metadata().file_metadata().schema_descr().root_schema();
        Ok(schema.get_fields().iter().map(|field| field.name().to_owned()).collect())
    }

    fn next(&mut self) -> Result<bool, ImportError> {
        if self.started {
            self.at += 1;
            self.row += 1;
        }
        self.started = true;
        Ok(self.at < self.rows || self.next_batch()?)
    }

    fn cell(&self, column: usize) -> Result<Cell<'_>, ImportError> {
        let batch = match (&self.columns[column], &self.batches[column]) {
            (Err(found), _) => return Ok(Cell::Other(found)),
            (Ok(_), Some(batch)) => batch,
            (Ok(_), None) => return Ok(Cell::Missing),
        };
        if batch.is_missing(self.at) {
            return Ok(Cell::Missing);
        }
        let Some(i) = batch.range(self.at).next() else { return Ok(Cell::Missing) };
        if let Some(days) = batch.days(i) {
            return Ok(Cell::Days(days));
        }
        if let Some(truth) = batch.truth(i) {
            return Ok(Cell::Truth(truth));
        }
        if let Some(number) = batch.number(i) {
            return Ok(if number.as_f32().is_nan() { Cell::Missing } else { Cell::Number(number) });
        }
        match batch.bytes(i).filter(|_| batch.holds_text()) {
            Some(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => Ok(Cell::Text(text.trim().into())),
                Err(_) => Err(self.error(ImportProblem::Utf8)),
            },
            None => Ok(Cell::Other("bytes")),
        }
    }

    fn text(&self, column: usize) -> Result<Option<Cow<'_, str>>, ImportError> {
        self.cell(column)?.into_text().map_err(|problem| self.error(problem))
    }

    fn error(&self, problem: ImportProblem) -> ImportError {
        ImportError::at(&self.name, FilePosition::Row(self.row), problem)
    }
}
