//! The answers of members to queries other than updates.

use super::Fleet;
use super::held_out::HeldOutScore;
use crate::compute::{Compute, KeptParts};
use crate::device::{UpdateRandomness, stream_key};
use crate::exchange::{Peers, Round};
use crate::question::{Ask, Query};

impl<C: Compute, P: Peers> Fleet<'_, C, P> {
    /// Adds a member's answer to a query other than an update, with the noise of the device.
    pub(super) fn add_counts(
        &self,
        round: &Round<'_>,
        query: &Query,
        told: HeldOutScore,
        member: usize,
        kept: Option<KeptParts>,
        sum: &mut [u64],
    ) {
        let drawn = &round.cohort[member];
        if matches!(query.ask, Ask::Update { .. }) || drawn.dropped {
            return;
        }
        let Some(noise) = &query.noise else {
            self.add_quantile(round, query, member, sum);
            self.add_evaluation(round, query, told, member, sum);
            return;
        };
        let mut counts = vec![0; sum.len()];
        self.add_quantile(round, query, member, &mut counts);
        self.add_evaluation(round, query, told, member, &mut counts);
        noise.add_counts(&counts, sum);
        let device = stream_key(self.federation.id(self.train[drawn.device.place()]));
        if let Some(kept) = kept {
            kept.add_to(noise, &round.key(), device, query.number(), sum);
        }
        let random = UpdateRandomness::Reproducible;
        noise.add_to(sum, &mut random.noise_stream(&round.key(), device, query.number()));
    }
}
