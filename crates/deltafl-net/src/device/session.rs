//! One connection of a device, from its greeting to its end.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use chacha20::ChaCha20Rng;
use deltafl::model::Model;
use deltafl::params::{Params, UpdateCode};
use deltafl_secagg::device::{Device as Protocol, DeviceEvent, Enrolment};
use deltafl_secagg::identity::{DeviceId, Identity};
use deltafl_secagg::message::ServerBody;
use deltafl_secagg::message::wire::{WireError, decode_server, encode_device};
use deltafl_secagg::params::RoundParams;
use deltafl_secagg::ring::RingVector;
use rand_core::SeedableRng;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};
use zeroize::Zeroizing;

use super::answer::{Losses, Task};
use super::consent::{Ledger, NotAllowed, Reason};
use super::fetch::{FetchError, Partial, fetch_again};
use super::library::Verified;
use super::workers::Failed;
use super::{Data, Device};
use crate::fault::Turn;
use crate::link::DialError;
use crate::roster::{MAX_ROSTER, Roster, RosterError, SignedRoster};
use crate::wire::proto::federation_client::FederationClient;
use crate::wire::proto::{self, FromDevice, FromServer, from_device, from_server};
use crate::wire::{
    Assembly, BlobId, MAX_QUERIES, Malformed, PartError, Question, VERSION, array, malformed, parts,
};

