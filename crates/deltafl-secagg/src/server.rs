//! The server's side of a round.
//!
//! A [`ServerRound`] processes the devices' messages and the time, and produces messages, deadlines
//! and events. A phase ends when every active device has answered or when its deadline passes. It
//! continues with the devices that have answered. Below the threshold the round ends with a
//! [`RoundFailure`].

mod confirm;
mod outcome;
mod setup;
mod slot;
mod unmask;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use self::confirm::Confirming;
pub use self::outcome::{Misbehaviour, OpenSlotError, PhaseName, RefusedMessage, RoundFailure};
use self::setup::{Advertising, Revealing, Sharing};
use self::slot::{Attesting, Collecting, Idle, Unmasking};
use crate::defences::{Defence, Defences};
use crate::graph::Graph;
use crate::identity::{DeviceId, KeyRoster};
use crate::message::wire::{box_len, deposit_len};
use crate::message::{
    DeviceBody, DeviceMessage, DeviceSet, KeyBundle, REVEALED_LEN, ServerBody, ServerMessage,
};
use crate::params::{ParamsError, RoundParams, SlotSpec};
use crate::ring::{Ring, RingVector};
use crate::shamir::SHARE_LEN;
use crate::transcript::Sha256Digest;

/// Bytes reserved for the short fields of a message.
pub(crate) const ENVELOPE: usize = 256;

/// The configuration of a server's round.
#[derive(Debug, Clone)]
pub struct ServerRoundConfig {
    /// The public parameters.
    pub params: RoundParams,
    /// The devices to invite.
    pub cohort: DeviceSet,
    /// The verifying keys of the devices.
    pub roster: Arc<KeyRoster>,
    /// The smallest number of devices in a sum.
    pub min_members: usize,
    /// The time limit of each phase.
    pub phase_timeout: Duration,
}

/// A message and its recipients.
#[derive(Debug, Clone)]
pub struct Transmit {
    /// The recipients.
    pub to: DeviceSet,
    /// The message, identical for all recipients.
    pub message: ServerMessage,
}

/// An event for the application that runs the server.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ServerRoundEvent {
    /// Keys are set up, or the previous slot is done. Call [`ServerRound::open_slot`].
    Ready {
        /// The slot to open.
        slot: u32,
        /// The active devices.
        active: DeviceSet,
    },
    /// A device misbehaved. The round continues.
    Caught {
        /// The device.
        device: DeviceId,
        /// The kind of misbehaviour.
        misbehaviour: Misbehaviour,
    },
    /// One of two devices misbehaved, and it is not known which.
    ///
    /// At the end of the key set-up, the box that `owner` sealed for `holder` does not open, or the
    /// two devices disagree on their common key. Both are left out. During unmasking, the share
    /// that `holder` revealed differs from the share that `owner` sealed. The share is corrected.
    Disputed {
        /// The device that owns the secret.
        owner: DeviceId,
        /// The device that holds the share.
        holder: DeviceId,
    },
    /// The sum of a slot.
    Sum(SlotSum),
    /// The round failed, and the remaining sums are lost. The shares that devices revealed so far
    /// open no sum other than that of the failed slot.
    Ended(RoundFailure),
}

/// The sum of a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotSum {
    /// The slot.
    pub slot: u32,
    /// Σ of the survivors' inputs.
    pub sum: RingVector,
    /// The devices whose inputs are in the sum.
    pub survivors: DeviceSet,
    /// The keys that devices revealed for this number of survivors.
    pub revealed: BTreeMap<DeviceId, [u8; REVEALED_LEN]>,
}

/// A server's state machine for one round.
///
/// It can be cloned and stored for recovery: it holds no secret, and each device answers each
/// request only once.
#[derive(Debug, Clone)]
pub struct ServerRound {
    round: RoundContext,
    phase: Phase,
    outbox: VecDeque<Transmit>,
    events: VecDeque<ServerRoundEvent>,
    deadline: Option<Duration>,
}

/// The data that the server needs in every phase.
#[derive(Debug, Clone)]
struct RoundContext {
    params: RoundParams,
    header: Sha256Digest,
    roster: Arc<KeyRoster>,
    min_members: usize,
    phase_timeout: Duration,
    defences: Defences,
}

#[derive(Debug, Clone)]
enum Phase {
    Advertising(Advertising),
    Revealing(Revealing),
    Sharing(Sharing),
    Confirming(Confirming),
    Idle(Idle),
    Collecting(Collecting),
    Attesting(Attesting),
    Unmasking(Unmasking),
    Over,
}

