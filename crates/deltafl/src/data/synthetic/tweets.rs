//! `tweets`: short messages with a polarity, for the models of words.
//!
//! A word has a frequency, by Zipf's law, and a mood. Its vector shows the mood along one of 50
//! directions, with noise. A message of label y prefers words of that mood. A user has preferred
//! words and a preferred label (label skew). A minority writes mostly slang: words that are rare
//! elsewhere and whose mood shows along a different direction, which a model of the majority
//! ignores.

use std::num::NonZeroU32;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::language::words;
use super::weighted::{Weighted, zipf};
use super::{ExamplesPerDevice, Fraction, assign_splits, odd_rank};
use crate::data::{Column, DeviceExamples, Federation, FederationBuilder, InputKind, WordVectors};
use crate::stream::{Purpose, Stream};

/// Words per message. Shorter messages are padded with word 0.
const LEN: usize = 20;

/// Entries of a word vector.
const DIM: usize = 50;

/// Words of the common vocabulary. There are as many slang words.
const COMMON: usize = 500;

/// A federation of users.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tweets {
    /// Number of users.
    pub devices: NonZeroU32,
    /// The seed.
    pub seed: u64,
    /// Fraction of the users that train; the others test.
    pub train: Fraction,
    /// Fraction of the users that write slang.
    pub odd: Fraction,
    /// Messages per user.
    pub examples: ExamplesPerDevice,
}

impl Default for Tweets {
    fn default() -> Self {
        Self {
            devices: const { NonZeroU32::new(400).unwrap() },
            seed: 1,
            train: Fraction::HALF,
            odd: const { Fraction::new(0.15).unwrap() },
            // The counts of Sent140 in the paper's table of datasets.
            examples: const { ExamplesPerDevice::new(51, 69, 549).unwrap() },
        }
    }
}

/// The common words. Word 0 is padding.
struct Lexicon {
    words: Vec<String>,
    frequency: Vec<f64>,
    mood: Vec<f64>,
    vectors: WordVectors,
}

impl Tweets {
    /// Generates the federation, the same on any number of threads.
    pub fn build(&self) -> Federation {
        let devices = self.devices.get();
        let slang: Vec<bool> = (0..devices).map(|user| odd_rank(self.odd, user).is_some()).collect();
        let splits = assign_splits(self.seed, &slang, self.train);
        let lexicon = Lexicon::new(&mut Stream::new(self.seed, Purpose::Synthesis, 1, 0));
        let messages: Vec<_> = (0..devices)
            .into_par_iter()
            .map(|user| self.messages(user, &lexicon, slang[user as usize]))
            .collect();
        let kind = InputKind::Tokens { len: LEN, vocabulary: lexicon.mood.len() };
        let mut builder = FederationBuilder::new("tweets", kind, 2);
        builder.words(lexicon.words).vectors(lexicon.vectors);
        for (user, ((words, labels), split)) in messages.iter().zip(splits).enumerate() {
            let suffix = if slang[user] { "-slang" } else { "" };
            builder
                .push(&format!("u{user:05}{suffix}"), split, DeviceExamples::Tokens(words), labels)
                .expect("a user writes known words and has an identity of its own");
        }
        builder.build()
    }

    /// Draws the words and labels of a user.
    fn messages(&self, user: u32, lexicon: &Lexicon, slang: bool) -> (Vec<u32>, Vec<u32>) {
        let mut stream = Stream::new(self.seed, Purpose::Synthesis, 0, u64::from(user));
        let count = self.examples.draw(1.2, &mut stream) as usize;
        let happy = 1.0 / (1.0 + (0.8 * stream.normal()).exp());
        let vocabularies = lexicon.vocabularies(slang, &mut stream);
        let mut words = vec![0; count * LEN];
        let mut labels = Vec::with_capacity(count);
        for message in words.chunks_exact_mut(LEN) {
            let label = usize::from(stream.unit() < happy);
            let len = 4 + stream.below(LEN as u64 - 3) as usize;
            message[..len].fill_with(|| vocabularies[label].draw(&mut stream) as u32);
            labels.push(label as u32);
        }
        (words, labels)
    }
}

