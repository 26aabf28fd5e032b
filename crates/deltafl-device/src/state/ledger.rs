//! What a device has answered: it answers nothing twice.
//!
//! A server that asks the same thing of two cohorts that differ in one device reads that device off the difference of the sums. So
//! a device answers for updates at one w in one question of a round, once over a range about its losses, and at one w about its
//! losses no more than [`RANGES`] times, ever. Of the examples that it holds out it tells each measure once at one w, ever. It notes what it is about to answer on disk before it computes the answer, so
//! that no kill makes it forget. Updates for several thresholds at one w tell of the devices between them: one question may
//! ask for [`LEVELS`].
//!
//! The file holds 36 bytes per note: a hash and four bytes by which a note is known that a kill cut short.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use super::StateError;

/// Histograms that a device gives at one w: two levels for a few θ, and a few rounds that came to nothing.
const RANGES: u32 = 64;
/// Thresholds for which one question may ask an update at one w: all tracks of a run start from the same.
const LEVELS: usize = 4;
/// Steps of a quantile by means at one w.
const MEAN_STEPS: u32 = 512;

/// Bytes of a note: a key, and the beginning of its hash.
const KEY: usize = 32;
const NOTE: usize = KEY + 4;

/// Something that a device is about to answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Claim {
    /// A local update from w in round t of a run.
    Update { params: blake3::Hash, seed: u64, round: u64 },
    /// A histogram of losses at w in round t of a run.
    Histogram { params: blake3::Hash, seed: u64, round: u64, lower: f64, upper: f64, bins: u32 },
    /// A histogram of a measure of the examples that it holds out, at w.
    Evaluation { params: blake3::Hash, measure: &'static str },
    /// A step of a quantile by means at w in round t of a run.
    MeanStep { params: blake3::Hash, seed: u64, round: u64, mu: f64, floor: f64 },
}

/// Why a device does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Answered {
    #[error("this device has given an update at these params in round {0} already")]
    Update(u64),
    #[error("one question asks for updates at the same params under more than {LEVELS} thresholds")]
    Levels,
    #[error("this device has told of its loss at these params over this range already")]
    Losses,
    #[error("this device has told how these params serve it already")]
    Evaluation,
    #[error("this device has told of its loss at these params as often as it tells")]
    Ranges,
}

/// The notes of a device, on disk or for as long as the process lives.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    file: Option<(PathBuf, File)>,
    answered: HashSet<[u8; KEY]>,
}

impl Ledger {
    /// The ledger in a file, which is made if it is not there. What a kill left half written at the end is cut off: it was not
    /// answered yet. Damage before a whole note is an error, because whatever it forbade would be answered again.
    pub(crate) fn open(path: &Path) -> Result<Self, StateError> {
        let io = super::io_error(path);
        let mut options = OpenOptions::new();
        let mut file = options.read(true).write(true).create(true).truncate(false).open(path).map_err(&io)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(&io)?;
        let mut answered = HashSet::with_capacity(bytes.len() / NOTE);
        let mut whole = 0;
        for (i, note) in bytes.chunks_exact(NOTE).enumerate() {
            let Some(key) = key_of(note) else { continue };
            if whole != i * NOTE {
                return Err(StateError::Damaged { path: path.to_owned() });
            }
            answered.insert(key);
            whole += NOTE;
        }
        file.set_len(whole as u64).map_err(&io)?;
        file.seek(SeekFrom::End(0)).map_err(&io)?;
        Ok(Self { file: Some((path.to_owned(), file)), answered })
    }

    /// Notes that all of this is about to be answered; or nothing, when part of it was answered before.
    pub(crate) fn claim(&mut self, claims: &[Claim]) -> Result<Result<(), Answered>, StateError> {
        let new = match self.new_keys(claims) {
            Ok(new) => new,
            Err(answered) => return Ok(Err(answered)),
        };
        let notes: Vec<u8> = new.iter().flat_map(note).collect();
        if let Some((path, file)) = &mut self.file {
            append(file, &notes).map_err(super::io_error(path))?;
        }
        self.answered.extend(new);
        Ok(Ok(()))
    }

