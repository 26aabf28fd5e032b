//! The data that a device must store across restarts: the last round that it joined under each
//! authority.
//!
//! Keys and masks are new in every round, so joining a round twice would not repeat a mask. But the
//! device would contribute twice, among different devices, and the difference of the two sums could
//! reveal its vector. With drawn cohorts, the server could also repeat a draw that suits it. The
//! session is therefore not part of the key: the server names sessions. An application with a
//! [`Participant`](super::Participant) must:
//!
//! 1. read `SeenRounds` at start-up and pass [`SeenRounds::last`] to
//!    [`Participant::resumed`](super::Participant::resumed),
//! 2. write and sync it after [`Participant::join`](super::Participant::join) and **before** it
//!    sends the first message of the round,
//! 3. join no round if the record cannot be read. A lost record is not an empty one.

use std::collections::BTreeMap;

use thiserror::Error;

const MAGIC: &[u8; 8] = b"dfl-sen2";
const ENTRY: usize = 32 + 8 + 8;

/// The last round that a device joined under an authority.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeenRound {
    /// The number of the round.
    pub round: u64,
    /// The version of the roster of that round.
    pub roster: u64,
}

/// The last round that a device joined under each authority. The owner of a device chooses the
/// authorities, so that a server cannot make the record longer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SeenRounds(BTreeMap<[u8; 32], SeenRound>);

/// The bytes are not a valid record of joined rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the record of joined rounds is damaged")]
pub struct SeenRoundsError;

impl SeenRounds {
    /// Returns the last round joined under an authority, named by its verifying key.
    pub fn last(&self, authority: &[u8; 32]) -> Option<SeenRound> {
        self.0.get(authority).copied()
    }

    /// Records that a round was joined. Returns `false` and changes nothing if it is not newer than
    /// the last.
    pub fn note(&mut self, authority: [u8; 32], seen: SeenRound) -> bool {
        let new = self.last(&authority).is_none_or(|last| seen.round > last.round);
        if new {
            self.0.insert(authority, seen);
        }
        new
    }

    /// Returns the bytes to store: a count and, for each authority in order, its key, the round and
    /// the version of the roster.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&(self.0.len() as u64).to_le_bytes());
        for (authority, seen) in &self.0 {
            bytes.extend_from_slice(authority);
            bytes.extend_from_slice(&seen.round.to_le_bytes());
            bytes.extend_from_slice(&seen.roster.to_le_bytes());
        }
        bytes
    }

    /// Parses stored bytes.
    ///
    /// # Errors
    ///
    /// Returns an error if the bytes are truncated, have a wrong count, or contain an authority
    /// twice.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, SeenRoundsError> {
        let rest = bytes.strip_prefix(MAGIC).ok_or(SeenRoundsError)?;
        let (count, entries) = rest.split_first_chunk::<8>().ok_or(SeenRoundsError)?;
        let (entries, cut) = entries.as_chunks::<ENTRY>();
        if !cut.is_empty() || u64::from_le_bytes(*count) != entries.len() as u64 {
            return Err(SeenRoundsError);
        }
        let entry = |entry: &[u8; ENTRY]| {
            let (authority, rest) = entry.split_first_chunk::<32>()?;
            let (round, roster) = rest.split_first_chunk::<8>()?;
            let roster = u64::from_le_bytes(roster.try_into().ok()?);
            Some((*authority, SeenRound { round: u64::from_le_bytes(*round), roster }))
        };
        let seen: Option<BTreeMap<[u8; 32], SeenRound>> = entries.iter().map(entry).collect();
        // A repeated authority would lose one of its rounds.
        seen.filter(|seen| seen.len() == entries.len()).map(Self).ok_or(SeenRoundsError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(round: u64) -> SeenRound {
        SeenRound { round, roster: 3 }
    }

    #[test]
    fn old_and_repeated_rounds_are_rejected_per_authority() {
        let mut rounds = SeenRounds::default();
        assert!(rounds.note([1; 32], seen(5)));
        assert!(!rounds.note([1; 32], seen(5)) && !rounds.note([1; 32], seen(4)));
        assert!(!rounds.note([1; 32], SeenRound { round: 4, roster: 9 }), "a newer roster changes nothing");
        assert!(rounds.note([2; 32], seen(0)));
        assert_eq!([1, 2, 3].map(|key| rounds.last(&[key; 32])), [Some(seen(5)), Some(seen(0)), None]);
    }

    #[test]
    fn stored_rounds_are_restored_and_damaged_records_rejected() {
        let mut rounds = SeenRounds::default();
        assert_eq!(SeenRounds::from_bytes(&rounds.to_bytes()), Ok(rounds.clone()));
        rounds.note([1; 32], seen(5));
        rounds.note([2; 32], seen(7));
        let bytes = rounds.to_bytes();
        assert_eq!(SeenRounds::from_bytes(&bytes), Ok(rounds));
        for len in 0..bytes.len() {
            assert_eq!(SeenRounds::from_bytes(&bytes[..len]), Err(SeenRoundsError), "{len}");
        }
        let twice = [&bytes[..], &bytes[16..16 + ENTRY]].concat();
        assert_eq!(SeenRounds::from_bytes(&twice), Err(SeenRoundsError));
        let mut counted = twice;
        counted[8] = 3;
        assert_eq!(SeenRounds::from_bytes(&counted), Err(SeenRoundsError), "the same authority twice");
    }
}
