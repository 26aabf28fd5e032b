//! The state of a device across restarts.
//!
//! ```text
//! FOLDER/roster.json        version and hash of the newest roster that the device has taken
//! FOLDER/rosters.jsonl      the rosters that the device has taken, with the signatures of the authority
//! FOLDER/transcript.jsonl   the messages of the server, one per line, chained by hashes
//! FOLDER/ledger             the rounds that it has answered, so that it answers none twice
//! FOLDER/answers            the number of its answers, for the budgets of its owner
//! FOLDER/privacy            the privacy that it has spent, for the limit of its owner
//! FOLDER/memory/            the memory of its training, for example a control variate
//! FOLDER/rounds             the last round that it joined, of each authority, so that it joins none twice
//! FOLDER/lock               held while a process uses the folder
//! ```
//!
//! The stored state lets a device detect a server that presents an older roster, or different
//! rosters to different devices.

mod answer_files;
mod answers;
mod by_authority;
mod ledger;
mod memory;
mod spent;
mod transcript;

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use deltafl::memory::AlgorithmState;
use deltafl::privacy::Rho;
use deltafl::question::RoundKey;
use deltafl_secagg::device::{SeenRound, SeenRounds};
use deltafl_wire::environment::{Clock, SystemClock};
use deltafl_wire::roster::{PreviousRoster, RosterError, RosterVersion};
use deltafl_wire::roster_log::{LoggedRoster, ROSTER_LOG, RosterLogError};
use serde::{Deserialize, Serialize};

use self::answer_files::AnswerFiles;
pub(crate) use self::answers::AnswerBudget;
use self::answers::AnswerCounts;
pub use self::answers::{AnswerCount, BudgetSpent};
use self::ledger::Ledger;
pub(crate) use self::ledger::{AnswerRefused, Claim, LedgerKey, ServedTrack};
use self::memory::OwnMemory;
use self::spent::SpentLedger;
pub use self::spent::{PrivacyExhausted, PrivacyLimit, SpentPrivacy};
pub use self::transcript::{Conflict, Digest, Transcript, TranscriptError, TranscriptEvent, conflicts};
use crate::defences::{Defence, Defences};

/// The reason for which a device's state cannot be read or stored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// The file system failed.
    #[error("{path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The error reported by the file system.
        source: io::Error,
    },
    /// Another process uses the folder.
    #[error("{path} is in use by another process: a device has one state")]
    InUse {
        /// The folder.
        path: PathBuf,
    },
    /// The file has other content.
    #[error("{path} is damaged: restore it, or restart the device with a new folder")]
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// A file is missing that other files of the folder presuppose.
    #[error("{path} is missing: restore it, or restart the device with a new folder")]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The log of rosters is damaged.
    #[error(transparent)]
    RosterLog(#[from] RosterLogError),
    /// The transcript is damaged.
    #[error(transparent)]
    Transcript(#[from] TranscriptError),
}

/// The state of a device, on disk or in memory.
#[derive(Debug)]
pub struct DeviceState {
    folder: Option<Folder>,
    roster: Option<SeenRoster>,
    /// The last refused roster.
    refused: Option<SeenRoster>,
    /// The version of the last roster in the log of rosters, if this process has appended to it.
    logged: Option<u64>,
    transcript: Transcript,
    ledger: Ledger,
    answers: AnswerCounts,
    spent: SpentLedger,
    memory: OwnMemory,
    rounds: SeenRounds,
    /// Dates the transcript and checks the expiry of rosters.
    pub(crate) clock: Arc<dyn Clock>,
}

/// A state in memory.
impl Default for DeviceState {
    fn default() -> Self {
        Self {
            folder: None,
            roster: None,
            refused: None,
            logged: None,
            transcript: Transcript::default(),
            ledger: Ledger::default(),
            answers: AnswerCounts::default(),
            spent: SpentLedger::default(),
            memory: OwnMemory::default(),
            rounds: SeenRounds::default(),
            clock: Arc::new(SystemClock),
        }
    }
}

#[derive(Debug)]
struct Folder {
    path: PathBuf,
    /// The lock is held as long as the file is open.
    _lock: File,
}

/// The newest accepted roster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SeenRoster {
    version: u64,
    hash: Digest,
    /// The version and hash of its predecessor in the authority's log.
    #[serde(default)]
    previous: Option<(u64, Digest)>,
}

