//! What a device has answered: it answers nothing twice.
//!
//! A server that asks the same thing of two cohorts that differ in one device reads that device off the difference of the sums. So
//! a device answers for updates at one w in one question of a round, once over a range about its losses, and at one w about its
//! losses no more than [`RANGES`] times, ever. Of the examples that it holds out it tells each measure once at one w, ever. It notes what it is about to answer on disk before it computes the answer, so
//! that no kill makes it forget. Updates for several thresholds at one w tell of the devices between them: one question may
//! ask for [`LEVELS`].
//!
//! The notes of rounds that lie [`OPEN_ROUNDS`] behind the newest round of their run are thrown away once there are many, and
//! those rounds are closed: no question about them is answered any more. So whatever was refused stays refused. What is kept
//! for good is a note for each run and one for each w at which losses were told.

mod note;

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use self::note::{HEADER, NOTE, Name, Note, cut};
use super::StateError;

/// Histograms that a device gives at one w: two levels for a few θ, and a few rounds that came to nothing.
const RANGES: u32 = 64;
/// Thresholds for which one question may ask an update at one w: all tracks of a run start from the same.
const LEVELS: usize = 4;
/// Steps of a quantile by means at one w.
const MEAN_STEPS: u32 = 512;
/// Rounds behind the newest of a run that may still be asked about: a server that was restored from an old state asks them.
const OPEN_ROUNDS: u64 = 1024;
/// Fewer notes than these are not worth throwing any away.
const FEW_NOTES: usize = 16_384;

/// Something that a device is about to answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Claim {
    /// A local update from w in round t of a run.
    Update { params: blake3::Hash, seed: u64, round: u64 },
    /// A histogram of losses at w in round t of a run.
    Histogram { params: blake3::Hash, seed: u64, round: u64, lower: f64, upper: f64, bins: u32 },
    /// A histogram of a measure of the examples that it holds out, at w in round t of a run.
    Evaluation { params: blake3::Hash, seed: u64, round: u64, measure: &'static str },
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
    #[error(
        "round {round} of this run is too long ago: this device answers from round {open} on. A run that begins anew wants \
         another seed"
    )]
    Closed { round: u64, open: u64 },
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
    path: Option<PathBuf>,
    book: Book,
    /// Notes in the file, those included that later ones replace.
    notes: usize,
    /// How many there were when none could be thrown away.
    settled: usize,
}

/// What the notes come to.
#[derive(Clone, Debug, Default, PartialEq)]
struct Book {
    /// Seed and round of each answer.
    answers: HashMap<Name, (u64, u64)>,
    /// How often losses were told at a w.
    told: HashMap<Name, u32>,
    /// The first open round of a run, by its seed.
    open: HashMap<u64, u64>,
}

