//! The record of a round.

use serde::{Deserialize, Serialize};

use super::PrivacySpent;
use super::learning::LossPhase;
use crate::algorithm::Track;
use crate::evaluation::CohortEvaluation;
use crate::exchange::{Round, Traffic};
use crate::memory::AlgorithmState;
use crate::params::UpdateSum;
use crate::selection::{ETA, ETA_ROUND};

/// The record of one track in one round: a line of `rounds.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundRecord {
    /// The seed of the run.
    pub seed: u64,
    /// Index of the track.
    pub track: usize,
    /// Its name.
    pub name: String,
    /// t, counted from 0.
    pub round: u64,
    /// η_t, if the algorithm has one.
    pub eta: Option<f64>,
    /// Rounds of this track since η was found; 0 if it was found in this round.
    pub eta_age: Option<u64>,
    /// Weighted mean loss of the cohort; `None` in private mode.
    pub loss: Option<f64>,
    /// |S_t|, distinct devices.
    pub cohort: u64,
    /// Devices that dropped out.
    pub dropped: u64,
    /// |S_t'|, the devices in the sum.
    pub tail: u64,
    /// Σ α_k over the tail.
    pub tail_weight: f64,
    /// Devices left out because their update was not finite.
    pub refused: u64,
    /// Calls of secure aggregation.
    pub sums: u64,
    /// Messages between devices and server.
    pub messages: u64,
    /// Bytes from the devices.
    pub bytes_up: u64,
    /// Bytes to the devices.
    pub bytes_down: u64,
    /// The evaluations of the cohort on held-out examples: at w_t, and in the last round of the
    /// track also at its final params.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evaluations: Vec<CohortEvaluation>,
    /// The privacy spent up to this round, if the sums are noisy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub privacy: Option<PrivacySpent>,
}

impl RoundRecord {
    /// Adds an evaluation on held-out examples and its traffic.
    pub(super) fn add(&mut self, (evaluation, cost): (Option<CohortEvaluation>, Traffic)) {
        self.evaluations.extend(evaluation);
        self.sums += cost.sums;
        self.messages += cost.messages;
        self.bytes_up += cost.bytes_up;
        self.bytes_down += cost.bytes_down;
    }
}

pub(super) fn record(
    round: &Round<'_>,
    index: usize,
    track: &Track,
    memory: &AlgorithmState,
    sum: &UpdateSum,
    note: &LossPhase,
) -> RoundRecord {
    let turn = round.terms.turn(round.index);
    RoundRecord {
        seed: round.seed,
        track: index,
        name: track.label.name.clone(),
        round: round.index,
        eta: memory.number(ETA),
        eta_age: memory.number(ETA_ROUND).map(|found| turn.saturating_sub(found as u64)),
        loss: note.loss,
        cohort: round.cohort.len() as u64,
        dropped: round.cohort.len() as u64 - note.answered,
        tail: sum.tail(),
        tail_weight: sum.tail_weight(),
        refused: sum.refused(),
        sums: note.traffic.sums,
        messages: note.traffic.messages,
        bytes_up: note.traffic.bytes_up,
        bytes_down: note.traffic.bytes_down,
        evaluations: Vec::new(),
        privacy: None,
    }
}
