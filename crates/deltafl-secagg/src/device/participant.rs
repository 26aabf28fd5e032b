//! A device's participation in a session: identity, roster, policy, and the last round joined.

use std::sync::Arc;
use std::time::Duration;

use rand_core::CryptoRng;
use thiserror::Error;

use super::DeviceRound;
use super::abort::Abort;
use super::seen_rounds::SeenRound;
use crate::defences::{Defence, Defences};
use crate::draw::LeftOut;
use crate::graph::{CollusionBound, Graph, GraphRule, Permille, active_threshold};
use crate::identity::{DeviceId, KeyRoster, Signed, SigningIdentity};
use crate::message::DeviceSet;
use crate::params::{ParamsError, RoundParams};
use crate::transcript::Sha256Digest;

/// The adversary that a device requires protection against (see
/// `docs/src/explanation/threat-model.md`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum AdversaryModel {
    /// A server that follows the protocol and inspects all messages, with γ of the cohort
    /// colluding.
    HonestButCurious {
        /// γ: the bound on colluding devices.
        gamma: CollusionBound,
        /// δ: the share that may drop out without disconnecting the rest.
        delta: Permille,
    },
    /// A server that deviates arbitrarily. The device joins only rounds whose graph protects
    /// against it.
    Active {
        /// γ: the bound on colluding devices.
        gamma: CollusionBound,
    },
}

/// Assumes an actively malicious server and 5 % colluding devices.
impl Default for AdversaryModel {
    fn default() -> Self {
        Self::Active { gamma: Permille::new(50).unwrap_or_default().into() }
    }
}

/// The conditions under which a device joins a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DevicePolicy {
    /// The smallest number of members, including this device.
    pub min_members: usize,
    /// The adversary that the round must protect against.
    pub adversary: AdversaryModel,
    /// The longest vector that the device masks.
    pub max_len: u32,
    /// How long the server may be silent.
    pub patience: Duration,
    /// The largest share of drawn devices that may be left out of a round. `None` accepts cohorts
    /// without a draw.
    pub max_left_out: Option<Permille>,
    /// The defences that are on. All, except in tests of attacks.
    pub defences: Defences,
}

/// The rounds that a device tolerates to miss under one roster, however small the fleet is.
const FEW_SKIPPED: u64 = 4096;
/// The rounds that it tolerates to miss in addition, in units of the mean distance between two of
/// its draws. The probability that an honest draw takes longer is e⁻¹⁶.
const SKIPPED_PER_DRAW: u64 = 16;
/// The rounds that a device tolerates to miss before its first round under a roster. A server must not
/// use up the round numbers, because a device without numbers would need an empty ledger.
const SKIPPED_BEFORE_ROSTER: u64 = 1 << 32;

/// An error from [`Participant::join`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RefusedRound {
    /// No round can run under these parameters.
    #[error(transparent)]
    Params(#[from] ParamsError),
    /// The round belongs to a different session.
    #[error("the round belongs to a different session")]
    Session,
    /// The device has already joined this round or a later one.
    #[error("round {round} is stale: the last round was {last}")]
    Stale {
        /// The offered round.
        round: u64,
        /// The last round that the device joined.
        last: u64,
    },
    /// The server skipped more rounds than a device tolerates under one roster. With drawn cohorts
    /// it could otherwise choose the draw.
    #[error("{skipped} rounds were skipped since the last one, more than {most}")]
    Skipped {
        /// The skipped rounds.
        skipped: u64,
        /// The largest allowed number.
        most: u64,
    },
    /// The cohort is smaller than the policy allows.
    #[error("the cohort of {cohort} devices is smaller than {min_members}")]
    TooSmall {
        /// The size of the cohort.
        cohort: u32,
        /// The smallest allowed size.
        min_members: usize,
    },
    /// The graph and the threshold do not protect against the adversary of the policy.
    #[error("graph and threshold violate the policy")]
    Unsafe,
    /// The policy requires a drawn cohort, and the round contains no valid draw.
    #[error("the cohort has no valid draw")]
    NotDrawn,
    /// The device is not on its own roster, so that no device would accept its signatures.
    #[error("device {0} is not on the roster")]
    NotOnRoster(DeviceId),
}

/// A device in a session. It decides which rounds the device joins.
#[derive(Debug, Clone)]
pub struct Participant {
    identity: Arc<SigningIdentity>,
    roster: Arc<KeyRoster>,
    session: [u8; 16],
    policy: DevicePolicy,
    last_round: Option<u64>,
    /// Whether the last round belongs to this roster, so that the number of skipped rounds is
    /// limited.
    same_roster: bool,
}

