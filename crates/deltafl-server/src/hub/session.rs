//! The session of a device: from its Hello to the end of its stream.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use deltafl_wire::proto::{FromDevice, Hello, Part, from_device, from_server};
use deltafl_wire::{Assembly, PART, PartError, VERSION};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::timeout_at;
use tonic::{Status, Streaming};

use super::{
    Address, CloseSignal, ConnectedDevice, ConnectedDevices, Event, HELLO_WINDOW, Hellos, Hub, Limits,
    MAX_HELLOS, OUTBOX, Outbound, Outgoing, What,
};
use crate::refusal::Refusal;

/// What is left for small messages when the present round calls for none.
const SMALL: usize = 64 << 10;

/// A device that said who it is.
#[derive(Debug)]
pub(crate) struct Session {
    hub: Arc<Hub>,
    address: Address,
    close_signal: Arc<CloseSignal>,
}

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionEnd {
    /// The device left, came back on another stream, or the server shuts down.
    Left,
    /// The server ended it, and the connection with it.
    Expelled,
}

impl Hub {
    /// Opens the session of a device. `certified` is the name in its certificate, where there is one: nobody else's name is believed.
    /// An earlier session of the same device ends: it lost that connection and the server has not noticed yet.
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
        let known = Arc::clone(&connected.known);
        let device = known.roster.index(&hello.device).ok_or(Refusal::Unknown)?;
        if known.roster.entries()[device as usize].revoked {
            return Err(Refusal::Revoked);
        }
        if connected.says_hello_too_often(device) {
            return Err(Refusal::Crowding);
        }
        let (outbox, waiting) = mpsc::channel(OUTBOX);
        let welcome = from_server::Body::Welcome(self.introduction().welcome(device, &known));
        let _ = outbox.try_send(Outbound::shared(welcome)); // an empty outbox takes it
        let (session, close_signal) = (connected.next_session, Arc::<CloseSignal>::default());
        connected.next_session += 1;
        let peer = ConnectedDevice {
            session,
            outbox,
            close_signal: Arc::clone(&close_signal),
            ready: false,
            expected: false,
        };
        if let Some(before) = connected.devices.insert(device, peer) {
            connected.ready -= usize::from(before.ready);
            before.close_signal.close_session();
        }
        let session = Session { hub: Arc::clone(self), address: Address { device, session }, close_signal };
        Ok((session, Outgoing::new(waiting)))
    }
}

impl ConnectedDevices {
    /// Whether a device says hello more often than a bad connection explains.
    fn says_hello_too_often(&mut self, device: u32) -> bool {
        let now = Instant::now();
        let lately = self.hellos.entry(device).or_insert(Hellos { since: now, count: 0 });
        if now.duration_since(lately.since) > HELLO_WINDOW {
            *lately = Hellos { since: now, count: 0 };
        }
        lately.count += 1;
        lately.count > MAX_HELLOS
    }
}

/// A message of a device that is coming in.
#[derive(Default)]
struct Incoming {
    assembly: Assembly,
    /// Room among the messages that are coming in.
    room: Option<OwnedSemaphorePermit>,
    /// When all of it must be there.
    deadline: Option<Instant>,
    /// Bytes still to come of a message that nobody awaits: they are thrown away as they come.
    unwanted: usize,
}

impl Incoming {
    /// When the device must have said more: after one patience, or when the whole message is due. A device that is in the
    /// middle of nothing may be silent.
    fn due(&self, patience: Duration) -> Option<Instant> {
        let partial = self.unwanted > 0 || self.assembly.is_partial();
        let next = Instant::now() + patience;
        partial.then(|| self.deadline.map_or(next, |deadline| deadline.min(next)))
    }
}

impl Session {
    /// The device, by its place on the roster.
    pub(crate) fn device(&self) -> u32 {
        self.address.device
    }

    /// Reads the messages of the device until it leaves or the server ends the session.
    pub(crate) async fn listen(self, mut stream: Streaming<FromDevice>) -> SessionEnd {
        let mut incoming = Incoming::default();
        loop {
            let due = incoming.due(self.hub.limits.patience);
            let next = async {
                match due {
                    Some(due) => timeout_at(due.into(), stream.message()).await.map_err(|_| Refusal::Stalled),
                    None => Ok(stream.message().await),
                }
            };
            let message = tokio::select! {
                () = self.close_signal.notify.notified() => break,
                message = next => message,
            };
            let heard = match message {
                Ok(Ok(Some(message))) => self.hear(message, &mut incoming).await,
                Ok(Ok(None)) => break,
                Ok(Err(status)) => match refusal_of(&status) {
                    Some(refusal) => Err(refusal),
                    None => break,
                },
                Err(stalled) => Err(stalled),
            };
            match heard {
                Ok(None) => {}
                Ok(Some(what)) => self.tell(what).await,
                Err(refusal) => {
                    self.hub.refusals.count(refusal);
                    self.close_signal.close_connection();
                    break;
                }
            }
        }
        self.remove();
        self.tell(What::Gone).await;
        if self.close_signal.disconnects.load(Ordering::Relaxed) {
            SessionEnd::Expelled
        } else {
            SessionEnd::Left
        }
    }

