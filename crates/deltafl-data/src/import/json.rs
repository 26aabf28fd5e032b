//! A pull parser for JSON files of any length.
//!
//! The reader keeps one buffer of the file. The caller requests the next item by its type, so that
//! no intermediate values are built: a row of features is converted directly from text to `f32`.

use std::io::Read;
use std::path::{Path, PathBuf};

use super::error::{FilePosition, FoundItem, ImportError, ImportProblem};
use super::input::Input;
use super::number::json_f32;

/// Bytes of the file in memory.
const BUFFER: usize = 1 << 18;

/// Longest string and longest number.
const LONGEST_STRING: usize = 1 << 20;
const LONGEST_NUMBER: usize = 1 << 12;

/// Maximum nesting of arrays and objects.
const DEEPEST: usize = 64;

/// A JSON text that is being read.
pub(crate) struct JsonReader {
    path: PathBuf,
    reader: Box<dyn Read>,
    buffer: Vec<u8>,
    /// The unread part of the buffer.
    at: usize,
    end: usize,
    /// Bytes of the file before the buffer.
    before: u64,
    is_last: bool,
}

impl JsonReader {
    pub(crate) fn open(path: &Path) -> Result<Self, ImportError> {
        let reader = Box::new(Input::open(path)?.into_reader());
        Ok(Self::new(path, reader))
    }

    pub(crate) fn new(path: &Path, reader: Box<dyn Read>) -> Self {
        let buffer = vec![0; BUFFER];
        Self { path: path.to_owned(), reader, buffer, at: 0, end: 0, before: 0, is_last: false }
    }

    /// Returns an error with the current place.
    pub(crate) fn error(&self, problem: ImportProblem) -> ImportError {
        ImportError::at(&self.path, FilePosition::Byte(self.before + self.at as u64), problem)
    }

    /// Returns the next byte that is not white space, without consuming it.
    #[inline]
    pub(crate) fn peek(&mut self) -> Result<Option<u8>, ImportError> {
        loop {
            if self.at == self.end && !self.fill(1)? {
                return Ok(None);
            }
            match self.buffer[self.at] {
                b' ' | b'\n' | b'\r' | b'\t' => self.at += 1,
                byte => return Ok(Some(byte)),
            }
        }
    }

    /// Consumes this byte, which must be next.
    #[inline]
    pub(crate) fn expect(&mut self, byte: u8, expected: &'static str) -> Result<(), ImportError> {
        if self.peek()? == Some(byte) {
            self.at += 1;
            return Ok(());
        }
        Err(self.unexpected(expected))
    }

    /// Returns the error for an unexpected item at the current place.
    pub(crate) fn unexpected(&mut self, expected: &'static str) -> ImportError {
        match self.peek() {
            Ok(None) => self.error(ImportProblem::Expected { expected, found: FoundItem::End }),
            Ok(Some(b'N' | b'I')) if expected == "a number" => self.error(ImportProblem::NonFinite),
            Ok(Some(byte)) => self.error(ImportProblem::Expected { expected, found: FoundItem::Byte(byte) }),
            Err(error) => error,
        }
    }

    /// Calls `element` for each element of the array, which must be next.
    pub(crate) fn array(
        &mut self,
        mut element: impl FnMut(&mut Self) -> Result<(), ImportError>,
    ) -> Result<(), ImportError> {
        self.expect(b'[', "an array")?;
        if self.peek()? == Some(b']') {
            self.at += 1;
            return Ok(());
        }
        loop {
            element(self)?;
            match self.peek()? {
                Some(b',') => self.at += 1,
                Some(b']') => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return Err(self.unexpected("`,` or `]`")),
            }
        }
    }

    /// Calls `member` with the key of each member of the object, which must be next.
    pub(crate) fn object(
        &mut self,
        mut member: impl FnMut(&mut Self, &str) -> Result<(), ImportError>,
    ) -> Result<(), ImportError> {
        self.expect(b'{', "an object")?;
        if self.peek()? == Some(b'}') {
            self.at += 1;
            return Ok(());
        }
        let mut key = String::new();
        loop {
            self.string(&mut key)?;
            self.expect(b':', "`:`")?;
            member(self, &key)?;
            match self.peek()? {
                Some(b',') => self.at += 1,
                Some(b'}') => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return Err(self.unexpected("`,` or `}`")),
            }
        }
    }

    /// Checks that only white space follows.
    pub(crate) fn end(&mut self) -> Result<(), ImportError> {
        match self.peek()? {
            None => Ok(()),
            Some(_) => Err(self.unexpected("the end of the file")),
        }
    }