impl Participant {
    /// Creates a participant that has joined no round of the session.
    pub fn new(
        identity: Arc<SigningIdentity>,
        roster: Arc<KeyRoster>,
        session: [u8; 16],
        policy: DevicePolicy,
    ) -> Self {
        Self { identity, roster, session, policy, last_round: None, same_roster: false }
    }

    /// Returns the same participant after a restart. `last` is the last round that it joined under
    /// the authority, in any session. `roster` is the version of the roster of this participant.
    #[must_use]
    pub fn resumed(self, last: Option<SeenRound>, roster: u64) -> Self {
        let same_roster = last.is_some_and(|last| last.roster == roster);
        Self { last_round: last.map(|last| last.round), same_roster, ..self }
    }

    /// Returns the last round joined. Store it before the first message of the round is sent.
    pub fn last_round(&self) -> Option<u64> {
        self.last_round
    }

    /// Joins a round, at most once. All randomness of the round is derived from 32 bytes of `rng`.
    ///
    /// # Errors
    ///
    /// Returns an error if the round is stale, invalid or violates the policy.
    pub fn join(
        &mut self,
        params: &RoundParams,
        now: Duration,
        rng: &mut impl CryptoRng,
    ) -> Result<DeviceRound, RefusedRound> {
        self.check(params)?;
        (self.last_round, self.same_roster) = (Some(params.id.round), true);
        let me = LocalDevice {
            identity: Arc::clone(&self.identity),
            roster: Arc::clone(&self.roster),
            params: params.clone(),
            header: params.digest(),
            policy: self.policy,
        };
        Ok(DeviceRound::join(me, now, rng))
    }

    fn check(&self, params: &RoundParams) -> Result<(), RefusedRound> {
        params.check()?;
        if params.id.session != self.session {
            return Err(RefusedRound::Session);
        }
        let stale = self.last_round.filter(|&last| params.id.round <= last);
        if let Some(last) = stale.filter(|_| self.policy.defences.has(Defence::JoinedOnce)) {
            return Err(RefusedRound::Stale { round: params.id.round, last });
        }
        let next = self.last_round.map_or(0, |last| last.saturating_add(1));
        let skipped = params.id.round.saturating_sub(next);
        let most = if self.same_roster { self.most_skipped(params.cohort) } else { SKIPPED_BEFORE_ROSTER };
        if skipped > most && self.policy.defences.has(Defence::BoundedSkips) {
            return Err(RefusedRound::Skipped { skipped, most });
        }
        let min_members = self.policy.min_members;
        if (params.cohort as usize) < min_members && self.policy.defences.has(Defence::MinMembers) {
            return Err(RefusedRound::TooSmall { cohort: params.cohort, min_members });
        }
        if !self.roster.contains(self.identity.id()) {
            return Err(RefusedRound::NotOnRoster(self.identity.id()));
        }
        if !self.is_drawn(params) {
            return Err(RefusedRound::NotDrawn);
        }
        let is_checked = self.policy.defences.has(Defence::AdversaryModel);
        if is_checked && !self.policy.adversary.allows(params.graph, params.cohort) {
            return Err(RefusedRound::Unsafe);
        }
        Ok(())
    }

    /// Returns the largest number of rounds that may pass between two rounds of this device under
    /// one roster. A device of a large fleet is rarely drawn, so that it grows with the roster.
    fn most_skipped(&self, cohort: u32) -> u64 {
        FEW_SKIPPED + SKIPPED_PER_DRAW * (self.roster.len() as u64).div_ceil(u64::from(cohort.max(1)))
    }

    /// Returns true if the round opens the draw of its number, or if the policy requires no draw.
    fn is_drawn(&self, params: &RoundParams) -> bool {
        match (self.policy.max_left_out, self.roster.draws(), &params.draw) {
            (None, _, _) => true,
            (Some(_), Some(draws), Some(opening)) => draws.verifies(params.id.round, opening),
            (Some(_), _, _) => false,
        }
    }
}

