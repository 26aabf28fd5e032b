//! The log of the rosters that an authority has signed, as a file that owners can compare.
//!
//! Each line describes one roster: its version, its hash, its predecessor, and the signature of the
//! authority on the hash. The bytes of a roster contain its version and its predecessor, so the
//! hash binds both. The authority appends to its log when it signs. A device appends to its own log
//! when it accepts a roster. A device that was away lacks rosters in between.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::identity::{from_hex, hex};
use crate::roster::{PreviousRoster, Roster, RosterError, SignedRoster};

/// The name of the file in the folder of an authority and in the state of a device.
pub const ROSTER_LOG: &str = "rosters.jsonl";

/// A roster in the log of its authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedRoster {
    /// Its version.
    pub version: u64,
    /// Its hash.
    pub hash: blake3::Hash,
    /// The roster before it, or `None` for the first.
    pub previous: Option<PreviousRoster>,
    /// The public key of the authority.
    pub authority: [u8; 32],
    /// The signature of the authority on the hash.
    pub signature: [u8; 64],
}

/// The reason for which a file is no log of rosters.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RosterLogError {
    /// The file system failed.
    #[error("{path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The error reported by the file system.
        source: io::Error,
    },
    /// A line is malformed, or the authority did not sign it.
    #[error("{path}, line {line}: no roster that the authority signed")]
    Line {
        /// The file.
        path: PathBuf,
        /// The line number, starting at 1.
        line: usize,
    },
    /// Two lines contradict each other: their order, their authority or their predecessors.
    #[error("{path}, line {line}: the roster does not follow the one before")]
    Forked {
        /// The file.
        path: PathBuf,
        /// The line number, starting at 1.
        line: usize,
    },
}

/// A line of the file, with bytes in hexadecimal.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RosterLogLine {
    version: u64,
    hash: String,
    previous: Option<(u64, String)>,
    authority: String,
    signature: String,
}

impl LoggedRoster {
    /// Describes a roster that the authority signed.
    ///
    /// # Errors
    /// Fails if the roster is malformed or the signature is wrong.
    pub fn new(roster: &SignedRoster, authority: [u8; 32]) -> Result<Self, RosterError> {
        let opened: Roster = roster.open(&authority)?;
        Ok(Self {
            version: opened.edition().version,
            hash: blake3::hash(&roster.bytes),
            previous: opened.previous(),
            authority,
            signature: roster.signature,
        })
    }

    /// Appends the roster to a log, unless the log ends with it. It is on disk when this returns. A
    /// last line that a crash or a full disk truncated is replaced.
    ///
    /// # Errors
    /// Fails if the file cannot be written, is no log, or ends with a later roster.
    pub fn append(&self, path: &Path) -> Result<(), RosterLogError> {
        let text = if path.exists() { read_whole_lines(path)? } else { Vec::new() };
        let known = Self::parse_lines(path, &text)?;
        if known.last() == Some(self) {
            return Ok(());
        }
        if known.last().is_some_and(|last| !self.follows(last)) {
            return Err(RosterLogError::Forked { path: path.to_owned(), line: known.len() + 1 });
        }
        let previous = self.previous.map(|roster| (roster.version, roster.hash.to_string()));
        let line = RosterLogLine {
            version: self.version,
            hash: self.hash.to_string(),
            previous,
            authority: hex(&self.authority),
            signature: hex(&self.signature),
        };
        let mut added = serde_json::to_string(&line).expect("text and numbers serialise to JSON");
        added.push('\n');
        let written = OpenOptions::new().create(true).append(true).open(path).and_then(|mut file| {
            file.set_len(text.len() as u64)?;
            file.write_all(added.as_bytes())?;
            file.sync_data()
        });
        written.map_err(|source| RosterLogError::Io { path: path.to_owned(), source })
    }

    /// Reads a log and verifies it: every signature, the order, and the predecessors. A last line
    /// that a crash truncated is ignored.
    ///
    /// # Errors
    /// Fails if the file cannot be read or is no log.
    pub fn read(path: &Path) -> Result<Vec<Self>, RosterLogError> {
        Self::parse_lines(path, &read_whole_lines(path)?)
    }

    fn parse_lines(path: &Path, text: &[u8]) -> Result<Vec<Self>, RosterLogError> {
        let mut rosters: Vec<Self> = Vec::new();
        let lines = text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
        for (line, text) in (1..).zip(lines) {
            let roster = Self::parse(text).ok_or(RosterLogError::Line { path: path.to_owned(), line })?;
            if rosters.last().is_some_and(|last| !roster.follows(last)) {
                return Err(RosterLogError::Forked { path: path.to_owned(), line });
            }
            rosters.push(roster);
        }
        Ok(rosters)
    }

