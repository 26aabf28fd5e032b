//! A device's side of a round.
//!
//! A [`DeviceRound`] takes the server's messages in, in the order in which they were sent, and gives its own out;
//! it sends nothing and awaits nothing. It trusts the roster and its own policy, and the server with nothing:
//! whatever does not fit makes it [`Abort`], after which it holds no secret of the round and says no more.

mod abort;
mod joining;
mod member;
mod participant;
mod seen_rounds;
mod sharing;
mod slot;

use std::collections::VecDeque;
use std::time::Duration;

use rand_core::CryptoRng;

pub use self::abort::{Abort, SubmitError};
use self::joining::{Joined, Placed, Revealed};
use self::participant::LocalDevice;
pub use self::participant::{AdversaryModel, DevicePolicy, Participant, RefusedRound};
pub use self::seen_rounds::{SeenRounds, SeenRoundsError};
use self::sharing::Sharing;
use self::slot::{Asked, Attested, Idle, Masked};
use crate::draw::LeftOut;
use crate::identity::SIGNATURE_LEN;
use crate::message::wire::box_len;
use crate::message::{
    DeviceBody, DeviceMessage, DeviceSet, KeyBundle, NONCE_COMMITMENT_LEN, REVEAL_LEN, ServerBody,
    ServerMessage,
};
use crate::params::RoundParams;
use crate::ring::{Ring, RingVector};
use crate::server::ENVELOPE;

/// A device in a round.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub struct DeviceRound {
    me: LocalDevice,
    phase: Phase,
    outbox: VecDeque<DeviceMessage>,
    events: VecDeque<DeviceEvent>,
    deadline: Option<Duration>,
}

/// What a device tells the program around it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceEvent {
    /// The server opened a slot: hand the input in with [`DeviceRound::submit`].
    InputWanted(SlotRequest),
    /// The device has done its part of a slot.
    SlotDone {
        /// The slot.
        slot: u32,
    },
    /// The device has done its part of the round.
    RoundDone,
    /// The device left the round.
    Aborted(Abort),
}

/// The input that the server asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotRequest {
    /// The slot.
    pub slot: u32,
    /// The ring of the sum.
    pub ring: Ring,
    /// The number of coordinates.
    pub len: u32,
    /// The devices among which the input hides, this one included.
    pub active: usize,
}

#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
enum Phase {
    Joined(Joined),
    Revealed(Revealed),
    Placed(Placed),
    Sharing(Sharing),
    Idle(Idle),
    Asked(Asked),
    Masked(Masked),
    Attested(Attested),
    Over,
}

impl DeviceRound {
    /// Joins a round that policy and roster allow; [`Participant::join`] is the way here.
    fn join(me: LocalDevice, now: Duration, rng: &mut impl CryptoRng) -> Self {
        let (joined, advertise) = Joined::new(&me, rng);
        let deadline = Some(now.saturating_add(me.policy.patience));
        let phase = Phase::Joined(joined);
        let mut device = Self { me, phase, outbox: VecDeque::new(), events: VecDeque::new(), deadline };
        device.send(advertise);
        device
    }

    /// The parameters of the round.
    pub fn params(&self) -> &RoundParams {
        &self.me.params
    }

    /// How many devices were drawn for these members and left out; `None` where the roster or the round says
    /// nothing of draws.
    pub fn left_out(&self, members: &DeviceSet) -> Option<LeftOut> {
        self.me.left_out(members)
    }

    /// Whether the device knows its neighbours on a drawn graph, so that the next keys are theirs alone.
    pub fn is_placed(&self) -> bool {
        matches!(self.phase, Phase::Revealed(_) | Phase::Placed(_))
    }

    /// The longest message that a server has reason to send now: the limit for
    /// [`decode_server`](crate::message::wire::decode_server). What comes from neighbours grows with their
    /// number, and only lists of ids and commitments with the cohort.
    pub fn message_limit(&self) -> usize {
        let params = &self.me.params;
        let (cohort, bundle) = (params.cohort as usize, KeyBundle::len_for(params.slots));
        let sealed = box_len(params.slots);
        let (records, len) = match &self.phase {
            Phase::Joined(_) if self.me.is_committed() => (cohort, NONCE_COMMITMENT_LEN),
            Phase::Joined(_) => (cohort, bundle),
            Phase::Revealed(revealed) => (revealed.drawers(&self.me), REVEAL_LEN),
            Phase::Placed(placed) => (placed.degree(), bundle),
            Phase::Sharing(sharing) => (sharing.degree(), sealed),
            Phase::Idle(_) | Phase::Asked(_) | Phase::Masked(_) => (cohort, 0),
            Phase::Attested(attested) => (2 * attested.circle_len(), SIGNATURE_LEN),
            Phase::Over => (0, 0),
        };
        ENVELOPE + records * (4 + len)
    }

    /// Takes in a message of the server. A message that does not fit ends the round for this device.
    pub fn handle(&mut self, now: Duration, message: ServerMessage) -> Result<(), Abort> {
        self.deadline = self.deadline.map(|_| now.saturating_add(self.me.policy.patience));
        let phase = std::mem::replace(&mut self.phase, Phase::Over);
        match self.step(phase, message) {
            Ok(phase) => self.phase = phase,
            Err(abort) => return Err(self.abort(abort)),
        }
        Ok(())
    }