impl AdversaryModel {
    fn allows(self, graph: GraphRule, cohort: u32) -> bool {
        let covers = |theirs: CollusionBound, ours: CollusionBound| {
            theirs.devices_in(cohort) >= ours.devices_in(cohort)
        };
        match (self, graph) {
            (Self::Active { gamma }, GraphRule::Active { gamma: theirs, .. }) => covers(theirs, gamma),
            (Self::Active { gamma }, GraphRule::Full { threshold }) => {
                threshold as usize >= active_threshold(cohort as usize, gamma.devices_in(cohort))
            }
            (Self::Active { .. }, GraphRule::HonestButCurious { .. }) => false,
            (Self::HonestButCurious { gamma, .. }, GraphRule::Active { gamma: theirs, .. }) => {
                covers(theirs, gamma)
            }
            (Self::HonestButCurious { gamma, .. }, GraphRule::Full { threshold }) => {
                threshold as usize > gamma.devices_in(cohort)
            }
            (
                Self::HonestButCurious { gamma, delta },
                GraphRule::HonestButCurious { gamma: theirs, delta: dropping },
            ) => covers(theirs, gamma) && dropping >= delta,
        }
    }
}

/// The identity, policy and parameters that a device needs in every phase.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(super) struct LocalDevice {
    pub(super) identity: Arc<SigningIdentity>,
    pub(super) roster: Arc<KeyRoster>,
    pub(super) params: RoundParams,
    pub(super) header: Sha256Digest,
    pub(super) policy: DevicePolicy,
}

impl LocalDevice {
    pub(super) fn id(&self) -> DeviceId {
        self.identity.id()
    }

    /// Returns how many devices were drawn and left out for these members. Returns `None` if the
    /// roster or the round contains no draw.
    pub(super) fn left_out(&self, members: &DeviceSet) -> Option<LeftOut> {
        let (draws, opening) = (self.roster.draws()?, self.params.draw.as_ref()?);
        Some(draws.left_out(self.params.id.round, opening, self.roster.ids(), members))
    }

    /// Returns the graph over these members.
    pub(super) fn graph(&self, members: &DeviceSet, seed: &Sha256Digest) -> Graph {
        Graph::for_params(&self.params, members, seed, self.policy.defences)
    }

