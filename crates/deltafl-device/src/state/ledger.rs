//! The ledger of answered rounds: a device answers each round of each run once.
//!
//! A server that receives two sums over cohorts that differ in one device can compute that device's
//! answer from the difference. Within a round a device therefore answers
//!
//! - for one track and at one w,
//! - one question for updates,
//! - the questions of one search for a quantile, at most [`SEARCH_STEPS`] of them and all before
//!   the update,
//! - one question about its held-out examples.
//!
//! The key of a note is (authority, run, round). The note contains the track, the hash of w and the
//! answers given so far. The device writes it to disk before it computes an answer, so that a crash
//! does not erase it.
//!
//! # Why w is not part of the key
//!
//! Two vectors that differ in the last bit of one entry have different hashes, but represent
//! practically the same model. Losses, updates and evaluations at both are practically equal. Many
//! distant w are functionally equal too. Such a change therefore defeats any ledger that compares
//! w, a hash of w or a distance between params. Here the first question of a round fixes w for that
//! round. A server that changes w, by however little, receives no second answer in the round. It
//! can only ask in another round, and then it has one sum per round, like an honest server. This
//! ledger does not bound the information in the sums of many rounds. `rounds_between` and the
//! secret batches of a device make that information less exact. Noise bounds it.
//!
//! # Runs
//!
//! The roster, signed by the authority, contains the number of runs. Run numbers only increase: a
//! device that has answered in a run answers in no earlier one. A server that uses another run,
//! seed or session therefore receives no second answer to a round. The exception is a run that the
//! authority has signed, which then counts as one more round.
//!
//! # A search for a quantile
//!
//! A search consists of the sums that lead to one η: usually two histograms, and one more if the
//! losses have left the range. Alternatively it has twelve halvings, or up to about seventy steps
//! by means. All of them are at the w of the round and for its track. If the server claims that a
//! device has left between two steps, it learns the bin of that loss in the later step, or its
//! distance from μ. It learns this for a loss at one w per round, never for an update.
//!
//! # Restarts
//!
//! Within the newest [`OPEN_ROUNDS`] of a run, rounds may be answered in any order. A server that
//! was restored from an old state can thus repeat a round with devices that have not answered it.
//! Earlier rounds are closed, and their notes are removed when there are many. The size of the file
//! is bounded.

mod book;
mod note;

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use self::book::{Book, RoundAnswers};
use self::note::{HEADER, NOTE, Name, Note, cut};
use super::StateError;
use super::answers::CountedRound;

/// The maximum number of sums in one search for a quantile. No search over finite losses needs
/// more.
const SEARCH_STEPS: u32 = 80;
/// The number of rounds before the newest of a run that may still be answered. A server that was
/// restored from an old state repeats them.
const OPEN_ROUNDS: u64 = 1024;
/// The minimum number of notes before the file is rewritten.
const FEW_NOTES: usize = 8192;

/// A round of a run under the device's authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LedgerKey {
    /// The verifying key of the authority.
    pub(crate) authority: [u8; 32],
    pub(crate) run: u64,
    pub(crate) round: u64,
    /// The number of rounds that the device skips between two answers.
    pub(crate) rounds_between: u64,
}

/// The track for which a device answers in a round, and its w.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServedTrack {
    /// The number of tracks among which the cohort is divided, or 1 if it is not divided.
    pub(crate) divided_among: u32,
    pub(crate) track: u32,
    /// The hash of w; `None` if the question has no query of this track.
    pub(crate) params: Option<blake3::Hash>,
}

/// An answer that a device is about to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// A step of a search for a quantile of the losses.
    Losses,
    /// A local update.
    Update,
    /// Histograms of the measures of its held-out examples.
    Evaluation,
}