impl SeenRoster {
    /// Returns true if the authority's log can contain both rosters, this one later. A device that
    /// was away has missed the rosters between them.
    fn follows(&self, seen: &Self) -> bool {
        match self.previous {
            Some((version, hash)) => version > seen.version || (version, hash) == (seen.version, seen.hash),
            // Only the first roster of a log has no predecessor.
            None => seen.previous.is_none(),
        }
    }
}

impl DeviceState {
    /// Opens the state in a folder. Creates the folder if it does not exist.
    pub fn open(path: &Path) -> Result<Self, StateError> {
        create_private(path)?;
        let lock_path = path.join("lock");
        let lock = File::create(&lock_path).map_err(io_error(&lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(StateError::InUse { path: path.to_owned() }),
            Err(TryLockError::Error(source)) => return Err(io_error(&lock_path)(source)),
        }
        let roster_path = path.join("roster.json");
        let roster = read_roster(&roster_path)?;
        let log = path.join(ROSTER_LOG);
        // The roster is written before the log.
        if log.exists() && !LoggedRoster::read(&log)?.is_empty() && roster.is_none() {
            return Err(StateError::Missing { path: roster_path });
        }
        let transcript = Transcript::open(&path.join("transcript.jsonl"))?;
        let memory = OwnMemory::open(&path.join("memory"))?;
        let AnswerFiles { ledger, answers, spent, rounds } = AnswerFiles::open(path)?;
        let folder = Some(Folder { path: path.to_owned(), _lock: lock });
        Ok(Self { folder, roster, transcript, ledger, answers, spent, memory, rounds, ..Self::default() })
    }

    /// Accepts a roster signed by the authority. Refuses it if it has expired, if it is older than
    /// an accepted one, or if it differs from an accepted one of the same version. A newer roster
    /// is stored before it is used.
    pub(crate) fn take_roster(
        &mut self,
        edition: RosterVersion,
        hash: &blake3::Hash,
        previous: Option<PreviousRoster>,
    ) -> Result<(), RosterRefused> {
        let RosterVersion { version, .. } = edition;
        if edition.time_left(&*self.clock).is_none() {
            return Err(RosterError::Expired(version).into());
        }
        let previous = previous.map(|previous| (previous.version, Digest::from(previous.hash)));
        let shown = SeenRoster { version, hash: Digest::from(*hash), previous };
        let refused = match self.roster {
            Some(seen) if seen == shown => return Ok(()),
            Some(seen) if version < seen.version => RosterError::RolledBack { version, seen: seen.version },
            Some(seen) if version == seen.version => RosterError::TwoOfOneVersion(version),
            Some(seen) if Defences::default().has(Defence::RosterLog) && !shown.follows(&seen) => {
                RosterError::Forked { version, seen: seen.version }
            }
            _ => return self.keep_roster(shown),
        };
        // Recorded once as evidence. A server that repeats it does not fill the disk.
        if self.refused.replace(shown) != Some(shown) {
            tracing::warn!(%refused, "the server is not trustworthy");
            let (hash, reason) = (shown.hash, refused.to_string());
            self.record(TranscriptEvent::RosterRefused { version, hash, reason })?;
        }
        Err(refused.into())
    }

    fn keep_roster(&mut self, shown: SeenRoster) -> Result<(), RosterRefused> {
        if let Some(folder) = &self.folder {
            let text = serde_json::to_string(&shown).expect("numbers and digits serialise to JSON") + "\n";
            replace(&folder.path.join("roster.json"), text.as_bytes())?;
        }
        self.roster = Some(shown);
        let SeenRoster { version, hash, previous } = shown;
        self.record(TranscriptEvent::Roster { version, hash, predecessor: previous })?;
        Ok(())
    }

    /// Appends an accepted roster to the log of rosters, if the state is on disk and the log does
    /// not end with it.
    pub(crate) fn log_roster(&mut self, roster: &LoggedRoster) -> Result<(), StateError> {
        let Some(folder) = &self.folder else { return Ok(()) };
        if self.logged != Some(roster.version) {
            roster.append(&folder.path.join(ROSTER_LOG))?;
            self.logged = Some(roster.version);
        }
        Ok(())
    }

    /// Records all claims, or none if any is refused. The record is on disk when this returns.
    pub(crate) fn claim(
        &mut self,
        key: &LedgerKey,
        served: ServedTrack,
        claims: &[Claim],
    ) -> Result<Result<(), AnswerRefused>, StateError> {
        self.ledger.claim(key, served, claims)
    }

    /// Checks that the budget of the owner allows one more answer today.
    pub(crate) fn check_budget(&self, authority: &[u8; 32], budget: AnswerBudget) -> Result<(), BudgetSpent> {
        self.answers.check(authority, budget, today())
    }

    /// Counts the answer that was claimed last. It is on disk when this returns.
    pub(crate) fn count_answer(&mut self, key: &LedgerKey) -> Result<(), StateError> {
        self.answers.add(key.authority, today(), self.ledger.counted(key))
    }

    /// Returns the answers of the device whose state is in this folder, by the key of the
    /// authority. The device may run at the same time.
    pub fn read_answers(path: &Path) -> Result<BTreeMap<[u8; 32], AnswerCount>, StateError> {
        AnswerCounts::open(&path.join("answers")).map(AnswerCounts::into_entries)
    }

    /// Checks that an answer of this cost stays within the limit of the owner.
    pub(crate) fn check_privacy(
        &self,
        authority: &[u8; 32],
        rho: Rho,
        limit: PrivacyLimit,
    ) -> Result<(), PrivacyExhausted> {
        self.spent.check(authority, rho, limit)
    }

    /// Adds the cost of an answer. It is on disk when this returns.
    pub(crate) fn spend_privacy(&mut self, authority: [u8; 32], rho: Rho) -> Result<(), StateError> {
        self.spent.add(authority, rho)
    }

    /// Returns the privacy spent by the device whose state is in this folder, by the key of the
    /// authority. The device may run at the same time.
    pub fn read_privacy(path: &Path) -> Result<BTreeMap<[u8; 32], SpentPrivacy>, StateError> {
        SpentLedger::open(&path.join("privacy")).map(SpentLedger::into_entries)
    }

    /// Returns the track for which the device has answered in this round.
    pub(crate) fn track(&self, key: &LedgerKey) -> Option<u32> {
        self.ledger.track(key)
    }

    /// Returns the state of the device for each of these tracks. It never leaves the device.
    pub(crate) fn recall(
        &mut self,
        key: &RoundKey,
        tracks: &[u32],
    ) -> Result<Vec<AlgorithmState>, StateError> {
        tracks.iter().map(|&track| self.memory.recall(key, track)).collect()
    }

    /// Stores the changed memories of these tracks. They are on disk when this returns.
    pub(crate) fn remember(
        &mut self,
        key: &RoundKey,
        tracks: &[u32],
        before: &[AlgorithmState],
        after: &[AlgorithmState],
    ) -> Result<(), StateError> {
        for (&track, (before, after)) in tracks.iter().zip(before.iter().zip(after)) {
            self.memory.remember(key, track, before, after)?;
        }
        Ok(())
    }

    /// Returns the last round that the device joined under an authority.
    pub(crate) fn last_round(&self, authority: &[u8; 32]) -> Option<SeenRound> {
        self.rounds.last(authority)
    }

    /// Records that the device joins a round. The record is on disk when this returns.
    pub(crate) fn join(&mut self, authority: [u8; 32], round: SeenRound) -> Result<(), StateError> {
        self.rounds.note(authority, round);
        match &self.folder {
            Some(folder) => answer_files::store_rounds(&folder.path.join("rounds"), &self.rounds),
            None => Ok(()),
        }
    }

    /// Appends an event to the transcript. It is on disk when this returns.
    pub(crate) fn record(&mut self, event: TranscriptEvent) -> Result<(), StateError> {
        Ok(self.transcript.append(event, self.clock.since_1970())?)
    }
}

/// The reason for which a device refuses a roster.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RosterRefused {
    #[error(transparent)]
    Roster(#[from] RosterError),
    #[error(transparent)]
    State(#[from] StateError),
}

fn read_roster(path: &Path) -> Result<Option<SeenRoster>, StateError> {
    match fs::read(path) {
        Ok(text) => {
            let damaged = |_| StateError::Damaged { path: path.to_owned() };
            serde_json::from_slice(&text).map(Some).map_err(damaged)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(io_error(path)(source)),
    }
}

/// Creates a folder that only its owner can read. A folder that exists becomes private.
fn create_private(path: &Path) -> Result<(), StateError> {
    fs::create_dir_all(path).map_err(io_error(path))?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        fs::set_permissions(path, fs::Permissions::from_mode(0o700)).map_err(io_error(path))?;
    }
    Ok(())
}

/// Returns the number of days since 1970.
fn today() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs() / (24 * 60 * 60))
}

