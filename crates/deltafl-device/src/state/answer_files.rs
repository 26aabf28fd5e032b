//! The files that record the answers of a device.
//!
//! A device that lost its ledger would answer rounds a second time. One that lost its counts would
//! exceed the limits of its owner. A new folder receives all files when it is opened, the ledger last.
//! A folder with a ledger is therefore refused if it lacks one of the other files, and a folder with
//! counts is refused if it lacks the ledger, or the newest counted answer in it.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use deltafl_secagg::device::SeenRounds;

use super::answers::AnswerCounts;
use super::ledger::Ledger;
use super::spent::SpentLedger;
use super::{StateError, io_error, replace};

/// The records of a device's answers.
#[derive(Debug)]
pub(super) struct AnswerFiles {
    pub(super) ledger: Ledger,
    pub(super) answers: AnswerCounts,
    pub(super) spent: SpentLedger,
    pub(super) rounds: SeenRounds,
}

impl AnswerFiles {
    /// Opens the files of a folder. Creates them in a new folder.
    pub(super) fn open(folder: &Path) -> Result<Self, StateError> {
        let [rounds_path, ledger_path, answers_path, spent_path] =
            ["rounds", "ledger", "answers", "privacy"].map(|name| folder.join(name));
        let answers = AnswerCounts::open(&answers_path)?;
        let spent = SpentLedger::open(&spent_path)?;
        let rounds = read_rounds(&rounds_path)?;
        if has_bytes(&ledger_path) {
            if let Some(missing) =
                [rounds_path, answers_path, spent_path].into_iter().find(|path| !path.exists())
            {
                return Err(StateError::Missing { path: missing });
            }
        } else if answers.is_empty() && spent.is_empty() {
            answers.store()?;
            spent.store()?;
            store_rounds(&rounds_path, &rounds)?;
        } else {
            return Err(StateError::Missing { path: ledger_path });
        }
        let ledger = Ledger::open(&ledger_path)?;
        // The ledger is written before an answer is counted.
        if answers.entries().iter().any(|(authority, count)| !ledger.contains(authority, count.newest)) {
            return Err(StateError::Damaged { path: ledger_path });
        }
        Ok(Self { ledger, answers, spent, rounds })
    }
}

fn has_bytes(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.len() > 0)
}

/// Writes the rounds and their BLAKE3 hash.
pub(super) fn store_rounds(path: &Path, rounds: &SeenRounds) -> Result<(), StateError> {
    let mut bytes = rounds.to_bytes();
    let hash = blake3::hash(&bytes);
    bytes.extend_from_slice(hash.as_bytes());
    replace(path, &bytes)
}

fn read_rounds(path: &Path) -> Result<SeenRounds, StateError> {
    let parse = |bytes: &[u8]| {
        let (body, hash) = bytes.split_last_chunk::<32>()?;
        let is_whole = blake3::hash(body) == blake3::Hash::from_bytes(*hash);
        SeenRounds::from_bytes(body).ok().filter(|_| is_whole)
    };
    match fs::read(path) {
        Ok(bytes) => parse(&bytes).ok_or_else(|| StateError::Damaged { path: path.to_owned() }),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(SeenRounds::default()),
        Err(source) => Err(io_error(path)(source)),
    }
}

#[cfg(test)]
mod tests {
    use deltafl::privacy::Rho;
    use deltafl_secagg::device::SeenRound;

    use super::super::{Claim, DeviceState, LedgerKey, ServedTrack};
    use super::*;

    const AUTHORITY: [u8; 32] = [7; 32];

    fn answer(state: &mut DeviceState, round: u64) {
        let key = LedgerKey { authority: AUTHORITY, run: 0, round, rounds_between: 0 };
        let served = ServedTrack { divided_among: 1, track: 0, params: Some(blake3::hash(b"w")) };
        state.join(AUTHORITY, SeenRound { round, roster: 1 }).unwrap();
        state.claim(&key, served, &[Claim::Update]).unwrap().unwrap();
        state.count_answer(&key).unwrap();
        state.spend_privacy(AUTHORITY, Rho::from_noise_multiplier(1.0)).unwrap();
    }

