//! An append-only log of the messages that a server sent to a device. Each line contains the hash
//! of the previous one.
//!
//! Two owners who compare their transcripts can check that the server sent both the same data: the
//! roster of a version, and the parameters, question, cohort and survivors of a round. The log
//! contains hashes and counts, and nothing that depends on the device's data.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use deltafl_wire::identity::{from_hex, hex};
use serde::{Deserialize, Serialize};

/// The reason for which a transcript is invalid.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TranscriptError {
    /// The file system failed.
    #[error("{path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The error reported by the file system.
        source: io::Error,
    },
    /// A line was changed, removed or inserted.
    #[error("{path}, line {line}: the hash of the previous line does not match")]
    Broken {
        /// The file.
        path: PathBuf,
        /// The line number, starting at 1.
        line: u64,
    },
}

/// A BLAKE3 hash or a SHA-256 digest, in hexadecimal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(pub [u8; 32]);

impl From<blake3::Hash> for Digest {
    fn from(hash: blake3::Hash) -> Self {
        Self(*hash.as_bytes())
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        hex(&digest.0)
    }
}

impl TryFrom<String> for Digest {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        from_hex(&text).map(Self).ok_or("expected 64 hexadecimal digits")
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An event that a device records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum TranscriptEvent {
    /// A roster newer than all previous ones.
    Roster {
        /// Its version.
        version: u64,
        /// Its hash.
        hash: Digest,
        /// The version and hash of its predecessor in the log of the authority.
        #[serde(default)]
        predecessor: Option<(u64, Digest)>,
    },
    /// A roster signed by the authority that the device refused, because it is older than or
    /// different from a known one.
    RosterRefused {
        /// Its version.
        version: u64,
        /// Its hash.
        hash: Digest,
        /// The reason.
        reason: String,
    },
    /// A key set-up that the device joined.
    Joined {
        /// The server's session and the number of the set-up in it.
        setup: (String, u64),
        /// The version of the roster in force.
        roster: u64,
        /// Devices invited.
        cohort: u32,
        /// The digest of the round's parameters. Every signature covers it.
        params: Digest,
    },
    /// The devices drawn for a key set-up and those left out, if the roster requires drawn cohorts.
    Drawn {
        /// The server's session and the number of the set-up in it.
        setup: (String, u64),
        /// The number of members and the hash of their numbers.
        members: (usize, Digest),
        /// The number of devices drawn up to the last member.
        drawn: usize,
        /// The drawn devices that are not members, because the server reported them unreachable.
        left_out: usize,
    },
    /// A question for this device.
    Asked {
        /// The server's session and the number of the set-up in it.
        setup: (String, u64),
        /// The number of the sum within the set-up.
        slot: u32,
        /// The seed of the run, and t.
        round: (u64, u64),
        /// The hash of the question. Every signature covers it.
        question: Digest,
        /// The hashes of the parameters from which the device trains.
        trained: Vec<Digest>,
        /// The number of active devices and the hash of their numbers.
        active: (usize, Digest),
    },
    /// The devices whose answers are in a sum, as sent by the server before the device signed.
    Survivors {
        /// The server's session and the number of the set-up in it.
        setup: (String, u64),
        /// The number of the sum within the set-up.
        slot: u32,
        /// The number of survivors and the hash of their numbers.
        survivors: (usize, Digest),
    },
    /// The device refused a request of the server.
    Refused {
        /// The server's session and the number of the set-up in it.
        setup: (String, u64),
        /// The reason.
        reason: String,
    },
}

/// A line of the log.
#[derive(Serialize, Deserialize)]
struct TranscriptLine {
    /// The hash of the previous line, or zeros in the first.
    previous: Digest,
    /// Seconds since 1970, by the device's clock.
    at: u64,
    #[serde(flatten)]
    event: TranscriptEvent,
}

/// An append-only log. Without a file it stores only the hash of its last line.
#[derive(Debug, Default)]
pub struct Transcript {
    file: Option<LogFile>,
    head: Digest,
}

#[derive(Debug)]
struct LogFile {
    path: PathBuf,
    file: File,
    /// The number of bytes of complete lines.
    len: u64,
}

impl LogFile {
    /// Writes a line. If the disk is full, a partial line is removed so that the next line does not
    /// continue it.
    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        let written = self.file.write_all(line).and_then(|()| self.file.sync_data());
        match written {
            Ok(()) => self.len += line.len() as u64,
            Err(_) => {
                self.file.set_len(self.len)?;
                self.file.seek(SeekFrom::End(0))?;
            }
        }
        written
    }
}

