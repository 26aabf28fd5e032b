//! The memory of a track or of a device between rounds: named numbers and named vectors.
//!
//! It contains the state that a [`Selection`](crate::selection::Selection) or a
//! [`ServerStep`](crate::server_step::ServerStep) needs in the next round. Examples are the current
//! η, the range of the losses and Adam's moments. A checkpoint contains it by name. A run that is
//! killed, resumed, distributed over ranks or deployed thus continues with the same bits.
//!
//! A device has one [`AlgorithmState`] per track, for example with a control variate or a personal
//! model. In a simulation these are part of the state ([`DeviceMemories`]). A deployed device
//! stores its own on disk, and no server sees it.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::exchange::TrainIndex;
use crate::params::Params;

/// Named numbers and vectors of one track, or of one device in it.
///
/// ```
/// use deltafl::memory::AlgorithmState;
///
/// let mut memory = AlgorithmState::default();
/// assert_eq!(memory.number("eta"), None);
/// memory.set_number("eta", 0.5);
/// assert_eq!(memory.number("eta"), Some(0.5));
/// memory.forget("eta");
/// assert_eq!(memory, AlgorithmState::default());
/// ```
#[derive(Clone, Debug, Default)]
pub struct AlgorithmState {
    numbers: BTreeMap<String, f64>,
    vectors: BTreeMap<String, Params>,
}

/// Equal bits: a NaN is equal to itself, and 0 is not −0.
impl PartialEq for AlgorithmState {
    fn eq(&self, other: &Self) -> bool {
        let bits = |memory: &Self| -> Vec<(String, u64)> {
            memory.numbers.iter().map(|(name, number)| (name.clone(), number.to_bits())).collect()
        };
        bits(self) == bits(other) && self.vectors == other.vectors
    }
}

impl AlgorithmState {
    /// The number of this name.
    pub fn number(&self, name: &str) -> Option<f64> {
        self.numbers.get(name).copied()
    }

    /// Stores a number under this name.
    pub fn set_number(&mut self, name: &str, number: f64) {
        self.numbers.insert(name.to_owned(), number);
    }

    /// Returns the vector with this name.
    pub fn vector(&self, name: &str) -> Option<&Params> {
        self.vectors.get(name)
    }

    /// Stores a vector under this name.
    pub fn set_vector(&mut self, name: &str, vector: Params) {
        self.vectors.insert(name.to_owned(), vector);
    }

    /// Removes the number or vector with this name.
    pub fn forget(&mut self, name: &str) {
        self.numbers.remove(name);
        self.vectors.remove(name);
    }

    /// Returns `true` if the memory is empty.
    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty() && self.vectors.is_empty()
    }

    /// Returns all numbers by name.
    pub fn numbers(&self) -> impl Iterator<Item = (&str, f64)> {
        self.numbers.iter().map(|(name, number)| (name.as_str(), *number))
    }

    /// Returns all vectors by name.
    pub fn vectors(&self) -> impl Iterator<Item = (&str, &Params)> {
        self.vectors.iter().map(|(name, vector)| (name.as_str(), vector))
    }
}

/// The maximum length of a name in a memory.
const MAX_NAME: usize = 255;

/// The error for bytes that are not a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the memory of a device, or damaged")]
pub struct MalformedMemory;

