//! A device's stay: from its greeting to the end of its connection.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::timeout_at;
use tonic::{Status, Streaming};

use super::{
    Address, Desk, Door, Event, GREETING_WINDOW, Greetings, Hub, Limits, MAX_GREETINGS, OUTBOX, Peer, What,
};
use crate::refusal::Refusal;
use crate::wire::proto::{FromDevice, FromServer, Hello, Part, from_device, from_server};
use crate::wire::{Assembly, PART, PartError, VERSION};

/// What is left for small messages when the present round calls for none.
const SMALL: usize = 64 << 10;

/// A device that said who it is.
#[derive(Debug)]
pub(crate) struct Seat {
    hub: Arc<Hub>,
    address: Address,
    door: Arc<Door>,
}

/// How a stay ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Farewell {
    /// The device left, came back on another stream, or the server shuts down.
    Kind,
    /// The device was shown the door: its connection is of no more use.
    Unkind,
}

/// What goes to the device.
pub(crate) type Outgoing = mpsc::Receiver<Arc<FromServer>>;

impl Hub {
    /// Lets a device in. `certified` is the name in its certificate, where there is one: nobody else's name is believed.
    /// An earlier stay of the same device ends: it lost that connection and the server has not noticed yet.
    pub(crate) fn greet(
        self: &Arc<Self>,
        hello: &Hello,
        certified: Option<&str>,
    ) -> Result<(Seat, Outgoing), Refusal> {
        if hello.version != VERSION {
            return Err(Refusal::Malformed);
        }
        if certified.is_some_and(|name| name != hello.device) {
            return Err(Refusal::Impostor);
        }
        let mut desk = self.desk();
        let known = Arc::clone(&desk.known);
        let device = known.roster.index(&hello.device).ok_or(Refusal::Unknown)?;
        if known.roster.entries()[device as usize].revoked {
            return Err(Refusal::Revoked);
        }
        if desk.crowds(device) {
            return Err(Refusal::Crowding);
        }
        let (outbox, outgoing) = mpsc::channel(OUTBOX);
        let welcome = from_server::Body::Welcome(self.introduction().welcome(device, &known));
        let _ = outbox.try_send(Arc::new(FromServer { body: Some(welcome) })); // an empty outbox takes it
        let (stay, door) = (desk.next_stay, Arc::<Door>::default());
        desk.next_stay += 1;
        let peer = Peer { stay, outbox, door: Arc::clone(&door), ready: false, expected: false };
        if let Some(before) = desk.peers.insert(device, peer) {
            desk.ready -= usize::from(before.ready);
            before.door.ring();
        }
        Ok((Seat { hub: Arc::clone(self), address: Address { device, stay }, door }, outgoing))
    }
}

impl Desk {
    /// Whether a device says hello more often than a bad connection explains.
    fn crowds(&mut self, device: u32) -> bool {
        let now = Instant::now();
        let lately = self.greetings.entry(device).or_insert(Greetings { since: now, count: 0 });
        if now.duration_since(lately.since) > GREETING_WINDOW {
            *lately = Greetings { since: now, count: 0 };
        }
        lately.count += 1;
        lately.count > MAX_GREETINGS
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

impl Seat {
    /// Hears the device out until it leaves or is shown the door.
    pub(crate) async fn listen(self, mut stream: Streaming<FromDevice>) -> Farewell {
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
                () = self.door.bell.notified() => break,
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
                    self.door.throw_out();
                    break;
                }
            }
        }
        self.leave_hub();
        self.tell(What::Gone).await;
        if self.door.thrown_out.load(Ordering::Relaxed) { Farewell::Unkind } else { Farewell::Kind }
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
            Err(PartError::Misfit) => Err(Refusal::Malformed),
        }
    }

    /// Whether a message of this device is awaited; it counts as come from now on.
    fn take_expected(&self) -> bool {
        let mut desk = self.hub.desk();
        let Address { device, stay } = self.address;
        let peer = desk.peers.get_mut(&device).filter(|peer| peer.stay == stay);
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
        let mut desk = self.hub.desk();
        let ready = desk.known.hash().as_bytes() == roster;
        let Address { device, stay } = self.address;
        let Some(peer) = desk.peers.get_mut(&device).filter(|peer| peer.stay == stay) else { return };
        let before = std::mem::replace(&mut peer.ready, ready);
        desk.ready = desk.ready + usize::from(ready) - usize::from(before);
        if ready {
            self.hub.arrivals.notify_waiters();
        }
    }

    fn leave_hub(&self) {
        let mut desk = self.hub.desk();
        if desk.peer(self.address).is_some()
            && let Some(peer) = desk.peers.remove(&self.address.device)
        {
            desk.ready -= usize::from(peer.ready);
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
