//! The devices that are online: who they are, how to reach them, what they say.
//!
//! Connections come and go on the runtime; the round loop sits on a thread of its own and hears of them through one
//! channel, in order.

mod blobs;
mod outgoing;
mod session;
mod sessions;
mod status;
mod turns;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use deltafl::training::State;
use deltafl_secagg::identity::KeyRoster;
use deltafl_wire::contract::DataContract;
use deltafl_wire::proto;
use deltafl_wire::proto::from_server;
use deltafl_wire::roster::{Roster, RosterError, SignedRoster};
use deltafl_wire::{BlobId, VERSION};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::timeout;

pub(crate) use self::blobs::Blobs;
pub(crate) use self::outgoing::Outbound;
use self::outgoing::Outgoing;
pub(crate) use self::session::SessionEnd;
pub(crate) use self::sessions::keep_time_limits;
use self::sessions::{Progress, SharedSession};
pub use self::sessions::{SessionList, SessionMonitor, SessionState, SessionStatus};
pub use self::status::{Phase, Purpose, Status};
use self::turns::Turns;
use crate::refusal::{Refusal, Refusals};

/// Messages that wait for a device to read them: a round sends it a few dozen, and long ones in parts.
const OUTBOX: usize = 256;
/// Events that wait for the round loop.
const INBOX: usize = 1024;
/// Hellos of one device within [`HELLO_WINDOW`] before it is told to session away.
const MAX_HELLOS: u32 = 20;
/// Seconds within which devices come back to a server that was stopped.
const COME_BACK: u32 = 10;
const HELLO_WINDOW: Duration = Duration::from_secs(60);

/// What a server tells the devices about itself.
#[derive(Clone, Debug)]
pub struct Introduction {
    /// The name of the federation.
    pub federation: String,
    /// Names the key set-ups of this process.
    pub session: [u8; 16],
    /// The name of the experiment.
    pub experiment: String,
    /// The model, in JSON; `null` where devices bring their own trainer.
    pub model: String,
    /// Number of parameters.
    pub params: usize,
    /// Whether devices are asked for their losses one by one.
    pub open: bool,
    /// The contract of the data; none where devices bring their own trainer.
    pub contract: Option<DataContract>,
}

/// Bounds on what devices can make the server hold and send.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of long messages that are coming in, over all devices. Where [`CONCURRENT`] of the longest messages of a round
    /// take more, they have that much room.
    pub incoming_bytes: usize,
    /// How long a device may take between two parts of a message, or to say who it is.
    pub patience: Duration,
    /// Bytes per second at which a long message must come in, all of it, beside one `patience`.
    pub min_rate: u32,
    /// Bytes per second of newest params for devices that come, which wait for them before they can be drawn. With 0 they fetch
    /// params when they are asked.
    pub newest_rate: u64,
    /// How long a device that waits for its turn to fetch the newest params may wait. After that it can be drawn without
    /// them, and fetches params when it is asked.
    pub turn_within: Duration,
    /// How long a device may take to become ready or to decline, after it connects and after a change of the roster. The
    /// time for its fetches at `min_rate` is added. Time in the queue for the newest params and in rounds does not count.
    pub ready_within: Duration,
}

/// The longest messages of a round that can come in at once: no few devices can take all of the room.
pub const CONCURRENT: usize = 16;

impl Default for Limits {
    fn default() -> Self {
        Self {
            incoming_bytes: 64 << 20,
            patience: Duration::from_secs(20),
            min_rate: 64 << 10,
            newest_rate: 100_000_000,
            turn_within: Duration::from_secs(300),
            ready_within: Duration::from_secs(120),
        }
    }
}

/// A device during one session. A device that reconnects gets a new address; a running round ignores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Address {
    /// Its place on the roster.
    pub(crate) device: u32,
    session: u64,
}

/// What a device did.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) from: Address,
    pub(crate) what: What,
}