/// Writes and syncs a temporary file next to the target, then renames it.
fn replace(path: &Path, contents: &[u8]) -> Result<(), StateError> {
    let beside = path.with_extension("new");
    let write = || {
        let mut file = File::create(&beside)?;
        file.write_all(contents)?;
        file.sync_all()?;
        fs::rename(&beside, path)?;
        // The folder stores the rename, so it is synced too.
        File::open(path.parent().unwrap_or(path))?.sync_all()
    };
    write().map_err(io_error(path))
}

fn io_error(path: &Path) -> impl Fn(io::Error) -> StateError + use<> {
    let path = path.to_owned();
    move |source| StateError::Io { path: path.clone(), source }
}

#[cfg(test)]
mod tests {
    use deltafl_wire::loopback;

    use super::*;

    const LATER: u64 = u64::MAX;

    fn taken(state: &mut DeviceState, version: u64, bytes: &[u8]) -> Result<(), String> {
        let edition = RosterVersion { version, expires: LATER };
        state.take_roster(edition, &blake3::hash(bytes), None).map_err(|e| e.to_string())
    }

    #[test]
    fn a_roster_is_not_rolled_back_even_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let mut state = DeviceState::open(folder.path()).unwrap();
        taken(&mut state, 4, b"four").unwrap();
        taken(&mut state, 5, b"five").unwrap();
        drop(state);
        let mut state = DeviceState::open(folder.path()).unwrap();
        taken(&mut state, 5, b"five").unwrap();
        assert!(taken(&mut state, 4, b"four").unwrap_err().contains("rolled back"));
        assert!(
            taken(&mut state, 5, b"another five").unwrap_err().contains("two different rosters of version 5")
        );
        taken(&mut state, 9, b"nine").unwrap();
    }

    #[test]
    fn a_folder_that_forgot_its_newest_roster_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let edition = RosterVersion { version: 4, expires: LATER };
        let signed = loopback::roster(edition, ["anna"].into_iter(), |_| false).unwrap();
        let roster = LoggedRoster::new(&signed, loopback::credentials("anna").authority).unwrap();
        let mut state = DeviceState::open(folder.path()).unwrap();
        state.take_roster(edition, &roster.hash, None).map_err(|_| "refused").unwrap();
        state.log_roster(&roster).unwrap();
        drop(state);
        let [newest, log] = ["roster.json", ROSTER_LOG].map(|name| folder.path().join(name));
        let kept = fs::read(&newest).unwrap();
        fs::remove_file(&newest).unwrap();
        let opened = DeviceState::open(folder.path());
        assert!(matches!(opened, Err(StateError::Missing { path }) if path == newest));
        fs::write(&newest, kept).unwrap();
        drop(DeviceState::open(folder.path()).unwrap());
        fs::write(log, "no roster\n").unwrap();
        assert!(matches!(DeviceState::open(folder.path()), Err(StateError::RosterLog(_))));
    }

    #[test]
    fn a_roster_whose_log_lacks_the_accepted_one_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let mut state = DeviceState::open(folder.path()).unwrap();
        let mut take = |version, bytes: &[u8], previous: Option<(u64, &[u8])>| {
            let edition = RosterVersion { version, expires: LATER };
            let previous =
                previous.map(|(version, bytes)| PreviousRoster { version, hash: blake3::hash(bytes) });
            state.take_roster(edition, &blake3::hash(bytes), previous).map_err(|error| match error {
                RosterRefused::Roster(error) => error,
                RosterRefused::State(error) => panic!("{error}"),
            })
        };
        let forked = |version, seen| Err(RosterError::Forked { version, seen });
        assert_eq!(take(4, b"four", None), Ok(()));
        assert_eq!(take(5, b"five", Some((4, b"another four"))), forked(5, 4));
        assert_eq!(take(5, b"five", Some((3, b"three"))), forked(5, 4), "the log skips roster 4");
        assert_eq!(take(5, b"five", Some((4, b"four"))), Ok(()));
        assert_eq!(take(9, b"nine", Some((8, b"eight"))), Ok(()), "the device missed some");
        assert_eq!(take(10, b"ten", None), forked(10, 9), "a new log");
    }

    #[test]
    fn an_expired_roster_is_refused() {
        let edition = RosterVersion { version: 4, expires: 1_000 };
        let refused = DeviceState::default().take_roster(edition, &blake3::hash(b"four"), None).unwrap_err();
        assert!(matches!(refused, RosterRefused::Roster(RosterError::Expired(4))));
    }

    #[test]
    fn a_round_stays_joined_after_a_restart_and_a_damaged_file_is_not_taken_for_none() {
        let folder = tempfile::tempdir().unwrap();
        let round = |round| SeenRound { round, roster: 2 };
        let mut state = DeviceState::open(folder.path()).unwrap();
        assert_eq!(state.last_round(&[7; 32]), None);
        state.join([7; 32], round(3)).unwrap();
        state.join([7; 32], round(5)).unwrap();
        drop(state);
        let state = DeviceState::open(folder.path()).unwrap();
        assert_eq!((state.last_round(&[7; 32]), state.last_round(&[8; 32])), (Some(round(5)), None));
        drop(state);
        fs::write(folder.path().join("rounds"), b"dfl-sen2").unwrap();
        assert!(matches!(DeviceState::open(folder.path()), Err(StateError::Damaged { .. })));
    }

    #[cfg(unix)]
    #[test]
    fn the_folders_of_a_device_are_private() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let _state = DeviceState::open(&path).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!([mode(&path), mode(&path.join("memory"))], [0o700; 2]);
    }

    #[test]
    fn a_folder_serves_one_process_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let _state = DeviceState::open(folder.path()).unwrap();
        assert!(matches!(DeviceState::open(folder.path()), Err(StateError::InUse { .. })));
    }

    #[test]
    fn a_damaged_mark_is_not_taken_for_none() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("roster.json"), "{\"version\":").unwrap();
        assert!(matches!(DeviceState::open(folder.path()), Err(StateError::Damaged { .. })));
    }
}
