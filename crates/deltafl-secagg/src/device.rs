//! The device's side of a round.
//!
//! A [`DeviceRound`] processes the server's messages in the order in which they were sent, and
//! produces the device's messages. It performs no I/O. It trusts the roster and its own policy, but
//! not the server: an invalid message makes it [`Abort`]. After an abort it holds no secret of the
//! round and sends nothing.

mod abort;
mod joining;
mod member;
mod participant;
mod seen_rounds;
mod sharing;
mod slot;
mod survivor_keys;

use std::collections::VecDeque;
use std::time::Duration;

use rand_core::CryptoRng;

pub use self::abort::{Abort, SubmitError};
use self::joining::{Joined, Placed, Revealed};
use self::participant::LocalDevice;
pub use self::participant::{AdversaryModel, DevicePolicy, Participant, RefusedRound};
pub use self::seen_rounds::{SeenRound, SeenRounds, SeenRoundsError};
use self::sharing::Sharing;
use self::slot::{Asked, Attested, Idle, Masked};
pub use self::survivor_keys::SurvivorKeys;
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

/// A device's state machine for one round.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub struct DeviceRound {
    me: LocalDevice,
    phase: Phase,
    outbox: VecDeque<DeviceMessage>,
    events: VecDeque<DeviceEvent>,
    deadline: Option<Duration>,
}

/// An event for the application that runs the device.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceEvent {
    /// The server opened a slot. Pass the input to [`DeviceRound::submit`].
    InputWanted(SlotRequest),
    /// The device has completed a slot.
    SlotDone {
        /// The slot.
        slot: u32,
    },
    /// The device has completed the round.
    RoundDone,
    /// The device aborted the round.
    Aborted(Abort),
}

/// The input that the server requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotRequest {
    /// The slot.
    pub slot: u32,
    /// The ring of the sum.
    pub ring: Ring,
    /// The number of coordinates.
    pub len: u32,
    /// The number of active devices, including this one.
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
    /// Joins a round that policy and roster allow. [`Participant::join`] calls it.
    fn join(me: LocalDevice, now: Duration, rng: &mut impl CryptoRng) -> Self {
        let (joined, advertise) = Joined::new(&me, rng);
        let deadline = Some(now.saturating_add(me.policy.patience));
        let phase = Phase::Joined(joined);
        let mut device = Self { me, phase, outbox: VecDeque::new(), events: VecDeque::new(), deadline };
        device.send(advertise);
        device
    }

    /// Returns the parameters of the round.
    pub fn params(&self) -> &RoundParams {
        &self.me.params
    }

    /// Returns how many devices were drawn and left out for these members. Returns `None` if the
    /// roster or the round contains no draw.
    pub fn left_out(&self, members: &DeviceSet) -> Option<LeftOut> {
        self.me.left_out(members)
    }

    /// Returns true if the device knows its neighbours on a drawn graph and only waits for their
    /// keys.
    pub fn is_placed(&self) -> bool {
        matches!(self.phase, Phase::Revealed(_) | Phase::Placed(_))
    }

    /// Returns the longest message that an honest server can send now: the limit for
    /// [`decode_server`](crate::message::wire::decode_server). Messages from neighbours are
    /// proportional to the degree. Only lists of ids and commitments are proportional to the
    /// cohort.
    pub fn message_limit(&self) -> usize {
        let params = &self.me.params;
        let (cohort, bundle) = (params.cohort as usize, KeyBundle::len_for(params.slots));
        let sealed = box_len(params.slots);
        let (records, len) = match &self.phase {
            Phase::Joined(_) if self.me.is_committed() => (cohort, NONCE_COMMITMENT_LEN),
            Phase::Joined(_) => (cohort, bundle),
            Phase::Revealed(revealed) => (revealed.nonces(&self.me), REVEAL_LEN),
            Phase::Placed(placed) => (placed.degree(), bundle),
            Phase::Sharing(sharing) => (sharing.degree(), sealed),
            Phase::Idle(_) | Phase::Asked(_) | Phase::Masked(_) => (cohort, 0),
            Phase::Attested(attested) => (2 * attested.circle_len(), SIGNATURE_LEN),
            Phase::Over => (0, 0),
        };
        ENVELOPE + records * (4 + len)
    }

    /// Processes a message from the server.
    ///
    /// # Errors
    ///
    /// Returns an error if the message is invalid. The device has then aborted the round.
    pub fn handle(&mut self, now: Duration, message: ServerMessage) -> Result<(), Abort> {
        self.deadline = self.deadline.map(|_| now.saturating_add(self.me.policy.patience));
        let phase = std::mem::replace(&mut self.phase, Phase::Over);
        match self.step(phase, message) {
            Ok(phase) => self.phase = phase,
            Err(abort) => return Err(self.abort(abort)),
        }
        Ok(())
    }

    /// Aborts the round if the server has been silent for too long.
    pub fn handle_timeout(&mut self, now: Duration) {
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            self.abort(Abort::ServerSilent);
        }
    }

    /// Returns the next message for the server, if any.
    pub fn poll_transmit(&mut self) -> Option<DeviceMessage> {
        self.outbox.pop_front()
    }

    /// Returns when to call [`Self::handle_timeout`] next, on the clock of the caller's `now`.
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.deadline
    }

    /// Returns the next event, if any.
    pub fn poll_event(&mut self) -> Option<DeviceEvent> {
        self.events.pop_front()
    }

    /// Submits the input of the open slot, bound to `context`. Δ-FL binds η and the hash of w_t as
    /// received by this device. If other devices received a different context, the masks do not
    /// cancel.
    ///
    /// # Errors
    ///
    /// Returns an error if no slot is open or the input has the wrong ring or length.
    pub fn submit(&mut self, context: &[u8], input: RingVector) -> Result<(), SubmitError> {
        self.submit_with_keys(context, input, SurvivorKeys::default())
    }

    /// Submits the input of the open slot like [`submit`](Self::submit). After the survivors are
    /// attested, the device reveals at most one of the keys with its shares.
    ///
    /// # Errors
    ///
    /// Returns an error if no slot is open or the input has the wrong ring or length.
    pub fn submit_with_keys(
        &mut self,
        context: &[u8],
        input: RingVector,
        keys: SurvivorKeys,
    ) -> Result<(), SubmitError> {
        let Phase::Asked(asked) = &self.phase else {
            return Err(SubmitError::NotAsked);
        };
        asked.check(&input)?;
        let Phase::Asked(asked) = std::mem::replace(&mut self.phase, Phase::Over) else {
            return Err(SubmitError::NotAsked);
        };
        let (masked, body) = asked.submit(&self.me, context, input, keys);
        self.phase = Phase::Masked(masked);
        self.send(body);
        Ok(())
    }

    /// Returns the shares that a colluding device leaks while it waits for the survivors of a slot:
    /// both shares of a device of its circle, deposit key and seed.
    #[cfg(test)]
    pub(crate) fn spill(&self, owner: crate::identity::DeviceId) -> Option<[crate::shamir::SecretShare; 2]> {
        match &self.phase {
            Phase::Masked(masked) => masked.spill(owner).map(|(deposit_key, seed)| [deposit_key, seed]),
            _ => None,
        }
    }

    /// Processes one message in one phase. On an error, the phase and all its secrets are dropped.
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

    /// Drops every secret of the round and all queued messages.
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