/// The next phase, with the messages and events of the transition.
struct PhaseTransition {
    phase: Phase,
    messages: Vec<(DeviceSet, ServerBody)>,
    events: Vec<ServerRoundEvent>,
}

impl ServerRound {
    /// Starts a round by inviting the cohort.
    ///
    /// # Errors
    ///
    /// Returns an error if the parameters are invalid or the cohort is larger than they allow.
    pub fn new(config: ServerRoundConfig, now: Duration) -> Result<Self, ParamsError> {
        let ServerRoundConfig { params, cohort, roster, min_members, phase_timeout } = config;
        params.check()?;
        if cohort.len() > params.cohort as usize {
            return Err(ParamsError::Cohort(params.cohort));
        }
        let (header, defences) = (params.digest(), Defences::default());
        let round = RoundContext { header, params, roster, min_members, phase_timeout, defences };
        let invite = ServerBody::Invite(round.params.clone());
        let mut server = Self {
            deadline: Some(now.saturating_add(round.phase_timeout)),
            round,
            phase: Phase::Advertising(Advertising::new(cohort.clone())),
            outbox: VecDeque::new(),
            events: VecDeque::new(),
        };
        server.send(cohort, invite);
        Ok(server)
    }

    /// Switches checks off, for tests of attacks: a malicious server does not enforce the limits of
    /// devices. It has no effect without the feature `test-util`.
    #[must_use]
    pub fn with_defences(mut self, defences: Defences) -> Self {
        self.round.defences = defences;
        self
    }

    /// Processes a device's message.
    ///
    /// The message that completes unmasking also computes the sum, which takes time for long
    /// vectors.
    ///
    /// # Errors
    ///
    /// Returns an error if the message is rejected. The state is then unchanged.
    pub fn handle(
        &mut self,
        now: Duration,
        from: DeviceId,
        message: DeviceMessage,
    ) -> Result<(), RefusedMessage> {
        if message.round != self.round.params.id {
            return Err(RefusedMessage::WrongRound);
        }
        match (&mut self.phase, message.body) {
            (Phase::Advertising(phase), DeviceBody::Advertise(bundle)) => {
                phase.take(&self.round, from, bundle)
            }
            (Phase::Revealing(phase), DeviceBody::Reveal(nonce)) => phase.take(&self.round, from, nonce),
            (Phase::Sharing(phase), DeviceBody::Shares(boxes)) => phase.take(&self.round, from, boxes),
            (Phase::Confirming(phase), DeviceBody::Confirm { complaints, deposits }) => {
                phase.take(&self.round, from, complaints, deposits)
            }
            (Phase::Collecting(phase), DeviceBody::MaskedInput { slot, input, signature }) => {
                phase.take(&self.round, from, slot, &input, signature)
            }
            (Phase::Attesting(phase), DeviceBody::Attest { slot, signature }) => {
                phase.take(&self.round, from, slot, signature)
            }
            (Phase::Unmasking(phase), DeviceBody::Unmask { slot, shares, revealed }) => {
                phase.take(from, slot, shares, revealed)
            }
            _ => Err(RefusedMessage::WrongPhase),
        }?;
        if self.phase.is_complete() {
            self.advance(now);
        } else if let Phase::Sharing(phase) = &mut self.phase {
            for (to, body) in phase.forward(&self.round) {
                self.send(to, body);
            }
        }
        Ok(())
    }