impl Lexicon {
    fn new(stream: &mut Stream) -> Self {
        let mut direction = || -> Vec<f64> {
            let raw: Vec<f64> = (0..DIM).map(|_| stream.normal()).collect();
            let norm = raw.iter().map(|x| x * x).sum::<f64>().sqrt();
            raw.into_iter().map(|x| x / norm).collect()
        };
        let directions = [direction(), direction()];
        let mut lexicon = Self {
            words: std::iter::once(String::new()).chain(words(2 * COMMON, stream)).collect(),
            frequency: std::iter::once(0.0).chain(zipf(COMMON)).chain(zipf(COMMON)).collect(),
            mood: vec![0.0],
            vectors: WordVectors { dim: DIM, values: Column::default() },
        };
        let mut values = vec![0.0; DIM];
        for word in 0..2 * COMMON {
            let mood = stream.normal();
            lexicon.mood.push(mood);
            values
                .extend(directions[word / COMMON].iter().map(|d| (mood * d + 0.3 * stream.normal()) as f32));
        }
        lexicon.vectors.values = values.into();
        lexicon
    }

    /// The words of a user's messages of each label.
    fn vocabularies(&self, slang: bool, stream: &mut Stream) -> [Weighted; 2] {
        let slang_share = if slang { 0.8 } else { 0.02 };
        let favour: Vec<f64> = (0..self.mood.len())
            .map(|word| {
                let part = if word <= COMMON { 1.0 - slang_share } else { slang_share };
                self.frequency[word] * part * (0.7 * stream.normal()).exp()
            })
            .collect();
        // The strength with which the words of a message follow its mood.
        const LEAN: f64 = 0.45;
        [-LEAN, LEAN].map(|lean| {
            Weighted::new(favour.iter().zip(&self.mood).map(|(weight, mood)| weight * (lean * mood).exp()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{BatchBuffer, FederationIndex};

    fn small() -> Federation {
        Tweets { devices: NonZeroU32::new(40).unwrap(), ..Tweets::default() }.build()
    }

    /// Returns the words of a user without padding.
    fn written(federation: &Federation, user: FederationIndex) -> Vec<u32> {
        let examples = federation.examples(user);
        let mut buffer = BatchBuffer::default();
        let batch = buffer.gather(&examples, 0..examples.len());
        batch.inputs.tokens().iter().copied().filter(|&word| word != 0).collect()
    }

    #[test]
    fn every_word_has_a_vector_and_padding_is_zero() {
        let federation = small();
        let InputKind::Tokens { len: 20, vocabulary } = federation.kind() else { panic!("words") };
        let vectors = federation.vectors().unwrap();
        assert_eq!((vectors.dim, vectors.values.len()), (DIM, vocabulary * DIM));
        assert!(vectors.values[..DIM].iter().all(|x| x.to_bits() == 0));
        assert!((0..40).all(|user| {
            written(&federation, FederationIndex(user)).iter().all(|&word| (word as usize) < vocabulary)
        }));
    }

    #[test]
    fn slang_is_written_by_the_minority() {
        let federation = small();
        for user in 0..40 {
            let words = written(&federation, FederationIndex(user));
            let slang =
                words.iter().filter(|&&word| word as usize > COMMON).count() as f64 / words.len() as f64;
            let writes_slang = federation.id(FederationIndex(user)).ends_with("-slang");
            assert_eq!(slang > 0.5, writes_slang, "{}: {slang}", federation.id(FederationIndex(user)));
        }
    }

    #[test]
    fn users_differ_in_their_share_of_happy_messages() {
        let federation = small();
        let happy = |user| {
            let examples = federation.examples(user);
            (0..examples.len()).map(|i| f64::from(examples.label(i))).sum::<f64>() / examples.len() as f64
        };
        let shares: Vec<f64> = federation.devices().map(happy).collect();
        assert!(
            shares.iter().any(|&share| share < 0.35) && shares.iter().any(|&share| share > 0.65),
            "{shares:?}"
        );
    }
}
