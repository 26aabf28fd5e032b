//! Secure aggregation with the devices of a cohort. Transports the messages of
//! [`deltafl_secagg::server::ServerRound`] and enforces its deadlines.
//!
//! A phase ends when all remaining devices have answered. The server does not wait for disconnected
//! devices.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use deltafl::exchange::Traffic;
use deltafl_secagg::Defences;
use deltafl_secagg::identity::DeviceId;
use deltafl_secagg::message::wire::{WireError, decode_device, encode_server_in_pieces};
use deltafl_secagg::message::{DeviceSet, ServerBody, ServerMessage};
use deltafl_secagg::ring::Ring;
use deltafl_secagg::server::{
    OpenSlotError, PhaseName, RefusedMessage, RoundFailure, ServerRound, ServerRoundConfig, ServerRoundEvent,
    SlotSum, Transmit,
};
use deltafl_wire::proto;
use deltafl_wire::proto::from_server;
use deltafl_wire::{FRAGMENT, fragments_from};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::hub::{Address, Hub, HubEvent, Outbound, SessionEvent, Status};
use crate::refusal::Refusal;

/// The time limits for devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// For each step of the key set-up.
    pub setup: Duration,
    /// For fetching parameters, training and submitting the masked answer.
    pub input: Duration,
    /// For the consistency check, and again for the unmasking.
    pub unmask: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        let minute = Duration::from_secs(60);
        Self { setup: minute / 2, input: 10 * minute, unmask: minute / 2 }
    }
}

impl Deadlines {
    fn for_phase(&self, phase: PhaseName) -> Duration {
        match phase {
            PhaseName::Advertise | PhaseName::Reveal | PhaseName::Share | PhaseName::Confirm => self.setup,
            PhaseName::MaskedInput(_) => self.input,
            PhaseName::Consistency(_) | PhaseName::Unmask(_) => self.unmask,
        }
    }
}

/// The devices of a [`Host`](crate::serve::Host), from which the round loop makes its
/// [`NetworkExchange`](crate::exchange::NetworkExchange).
pub struct DeviceLink {
    pub(crate) hub: Arc<Hub>,
    pub(crate) events: mpsc::Receiver<SessionEvent>,
    pub(crate) runtime: LoopRuntime,
}

/// The runtime of the connections, as the round loop uses it.
#[derive(Clone)]
pub(crate) enum LoopRuntime {
    /// It runs on other threads.
    Elsewhere(Handle),
    /// It runs only while the round loop waits.
    Driven(Arc<Runtime>),
}

impl LoopRuntime {
    /// Waits for a future.
    pub(crate) fn block_on<F: Future>(&self, future: F) -> F::Output {
        match self {
            Self::Elsewhere(handle) => handle.block_on(future),
            Self::Driven(runtime) => runtime.block_on(future),
        }
    }

    /// Returns the handle, whose clock may be paused.
    pub(crate) fn handle(&self) -> Handle {
        match self {
            Self::Elsewhere(handle) => handle.clone(),
            Self::Driven(runtime) => runtime.handle().clone(),
        }
    }
}

impl DeviceLink {
    pub(crate) fn new(hub: Arc<Hub>, events: mpsc::Receiver<SessionEvent>) -> Self {
        Self { hub, events, runtime: LoopRuntime::Elsewhere(Handle::current()) }
    }

    /// Returns the next event of a device before the deadline.
    pub(crate) fn next(&mut self, deadline: Instant) -> Option<SessionEvent> {
        let next = async { timeout_at(deadline, self.events.recv()).await };
        self.runtime.block_on(next).ok().flatten()
    }

    /// Waits until `devices` devices are ready. Returns `false` if the deadline passes first.
    /// Events between rounds are dropped: they are late messages or disconnections.
    pub(crate) fn wait_for(&mut self, devices: usize, deadline: Instant) -> bool {
        let hub = Arc::clone(&self.hub);
        self.wait(async || hub.enough(devices).await, deadline)
    }

    /// Waits until `enough` holds for the ready devices. Returns `false` if the deadline passes
    /// first. Events are dropped.
    pub(crate) fn wait_until(&mut self, enough: impl Fn(&[bool]) -> bool, deadline: Instant) -> bool {
        let hub = Arc::clone(&self.hub);
        self.wait(async || hub.until(&enough).await, deadline)
    }

    fn wait(&mut self, come: impl AsyncFn(), deadline: Instant) -> bool {
        let Self { events, runtime, .. } = self;
        runtime.block_on(async {
            loop {
                tokio::select! {
                    () = come() => return true,
                    () = sleep_until(deadline) => return false,
                    Some(_) = events.recv() => {}
                }
            }
        })
    }
}

/// A key set-up and its sums.
pub(crate) struct Protocol {
    server: ServerRound,
    deadlines: Deadlines,
    /// The number of devices at which the invitation closes.
    target: usize,
    /// The time of the state machine. It advances when a phase ends. The deadlines are enforced
    /// here.
    clock: Duration,
    phase: PhaseName,
    deadline: Instant,
    /// The addresses of the devices. A device that leaves is removed permanently.
    addresses: HashMap<DeviceId, Address>,
    /// Devices whose answer is awaited.
    awaited: HashSet<DeviceId>,
    /// Devices that completed the current phase.
    answered: usize,
    active: DeviceSet,
    traffic: Traffic,
}

