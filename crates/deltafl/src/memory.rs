//! What a track keeps between rounds: named numbers and named vectors.
//!
//! An η in force, the range of the losses, Adam's moments: whatever a [`Selection`](crate::selection::Selection) or a
//! [`ServerStep`](crate::server_step::ServerStep) needs again in the next round stands here under a name. A checkpoint
//! writes it by name, so that a run that is killed, resumed, spread over ranks or deployed goes on with the same bits.

use std::collections::BTreeMap;

use crate::params::Params;

/// Named numbers and vectors of one track.
///
/// ```
/// use deltafl::memory::Memory;
///
/// let mut memory = Memory::default();
/// assert_eq!(memory.number("eta"), None);
/// memory.set_number("eta", 0.5);
/// assert_eq!(memory.number("eta"), Some(0.5));
/// memory.forget("eta");
/// assert_eq!(memory, Memory::default());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Memory {
    numbers: BTreeMap<String, f64>,
    vectors: BTreeMap<String, Params>,
}

/// Equal bits: a NaN is equal to itself, and 0 is not −0.
impl PartialEq for Memory {
    fn eq(&self, other: &Self) -> bool {
        let bits = |memory: &Self| -> Vec<(String, u64)> {
            memory.numbers.iter().map(|(name, number)| (name.clone(), number.to_bits())).collect()
        };
        bits(self) == bits(other) && self.vectors == other.vectors
    }
}

impl Memory {
    /// The number of this name.
    pub fn number(&self, name: &str) -> Option<f64> {
        self.numbers.get(name).copied()
    }

    /// Remembers a number under this name.
    pub fn set_number(&mut self, name: &str, number: f64) {
        self.numbers.insert(name.to_owned(), number);
    }

    /// The vector of this name.
    pub fn vector(&self, name: &str) -> Option<&Params> {
        self.vectors.get(name)
    }

    /// Remembers a vector under this name.
    pub fn set_vector(&mut self, name: &str, vector: Params) {
        self.vectors.insert(name.to_owned(), vector);
    }

    /// Forgets the number or vector of this name.
    pub fn forget(&mut self, name: &str) {
        self.numbers.remove(name);
        self.vectors.remove(name);
    }

    /// All numbers, by name.
    pub fn numbers(&self) -> impl Iterator<Item = (&str, f64)> {
        self.numbers.iter().map(|(name, number)| (name.as_str(), *number))
    }

    /// All vectors, by name.
    pub fn vectors(&self) -> impl Iterator<Item = (&str, &Params)> {
        self.vectors.iter().map(|(name, vector)| (name.as_str(), vector))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memories_are_equal_by_content() {
        let mut a = Memory::default();
        a.set_number("eta", f64::NAN);
        a.set_vector("moment", vec![1.0, 2.0].into());
        let mut b = Memory::default();
        b.set_vector("moment", vec![1.0, 2.0].into());
        b.set_number("eta", f64::NAN);
        assert_eq!(a, b);
        b.set_number("eta", 0.0);
        assert_ne!(a, b);
    }
}
