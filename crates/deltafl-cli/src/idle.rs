//! Says how many rounds of a run moved nothing, and warns when most did.

use deltafl_data::experiment::Experiment;
use deltafl_data::run_folder::{IdleCause, IdleRounds, Summary};

use crate::report::tracks::{TrackInfo, tracks};

/// A line per track with rounds that moved nothing; empty when there is none.
pub(crate) fn lines(summary: &Summary, labels: &[String]) -> String {
    let tracks = summary.tracks.iter().zip(labels);
    let idle = tracks.filter(|(track, _)| track.idle_rounds.idle() > 0);
    idle.map(|(track, label)| format!("  {label}: {}\n", track.idle_rounds)).collect()
}

/// Warns, on standard error, of every track of which most rounds moved nothing.
pub(crate) fn warn(summary: &Summary, experiment: &Experiment) {
    warnings(summary, experiment).iter().for_each(|warning| eprintln!("warning: {warning}"));
}

/// A warning of every track of which most rounds moved nothing.
pub(crate) fn warnings(summary: &Summary, experiment: &Experiment) -> Vec<String> {
    let mut warnings = Vec::new();
    for (track, info) in summary.tracks.iter().zip(tracks(experiment)) {
        if let Some(hint) = hint(&track.idle_rounds, experiment, &info) {
            warnings.push(format!("{}: {}; {hint}", info.label, track.idle_rounds));
        }
    }
    warnings
}

/// What is behind it when most rounds of a track moved nothing; `None` when most did move the params.
pub(crate) fn hint(idle: &IdleRounds, experiment: &Experiment, track: &TrackInfo) -> Option<String> {
    Some(match idle.cause_of_most()? {
        IdleCause::Refused => {
            format!("local.learning_rate = {:?} is probably too large", experiment.local().learning_rate)
        }
        IdleCause::EmptyTail if track.eta_every > 1 => {
            format!("η is found every {} rounds (eta_every): find it more often", track.eta_every)
        }
        IdleCause::EmptyTail => "no loss of a cohort reached η".to_owned(),
        IdleCause::NoSum => {
            format!("availability.drop_out is {:?}", experiment.availability().drop_out.get())
        }
    })
}
