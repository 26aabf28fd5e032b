//! The data that a device must store across restarts: the last round that it joined in each
//! session.
//!
//! Keys and masks are new in every round of every session, so joining a round twice would not
//! repeat a mask. But the device would contribute twice, among different devices, and the
//! difference of the two sums could reveal its vector. Therefore an application with a
//! [`Participant`](super::Participant) must:
//!
//! 1. read `SeenRounds` at start-up and pass [`SeenRounds::last`] to
//!    [`Participant::resumed`](super::Participant::resumed),
//! 2. write and sync it after [`Participant::join`](super::Participant::join) and **before** it
//!    sends
//!    the first message of the round,
//! 3. join no round if the record cannot be read. A lost record is not an empty one.

use std::collections::BTreeMap;

use thiserror::Error;

use crate::params::RoundId;

const MAGIC: &[u8; 8] = b"dfl-seen";
const ENTRY: usize = 16 + 8;

/// The last round that a device joined in each session.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SeenRounds(BTreeMap<[u8; 16], u64>);

/// The bytes are not a valid record of joined rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the record of joined rounds is damaged")]
pub struct SeenRoundsError;

impl SeenRounds {
    /// Returns the last round joined in a session.
    pub fn last(&self, session: &[u8; 16]) -> Option<u64> {
        self.0.get(session).copied()
    }

    /// Records that a round was joined. Returns `false` and changes nothing if it is not newer than
    /// the last.
    pub fn note(&mut self, round: RoundId) -> bool {
        let new = self.last(&round.session).is_none_or(|last| round.round > last);
        if new {
            self.0.insert(round.session, round.round);
        }
        new
    }

    /// Returns the bytes to store: a count and, for each session in order, its id and round.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&(self.0.len() as u64).to_le_bytes());
        for (session, round) in &self.0 {
            bytes.extend_from_slice(session);
            bytes.extend_from_slice(&round.to_le_bytes());
        }
        bytes
    }

    /// Parses stored bytes.
    ///
    /// # Errors
    ///
    /// Returns an error if the bytes are truncated, have a wrong count, or contain a session twice.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, SeenRoundsError> {
        let rest = bytes.strip_prefix(MAGIC).ok_or(SeenRoundsError)?;
        let (count, entries) = rest.split_first_chunk::<8>().ok_or(SeenRoundsError)?;
        let (entries, cut) = entries.as_chunks::<ENTRY>();
        if !cut.is_empty() || u64::from_le_bytes(*count) != entries.len() as u64 {
            return Err(SeenRoundsError);
        }
        let entry = |entry: &[u8; ENTRY]| {
            let (session, round) = entry.split_first_chunk::<16>()?;
            Some((*session, u64::from_le_bytes(round.try_into().ok()?)))
        };
        let seen: Option<BTreeMap<[u8; 16], u64>> = entries.iter().map(entry).collect();
        // A repeated session would lose one of its rounds.
        seen.filter(|seen| seen.len() == entries.len()).map(Self).ok_or(SeenRoundsError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(session: u8, round: u64) -> RoundId {
        RoundId { session: [session; 16], round }
    }

    #[test]
    fn old_and_repeated_rounds_are_rejected_per_session() {
        let mut seen = SeenRounds::default();
        assert!(seen.note(round(1, 5)));
        assert!(!seen.note(round(1, 5)) && !seen.note(round(1, 4)));
        assert!(seen.note(round(2, 0)));
        assert_eq!((seen.last(&[1; 16]), seen.last(&[2; 16]), seen.last(&[3; 16])), (Some(5), Some(0), None));
    }

    #[test]
    fn stored_rounds_are_restored_and_damaged_records_rejected() {
        let mut seen = SeenRounds::default();
        assert_eq!(SeenRounds::from_bytes(&seen.to_bytes()), Ok(seen.clone()));
        seen.note(round(1, 5));
        seen.note(round(2, 7));
        let bytes = seen.to_bytes();
        assert_eq!(SeenRounds::from_bytes(&bytes), Ok(seen));
        for len in 0..bytes.len() {
            assert_eq!(SeenRounds::from_bytes(&bytes[..len]), Err(SeenRoundsError), "{len}");
        }
        let twice = [&bytes[..], &bytes[16..40]].concat();
        assert_eq!(SeenRounds::from_bytes(&twice), Err(SeenRoundsError));
        let mut counted = twice;
        counted[8] = 3;
        assert_eq!(SeenRounds::from_bytes(&counted), Err(SeenRoundsError), "the same session twice");
    }
}
