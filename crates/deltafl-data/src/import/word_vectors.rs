//! Word vectors in GloVe's text format: a word and its numbers per line, separated by spaces.
//!
//! The file is read sequentially, and only the words that occur are kept: glove.6B.50d contains
//! 400,000 words, of which the tweets of the paper use a few thousand.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use super::error::{ImportError, ImportProblem};
use super::input::Input;
use deltafl::data::WordVectors;

/// A vocabulary with vectors. Word 0 is padding and every unknown word; its vector is zero.
#[derive(Clone, Debug)]
pub struct Vocabulary {
    /// The words, in the order of the file.
    pub words: Vec<String>,
    /// Their vectors.
    pub vectors: WordVectors,
    index: HashMap<String, u32>,
}

impl Vocabulary {
    /// Reads the vectors of the words that occur.
    pub fn read(path: &Path, occurring: &HashSet<String>) -> Result<Self, ImportError> {
        let mut input = Input::open(path)?;
        let (mut words, mut values, mut index) = (vec![String::new()], Vec::new(), HashMap::new());
        let (mut dim, mut buffer) = (None, Vec::new());
        while let Some(line) = input.line(&mut buffer)? {
            let line = std::str::from_utf8(line).map_err(|_| input.error(ImportProblem::Utf8))?;
            let Some((word, numbers)) = line.split_once(' ') else {
                return Err(
                    input.error(ImportProblem::Missing { what: "the vector of", name: line.to_owned() })
                );
            };
            let width = || numbers.split(' ').count();
            let dim = *dim.get_or_insert_with(|| {
                let width = width();
                values.resize(width, 0.0);
                width
            });
            if !occurring.contains(word) || index.contains_key(word) {
                continue;
            }
            if width() != dim {
                return Err(input.error(ImportProblem::Dim { expected: dim, got: width() }));
            }
            for number in numbers.split(' ') {
                values.push(finite(number).map_err(|problem| input.error(problem))?);
            }
            index.insert(word.to_owned(), words.len() as u32);
            words.push(word.to_owned());
        }
        let Some(dim) = dim else {
            return Err(ImportError::file(path, ImportProblem::Nothing("no word vectors")));
        };
        Ok(Self { words, vectors: WordVectors { dim, values: values.into() }, index })
    }

    /// Returns the index of a word; 0 if it is unknown.
    pub fn token(&self, word: &str) -> u32 {
        self.index.get(word).copied().unwrap_or_default()
    }

    /// Returns the vector of a token.
    pub fn vector(&self, token: u32) -> &[f32] {
        let dim = self.vectors.dim;
        &self.vectors.values[token as usize * dim..][..dim]
    }
}

fn finite(text: &str) -> Result<f32, ImportProblem> {
    let number: f32 = text.parse().map_err(|_| ImportProblem::Number(text.to_owned()))?;
    if number.is_finite() { Ok(number) } else { Err(ImportProblem::NonFinite) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, words: &[&str]) -> Result<Vocabulary, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let occurring = words.iter().map(|&word| word.to_owned()).collect();
        let name = file.path().display().to_string();
        Vocabulary::read(file.path(), &occurring).map_err(|error| error.to_string().replace(&name, "F"))
    }

    #[test]
    fn only_the_words_that_occur_are_kept() {
        let vocabulary = read("the 1 2\nof 3 4\n. 5 -6e-1\n", &[".", "the", "missing"]).unwrap();
        assert_eq!(vocabulary.words, ["", "the", "."]);
        assert_eq!(vocabulary.vectors.values[..], [0.0, 0.0, 1.0, 2.0, 5.0, -0.6]);
        assert_eq!(["the", ".", "of"].map(|word| vocabulary.token(word)), [1, 2, 0]);
    }

    #[test]
    fn a_broken_line_is_named() {
        assert_eq!(
            read("a 1 2\nb 1\n", &["b"]).unwrap_err(),
            "F, line 2: an example has 1 features, those before it have 2"
        );
        assert_eq!(read("a 1 x\n", &["a"]).unwrap_err(), "F, line 1: \"x\" is not a number");
        assert_eq!(read("a 1 inf\n", &["a"]).unwrap_err(), "F, line 1: a feature is not finite");
        assert_eq!(read("", &["a"]).unwrap_err(), "F: holds no word vectors");
    }
}