    /// Checks that all signatures are valid.
    pub(super) fn check_signatures<'s>(
        &self,
        signed: impl IntoIterator<Item = Signed<'s>>,
    ) -> Result<(), Abort> {
        let signed: Vec<_> = signed.into_iter().collect();
        self.roster.first_forged(&signed).map_or(Ok(()), |id| Err(Abort::BadSignature(id)))
    }

    /// Returns true if the graph of the round is drawn from commitments.
    pub(super) fn is_committed(&self) -> bool {
        self.params.graph.is_committed(self.params.cohort)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mask::MaskSuite;
    use crate::params::RoundId;
    use chacha20::ChaCha20Rng;
    use rand_core::SeedableRng;

    fn permille(value: u16) -> Permille {
        Permille::new(value).unwrap()
    }

    fn participant(adversary: AdversaryModel) -> Participant {
        let identity = SigningIdentity::from_secret(DeviceId(1), &[1; 32]);
        let mut roster = KeyRoster::new();
        roster.add(identity.id(), &identity.public()).unwrap();
        let policy = DevicePolicy {
            min_members: 5,
            adversary,
            max_len: 100,
            patience: Duration::from_secs(1),
            max_left_out: None,
            defences: Defences::default(),
        };
        Participant::new(Arc::new(identity), Arc::new(roster), [7; 16], policy)
    }

    fn params(graph: GraphRule) -> RoundParams {
        let id = RoundId { session: [7; 16], round: 3 };
        RoundParams { id, suite: MaskSuite::default(), cohort: 10, graph, slots: 1, draw: None }
    }

    fn join(participant: &mut Participant, params: &RoundParams) -> Result<(), RefusedRound> {
        participant.join(params, Duration::ZERO, &mut ChaCha20Rng::seed_from_u64(1)).map(|_| ())
    }

    const ACTIVE: fn() -> AdversaryModel = || AdversaryModel::Active { gamma: CollusionBound::Devices(2) };

    fn active(gamma: CollusionBound) -> GraphRule {
        GraphRule::Active { gamma, delta: permille(200) }
    }

    fn curious(gamma: u16, delta: u16) -> GraphRule {
        GraphRule::HonestButCurious { gamma: permille(gamma).into(), delta: permille(delta) }
    }

    #[test]
    fn a_round_is_joined_at_most_once_and_an_older_one_never() {
        let mut participant = participant(ACTIVE());
        let params = params(GraphRule::Full { threshold: 7 });
        assert_eq!(join(&mut participant, &params), Ok(()));
        assert_eq!(join(&mut participant, &params), Err(RefusedRound::Stale { round: 3, last: 3 }));
        let mut older = params.clone();
        older.id.round = 2;
        assert_eq!(join(&mut participant, &older), Err(RefusedRound::Stale { round: 2, last: 3 }));
        let mut restarted = self::participant(ACTIVE())
            .resumed(participant.last_round().map(|round| SeenRound { round, roster: 1 }), 1);
        assert!(matches!(join(&mut restarted, &params), Err(RefusedRound::Stale { .. })));
    }

    #[test]
    fn against_an_active_server_the_graph_must_cover_its_accomplices() {
        for (graph, allowed) in [
            (GraphRule::Full { threshold: 7 }, true),
            (GraphRule::Full { threshold: 6 }, false),
            (active(CollusionBound::Devices(2)), true),
            (active(CollusionBound::Share(permille(200))), true),
            (active(CollusionBound::Devices(1)), false),
            (active(CollusionBound::Share(permille(199))), false),
            (curious(500, 500), false),
        ] {
            let answer = join(&mut participant(ACTIVE()), &params(graph));
            assert_eq!(answer, if allowed { Ok(()) } else { Err(RefusedRound::Unsafe) }, "{graph:?}");
        }
    }

    #[test]
    fn against_a_curious_server_the_graph_must_cover_the_colluding_share() {
        let adversary =
            AdversaryModel::HonestButCurious { gamma: CollusionBound::Devices(2), delta: permille(100) };
        for (graph, allowed) in [
            (GraphRule::Full { threshold: 3 }, true),
            (GraphRule::Full { threshold: 2 }, false),
            (curious(200, 100), true),
            (curious(199, 100), false),
            (curious(200, 99), false),
            (active(CollusionBound::Devices(2)), true),
            (active(CollusionBound::Devices(1)), false),
        ] {
            assert_eq!(join(&mut participant(adversary), &params(graph)).is_ok(), allowed, "{graph:?}");
        }
    }

    #[test]
    fn skipped_rounds_are_limited_under_one_roster_and_a_newer_roster_resets_the_limit() {
        let params = |round| {
            let mut params = params(GraphRule::Full { threshold: 7 });
            params.id.round = round;
            params
        };
        let seen = Some(SeenRound { round: 10, roster: 1 });
        let most = FEW_SKIPPED + SKIPPED_PER_DRAW;
        let far = 10 + most + 2;
        let mut device = participant(ACTIVE()).resumed(seen, 1);
        let skipped = Err(RefusedRound::Skipped { skipped: most + 1, most });
        assert_eq!(join(&mut device, &params(far)), skipped);
        assert_eq!(join(&mut device, &params(far - 1)), Ok(()));
        assert!(join(&mut device, &params(u64::MAX)).is_err(), "also after it has joined");
        let mut device = participant(ACTIVE()).resumed(seen, 2);
        assert_eq!(join(&mut device, &params(9)), Err(RefusedRound::Stale { round: 9, last: 10 }));
        assert_eq!(join(&mut device, &params(far)), Ok(()));
    }

    #[test]
    fn a_server_cannot_use_up_the_round_numbers() {
        let params = |round| {
            let mut params = params(GraphRule::Full { threshold: 7 });
            params.id.round = round;
            params
        };
        let most = SKIPPED_BEFORE_ROSTER;
        for (seen, first) in [(None, 0), (Some(SeenRound { round: 10, roster: 1 }), 11)] {
            let device = || participant(ACTIVE()).resumed(seen, 2);
            for round in [first + most + 1, u64::MAX] {
                let skipped = Err(RefusedRound::Skipped { skipped: round - first, most });
                assert_eq!(join(&mut device(), &params(round)), skipped);
            }
            assert_eq!(join(&mut device(), &params(first + most)), Ok(()));
        }
    }

    #[test]
    fn a_small_cohort_a_different_session_and_an_unknown_device_are_rejected() {
        let graph = GraphRule::Full { threshold: 4 };
        let small = RoundParams { cohort: 4, ..params(graph) };
        let mut device = participant(ACTIVE());
        assert_eq!(join(&mut device, &small), Err(RefusedRound::TooSmall { cohort: 4, min_members: 5 }));
        let mut foreign = params(graph);
        foreign.id.session = [8; 16];
        assert_eq!(join(&mut device, &foreign), Err(RefusedRound::Session));
        device.roster = Arc::new(KeyRoster::new());
        assert_eq!(join(&mut device, &params(graph)), Err(RefusedRound::NotOnRoster(DeviceId(1))));
    }
}
