//! `roles`: the lines of the roles of a play, character by character, for the recurrent models.
//!
//! A language is drawn first: words of syllables, frequent ones short, with frequencies by Zipf's
//! law. Each role has preferred words and a typical length of sentences. A minority of roles uses
//! a dialect with different vowels and an ending to many words.
//!
//! Symbols are those of the paper's Shakespeare: " A–Za–z", 53 of them, 0 for space and everything
//! else.

use std::num::NonZeroU32;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::language::words;
use super::weighted::{Weighted, zipf};
use super::{ExamplesPerDevice, Fraction, assign_splits, odd_rank};
use crate::data::{DeviceExamples, Federation, FederationBuilder, InputKind};
use crate::stream::{Purpose, Stream};
use crate::task::Targets;

/// The symbols, in the order of their indices.
pub const SYMBOLS: &str = " ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// Symbols per example.
const WINDOW: usize = 20;

/// Number of words of the language.
const WORDS: usize = 400;

/// A federation of roles.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Roles {
    /// Number of roles.
    pub devices: NonZeroU32,
    /// The seed.
    pub seed: u64,
    /// Fraction of the roles that train; the others test.
    pub train: Fraction,
    /// Fraction of the roles that use the dialect.
    pub odd: Fraction,
    /// Windows per role.
    pub examples: ExamplesPerDevice,
}

impl Default for Roles {
    fn default() -> Self {
        Self {
            devices: const { NonZeroU32::new(200).unwrap() },
            seed: 1,
            train: Fraction::HALF,
            odd: const { Fraction::new(0.15).unwrap() },
            examples: const { ExamplesPerDevice::new(101, 600, 8000).unwrap() },
        }
    }
}

impl Roles {
    /// Generates the federation, the same on any number of threads.
    pub fn build(&self) -> Federation {
        let devices = self.devices.get();
        let dialect: Vec<bool> = (0..devices).map(|role| odd_rank(self.odd, role).is_some()).collect();
        let splits = assign_splits(self.seed, &dialect, self.train);
        let words = words(WORDS, &mut Stream::new(self.seed, Purpose::Synthesis, 1, 0));
        let texts: Vec<Vec<u8>> = (0..devices)
            .into_par_iter()
            .map(|role| self.text(role, &words, dialect[role as usize]))
            .collect();
        let kind = InputKind::Windows { len: WINDOW, alphabet: SYMBOLS.len() };
        let mut builder = FederationBuilder::new("roles", kind, SYMBOLS.len());
        builder.symbols(SYMBOLS);
        for (role, (text, split)) in texts.iter().zip(splits).enumerate() {
            let suffix = if dialect[role] { "-dialect" } else { "" };
            builder
                .push(&format!("r{role:05}{suffix}"), split, DeviceExamples::Text(text), Targets::IN_TEXT)
                .expect("a role speaks symbols of the alphabet and has an identity of its own");
        }
        builder.build()
    }

    /// Draws the text of a role, a symbol per byte.
    fn text(&self, role: u32, words: &[String], dialect: bool) -> Vec<u8> {
        let mut stream = Stream::new(self.seed, Purpose::Synthesis, 0, u64::from(role));
        let len = self.examples.draw(1.0, &mut stream) as usize + WINDOW;
        let favour = Weighted::new(zipf(words.len()).map(|weight| weight * (0.8 * stream.normal()).exp()));
        let sentence = stream.uniform(4.0, 14.0);
        let mut text = String::with_capacity(len + 20);
        let mut first = true;
        while text.len() < len {
            let word = &words[favour.draw(&mut stream)];
            push_word(&mut text, word, first, dialect.then_some(&mut stream));
            first = stream.unit() * sentence < 1.0;
            text.push_str(if first { "  " } else { " " }); // a full stop is a symbol outside the alphabet
        }
        text.bytes().take(len).map(symbol).collect()
    }
}

/// Returns the index of a character.
fn symbol(character: u8) -> u8 {
    match character {
        b'A'..=b'Z' => character - b'A' + 1,
        b'a'..=b'z' => character - b'a' + 27,
        _ => 0,
    }
}

/// Appends a word, capitalised at the start of a sentence, and in dialect if there is a stream for
/// it.
fn push_word(text: &mut String, word: &str, first: bool, dialect: Option<&mut Stream>) {
    let start = text.len();
    match dialect {
        None => text.push_str(word),
        Some(stream) => {
            text.extend(word.chars().map(shifted_vowel));
            if stream.unit() < 0.4 {
                text.push_str("eth");
            }
        }
    }
    if first {
        text[start..start + 1].make_ascii_uppercase();
    }
}

/// The vowels of the dialect.
fn shifted_vowel(letter: char) -> char {
    match letter {
        'a' => 'o',
        'e' => 'i',
        'i' => 'u',
        'o' => 'e',
        'u' => 'a',
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{BatchBuffer, FederationIndex};

    fn small() -> Federation {
        Roles { devices: NonZeroU32::new(20).unwrap(), ..Roles::default() }.build()
    }

    #[test]
    fn windows_hold_symbols_of_the_alphabet_and_are_labelled_by_the_next_one() {
        let federation = small();
        let examples = federation.examples(FederationIndex(0));
        let mut buffer = BatchBuffer::default();
        let next = buffer.gather(&examples, 1..2).inputs.tokens()[WINDOW - 1];
        let batch = buffer.gather(&examples, 0..1);
        assert_eq!(batch.targets.classes(), [next]);
        assert!(batch.inputs.tokens().iter().all(|&symbol| symbol < 53));
        assert_eq!(federation.classes(), 53);
    }

    #[test]
    fn symbols_round_trip() {
        assert!(
            SYMBOLS.bytes().enumerate().all(|(index, character)| usize::from(symbol(character)) == index)
        );
        assert_eq!(symbol(b'.'), 0);
    }

    #[test]
    fn the_dialect_has_other_vowels() {
        let mut text = String::new();
        push_word(&mut text, "house", true, None);
        let mut stream = Stream::new(1, Purpose::Synthesis, 0, 0);
        push_word(&mut text, "house", false, Some(&mut stream));
        assert!(text.starts_with("Househeasi"), "{text}");
    }

    #[test]
    fn a_role_has_as_many_windows_as_it_was_given() {
        let federation = small();
        assert!((0..20).all(|role| (101..=8000).contains(&federation.example_count(FederationIndex(role)))));
    }
}
