//! The metrics of devices on the examples that they hold out.

use super::Fleet;
use super::scores::position_of;
use crate::compute::Compute;
use crate::data::FederationIndex;
use crate::device::add_evaluation;
use crate::exchange::{ExchangeError, Peers, Round};
use crate::model::Score;
use crate::params::Params;
use crate::question::{Ask, Query};

impl<C: Compute, P: Peers> Fleet<'_, C, P> {
    /// Computes the scores of some members on their held-out examples, at the params of each
    /// requested evaluation.
    pub(super) fn held_out_scores(
        &mut self,
        round: &Round<'_>,
        queries: &[Query],
        members: &[usize],
    ) -> Result<HeldOutScores, ExchangeError> {
        let asked = queries.iter().filter(|query| matches!(query.ask, Ask::Evaluation(_)));
        let mut params: Vec<&Params> = Vec::new();
        asked.for_each(|query| _ = position_of(&query.params, &mut params));
        if params.is_empty() {
            return Ok(HeldOutScores::default());
        }
        let federation = self.federation;
        let held_out = self.held_out.get_or_insert_with(|| federation.held_out());
        let device = |&member: &usize| held_out[self.train[round.cohort[member].device.place()].place()];
        let of_members: Vec<Option<FederationIndex>> = members.iter().map(device).collect();
        let devices: Vec<FederationIndex> = of_members.iter().flatten().copied().collect();
        let scores = self.scores(&devices, &params)?;
        let by_member = |scores: Vec<Score>| {
            let mut scores = scores.into_iter();
            of_members.iter().map(|device| device.and_then(|device| Some((scores.next()?, device)))).collect()
        };
        let params: Vec<Params> = params.into_iter().cloned().collect();
        Ok(HeldOutScores { by_params: params.into_iter().zip(scores.into_iter().map(by_member)).collect() })
    }

    /// Adds a member's evaluation on its held-out examples.
    pub(super) fn add_evaluation(
        &self,
        round: &Round<'_>,
        query: &Query,
        told: HeldOutScore,
        member: usize,
        sum: &mut [u64],
    ) {
        if let (Ask::Evaluation(measures), Some((score, device)), true) =
            (&query.ask, told, self.is_answering(round, query, member))
        {
            let examples = self.federation.example_count(device);
            add_evaluation(measures, self.compute.task(), &score, examples, sum);
        }
    }
}

/// The score of a member on its held-out examples, with the device that has them.
pub(super) type HeldOutScore = Option<(Score, FederationIndex)>;

/// The scores of members on their held-out examples.
#[derive(Default)]
pub(super) struct HeldOutScores {
    by_params: Vec<(Params, Vec<HeldOutScore>)>,
}

impl HeldOutScores {
    /// Returns the score of the member at this position, at the params of a query.
    pub(super) fn at(&self, query: &Query, place: usize) -> HeldOutScore {
        let (_, members) = self.by_params.iter().find(|(params, _)| params.is_same(&query.params))?;
        members.get(place).copied().flatten()
    }
}