/// The timeout of a phase in the state machine. It never expires, because [`Deadlines`] are
/// enforced instead.
const PHASE: Duration = Duration::from_secs(1);

/// The invitation of a cohort.
pub(crate) struct Invitation {
    pub(crate) config: ServerRoundConfig,
    pub(crate) deadlines: Deadlines,
    pub(crate) target: usize,
    pub(crate) defences: Defences,
}

impl Protocol {
    /// Sets up keys with a cohort.
    pub(crate) fn begin(link: &mut DeviceLink, invitation: Invitation) -> Result<Self, RoundFailure> {
        let Invitation { mut config, deadlines, target, defences } = invitation;
        config.phase_timeout = PHASE;
        let need = config.min_members.max(2);
        let too_few = |have| RoundFailure::TooFew { phase: PhaseName::Advertise, have, need };
        let cohort = config.cohort.len();
        let online = |id: DeviceId| link.hub.address(id.0).map(|address| (id, address));
        let addresses = config.cohort.iter().filter_map(online).collect();
        // The server chose the parameters. They can only be invalid if the cohort is too small for
        // any sum.
        let server = ServerRound::new(config, Duration::ZERO).map_err(|_| too_few(cohort))?;
        let server = server.with_defences(defences);
        let mut protocol = Self {
            server,
            deadlines,
            target,
            clock: Duration::ZERO,
            phase: PhaseName::Advertise,
            deadline: Instant::now(),
            addresses,
            awaited: HashSet::new(),
            answered: 0,
            active: DeviceSet::default(),
            traffic: Traffic::default(),
        };
        protocol.run(link)?;
        Ok(protocol)
    }

    /// Returns the remaining devices.
    pub(crate) fn active(&self) -> &DeviceSet {
        &self.active
    }

    /// Returns the sum over the cohort of the answers to a question.
    pub(crate) fn sum(
        &mut self,
        link: &mut DeviceLink,
        question: &proto::Question,
        ring: Ring,
        len: u32,
        context: &[u8],
    ) -> Result<SlotSum, RoundFailure> {
        self.send(link, from_server::Body::Question(question.clone()));
        match self.server.open_slot(self.clock, ring, len, context) {
            Ok(()) => {}
            Err(OpenSlotError::Ended(failure)) => return Err(failure),
            Err(_) => unreachable!("the caller requests no more sums than there are slots"),
        }
        let sum = self.run(link)?;
        Ok(sum.expect("a slot ends with a sum or a failure"))
    }

    /// Returns the traffic since the last call, for one sum.
    pub(crate) fn take_traffic(&mut self) -> Traffic {
        Traffic { sums: 1, ..std::mem::take(&mut self.traffic) }
    }

    /// Instructs the devices to delete their keys.
    pub(crate) fn end(self, link: &DeviceLink) {
        self.send(link, from_server::Body::Over(proto::Over { last: false }));
    }

    /// Sends a message to all remaining devices.
    fn send(&self, link: &DeviceLink, body: from_server::Body) {
        let message = Outbound::shared(body);
        for address in self.active.iter().filter_map(|id| self.addresses.get(&id)) {
            link.hub.send(*address, &message);
        }
    }

    /// Transports messages until the state machine waits for a call.
    fn run(&mut self, link: &mut DeviceLink) -> Result<Option<SlotSum>, RoundFailure> {
        let mut sum = None;
        let _engaged = link.hub.engage(self.addresses.values().copied());
        loop {
            self.transmit(link);
            while let Some(event) = self.server.poll_event() {
                match event {
                    ServerRoundEvent::Ready { active, .. } => self.active = active,
                    ServerRoundEvent::Sum(slot) => sum = Some(slot),
                    ServerRoundEvent::Ended(failure) => {
                        if let RoundFailure::Withheld { device } | RoundFailure::WrongSecret { device } =
                            &failure
                        {
                            tracing::warn!(device = device.0, %failure, "a device violated the protocol");
                            link.hub.refusals.count(Refusal::Dishonest);
                        }
                        return Err(failure);
                    }
                    ServerRoundEvent::Caught { device, misbehaviour } => {
                        tracing::warn!(device = device.0, ?misbehaviour, "a device violated the protocol");
                        link.hub.refusals.count(Refusal::Dishonest);
                    }
                    ServerRoundEvent::Disputed { owner, holder } => {
                        let (owner, holder) = (owner.0, holder.0);
                        tracing::warn!(owner, holder, "one of two devices violated the protocol");
                        link.hub.refusals.count(Refusal::Disputed);
                    }
                    _ => {}
                }
            }
            if self.server.poll_timeout().is_none() {
                link.hub.status.send_modify(Status::rest);
                return Ok(sum);
            }
            self.step(link);
        }
    }