    fn parse(text: &[u8]) -> Option<Self> {
        let line: RosterLogLine = serde_json::from_slice(text).ok()?;
        let hash = |text: &str| blake3::Hash::from_hex(text).ok();
        let previous = match line.previous {
            Some((version, of)) => Some(PreviousRoster { version, hash: hash(&of)? }),
            None => None,
        };
        let roster = Self {
            version: line.version,
            hash: hash(&line.hash)?,
            previous,
            authority: from_hex(&line.authority)?,
            signature: from_hex(&line.signature)?,
        };
        SignedRoster::verifies(&roster.hash, &roster.signature, &roster.authority).then_some(roster)
    }

    /// Returns true if a log can contain this roster after `last`, perhaps with others in between.
    fn follows(&self, last: &Self) -> bool {
        let after_last = self.previous.is_none_or(|previous| {
            previous.version > last.version || (previous.version, previous.hash) == (last.version, last.hash)
        });
        self.authority == last.authority && self.version > last.version && after_last
    }
}

/// Returns the complete lines of a file.
fn read_whole_lines(path: &Path) -> Result<Vec<u8>, RosterLogError> {
    let mut text = fs::read(path).map_err(|source| RosterLogError::Io { path: path.to_owned(), source })?;
    text.truncate(text.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1));
    Ok(text)
}

/// Returns the versions in `accepted` that the log of the authority excludes: between two rosters
/// of which the second names the first as its predecessor.
pub fn versions_outside(log: &[LoggedRoster], accepted: &[u64]) -> Vec<u64> {
    let is_excluded = |version: u64| {
        log.iter().any(|roster| {
            let gap =
                roster.previous.map_or(0..roster.version, |previous| previous.version + 1..roster.version);
            gap.contains(&version)
        })
    };
    accepted.iter().copied().filter(|&version| is_excluded(version)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loopback;
    use crate::roster::RosterVersion;

    const DEVICES: [&str; 3] = ["anna", "boris", "clara"];

    /// A roster of the first devices after another one.
    fn logged(version: u64, devices: usize, previous: Option<&LoggedRoster>) -> LoggedRoster {
        let edition = RosterVersion { version, expires: u64::MAX };
        let names = DEVICES[..devices].iter().copied();
        let roster = loopback::roster(edition, names, |_| false).unwrap();
        let previous = previous.map(|roster| PreviousRoster { version: roster.version, hash: roster.hash });
        let roster = Roster::decode(roster.bytes).unwrap().with_previous(previous);
        let authority = loopback::credentials("anna").authority;
        LoggedRoster::new(&loopback::signed(&roster), authority).unwrap()
    }

    #[test]
    fn a_log_grows_by_rosters_that_follow_each_other_and_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(ROSTER_LOG);
        let first = logged(1, 1, None);
        let second = logged(2, 2, Some(&first));
        let fifth = logged(5, 3, Some(&logged(4, 1, Some(&second))));
        for roster in [&first, &first, &second, &fifth, &fifth] {
            roster.append(&path).unwrap();
        }
        assert_eq!(LoggedRoster::read(&path).unwrap(), [first.clone(), second.clone(), fifth]);
        let fork = logged(6, 3, Some(&first));
        assert!(matches!(fork.append(&path), Err(RosterLogError::Forked { line: 4, .. })));
        assert!(matches!(first.append(&path), Err(RosterLogError::Forked { .. })), "an earlier one");
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"{\"version\":7").unwrap();
        assert_eq!(LoggedRoster::read(&path).unwrap().len(), 3, "a line cut short");
        let sixth = logged(6, 1, Some(&logged(5, 3, Some(&logged(4, 1, Some(&second))))));
        sixth.append(&path).unwrap();
        assert_eq!(LoggedRoster::read(&path).unwrap().last(), Some(&sixth), "it replaces that line");
    }

    #[test]
    fn a_line_that_the_authority_did_not_sign_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(ROSTER_LOG);
        let first = logged(1, 1, None);
        first.append(&path).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let other = logged(1, 2, None);
        fs::write(&path, text.replace(&first.hash.to_string(), &other.hash.to_string())).unwrap();
        assert!(matches!(LoggedRoster::read(&path), Err(RosterLogError::Line { line: 1, .. })));
    }

    #[test]
    fn a_version_between_two_consecutive_rosters_is_outside_of_the_log() {
        let first = logged(1, 1, None);
        let fourth = logged(4, 2, Some(&first));
        let ninth = logged(9, 3, Some(&logged(7, 1, Some(&fourth))));
        let log = [first, fourth, ninth];
        assert_eq!(versions_outside(&log, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]), [2, 3, 8]);
    }
}
