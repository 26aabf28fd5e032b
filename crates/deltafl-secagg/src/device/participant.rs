//! A device's standing in a session: who it is, whom it knows, what it insists on, which rounds it has seen.

use std::sync::Arc;
use std::time::Duration;

use rand_core::CryptoRng;
use thiserror::Error;

use super::DeviceRound;
use super::abort::Abort;
use crate::draw::LeftOut;
use crate::graph::{CollusionBound, GraphRule, Permille, active_threshold};
use crate::identity::{DeviceId, KeyRoster, Signed, SigningIdentity};
use crate::message::DeviceSet;
use crate::params::{ParamsError, RoundParams};
use crate::transcript::Sha256Digest;

/// Against whom a device insists on being protected (see `docs/src/explanation/threat-model.md`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum AdversaryModel {
    /// A server that follows the protocol and looks at everything, with γ of the cohort on its side.
    HonestButCurious {
        /// γ.
        gamma: CollusionBound,
        /// δ, the share that may drop out: what is left must still hang together.
        delta: Permille,
    },
    /// A server that does as it pleases: a graph that holds against it, or the device stays away.
    Active {
        /// γ.
        gamma: CollusionBound,
    },
}

/// The server lies, and 5 % of the cohort collude with it.
impl Default for AdversaryModel {
    fn default() -> Self {
        Self::Active { gamma: Permille::new(50).unwrap_or_default().into() }
    }
}

/// What a device insists on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DevicePolicy {
    /// The fewest devices to hide among, this one included.
    pub min_members: usize,
    /// Against whom.
    pub adversary: AdversaryModel,
    /// The longest vector that is worked on.
    pub max_len: u32,
    /// How long the server may be silent.
    pub patience: Duration,
    /// The largest share of the drawn that may be left out of a round; `None` insists on no draw.
    pub max_left_out: Option<Permille>,
}

/// Why a device stays away from a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RefusedRound {
    /// Parameters under which no round can run.
    #[error(transparent)]
    Params(#[from] ParamsError),
    /// Another session.
    #[error("the round belongs to another session")]
    Session,
    /// A round that this device has seen, or an older one.
    #[error("round {round} is stale: round {last} was the last")]
    Stale {
        /// The round offered.
        round: u64,
        /// The last round joined.
        last: u64,
    },
    /// A cohort too small to hide in.
    #[error("a cohort of {cohort} is smaller than {min_members}")]
    TooSmall {
        /// The cohort.
        cohort: u32,
        /// The fewest allowed.
        min_members: usize,
    },
    /// Graph and threshold do not protect against the adversary of the policy.
    #[error("graph and threshold do not meet the policy")]
    Unsafe,
    /// The roster says how cohorts are drawn, or the policy insists on it, and this one was not drawn so.
    #[error("nothing shows that the cohort was drawn")]
    NotDrawn,
    /// The device is not on its own roster, so nobody would believe its signatures.
    #[error("device {0} is not on the roster")]
    NotOnRoster(DeviceId),
}

/// A device's standing in a session.
#[derive(Debug, Clone)]
pub struct Participant {
    identity: Arc<SigningIdentity>,
    roster: Arc<KeyRoster>,
    session: [u8; 16],
    policy: DevicePolicy,
    last_round: Option<u64>,
}

impl Participant {
    /// A device that has seen no round of the session.
    pub fn new(
        identity: Arc<SigningIdentity>,
        roster: Arc<KeyRoster>,
        session: [u8; 16],
        policy: DevicePolicy,
    ) -> Self {
        Self { identity, roster, session, policy, last_round: None }
    }

    /// The same device after a restart, when `last_round` was the last that it joined.
    #[must_use]
    pub fn resumed(self, last_round: Option<u64>) -> Self {
        Self { last_round, ..self }
    }

    /// The last round joined, to be stored before its first message is sent.
    pub fn last_round(&self) -> Option<u64> {
        self.last_round
    }

    /// Joins a round, once. All randomness of the round comes from 32 bytes of `rng`.
    pub fn join(
        &mut self,
        params: &RoundParams,
        now: Duration,
        rng: &mut impl CryptoRng,
    ) -> Result<DeviceRound, RefusedRound> {
        self.check(params)?;
        self.last_round = Some(params.id.round);
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
        if let Some(last) = self.last_round.filter(|&last| params.id.round <= last) {
            return Err(RefusedRound::Stale { round: params.id.round, last });
        }
        let min_members = self.policy.min_members;
        if (params.cohort as usize) < min_members {
            return Err(RefusedRound::TooSmall { cohort: params.cohort, min_members });
        }
        if !self.roster.contains(self.identity.id()) {
            return Err(RefusedRound::NotOnRoster(self.identity.id()));
        }
        if !self.is_drawn(params) {
            return Err(RefusedRound::NotDrawn);
        }
        if !self.policy.adversary.allows(params.graph, params.cohort) {
            return Err(RefusedRound::Unsafe);
        }
        Ok(())
    }

    /// Whether the round opens the draw that its number stands for, where the policy insists on one.
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

/// What a device knows about itself and the round, in every phase.
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

    /// How many devices were drawn for these members and left out; `None` where the roster or the round says
    /// nothing of draws.
    pub(super) fn left_out(&self, members: &DeviceSet) -> Option<LeftOut> {
        let (draws, opening) = (self.roster.draws()?, self.params.draw.as_ref()?);
        Some(draws.left_out(self.params.id.round, opening, self.roster.ids(), members))
    }

    /// Whether everybody signed what it is said to have signed.
    pub(super) fn check_signatures<'s>(
        &self,
        signed: impl IntoIterator<Item = Signed<'s>>,
    ) -> Result<(), Abort> {
        let signed: Vec<_> = signed.into_iter().collect();
        self.roster.first_forged(&signed).map_or(Ok(()), |id| Err(Abort::BadSignature(id)))
    }

    /// Whether the graph of the round is drawn from commitments.
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
    fn a_round_is_joined_once_and_an_older_one_never() {
        let mut participant = participant(ACTIVE());
        let params = params(GraphRule::Full { threshold: 7 });
        assert_eq!(join(&mut participant, &params), Ok(()));
        assert_eq!(join(&mut participant, &params), Err(RefusedRound::Stale { round: 3, last: 3 }));
        let mut older = params.clone();
        older.id.round = 2;
        assert_eq!(join(&mut participant, &older), Err(RefusedRound::Stale { round: 2, last: 3 }));
        let mut restarted = self::participant(ACTIVE()).resumed(participant.last_round());
        assert!(matches!(join(&mut restarted, &params), Err(RefusedRound::Stale { .. })));
    }

    #[test]
    fn against_an_active_server_only_a_graph_that_covers_its_accomplices_will_do() {
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
    fn against_a_curious_server_the_colluding_share_must_be_covered() {
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
    fn a_small_cohort_another_session_and_a_stranger_are_refused() {
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
