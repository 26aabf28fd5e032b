//! A whole round in one process: the real state machines, encoded messages, seeded drop-outs.
//!
//! ```
//! use chacha20::ChaCha20Rng;
//! use deltafl_secagg::graph::GraphRule;
//! use deltafl_secagg::identity::DeviceId;
//! use deltafl_secagg::simulate::{SimulationConfig, DropOut, SimulatedRound};
//! use rand_core::SeedableRng;
//!
//! let devices = [DeviceId(0), DeviceId(1), DeviceId(2), DeviceId(3)];
//! let drops = [DropOut::before_input(DeviceId(3), 1)];
//! let config = SimulationConfig { graph: GraphRule::Full { threshold: 3 }, slots: 2, ..SimulationConfig::default() };
//! let mut rng = ChaCha20Rng::seed_from_u64(1);
//! let mut round = SimulatedRound::new(&config, &devices, &drops, &mut rng)?;
//!
//! // Every device answers with its id, and then, when device 3 is gone, with twice its id.
//! let first = round.sum::<u64>(1, b"histogram", |id| vec![u64::from(id.0)])?;
//! assert_eq!(first.sum, [0 + 1 + 2 + 3]);
//! let second = round.sum::<u64>(1, b"update", |id| vec![2 * u64::from(id.0)])?;
//! assert_eq!(second.sum, [0 + 2 + 4]);
//! # Ok::<(), deltafl_secagg::simulate::SimulationError>(())
//! ```

mod traffic;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use prost::bytes::Bytes;
use rand_core::CryptoRng;
use thiserror::Error;

pub use self::traffic::{DeviceTraffic, RoundTraffic};
use crate::device::{AdversaryModel, DeviceEvent, DevicePolicy, DeviceRound, Participant, SubmitError};
use crate::graph::{GraphRule, Permille};
use crate::identity::{DeviceId, KeyRoster, SigningIdentity};
use crate::mask::MaskSuite;
use crate::message::wire::{decode_device, decode_server, encode_device, encode_server};
use crate::message::{DeviceBody, DeviceSet, ServerBody};
use crate::params::{ParamsError, RoundId, RoundParams};
use crate::ring::{Ring, RingVector};
use crate::server::{
    OpenSlotError, PhaseName, RoundFailure, ServerConfig, ServerEvent, ServerRound, SlotSum,
};

/// A limit for messages that no simulated round comes near.
const NO_LIMIT: usize = usize::MAX;

/// How a simulated round is set up.
#[derive(Debug, Clone)]
pub struct SimulationConfig {
    /// Session and round.
    pub id: RoundId,
    /// The cryptography of the round.
    pub suite: MaskSuite,
    /// Who shares secrets with whom.
    pub graph: GraphRule,
    /// The number of sums.
    pub slots: u32,
    /// The fewest devices in a sum.
    pub min_members: usize,
    /// Whether to keep every message, for [`SimulatedRound::recording`].
    pub record: bool,
}

/// One slot, the masks of the default suite, and the graph against a server that lies.
impl Default for SimulationConfig {
    fn default() -> Self {
        Self {
            id: RoundId { session: [0; 16], round: 0 },
            suite: MaskSuite::default(),
            graph: GraphRule::default(),
            slots: 1,
            min_members: 2,
            record: false,
        }
    }
}

/// A message on its way, as bytes. The server is nobody.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// The sender.
    pub from: Option<DeviceId>,
    /// The recipient.
    pub to: Option<DeviceId>,
    /// The encoded message.
    pub bytes: Bytes,
}

/// A device vanishes before it sends its message of a phase, for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DropOut {
    /// The device.
    pub device: DeviceId,
    /// The phase.
    pub before: PhaseName,
}

impl DropOut {
    /// A device that vanishes before it hands in its input of a slot.
    pub fn before_input(device: DeviceId, slot: u32) -> Self {
        Self { device, before: PhaseName::MaskedInput(slot) }
    }
}

