//! The rows of Arrow files (Feather version 2) and Arrow streams: numbers, words, dates and decimals.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use super::cell::{Cell, Number};
use super::error::{FilePosition, ImportError, ImportProblem};
use super::rows::TableRows;
use crate::arrow_file::{ArrowBatch, ArrowTable, ArrowValue, InvalidArrowFile};

/// An Arrow file, row by row.
pub(crate) struct ArrowRows {
    name: PathBuf,
    table: ArrowTable,
    batch: Option<ArrowBatch>,
    /// The row in the batch, and in the file.
    at: usize,
    row: u64,
}

impl ArrowRows {
    pub(crate) fn open(path: &Path, name: &Path) -> Result<Self, ImportError> {
        let file = crate::mapped::map(path).map_err(|source| ImportError::file(name, source))?;
        let table = ArrowTable::new(file).map_err(|error| damaged(name, error))?;
        Ok(Self { name: name.to_owned(), table, batch: None, at: 0, row: 0 })
    }

    fn value(&self, column: usize) -> ArrowValue<'_> {
        self.batch.as_ref().map_or(ArrowValue::Missing, |batch| batch.value(column, self.at))
    }
}

fn damaged(name: &Path, error: InvalidArrowFile) -> ImportError {
    ImportError::file(name, ImportProblem::Arrow(error))
}

impl TableRows for ArrowRows {
    fn header(&mut self) -> Result<Vec<String>, ImportError> {
        Ok(self.table.header())
    }

    fn next(&mut self) -> Result<bool, ImportError> {
        if let Some(batch) = &self.batch {
            self.at += 1;
            self.row += 1;
            if self.at < batch.rows {
                return Ok(true);
            }
        }
        loop {
            let row = self.row;
            let batch = self.table.next_batch().map_err(|error| {
                ImportError::at(&self.name, FilePosition::Row(row), ImportProblem::Arrow(error))
            })?;
            self.at = 0;
            match batch {
                Some(batch) if batch.rows == 0 => {}
                batch => {
                    self.batch = batch;
                    return Ok(self.batch.is_some());
                }
            }
        }
    }

    fn cell(&self, column: usize) -> Result<Cell<'_>, ImportError> {
        Ok(match self.value(column) {
            ArrowValue::Missing => Cell::Missing,
            ArrowValue::Whole(whole) => Cell::Number(Number::Whole(whole)),
            ArrowValue::Single(real) if real.is_nan() => Cell::Missing,
            ArrowValue::Single(real) => Cell::Number(Number::Single(real)),
            ArrowValue::Real(real) if real.is_nan() => Cell::Missing,
            ArrowValue::Real(real) => Cell::Number(Number::Double(real)),
            ArrowValue::Days(days) => Cell::Days(days),
            ArrowValue::Truth(truth) => Cell::Truth(truth),
            ArrowValue::Text(text) => Cell::Text(text.trim().into()),
            ArrowValue::Invalid => return Err(self.error(ImportProblem::Utf8)),
            ArrowValue::Unused(found) => Cell::Other(found),
        })
    }

    fn text(&self, column: usize) -> Result<Option<Cow<'_, str>>, ImportError> {
        Ok(match self.value(column) {
            ArrowValue::Missing => None,
            ArrowValue::Text(text) => Some(text.into()),
            _ => self.cell(column)?.into_text().map_err(|problem| self.error(problem))?,
        })
    }

    fn error(&self, problem: ImportProblem) -> ImportError {
        ImportError::at(&self.name, FilePosition::Row(self.row), problem)
    }
}