    /// Leaves the round if the server has been silent for too long.
    pub fn handle_timeout(&mut self, now: Duration) {
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            self.abort(Abort::ServerSilent);
        }
    }

    /// The next message to send to the server, if any.
    pub fn poll_transmit(&mut self) -> Option<DeviceMessage> {
        self.outbox.pop_front()
    }

    /// When to call [`Self::handle_timeout`] next, on the clock of the `now` that the caller passes in.
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.deadline
    }

    /// The next thing to tell the program, if any.
    pub fn poll_event(&mut self) -> Option<DeviceEvent> {
        self.events.pop_front()
    }

    /// Hands in the input of the open slot, bound to `context`: for Δ-FL, η and the hash of w_t as this
    /// device was told them. If other devices were told otherwise, their masks do not cancel with ours.
    pub fn submit(&mut self, context: &[u8], input: RingVector) -> Result<(), SubmitError> {
        let Phase::Asked(asked) = &self.phase else {
            return Err(SubmitError::NotAsked);
        };
        asked.check(&input)?;
        let Phase::Asked(asked) = std::mem::replace(&mut self.phase, Phase::Over) else {
            return Err(SubmitError::NotAsked);
        };
        let (masked, body) = asked.submit(&self.me, context, input);
        self.phase = Phase::Masked(masked);
        self.send(body);
        Ok(())
    }

    /// What a colluding device tells the server while it waits for the survivors of a slot: both shares of a
    /// device of its circle, deposit key and seed.
    #[cfg(test)]
    pub(crate) fn spill(&self, owner: crate::identity::DeviceId) -> Option<[crate::shamir::SecretShare; 2]> {
        match &self.phase {
            Phase::Masked(masked) => masked.spill(owner).map(|(deposit_key, seed)| [deposit_key, seed]),
            _ => None,
        }
    }

    /// One message in one phase. On an error the phase, and with it every secret, is gone.
    fn step(&mut self, phase: Phase, message: ServerMessage) -> Result<Phase, Abort> {
        if message.round != self.me.params.id {
            return Err(Abort::WrongRound(message.round));
        }
        let me = &self.me;
        let (phase, reply) = match (phase, message.body) {
            (Phase::Joined(phase), ServerBody::Keys(keys)) => {
                let (sharing, body) = phase.on_keys(me, keys)?;
                (Phase::Sharing(sharing), Some(body))
            }
            (Phase::Joined(phase), ServerBody::Commitments(commitments)) => {
                let (revealed, body) = phase.on_commitments(me, commitments)?;
                (Phase::Revealed(revealed), Some(body))
            }
            (Phase::Revealed(phase), ServerBody::Reveals(nonces)) => {
                (Phase::Placed(phase.on_reveals(me, &nonces)?), None)
            }
            (Phase::Placed(phase), ServerBody::Keys(keys)) => {
                let (sharing, body) = phase.on_keys(me, keys)?;
                (Phase::Sharing(sharing), Some(body))
            }
            (Phase::Sharing(phase), ServerBody::EarlyShares(boxes)) => {
                (Phase::Sharing(phase.on_early_shares(me, &boxes)?), None)
            }
            (Phase::Sharing(phase), ServerBody::Shares(boxes)) => {
                let (idle, body) = phase.on_shares(me, &boxes)?;
                (Phase::Idle(idle), Some(body))
            }
            (Phase::Idle(phase), ServerBody::OpenSlot { slot, ring, len, active }) => {
                let request = SlotRequest { slot, ring, len, active: active.len() };
                let asked = phase.on_open_slot(me, request, active)?;
                self.events.push_back(DeviceEvent::InputWanted(request));
                (Phase::Asked(asked), None)
            }
            (Phase::Masked(phase), ServerBody::Survivors { slot, survivors }) => {
                let (attested, body) = phase.on_survivors(me, slot, survivors)?;
                (Phase::Attested(attested), Some(body))
            }
            (Phase::Attested(phase), ServerBody::Attestations { slot, signatures, masked }) => {
                let (idle, body) = phase.on_attestations(me, slot, &signatures, &masked)?;
                self.events.push_back(DeviceEvent::SlotDone { slot });
                let phase = if slot + 1 == me.params.slots { self.finish() } else { Phase::Idle(idle) };
                (phase, Some(body))
            }
            _ => return Err(Abort::Unexpected),
        };
        if let Some(body) = reply {
            self.send(body);
        }
        Ok(phase)
    }

    fn finish(&mut self) -> Phase {
        self.deadline = None;
        self.events.push_back(DeviceEvent::RoundDone);
        Phase::Over
    }

    /// Drops every secret of the round and whatever was still to be said.
    fn abort(&mut self, abort: Abort) -> Abort {
        self.phase = Phase::Over;
        self.outbox.clear();
        self.deadline = None;
        self.events.push_back(DeviceEvent::Aborted(abort));
        abort
    }

    fn send(&mut self, body: DeviceBody) {
        self.outbox.push_back(DeviceMessage { round: self.me.params.id, body });
    }
}
