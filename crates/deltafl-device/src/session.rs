//! One connection of a device, from Hello to its end.

mod connection_cache;
mod divided;
mod ended;
mod newest;
mod roster;
mod round;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use deltafl::params::ParamsId;
use deltafl::question::Question;
use deltafl::trainer::LocalTrainer;
use deltafl_secagg::device::{DeviceRound, Participant};
use deltafl_wire::proto;
use deltafl_wire::proto::federation_client::FederationClient;
use deltafl_wire::proto::{FromDevice, FromServer, from_device, from_server};
use deltafl_wire::{BlobId, Reassembly, VERSION, array, malformed, parse_question};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;

pub(super) use self::connection_cache::ConnectionCache;
pub use self::ended::SessionError;
use self::roster::{enrolment, verified};
use super::cache::Verified;
use super::consent::{NotAllowed, Reason};
use super::defences::Defence;
use super::events::SessionEvent;
use super::limits::within;
use super::state::BudgetSpent;
use super::{Device, DeviceData};

/// The size limit of a secure aggregation message outside a round: an invitation.
const SMALL: usize = 4 << 10;
/// The number of queued outgoing messages. It is small because long messages are split into parts.
const OUTBOX: usize = 2;
/// The number of messages that a server may send while a device computes.
const PENDING: usize = 64;
/// The interval at which a device checks whether it can participate.
pub(super) const WILLING_EVERY: Duration = Duration::from_secs(15);

/// Participates until the connection ends.
pub(super) async fn attend(
    device: &mut Device,
    trainer: &Arc<dyn LocalTrainer>,
    data: &DeviceData,
    memory: &mut ConnectionCache,
) -> SessionError {
    let attended = async { Session::open(device, trainer, data, memory).await?.run().await };
    match attended.await {
        Ok(never) => match never {},
        Err(error) => error,
    }
}

struct Session<'d> {
    device: &'d mut Device,
    trainer: &'d Arc<dyn LocalTrainer>,
    data: &'d DeviceData,
    memory: &'d mut ConnectionCache,
    client: FederationClient<Channel>,
    outgoing: mpsc::Sender<FromDevice>,
    incoming: Streaming<FromServer>,
    /// Messages received during a computation.
    pending: VecDeque<from_server::Body>,
    /// The origin of the protocol's clock.
    since: Instant,
    session: [u8; 16],
    index: u32,
    roster: Arc<Verified>,
    enrolment: Participant,
    /// The availability last sent to the server, or `None` if the server must be informed.
    available: Option<bool>,
    /// Whether the device was away since it last fetched the newest params.
    was_away: bool,
    assembly: Reassembly,
    protocol: Option<DeviceRound>,
    question: Option<Question<ParamsId>>,
}

impl<'d> Session<'d> {
    /// Connects and fetches the description of the federation.
    async fn open(
        device: &'d mut Device,
        trainer: &'d Arc<dyn LocalTrainer>,
        data: &'d DeviceData,
        memory: &'d mut ConnectionCache,
    ) -> Result<Self, SessionError> {
        let limits = device.limits;
        let Greeted { mut client, outgoing, incoming, welcome } =
            within(limits.welcome, "the Welcome", greet(device)).await?;
        let _ = device.observe(SessionEvent::Connected);
        let experiment = welcome.experiment.as_ref().ok_or(malformed("experiment"))?;
        let allowed = device.consent.allows(experiment, trainer.num_params());
        if let Err(reason) = allowed.and_then(|()| same_contract(device, experiment)) {
            send(&outgoing, limits.send, from_device::Body::Decline(Reason::Policy.to_wire())).await?;
            return Err(reason.into());
        }
        let session = array(&welcome.session, "session")?;
        let roster = verified(device, memory, &mut client, welcome.roster).await?;
        let enrolment = enrolment(device, &roster, welcome.index, &session, trainer.num_params())?;
        let mut session = Self {
            device,
            trainer,
            data,
            memory,
            client,
            outgoing,
            incoming,
            pending: VecDeque::new(),
            since: Instant::now(),
            session,
            index: welcome.index,
            roster,
            enrolment,
            available: None,
            was_away: true,
            assembly: Reassembly::default(),
            protocol: None,
            question: None,
        };
        session.check_willing().await?;
        session.memory.opened = true;
        Ok(session)
    }