    /// Reads a number, rounded to the nearest `f32`; infinite if it is too large.
    #[inline]
    pub(crate) fn f32(&mut self) -> Result<f32, ImportError> {
        self.peek()?;
        if self.end - self.at < 64 {
            self.fill(64)?;
        }
        let (number, len) = match json_f32(&self.buffer[self.at..self.end]) {
            Some((number, len)) if self.at + len < self.end || self.is_last => (number, len),
            _ => self.long_f32()?,
        };
        self.at += len;
        Ok(number)
    }

    /// Reads a number that does not end in the first 64 bytes, or fails.
    #[cold]
    fn long_f32(&mut self) -> Result<(f32, usize), ImportError> {
        self.fill(LONGEST_NUMBER)?;
        match json_f32(&self.buffer[self.at..self.end]) {
            Some((_, len)) if len >= LONGEST_NUMBER => {
                Err(self.error(ImportProblem::TooLong { what: "a number", limit: LONGEST_NUMBER }))
            }
            Some(found) => Ok(found),
            None => Err(self.unexpected("a number")),
        }
    }

    /// Reads a whole number below 2^24, which may be written as `3.0`.
    pub(crate) fn label(&mut self) -> Result<u32, ImportError> {
        let (start, negative) = (self.before + self.at as u64, self.peek()? == Some(b'-'));
        let number = self.f32()?;
        if negative || number.fract() != 0.0 || number > 16_777_215.0 {
            let problem = ImportProblem::Label(number.to_string());
            return Err(ImportError::at(&self.path, FilePosition::Byte(start), problem));
        }
        Ok(number as u32)
    }

    /// Reads a whole number; the largest `u64` if it is larger.
    pub(crate) fn count(&mut self) -> Result<u64, ImportError> {
        let mut count = 0u64;
        let mut digits = 0;
        self.peek()?;
        while self.at < self.end || self.fill(1)? {
            let byte = self.buffer[self.at];
            if !byte.is_ascii_digit() {
                break;
            }
            count = count.saturating_mul(10).saturating_add(u64::from(byte - b'0'));
            digits += 1;
            self.at += 1;
        }
        if digits == 0 { Err(self.unexpected("a number")) } else { Ok(count) }
    }

    /// Reads a string into `out`.
    pub(crate) fn string(&mut self, out: &mut String) -> Result<(), ImportError> {
        self.expect(b'"', "a string")?;
        let mut bytes = std::mem::take(out).into_bytes();
        bytes.clear();
        loop {
            if self.at == self.end && !self.fill(1)? {
                return Err(self.error(ImportProblem::Truncated("a string")));
            }
            let rest = &self.buffer[self.at..self.end];
            let plain = rest.iter().position(|&b| b == b'"' || b == b'\\' || b < 0x20).unwrap_or(rest.len());
            bytes.extend_from_slice(&rest[..plain]);
            self.at += plain;
            if bytes.len() > LONGEST_STRING {
                return Err(self.error(ImportProblem::TooLong { what: "a string", limit: LONGEST_STRING }));
            }
            match self.buffer[..self.end].get(self.at) {
                None => {}
                Some(b'"') => {
                    self.at += 1;
                    break;
                }
                Some(b'\\') => self.escape(&mut bytes)?,
                Some(_) => return Err(self.unexpected("a character without escape")),
            }
        }
        *out = String::from_utf8(bytes).map_err(|_| self.error(ImportProblem::Utf8))?;
        Ok(())
    }

    /// Reads the character of an escape sequence.
    fn escape(&mut self, out: &mut Vec<u8>) -> Result<(), ImportError> {
        self.fill(12)?;
        let rest = &self.buffer[self.at..self.end];
        let (character, len) = match rest.get(1) {
            Some(b'"') => ('"', 2),
            Some(b'\\') => ('\\', 2),
            Some(b'/') => ('/', 2),
            Some(b'b') => ('\u{8}', 2),
            Some(b'f') => ('\u{c}', 2),
            Some(b'n') => ('\n', 2),
            Some(b'r') => ('\r', 2),
            Some(b't') => ('\t', 2),
            Some(b'u') => match unicode_escape(rest) {
                Some(found) => found,
                None => return Err(self.unexpected("an escape sequence")),
            },
            _ => return Err(self.unexpected("an escape sequence")),
        };
        self.at += len;
        out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        Ok(())
    }

    /// Skips a value of any kind.
    pub(crate) fn skip(&mut self) -> Result<(), ImportError> {
        self.skip_nested(0)
    }

    fn skip_nested(&mut self, depth: usize) -> Result<(), ImportError> {
        if depth > DEEPEST {
            return Err(self.error(ImportProblem::TooLong { what: "a nesting", limit: DEEPEST }));
        }
        match self.peek()? {
            Some(b'[') => self.array(|json| json.skip_nested(depth + 1)),
            Some(b'{') => self.object(|json, _| json.skip_nested(depth + 1)),
            Some(b'"') => self.string(&mut String::new()),
            Some(b't') => self.word("true"),
            Some(b'f') => self.word("false"),
            Some(b'n') => self.word("null"),
            Some(b'-' | b'0'..=b'9') => self.f32().map(drop),
            _ => Err(self.unexpected("a value")),
        }
    }