    fn new_keys(&self, claims: &[Claim]) -> Result<Vec<[u8; KEY]>, Answered> {
        let mut new: Vec<[u8; KEY]> = Vec::with_capacity(2 * claims.len());
        for (i, claim) in claims.iter().enumerate() {
            let key = claim.key();
            if new.contains(&key) {
                let levels = claims[..=i].iter().filter(|other| other.key() == key).count();
                match claim {
                    Claim::Update { .. } if levels > LEVELS => return Err(Answered::Levels),
                    // Tracks that stand at one w ask the same: one answer, told twice in one question.
                    _ => continue,
                }
            }
            if self.answered.contains(&key) {
                return Err(match claim {
                    Claim::Update { round, .. } => Answered::Update(*round),
                    Claim::Evaluation { .. } => Answered::Evaluation,
                    _ => Answered::Losses,
                });
            }
            new.push(key);
            if let Some((params, most)) = claim.counted() {
                let free = (0..most)
                    .map(|n| count_key(params, n))
                    .find(|key| !self.answered.contains(key) && !new.contains(key));
                new.push(free.ok_or(Answered::Ranges)?);
            }
        }
        Ok(new)
    }
}

impl Claim {
    fn key(&self) -> [u8; KEY] {
        let mut hasher = blake3::Hasher::new_derive_key("deltafl ledger of a device v1");
        match self {
            Self::Update { params, seed, round } => {
                hasher.update(b"update").update(params.as_bytes());
                hasher.update(&seed.to_le_bytes()).update(&round.to_le_bytes());
            }
            Self::Histogram { params, seed, round, lower, upper, bins } => {
                hasher.update(b"histogram").update(params.as_bytes());
                hasher.update(&seed.to_le_bytes()).update(&round.to_le_bytes());
                hasher.update(&lower.to_le_bytes()).update(&upper.to_le_bytes()).update(&bins.to_le_bytes());
            }
            Self::Evaluation { params, measure } => {
                hasher.update(b"evaluation").update(params.as_bytes()).update(measure.as_bytes());
            }
            Self::MeanStep { params, seed, round, mu, floor } => {
                hasher.update(b"mean step").update(params.as_bytes());
                hasher.update(&seed.to_le_bytes()).update(&round.to_le_bytes());
                hasher.update(&mu.to_le_bytes()).update(&floor.to_le_bytes());
            }
        }
        *hasher.finalize().as_bytes()
    }

    /// The params at which answers of this kind are counted, and how many there may be.
    fn counted(&self) -> Option<(&blake3::Hash, u32)> {
        match self {
            Self::Update { .. } | Self::Evaluation { .. } => None,
            Self::Histogram { params, .. } => Some((params, RANGES)),
            Self::MeanStep { params, .. } => Some((params, MEAN_STEPS)),
        }
    }
}

/// Stands for the n-th answer about losses at these params.
fn count_key(params: &blake3::Hash, n: u32) -> [u8; KEY] {
    let mut hasher = blake3::Hasher::new_derive_key("deltafl ledger of a device v1");
    hasher.update(b"count").update(params.as_bytes()).update(&n.to_le_bytes());
    *hasher.finalize().as_bytes()
}

fn note(key: &[u8; KEY]) -> [u8; NOTE] {
    let mut note = [0; NOTE];
    note[..KEY].copy_from_slice(key);
    note[KEY..].copy_from_slice(&blake3::hash(key).as_bytes()[..NOTE - KEY]);
    note
}

/// The key of a note that is whole.
fn key_of(bytes: &[u8]) -> Option<[u8; KEY]> {
    let key: [u8; KEY] = bytes[..KEY].try_into().ok()?;
    (note(&key) == bytes).then_some(key)
}

