//! The words of a synthetic language.

use std::collections::HashSet;

use crate::stream::Stream;

const ONSETS: [&str; 20] =
    ["", "th", "h", "w", "m", "s", "t", "b", "d", "f", "l", "n", "r", "g", "st", "br", "sh", "pr", "k", "v"];
const NUCLEI: [&str; 9] = ["e", "a", "o", "i", "u", "ea", "ou", "ee", "ai"];
const CODAS: [&str; 12] = ["", "", "n", "t", "r", "s", "d", "l", "nd", "ng", "st", "m"];

/// Draws `n` different words of lower-case letters. The first ones are short, like frequent words.
pub(super) fn words(n: usize, stream: &mut Stream) -> Vec<String> {
    let mut pick = |parts: &[&'static str]| parts[stream.below(parts.len() as u64) as usize];
    let mut known = HashSet::with_capacity(n);
    let mut words = Vec::with_capacity(n);
    while words.len() < n {
        let syllables = 1 + words.len() / 100;
        let word: String =
            (0..syllables.min(3)).flat_map(|_| [pick(&ONSETS), pick(&NUCLEI), pick(&CODAS)]).collect();
        if known.insert(word.clone()) {
            words.push(word);
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::Purpose;

    #[test]
    fn words_differ_and_the_first_are_short() {
        let words = words(1000, &mut Stream::new(1, Purpose::Synthesis, 1, 0));
        let distinct: HashSet<&String> = words.iter().collect();
        assert_eq!(distinct.len(), 1000);
        assert!(words[..100].iter().all(|word| word.len() <= 6), "{words:?}");
        assert!(words.iter().all(|word| word.bytes().all(|letter| letter.is_ascii_lowercase())));
    }
}
