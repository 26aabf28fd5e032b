//! The session of a device, from Hello to the end of its stream.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use deltafl_wire::proto::{FromDevice, Hello, Part, from_device, from_server};
use deltafl_wire::{FRAGMENT, FragmentError, Reassembly, VERSION};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::{Instant, timeout_at};
use tonic::{Status, Streaming};

use super::{
    ActiveRoster, Address, ConnectedDevice, ConnectedDevices, HELLO_WINDOW, Hellos, Hub, HubEvent, Limits,
    MAX_HELLOS, OUTBOX, Outbound, Outgoing, SessionEvent, SessionProgress, SharedSession,
};
use crate::refusal::Refusal;

/// The limit for small messages when the current round requires none.
const SMALL: usize = 64 << 10;

/// A device that sent its Hello.
#[derive(Debug)]
pub(crate) struct Session {
    hub: Arc<Hub>,
    address: Address,
    shared: Arc<SharedSession>,
}

/// The reason for the end of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionEnd {
    /// The device disconnected, opened another stream, or the server is shutting down.
    Left,
    /// The server ended the session and the connection.
    Expelled,
}

impl Hub {
    /// Opens the session of a device. `certified` is the name in its certificate, if any, and no
    /// other name is accepted. An earlier session of the same device ends, because the device has
    /// lost that connection. A server that is shutting down opens no session, because no code would
    /// end it.
    pub(crate) fn open_session(
        self: &Arc<Self>,
        hello: &Hello,
        certified: Option<&str>,
    ) -> Result<(Session, Outgoing), Refusal> {
        if hello.version != VERSION {
            return Err(Refusal::Malformed);
        }
        if certified.is_some_and(|name| name != hello.device) {
            return Err(Refusal::Impostor);
        }
        let mut connected = self.connected();
        if connected.is_closed {
            return Err(Refusal::Closing);
        }
        let known = Arc::clone(&connected.known);
        let device = known.roster.index(&hello.device).ok_or(Refusal::Unknown)?;
        if known.roster.entries()[device as usize].revoked {
            return Err(Refusal::Revoked);
        }
        if connected.sends_hello_too_often(device) {
            return Err(Refusal::Crowding);
        }
        let (outbox, waiting) = mpsc::channel(OUTBOX);
        let welcome = from_server::Body::Welcome(self.introduction().welcome(device, &known));
        let _ = outbox.try_send(Outbound::shared(welcome)); // an empty outbox takes it
        let (session, shared) = (connected.next_session, Arc::<SharedSession>::default());
        connected.next_session += 1;
        let peer = ConnectedDevice {
            session,
            outbox,
            shared: Arc::clone(&shared),
            progress: SessionProgress::new(self.limits.ready_allowance(known.id.len)),
            expected: false,
        };
        if let Some(before) = connected.devices.insert(device, peer) {
            connected.ready -= usize::from(before.progress.is_ready());
            before.shared.close_session();
        }
        let session = Session { hub: Arc::clone(self), address: Address { device, session }, shared };
        Ok((session, Outgoing::new(waiting)))
    }
}

impl ConnectedDevices {
    /// Returns `true` if a device sends Hello more often than a bad connection explains.
    fn sends_hello_too_often(&mut self, device: u32) -> bool {
        let now = Instant::now();
        let lately = self.hellos.entry(device).or_insert(Hellos { since: now, count: 0 });
        if now.duration_since(lately.since) > HELLO_WINDOW {
            *lately = Hellos { since: now, count: 0 };
        }
        lately.count += 1;
        lately.count > MAX_HELLOS
    }
}

/// An incoming message of a device.
#[derive(Default)]
struct Incoming {
    assembly: Reassembly,
    /// The reserved room for incoming messages.
    room: Option<OwnedSemaphorePermit>,
    /// The deadline for the complete message.
    deadline: Option<Instant>,
    /// The remaining bytes of a message that is not awaited. They are discarded.
    unwanted: usize,
}

impl Incoming {
    /// Returns the deadline for the next part: after one `patience`, or when the whole message is
    /// due. Without a partial message there is no deadline.
    fn due(&self, patience: Duration) -> Option<Instant> {
        let partial = self.unwanted > 0 || self.assembly.is_partial();
        let next = Instant::now() + patience;
        partial.then(|| self.deadline.map_or(next, |deadline| deadline.min(next)))
    }
}

impl Session {
    /// The device, by its position on the roster.
    pub(crate) fn device(&self) -> u32 {
        self.address.device
    }

    /// Reads the messages of the device until it disconnects or the server ends the session.
    pub(crate) async fn listen(&self, stream: Streaming<FromDevice>) -> SessionEnd {
        tokio::select! {
            () = self.shared.closed.notified() => {}
            () = self.read(stream) => {}
        }
        self.remove();
        if self.shared.disconnects.load(Ordering::Relaxed) { SessionEnd::Expelled } else { SessionEnd::Left }
    }

    /// Notifies the round loop of the end of the session if the device was in a round.
    pub(crate) async fn announce_end(self) {
        if self.shared.in_round.load(Ordering::Relaxed) {
            self.forward(HubEvent::Gone).await;
        }
    }

