//! Rounds that did not change the params: their number, and a warning if they are the majority.

use deltafl::terms::TrackSchedule;
use deltafl_data::experiment::Experiment;
use deltafl_data::run_folder::{IdleCause, IdleRounds, Summary};

use crate::report::tracks::{TrackInfo, tracks};

/// Returns a line per track with rounds that changed nothing, or an empty string without such
/// rounds.
pub(crate) fn lines(summary: &Summary, labels: &[String]) -> String {
    let tracks = summary.tracks.iter().zip(labels);
    let idle = tracks.filter(|(track, _)| track.idle_rounds.idle() > 0);
    idle.map(|(track, label)| format!("  {label}: {}\n", track.idle_rounds)).collect()
}

/// Returns a warning for every track in which most rounds changed nothing.
pub fn warnings(summary: &Summary, experiment: &Experiment) -> Vec<String> {
    let mut warnings = Vec::new();
    for (track, info) in summary.tracks.iter().zip(tracks(experiment)) {
        if let Some(hint) = hint(&track.idle_rounds, experiment, &info) {
            warnings.push(format!("{}: {}; {hint}", info.label, track.idle_rounds));
        }
    }
    warnings
}

/// Returns the likely reason why most rounds of a track changed nothing. Returns `None` if most
/// rounds changed the params.
pub(crate) fn hint(idle: &IdleRounds, experiment: &Experiment, track: &TrackInfo) -> Option<String> {
    Some(match idle.cause_of_most()? {
        IdleCause::Refused => {
            format!("local.learning_rate = {:?} is probably too large", experiment.local().learning_rate)
        }
        IdleCause::EmptyTail if track.eta_every > 1 => {
            format!("η is found every {} rounds (eta_every): find it more often", track.eta_every)
        }
        IdleCause::EmptyTail => "no loss of a cohort reached η".to_owned(),
        IdleCause::Unserved if !divides_cohorts(experiment) => {
            "the algorithm gave no device of the cohort a weight above 0".to_owned()
        }
        IdleCause::Unserved => format!(
            "a device serves one track per round if tracks = \"apart\": a cohort of {} devices is too small for {} tracks",
            experiment.cohort(),
            experiment.labels().len()
        ),
        IdleCause::NoSum => {
            format!("availability.drop_out is {:?}", experiment.availability().drop_out.get())
        }
    })
}

/// Whether a device of a cohort serves one track of several.
fn divides_cohorts(experiment: &Experiment) -> bool {
    experiment.schedule() == Some(TrackSchedule::Apart) && experiment.labels().len() > 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_divided_cohort_is_too_small_for_its_tracks() {
        let of = |schedule: &str| {
            let experiment = Experiment::parse(&format!(
                "name = 'x'\nrounds = 1\ncohort = 2\ntracks = '{schedule}'\n\
                 [data]\nsource = {{ kind = 'glyphs', devices = 4 }}\n[model]\nkind = 'linear'\n\
                 [local]\nepochs = 1\nbatch = 10\nlearning_rate = 1.0\n\
                 [[algorithm]]\nkind = 'fedavg'\n[[algorithm]]\nkind = 'fedprox'\nmu = 0.1\n"
            ))
            .unwrap();
            let idle = IdleRounds { rounds: 1, unserved: 1, ..IdleRounds::default() };
            hint(&idle, &experiment, &tracks(&experiment)[0]).unwrap()
        };
        assert_eq!(of("together"), "the algorithm gave no device of the cohort a weight above 0");
        assert!(of("apart").ends_with("a cohort of 2 devices is too small for 2 tracks"));
    }
}
