//! The first half of a round: each selection learns about the losses (Algorithm 2, lines 3–5;
//! Algorithm 3, line 5).

use super::held_out::HeldOutQueries;
use super::spending::{self, Spending};
use super::{LossReporting, Plan, State, TrainingError};
use crate::exchange::{Exchange, Round, Traffic};
use crate::params::Params;
use crate::question::{Ask, Query};
use crate::selection::{Learned, Needs};
use crate::superquantile::private::{LossRange, PrivateQuantile, QuantileQuery, Search};
use crate::superquantile::{Conformity, DeviceLoss, Histogram, LossDistribution};

/// The results of the loss questions of a round, for its record.
#[derive(Clone, Debug, Default)]
pub(super) struct LossPhase {
    pub(super) loss: Option<f64>,
    pub(super) answered: u64,
    pub(super) traffic: Traffic,
    /// The exact distribution, in open mode.
    known: Option<LossDistribution>,
    /// Secure sums, in private mode.
    histograms: Vec<Histogram>,
}

impl LossPhase {
    /// Returns the distribution of the losses, or `None` if no losses were requested.
    pub(super) fn distribution(self) -> Option<LossDistribution> {
        self.known.or_else(|| LossDistribution::private(self.histograms))
    }
}

/// Passes the losses, or secure sums of them, to each selection that needs them (Algorithm 2, lines
/// 4–5; Algorithm 3, line 5).
pub(super) fn learn(
    exchange: &mut dyn Exchange,
    plan: &Plan,
    state: &mut State,
    round: &Round<'_>,
    reporting: LossReporting,
    held_out: &mut HeldOutQueries,
    spending: &mut Spending,
) -> Result<Vec<LossPhase>, TrainingError> {
    let mut phases = vec![LossPhase::default(); plan.tracks.len()];
    let (mut open, mut searches, mut idle) = (Vec::new(), Vec::new(), Vec::new());
    let turn = round.terms.turn(round.index);
    for i in round.terms.tracks_of_round(round.index) {
        let (track, at) = (&plan.tracks[i], &state.tracks[i]);
        match track.selection.needs(turn, &at.memory) {
            Needs::Nothing => idle.push(i),
            Needs::Losses => open.push((i, false)),
            Needs::NamedLosses => open.push((i, true)),
            Needs::Quantile(search) => searches.push((i, search)),
        }
    }
    let (seeking, searching) = (open.len(), searches.len());
    match reporting {
        // Devices that report losses report them for every model.
        LossReporting::All if seeking > 0 => open.extend(idle.into_iter().map(|i| (i, false))),
        LossReporting::All => {
            let range = searches.first().map_or_else(LossRange::default, |(_, search)| search.range());
            searches.extend(idle.into_iter().map(|i| (i, median_search(&range))));
        }
        LossReporting::None | LossReporting::Known | LossReporting::AllWhenEvaluated => {}
    }
    if !open.is_empty() {
        let params: Vec<&Params> = open.iter().map(|&(i, _)| &state.tracks[i].params).collect();
        let named_losses = exchange.losses(round, &params)?;
        for (place, (&(i, named), named_losses)) in open.iter().zip(&named_losses).enumerate() {
            let losses: Vec<DeviceLoss> = named_losses.iter().map(|named| named.loss).collect();
            if place < seeking {
                let memory = &mut state.tracks[i].memory;
                let learned = match named {
                    true => Learned::NamedLosses(named_losses),
                    false => Learned::Losses(&losses),
                };
                plan.tracks[i].selection.learn(turn, learned, memory);
            }
            phases[i].loss = mean_loss(&losses);
            phases[i].known =
                (reporting != LossReporting::None).then(|| LossDistribution::open(&losses)).flatten();
        }
    }
    let mut asked =
        LossRequests { plan, searches: &mut searches, phases: &mut phases, reporting, held_out, spending };
    search_privately(exchange, state, round, &mut asked)?;
    for (i, search) in searches.iter().take(searching) {
        let memory = &mut state.tracks[*i].memory;
        plan.tracks[*i].selection.learn(turn, Learned::Quantile(search), memory);
    }
    Ok(phases)
}

/// Creates a search around the median for a track that needs no quantile. Its histograms are only
/// reported.
fn median_search(range: &LossRange) -> Search {
    let half = Conformity::try_from(0.5).expect("one half is a level");
    Search::new(PrivateQuantile::TwoLevel, half, None, range)
}

/// The searches of a round and the phases that record their sums.
struct LossRequests<'a> {
    plan: &'a Plan,
    /// The track of each search.
    searches: &'a mut [(usize, Search)],
    phases: &'a mut [LossPhase],
    reporting: LossReporting,
    held_out: &'a mut HeldOutQueries,
    spending: &'a mut Spending,
}

/// Runs the private quantile searches of all tracks in parallel: one secure sum serves one step of
/// each.
fn search_privately(
    exchange: &mut dyn Exchange,
    state: &State,
    round: &Round<'_>,
    LossRequests { plan, searches, phases, reporting, held_out, spending }: &mut LossRequests<'_>,
) -> Result<(), TrainingError> {
    loop {
        let mut asking = Vec::new();
        let (mut queries, mut noises) = (Vec::new(), Vec::new());
        for (s, (i, search)) in searches.iter().enumerate() {
            if let Some(query) = search.query() {
                asking.push(s);
                let track = &state.tracks[*i];
                let mut query = Query::new(track.params.clone(), Ask::Quantile(query)).of_track(*i);
                let clip = plan.privacy.map(|privacy| spending::clip(&privacy, track));
                noises.push(match clip {
                    Some(clip) => spending::set_noise(plan, round, clip, true, &mut query)?,
                    None => None,
                });
                queries.push(query);
            }
        }
        if queries.is_empty() {
            return Ok(());
        }
        let asked = queries.clone();
        let sums = held_out.with(exchange, round, queries)?;
        for (((s, mut sum), noise), query) in asking.into_iter().zip(sums).zip(noises).zip(asked) {
            let (i, search) = &mut searches[s];
            phases[*i].traffic += sum.traffic;
            if let (Some(noise), Some(privacy)) = (noise, &plan.privacy) {
                let rho = spending::release(privacy, round, &query, &noise, sum.answered, &mut sum.values);
                spending.add(*i, rho);
                search
                    .take_noisy(&noise.counts(&sum.values))
                    .map_err(|source| TrainingError::Quantile { round: round.index, source })?;
                continue;
            }
            if let (Some(QuantileQuery::Histogram(bins)), true) =
                (search.query(), *reporting != LossReporting::None)
            {
                phases[*i].histograms.push(Histogram::new(bins, sum.answered, &sum.values));
            }
            search
                .take(&sum.values)
                .map_err(|source| TrainingError::Quantile { round: round.index, source })?;
        }
    }
}

fn mean_loss(losses: &[DeviceLoss]) -> Option<f64> {
    let weight: f64 = losses.iter().map(DeviceLoss::weight).sum();
    (weight > 0.0).then(|| losses.iter().map(|d| d.loss() * d.weight()).sum::<f64>() / weight)
}