impl Transcript {
    /// Opens or creates the log in a file. A last line that a crash truncated is removed. A log
    /// with an invalid hash chain is an error.
    pub fn open(path: &Path) -> Result<Self, TranscriptError> {
        let io = io_error(path);
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).map_err(&io)?;
        let mut text = Vec::new();
        file.read_to_end(&mut text).map_err(&io)?;
        let whole = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
        let (head, _) = parse(path, &text[..whole])?;
        file.set_len(whole as u64).map_err(&io)?;
        file.seek(SeekFrom::End(0)).map_err(&io)?;
        let file = LogFile { path: path.to_owned(), file, len: whole as u64 };
        Ok(Self { file: Some(file), head })
    }

    /// Returns the events of a log and the hash of its last line. The file is not changed.
    pub fn read(path: &Path) -> Result<(Digest, Vec<TranscriptEvent>), TranscriptError> {
        let text = std::fs::read(path).map_err(io_error(path))?;
        let whole = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
        parse(path, &text[..whole])
    }

    /// Returns the hash of the last line, which identifies the whole log.
    pub fn head(&self) -> Digest {
        self.head
    }

    /// Appends an event with the time since 1970. It is on disk when this returns.
    pub(super) fn append(&mut self, event: TranscriptEvent, at: Duration) -> Result<(), TranscriptError> {
        let at = at.as_secs();
        let line = TranscriptLine { previous: self.head, at, event };
        let mut text = serde_json::to_vec(&line).expect("text and numbers serialise to JSON");
        let head = blake3::hash(&text).into();
        if let Some(file) = &mut self.file {
            text.push(b'\n');
            file.append(&text).map_err(io_error(&file.path))?;
        }
        self.head = head;
        Ok(())
    }
}

fn parse(path: &Path, text: &[u8]) -> Result<(Digest, Vec<TranscriptEvent>), TranscriptError> {
    let mut head = Digest::default();
    let mut events = Vec::new();
    for (number, text) in (1..).zip(text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty())) {
        let broken = || TranscriptError::Broken { path: path.to_owned(), line: number };
        let line: TranscriptLine = serde_json::from_slice(text).map_err(|_| broken())?;
        if line.previous != head {
            return Err(broken());
        }
        head = blake3::hash(text).into();
        events.push(line.event);
    }
    Ok((head, events))
}

fn io_error(path: &Path) -> impl Fn(io::Error) -> TranscriptError + use<> {
    let path = path.to_owned();
    move |source| TranscriptError::Io { path: path.clone(), source }
}

/// Two different records of the same subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The subject.
    pub about: String,
    /// The record of the first device.
    pub one: String,
    /// The record of the second device.
    pub other: String,
}

/// Returns the records that differ between two devices or within one device, and the number of
/// subjects that both recorded. An honest server causes no conflict, because all devices of a round
/// receive the same messages.
pub fn conflicts(one: &[TranscriptEvent], other: &[TranscriptEvent]) -> (usize, Vec<Conflict>) {
    let (mut found, mut common) = (Vec::new(), 0);
    let mut seen: BTreeMap<String, (String, bool)> = BTreeMap::new();
    for (events, first) in [(one, true), (other, false)] {
        for (about, shown) in events.iter().flat_map(claims) {
            match seen.get(&about) {
                None => drop(seen.insert(about, (shown, first))),
                Some((before, of_first)) => {
                    common += usize::from(first != *of_first);
                    if *before != shown {
                        found.push(Conflict { about, one: before.clone(), other: shown });
                    }
                }
            }
        }
    }
    (common, found)
}

