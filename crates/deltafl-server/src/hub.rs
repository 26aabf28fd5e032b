//! The connected devices: their identity, their connections and their messages.
//!
//! Connections run on the async runtime. The round loop runs on its own thread and receives their
//! events in order through one channel.

mod blobs;
mod outgoing;
mod session;
mod sessions;
mod status;
mod turns;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

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
use tokio::time::{Instant, timeout};

pub(crate) use self::blobs::ServedBlobs;
pub(crate) use self::outgoing::Outbound;
use self::outgoing::Outgoing;
pub(crate) use self::session::SessionEnd;
pub(crate) use self::sessions::keep_time_limits;
pub use self::sessions::{SessionList, SessionMonitor, SessionState, SessionStatus};
use self::sessions::{SessionProgress, SharedSession};
pub use self::status::{Phase, PhasePurpose, Status};
use self::turns::Turns;
use crate::refusal::{Refusal, Refusals};

/// The capacity of a device's outbox. A round sends a few dozen messages, and long ones in parts.
const OUTBOX: usize = 256;
/// The capacity of the event channel of the round loop.
const INBOX: usize = 1024;
/// The maximum number of Hello messages of one device within [`HELLO_WINDOW`].
const MAX_HELLOS: u32 = 20;
/// The time in seconds within which devices reconnect to a stopped server.
const COME_BACK: u32 = 10;
const HELLO_WINDOW: Duration = Duration::from_secs(60);

/// The description of the server that devices receive.
#[derive(Clone, Debug)]
pub struct Introduction {
    /// The name of the federation.
    pub federation: String,
    /// Identifies the key set-ups of this process.
    pub session: [u8; 16],
    /// The name of the experiment.
    pub experiment: String,
    /// The model in JSON, or `null` if devices have their own trainer.
    pub model: String,
    /// The number of parameters.
    pub params: usize,
    /// Whether the server asks devices for individual losses.
    pub open: bool,
    /// The data contract, or `None` if devices have their own trainer.
    pub contract: Option<DataContract>,
}

/// Limits on the memory and bandwidth that devices can use on the server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The limit on bytes of long incoming messages over all devices. It is raised if
    /// [`CONCURRENT`] of the longest messages of a round need more.
    pub incoming_bytes: usize,
    /// The time limit between two parts of a message, and for the Hello.
    pub patience: Duration,
    /// The minimum throughput of a long message in bytes per second, in addition to one `patience`.
    pub min_rate: u32,
    /// The bytes per second of newest params for connecting devices, which fetch them before they
    /// can be drawn. With 0, devices fetch params with each question.
    pub newest_rate: u64,
    /// The maximum time in the queue for the newest params. After that the device can be drawn
    /// without them, and fetches params with each question.
    pub turn_within: Duration,
    /// The time limit for a device to become ready or to decline, after it connects and after a
    /// change of the roster. The time for its fetches at `min_rate` is added. Time in the queue for
    /// the newest params and in rounds does not count.
    pub ready_within: Duration,
}

/// The number of the longest messages of a round that can arrive at the same time, so that a few
/// devices cannot use all the room.
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

/// A device during one session. A device that reconnects has a new address, which a running round
/// ignores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Address {
    /// Its position on the roster.
    pub(crate) device: u32,
    session: u64,
}

/// An event of a device.
#[derive(Debug)]
pub(crate) struct SessionEvent {
    pub(crate) from: Address,
    pub(crate) event: HubEvent,
}

/// The kind of event.
#[derive(Debug)]
pub(crate) enum HubEvent {
    /// The device sent a message of secure aggregation.
    Message {
        bytes: Bytes,
        /// The reserved incoming bytes, released when the event is dropped.
        _room: Option<OwnedSemaphorePermit>,
    },
    /// The device sent its losses.
    Losses(proto::Losses),
    /// The device disconnected or declined.
    Gone,
}

/// A roster in the form that the server uses.
#[derive(Debug)]
pub(crate) struct ActiveRoster {
    pub(crate) roster: Roster,
    pub(crate) keys: Arc<KeyRoster>,
    id: BlobId,
    signature: [u8; 64],
}

/// The connection between the devices and the round loop.
#[derive(Debug)]
pub(crate) struct Hub {
    introduction: Introduction,
    limits: Limits,
    connected: Mutex<ConnectedDevices>,
    /// Notified when a device becomes ready.
    arrivals: Notify,
    events: mpsc::Sender<SessionEvent>,
    pub(crate) blobs: ServedBlobs,
    /// The queue of devices that fetch the newest params.
    turns: Turns,
    /// The available kibibytes for long incoming messages.
    room: Arc<Semaphore>,
    /// The kibibytes of `room` when no message is incoming.
    capacity: Mutex<usize>,
    /// The length of the longest message in the current round.
    longest: AtomicUsize,
    pub(crate) refusals: Arc<Refusals>,
    pub(crate) status: watch::Sender<Status>,
}

#[derive(Debug)]
struct ConnectedDevices {
    known: Arc<ActiveRoster>,
    devices: HashMap<u32, ConnectedDevice>,
    hellos: HashMap<u32, Hellos>,
    next_session: u64,
    ready: usize,
    /// Whether the server is shutting down. It then opens no new session.
    is_closed: bool,
}

/// A connected device.
#[derive(Debug)]
struct ConnectedDevice {
    /// Distinguishes a session of a device from its earlier ones.
    session: u64,
    /// Shared, so that a message for a whole cohort is stored once.
    outbox: mpsc::Sender<Outbound>,
    shared: Arc<SharedSession>,
    progress: SessionProgress,
    /// Whether the current round awaits a message of the device.
    expected: bool,
}