/// Appends notes; what a full disk took of them is cut off again.
fn append(file: &mut File, notes: &[u8]) -> io::Result<()> {
    let before = file.stream_position()?;
    let written = file.write_all(notes).and_then(|()| file.sync_data());
    if written.is_err() {
        file.set_len(before)?;
        file.seek(SeekFrom::Start(before))?;
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(n: u8) -> blake3::Hash {
        blake3::hash(&[n])
    }

    fn update(n: u8, round: u64) -> Claim {
        Claim::Update { params: params(n), seed: 1, round }
    }

    fn histogram(n: u8, upper: f64) -> Claim {
        Claim::Histogram { params: params(n), seed: 1, round: 0, lower: 0.0, upper, bins: 64 }
    }

    fn claimed(ledger: &mut Ledger, claims: &[Claim]) -> Result<(), Answered> {
        ledger.claim(claims).unwrap()
    }

    #[test]
    fn nothing_is_answered_twice_even_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        let mut ledger = Ledger::open(&path).unwrap();
        assert_eq!(claimed(&mut ledger, &[update(1, 0), update(2, 0)]), Ok(()));
        assert_eq!(claimed(&mut ledger, &[histogram(1, 8.0), histogram(1, 8.0), histogram(2, 8.0)]), Ok(()));
        drop(ledger);
        let mut ledger = Ledger::open(&path).unwrap();
        assert_eq!(claimed(&mut ledger, &[update(2, 0)]), Err(Answered::Update(0)));
        assert_eq!(claimed(&mut ledger, &[histogram(1, 8.0)]), Err(Answered::Losses));
        assert_eq!(claimed(&mut ledger, &[update(2, 1), histogram(1, 4.0)]), Ok(()));
    }

    #[test]
    fn each_measure_of_held_out_examples_is_told_once_at_one_w() {
        let evaluation = |n: u8, measure| Claim::Evaluation { params: params(n), measure };
        let mut ledger = Ledger::default();
        assert_eq!(claimed(&mut ledger, &[evaluation(1, "error"), evaluation(1, "loss")]), Ok(()));
        assert_eq!(claimed(&mut ledger, &[evaluation(1, "error")]), Err(Answered::Evaluation));
        let beside = [evaluation(1, "mae"), evaluation(1, "loss")];
        assert_eq!(claimed(&mut ledger, &beside), Err(Answered::Evaluation));
        assert_eq!(claimed(&mut ledger, &[evaluation(1, "mae"), evaluation(2, "loss")]), Ok(()));
    }

    #[test]
    fn one_question_asks_under_a_few_thresholds_and_no_other_follows() {
        let mut ledger = Ledger::default();
        assert_eq!(claimed(&mut ledger, &[update(1, 0); LEVELS + 1]), Err(Answered::Levels));
        assert_eq!(
            claimed(&mut ledger, &[update(1, 0); LEVELS]),
            Ok(()),
            "a refused question leaves nothing behind"
        );
        assert_eq!(claimed(&mut ledger, &[update(1, 0)]), Err(Answered::Update(0)));
    }

    #[test]
    fn ranges_that_differ_by_a_hair_run_out() {
        let mut ledger = Ledger::default();
        for n in 0..RANGES {
            assert_eq!(claimed(&mut ledger, &[histogram(1, 8.0 + f64::from(n) * 1e-9)]), Ok(()));
        }
        assert_eq!(claimed(&mut ledger, &[histogram(1, 7.0)]), Err(Answered::Ranges));
        assert_eq!(claimed(&mut ledger, &[histogram(2, 7.0)]), Ok(()));
    }

    #[test]
    fn a_note_cut_short_is_cut_off_and_a_damaged_one_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        let mut ledger = Ledger::open(&path).unwrap();
        for round in 0..3 {
            claimed(&mut ledger, &[update(1, round)]).unwrap();
        }
        drop(ledger);
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 5]).unwrap();
        let mut ledger = Ledger::open(&path).unwrap();
        assert_eq!(claimed(&mut ledger, &[update(1, 1)]), Err(Answered::Update(1)));
        assert_eq!(
            claimed(&mut ledger, &[update(1, 2)]),
            Ok(()),
            "it was not yet answered when the kill came"
        );
        drop(ledger);
        let mut damaged = bytes;
        damaged[3] ^= 1;
        std::fs::write(&path, &damaged).unwrap();
        assert!(matches!(Ledger::open(&path), Err(StateError::Damaged { .. })));
    }
}
