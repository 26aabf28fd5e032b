//! The notes of a ledger, in bytes.
//!
//! ```text
//! header · note …                                            40 bytes each, little-endian
//! note     kind u32 · name 16 bytes · u64 · u64 · the first 4 bytes of the BLAKE3 of these, by which a note is known that
//!          a kill cut short
//!   kind 1   an answer: hash of the claim · seed · round
//!   kind 2   losses were told: hash of w · how often by now · 0
//!   kind 3   rounds are closed: zeros · seed · the first that is open
//! ```

/// Names are cut to 128 bits. Two that are equal by accident make a device refuse a question.
const NAME: usize = 16;
pub(super) const NOTE: usize = 4 + NAME + 8 + 8 + 4;
/// Stands where a note does, so that a file of something else is not taken for a ledger.
pub(super) const HEADER: [u8; NOTE] = *b"deltafl ledger of a device, version 2\n\0\0";

pub(super) type Name = [u8; NAME];

/// A note.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Note {
    Answer { name: Name, seed: u64, round: u64 },
    Told { params: Name, times: u32 },
    Open { seed: u64, round: u64 },
}

impl Note {
    pub(super) fn to_bytes(self) -> [u8; NOTE] {
        let (kind, name, a, b) = match self {
            Self::Answer { name, seed, round } => (1u32, name, seed, round),
            Self::Told { params, times } => (2, params, times.into(), 0),
            Self::Open { seed, round } => (3, [0; NAME], seed, round),
        };
        let mut note = [0; NOTE];
        note[..4].copy_from_slice(&kind.to_le_bytes());
        note[4..20].copy_from_slice(&name);
        note[20..28].copy_from_slice(&a.to_le_bytes());
        note[28..36].copy_from_slice(&b.to_le_bytes());
        let check = blake3::hash(&note[..36]);
        note[36..].copy_from_slice(&check.as_bytes()[..4]);
        note
    }

    /// The note of these bytes, if it is whole.
    pub(super) fn of(bytes: &[u8]) -> Option<Self> {
        let name: Name = bytes.get(4..20)?.try_into().ok()?;
        let number = |from: usize| Some(u64::from_le_bytes(bytes.get(from..from + 8)?.try_into().ok()?));
        let (a, b) = (number(20)?, number(28)?);
        let note = match u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?) {
            1 => Self::Answer { name, seed: a, round: b },
            2 => Self::Told { params: name, times: a.try_into().ok()? },
            3 => Self::Open { seed: a, round: b },
            _ => return None,
        };
        (note.to_bytes() == bytes).then_some(note)
    }
}

/// The name of what has this hash.
pub(super) fn cut(hash: &blake3::Hash) -> Name {
    let mut name = [0; NAME];
    name.copy_from_slice(&hash.as_bytes()[..NAME]);
    name
}
