//! The memory of a device's training between rounds.
//!
//! ```text
//! memory/SEED-TRACK    round u64 · length u64, memory before · length u64, memory after · BLAKE3 of all before it
//! ```
//!
//! The computation of a round may restart after a crash. It then starts from the memory before that
//! round. A later round starts from the memory after it.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use deltafl::memory::AlgorithmState;
use deltafl::question::RoundKey;

use super::{StateError, create_private, io_error, replace};

/// The memories of a device, on disk or in RAM.
#[derive(Debug, Default)]
pub(super) struct OwnMemory {
    folder: Option<PathBuf>,
    /// The loaded memories by seed and track.
    tracks: HashMap<(u64, u32), MemoryPair>,
}

/// The memory before and after the last round that changed it.
#[derive(Clone, Debug, Default, PartialEq)]
struct MemoryPair {
    round: u64,
    before: AlgorithmState,
    after: AlgorithmState,
}

impl OwnMemory {
    /// Opens the memories in a folder. Creates the folder if it does not exist.
    pub(super) fn open(path: &Path) -> Result<Self, StateError> {
        create_private(path)?;
        Ok(Self { folder: Some(path.to_owned()), tracks: HashMap::new() })
    }

    /// Returns the state of the device at the start of a round.
    pub(super) fn recall(&mut self, key: &RoundKey, track: u32) -> Result<AlgorithmState, StateError> {
        let track = (key.seed, track);
        if !self.tracks.contains_key(&track) {
            let kept = match self.path(track) {
                Some(path) => read(&path)?,
                None => None,
            };
            self.tracks.insert(track, kept.unwrap_or_default());
        }
        let kept = &self.tracks[&track];
        Ok(if key.round > kept.round { &kept.after } else { &kept.before }.clone())
    }

    /// Stores the changes of a round. They are on disk when this returns.
    pub(super) fn remember(
        &mut self,
        key: &RoundKey,
        track: u32,
        before: &AlgorithmState,
        after: &AlgorithmState,
    ) -> Result<(), StateError> {
        if before == after {
            return Ok(());
        }
        let track = (key.seed, track);
        let kept = MemoryPair { round: key.round, before: before.clone(), after: after.clone() };
        if let Some(path) = self.path(track) {
            replace(&path, &kept.to_bytes())?;
        }
        self.tracks.insert(track, kept);
        Ok(())
    }

    fn path(&self, (seed, track): (u64, u32)) -> Option<PathBuf> {
        self.folder.as_ref().map(|folder| folder.join(format!("{seed}-{track}")))
    }
}

fn read(path: &Path) -> Result<Option<MemoryPair>, StateError> {
    match fs::read(path) {
        Ok(bytes) => {
            let damaged = || StateError::Damaged { path: path.to_owned() };
            MemoryPair::from_bytes(&bytes).map(Some).ok_or_else(damaged)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(io_error(path)(source)),
    }
}

impl MemoryPair {
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.round.to_le_bytes().to_vec();
        for memory in [&self.before, &self.after] {
            let memory = memory.to_bytes();
            bytes.extend_from_slice(&(memory.len() as u64).to_le_bytes());
            bytes.extend_from_slice(&memory);
        }
        let hash = blake3::hash(&bytes);
        bytes.extend_from_slice(hash.as_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (mut rest, hash) = bytes.split_last_chunk::<32>()?;
        if blake3::hash(rest) != blake3::Hash::from_bytes(*hash) {
            return None;
        }
        let word = |rest: &mut &[u8]| {
            let (word, behind) = rest.split_first_chunk::<8>()?;
            *rest = behind;
            Some(u64::from_le_bytes(*word))
        };
        let round = word(&mut rest)?;
        let mut memory = || {
            let len = usize::try_from(word(&mut rest)?).ok()?;
            let (memory, behind) = rest.split_at_checked(len)?;
            rest = behind;
            AlgorithmState::from_bytes(memory).ok()
        };
        let (before, after) = (memory()?, memory()?);
        rest.is_empty().then_some(Self { round, before, after })
    }
}

#[cfg(test)]
mod tests {
    use deltafl::terms::Terms;

    use super::*;

    fn key(round: u64) -> RoundKey {
        RoundKey { run: 0, seed: 7, round, members: 30, terms: Terms::PRIVATE }
    }

    fn memory(entry: f32) -> AlgorithmState {
        let mut memory = AlgorithmState::default();
        memory.set_vector("control", vec![entry; 3].into());
        memory
    }

    #[test]
    fn a_round_asked_again_begins_where_it_began_even_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let mut own = OwnMemory::open(folder.path()).unwrap();
        assert_eq!(own.recall(&key(4), 1).unwrap(), AlgorithmState::default());
        own.remember(&key(4), 1, &AlgorithmState::default(), &memory(1.0)).unwrap();
        assert_eq!(own.recall(&key(4), 1).unwrap(), AlgorithmState::default());
        assert_eq!(own.recall(&key(6), 1).unwrap(), memory(1.0));
        own.remember(&key(6), 1, &memory(1.0), &memory(2.0)).unwrap();
        let mut own = OwnMemory::open(folder.path()).unwrap();
        assert_eq!(own.recall(&key(6), 1).unwrap(), memory(1.0));
        assert_eq!(own.recall(&key(7), 1).unwrap(), memory(2.0));
        assert_eq!(
            own.recall(&key(7), 0).unwrap(),
            AlgorithmState::default(),
            "another track has a memory of its own"
        );
    }

    #[test]
    fn a_damaged_memory_is_not_trained_with() {
        let folder = tempfile::tempdir().unwrap();
        let mut own = OwnMemory::open(folder.path()).unwrap();
        own.remember(&key(4), 0, &AlgorithmState::default(), &memory(1.0)).unwrap();
        let path = folder.path().join("7-0");
        let mut bytes = fs::read(&path).unwrap();
        bytes[20] ^= 1;
        fs::write(&path, bytes).unwrap();
        let mut own = OwnMemory::open(folder.path()).unwrap();
        assert!(matches!(own.recall(&key(5), 0), Err(StateError::Damaged { .. })));
    }
}
