//! `rounds.jsonl`: a line per (seed, track, round).

use std::fs;
use std::path::Path;

use super::{RoundLine, RunFolderError, atomic, io_error};

/// Returns the complete lines of the file; ignores an incomplete last line. A missing file has no
/// lines.
pub(super) fn read(path: &Path) -> Result<Vec<RoundLine>, RunFolderError> {
    let text = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(io_error(path)(e)),
    };
    let Some(end) = text.iter().rposition(|&byte| byte == b'\n') else { return Ok(Vec::new()) };
    let whole = text[..end].split(|&byte| byte == b'\n').enumerate();
    whole
        .map(|(i, line)| {
            serde_json::from_slice(line).map_err(|e| RunFolderError::Malformed {
                path: path.to_owned(),
                line: i + 1,
                reason: e.to_string(),
            })
        })
        .collect()
}

/// Cuts the lines after the rounds done of each seed.
pub(super) fn cut(
    path: &Path,
    done: impl Fn(u64) -> Result<u64, RunFolderError>,
) -> Result<(), RunFolderError> {
    let mut kept = Vec::new();
    let mut known: Vec<(u64, u64)> = Vec::new();
    for line in read(path)? {
        let seed = line.record.seed;
        let rounds = match known.iter().find(|(s, _)| *s == seed) {
            Some(&(_, rounds)) => rounds,
            None => {
                known.push((seed, done(seed)?));
                known[known.len() - 1].1
            }
        };
        if line.record.round < rounds {
            kept.push(line);
        }
    }
    write(path, &kept)
}

/// Sorts the lines by these seeds, and the lines of a seed by round and track.
pub(super) fn sort(path: &Path, seeds: &[u64]) -> Result<(), RunFolderError> {
    let mut lines = read(path)?;
    let place = |seed: u64| seeds.iter().position(|&known| known == seed).unwrap_or(seeds.len());
    lines.sort_by_key(|RoundLine { record, .. }| (place(record.seed), record.round, record.track));
    write(path, &lines)
}

fn write(path: &Path, lines: &[RoundLine]) -> Result<(), RunFolderError> {
    let mut text = Vec::new();
    for line in lines {
        serde_json::to_writer(&mut text, line).expect("a record has string keys and writes to memory");
        text.push(b'\n');
    }
    atomic::write(path, &text).map_err(io_error(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use deltafl::training::RoundRecord;

    fn line(seed: u64, round: u64) -> String {
        let record = RoundRecord {
            seed,
            track: 0,
            name: "FedAvg".into(),
            eta_age: None,
            round,
            eta: Some(0.1 + 0.2),
            loss: None,
            cohort: 3,
            dropped: 0,
            tail: 3,
            tail_weight: 30.0,
            refused: 0,
            sums: 1,
            messages: 6,
            bytes_up: 8,
            bytes_down: 4,
            evaluations: Vec::new(),
            privacy: None,
        };
        serde_json::to_string(&RoundLine { record, seconds: 0.25 }).unwrap()
    }

    #[test]
    fn a_torn_line_and_rounds_behind_the_checkpoint_are_cut() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rounds.jsonl");
        let whole = format!("{}\n{}\n{}\n", line(1, 0), line(1, 1), line(2, 0));
        fs::write(&path, format!("{whole}{}", &line(2, 1)[..40])).unwrap();
        assert_eq!(read(&path).unwrap().len(), 3);
        cut(&path, |seed| Ok(if seed == 1 { 1 } else { 9 })).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{}\n{}\n", line(1, 0), line(2, 0)));
    }

    #[test]
    fn lines_written_side_by_side_end_as_if_written_one_seed_after_another() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rounds.jsonl");
        let mixed = [(7, 0), (2, 0), (7, 1), (2, 1)].map(|(seed, round)| line(seed, round) + "\n");
        fs::write(&path, mixed.concat()).unwrap();
        sort(&path, &[7, 2]).unwrap();
        let expected = [(7, 0), (7, 1), (2, 0), (2, 1)].map(|(seed, round)| line(seed, round) + "\n");
        assert_eq!(fs::read_to_string(&path).unwrap(), expected.concat());
    }

    #[test]
    fn a_damaged_line_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rounds.jsonl");
        fs::write(&path, format!("{}\nnonsense\n{}\n", line(1, 0), line(1, 1))).unwrap();
        let error = read(&path).unwrap_err();
        assert!(matches!(error, RunFolderError::Malformed { line: 2, .. }), "{error:?}");
    }
}