    /// Ends a phase whose deadline has passed, with the devices that have answered.
    pub fn handle_timeout(&mut self, now: Duration) {
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            self.advance(now);
        }
    }

    /// Returns the next message to send, if any.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.outbox.pop_front()
    }

    /// Returns when to call [`Self::handle_timeout`] next, on the clock of the caller's `now`.
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.deadline
    }

    /// Returns the next event, if any.
    pub fn poll_event(&mut self) -> Option<ServerRoundEvent> {
        self.events.pop_front()
    }

    /// Returns the longest message that an honest device can send now: the limit for
    /// [`decode_device`](crate::message::wire::decode_device).
    pub fn message_limit(&self) -> usize {
        let RoundContext { params, .. } = &self.round;
        ENVELOPE
            + match &self.phase {
                Phase::Advertising(_) => KeyBundle::len_for(params.slots),
                Phase::Sharing(phase) => phase.degree() * (4 + box_len(params.slots)),
                Phase::Confirming(phase) => phase.degree() * (4 + deposit_len(params.slots)),
                Phase::Collecting(phase) => phase.input_len(),
                Phase::Unmasking(phase) => (phase.degree() + 1) * (4 + SHARE_LEN),
                Phase::Revealing(_) | Phase::Attesting(_) | Phase::Idle(_) | Phase::Over => 0,
            }
    }

    /// Opens the slot named in [`ServerRoundEvent::Ready`], bound to `context`. Δ-FL binds η and
    /// the hash of w_t.
    ///
    /// # Errors
    ///
    /// Returns an error if no slot can be opened now, or if too few devices are left.
    pub fn open_slot(
        &mut self,
        now: Duration,
        ring: Ring,
        len: u32,
        context: &[u8],
    ) -> Result<(), OpenSlotError> {
        let Phase::Idle(idle) = &self.phase else {
            return Err(OpenSlotError::NotReady);
        };
        let spec = SlotSpec::new(idle.next_slot(), ring, len, context);
        let Phase::Idle(idle) = std::mem::replace(&mut self.phase, Phase::Over) else {
            return Err(OpenSlotError::NotReady);
        };
        match idle.open(&self.round, spec) {
            Ok(step) => {
                self.enter(now, step);
                Ok(())
            }
            Err(failure) => {
                self.end(failure.clone());
                Err(OpenSlotError::Ended(failure))
            }
        }
    }

    fn advance(&mut self, now: Duration) {
        let phase = std::mem::replace(&mut self.phase, Phase::Over);
        match phase.finish(&self.round) {
            Ok(step) => self.enter(now, step),
            Err(failure) => self.end(failure),
        }
    }

    fn enter(&mut self, now: Duration, step: PhaseTransition) {
        let waits = !matches!(step.phase, Phase::Idle(_) | Phase::Over);
        self.deadline = waits.then(|| now.saturating_add(self.round.phase_timeout));
        self.phase = step.phase;
        for (to, body) in step.messages {
            self.send(to, body);
        }
        self.events.extend(step.events);
    }

    fn end(&mut self, failure: RoundFailure) {
        self.phase = Phase::Over;
        self.deadline = None;
        self.events.push_back(ServerRoundEvent::Ended(failure));
    }

    fn send(&mut self, to: DeviceSet, body: ServerBody) {
        self.outbox.push_back(Transmit { to, message: ServerMessage { round: self.round.params.id, body } });
    }
}

impl Phase {
    fn is_complete(&self) -> bool {
        match self {
            Self::Advertising(phase) => phase.is_complete(),
            Self::Revealing(phase) => phase.is_complete(),
            Self::Sharing(phase) => phase.is_complete(),
            Self::Confirming(phase) => phase.is_complete(),
            Self::Collecting(phase) => phase.is_complete(),
            Self::Attesting(phase) => phase.is_complete(),
            Self::Unmasking(phase) => phase.is_complete(),
            Self::Idle(_) | Self::Over => false,
        }
    }

    fn finish(self, round: &RoundContext) -> Result<PhaseTransition, RoundFailure> {
        match self {
            Self::Advertising(phase) => phase.finish(round),
            Self::Revealing(phase) => phase.finish(round),
            Self::Sharing(phase) => phase.finish(round),
            Self::Confirming(phase) => phase.finish(round),
            Self::Collecting(phase) => phase.finish(round),
            Self::Attesting(phase) => phase.finish(round),
            Self::Unmasking(phase) => phase.finish(round),
            // These phases have no deadline and wait for no message, so nothing ends them.
            Self::Idle(_) | Self::Over => {
                Ok(PhaseTransition { phase: self, messages: Vec::new(), events: Vec::new() })
            }
        }
    }
}

impl RoundContext {
    /// Returns the smallest number of members with which the round continues before the graph is
    /// known.
    fn least(&self) -> usize {
        let of_cohort = match self.defences.has(Defence::MembersOfCohort) {
            true => self.params.graph.min_members(self.params.cohort),
            false => 0,
        };
        self.min_members.max(of_cohort).max(2)
    }

    /// Returns the graph over these members.
    fn graph(&self, members: &DeviceSet, seed: &Sha256Digest) -> Graph {
        Graph::for_params(&self.params, members, seed, self.defences)
    }

    /// Fails if there are too few devices.
    fn enough(&self, phase: PhaseName, have: usize, need: usize) -> Result<(), RoundFailure> {
        if have < need { Err(RoundFailure::TooFew { phase, have, need }) } else { Ok(()) }
    }
}