    fn word(&mut self, word: &'static str) -> Result<(), ImportError> {
        self.fill(word.len())?;
        if !self.buffer[self.at..self.end].starts_with(word.as_bytes()) {
            return Err(self.unexpected(word));
        }
        self.at += word.len();
        Ok(())
    }

    /// Reads until `wanted` bytes are available or the file ends. Returns whether there is a byte.
    #[cold]
    fn fill(&mut self, wanted: usize) -> Result<bool, ImportError> {
        if self.end - self.at < wanted && !self.is_last {
            self.buffer.copy_within(self.at..self.end, 0);
            self.before += self.at as u64;
            self.end -= self.at;
            self.at = 0;
        }
        while self.end - self.at < wanted && !self.is_last {
            match self.reader.read(&mut self.buffer[self.end..]) {
                Ok(0) => self.is_last = true,
                Ok(read) => self.end += read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let at = FilePosition::Byte(self.before + self.end as u64);
                    return Err(ImportError::at(&self.path, at, error.into()));
                }
            }
        }
        Ok(self.at < self.end)
    }
}

/// Returns the character of `\uXXXX`, or of a pair of them, and the length of the sequence.
fn unicode_escape(rest: &[u8]) -> Option<(char, usize)> {
    let unit = |at: usize| {
        let digits = rest.get(at..at + 6)?.strip_prefix(b"\\u")?;
        digits.iter().try_fold(0, |unit, &digit| Some(16 * unit + char::from(digit).to_digit(16)?))
    };
    let first = unit(0)?;
    if let Some(character) = char::from_u32(first) {
        return Some((character, 6));
    }
    let second = unit(6).filter(|low| (0xdc00..0xe000).contains(low));
    match (first, second) {
        (0xd800..0xdc00, Some(low)) => {
            let code = 0x1_0000 + ((first - 0xd800) << 10) + (low - 0xdc00);
            Some((char::from_u32(code)?, 12))
        }
        // Half of a surrogate pair, which truncated tweets contain, is read as the replacement
        // character.
        _ => Some((char::REPLACEMENT_CHARACTER, 6)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns one byte at a time, so that every value crosses the end of the buffer.
    struct Drip(Vec<u8>, usize);

    impl Read for Drip {
        fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
            let Some(&byte) = self.0.get(self.1) else { return Ok(0) };
            self.1 += 1;
            out[0] = byte;
            Ok(1)
        }
    }

    fn reader(text: &str) -> JsonReader {
        JsonReader::new(Path::new("t.json"), Box::new(Drip(text.as_bytes().to_vec(), 0)))
    }

    fn string(text: &str) -> Result<String, String> {
        let mut out = String::new();
        reader(text).string(&mut out).map(|()| out).map_err(|error| error.to_string())
    }

    #[test]
    fn strings_are_unescaped() {
        assert_eq!(string(r#""a\"\\\/\n\u00e9\ud83d\ude00""#).unwrap(), "a\"\\/\né😀");
        assert_eq!(string(r#""cut \ud83d""#).unwrap(), "cut \u{fffd}");
        assert_eq!(string(r#""abc"#).unwrap_err(), "t.json, byte 4: the file ends in the middle of a string");
        assert_eq!(string(r#""\x""#).unwrap_err(), "t.json, byte 1: expected an escape sequence, found `\\`");
    }

    #[test]
    fn numbers_cross_the_end_of_the_buffer() {
        let mut numbers = Vec::new();
        let mut json =
            reader("[1, -2.5e1 ,0.0039215686274509803921568627450980392156862745098039215686274509803]");
        json.array(|json| {
            numbers.push(json.f32()?);
            Ok(())
        })
        .unwrap();
        json.end().unwrap();
        assert_eq!(numbers, [1.0, -25.0, 1.0 / 255.0]);
    }

    #[test]
    fn any_value_can_be_skipped_but_not_an_endless_nesting() {
        let mut json = reader(r#" {"a": [1, {"b": null}, "x", true], "c": false} "#);
        json.skip().unwrap();
        json.end().unwrap();
        let deep = "[".repeat(100_000);
        assert!(reader(&deep).skip().unwrap_err().to_string().contains("a nesting longer than 64"));
    }

    #[test]
    fn a_label_is_a_whole_number_below_2_to_the_24() {
        assert_eq!(reader("61").label().unwrap(), 61);
        assert_eq!(reader("3.0").label().unwrap(), 3);
        for text in ["-1", "0.5", "16777216", "1e9", "NaN", "\"a\""] {
            reader(text).label().unwrap_err();
        }
    }
}