/// Messages of secure aggregation outside of a round: an invitation.
const SMALL: usize = 4 << 10;
/// Messages that wait for the network: few, because the long ones are in parts.
const OUTBOX: usize = 2;
/// How often a device asks itself whether it has time.
const WILLING_EVERY: Duration = Duration::from_secs(15);

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// There was none.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// The server ended it, or the network did.
    #[error("the server said: {0}")]
    Status(#[from] Status),
    /// The server closed the stream.
    #[error("the server closed the stream")]
    Closed,
    /// The server said something that is not of the protocol.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// A message that does not fit its parts.
    #[error(transparent)]
    Part(#[from] PartError),
    /// A message of secure aggregation that is not one.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The roster is not to be believed, or this device is not on it.
    #[error(transparent)]
    Roster(#[from] RosterError),
    /// The roster has another key, or another place, for this device.
    #[error("the roster does not know this device as the server does")]
    NotOnRoster,
    /// A blob could not be fetched.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// The owner did not agree.
    #[error(transparent)]
    NotAllowed(#[from] NotAllowed),
    /// The device cannot compute.
    #[error(transparent)]
    Failed(#[from] Failed),
    /// The device vanishes, as it was told to.
    #[error("vanished on purpose")]
    Vanished,
    /// No randomness for keys.
    #[error("the operating system gives no randomness")]
    Randomness,
}

/// What outlives a connection.
#[derive(Default)]
pub(super) struct Memory {
    partial: Partial,
    /// The last round of a session that this device joined.
    joined: Option<([u8; 16], Option<u64>)>,
    ledger: Ledger,
    losses: Losses,
    /// The parameters fetched last, by hash: in a shared library others may have been first, but each fetches for itself.
    fetched: VecDeque<blake3::Hash>,
    welcomed: bool,
}

impl Memory {
    /// Whether a server welcomed the device since this was last asked.
    pub(super) fn take_welcomed(&mut self) -> bool {
        std::mem::take(&mut self.welcomed)
    }

    /// Whether this device has not fetched this hash before; it counts as fetched from now on.
    fn is_new(&mut self, hash: &blake3::Hash) -> bool {
        if self.fetched.contains(hash) {
            return false;
        }
        self.fetched.push_back(*hash);
        if self.fetched.len() > MAX_QUERIES {
            self.fetched.pop_front();
        }
        true
    }
}

/// Attends until the connection ends.
pub(super) async fn attend(
    device: &mut Device,
    model: &Arc<dyn Model>,
    data: &Data,
    memory: &mut Memory,
) -> SessionError {
    let attended = async {
        let (mut session, incoming) = Session::open(device, model, data, memory).await?;
        session.stay(incoming).await
    };
    match attended.await {
        Ok(never) => match never {},
        Err(error) => error,
    }
}

struct Session<'d> {
    device: &'d mut Device,
    model: &'d Arc<dyn Model>,
    data: &'d Data,
    memory: &'d mut Memory,
    client: FederationClient<Channel>,
    outgoing: mpsc::Sender<FromDevice>,
    /// The zero of the protocol's clock.
    since: Instant,
    session: [u8; 16],
    index: u32,
    roster: Arc<Verified>,
    enrolment: Enrolment,
    /// Whether the server may draw this device.
    available: bool,
    assembly: Assembly,
    protocol: Option<Protocol>,
    question: Option<Question>,
}

impl<'d> Session<'d> {
    /// Connects, and gets to know the federation.
    async fn open(
        device: &'d mut Device,
        model: &'d Arc<dyn Model>,
        data: &'d Data,
        memory: &'d mut Memory,
    ) -> Result<(Self, Streaming<FromServer>), SessionError> {
        let mut client = device.server.dial().await?;
        let (outgoing, outbox) = mpsc::channel(OUTBOX);
        let hello = proto::Hello { version: VERSION, device: device.credentials.name.clone() };
        send(&outgoing, from_device::Body::Hello(hello)).await?;
        let mut incoming = client.attend(ReceiverStream::new(outbox)).await?.into_inner();
        let Some(FromServer { body: Some(from_server::Body::Welcome(welcome)) }) = incoming.message().await?
        else {
            return Err(malformed("welcome").into());
        };
        memory.welcomed = true;
        let experiment = welcome.experiment.as_ref().ok_or(malformed("experiment"))?;
        if let Err(reason) = device.consent.allows(experiment, model.num_params()) {
            send(&outgoing, from_device::Body::Decline(Reason::Policy.to_wire())).await?;
            return Err(reason.into());
        }
        let session = array(&welcome.session, "session")?;
        let roster = verified(device, memory, &mut client, welcome.roster).await?;
        let identity = identity(device, &roster, welcome.index)?;
        let longest = MAX_QUERIES * UpdateCode::len(model.num_params());
        let policy = device.consent.policy(u32::try_from(longest).unwrap_or(u32::MAX));
        let last = memory.joined.filter(|(of, _)| *of == session).and_then(|(_, round)| round);
        let enrolment = Enrolment::new(identity, Arc::clone(&roster.keys), session, policy).resumed(last);
        let mut session = Self {
            device,
            model,
            data,
            memory,
            client,
            outgoing,
            since: Instant::now(),
            session,
            index: welcome.index,
            roster,
            enrolment,
            available: false,
            assembly: Assembly::default(),
            protocol: None,
            question: None,
        };
        session.check_willing().await?;
        Ok((session, incoming))
    }

    /// Listens to the server.
    async fn stay(&mut self, mut incoming: Streaming<FromServer>) -> Result<Infallible, SessionError> {
        let mut willing = interval(WILLING_EVERY);
        willing.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let deadline = self.protocol.as_ref().and_then(Protocol::poll_timeout);
            let silence = deadline.map_or(WILLING_EVERY, |at| at.saturating_sub(self.since.elapsed()));
            tokio::select! {
                message = incoming.message() => {
                    let message = message?.ok_or(SessionError::Closed)?;
                    self.hear(message.body.ok_or(malformed("body"))?).await?;
                }
                _ = willing.tick() => self.check_willing().await?,
                () = sleep(silence), if deadline.is_some() => self.protocol = None,
            }
        }
    }

    async fn hear(&mut self, body: from_server::Body) -> Result<(), SessionError> {
        match body {
            from_server::Body::Welcome(_) => return Err(malformed("welcome").into()),
            from_server::Body::Roster(roster) => self.change_roster(roster).await?,
            from_server::Body::Question(question) => self.question = Some(question.try_into()?),
            from_server::Body::LossQuestion(question) => self.tell_losses(question).await?,
            from_server::Body::Over(_) => (self.protocol, self.question) = (None, None),
            from_server::Body::Part(part) => {
                let limit = self.protocol.as_ref().map_or(SMALL, Protocol::message_limit).max(SMALL);
                if let Some(bytes) = self.assembly.take(part, limit)? {
                    self.take_part(bytes, limit).await?;
                }
            }
        }
        Ok(())
    }

    /// Tells the server when this device begins or ceases to have time.
    async fn check_willing(&mut self) -> Result<(), SessionError> {
        let willing = self.willing();
        if willing.is_ok() == self.available {
            return Ok(());
        }
        self.available = willing.is_ok();
        match willing {
            Ok(()) => self.say_ready().await,
            Err(reason) => send(&self.outgoing, from_device::Body::Decline(reason.to_wire())).await,
        }
    }

    fn willing(&mut self) -> Result<(), Reason> {
        let spent = self.memory.ledger.wait(self.device.consent.work_per_day).is_some();
        if spent { Err(Reason::Policy) } else { (self.device.consent.willing)() }
    }

    async fn say_ready(&self) -> Result<(), SessionError> {
        let roster = Bytes::copy_from_slice(self.roster.hash.as_bytes());
        send(&self.outgoing, from_device::Body::Ready(proto::Ready { roster })).await
    }

    /// Stays out of the present round, and is there for the next.
    async fn sit_out(&mut self, reason: Reason) -> Result<(), SessionError> {
        (self.protocol, self.question) = (None, None);
        send(&self.outgoing, from_device::Body::Decline(reason.to_wire())).await?;
        self.say_ready().await
    }

    async fn change_roster(&mut self, roster: proto::Roster) -> Result<(), SessionError> {
        self.roster = verified(self.device, self.memory, &mut self.client, Some(roster)).await?;
        let identity = identity(self.device, &self.roster, self.index)?;
        let longest = MAX_QUERIES * UpdateCode::len(self.model.num_params());
        let policy = self.device.consent.policy(u32::try_from(longest).unwrap_or(u32::MAX));
        let last = self.enrolment.last_round();
        self.enrolment =
            Enrolment::new(identity, Arc::clone(&self.roster.keys), self.session, policy).resumed(last);
        self.available = false;
        self.check_willing().await
    }

    /// A message of secure aggregation.
    async fn take_part(&mut self, bytes: Bytes, limit: usize) -> Result<(), SessionError> {
        let message = decode_server(bytes, limit)?;
        if let ServerBody::Invite(params) = &message.body {
            return self.join(params).await;
        }
        let now = self.since.elapsed();
        let Some(protocol) = &mut self.protocol else { return Ok(()) };
        if let Err(abort) = protocol.handle(now, message) {
            tracing::warn!(%abort, "left the round");
            return self.sit_out(Reason::Policy).await;
        }
        while let Some(event) = self.protocol.as_mut().and_then(Protocol::poll_event) {
            match event {
                DeviceEvent::InputWanted(_) => self.answer().await?,
                DeviceEvent::RoundDone => {
                    self.speak().await?;
                    self.protocol = None;
                }
                _ => {}
            }
        }
        self.speak().await
    }

    /// Joins a round that consent and policy allow.
    async fn join(&mut self, params: &RoundParams) -> Result<(), SessionError> {
        (self.protocol, self.question) = (None, None);
        if let Err(reason) = self.willing() {
            self.available = false;
            return send(&self.outgoing, from_device::Body::Decline(reason.to_wire())).await;
        }
        let mut seed = Zeroizing::new([0; 32]);
        getrandom::fill(&mut *seed).map_err(|_| SessionError::Randomness)?;
        let now = self.since.elapsed();
        match self.enrolment.join(params, now, &mut ChaCha20Rng::from_seed(*seed)) {
            Ok(protocol) => {
                self.memory.joined = Some((self.session, self.enrolment.last_round()));
                self.device.faults.begin_round();
                self.protocol = Some(protocol);
                self.speak().await
            }
            Err(refused) => {
                tracing::warn!(%refused, "stays out of a round");
                self.sit_out(Reason::Policy).await
            }
        }
    }

    /// Computes the answer to the present question and hands it in.
    async fn answer(&mut self) -> Result<(), SessionError> {
        let (Some(question), Some(mut protocol)) = (self.question.take(), self.protocol.take()) else {
            return self.sit_out(Reason::Unable).await;
        };
        let blobs: Vec<BlobId> = question.queries.iter().map(|query| query.params).collect();
        let params = self.fetch_params(&blobs).await?;
        let workers = Arc::clone(&self.device.workers);
        let _room = workers.room().await;
        let (model, data, index) = (Arc::clone(self.model), self.data.clone(), self.index);
        let mut losses = std::mem::take(&mut self.memory.losses);
        let begun = Instant::now();
        let computed = workers.compute(move |workspace| {
            let task = Task { model: &*model, data: &data, index };
            let answer = task.answer(&question, &params, &mut losses, workspace);
            let submitted = protocol.submit(&answer.context, RingVector::Z64(answer.values));
            (submitted, protocol, losses)
        });
        let (submitted, protocol, losses) = computed.await?;
        self.memory.ledger.spend(begun.elapsed());
        self.memory.losses = losses;
        self.protocol = Some(protocol);
        match submitted {
            Ok(()) => self.speak().await,
            Err(refused) => {
                tracing::warn!(%refused, "the answer does not fit what was asked");
                self.sit_out(Reason::Unable).await
            }
        }
    }

    /// Open mode: F_k at the parameters asked about.
    async fn tell_losses(&mut self, question: proto::LossQuestion) -> Result<(), SessionError> {
        if !self.device.consent.open || question.params.len() > MAX_QUERIES {
            return self.sit_out(Reason::Policy).await;
        }
        let blobs = question.params.into_iter().map(|blob| BlobId::from_wire(Some(blob)));
        let params = self.fetch_params(&blobs.collect::<Result<Vec<_>, _>>()?).await?;
        let (model, data, index) = (Arc::clone(self.model), self.data.clone(), self.index);
        let begun = Instant::now();
        let computed = self
            .device
            .workers
            .compute(move |workspace| Task { model: &*model, data: &data, index }.losses(&params, workspace));
        let losses = computed.await?;
        self.memory.ledger.spend(begun.elapsed());
        let examples = self.data.federation.count(self.data.device);
        send(&self.outgoing, from_device::Body::Losses(proto::Losses { id: question.id, examples, losses }))
            .await
    }

    /// The parameters of some hashes, each fetched once.
    async fn fetch_params(&mut self, blobs: &[BlobId]) -> Result<Vec<Params>, SessionError> {
        let mut fetched: Vec<Params> = Vec::with_capacity(blobs.len());
        for (i, &blob) in blobs.iter().enumerate() {
            let params = match blobs[..i].iter().position(|earlier| *earlier == blob) {
                Some(earlier) => fetched[earlier].clone(),
                None => self.params(blob).await?,
            };
            fetched.push(params);
        }
        Ok(fetched)
    }

    async fn params(&mut self, blob: BlobId) -> Result<Params, SessionError> {
        let expected = 4 * self.model.num_params() as u64;
        if blob.len != expected {
            return Err(malformed("params").into());
        }
        let (library, faults) = (&self.device.library, &self.device.faults);
        if let Some(known) = library.params(&blob.hash) {
            if self.memory.is_new(&blob.hash) {
                fetch_again(&mut self.client, blob, faults).await?;
            }
            return Ok(known);
        }
        let bytes = self.memory.partial.fetch(&mut self.client, blob, expected, faults).await?;
        self.memory.is_new(&blob.hash);
        let entries = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        Ok(library.keep_params(entries.collect::<Vec<f32>>().into()))
    }

    /// Sends what the protocol has to say.
    async fn speak(&mut self) -> Result<(), SessionError> {
        while let Some(message) = self.protocol.as_mut().and_then(Protocol::poll_transmit) {
            let mut bytes = encode_device(&message);
            match self.device.faults.next_message().await {
                Turn::Sent => {}
                Turn::Vanishes => return Err(SessionError::Vanished),
                Turn::Garbled => bytes = self.device.faults.noise(bytes.len()).into(),
            }
            for part in parts(bytes) {
                self.device.faults.transfer(part.data.len()).await;
                send(&self.outgoing, from_device::Body::Part(part)).await?;
            }
        }
        Ok(())
    }
}

async fn send(outgoing: &mpsc::Sender<FromDevice>, body: from_device::Body) -> Result<(), SessionError> {
    outgoing.send(FromDevice { body: Some(body) }).await.map_err(|_| SessionError::Closed)
}

/// The roster that the server names, once the authority's signature holds.
async fn verified(
    device: &Device,
    memory: &mut Memory,
    client: &mut FederationClient<Channel>,
    wire: Option<proto::Roster>,
) -> Result<Arc<Verified>, SessionError> {
    let wire = wire.ok_or(malformed("roster"))?;
    let (id, signature) = (BlobId::from_wire(wire.blob)?, array(&wire.signature, "signature")?);
    if !SignedRoster::verifies(&id.hash, &signature, &device.credentials.authority) {
        return Err(RosterError::Signature.into());
    }
    if let Some(known) = device.library.roster(&id.hash) {
        return Ok(known);
    }
    let bytes = memory.partial.fetch(client, id, MAX_ROSTER as u64, &device.faults).await?;
    let roster = Roster::decode(bytes)?;
    let keys = Arc::new(roster.keys()?);
    Ok(device.library.keep_roster(Verified { hash: id.hash, roster, keys }))
}

/// This device's signing key, under the number that roster and server have for it.
fn identity(device: &Device, roster: &Verified, index: u32) -> Result<Arc<Identity>, SessionError> {
    let identity = Identity::from_secret(DeviceId(index), &device.credentials.signing);
    let entry = roster.roster.entries().get(index as usize);
    let mine = entry.is_some_and(|e| e.name == device.credentials.name && e.key == identity.public());
    if mine { Ok(Arc::new(identity)) } else { Err(SessionError::NotOnRoster) }
}
