//! The evaluation of all devices, if they publish their metrics.

use super::{Event, EventSink, Plan, State, TrainingError};
use crate::data::Split;
use crate::exchange::{Evaluation, Exchange, PersonalModels};
use crate::question::RoundKey;
use crate::terms::Terms;
use crate::trainer::{LocalPlan, Personal};

/// Evaluates every device under every track, if the devices of the exchange publish their metrics.
/// Validation devices come last, if there are any.
pub(super) fn evaluate(
    exchange: &mut dyn Exchange,
    plan: &Plan,
    state: &State,
    events: &mut EventSink<'_, '_>,
) -> Result<(), TrainingError> {
    let mut splits = Vec::with_capacity(3);
    for split in [Split::Train, Split::Test, Split::Validation] {
        let Some(mut evaluation) = exchange.evaluate(split, &state.params())? else { continue };
        for (i, track) in plan.tracks.iter().enumerate() {
            if let Some(personal) = track.personal.filter(|personal| personal.is_evaluated)
                && let Some(devices) = personal_evaluation(exchange, plan, state, split, (i, personal))?
            {
                evaluation.tracks[i] = devices;
            }
        }
        splits.push(evaluation);
    }
    splits.retain(|evaluation| evaluation.split != Split::Validation || !evaluation.devices.is_empty());
    if splits.is_empty() {
        return Ok(());
    }
    events.send(Event::Evaluated { round: state.round, splits: &splits })
}

/// Evaluates the personal models of a track.
fn personal_evaluation(
    exchange: &mut dyn Exchange,
    plan: &Plan,
    state: &State,
    split: Split,
    (i, personal): (usize, Personal),
) -> Result<Option<Vec<Evaluation>>, TrainingError> {
    let (at, turn) = (&state.tracks[i], plan.terms.turn(state.round));
    let local = LocalPlan { correction: None, ..plan.local.plan(turn, &plan.tracks[i]) };
    let terms = Terms { clip: None, ..plan.terms };
    let key = RoundKey { run: 0, seed: state.seed, round: state.round, members: 1, terms };
    let (params, memories, method) = (&at.params, &at.devices, personal.method);
    let models = PersonalModels { params, memories, method, plan: &local, key };
    Ok(exchange.evaluate_personal(split, &models)?)
}