/// An element of a ring, as the simulator's vectors hold them.
pub trait Coordinate: Sized {
    /// The ring.
    const RING: Ring;
    /// The vector over that ring.
    fn into_vector(coordinates: Vec<Self>) -> RingVector;
    /// The coordinates of a vector over that ring; none of one over another.
    fn from_vector(vector: RingVector) -> Vec<Self>;
}

impl Coordinate for u32 {
    const RING: Ring = Ring::Z32;

    fn into_vector(coordinates: Vec<Self>) -> RingVector {
        RingVector::Z32(coordinates)
    }

    fn from_vector(vector: RingVector) -> Vec<Self> {
        match vector {
            RingVector::Z32(words) => words,
            RingVector::Z64(_) => Vec::new(),
        }
    }
}

impl Coordinate for u64 {
    const RING: Ring = Ring::Z64;

    fn into_vector(coordinates: Vec<Self>) -> RingVector {
        RingVector::Z64(coordinates)
    }

    fn from_vector(vector: RingVector) -> Vec<Self> {
        match vector {
            RingVector::Z64(words) => words,
            RingVector::Z32(_) => Vec::new(),
        }
    }
}

/// The sum of a slot and the devices in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SimulatedSum<C> {
    /// Σ of the inputs of the survivors.
    pub sum: Vec<C>,
    /// Those devices.
    pub survivors: DeviceSet,
}