/// What a device did.
#[derive(Debug)]
pub(crate) enum What {
    /// It sent a message of secure aggregation.
    Message {
        bytes: Bytes,
        /// Room among the incoming bytes, free again when the event is dropped.
        _room: Option<OwnedSemaphorePermit>,
    },
    /// It told its losses.
    Losses(proto::Losses),
    /// It left, or does not take part for now.
    Gone,
}

/// A roster as the server uses it.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) roster: Roster,
    pub(crate) keys: Arc<KeyRoster>,
    id: BlobId,
    signature: [u8; 64],
}

/// Where devices meet the round loop.
#[derive(Debug)]
pub(crate) struct Hub {
    introduction: Introduction,
    limits: Limits,
    connected: Mutex<ConnectedDevices>,
    /// Rung when a device becomes ready.
    arrivals: Notify,
    events: mpsc::Sender<Event>,
    pub(crate) blobs: Blobs,
    /// Of devices that want the newest params.
    turns: Turns,
    /// Kibibytes of long messages that may still come in.
    room: Arc<Semaphore>,
    /// Kibibytes of `room` when nothing comes in.
    capacity: Mutex<usize>,
    /// The longest message that the present round calls for.
    longest: AtomicUsize,
    pub(crate) refusals: Arc<Refusals>,
    pub(crate) status: watch::Sender<Status>,
}

#[derive(Debug)]
struct ConnectedDevices {
    known: Arc<Known>,
    devices: HashMap<u32, ConnectedDevice>,
    hellos: HashMap<u32, Hellos>,
    next_session: u64,
    ready: usize,
    /// Whether the server is shutting down: it opens no session any more.
    is_closed: bool,
}

/// A device that is online.
#[derive(Debug)]
struct ConnectedDevice {
    /// Tells a session of a device from its earlier ones.
    session: u64,
    /// Shared: what a whole cohort is told is kept once.
    outbox: mpsc::Sender<Outbound>,
    shared: Arc<SharedSession>,
    progress: Progress,
    /// Whether the round under way awaits a message of the device.
    expected: bool,
}

/// How often a device has said hello lately.
#[derive(Debug)]
struct Hellos {
    since: Instant,
    count: u32,
}

impl Hub {
    /// A hub without devices, and the end of its channel of events.
    pub(crate) fn new(
        introduction: Introduction,
        limits: Limits,
        roster: &SignedRoster,
    ) -> Result<(Arc<Self>, mpsc::Receiver<Event>), RosterError> {
        let (events, inbox) = mpsc::channel(INBOX);
        let blobs = Blobs::default();
        if let Some(contract) = &introduction.contract {
            blobs.keep_contract(contract.to_bytes().into());
        }
        let known = Arc::new(know(&blobs, roster)?);
        let connected = ConnectedDevices {
            known,
            devices: HashMap::new(),
            hellos: HashMap::new(),
            next_session: 0,
            ready: 0,
            is_closed: false,
        };
        let hub = Self {
            introduction,
            room: Arc::new(Semaphore::new(limits.incoming_bytes >> 10)),
            capacity: Mutex::new(limits.incoming_bytes >> 10),
            limits,
            connected: Mutex::new(connected),
            arrivals: Notify::new(),
            events,
            blobs,
            turns: Turns::new(limits.newest_rate),
            longest: AtomicUsize::new(0),
            refusals: Arc::default(),
            status: watch::Sender::default(),
        };
        Ok((Arc::new(hub), inbox))
    }

    pub(crate) fn introduction(&self) -> &Introduction {
        &self.introduction
    }

    /// How long a device may keep the server waiting.
    pub(crate) fn patience(&self) -> Duration {
        self.limits.patience
    }

    /// The roster in force.
    pub(crate) fn known(&self) -> Arc<Known> {
        Arc::clone(&self.connected().known)
    }

