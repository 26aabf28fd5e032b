//! Device-by-device comparison of two tracks, with bootstrap intervals.

use std::path::PathBuf;

use deltafl::data::Split;

mod operand;
mod paired;

pub use paired::{Bootstrap, Comparison, PairedDevice, PairedDifference, Side};

use crate::error::{ErrorKind, Excerpt, Explain, FolderError};
use crate::run_names;
use operand::Operand;

/// The reason why two tracks cannot be compared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompareError {
    /// A run cannot be read.
    #[error("could not read the run in {path}")]
    Run {
        /// The run folder.
        path: PathBuf,
        /// The error of the run folder.
        source: FolderError,
    },
    /// The run has no such track.
    #[error("{run} has no track {track}")]
    NoTrack {
        /// The name of the run.
        run: String,
        /// The requested track name.
        track: String,
        /// The tracks of the run.
        tracks: Vec<String>,
    },
    /// Several tracks of the run have this name.
    #[error("{run} has several tracks {track}")]
    SeveralTracks {
        /// The name of the run.
        run: String,
        /// The requested track name.
        track: String,
        /// The tracks of the run.
        tracks: Vec<String>,
    },
    /// There is no second track to compare with.
    #[error("{run} has one track only")]
    OneTrack {
        /// The name of the run.
        run: String,
    },
    /// The two runs have no track of the same name.
    #[error("the two runs have no track of the same name")]
    NoCommonTrack,
    /// The two runs have different metrics.
    #[error("the two runs have different metrics: {before} and {after}")]
    DifferentMetrics {
        /// The primary metric of the first run.
        before: &'static str,
        /// The primary metric of the second run.
        after: &'static str,
    },
    /// The two runs evaluated no device in common.
    #[error("the two runs have no device in common")]
    NoCommonDevice,
}

impl Explain for CompareError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Run { source, .. } => source.kind(),
            _ => ErrorKind::InvalidInput,
        }
    }

    fn help(&self) -> Option<String> {
        match self {
            Self::Run { source, .. } => source.help(),
            Self::NoTrack { tracks, .. } | Self::SeveralTracks { tracks, .. } => {
                Some(format!("its tracks are: {}", tracks.join(", ")))
            }
            Self::OneTrack { .. } => Some("name a second run".to_owned()),
            Self::NoCommonTrack => Some("name the tracks: RUN:TRACK".to_owned()),
            Self::DifferentMetrics { .. } | Self::NoCommonDevice => None,
        }
    }

    fn excerpt(&self) -> Option<Excerpt<'_>> {
        None
    }
}

/// Compares two tracks, each given as `RUN` or `RUN:TRACK`. Without track names, tracks of the same
/// name are compared. With one run, its baseline is compared with every other track.
///
/// # Errors
///
/// Fails if a run cannot be read, a track is unknown or ambiguous, or the runs have no metric, track
/// or device in common.
pub fn compare(
    before: &str,
    after: Option<&str>,
    bootstrap: Bootstrap,
) -> Result<Vec<Comparison>, CompareError> {
    let mut before = Operand::read(before)?;
    let mut after = after.map(Operand::read).transpose()?;
    if let Some(after) = after.as_mut().filter(|after| after.folder != before.folder) {
        distinguish(&mut before, after);
    }
    if let (Some(a), Some(b)) = (before.metric(), after.as_ref().and_then(Operand::metric))
        && a != b
    {
        return Err(CompareError::DifferentMetrics { before: a.title, after: b.title });
    }
    let mut comparisons = Vec::new();
    for (a, b) in pairs(&before, after.as_ref())? {
        for split in [Split::Test, Split::Train] {
            let after = after.as_ref().unwrap_or(&before);
            comparisons.extend(paired::compare(&before, a, after, b, split, bootstrap));
        }
    }
    if comparisons.is_empty() {
        return Err(CompareError::NoCommonDevice);
    }
    Ok(comparisons)
}

/// Gives two runs different names.
fn distinguish(before: &mut Operand, after: &mut Operand) {
    let names =
        run_names::distinct(&[(&before.folder, &before.experiment), (&after.folder, &after.experiment)]);
    for (run, name) in [before, after].into_iter().zip(names) {
        run.name = name;
    }
}

/// Returns the pairs of tracks to compare, as indices into the two runs.
fn pairs(before: &Operand, after: Option<&Operand>) -> Result<Vec<(usize, usize)>, CompareError> {
    let Some(after) = after else {
        let from = before.track.unwrap_or_else(|| before.baseline());
        let others: Vec<_> = (0..before.tracks.len()).filter(|&to| to != from).map(|to| (from, to)).collect();
        return if others.is_empty() {
            Err(CompareError::OneTrack { run: before.name.clone() })
        } else {
            Ok(others)
        };
    };
    match (before.track, after.track) {
        (Some(a), Some(b)) => Ok(vec![(a, b)]),
        (Some(a), None) => Ok(vec![(a, after.called(&before.tracks[a].label)?)]),
        (None, Some(b)) => Ok(vec![(before.called(&after.tracks[b].label)?, b)]),
        (None, None) => {
            let labels = before.tracks.iter().enumerate();
            let shared: Vec<_> =
                labels.filter_map(|(a, track)| after.called(&track.label).ok().map(|b| (a, b))).collect();
            if shared.is_empty() {
                return Err(CompareError::NoCommonTrack);
            }
            Ok(shared)
        }
    }
}