impl Ledger {
    /// The ledger in a file, which is made if it is not there. What a kill left half written at the end is cut off: it was not
    /// answered yet. Damage before a whole note is an error, because whatever it forbade would be answered again.
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
            match Note::of(bytes) {
                Some(_) if !whole => return Err(damaged()),
                Some(note) => {
                    ledger.book.take(note);
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

    /// Notes that all of this is about to be answered; or nothing, when part of it was answered before.
    pub(crate) fn claim(&mut self, claims: &[Claim]) -> Result<Result<(), Answered>, StateError> {
        let new = match self.book.new_notes(claims) {
            Ok(new) => new,
            Err(answered) => return Ok(Err(answered)),
        };
        if let Some(path) = &self.path {
            let bytes: Vec<u8> = new.iter().flat_map(|note| note.to_bytes()).collect();
            append(path, &bytes).map_err(super::io_error(path))?;
        }
        self.notes += new.len();
        new.into_iter().for_each(|note| self.book.take(note));
        self.settle()?;
        Ok(Ok(()))
    }

    /// Throws away the notes of rounds long ago, and closes the rounds, if that is worth the work.
    fn settle(&mut self) -> Result<(), StateError> {
        if self.notes < FEW_NOTES.max(2 * self.settled) {
            return Ok(());
        }
        self.book.close_old_rounds();
        self.rewrite()?;
        self.settled = self.notes;
        Ok(())
    }

    /// Writes the file anew, each note once. A kill leaves the old file or the new one.
    fn rewrite(&mut self) -> Result<(), StateError> {
        let notes = self.book.notes();
        self.notes = notes.len();
        let Some(path) = &self.path else { return Ok(()) };
        let mut bytes = HEADER.to_vec();
        notes.iter().for_each(|note| bytes.extend(note.to_bytes()));
        super::replace(path, &bytes)
    }
}

impl Book {
    /// Takes in a note; one that is taken in twice changes nothing.
    fn take(&mut self, note: Note) {
        match note {
            Note::Answer { name, seed, round } => _ = self.answers.insert(name, (seed, round)),
            Note::Told { params, times } => {
                let known = self.told.entry(params).or_default();
                *known = times.max(*known);
            }
            Note::Open { seed, round } => {
                let known = self.open.entry(seed).or_default();
                *known = round.max(*known);
            }
        }
    }

    /// The notes of a question that is about to be answered.
    fn new_notes(&self, claims: &[Claim]) -> Result<Vec<Note>, Answered> {
        let mut new: Vec<Note> = Vec::with_capacity(2 * claims.len());
        for (i, claim) in claims.iter().enumerate() {
            let (name, (seed, round)) = (claim.name(), claim.run());
            let note = Note::Answer { name, seed, round };
            if new.contains(&note) {
                let levels = claims[..=i].iter().filter(|other| other.name() == name).count();
                match claim {
                    Claim::Update { .. } if levels > LEVELS => return Err(Answered::Levels),
                    // Tracks that stand at one w ask the same: one answer, told twice in one question.
                    _ => continue,
                }
            }
            let open = self.open.get(&seed).copied().unwrap_or(0);
            if round < open {
                return Err(Answered::Closed { round, open });
            }
            if self.answers.contains_key(&name) {
                return Err(match claim {
                    Claim::Update { .. } => Answered::Update(round),
                    Claim::Evaluation { .. } => Answered::Evaluation,
                    _ => Answered::Losses,
                });
            }
            new.push(note);
            if let Some((params, most)) = claim.counted() {
                let before = |note: &Note| match note {
                    Note::Told { params: other, times } if *other == params => Some(*times),
                    _ => None,
                };
                let told = new.iter().filter_map(before).chain(self.told.get(&params).copied()).max();
                let times = told.unwrap_or(0) + 1;
                if times > most {
                    return Err(Answered::Ranges);
                }
                new.push(Note::Told { params, times });
            }
        }
        Ok(new)
    }

    /// Closes the rounds of each run that lie far behind its newest, and forgets what was answered in them.
    fn close_old_rounds(&mut self) {
        let mut newest: HashMap<u64, u64> = HashMap::new();
        for (seed, round) in self.answers.values() {
            let known = newest.entry(*seed).or_default();
            *known = (*round).max(*known);
        }
        for (seed, round) in newest {
            let round = round.saturating_sub(OPEN_ROUNDS);
            if round > 0 {
                self.take(Note::Open { seed, round });
            }
        }
        let open = &self.open;
        self.answers.retain(|_, (seed, round)| open.get(seed).is_none_or(|open| *round >= *open));
    }

    /// All that is known, each thing once.
    fn notes(&self) -> Vec<Note> {
        let open = self.open.iter().map(|(&seed, &round)| Note::Open { seed, round });
        let told = self.told.iter().map(|(&params, &times)| Note::Told { params, times });
        let answers = self.answers.iter().map(|(&name, &(seed, round))| Note::Answer { name, seed, round });
        open.chain(told).chain(answers).collect()
    }
}

impl Claim {
    fn name(&self) -> Name {
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
            // Once at one w, in whatever round.
            Self::Evaluation { params, measure, .. } => {
                hasher.update(b"evaluation").update(params.as_bytes()).update(measure.as_bytes());
            }
            Self::MeanStep { params, seed, round, mu, floor } => {
                hasher.update(b"mean step").update(params.as_bytes());
                hasher.update(&seed.to_le_bytes()).update(&round.to_le_bytes());
                hasher.update(&mu.to_le_bytes()).update(&floor.to_le_bytes());
            }
        }
        cut(&hasher.finalize())
    }

    /// Seed and round of the run that it belongs to.
    fn run(&self) -> (u64, u64) {
        match *self {
            Self::Update { seed, round, .. }
            | Self::Histogram { seed, round, .. }
            | Self::Evaluation { seed, round, .. }
            | Self::MeanStep { seed, round, .. } => (seed, round),
        }
    }

    /// The params at which answers of this kind are counted, and how many there may be.
    fn counted(&self) -> Option<(Name, u32)> {
        match self {
            Self::Update { .. } => None,
            // Its name is kept when its round is closed: a later round may be asked at the same w.
            Self::Evaluation { .. } => Some((self.name(), 1)),
            Self::Histogram { params, .. } => Some((cut(params), RANGES)),
            Self::MeanStep { params, .. } => Some((cut(params), MEAN_STEPS)),
        }
    }
}

/// Appends notes; what a full disk took of them is cut off again.
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
        let evaluation =
            |n: u8, measure| Claim::Evaluation { params: params(n), seed: 1, round: n.into(), measure };
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