/// The recent Hello messages of a device.
#[derive(Debug)]
struct Hellos {
    since: Instant,
    count: u32,
}

impl Hub {
    /// Creates a hub without devices, and the receiver of its events.
    pub(crate) fn new(
        introduction: Introduction,
        limits: Limits,
        roster: &SignedRoster,
    ) -> Result<(Arc<Self>, mpsc::Receiver<SessionEvent>), RosterError> {
        let (events, inbox) = mpsc::channel(INBOX);
        let blobs = ServedBlobs::default();
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

    /// The time limit for responses of a device.
    pub(crate) fn patience(&self) -> Duration {
        self.limits.patience
    }

    /// Returns the current roster.
    pub(crate) fn known(&self) -> Arc<ActiveRoster> {
        Arc::clone(&self.connected().known)
    }

    /// Replaces the roster after enrolments or revocations. Connected devices fetch it before they
    /// can be drawn again. Revoked devices are disconnected.
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

    /// Accepts messages up to this length, [`CONCURRENT`] of them at the same time.
    pub(crate) fn allow(&self, bytes: usize) {
        self.longest.fetch_max(bytes, Ordering::Relaxed);
        let mut capacity = self.capacity.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = CONCURRENT * bytes.div_ceil(1 << 10);
        if wanted > *capacity {
            self.room.add_permits(wanted - *capacity);
            *capacity = wanted;
        }
    }

    /// Records that an answer of this device is awaited. The device may then send one long message.
    pub(crate) fn expect(&self, from: Address) {
        if let Some(peer) = self.connected().peer_mut(from) {
            peer.expected = true;
        }
    }

    /// Returns the devices that can be drawn, by position on the roster.
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

    /// Returns the number of connected devices and the number that can be drawn.
    pub(crate) fn presence(&self) -> (usize, usize) {
        let connected = self.connected();
        (connected.devices.len(), connected.ready)
    }

    /// Publishes the current params of the tracks.
    pub(crate) fn set_newest(&self, state: &State) {
        self.blobs.keep_newest(state.tracks.iter().map(|track| &track.params));
    }

    /// Returns the newest params that a device does not have, after its turn in the queue. A device
    /// has one turn per round, so that repeated requests do not delay the others. Returns none if
    /// the queue is longer than [`Limits::turn_within`].
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

    /// Waits until this many devices can be drawn.
    pub(crate) async fn enough(&self, devices: usize) {
        loop {
            let arrival = self.arrivals.notified();
            if self.connected().ready >= devices {
                return;
            }
            arrival.await;
        }
    }

    /// Waits until `enough` holds for the devices that can be drawn.
    pub(crate) async fn until(&self, enough: impl Fn(&[bool]) -> bool) {
        loop {
            let arrival = self.arrivals.notified();
            if enough(&self.ready()) {
                return;
            }
            arrival.await;
        }
    }

    /// Returns the address of a device if it can be drawn.
    pub(crate) fn address(&self, device: u32) -> Option<Address> {
        let connected = self.connected();
        let peer = connected.devices.get(&device).filter(|peer| peer.progress.is_ready())?;
        Some(Address { device, session: peer.session })
    }

    /// Sends a message to a device. Returns `false` if it is not connected. A device that does not
    /// read its messages is disconnected.
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

    /// Sends messages in order. Returns `false` if the device is not connected.
    pub(crate) fn send_all(&self, to: Address, messages: &[Outbound]) -> bool {
        messages.iter().all(|message| self.send(to, message))
    }

    /// Counts the reason, and ends the session and the connection of a device.
    pub(crate) fn expel(&self, who: Address, refusal: Refusal) {
        self.refusals.count(refusal);
        if let Some(peer) = self.connected().peer(who) {
            peer.shared.close_connection();
        }
    }

    /// Informs every device that the server plans no further round.
    pub(crate) fn finish(&self) {
        let over = Outbound::shared(from_server::Body::Over(proto::Over { last: true }));
        for peer in self.connected().devices.values() {
            // A device that does not read loses the messages in a full outbox.
            let _ = peer.outbox.try_send(over.clone());
        }
    }

    /// Informs every device that the server stops, ends its session, and opens no new session.
    pub(crate) fn close(&self) {
        let drain = Outbound::shared(from_server::Body::Drain(proto::Drain { within: COME_BACK }));
        let mut connected = self.connected();
        connected.is_closed = true;
        for peer in connected.devices.values() {
            // A device that does not read loses the messages in a full outbox.
            let _ = peer.outbox.try_send(drain.clone());
            peer.shared.close_session();
        }
    }

    /// Returns `true` if the server is shutting down.
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

impl ActiveRoster {
    pub(crate) fn to_wire(&self) -> proto::Roster {
        proto::Roster { blob: Some(self.id.to_wire()), signature: Bytes::copy_from_slice(&self.signature) }
    }

    pub(crate) fn hash(&self) -> &blake3::Hash {
        &self.id.hash
    }
}

/// Accepts a roster signed by the server's own authority.
fn know(blobs: &ServedBlobs, signed: &SignedRoster) -> Result<ActiveRoster, RosterError> {
    let roster = Roster::decode(signed.bytes.clone())?;
    let id = blobs.keep_roster(signed.bytes.clone());
    let keys = Arc::new(roster.keys(&id.hash, &signed.signature)?);
    Ok(ActiveRoster { roster, keys, id, signature: signed.signature })
}

impl Introduction {
    /// Returns the description of a federation with a new session. The caller sets the experiment,
    /// the model and the number of parameters.
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

    /// Returns the Welcome for the device at this position.
    fn welcome(&self, index: u32, known: &ActiveRoster) -> proto::Welcome {
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