/// The encoding of a memory, for a device's disk and between processes. Equal memories have equal
/// bytes.
///
/// ```text
/// numbers u32 · (name: length u8, bytes · f64) … · vectors u32 · (name · entries u64 · f32 …) …      little-endian
/// ```
impl AlgorithmState {
    /// Its bytes.
    ///
    /// # Panics
    /// Panics if a name is longer than 255 bytes. Names are constants in the code.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let name = |name: &str, bytes: &mut Vec<u8>| {
            assert!(name.len() <= MAX_NAME, "a name in a memory has at most {MAX_NAME} bytes");
            bytes.push(name.len() as u8);
            bytes.extend_from_slice(name.as_bytes());
        };
        bytes.extend_from_slice(&(self.numbers.len() as u32).to_le_bytes());
        for (key, number) in &self.numbers {
            name(key, &mut bytes);
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&(self.vectors.len() as u32).to_le_bytes());
        for (key, vector) in &self.vectors {
            name(key, &mut bytes);
            bytes.extend_from_slice(&(vector.len() as u64).to_le_bytes());
            vector.as_slice().iter().for_each(|entry| bytes.extend_from_slice(&entry.to_le_bytes()));
        }
        bytes
    }

    /// The memory of these bytes; only those of [`AlgorithmState::to_bytes`] are taken.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, MalformedMemory> {
        let mut rest = Rest(bytes);
        let mut memory = Self::default();
        for _ in 0..u32::from_le_bytes(rest.array()?) {
            let name = rest.name()?;
            memory.numbers.insert(name, f64::from_le_bytes(rest.array()?));
        }
        for _ in 0..u32::from_le_bytes(rest.array()?) {
            let name = rest.name()?;
            let entries = usize::try_from(u64::from_le_bytes(rest.array()?)).map_err(|_| MalformedMemory)?;
            let entries = rest.take(entries.checked_mul(4).ok_or(MalformedMemory)?)?;
            let entries = entries.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes));
            memory.vectors.insert(name, entries.collect::<Vec<f32>>().into());
        }
        if rest.0.is_empty() && memory.to_bytes() == bytes { Ok(memory) } else { Err(MalformedMemory) }
    }
}

struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], MalformedMemory> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(MalformedMemory)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], MalformedMemory> {
        self.take(N)?.try_into().map_err(|_| MalformedMemory)
    }

    fn name(&mut self) -> Result<String, MalformedMemory> {
        let len = u8::from_le_bytes(self.array()?);
        std::str::from_utf8(self.take(len.into())?).map(str::to_owned).map_err(|_| MalformedMemory)
    }
}

/// The memories of the devices of a simulated track, by training index.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceMemories(BTreeMap<TrainIndex, Arc<AlgorithmState>>);

impl DeviceMemories {
    /// Returns the memory of a device, or `None` if it is empty.
    pub fn get(&self, device: TrainIndex) -> Option<&AlgorithmState> {
        self.0.get(&device).map(|memory| &**memory)
    }

    /// Replaces the memory of a device.
    pub fn set(&mut self, device: TrainIndex, memory: AlgorithmState) {
        if memory.is_empty() {
            self.0.remove(&device);
        } else {
            self.0.insert(device, Arc::new(memory));
        }
    }

    /// Returns `true` if no device has a memory.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The devices that remember something, and what, in the order of their indices.
    pub fn iter(&self) -> impl Iterator<Item = (TrainIndex, &AlgorithmState)> {
        self.0.iter().map(|(device, memory)| (*device, &**memory))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_a_memory_only_if_they_are_its_own() {
        let mut memory = AlgorithmState::default();
        memory.set_number("eta", f64::NEG_INFINITY);
        memory.set_vector("control", vec![1.0, f32::NAN].into());
        memory.set_vector("a", vec![].into());
        let bytes = memory.to_bytes();
        assert_eq!(AlgorithmState::from_bytes(&bytes).unwrap(), memory);
        assert_eq!(
            AlgorithmState::from_bytes(&AlgorithmState::default().to_bytes()).unwrap(),
            AlgorithmState::default()
        );
        for cut in 0..bytes.len() {
            assert_eq!(AlgorithmState::from_bytes(&bytes[..cut]), Err(MalformedMemory), "cut at {cut}");
        }
        for i in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[i] ^= 0x81;
            if let Ok(read) = AlgorithmState::from_bytes(&changed) {
                assert_eq!(read.to_bytes(), changed);
            }
        }
    }

    #[test]
    fn memories_are_equal_by_content() {
        let mut a = AlgorithmState::default();
        a.set_number("eta", f64::NAN);
        a.set_vector("moment", vec![1.0, 2.0].into());
        let mut b = AlgorithmState::default();
        b.set_vector("moment", vec![1.0, 2.0].into());
        b.set_number("eta", f64::NAN);
        assert_eq!(a, b);
        b.set_number("eta", 0.0);
        assert_ne!(a, b);
    }
}
