//! The publishable evaluation on held-out examples: bounds of figures over a cohort, without bins.

use deltafl_data::run_folder::RoundLine;
use deltafl_wire::card::HeldOutFigures;
use serde::Serialize;

use crate::store::CommittedRound;

/// The cohort's evaluation of the main metric under each track.
pub(super) fn primary(lines: &[RoundLine], tracks: usize) -> Vec<Vec<HeldOutFigures>> {
    super::per_track(lines, tracks, |record| {
        record
            .evaluations
            .iter()
            .filter_map(|told| HeldOutFigures::from_evaluation(told).into_iter().next())
            .collect()
    })
}

/// The public form of a committed round.
#[derive(Serialize)]
pub(crate) struct PublicRound {
    #[serde(flatten)]
    round: CommittedRound,
    /// Per track.
    held_out: Vec<Vec<HeldOutFigures>>,
}

impl PublicRound {
    /// Removes the histograms of the cohort from a round.
    pub(super) fn from_committed(mut round: CommittedRound) -> Self {
        let tracks = round.lines.iter().map(|line| line.record.track + 1).max().unwrap_or(0);
        let held_out = primary(&round.lines, tracks);
        round.lines.iter_mut().for_each(|line| line.record.evaluations.clear());
        Self { round, held_out }
    }
}

#[cfg(test)]
mod tests {
    use deltafl::evaluation::{CohortEvaluation, Measure, answer, answer_len};
    use deltafl::exchange::Evaluation;
    use deltafl::task::Task;
    use deltafl::training::RoundRecord;

    use super::*;

    fn round(devices: usize) -> CommittedRound {
        let asked = Measure::of_task(Task::Classes);
        let mut sum = vec![0; answer_len(&asked)];
        for k in 0..devices {
            answer(&asked, Task::Classes, &Evaluation::of_primary(1.0, 0.105 + 0.1 * k as f64), &mut sum);
        }
        let record = RoundRecord {
            seed: 1,
            track: 0,
            name: "FedAvg".to_owned(),
            round: 4,
            eta: None,
            eta_age: None,
            loss: None,
            cohort: devices as u64,
            dropped: 0,
            tail: 1,
            tail_weight: 1.0,
            refused: 0,
            sums: 1,
            messages: 0,
            bytes_up: 0,
            bytes_down: 0,
            evaluations: CohortEvaluation::new(4, Task::Classes, &sum).into_iter().collect(),
            privacy: None,
        };
        let lines = vec![RoundLine { record, seconds: 0.5 }];
        CommittedRound { round: 4, lines, timeline: Vec::new(), losses: vec![None], committed_at: 0 }
    }

    #[test]
    fn anybody_sees_bounds_and_no_bin() {
        let shown = serde_json::to_value(PublicRound::from_committed(round(5))).unwrap();
        let figures = &shown["held_out"][0][0];
        assert_eq!((&figures["measure"], figures["devices"].as_u64()), (&"error".into(), Some(5)), "{shown}");
        assert!(figures["p50"]["lower"].as_f64() < figures["p50"]["upper"].as_f64(), "{shown}");
        assert!(!shown.to_string().contains("bins"), "{shown}");
        let few = serde_json::to_value(PublicRound::from_committed(round(4))).unwrap();
        assert_eq!(few["held_out"][0].as_array().map(Vec::len), Some(0), "{few}");
    }
}