    /// Puts another roster in force: devices were enrolled or revoked. Whoever is online fetches it before it is drawn
    /// again; whoever is revoked leaves.
    pub(crate) fn change_roster(&self, roster: &SignedRoster) -> Result<(), RosterError> {
        let known = Arc::new(know(&self.blobs, roster)?);
        let mut connected = self.connected();
        connected.known = Arc::clone(&known);
        connected.ready = 0;
        let entries = known.roster.entries();
        let news = Outbound::shared(from_server::Body::Roster(known.to_wire()));
        let allowance = self.limits.ready_allowance(known.id.len);
        for (&device, peer) in &mut connected.devices {
            peer.progress.restart_joining(allowance);
            let stays = entries.get(device as usize).is_some_and(|entry| !entry.revoked);
            if !stays {
                self.refusals.count(Refusal::Revoked);
                peer.shared.close_connection();
            } else if peer.outbox.try_send(news.clone()).is_err() {
                peer.shared.close_connection();
            }
        }
        Ok(())
    }

    /// Lets messages up to this length in, [`CONCURRENT`] of them at once.
    pub(crate) fn allow(&self, bytes: usize) {
        self.longest.fetch_max(bytes, Ordering::Relaxed);
        let mut capacity = self.capacity.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = CONCURRENT * bytes.div_ceil(1 << 10);
        if wanted > *capacity {
            self.room.add_permits(wanted - *capacity);
            *capacity = wanted;
        }
    }

    /// Notes that an answer of this device is awaited: it may send one long message.
    pub(crate) fn expect(&self, from: Address) {
        if let Some(peer) = self.connected().peer_mut(from) {
            peer.expected = true;
        }
    }

    /// Who can be drawn, by place on the roster.
    pub(crate) fn ready(&self) -> Vec<bool> {
        let connected = self.connected();
        let mut ready = vec![false; connected.known.roster.entries().len()];
        for (&device, _) in connected.devices.iter().filter(|(_, peer)| peer.progress.is_ready()) {
            if let Some(place) = ready.get_mut(device as usize) {
                *place = true;
            }
        }
        ready
    }

    /// How many are online, and how many of them can be drawn.
    pub(crate) fn presence(&self) -> (usize, usize) {
        let connected = self.connected();
        (connected.devices.len(), connected.ready)
    }

    /// The params that the tracks have now.
    pub(crate) fn set_newest(&self, state: &State) {
        self.blobs.keep_newest(state.tracks.iter().map(|track| &track.params));
    }

    /// Returns the newest params that a device does not hold, when it is its turn. A device has one turn for each round, so
    /// that it cannot delay the others by asking again. Returns none if the queue is longer than [`Limits::turn_within`].
    pub(crate) async fn newest(&self, held: &[blake3::Hash], device: u32) -> Vec<BlobId> {
        if self.limits.newest_rate == 0 {
            return Vec::new();
        }
        let missing = || {
            let (generation, mut newest) = self.blobs.newest();
            newest.retain(|blob| !held.contains(&blob.hash));
            (generation, newest)
        };
        let (generation, wanted) = missing();
        if !wanted.is_empty() && self.turns.is_first(device, generation) {
            let bytes = wanted.iter().map(|blob| blob.len).sum();
            let _queued = self.queue(device, bytes);
            let limit = self.limits.turn_within;
            if timeout(limit, self.turns.wait(bytes)).await.is_err() {
                let seconds = limit.as_secs();
                tracing::info!(device, seconds, "the queue for the newest params is too long: not fetched");
                return Vec::new();
            }
        }
        missing().1 // a round may have been finished meanwhile
    }

    /// Waits until so many can be drawn.
    pub(crate) async fn enough(&self, devices: usize) {
        loop {
            let arrival = self.arrivals.notified();
            if self.connected().ready >= devices {
                return;
            }
            arrival.await;
        }
    }

    /// Waits until `enough` holds of those who can be drawn.
    pub(crate) async fn until(&self, enough: impl Fn(&[bool]) -> bool) {
        loop {
            let arrival = self.arrivals.notified();
            if enough(&self.ready()) {
                return;
            }
            arrival.await;
        }
    }

    /// Where a device is, if it can be drawn.
    pub(crate) fn address(&self, device: u32) -> Option<Address> {
        let connected = self.connected();
        let peer = connected.devices.get(&device).filter(|peer| peer.progress.is_ready())?;
        Some(Address { device, session: peer.session })
    }