    /// Processes messages of the server.
    async fn run(&mut self) -> Result<Infallible, SessionError> {
        let mut willing = interval(WILLING_EVERY);
        willing.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            if let Some(body) = self.pending.pop_front() {
                self.handle(body).await?;
                continue;
            }
            let deadline = self.protocol.as_ref().and_then(DeviceRound::poll_timeout);
            let silence = deadline.map_or(WILLING_EVERY, |at| at.saturating_sub(self.since.elapsed()));
            tokio::select! {
                message = self.incoming.message() => {
                    let message = message?.ok_or(SessionError::Closed)?;
                    self.handle(message.body.ok_or(malformed("body"))?).await?;
                }
                _ = willing.tick() => self.check_willing().await?,
                () = sleep(silence), if deadline.is_some() => self.protocol = None,
            }
        }
    }

    async fn handle(&mut self, body: from_server::Body) -> Result<(), SessionError> {
        match body {
            from_server::Body::Welcome(_) => return Err(malformed("welcome").into()),
            from_server::Body::Roster(roster) => self.change_roster(roster).await?,
            from_server::Body::Question(question) => self.question = Some(parse_question(&question)?),
            from_server::Body::LossQuestion(question) => self.send_losses(question).await?,
            from_server::Body::Drain(drain) => return Err(SessionError::Drained { within: drain.within }),
            from_server::Body::Over(over) => {
                (self.protocol, self.question) = (None, None);
                if over.last {
                    let _ = self.device.observe(SessionEvent::Finished);
                }
            }
            from_server::Body::Part(part) => {
                let limit = self.protocol.as_ref().map_or(SMALL, DeviceRound::message_limit).max(SMALL);
                if let Some(bytes) = self.assembly.take(part, limit)? {
                    self.take_part(bytes, limit).await?;
                }
            }
        }
        Ok(())
    }

    /// Informs the server when the availability of this device changes.
    async fn check_willing(&mut self) -> Result<(), SessionError> {
        let willing = self.willing();
        if self.available == Some(willing.is_ok()) {
            return Ok(());
        }
        match willing {
            Ok(()) => {
                if std::mem::take(&mut self.was_away) {
                    self.learn_newest().await?;
                }
                self.available = Some(true);
                self.send_ready().await
            }
            Err(reason) => self.decline(reason).await,
        }
    }

    /// Waits until the device is available again.
    async fn decline(&mut self, reason: Reason) -> Result<(), SessionError> {
        (self.available, self.was_away) = (Some(false), true);
        self.send(from_device::Body::Decline(reason.to_wire())).await
    }

    fn willing(&mut self) -> Result<(), Reason> {
        let spent = self.memory.ledger.wait(self.device.consent.work_per_day).is_some();
        if spent || self.check_budget().is_err() {
            return Err(Reason::Policy);
        }
        (self.device.consent.willing)()
    }

    /// Checks that the owner's budget allows one more answer.
    fn check_budget(&self) -> Result<(), BudgetSpent> {
        if !self.device.defences.has(Defence::AnswerBudget) {
            return Ok(());
        }
        let (authority, budget) = (&self.device.credentials.authority, self.device.consent.budget());
        self.device.state.check_budget(authority, budget)
    }

    async fn send_ready(&self) -> Result<(), SessionError> {
        let roster = Bytes::copy_from_slice(self.roster.hash.as_bytes());
        self.send(from_device::Body::Ready(proto::Ready { roster })).await
    }

    /// Leaves the current round and stays available for the next.
    async fn sit_out(&mut self, reason: Reason) -> Result<(), SessionError> {
        (self.protocol, self.question) = (None, None);
        self.send(from_device::Body::Decline(reason.to_wire())).await?;
        self.send_ready().await
    }

    async fn change_roster(&mut self, roster: proto::Roster) -> Result<(), SessionError> {
        self.roster = verified(self.device, self.memory, &mut self.client, Some(roster)).await?;
        let params = self.trainer.num_params();
        self.enrolment = enrolment(self.device, &self.roster, self.index, &self.session, params)?;
        self.available = None;
        self.check_willing().await
    }

    async fn send(&self, body: from_device::Body) -> Result<(), SessionError> {
        send(&self.outgoing, self.device.limits.send, body).await
    }
}

/// A stream on which the server has sent Welcome.
struct Greeted {
    client: FederationClient<Channel>,
    outgoing: mpsc::Sender<FromDevice>,
    incoming: Streaming<FromServer>,
    welcome: proto::Welcome,
}

/// Connects, sends Hello and waits for Welcome.
async fn greet(device: &Device) -> Result<Greeted, SessionError> {
    let mut client = device.server.dial(&device.environment.network).await?;
    let (outgoing, outbox) = mpsc::channel(OUTBOX);
    let hello = proto::Hello { version: VERSION, device: device.credentials.name.clone() };
    // The outbox is empty, so it has room.
    let _ = outgoing.try_send(FromDevice { body: Some(from_device::Body::Hello(hello)) });
    let mut incoming = client.attend(ReceiverStream::new(outbox)).await?.into_inner();
    match incoming.message().await? {
        Some(FromServer { body: Some(from_server::Body::Welcome(welcome)) }) => {
            Ok(Greeted { client, outgoing, incoming, welcome })
        }
        _ => Err(malformed("welcome").into()),
    }
}

/// Checks that the server uses the data contract for which the device prepared its examples, if it
/// prepared any.
fn same_contract(device: &Device, experiment: &proto::Experiment) -> Result<(), NotAllowed> {
    let Some(expected) = &device.contract else { return Ok(()) };
    let theirs = BlobId::from_wire(experiment.contract.clone()).ok();
    let same = theirs.is_some_and(|theirs| theirs.hash == *expected);
    if same { Ok(()) } else { Err(NotAllowed::OtherContract) }
}

async fn send(
    outgoing: &mpsc::Sender<FromDevice>,
    limit: Duration,
    body: from_device::Body,
) -> Result<(), SessionError> {
    let sending =
        async { outgoing.send(FromDevice { body: Some(body) }).await.map_err(|_| SessionError::Closed) };
    within(limit, "a message to be taken", sending).await
}