/// Returns the subjects of an event and their values, which must be the same for all devices.
fn claims(event: &TranscriptEvent) -> Vec<(String, String)> {
    let of_set = |(devices, digest): &(usize, Digest)| format!("{devices} devices, {digest}");
    let of_slot =
        |(session, setup): &(String, u64), slot| format!("sum {slot} of set-up {setup} of {session}");
    match event {
        TranscriptEvent::Roster { version, hash, predecessor } => {
            let rosters = [(*version, *hash)].into_iter().chain(*predecessor);
            rosters.map(|(version, hash)| (format!("roster {version}"), hash.to_string())).collect()
        }
        TranscriptEvent::RosterRefused { version, hash, .. } => {
            vec![(format!("roster {version}"), hash.to_string())]
        }
        TranscriptEvent::Joined { setup: (session, setup), roster, cohort, params } => {
            let shown = format!("roster {roster}, cohort of {cohort}, {params}");
            vec![(format!("set-up {setup} of {session}"), shown)]
        }
        TranscriptEvent::Drawn { setup: (session, setup), members, drawn, left_out } => {
            let shown = format!("{}, {left_out} of {drawn} left out", of_set(members));
            vec![(format!("the members of set-up {setup} of {session}"), shown)]
        }
        TranscriptEvent::Asked { setup, slot, round: (seed, round), question, trained, active } => {
            let sum = of_slot(setup, slot);
            let mut claims = vec![
                (format!("the question of {sum}"), question.to_string()),
                (format!("the devices asked for {sum}"), of_set(active)),
            ];
            if !trained.is_empty() {
                let hashes: Vec<String> = trained.iter().map(Digest::to_string).collect();
                claims.push((format!("the parameters of seed {seed}, round {round}"), hashes.join(" ")));
            }
            claims
        }
        TranscriptEvent::Survivors { setup, slot, survivors } => {
            vec![(format!("the survivors of {}", of_slot(setup, slot)), of_set(survivors))]
        }
        TranscriptEvent::Refused { .. } => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1_700_000_000);

    fn survivors(slot: u32, digest: u8) -> TranscriptEvent {
        TranscriptEvent::Survivors {
            setup: ("aa".to_owned(), 3),
            slot,
            survivors: (40, Digest([digest; 32])),
        }
    }

    fn asked(round: u64, params: u8, question: u8) -> TranscriptEvent {
        TranscriptEvent::Asked {
            setup: ("aa".to_owned(), round),
            slot: 0,
            round: (1, round),
            question: Digest([question; 32]),
            trained: vec![Digest([params; 32])],
            active: (40, Digest([9; 32])),
        }
    }

    #[test]
    fn a_transcript_goes_on_after_a_restart_and_a_half_written_line_is_cut_off() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.jsonl");
        let mut log = Transcript::open(&path).unwrap();
        log.append(survivors(0, 1), NOW).unwrap();
        log.append(survivors(1, 2), NOW).unwrap();
        let head = log.head();
        drop(log);
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"{\"previous\":\"00").unwrap();
        let mut log = Transcript::open(&path).unwrap();
        assert_eq!(log.head(), head);
        log.append(survivors(2, 3), NOW).unwrap();
        let (head, events) = Transcript::read(&path).unwrap();
        assert_eq!((head, events), (log.head(), vec![survivors(0, 1), survivors(1, 2), survivors(2, 3)]));
    }

    #[test]
    fn a_line_that_was_changed_left_out_or_put_in_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.jsonl");
        let mut log = Transcript::open(&path).unwrap();
        for slot in 0..4 {
            log.append(survivors(slot, 1), NOW).unwrap();
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let changed = text.replacen("\"slot\":1", "\"slot\":7", 1);
        let left_out = [lines[0], lines[2], lines[3], ""].join("\n");
        let put_in = [lines[0], lines[1], lines[1], lines[2], ""].join("\n");
        for (text, line) in [(changed, 3), (left_out, 2), (put_in, 3)] {
            std::fs::write(&path, text).unwrap();
            let found = Transcript::read(&path).unwrap_err();
            assert!(matches!(found, TranscriptError::Broken { line: at, .. } if at == line), "{found}");
        }
    }

    #[test]
    fn two_devices_that_were_shown_the_same_have_no_conflict() {
        let one = [asked(1, 5, 6), survivors(0, 1), asked(2, 6, 7)];
        let other = [asked(1, 5, 6), survivors(0, 1), asked(3, 7, 8)];
        assert_eq!(conflicts(&one, &other), (4, vec![]));
    }

    #[test]
    fn two_views_of_the_survivors_the_question_the_parameters_or_the_roster_show() {
        let roster =
            |hash| TranscriptEvent::Roster { version: 4, hash: Digest([hash; 32]), predecessor: None };
        let next = |hash| TranscriptEvent::Roster {
            version: 5,
            hash: Digest([9; 32]),
            predecessor: Some((4, Digest([hash; 32]))),
        };
        for (one, other, about) in [
            (survivors(0, 1), survivors(0, 2), "the survivors of"),
            (asked(1, 5, 6), asked(1, 5, 7), "the question of"),
            (asked(1, 5, 6), asked(1, 6, 6), "the parameters of seed 1, round 1"),
            (roster(1), roster(2), "roster 4"),
            (roster(1), next(2), "roster 4"),
        ] {
            let (_, found) = conflicts(std::slice::from_ref(&one), std::slice::from_ref(&other));
            assert!(found.len() == 1 && found[0].about.starts_with(about), "{found:?}");
            // A single device that recorded both detects the conflict on its own.
            assert_eq!(conflicts(&[one, other], &[]).1, found);
        }
    }
}
