//! The rule that no two tracks share a device in a round.

use std::mem::discriminant;

use deltafl::params::ParamsId;
use deltafl::question::{Ask, Query, Question};
use deltafl::terms::TrackSchedule;
use deltafl::trainer::LocalPlan;

use super::TooMuch;

/// Checks that a question asks a device for one track, and asks this track each thing once and at
/// one w.
pub(super) fn check_tracks(question: &Question<ParamsId>) -> Result<(), TooMuch> {
    let terms = question.key.terms;
    let first = question.queries.first().map_or(0, |query| query.track);
    let several = question.queries.iter().any(|query| query.track != first);
    if terms.schedule == TrackSchedule::Together || (terms.schedule == TrackSchedule::InTurn && several) {
        return Err(TooMuch::Together);
    }
    for (i, query) in question.queries.iter().enumerate() {
        let mut before = question.queries[..i].iter().filter(|other| other.track == query.track);
        let twice = |other: &Query<ParamsId>| {
            other.params != query.params || discriminant(&other.ask) == discriminant(&query.ask)
        };
        if before.any(twice) {
            return Err(TooMuch::Twice(query.track));
        }
    }
    check_divided(question)
}

/// Checks that a question for updates asks all tracks among which the cohort is divided, and the
/// same work of each.
///
/// Otherwise a device that serves another track would add zeros to the sum. It could answer later
/// for its own track, among devices that add zeros. With different work, the time of an answer would
/// reveal the track before the server chooses the survivors of the sum.
fn check_divided(question: &Question<ParamsId>) -> Result<(), TooMuch> {
    let tracks = question.key.terms.divided_among();
    let plans: Vec<(u32, &LocalPlan)> = question
        .queries
        .iter()
        .filter_map(|query| match &query.ask {
            Ask::Update { plan, .. } => Some((query.track, plan)),
            Ask::Quantile(_) | Ask::Evaluation(_) => None,
        })
        .collect();
    if question.key.terms.schedule != TrackSchedule::Apart || plans.is_empty() {
        return Ok(());
    }
    let asked = plans.iter().filter(|(track, _)| u64::from(*track) < tracks).count() as u64;
    if asked < tracks {
        return Err(TooMuch::SomeTracks { asked, tracks });
    }
    let work = |plan: &LocalPlan| (plan.work, plan.batch);
    if plans.iter().any(|(_, plan)| work(plan) != work(plans[0].1)) {
        return Err(TooMuch::UnequalWork);
    }
    Ok(())
}
