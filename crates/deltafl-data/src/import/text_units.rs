//! The division of a text into units: words, characters, or tokens of a tokenizer of Hugging Face.

use std::borrow::Cow;

use deltafl::data::{TextCoding, TextUnit};

use super::error::ImportProblem;
use super::tokens::tokens;

/// The longest `tokenizer.json` in bytes.
pub(crate) const LONGEST_TOKENIZER: usize = 1 << 26;

/// Divides texts into units.
pub(crate) struct UnitSplitter {
    lowercase: bool,
    kind: SplitterKind,
}

enum SplitterKind {
    Words,
    Characters,
    Tokens(TokenizerJson),
}

impl UnitSplitter {
    /// Creates the splitter of a coding.
    ///
    /// # Errors
    ///
    /// Fails if the tokenizer is invalid, or if this build has no tokenizers.
    pub(crate) fn new(coding: &TextCoding) -> Result<Self, ImportProblem> {
        let kind = match coding.unit {
            TextUnit::Words => SplitterKind::Words,
            TextUnit::Characters => SplitterKind::Characters,
            TextUnit::Tokens => {
                SplitterKind::Tokens(TokenizerJson::parse(coding.tokenizer.as_deref().unwrap_or_default())?)
            }
        };
        Ok(Self { lowercase: coding.lowercase, kind })
    }

    /// Calls a function with each unit of a text.
    pub(crate) fn for_each(&self, text: &str, mut each: impl FnMut(&str)) -> Result<(), ImportProblem> {
        let text: Cow<'_, str> = if self.lowercase { text.to_lowercase().into() } else { text.into() };
        match &self.kind {
            SplitterKind::Words => tokens(&text).for_each(each),
            SplitterKind::Characters => {
                let mut buffer = [0; 4];
                text.chars().for_each(|character| each(character.encode_utf8(&mut buffer)));
            }
            SplitterKind::Tokens(tokenizer) => tokenizer.for_each(&text, each)?,
        }
        Ok(())
    }
}

/// A tokenizer of Hugging Face, without padding, truncation and special tokens around a text.
#[cfg(feature = "tokenizers")]
struct TokenizerJson(Box<tokenizers::Tokenizer>);

#[cfg(feature = "tokenizers")]
impl TokenizerJson {
    fn parse(json: &str) -> Result<Self, ImportProblem> {
        let invalid = |error: tokenizers::Error| ImportProblem::Tokenizer(error.to_string());
        let mut tokenizer: tokenizers::Tokenizer = json.parse().map_err(invalid)?;
        tokenizer.with_truncation(None).map_err(invalid)?;
        tokenizer.with_padding(None);
        Ok(Self(Box::new(tokenizer)))
    }

    fn for_each(&self, text: &str, mut each: impl FnMut(&str)) -> Result<(), ImportProblem> {
        let encoding = self.0.encode(text, false);
        let encoding = encoding.map_err(|error| ImportProblem::Tokenizer(error.to_string()))?;
        encoding.get_tokens().iter().for_each(|token| each(token));
        Ok(())
    }
}

/// A build without tokenizers has none.
#[cfg(not(feature = "tokenizers"))]
struct TokenizerJson(std::convert::Infallible);

#[cfg(not(feature = "tokenizers"))]
impl TokenizerJson {
    fn parse(_: &str) -> Result<Self, ImportProblem> {
        Err(ImportProblem::NoTokenizers)
    }

    fn for_each(&self, _: &str, _: impl FnMut(&str)) -> Result<(), ImportProblem> {
        match self.0 {}
    }
}