    #[test]
    fn a_folder_that_lacks_a_record_of_its_answers_is_refused() {
        for lost in ["rounds", "ledger", "answers", "privacy"] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join(lost);
            let mut state = DeviceState::open(folder.path()).unwrap();
            answer(&mut state, 0);
            drop(state);
            drop(DeviceState::open(folder.path()).unwrap());
            let kept = fs::read(&path).unwrap();
            fs::remove_file(&path).unwrap();
            let is_missing = || match DeviceState::open(folder.path()) {
                Err(StateError::Missing { path: missing } | StateError::Damaged { path: missing }) => {
                    missing == path
                }
                _ => false,
            };
            assert!(is_missing(), "{lost}");
            fs::write(&path, []).unwrap();
            assert!(is_missing(), "an empty {lost}");
            fs::write(&path, kept).unwrap();
            drop(DeviceState::open(folder.path()).unwrap());
        }
    }

    #[test]
    fn a_changed_bit_in_a_record_of_answers_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let mut state = DeviceState::open(folder.path()).unwrap();
        answer(&mut state, 0);
        drop(state);
        for changed in ["rounds", "ledger", "answers", "privacy"] {
            let path = folder.path().join(changed);
            let kept = fs::read(&path).unwrap();
            for at in 0..kept.len() {
                let mut bytes = kept.clone();
                bytes[at] ^= 1 << (at % 8);
                fs::write(&path, bytes).unwrap();
                let opened = DeviceState::open(folder.path());
                assert!(matches!(opened, Err(StateError::Damaged { .. })), "{changed}, byte {at}");
            }
            fs::write(&path, kept).unwrap();
        }
        drop(DeviceState::open(folder.path()).unwrap());
    }

    #[test]
    fn a_ledger_that_lost_its_newest_answer_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        let mut state = DeviceState::open(folder.path()).unwrap();
        let before = fs::metadata(&path).unwrap().len();
        (0..3).for_each(|round| answer(&mut state, round));
        drop(state);
        let kept = fs::read(&path).unwrap();
        for len in before as usize..kept.len() {
            fs::write(&path, &kept[..len]).unwrap();
            let opened = DeviceState::open(folder.path());
            assert!(matches!(opened, Err(StateError::Damaged { path: damaged }) if damaged == path), "{len}");
        }
        let mut flipped = kept.clone();
        *flipped.last_mut().unwrap() ^= 1;
        fs::write(&path, flipped).unwrap();
        assert!(matches!(DeviceState::open(folder.path()), Err(StateError::Damaged { .. })));
        // A crash between the note and the count.
        fs::write(&path, &kept).unwrap();
        let mut ledger = Ledger::open(&path).unwrap();
        let key = LedgerKey { authority: AUTHORITY, run: 0, round: 3, rounds_between: 0 };
        let served = ServedTrack { divided_among: 1, track: 0, params: Some(blake3::hash(b"w")) };
        ledger.claim(&key, served, &[Claim::Update]).unwrap().unwrap();
        drop(DeviceState::open(folder.path()).unwrap());
    }

    #[test]
    fn a_device_that_only_reported_losses_opens_its_folder_again() {
        let folder = tempfile::tempdir().unwrap();
        let mut state = DeviceState::open(folder.path()).unwrap();
        state.spend_privacy(AUTHORITY, Rho::UNBOUNDED).unwrap();
        drop(state);
        drop(DeviceState::open(folder.path()).unwrap());
        fs::remove_file(folder.path().join("privacy")).unwrap();
        assert!(matches!(DeviceState::open(folder.path()), Err(StateError::Missing { .. })));
    }
}
