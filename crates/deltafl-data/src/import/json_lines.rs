//! JSON lines: an object per line, or one array of objects.
//!
//! The columns are the keys of all objects. The values of nested objects have dotted names. A key
//! that a line does not have is missing in it.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::cell::Cell;
use super::error::{FilePosition, ImportError, ImportProblem};
use super::input::Input;
use super::rows::TableRows;

/// Most columns, and the deepest nesting.
const MOST_COLUMNS: usize = 1 << 16;
const DEEPEST: usize = 16;

/// A file of JSON lines.
pub(crate) struct JsonLines {
    name: PathBuf,
    input: Input,
    buffer: Vec<u8>,
    columns: Vec<String>,
    index: HashMap<String, usize>,
    row: Vec<Value>,
    line: u64,
}

impl JsonLines {
    /// Opens a file and reads the names of its columns, which takes a pass over the file.
    pub(crate) fn open(path: &Path, name: &Path) -> Result<Self, ImportError> {
        let mut lines = Self {
            name: name.to_owned(),
            input: Input::open_text(path, name)?,
            buffer: Vec::new(),
            columns: Vec::new(),
            index: HashMap::new(),
            row: Vec::new(),
            line: 0,
        };
        while let Some(object) = lines.object()? {
            for (key, _) in lines.flat(object)? {
                if !lines.index.contains_key(&key) {
                    if lines.columns.len() == MOST_COLUMNS {
                        return Err(lines
                            .error(ImportProblem::TooLong { what: "a list of keys", limit: MOST_COLUMNS }));
                    }
                    lines.index.insert(key.clone(), lines.columns.len());
                    lines.columns.push(key);
                }
            }
        }
        lines.input = Input::open_text(path, name)?;
        lines.line = 0;
        Ok(lines)
    }

    /// Returns the object of the next line that is not empty.
    fn object(&mut self) -> Result<Option<Value>, ImportError> {
        loop {
            let mut buffer = std::mem::take(&mut self.buffer);
            let line = self.input.line(&mut buffer)?;
            self.line += 1;
            let parsed = match line {
                None => {
                    self.buffer = buffer;
                    return Ok(None);
                }
                Some(line) => parse(line),
            };
            self.buffer = buffer;
            match parsed {
                Ok(None) => {}
                Ok(object) => return Ok(object),
                Err(problem) => return Err(self.error(problem)),
            }
        }
    }

    /// Returns the values of an object, with dotted names for those of nested objects.
    fn flat(&self, object: Value) -> Result<Vec<(String, Value)>, ImportError> {
        let mut flat = Vec::new();
        flatten(String::new(), object, 0, &mut flat).map_err(|problem| self.error(problem))?;
        Ok(flat)
    }
}

/// Parses a line: an object, possibly one of an array that spans lines. `None` for an empty line.
fn parse(line: &[u8]) -> Result<Option<Value>, ImportProblem> {
    let line = line.trim_ascii();
    let line = line.strip_suffix(b",").unwrap_or(line);
    if line.is_empty() || line == b"[" || line == b"]" {
        return Ok(None);
    }
    let line = line.strip_prefix(b"[").filter(|rest| rest.starts_with(b"{")).unwrap_or(line);
    let line = if line.starts_with(b"{") { line.strip_suffix(b"]").unwrap_or(line) } else { line };
    match serde_json::from_slice(line) {
        Ok(object @ Value::Object(_)) => Ok(Some(object)),
        Ok(_) => Err(ImportProblem::Json("expected an object such as {\"text\": \"…\"}".to_owned())),
        Err(error) => Err(ImportProblem::Json(error.to_string())),
    }
}

fn flatten(
    name: String,
    value: Value,
    depth: usize,
    flat: &mut Vec<(String, Value)>,
) -> Result<(), ImportProblem> {
    match value {
        Value::Object(_) if depth == DEEPEST => {
            Err(ImportProblem::TooLong { what: "a nesting", limit: DEEPEST })
        }
        Value::Object(entries) => {
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
        self.row.resize(self.columns.len(), Value::Null);
        for (key, value) in self.flat(object)? {
            if let Some(&place) = self.index.get(&key) {
                self.row[place] = value;
            }
        }
        Ok(true)
    }

    fn cell(&self, column: usize) -> Result<Cell<'_>, ImportError> {
        Ok(match &self.row[column] {
            Value::Null => Cell::Missing,
            Value::Bool(truth) => Cell::Text(if *truth { "true" } else { "false" }.into()),
            Value::Number(number) => Cell::Number(number.as_f64().unwrap_or(f64::NAN) as f32),
            Value::String(text) => Cell::Text(text.trim().into()),
            Value::Array(_) | Value::Object(_) => Cell::Other("lists"),
        })
    }

    fn text(&self, column: usize) -> Result<Option<Cow<'_, str>>, ImportError> {
        Ok(match &self.row[column] {
            Value::Null => None,
            Value::Bool(truth) => Some(if *truth { "true" } else { "false" }.into()),
            Value::Number(number) => Some(number.to_string().into()),
            Value::String(text) => Some(text.as_str().into()),
            other => Some(other.to_string().into()),
        })
    }

    fn error(&self, problem: ImportProblem) -> ImportError {
        ImportError::at(&self.name, FilePosition::Line(self.line), problem)
    }
}