    /// Answers an update and a histogram at a w of its own in each of these rounds.
    fn answer(ledger: &mut Ledger, rounds: std::ops::Range<u64>) {
        for round in rounds {
            let w = |track: u8| blake3::hash(&[&round.to_le_bytes()[..], &[track]].concat());
            let claims = [0, 1].map(|track| Claim::Update { params: w(track), seed: 1, round });
            let losses = Claim::Histogram { params: w(0), seed: 1, round, lower: 0.0, upper: 8.0, bins: 64 };
            assert_eq!(ledger.book.new_notes(&claims).map(|notes| notes.len()), Ok(2));
            assert_eq!(claimed(ledger, &claims), Ok(()));
            assert_eq!(claimed(ledger, &[losses]), Ok(()));
        }
    }

    #[test]
    fn rounds_of_long_ago_are_closed_and_leave_a_note_for_each_w() {
        let mut ledger = Ledger::default();
        answer(&mut ledger, 0..20_000);
        let open = ledger.book.open[&1];
        assert!((1..20_000 - OPEN_ROUNDS).contains(&open), "{open}");
        // Every w at which losses were told, and answers of the open rounds, which grow to as many again before they are
        // thrown away.
        assert_eq!(ledger.book.told.len(), 20_000);
        assert!(ledger.notes < 2 * (20_000 + 3 * OPEN_ROUNDS as usize), "{}", ledger.notes);
        assert_eq!(ledger.book.answers.len() as u64, 3 * (20_000 - open));
        // As often as the same questions come, they are refused; what came last is asked about as before.
        let again = |round: u64| Claim::Update {
            params: blake3::hash(&[&round.to_le_bytes()[..], &[0]].concat()),
            seed: 1,
            round,
        };
        for round in [0, open - 1] {
            assert_eq!(claimed(&mut ledger, &[again(round)]), Err(Answered::Closed { round, open }));
        }
        assert_eq!(claimed(&mut ledger, &[again(open)]), Err(Answered::Update(open)));
        assert_eq!(claimed(&mut ledger, &[update(1, 20_000)]), Ok(()));
        let other_run = Claim::Update { params: params(1), seed: 2, round: 0 };
        assert_eq!(claimed(&mut ledger, &[other_run]), Ok(()));
    }

    #[test]
    fn losses_told_in_a_closed_round_count_for_ever() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        let told = |n: u32, round| Claim::Histogram {
            params: params(1),
            seed: 1,
            round,
            lower: 0.0,
            upper: 8.0 + f64::from(n),
            bins: 64,
        };
        let mut ledger = Ledger::open(&path).unwrap();
        for n in 0..RANGES {
            assert_eq!(claimed(&mut ledger, &[told(n, 0)]), Ok(()));
        }
        assert_eq!(claimed(&mut ledger, &[update(2, 5 * OPEN_ROUNDS)]), Ok(()));
        let before = std::fs::metadata(&path).unwrap().len();
        ledger.settled = 0;
        ledger.notes = FEW_NOTES;
        ledger.settle().unwrap();
        let after = std::fs::metadata(&path).unwrap().len();
        // The header, the closed rounds, w, and the answer of the open round are left.
        assert_eq!((before, after), (40 * (1 + 2 * 64 + 1), 40 * 4));
        drop(ledger);
        let mut ledger = Ledger::open(&path).unwrap();
        let open = 4 * OPEN_ROUNDS;
        assert_eq!(claimed(&mut ledger, &[told(0, 0)]), Err(Answered::Closed { round: 0, open }));
        assert_eq!(claimed(&mut ledger, &[told(0, open)]), Err(Answered::Ranges));
        assert_eq!(
            claimed(&mut ledger, &[update(2, 5 * OPEN_ROUNDS)]),
            Err(Answered::Update(5 * OPEN_ROUNDS))
        );
        assert_eq!(claimed(&mut ledger, &[update(2, open)]), Ok(()));
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
        damaged[NOTE + 7] ^= 1;
        std::fs::write(&path, &damaged).unwrap();
        assert!(matches!(Ledger::open(&path), Err(StateError::Damaged { .. })));
    }
}
