//! The objects of a JSON file, one at a time.

use std::fmt;
use std::io::BufRead;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Number;

use crate::import::error::ImportProblem;
use crate::import::input::Input;

/// The longest object in bytes.
const LONGEST: usize = 1 << 24;

/// A value of an object. The keys of objects keep their order.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum JsonValue {
    Null,
    Truth(bool),
    Number(Number),
    Text(String),
    /// A list, as it is written in the file.
    List(String),
    Object(Vec<(String, Self)>),
}

/// The objects of a file.
pub(super) struct Objects {
    reader: Box<dyn BufRead>,
    object: Vec<u8>,
    /// The line of the next byte, and that in which the current object starts.
    line: u64,
    start: u64,
}

/// The position of a byte in an object.
#[derive(Clone, Copy, Default)]
struct Scan {
    depth: usize,
    in_text: bool,
    is_escaped: bool,
}

impl Objects {
    pub(super) fn new(input: Input) -> Self {
        Self { reader: input.into_reader(), object: Vec::new(), line: 1, start: 1 }
    }

    /// Returns the line in which the last object starts, or the last error is.
    pub(super) fn start_line(&self) -> u64 {
        self.start
    }

    /// Returns the next object; `None` after the last. Commas, brackets and white space between
    /// objects are skipped.
    pub(super) fn next(&mut self) -> Result<Option<JsonValue>, ImportProblem> {
        if !self.read()? {
            return Ok(None);
        }
        match serde_json::from_slice(&self.object) {
            Ok(object) => Ok(Some(object)),
            Err(error) => {
                self.start += (error.line() as u64).saturating_sub(1);
                let message = error.to_string();
                let what = message.rsplit_once(" at line ").map_or(message.as_str(), |(what, _)| what);
                Err(ImportProblem::Json(what.to_owned()))
            }
        }
    }

    /// Reads the bytes of the next object. Returns `false` at the end of the file.
    fn read(&mut self) -> Result<bool, ImportProblem> {
        self.object.clear();
        self.start = self.line;
        let mut scan = Scan::default();
        loop {
            let bytes = self.reader.fill_buf()?;
            if bytes.is_empty() {
                return if scan.depth == 0 { Ok(false) } else { Err(unfinished()) };
            }
            let mut from = if scan.depth == 0 { None } else { Some(0) };
            let (mut used, mut found) = (0, Ok(false));
            for &byte in bytes {
                if scan.depth == 0 && byte == b'{' {
                    (self.start, from) = (self.line, Some(used));
                }
                used += 1;
                found = scan.step(byte);
                if !matches!(found, Ok(false)) {
                    break;
                }
                self.line += u64::from(byte == b'\n');
            }
            if let Some(from) = from {
                self.object.extend_from_slice(&bytes[from..used]);
            }
            self.reader.consume(used);
            match found {
                Ok(false) if self.object.len() > LONGEST => {
                    return Err(ImportProblem::TooLong { what: "an object", limit: LONGEST });
                }
                Ok(false) => {}
                Ok(true) => return Ok(true),
                Err(problem) => {
                    self.start = self.line;
                    return Err(problem);
                }
            }
        }
    }
}

impl Scan {
    /// Moves over a byte. Returns `true` at the end of an object.
    fn step(&mut self, byte: u8) -> Result<bool, ImportProblem> {
        if self.in_text {
            match byte {
                b'\n' => return Err(ImportProblem::Json("a text does not end in its line".to_owned())),
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' => self.is_escaped = true,
                b'"' => self.in_text = false,
                _ => {}
            }
            return Ok(false);
        }
        match (byte, self.depth) {
            (b'{', _) => self.depth += 1,
            (b'[' | b']' | b',', 0) => {}
            (byte, 0) if byte.is_ascii_whitespace() => {}
            (_, 0) => return Err(no_object()),
            (b'"', _) => self.in_text = true,
            (b'[', _) => self.depth += 1,
            (b'}' | b']', _) => {
                self.depth -= 1;
                return Ok(self.depth == 0);
            }
            _ => {}
        }
        Ok(false)
    }
}

fn no_object() -> ImportProblem {
    ImportProblem::Json("expected an object such as {\"text\": \"…\"}".to_owned())
}

fn unfinished() -> ImportProblem {
    ImportProblem::Json("the file ends inside an object".to_owned())
}

impl<'de> Deserialize<'de> for JsonValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = JsonValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<JsonValue, E> {
        Ok(JsonValue::Null)
    }

    fn visit_bool<E>(self, truth: bool) -> Result<JsonValue, E> {
        Ok(JsonValue::Truth(truth))
    }

    fn visit_i64<E>(self, number: i64) -> Result<JsonValue, E> {
        Ok(JsonValue::Number(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<JsonValue, E> {
        Ok(JsonValue::Number(number.into()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<JsonValue, E> {
        Ok(Number::from_f64(number).map_or(JsonValue::Null, JsonValue::Number))
    }

    fn visit_str<E>(self, text: &str) -> Result<JsonValue, E> {
        Ok(JsonValue::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<JsonValue, E> {
        Ok(JsonValue::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<JsonValue, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element::<serde_json::Value>()? {
            list.push(item);
        }
        Ok(JsonValue::List(serde_json::Value::Array(list).to_string()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<JsonValue, A::Error> {
        let mut object = Vec::new();
        while let Some(entry) = entries.next_entry::<String, JsonValue>()? {
            object.push(entry);
        }
        Ok(JsonValue::Object(object))
    }
}