    async fn hear(&self, message: FromDevice, incoming: &mut Incoming) -> Result<Option<What>, Refusal> {
        Ok(match message.body.ok_or(Refusal::Malformed)? {
            from_device::Body::Hello(_) => return Err(Refusal::Malformed),
            from_device::Body::Ready(ready) => {
                self.set_ready(&ready.roster);
                None
            }
            from_device::Body::Decline(_) => {
                self.set_ready(&[]);
                Some(What::Gone)
            }
            from_device::Body::Losses(losses) => Some(What::Losses(losses)),
            from_device::Body::Part(part) => self.take_part(part, incoming).await?,
        })
    }

    /// Takes in a part of a message; the message, if this was its last. A long one must be awaited, and must come in time.
    async fn take_part(&self, part: Part, incoming: &mut Incoming) -> Result<Option<What>, Refusal> {
        let (limit, total) = (self.hub.longest.load(Ordering::Relaxed).max(SMALL), part.total as usize);
        if total > limit {
            return Err(Refusal::TooLong); // before it waits for room, and others behind it
        }
        if incoming.unwanted > 0 {
            incoming.unwanted = incoming.unwanted.saturating_sub(part.data.len().max(1));
            return Ok(None);
        }
        if !incoming.assembly.is_partial() && total > PART {
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
                Ok(Some(What::Message { bytes, _room: incoming.room.take() }))
            }
            Err(PartError::TooLong { .. }) => Err(Refusal::TooLong),
            Err(_) => Err(Refusal::Malformed),
        }
    }

    /// Whether a message of this device is awaited; it counts as come from now on.
    fn take_expected(&self) -> bool {
        let mut connected = self.hub.connected();
        let Address { device, session } = self.address;
        let peer = connected.devices.get_mut(&device).filter(|peer| peer.session == session);
        peer.is_some_and(|peer| std::mem::take(&mut peer.expected))
    }

    /// Waits until a long message fits among those that are coming in; meanwhile the device is not read from, and HTTP/2
    /// holds it back. From then on the message has its time.
    async fn make_room(&self, total: usize, incoming: &mut Incoming) {
        let capacity = *self.hub.capacity.lock().unwrap_or_else(PoisonError::into_inner);
        let kibibytes = u32::try_from((total >> 10).min(capacity)).unwrap_or(u32::MAX);
        incoming.room = Arc::clone(&self.hub.room).acquire_many_owned(kibibytes).await.ok();
        let Limits { patience, min_rate, .. } = self.hub.limits;
        let time = Duration::from_secs_f64(total as f64 / f64::from(min_rate.max(1)));
        incoming.deadline = Some(Instant::now() + patience + time);
    }

    /// Notes whether the device can be drawn: it can if it holds the roster in force.
    fn set_ready(&self, roster: &[u8]) {
        let mut connected = self.hub.connected();
        let ready = connected.known.hash().as_bytes() == roster;
        let Address { device, session } = self.address;
        let Some(peer) = connected.devices.get_mut(&device).filter(|peer| peer.session == session) else {
            return;
        };
        let before = std::mem::replace(&mut peer.ready, ready);
        connected.ready = connected.ready + usize::from(ready) - usize::from(before);
        if ready {
            self.hub.arrivals.notify_waiters();
        }
    }

    fn remove(&self) {
        let mut connected = self.hub.connected();
        if connected.peer(self.address).is_some()
            && let Some(peer) = connected.devices.remove(&self.address.device)
        {
            connected.ready -= usize::from(peer.ready);
        }
    }

    async fn tell(&self, what: What) {
        // Nobody listens any more when the server shuts down.
        let _ = self.hub.events.send(Event { from: self.address, what }).await;
    }
}

/// What a broken stream says about the device: a message over the limit or not of the protocol, or a lost connection.
fn refusal_of(status: &Status) -> Option<Refusal> {
    match status.code() {
        tonic::Code::OutOfRange | tonic::Code::ResourceExhausted => Some(Refusal::TooLong),
        tonic::Code::InvalidArgument => Some(Refusal::Malformed),
        _ => None,
    }
}