    async fn read(&self, mut stream: Streaming<FromDevice>) {
        let mut incoming = Incoming::default();
        loop {
            let message = match incoming.due(self.hub.limits.patience) {
                Some(due) => timeout_at(due, stream.message()).await.map_err(|_| Refusal::Stalled),
                None => Ok(stream.message().await),
            };
            let heard = match message {
                Ok(Ok(Some(message))) => self.handle(message, &mut incoming).await,
                Ok(Ok(None)) => return,
                Ok(Err(status)) => match refusal_of(&status) {
                    Some(refusal) => Err(refusal),
                    None => return,
                },
                Err(stalled) => Err(stalled),
            };
            match heard {
                Ok(None) => {}
                Ok(Some(event)) => self.forward(event).await,
                Err(refusal) => {
                    self.hub.refusals.count(refusal);
                    return self.shared.close_connection();
                }
            }
        }
    }

    async fn handle(
        &self,
        message: FromDevice,
        incoming: &mut Incoming,
    ) -> Result<Option<HubEvent>, Refusal> {
        Ok(match message.body.ok_or(Refusal::Malformed)? {
            from_device::Body::Hello(_) => return Err(Refusal::Malformed),
            from_device::Body::Ready(ready) => {
                self.set_ready(&ready.roster);
                None
            }
            from_device::Body::Decline(_) => {
                self.set_declined();
                // The round loop drops events between rounds, and reads none after the last one.
                self.shared.in_round.load(Ordering::Relaxed).then_some(HubEvent::Gone)
            }
            from_device::Body::Losses(losses) => Some(HubEvent::Losses(losses)),
            from_device::Body::Part(part) => self.take_part(part, incoming).await?,
        })
    }

    /// Adds a part of a message. Returns the message if the part was the last. A long message must
    /// be awaited and must arrive in time.
    async fn take_part(&self, part: Part, incoming: &mut Incoming) -> Result<Option<HubEvent>, Refusal> {
        let (limit, total) = (self.hub.longest.load(Ordering::Relaxed).max(SMALL), part.total as usize);
        if total > limit {
            return Err(Refusal::TooLong); // before it waits for room, and others behind it
        }
        if incoming.unwanted > 0 {
            incoming.unwanted = incoming.unwanted.saturating_sub(part.data.len().max(1));
            return Ok(None);
        }
        if !incoming.assembly.is_partial() && total > FRAGMENT {
            if !self.take_expected() {
                self.hub.refusals.count(Refusal::Late);
                incoming.unwanted = total.saturating_sub(part.data.len());
                return Ok(None);
            }
            self.make_room(total, incoming).await;
        }
        match incoming.assembly.take(part, limit) {
            Ok(None) => Ok(None),
            Ok(Some(bytes)) => {
                incoming.deadline = None;
                Ok(Some(HubEvent::Message { bytes, _room: incoming.room.take() }))
            }
            Err(FragmentError::TooLong { .. }) => Err(Refusal::TooLong),
            Err(_) => Err(Refusal::Malformed),
        }
    }

    /// Returns `true` if a message of this device is awaited, and clears the mark.
    fn take_expected(&self) -> bool {
        let mut connected = self.hub.connected();
        connected.peer_mut(self.address).is_some_and(|peer| std::mem::take(&mut peer.expected))
    }

    /// Waits until there is room for a long message. Meanwhile the server does not read from the
    /// device, and HTTP/2 applies back-pressure. The time limit of the message starts afterwards.
    async fn make_room(&self, total: usize, incoming: &mut Incoming) {
        let capacity = *self.hub.capacity.lock().unwrap_or_else(PoisonError::into_inner);
        let kibibytes = u32::try_from((total >> 10).min(capacity)).unwrap_or(u32::MAX);
        incoming.room = Arc::clone(&self.hub.room).acquire_many_owned(kibibytes).await.ok();
        let Limits { patience, min_rate, .. } = self.hub.limits;
        let time = Duration::from_secs_f64(total as f64 / f64::from(min_rate.max(1)));
        incoming.deadline = Some(Instant::now() + patience + time);
    }

    /// Marks the device as ready if it has the current roster.
    fn set_ready(&self, roster: &[u8]) {
        self.update(|progress, known| {
            let is_newest = known.hash().as_bytes() == roster;
            if is_newest { progress.set_ready() } else { progress.set_outdated() }
        });
    }

    /// Marks the device as not available until it is ready again.
    fn set_declined(&self) {
        self.update(|progress, _| progress.set_declined());
    }

    fn update(&self, change: impl FnOnce(&mut SessionProgress, &ActiveRoster)) {
        let mut connected = self.hub.connected();
        let known = Arc::clone(&connected.known);
        let Some(peer) = connected.peer_mut(self.address) else { return };
        let before = peer.progress.is_ready();
        change(&mut peer.progress, &known);
        let now = peer.progress.is_ready();
        connected.ready = connected.ready + usize::from(now) - usize::from(before);
        if now {
            self.hub.arrivals.notify_waiters();
        }
    }

    fn remove(&self) {
        let mut connected = self.hub.connected();
        if connected.peer(self.address).is_some()
            && let Some(peer) = connected.devices.remove(&self.address.device)
        {
            connected.ready -= usize::from(peer.progress.is_ready());
        }
    }

    async fn forward(&self, event: HubEvent) {
        // The channel is closed when the server shuts down.
        let _ = self.hub.events.send(SessionEvent { from: self.address, event }).await;
    }
}

/// Classifies a stream error: a message that is too long or invalid, or a lost connection.
fn refusal_of(status: &Status) -> Option<Refusal> {
    match status.code() {
        tonic::Code::OutOfRange | tonic::Code::ResourceExhausted => Some(Refusal::TooLong),
        tonic::Code::InvalidArgument => Some(Refusal::Malformed),
        _ => None,
    }
}