    /// Sends the pending messages, and records the devices whose answers are awaited.
    fn transmit(&mut self, link: &DeviceLink) {
        // Before the first message is sent: a fast device answers before the last one is.
        link.hub.allow(self.server.message_limit());
        let mut first = true;
        while let Some(Transmit { to, message }) = self.server.poll_transmit() {
            let asks = asked(&message.body);
            if let Some(phase) = asks.filter(|_| std::mem::take(&mut first)) {
                self.enter(phase);
            }
            let (outbound, len) = outbound(&message, to.len());
            for (id, address) in to.iter().filter_map(|id| Some((id, *self.addresses.get(&id)?))) {
                self.traffic.messages += 1;
                self.traffic.bytes_down += len as u64;
                if asks.is_some() {
                    link.hub.expect(address);
                }
                if link.hub.send_all(address, &outbound) && asks.is_some() {
                    self.awaited.insert(id);
                }
            }
        }
        if !first {
            let (phase, asked) = (name(self.phase), self.awaited.len());
            link.hub.status.send_modify(|status| status.enter(phase, asked));
        }
    }

    fn enter(&mut self, phase: PhaseName) {
        self.phase = phase;
        self.deadline = Instant::now() + self.deadlines.for_phase(phase);
        self.awaited.clear();
        self.answered = 0;
    }

    /// Waits for one event, or ends the phase.
    fn step(&mut self, link: &mut DeviceLink) {
        let full = self.phase == PhaseName::Advertise && self.answered >= self.target;
        if full || self.awaited.is_empty() {
            return self.end_phase();
        }
        let Some(SessionEvent { from, event }) = link.next(self.deadline) else { return self.end_phase() };
        let id = DeviceId(from.device);
        if self.addresses.get(&id) != Some(&from) {
            return; // of an earlier session, or not of this cohort
        }
        match event {
            HubEvent::Gone => self.strike(id),
            HubEvent::Losses(_) => link.hub.refusals.count(Refusal::Late),
            HubEvent::Message { bytes, .. } => {
                self.traffic.messages += 1;
                self.traffic.bytes_up += bytes.len() as u64;
                match self.take(id, bytes) {
                    Ok(()) => link.hub.status.send_modify(Status::count_answer),
                    Err(Refusal::Late) => link.hub.refusals.count(Refusal::Late),
                    Err(refusal) => {
                        link.hub.expel(from, refusal);
                        self.strike(id);
                    }
                }
            }
        }
    }

    fn strike(&mut self, id: DeviceId) {
        self.addresses.remove(&id);
        self.awaited.remove(&id);
    }

    fn take(&mut self, id: DeviceId, bytes: Bytes) -> Result<(), Refusal> {
        let message = decode_device(bytes, self.server.message_limit()).map_err(|error| match error {
            // A long message that arrives after its phase is late.
            WireError::TooLong { .. } => Refusal::Late,
            _ => Refusal::Malformed,
        })?;
        self.server.handle(self.clock, id, message).map_err(|refused| match refused {
            RefusedMessage::WrongRound | RefusedMessage::WrongPhase | RefusedMessage::UnknownDevice(_) => {
                Refusal::Late
            }
            _ => Refusal::Dishonest,
        })?;
        self.awaited.remove(&id);
        self.answered += 1;
        Ok(())
    }

    /// Ends the phase with the devices that completed it.
    fn end_phase(&mut self) {
        if let Some(deadline) = self.server.poll_timeout() {
            self.clock = deadline;
            self.server.handle_timeout(deadline);
        }
    }
}

/// Encodes a message of secure aggregation for this many devices. Returns it with its length in
/// bytes.
fn outbound(message: &ServerMessage, recipients: usize) -> (Vec<Outbound>, usize) {
    let pieces = encode_server_in_pieces(message);
    let len = pieces.iter().map(Bytes::len).sum();
    if recipients == 1 && len > FRAGMENT {
        return (vec![Outbound::Long(pieces.into())], len);
    }
    let parts = fragments_from(pieces);
    (parts.map(|part| Outbound::shared(from_server::Body::Part(part))).collect(), len)
}

/// Returns the name of a phase for the live page.
fn name(phase: PhaseName) -> &'static str {
    match phase {
        PhaseName::Advertise => "advertise keys",
        PhaseName::Reveal => "lay out the graph",
        PhaseName::Share => "share keys",
        PhaseName::Confirm => "confirm shares",
        PhaseName::MaskedInput(_) => "masked answers",
        PhaseName::Consistency(_) => "consistency check",
        PhaseName::Unmask(_) => "unmask",
    }
}

/// Returns the phase in which a message requests an answer.
fn asked(body: &ServerBody) -> Option<PhaseName> {
    match body {
        ServerBody::Invite(_) => Some(PhaseName::Advertise),
        ServerBody::Commitments(_) => Some(PhaseName::Reveal),
        ServerBody::Keys(_) => Some(PhaseName::Share),
        ServerBody::Shares(_) => Some(PhaseName::Confirm),
        ServerBody::OpenSlot { slot, .. } => Some(PhaseName::MaskedInput(*slot)),
        ServerBody::Survivors { slot, .. } => Some(PhaseName::Consistency(*slot)),
        ServerBody::Attestations { slot, .. } => Some(PhaseName::Unmask(*slot)),
        _ => None,
    }
}
