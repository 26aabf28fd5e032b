//! The error of an experiment file, with its place.

use std::ops::Range;

/// An error in an experiment file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct InvalidExperiment {
    /// The error.
    pub message: String,
    /// The bytes of the file with the error; `None` if a key is missing at the top of the file.
    pub span: Option<Range<usize>>,
}

impl InvalidExperiment {
    pub(in crate::experiment) fn new(message: impl Into<String>, span: Range<usize>) -> Self {
        Self { message: message.into(), span: Some(span) }
    }

    /// An error without a place.
    pub(in crate::experiment) fn whole(message: impl Into<String>) -> Self {
        Self { message: message.into(), span: None }
    }

    /// Returns the line of the file, counted from 1.
    pub fn line(&self, text: &str) -> usize {
        let start = self.span.as_ref().map_or(0, |span| span.start.min(text.len()));
        1 + text.as_bytes()[..start].iter().filter(|byte| **byte == b'\n').count()
    }
}

impl From<toml::de::Error> for InvalidExperiment {
    fn from(error: toml::de::Error) -> Self {
        Self { message: plain(error.message().trim()), span: error.span() }
    }
}

/// Replaces the names of Rust types in a message by words, and adds the key that an unknown key is
/// probably meant to be.
fn plain(message: &str) -> String {
    const WORDS: [(&str, &str); 8] = [
        ("a nonzero u64", "a whole number of at least 1"),
        ("a nonzero usize", "a whole number of at least 1"),
        ("a nonzero u32", "a whole number of at least 1"),
        ("u64", "a whole number of at least 0"),
        ("usize", "a whole number of at least 0"),
        ("u32", "a whole number of at least 0"),
        ("f64", "a number"),
        ("struct Decay", "a table such as { factor = 0.5, every = 100 }"),
    ];
    if let Some(rest) = message.strip_prefix("unknown field `") {
        return unknown_key(message, rest);
    }
    let Some((before, expected)) = message.rsplit_once("expected ") else { return message.to_owned() };
    let word = WORDS.iter().find(|(name, _)| *name == expected).map(|(_, word)| (*word).to_owned());
    let word = word.or_else(|| expected.strip_prefix("struct ").map(|_| "a table".to_owned()));
    word.map_or_else(|| message.to_owned(), |word| format!("{before}expected {word}"))
}

/// Adds a suggestion to the error of an unknown key. Only the command writes `resolved`. The keys
/// `model` and `algorithm` are parsed separately.
fn unknown_key(message: &str, rest: &str) -> String {
    let listed_all = |text: &str| text.replace("`resolved`", "`model`, `algorithm`");
    let (message, rest) = (listed_all(message), listed_all(rest));
    let Some((key, listed)) = rest.split_once('`') else { return message };
    let known = listed.split('`').skip(1).step_by(2);
    let close = known.map(|name| (distance(key, name), name)).min();
    match close {
        Some((steps, name)) if steps <= 2 && steps < key.chars().count() => {
            format!("{message}; did you mean `{name}`?")
        }
        _ => message,
    }
}

/// Returns the number of inserted, deleted or replaced characters between two words (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}
