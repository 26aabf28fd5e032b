//! JSON: an object per line, or an array of objects on one or more lines.
//!
//! The columns are the keys of all objects, in the order in which they first occur. The values of
//! nested objects have dotted names. A key that an object does not have is missing in it.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde_json::Number;

use super::cell::{self, Cell};
use super::error::{FilePosition, ImportError, ImportProblem};
use super::input::Input;
use super::rows::TableRows;

mod objects;

use objects::{JsonValue, Objects};

/// Most columns, and the deepest nesting.
const MOST_COLUMNS: usize = 1 << 16;
const DEEPEST: usize = 16;

/// A file of JSON objects.
pub(crate) struct JsonLines {
    name: PathBuf,
    objects: Objects,
    columns: Vec<String>,
    index: HashMap<String, usize>,
    row: Vec<JsonValue>,
}

impl JsonLines {
    /// Opens a file and reads the names of its columns, which takes a pass over the file.
    pub(crate) fn open(path: &Path, name: &Path) -> Result<Self, ImportError> {
        let mut lines = Self {
            name: name.to_owned(),
            objects: Objects::new(Input::open_text(path, name)?),
            columns: Vec::new(),
            index: HashMap::new(),
            row: Vec::new(),
        };
        // The last object with each column.
        let (mut rows, mut last) = (0u64, Vec::new());
        while let Some(object) = lines.object()? {
            rows += 1;
            for (key, _) in object {
                if let Some(&place) = lines.index.get(&key) {
                    if std::mem::replace(&mut last[place], rows) == rows {
                        return Err(lines.error(ImportProblem::DuplicateColumn(key)));
                    }
                } else {
                    if lines.columns.len() == MOST_COLUMNS {
                        return Err(lines
                            .error(ImportProblem::TooLong { what: "a list of keys", limit: MOST_COLUMNS }));
                    }
                    lines.index.insert(key.clone(), lines.columns.len());
                    lines.columns.push(key);
                    last.push(rows);
                }
            }
        }
        lines.objects = Objects::new(Input::open_text(path, name)?);
        Ok(lines)
    }

    /// Returns the values of the next object, with dotted names for those of nested objects.
    fn object(&mut self) -> Result<Option<Vec<(String, JsonValue)>>, ImportError> {
        let object = self.objects.next().map_err(|problem| self.error(problem))?;
        let Some(object) = object else { return Ok(None) };
        let mut flat = Vec::new();
        flatten(String::new(), object, 0, &mut flat).map_err(|problem| self.error(problem))?;
        Ok(Some(flat))
    }
}

fn flatten(
    name: String,
    value: JsonValue,
    depth: usize,
    flat: &mut Vec<(String, JsonValue)>,
) -> Result<(), ImportProblem> {
    match value {
        JsonValue::Object(_) if depth == DEEPEST => {
            Err(ImportProblem::TooLong { what: "a nesting", limit: DEEPEST })
        }
        JsonValue::Object(entries) => {
            for (key, value) in entries {
                let key = if name.is_empty() { key } else { format!("{name}.{key}") };
                flatten(key, value, depth + 1, flat)?;
            }
            Ok(())
        }
        value => {
            flat.push((name, value));
            Ok(())
        }
    }
}

impl TableRows for JsonLines {
    fn header(&mut self) -> Result<Vec<String>, ImportError> {
        Ok(self.columns.clone())
    }

    fn next(&mut self) -> Result<bool, ImportError> {
        let Some(object) = self.object()? else { return Ok(false) };
        self.row.clear();
        self.row.resize(self.columns.len(), JsonValue::Null);
        for (key, value) in object {
            if let Some(&place) = self.index.get(&key) {
                self.row[place] = value;
            }
        }
        Ok(true)
    }

    fn cell(&self, column: usize) -> Result<Cell<'_>, ImportError> {
        Ok(match &self.row[column] {
            JsonValue::Null => Cell::Missing,
            JsonValue::Truth(truth) => Cell::Truth(*truth),
            JsonValue::Number(number) => Cell::Number(exact(number)),
            JsonValue::Text(text) => Cell::Text(text.trim().into()),
            JsonValue::List(_) | JsonValue::Object(_) => Cell::Other("lists"),
        })
    }

    fn text(&self, column: usize) -> Result<Option<Cow<'_, str>>, ImportError> {
        Ok(match &self.row[column] {
            JsonValue::Null => None,
            JsonValue::Number(number) => Some(number.to_string().into()),
            JsonValue::Text(text) => Some(text.as_str().into()),
            JsonValue::List(items) => Some(items.as_str().into()),
            _ => self.cell(column)?.into_text().map_err(|problem| self.error(problem))?,
        })
    }

    fn error(&self, problem: ImportProblem) -> ImportError {
        ImportError::at(&self.name, FilePosition::Line(self.objects.start_line()), problem)
    }
}

fn exact(number: &Number) -> cell::Number {
    let whole = number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from));
    let real = || cell::Number::Double(number.as_f64().unwrap_or(f64::NAN));
    whole.map_or_else(real, cell::Number::Whole)
}
