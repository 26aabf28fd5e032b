//! The sum over a cohort: key set-up, question, answers and checks.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use deltafl::exchange::{CohortSum, Round, SLOTS};
use deltafl::params::Params;
use deltafl::privacy::ExcessKey;
use deltafl::question::{Ask, Query, RoundKey, encode};
use deltafl_secagg::identity::DeviceId;
use deltafl_secagg::mask::MaskSuite;
use deltafl_secagg::message::DeviceSet;
use deltafl_secagg::params::{RoundId, RoundParams};
use deltafl_secagg::ring::{Ring, RingVector};
use deltafl_secagg::server::{RoundFailure, ServerRoundConfig};
use deltafl_wire::params_blob;
use deltafl_wire::proto;
use deltafl_wire::roster::session_under;

use super::NetworkExchange;
use super::plausible::{self, Implausible};
use super::round_in_progress::QuestionMismatch;
use crate::hub::PhasePurpose;
use crate::refusal::Refusal;
use crate::round::{Invitation, Protocol};
use crate::store::{SlotKey, StoreError, StoredQuestion};

/// The reason for which the aggregation of a cohort failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CohortFailure {
    /// Secure aggregation failed.
    #[error(transparent)]
    Verdict(#[from] RoundFailure),
    /// The sum is implausible.
    #[error("implausible sum: {0}")]
    Implausible(#[from] Implausible),
    /// A previous server sent a different question.
    #[error(transparent)]
    Begun(#[from] QuestionMismatch),
    /// The current round could not be stored, so no question is sent.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The key set-up of the current round.
pub(super) struct Current {
    round: (u64, u64),
    protocol: Protocol,
    slots_left: u32,
}

impl NetworkExchange {
    /// Returns the sum of the cohort for each query. Sets up keys if the current ones are used up.
    pub(super) fn secure_sums(
        &mut self,
        round: &Round<'_>,
        queries: &[Query],
    ) -> Result<Vec<CohortSum>, CohortFailure> {
        let key = (round.seed, round.index);
        let canonical = encode(&RoundKey { run: self.run, ..round.key() }, queries);
        let signed = blake3::hash(&canonical);
        let cohort: BTreeSet<u32> = round.cohort.iter().map(|drawn| drawn.device.0).collect();
        self.round_in_progress.turn_to(key);
        if let Some(known) = self.round_in_progress.known(&cohort, &signed)? {
            return Ok(known);
        }
        self.link.hub.blobs.keep_params(queries.iter().flat_map(Query::named));
        let mut current = self.ready(round)?;
        current.slots_left -= 1;
        let kept = match self.keep_asked(cohort, current.protocol.active(), signed) {
            Ok(kept) => kept,
            Err(error) => {
                current.protocol.end(&self.link);
                return Err(error.into());
            }
        };
        self.link.hub.status.send_modify(|status| status.turn_to(key, purpose(queries)));
        let len: usize = queries.iter().map(Query::answer_len).sum();
        let len = u32::try_from(len).expect("the number of parameters is far below 2^32");
        let question = proto::Question { canonical: canonical.into() };
        // Noisy sums fit into 32 bits.
        let is_noisy = queries.iter().all(|query| query.noise.is_some());
        let ring = if is_noisy { Ring::Z32 } else { Ring::Z64 };
        let sum = current.protocol.sum(&mut self.link, &question, ring, len, signed.as_bytes());
        let sum = match sum {
            Ok(sum) => sum,
            Err(verdict) => {
                current.protocol.end(&self.link);
                return Err(verdict.into());
            }
        };
        let mut traffic = current.protocol.take_traffic();
        if current.slots_left == SLOTS - 1 {
            // Parameters are sent once per round, to the devices that set up keys.
            let fetched = current.protocol.active().len() as u64;
            traffic.bytes_down +=
                fetched * distinct(queries).map(|params| params_blob(params).len).sum::<u64>();
        }
        let values: Vec<u64> = match sum.sum {
            RingVector::Z64(values) => values,
            RingVector::Z32(values) => values.into_iter().map(u64::from).collect(),
        };
        let answered = sum.survivors.len() as u64;
        let values = without_excess(queries, answered, sum.revealed.values(), values);
        let mut rest = values.as_slice();
        let part = |(i, query): (usize, &Query)| {
            let (values, behind) = rest.split_at(query.answer_len());
            rest = behind;
            let traffic = traffic.part(i as u64, queries.len() as u64);
            // What devices remember stays with them.
            CohortSum { values: values.to_vec(), answered, traffic, remembered: Vec::new() }
        };
        let sums: Vec<CohortSum> = queries.iter().enumerate().map(part).collect();
        for (query, sum) in queries.iter().zip(&sums) {
            let step = plausible::StepBounds { most: self.rules.max_step, clip: round.terms.clip };
            if let Err(implausible) = plausible::check(query, sum, round.cohort.len(), step) {
                tracing::error!(round = round.index, %implausible, "a device of the cohort sent an invalid answer");
                self.link.hub.refusals.count(Refusal::Implausible);
                current.protocol.end(&self.link);
                return Err(implausible.into());
            }
        }
        self.current = Some(current);
        if let Some(journal) = &self.journal {
            journal.summed(&self.link.runtime, kept, &sums)?;
        }
        Ok(sums)
    }

    /// Ends the current keys, so that the next question goes to another cohort, for tests of
    /// attacks.
    #[cfg(feature = "test-util")]
    pub fn end_setup(&mut self) {
        if let Some(current) = self.current.take() {
            current.protocol.end(&self.link);
        }
    }

    /// Returns keys with a free slot, from the current round or from a new set-up.
    fn ready(&mut self, round: &Round<'_>) -> Result<Current, CohortFailure> {
        let key = (round.seed, round.index);
        let mut present: DeviceSet = round
            .cohort
            .iter()
            .filter(|drawn| !drawn.dropped)
            .map(|drawn| DeviceId(drawn.device.0))
            .collect();
        if let Some(current) = self.current.take() {
            if current.round == key && current.slots_left > 0 {
                return Ok(current);
            }
            if current.round == key {
                present = current.protocol.active().clone();
            }
            current.protocol.end(&self.link);
        }
        self.reserve_setup()?;
        self.setups += 1;
        self.link.hub.status.send_modify(|status| status.turn_to(key, PhasePurpose::Keys));
        let known = self.link.hub.known();
        let session = session_under(&self.link.hub.introduction().session, known.hash());
        let cohort = u32::try_from(present.len()).unwrap_or(u32::MAX);
        let announced = self.announced.unwrap_or(cohort);
        let params = RoundParams {
            id: RoundId { session, round: self.setups },
            suite: MaskSuite::default(),
            cohort: announced,
            graph: self.rules.guard.graph(announced, self.rules.dropping_of(cohort)),
            slots: SLOTS,
            draw: self.opening(self.setups).map(|(_, opening)| opening),
        };
        let config = ServerRoundConfig {
            params,
            cohort: present,
            roster: Arc::clone(&known.keys),
            min_members: self.rules.quorum,
            phase_timeout: Duration::ZERO,
        };
        let deadlines = self.rules.deadlines;
        let invitation = Invitation { config, deadlines, target: self.rules.cohort, defences: self.defences };
        let protocol = Protocol::begin(&mut self.link, invitation)?;
        Ok(Current { round: key, protocol, slots_left: SLOTS })
    }

    /// Records the recipients of a question if the round is stored.
    fn keep_asked(
        &mut self,
        cohort: BTreeSet<u32>,
        asked: &DeviceSet,
        question: blake3::Hash,
    ) -> Result<SlotKey, StoreError> {
        let asked: BTreeSet<u32> = asked.iter().map(|id| id.0).collect();
        let key = self.round_in_progress.ask(asked.iter().copied());
        if let Some(journal) = &self.journal {
            journal.asked(
                &self.link.runtime,
                key,
                &StoredQuestion { question, cohort, asked, sums: None },
            )?;
        }
        Ok(key)
    }
}

/// Subtracts the noise that a sum over this many devices does not need, by the keys that devices
/// revealed.
fn without_excess<'k>(
    queries: &[Query],
    survivors: u64,
    revealed: impl Iterator<Item = &'k [u8; 32]>,
    mut values: Vec<u64>,
) -> Vec<u64> {
    for &key in revealed {
        let key = ExcessKey::revealed(queries, survivors, key);
        let mut rest = values.as_mut_slice();
        for query in queries {
            let (of_query, behind) = rest.split_at_mut(query.answer_len());
            rest = behind;
            if let Some(noise) = &query.noise {
                noise.subtract_parts(key, query.number(), of_query);
            }
        }
    }
    values
}

/// Returns the purpose of a sum, for the status.
fn purpose(queries: &[Query]) -> PhasePurpose {
    let update = |query: &Query| matches!(query.ask, Ask::Update { .. });
    if queries.iter().any(update) { PhasePurpose::Updates } else { PhasePurpose::Losses }
}

/// Returns the params of the queries without duplicates.
fn distinct(queries: &[Query]) -> impl Iterator<Item = &Params> {
    let named: Vec<&Params> = queries.iter().flat_map(Query::named).collect();
    let first = |i: usize| named[..i].iter().all(|earlier| !earlier.is_same(named[i]));
    (0..named.len()).filter(|&i| first(i)).map(|i| named[i]).collect::<Vec<_>>().into_iter()
}