    /// Sends a message to a device; whether it is there. One that does not read what it is sent leaves.
    pub(crate) fn send(&self, to: Address, message: &Outbound) -> bool {
        let connected = self.connected();
        let Some(peer) = connected.peer(to) else { return false };
        match peer.outbox.try_send(message.clone()) {
            Ok(()) => true,
            Err(TrySendError::Closed(_)) => false,
            Err(TrySendError::Full(_)) => {
                self.refusals.count(Refusal::Stalled);
                peer.shared.close_connection();
                false
            }
        }
    }

    /// Sends messages one behind the other; whether the device is there.
    pub(crate) fn send_all(&self, to: Address, messages: &[Outbound]) -> bool {
        messages.iter().all(|message| self.send(to, message))
    }

    /// Counts why, and ends the session and the connection of a device.
    pub(crate) fn expel(&self, who: Address, refusal: Refusal) {
        self.refusals.count(refusal);
        if let Some(peer) = self.connected().peer(who) {
            peer.shared.close_connection();
        }
    }

    /// Tells every device that the server stops, ends its session, and opens no session any more.
    pub(crate) fn close(&self) {
        let drain = Outbound::shared(from_server::Body::Drain(proto::Drain { within: COME_BACK }));
        let mut connected = self.connected();
        connected.is_closed = true;
        for peer in connected.devices.values() {
            // What waits in a full outbox is lost on a device that does not read.
            let _ = peer.outbox.try_send(drain.clone());
            peer.shared.close_session();
        }
    }

    /// Whether the server is shutting down.
    pub(crate) fn is_closed(&self) -> bool {
        self.connected().is_closed
    }

    fn connected(&self) -> MutexGuard<'_, ConnectedDevices> {
        self.connected.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectedDevices {
    fn peer(&self, address: Address) -> Option<&ConnectedDevice> {
        self.devices.get(&address.device).filter(|peer| peer.session == address.session)
    }

    fn peer_mut(&mut self, address: Address) -> Option<&mut ConnectedDevice> {
        self.devices.get_mut(&address.device).filter(|peer| peer.session == address.session)
    }
}

impl Known {
    pub(crate) fn to_wire(&self) -> proto::Roster {
        proto::Roster { blob: Some(self.id.to_wire()), signature: Bytes::copy_from_slice(&self.signature) }
    }

    pub(crate) fn hash(&self) -> &blake3::Hash {
        &self.id.hash
    }
}

/// Takes in a roster that the server's own authority signed.
fn know(blobs: &Blobs, signed: &SignedRoster) -> Result<Known, RosterError> {
    let roster = Roster::decode(signed.bytes.clone())?;
    let id = blobs.keep_roster(signed.bytes.clone());
    let keys = Arc::new(roster.keys(&id.hash, &signed.signature)?);
    Ok(Known { roster, keys, id, signature: signed.signature })
}

impl Introduction {
    /// What the server of a federation tells, with a session of its own; experiment, model and number of parameters are for
    /// the caller to set.
    pub fn new(federation: &str) -> Result<Self, getrandom::Error> {
        let mut session = [0; 16];
        getrandom::fill(&mut session)?;
        Ok(Self {
            federation: federation.to_owned(),
            session,
            experiment: String::new(),
            model: "null".to_owned(),
            params: 0,
            open: false,
            contract: None,
        })
    }

    /// The Welcome of the device at this place.
    fn welcome(&self, index: u32, known: &Known) -> proto::Welcome {
        proto::Welcome {
            version: VERSION,
            federation: self.federation.clone(),
            session: Bytes::copy_from_slice(&self.session),
            index,
            experiment: Some(proto::Experiment {
                name: self.experiment.clone(),
                model: self.model.clone(),
                params: self.params as u64,
                open: self.open,
                contract: self
                    .contract
                    .as_ref()
                    .map(|contract| BlobId::for_bytes(&contract.to_bytes()).to_wire()),
            }),
            roster: Some(known.to_wire()),
        }
    }
}