/// The reason for which a device does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AnswerRefused {
    #[error("this device has answered in run {newest}, and answers in run {run} no more")]
    OldRun { run: u64, newest: u64 },
    #[error(
        "round {round} of this run is too long ago: this device answers from round {open} on. A run that begins anew needs \
         another run signed by the authority"
    )]
    Closed { round: u64, open: u64 },
    #[error(
        "this device has answered in round {answered}, and its owner wants {between} rounds between two answers"
    )]
    TooSoon { answered: u64, between: u64 },
    #[error("this device answers for another track in round {0}")]
    OtherTrack(u64),
    #[error("this device has answered at other params in round {0}")]
    OtherParams(u64),
    #[error("this device has given an update in round {0} already")]
    Update(u64),
    #[error("this device has answered {SEARCH_STEPS} questions about its loss in round {0} already")]
    Losses(u64),
    #[error("this device has answered about the examples that it holds out in round {0} already")]
    Evaluation(u64),
    #[error("round {0} is divided among tracks, and this device has answered in it among other devices")]
    OtherMembers(u64),
    #[error("round {0} is divided among tracks, and this device does not remember its earlier questions")]
    Forgotten(u64),
}

/// The notes of a device, on disk or in memory.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    path: Option<PathBuf>,
    books: HashMap<Name, Book>,
    /// The number of notes in the file, including replaced ones.
    notes: usize,
    /// The number of notes after the last rewrite of the file.
    settled: usize,
}

impl Ledger {
    /// Opens or creates the ledger in a file. A note that a crash truncated at the end of the file
    /// is removed, because the device had not answered yet. Damage before a complete note is an
    /// error, because the device would forget an answer.
    pub(crate) fn open(path: &Path) -> Result<Self, StateError> {
        let bytes = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            Err(source) => return Err(super::io_error(path)(source)),
        };
        let mut ledger = Self { path: Some(path.to_owned()), ..Self::default() };
        if bytes.is_empty() {
            ledger.rewrite()?;
            return Ok(ledger);
        }
        let damaged = || StateError::Damaged { path: path.to_owned() };
        let notes = bytes.strip_prefix(&HEADER).ok_or_else(damaged)?;
        let mut whole = true;
        for bytes in notes.chunks_exact(NOTE) {
            match Note::from_bytes(bytes) {
                Some(_) if !whole => return Err(damaged()),
                Some(note) => {
                    ledger.take(note);
                    ledger.notes += 1;
                }
                None => whole = false,
            }
        }
        if NOTE * (1 + ledger.notes) < bytes.len() {
            let cut = |file: File| {
                file.set_len((NOTE * (1 + ledger.notes)) as u64)?;
                file.sync_data()
            };
            let file = OpenOptions::new().write(true).open(path);
            file.and_then(cut).map_err(super::io_error(path))?;
        }
        ledger.settle()?;
        Ok(ledger)
    }

    /// Returns the track for which the device has answered in this round.
    pub(crate) fn track(&self, key: &LedgerKey) -> Option<u32> {
        let book = self.books.get(&cut(&blake3::hash(&key.authority)))?;
        book.rounds.get(&key.round).filter(|_| book.run == key.run).map(|answers| answers.track)
    }

    /// Returns a round and the number of its answers.
    pub(super) fn counted(&self, key: &LedgerKey) -> CountedRound {
        let book = self.books.get(&cut(&blake3::hash(&key.authority)));
        let answers = book.and_then(|book| book.rounds.get(&key.round));
        CountedRound { run: key.run, round: key.round, answers: answers.map_or(0, RoundAnswers::count) }
    }

    /// Returns `true` if the ledger contains all of these answers, or has closed their round.
    pub(super) fn contains(&self, authority: &[u8; 32], counted: CountedRound) -> bool {
        let CountedRound { run, round, answers } = counted;
        let book = self.books.get(&cut(&blake3::hash(authority)));
        let known = book.filter(|book| book.run >= run).map_or(0, |book| match book.rounds.get(&round) {
            _ if book.run > run || round < book.open => answers,
            known => known.map_or(0, RoundAnswers::count),
        });
        known >= answers
    }

    /// Records all claims, or none if any is refused. An empty list of claims records the track.
    /// The note is on disk when this returns.
    pub(crate) fn claim(
        &mut self,
        key: &LedgerKey,
        served: ServedTrack,
        claims: &[Claim],
    ) -> Result<Result<(), AnswerRefused>, StateError> {
        let authority = cut(&blake3::hash(&key.authority));
        let book = self.books.get(&authority).cloned().unwrap_or_default();
        let new = match book.with(key, served, claims) {
            Ok(new) => new,
            Err(answered) => return Ok(Err(answered)),
        };
        let Some(answers) = new.rounds.get(&key.round) else { return Ok(Ok(())) };
        let mut notes = vec![Note::Answers { authority, run: key.run, round: key.round, answers: *answers }];
        if new.run != book.run {
            notes.insert(0, Note::Open { authority, run: new.run, round: new.open });
        }
        if let Some(path) = &self.path {
            let bytes: Vec<u8> = notes.iter().flat_map(|note| note.to_bytes()).collect();
            append(path, &bytes).map_err(super::io_error(path))?;
        }
        self.notes += notes.len();
        notes.into_iter().for_each(|note| self.take(note));
        self.settle()?;
        Ok(Ok(()))
    }

    /// Applies a note. This is idempotent.
    fn take(&mut self, note: Note) {
        let (authority, run) = match note {
            Note::Answers { authority, run, .. } | Note::Open { authority, run, .. } => (authority, run),
        };
        let book = self.books.entry(authority).or_default();
        if run > book.run {
            *book = Book { run, ..Book::default() };
        }
        if run < book.run {
            return;
        }
        match note {
            Note::Answers { round, answers, .. } => {
                book.rounds.insert(round, answers);
                let open = round.saturating_sub(OPEN_ROUNDS);
                book.open = book.open.max(open);
            }
            Note::Open { round, .. } => book.open = book.open.max(round),
        }
        let open = book.open;
        book.rounds.retain(|round, _| *round >= open);
    }

    /// Removes the notes of closed rounds if there are enough of them.
    fn settle(&mut self) -> Result<(), StateError> {
        if self.notes < FEW_NOTES.max(2 * self.settled) {
            return Ok(());
        }
        self.rewrite()?;
        self.settled = self.notes;
        Ok(())
    }

    /// Rewrites the file with each note once. After a crash the file is either the old one or the
    /// new one.
    fn rewrite(&mut self) -> Result<(), StateError> {
        let notes: Vec<Note> =
            self.books.iter().flat_map(|(authority, book)| book.notes(*authority)).collect();
        self.notes = notes.len();
        let Some(path) = &self.path else { return Ok(()) };
        let mut bytes = HEADER.to_vec();
        notes.iter().for_each(|note| bytes.extend(note.to_bytes()));
        super::replace(path, &bytes)
    }
}

