//! A device's stay: from its greeting to the end of its connection.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::timeout;
use tonic::{Status, Streaming};

use super::{Address, Desk, Door, Event, GREETING_WINDOW, Greetings, Hub, MAX_GREETINGS, OUTBOX, Peer, What};
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
        let peer = Peer { stay, outbox, door: Arc::clone(&door), ready: false };
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

impl Seat {
    /// Hears the device out until it leaves or is shown the door.
    pub(crate) async fn listen(self, mut incoming: Streaming<FromDevice>) -> Farewell {
        let mut assembly = Assembly::default();
        let mut room = None;
        loop {
            let patience = self.hub.limits.patience;
            let next = async {
                match assembly.is_partial() {
                    true => timeout(patience, incoming.message()).await.map_err(|_| Refusal::Stalled),
                    false => Ok(incoming.message().await),
                }
            };
            let message = tokio::select! {
                () = self.door.bell.notified() => break,
                message = next => message,
            };
            let heard = match message {
                Ok(Ok(Some(message))) => self.hear(message, &mut assembly, &mut room).await,
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

    async fn hear(
        &self,
        message: FromDevice,
        assembly: &mut Assembly,
        room: &mut Option<OwnedSemaphorePermit>,
    ) -> Result<Option<What>, Refusal> {
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
            from_device::Body::Part(part) => {
                let limit = self.hub.longest.load(Ordering::Relaxed).max(SMALL);
                if part.total as usize > limit {
                    return Err(Refusal::TooLong); // before it waits for room, and others behind it
                }
                self.make_room(&part, room).await;
                match assembly.take(part, limit) {
                    Ok(None) => None,
                    Ok(Some(bytes)) => Some(What::Message { bytes, _room: room.take() }),
                    Err(PartError::TooLong { .. }) => return Err(Refusal::TooLong),
                    Err(PartError::Misfit) => return Err(Refusal::Malformed),
                }
            }
        })
    }

    /// Waits until a long message fits among those that are coming in; meanwhile the device is not read from, and HTTP/2
    /// holds it back.
    async fn make_room(&self, part: &Part, room: &mut Option<OwnedSemaphorePermit>) {
        if room.is_none() && part.total as usize > PART {
            let kibibytes = (part.total >> 10).min((self.hub.limits.incoming_bytes >> 10) as u32);
            *room = Arc::clone(&self.hub.room).acquire_many_owned(kibibytes).await.ok();
        }
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
