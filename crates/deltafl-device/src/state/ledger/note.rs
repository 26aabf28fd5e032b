//! The binary format of a ledger's notes.
//!
//! ```text
//! header · note …                                            80 bytes each, little-endian
//! note     kind u32 · authority 16 bytes · run u64 · round u64 · content, 40 bytes
//!          · the first 4 bytes of the BLAKE3 of these, to detect a truncated note
//!   kind 1   answers: tracks u32 · track u32 · 1 where w is known u8 · steps of the search u32 · updated u8 · evaluated u8
//!            · hash of w 16 bytes · zeros
//!   kind 2   rounds before this one are closed: zeros
//! ```

use super::book::RoundAnswers;

/// Hashes are truncated to 128 bits. In a collision the device refuses a question.
const NAME: usize = 16;
pub(super) const NOTE: usize = 80;
/// The offset of the checksum.
const CHECK: usize = NOTE - 4;
/// The header is as long as a note and distinguishes a ledger from other files.
pub(super) const HEADER: [u8; NOTE] =
    *b"deltafl ledger of a device, version 3: one answer per round of a run           \n";

pub(super) type Name = [u8; NAME];

/// A note of the ledger.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Note {
    Answers { authority: Name, run: u64, round: u64, answers: RoundAnswers },
    Open { authority: Name, run: u64, round: u64 },
}

impl Note {
    pub(super) fn to_bytes(self) -> [u8; NOTE] {
        let (kind, authority, run, round) = match self {
            Self::Answers { authority, run, round, .. } => (1u32, authority, run, round),
            Self::Open { authority, run, round } => (2, authority, run, round),
        };
        let mut bytes = Vec::with_capacity(NOTE);
        bytes.extend(kind.to_le_bytes());
        bytes.extend(authority);
        bytes.extend(run.to_le_bytes());
        bytes.extend(round.to_le_bytes());
        if let Self::Answers { answers, .. } = self {
            let RoundAnswers { divided_among, track, params, search_steps, updated, evaluated } = answers;
            bytes.extend(divided_among.to_le_bytes());
            bytes.extend(track.to_le_bytes());
            bytes.push(params.is_some().into());
            bytes.extend(search_steps.to_le_bytes());
            bytes.extend([updated, evaluated].map(u8::from));
            bytes.extend(params.unwrap_or_default());
        }
        bytes.resize(CHECK, 0);
        let check = blake3::hash(&bytes);
        let mut note = [0; NOTE];
        note[..CHECK].copy_from_slice(&bytes);
        note[CHECK..].copy_from_slice(&check.as_bytes()[..4]);
        note
    }

    /// Parses a note. Returns `None` if it is incomplete.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let kind = u32::from_le_bytes(take(&mut rest)?);
        let authority: Name = take(&mut rest)?;
        let (run, round) = (u64::from_le_bytes(take(&mut rest)?), u64::from_le_bytes(take(&mut rest)?));
        let note = match kind {
            1 => {
                let divided_among = u32::from_le_bytes(take(&mut rest)?);
                let track = u32::from_le_bytes(take(&mut rest)?);
                let [is_known] = take(&mut rest)?;
                let search_steps = u32::from_le_bytes(take(&mut rest)?);
                let [updated, evaluated] = take(&mut rest)?.map(|byte: u8| byte == 1);
                let params = (is_known == 1).then_some(take(&mut rest)?);
                let answers = RoundAnswers { divided_among, track, params, search_steps, updated, evaluated };
                Self::Answers { authority, run, round, answers }
            }
            2 => Self::Open { authority, run, round },
            _ => return None,
        };
        (note.to_bytes() == bytes).then_some(note)
    }
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, behind) = bytes.split_first_chunk::<N>()?;
    *bytes = behind;
    Some(*taken)
}

/// Returns the first bytes of a hash.
pub(super) fn cut(hash: &blake3::Hash) -> Name {
    let mut name = [0; NAME];
    name.copy_from_slice(&hash.as_bytes()[..NAME]);
    name
}