/// Appends notes. If the disk is full, a partial write is removed.
fn append(path: &Path, notes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().append(true).open(path)?;
    let before = file.metadata()?.len();
    let written = file.write_all(notes).and_then(|()| file.sync_data());
    if written.is_err() {
        file.set_len(before)?;
    }
    written
}

#[cfg(test)]
mod tests {
    use super::Claim::{Evaluation, Losses, Update};
    use super::*;

    fn key(run: u64, round: u64) -> LedgerKey {
        LedgerKey { authority: [7; 32], run, round, rounds_between: 0 }
    }

    fn at(w: u8) -> ServedTrack {
        ServedTrack { divided_among: 1, track: 0, params: Some(blake3::hash(&[w])) }
    }

    fn claimed(ledger: &mut Ledger, round: u64, w: u8, claims: &[Claim]) -> Result<(), AnswerRefused> {
        ledger.claim(&key(0, round), at(w), claims).unwrap()
    }

    #[test]
    fn a_round_is_answered_once_whatever_w_is_and_even_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        let mut ledger = Ledger::open(&path).unwrap();
        assert_eq!(claimed(&mut ledger, 0, 1, &[Losses]), Ok(()));
        assert_eq!(claimed(&mut ledger, 0, 1, &[Losses]), Ok(()), "the second step of the search");
        assert_eq!(claimed(&mut ledger, 0, 2, &[Losses]), Err(AnswerRefused::OtherParams(0)));
        drop(ledger);
        let mut ledger = Ledger::open(&path).unwrap();
        assert_eq!(claimed(&mut ledger, 0, 2, &[Update]), Err(AnswerRefused::OtherParams(0)));
        assert_eq!(claimed(&mut ledger, 0, 1, &[Update]), Ok(()));
        drop(ledger);
        let mut ledger = Ledger::open(&path).unwrap();
        for w in [1, 2] {
            assert!(claimed(&mut ledger, 0, w, &[Update]).is_err(), "{w}");
            assert!(claimed(&mut ledger, 0, w, &[Losses]).is_err(), "no loss after the update: {w}");
        }
        assert_eq!(claimed(&mut ledger, 1, 2, &[Update]), Ok(()), "the next round is another question");
    }

    #[test]
    fn one_question_about_held_out_examples_is_answered_in_a_round() {
        let mut ledger = Ledger::default();
        assert_eq!(claimed(&mut ledger, 0, 1, &[Evaluation]), Ok(()));
        assert_eq!(claimed(&mut ledger, 0, 1, &[Evaluation]), Err(AnswerRefused::Evaluation(0)));
        assert_eq!(claimed(&mut ledger, 0, 2, &[Evaluation]), Err(AnswerRefused::OtherParams(0)));
        assert_eq!(claimed(&mut ledger, 0, 1, &[Update]), Ok(()));
        assert_eq!(claimed(&mut ledger, 1, 1, &[Evaluation]), Ok(()));
    }

    #[test]
    fn a_search_ends_and_a_refused_question_leaves_nothing_behind() {
        let mut ledger = Ledger::default();
        for _ in 0..SEARCH_STEPS {
            assert_eq!(claimed(&mut ledger, 0, 1, &[Losses]), Ok(()));
        }
        assert_eq!(claimed(&mut ledger, 0, 1, &[Update, Losses]), Err(AnswerRefused::Losses(0)));
        assert_eq!(claimed(&mut ledger, 0, 1, &[Update]), Ok(()));
    }

    #[test]
    fn a_device_serves_one_track_in_a_round() {
        let mut ledger = Ledger::default();
        let of = |divided_among, track| ServedTrack { divided_among, track, ..at(1) };
        let mut asked = |round, served| ledger.claim(&key(0, round), served, &[Losses]).unwrap();
        assert_eq!(asked(0, of(3, 1)), Ok(()));
        assert_eq!(asked(0, of(3, 2)), Err(AnswerRefused::OtherTrack(0)));
        assert_eq!(
            asked(0, of(2, 1)),
            Err(AnswerRefused::OtherTrack(0)),
            "nor is it drawn again among others"
        );
        assert_eq!(asked(1, of(3, 2)), Ok(()));
        assert_eq!((ledger.track(&key(0, 0)), ledger.track(&key(0, 2))), (Some(1), None));
        // A question without a query for its track still fixes the track.
        let nothing = ServedTrack { params: None, ..of(3, 0) };
        assert_eq!(ledger.claim(&key(0, 2), nothing, &[]).unwrap(), Ok(()));
        assert_eq!(ledger.track(&key(0, 2)), Some(0));
        assert_eq!(ledger.claim(&key(0, 2), of(3, 0), &[Update]).unwrap(), Ok(()));
    }

    #[test]
    fn runs_only_grow_and_authorities_do_not_mix() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        let mut ledger = Ledger::open(&path).unwrap();
        let asked = |ledger: &mut Ledger, key: LedgerKey| ledger.claim(&key, at(1), &[Update]).unwrap();
        assert_eq!(asked(&mut ledger, key(0, 5)), Ok(()));
        assert_eq!(asked(&mut ledger, key(2, 5)), Ok(()));
        drop(ledger);
        let mut ledger = Ledger::open(&path).unwrap();
        for run in [0, 1] {
            assert_eq!(asked(&mut ledger, key(run, 9)), Err(AnswerRefused::OldRun { run, newest: 2 }));
        }
        assert_eq!(asked(&mut ledger, key(2, 5)), Err(AnswerRefused::Update(5)));
        let other = LedgerKey { authority: [8; 32], ..key(0, 5) };
        assert_eq!(asked(&mut ledger, other), Ok(()));
        assert_eq!(asked(&mut ledger, other), Err(AnswerRefused::Update(5)));
    }

    #[test]
    fn rounds_lie_between_two_answers_where_the_owner_insists() {
        let mut ledger = Ledger::default();
        let mut asked = |run, round| {
            let key = LedgerKey { rounds_between: 3, ..key(run, round) };
            ledger.claim(&key, at(1), &[Update]).unwrap()
        };
        assert_eq!(asked(0, 10), Ok(()));
        for round in [7, 8, 11, 13] {
            assert_eq!(asked(0, round), Err(AnswerRefused::TooSoon { answered: 10, between: 3 }), "{round}");
        }
        assert_eq!(asked(0, 14), Ok(()));
        assert_eq!(asked(0, 6), Ok(()), "a server that was restored asks an earlier round");
        assert_eq!(
            asked(1, 2),
            Err(AnswerRefused::Closed { round: 2, open: 3 }),
            "a new run is no way around it"
        );
        assert_eq!(asked(1, 3), Ok(()));
    }

    #[test]
    fn rounds_of_long_ago_are_closed_and_the_file_stays_short() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        let mut ledger = Ledger { path: None, ..Ledger::default() };
        let next = 3 * OPEN_ROUNDS;
        for round in 0..next {
            assert_eq!(claimed(&mut ledger, round, 1, &[Losses]), Ok(()));
            assert_eq!(claimed(&mut ledger, round, 1, &[Update]), Ok(()));
        }
        let open = next - 1 - OPEN_ROUNDS;
        for round in [0, open - 1] {
            assert_eq!(claimed(&mut ledger, round, 2, &[Update]), Err(AnswerRefused::Closed { round, open }));
        }
        assert_eq!(claimed(&mut ledger, open, 1, &[Update]), Err(AnswerRefused::Update(open)));
        assert_eq!(claimed(&mut ledger, next, 1, &[Update]), Ok(()));
        ledger.path = Some(path.clone());
        ledger.rewrite().unwrap();
        assert!(std::fs::metadata(&path).unwrap().len() <= NOTE as u64 * (OPEN_ROUNDS + 3));
        let books = ledger.books.clone();
        drop(ledger);
        assert_eq!(Ledger::open(&path).unwrap().books, books);
    }

    #[test]
    fn a_file_of_something_else_is_not_taken_for_a_ledger() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        for other in [&b"x"[..], &[0; 36], &[7; 400]] {
            std::fs::write(&path, other).unwrap();
            assert!(matches!(Ledger::open(&path), Err(StateError::Damaged { .. })));
        }
    }

    #[test]
    fn a_note_cut_short_is_cut_off_and_a_damaged_one_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        let mut ledger = Ledger::open(&path).unwrap();
        for round in 0..3 {
            claimed(&mut ledger, round, 1, &[Update]).unwrap();
        }
        drop(ledger);
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 5]).unwrap();
        let mut ledger = Ledger::open(&path).unwrap();
        assert_eq!(claimed(&mut ledger, 1, 1, &[Update]), Err(AnswerRefused::Update(1)));
        assert_eq!(
            claimed(&mut ledger, 2, 1, &[Update]),
            Ok(()),
            "it was not yet answered when the kill came"
        );
        drop(ledger);
        let mut damaged = bytes;
        damaged[NOTE + 7] ^= 1;
        std::fs::write(&path, &damaged).unwrap();
        assert!(matches!(Ledger::open(&path), Err(StateError::Damaged { .. })));
    }
}