/// Why a simulated sum did not come about.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SimulationError {
    /// The protocol ended without it, as it should below the threshold.
    #[error(transparent)]
    Failed(#[from] RoundFailure),
    /// Parameters under which no round can run.
    #[error(transparent)]
    Params(#[from] ParamsError),
    /// More sums than the configuration has slots.
    #[error("all slots of the round are used up")]
    SlotsUsedUp,
    /// An input of another length than the slot's.
    #[error("the input of device {device} is refused: {source}")]
    Input {
        /// The device.
        device: DeviceId,
        /// Why.
        source: SubmitError,
    },
}

/// One secure sum in a round of its own: set up keys, add, forget.
pub fn secure_sum<C: Coordinate>(
    config: &SimulationConfig,
    devices: &[DeviceId],
    drops: &[DropOut],
    len: u32,
    rng: &mut impl CryptoRng,
    input: impl FnMut(DeviceId) -> Vec<C>,
) -> Result<(SimulatedSum<C>, RoundTraffic), SimulationError> {
    let mut round = SimulatedRound::new(config, devices, drops, rng)?;
    let sum = round.sum(len, b"", input)?;
    Ok((sum, round.traffic))
}

/// A round in progress: keys are set up, slots are summed one after another.
#[derive(Debug)]
pub struct SimulatedRound {
    server: ServerRound,
    devices: BTreeMap<DeviceId, DeviceRound>,
    drops: BTreeMap<DeviceId, PhaseName>,
    traffic: RoundTraffic,
    recording: Option<Vec<Delivery>>,
    now: Duration,
}

/// Hands a device its input.
type Supply<'a> = dyn FnMut(&mut DeviceRound, DeviceId) -> Result<(), SubmitError> + 'a;

impl SimulatedRound {
    /// Sets up keys between the devices.
    ///
    /// Identities are drawn here too, as if the devices had enrolled just before.
    pub fn new(
        config: &SimulationConfig,
        devices: &[DeviceId],
        drops: &[DropOut],
        rng: &mut impl CryptoRng,
    ) -> Result<Self, SimulationError> {
        let cohort: DeviceSet = devices.iter().copied().collect();
        let identities: Vec<SigningIdentity> =
            cohort.iter().map(|id| SigningIdentity::generate(id, rng)).collect();
        let mut roster = KeyRoster::new();
        for identity in &identities {
            roster.add(identity.id(), &identity.public()).expect("freshly drawn keys of distinct devices");
        }
        let roster = Arc::new(roster);
        let mut round = Self {
            server: ServerRound::new(server_config(config, cohort, &roster), Duration::ZERO)?,
            devices: BTreeMap::new(),
            drops: drops.iter().map(|drop| (drop.device, drop.before)).collect(),
            traffic: RoundTraffic::default(),
            recording: config.record.then(Vec::new),
            now: Duration::ZERO,
        };
        let enrol = |identity| {
            Participant::new(Arc::new(identity), Arc::clone(&roster), config.id.session, policy(config))
        };
        round.invite(identities.into_iter().map(|identity| (identity.id(), enrol(identity))), rng);
        round.run(&mut |_, _| Err(SubmitError::NotAsked))?;
        Ok(round)
    }

    /// The next sum: `input` gives each device's vector of `len` coordinates, one device at a time.
    ///
    /// `context` is bound to the slot: for Δ-FL, η and the hash of w_t.
    pub fn sum<C: Coordinate>(
        &mut self,
        len: u32,
        context: &[u8],
        mut input: impl FnMut(DeviceId) -> Vec<C>,
    ) -> Result<SimulatedSum<C>, SimulationError> {
        match self.server.open_slot(self.now, C::RING, len, context) {
            Ok(()) => {}
            Err(OpenSlotError::Ended(failure)) => return Err(failure.into()),
            Err(OpenSlotError::NotReady) => return Err(SimulationError::SlotsUsedUp),
        }
        let slot_sum = self.run(&mut |device, id| device.submit(context, C::into_vector(input(id))))?;
        let SlotSum { sum, survivors, .. } = slot_sum.expect("a slot ends with a sum or a verdict");
        Ok(SimulatedSum { sum: C::from_vector(sum), survivors })
    }

    /// Messages and bytes so far.
    pub fn traffic(&self) -> &RoundTraffic {
        &self.traffic
    }

    /// Every message so far, in order; none unless the configuration asked for it.
    pub fn recording(&self) -> &[Delivery] {
        self.recording.as_deref().unwrap_or_default()
    }

    /// The devices read the server's invitation and join. One whose policy forbids it stays away.
    fn invite(
        &mut self,
        participants: impl Iterator<Item = (DeviceId, Participant)>,
        rng: &mut impl CryptoRng,
    ) {
        let invitation = self.server.poll_transmit().expect("a server begins with an invitation");
        let bytes = encode_server(&invitation.message);
        for (id, mut participant) in participants {
            self.count(None, Some(id), &bytes);
            let message = decode_server(bytes.clone(), NO_LIMIT).expect("the server encodes what it sends");
            if let ServerBody::Invite(params) = message.body
                && let Ok(device) = participant.join(&params, self.now, rng)
            {
                self.devices.insert(id, device);
                self.answer(id);
            }
        }
    }

    /// Carries messages until the server waits for its program; `supply` answers requests for inputs.
    fn run(&mut self, supply: &mut Supply<'_>) -> Result<Option<SlotSum>, SimulationError> {
        loop {
            while let Some(transmit) = self.server.poll_transmit() {
                let bytes = encode_server(&transmit.message);
                for to in transmit.to.iter() {
                    self.deliver(to, bytes.clone(), supply)?;
                }
            }
            match self.server.poll_event() {
                Some(ServerEvent::Ended(failure)) => return Err(failure.into()),
                Some(ServerEvent::Ready { .. }) => return Ok(None),
                // No simulated device lies.
                Some(ServerEvent::Caught { .. } | ServerEvent::Disputed { .. }) => continue,
                Some(ServerEvent::Sum(sum)) => {
                    // If slots are left, the server says that it is ready for the next.
                    self.server.poll_event();
                    return Ok(Some(sum));
                }
                None => {}
            }
            // Everything sent has been answered or never will be: the deadline passes.
            self.now = self.server.poll_timeout().expect("a server that waits for devices has a deadline");
            self.server.handle_timeout(self.now);
        }
    }

    /// Brings one message to a device and its answer back.
    fn deliver(
        &mut self,
        to: DeviceId,
        bytes: Bytes,
        supply: &mut Supply<'_>,
    ) -> Result<(), SimulationError> {
        if !self.devices.contains_key(&to) {
            return Ok(());
        }
        self.count(None, Some(to), &bytes);
        let device = self.devices.get_mut(&to).expect("looked up above");
        let message = decode_server(bytes, NO_LIMIT).expect("the server encodes what it sends");
        if device.handle(self.now, message).is_err() {
            self.devices.remove(&to);
            return Ok(());
        }
        while let Some(event) = device.poll_event() {
            let DeviceEvent::InputWanted(request) = event else { continue };
            if self.drops.get(&to) == Some(&PhaseName::MaskedInput(request.slot)) {
                self.devices.remove(&to);
                return Ok(());
            }
            supply(device, to).map_err(|source| SimulationError::Input { device: to, source })?;
        }
        self.answer(to);
        Ok(())
    }

    fn count(&mut self, from: Option<DeviceId>, to: Option<DeviceId>, bytes: &Bytes) {
        if let Some(from) = from {
            self.traffic.sent(from, bytes.len());
        }
        if let Some(to) = to {
            self.traffic.received(to, bytes.len());
        }
        if let Some(recording) = &mut self.recording {
            recording.push(Delivery { from, to, bytes: bytes.clone() });
        }
    }

    fn answer(&mut self, from: DeviceId) {
        while let Some(message) = self.devices.get_mut(&from).and_then(DeviceRound::poll_transmit) {
            if self.drops.get(&from) == Some(&phase(&message.body)) {
                self.devices.remove(&from);
                return;
            }
            let bytes = encode_device(&message);
            self.count(Some(from), None, &bytes);
            let message = decode_device(bytes, NO_LIMIT).expect("the device encodes what it sends");
            self.server.handle(self.now, from, message).expect("an honest device is not refused");
        }
    }
}

fn server_config(config: &SimulationConfig, cohort: DeviceSet, roster: &Arc<KeyRoster>) -> ServerConfig {
    let params = RoundParams {
        id: config.id,
        suite: config.suite,
        cohort: u32::try_from(cohort.len()).unwrap_or(u32::MAX),
        graph: config.graph,
        slots: config.slots,
        draw: None,
    };
    let (roster, min_members) = (Arc::clone(roster), config.min_members);
    ServerConfig { params, cohort, roster, min_members, phase_timeout: Duration::from_secs(1) }
}

/// Devices that insist on what the configuration gives.
fn policy(config: &SimulationConfig) -> DevicePolicy {
    let adversary = match config.graph {
        GraphRule::Active { gamma, .. } => AdversaryModel::Active { gamma },
        GraphRule::Full { .. } => {
            AdversaryModel::HonestButCurious { gamma: Permille::default().into(), delta: Permille::default() }
        }
        GraphRule::HonestButCurious { gamma, delta } => AdversaryModel::HonestButCurious { gamma, delta },
    };
    DevicePolicy {
        min_members: config.min_members,
        adversary,
        max_len: u32::MAX,
        patience: Duration::MAX,
        max_left_out: None,
    }
}

fn phase(body: &DeviceBody) -> PhaseName {
    match body {
        DeviceBody::Advertise(_) => PhaseName::Advertise,
        DeviceBody::Reveal(_) => PhaseName::Reveal,
        DeviceBody::Shares(_) => PhaseName::Share,
        DeviceBody::Confirm { .. } => PhaseName::Confirm,
        DeviceBody::MaskedInput { slot, .. } => PhaseName::MaskedInput(*slot),
        DeviceBody::Attest { slot, .. } => PhaseName::Consistency(*slot),
        DeviceBody::Unmask { slot, .. } => PhaseName::Unmask(*slot),
    }
}
