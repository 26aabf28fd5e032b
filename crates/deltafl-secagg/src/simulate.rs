//! A complete round in one process: the real state machines, encoded messages, seeded drop-outs.
//!
//! ```
//! use chacha20::ChaCha20Rng;
//! use deltafl_secagg::graph::GraphRule;
//! use deltafl_secagg::identity::DeviceId;
//! use deltafl_secagg::simulate::{DropOut, SimulatedRound, SimulationConfig};
//! use rand_core::SeedableRng;
//!
//! let devices = [DeviceId(0), DeviceId(1), DeviceId(2), DeviceId(3)];
//! let drops = [DropOut::before_input(DeviceId(3), 1)];
//! let graph = GraphRule::Full { threshold: 3 };
//! let config = SimulationConfig { graph, slots: 2, ..SimulationConfig::default() };
//! let mut rng = ChaCha20Rng::seed_from_u64(1);
//! let mut round = SimulatedRound::new(&config, &devices, &drops, &mut rng)?;
//!
//! // Every device contributes its id. Then device 3 drops out, and the others contribute twice as
//! // much.
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
use crate::defences::Defences;
use crate::device::{
    AdversaryModel, DeviceEvent, DevicePolicy, DeviceRound, Participant, SubmitError, SurvivorKeys,
};
use crate::graph::{GraphRule, Permille};
use crate::identity::{DeviceId, KeyRoster, SigningIdentity};
use crate::mask::MaskSuite;
use crate::message::wire::{decode_device, decode_server, encode_device, encode_server};
use crate::message::{DeviceBody, DeviceSet, REVEALED_LEN, ServerBody};
use crate::params::{ParamsError, RoundId, RoundParams};
use crate::ring::{Ring, RingVector};
use crate::server::{
    OpenSlotError, PhaseName, RoundFailure, ServerRound, ServerRoundConfig, ServerRoundEvent, SlotSum,
};

/// A message limit that no simulated round reaches.
const NO_LIMIT: usize = usize::MAX;

/// The configuration of a simulated round.
#[derive(Debug, Clone)]
pub struct SimulationConfig {
    /// The session and the round.
    pub id: RoundId,
    /// The cryptography of the round.
    pub suite: MaskSuite,
    /// The rule that selects the graph of secret sharing.
    pub graph: GraphRule,
    /// The number of sums.
    pub slots: u32,
    /// The smallest number of devices in a sum.
    pub min_members: usize,
    /// Whether to store every message for [`SimulatedRound::recording`].
    pub record: bool,
}

/// One slot, the default mask suite, and the graph against an actively malicious server.
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

/// An encoded message in transit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// The sender, or `None` for the server.
    pub from: Option<DeviceId>,
    /// The recipient, or `None` for the server.
    pub to: Option<DeviceId>,
    /// The encoded message.
    pub bytes: Bytes,
}

/// A device that drops out before it sends its message of a phase, and does not return.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DropOut {
    /// The device.
    pub device: DeviceId,
    /// The phase.
    pub before: PhaseName,
}

impl DropOut {
    /// Creates a drop-out before the device submits its input of a slot.
    pub fn before_input(device: DeviceId, slot: u32) -> Self {
        Self { device, before: PhaseName::MaskedInput(slot) }
    }
}

/// An element of a ring in the simulator's vectors.
pub trait Coordinate: Sized {
    /// The ring.
    const RING: Ring;
    /// Converts coordinates to a vector over that ring.
    fn into_vector(coordinates: Vec<Self>) -> RingVector;
    /// Returns the coordinates of a vector over that ring, or none if the vector is over a
    /// different ring.
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

/// The sum of a slot and its survivors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SimulatedSum<C> {
    /// Σ of the survivors' inputs.
    pub sum: Vec<C>,
    /// The devices whose inputs are in the sum.
    pub survivors: DeviceSet,
    /// The keys that devices revealed for this number of survivors.
    pub revealed: BTreeMap<DeviceId, [u8; REVEALED_LEN]>,
}

/// An error of a simulated round.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SimulationError {
    /// The round failed, for example because too few devices are left.
    #[error(transparent)]
    Failed(#[from] RoundFailure),
    /// No round can run under these parameters.
    #[error(transparent)]
    Params(#[from] ParamsError),
    /// More sums were requested than the configuration has slots.
    #[error("all slots of the round are used")]
    SlotsUsedUp,
    /// An input has the wrong length.
    #[error("the input of device {device} is rejected: {source}")]
    Input {
        /// The device.
        device: DeviceId,
        /// The error reported by the device.
        source: SubmitError,
    },
}

/// Computes one secure sum in a separate round, including its key set-up.
///
/// # Errors
///
/// Returns an error if the parameters are invalid, the round fails or an input has the wrong
/// length.
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

/// A simulated round after its key set-up. It computes one sum per slot.
#[derive(Debug)]
pub struct SimulatedRound {
    server: ServerRound,
    devices: BTreeMap<DeviceId, DeviceRound>,
    drops: BTreeMap<DeviceId, PhaseName>,
    traffic: RoundTraffic,
    recording: Option<Vec<Delivery>>,
    now: Duration,
}

/// A function that submits the input of a device.
type Supply<'a> = dyn FnMut(&mut DeviceRound, DeviceId) -> Result<(), SubmitError> + 'a;

impl SimulatedRound {
    /// Sets up keys between the devices, with newly generated identities.
    ///
    /// # Errors
    ///
    /// Returns an error if the parameters are invalid or too few devices complete the set-up.
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

    /// Computes the next sum. `input` returns each device's vector of `len` coordinates.
    ///
    /// `context` is bound to the slot. Δ-FL binds η and the hash of w_t.
    ///
    /// # Errors
    ///
    /// Returns an error if the round fails, no slot is left or an input has the wrong length.
    ///
    /// # Panics
    ///
    /// Never for honest devices: a slot ends with a sum or with an error.
    pub fn sum<C: Coordinate>(
        &mut self,
        len: u32,
        context: &[u8],
        mut input: impl FnMut(DeviceId) -> Vec<C>,
    ) -> Result<SimulatedSum<C>, SimulationError> {
        self.sum_with_keys(len, context, |id| (input(id), SurvivorKeys::default()))
    }

    /// Computes the next sum like [`sum`](Self::sum). Each device also has keys, of which it
    /// reveals at most one.
    ///
    /// # Errors
    ///
    /// Returns an error if the round fails, no slot is left or an input has the wrong length.
    ///
    /// # Panics
    ///
    /// Never for honest devices: a slot ends with a sum or with an error.
    pub fn sum_with_keys<C: Coordinate>(
        &mut self,
        len: u32,
        context: &[u8],
        mut input: impl FnMut(DeviceId) -> (Vec<C>, SurvivorKeys),
    ) -> Result<SimulatedSum<C>, SimulationError> {
        match self.server.open_slot(self.now, C::RING, len, context) {
            Ok(()) => {}
            Err(OpenSlotError::Ended(failure)) => return Err(failure.into()),
            Err(OpenSlotError::NotReady) => return Err(SimulationError::SlotsUsedUp),
        }
        let slot_sum = self.run(&mut |device, id| {
            let (coordinates, keys) = input(id);
            device.submit_with_keys(context, C::into_vector(coordinates), keys)
        })?;
        let slot_sum = slot_sum.expect("a slot ends with a sum or a failure");
        let SlotSum { sum, survivors, revealed, .. } = slot_sum;
        Ok(SimulatedSum { sum: C::from_vector(sum), survivors, revealed })
    }

    /// Returns the messages and bytes so far.
    pub fn traffic(&self) -> &RoundTraffic {
        &self.traffic
    }

    /// Returns every message so far, in order. It is empty unless [`SimulationConfig::record`] is
    /// set.
    pub fn recording(&self) -> &[Delivery] {
        self.recording.as_deref().unwrap_or_default()
    }

    /// Delivers the invitation. Devices whose policy allows the round join it.
    fn invite(
        &mut self,
        participants: impl Iterator<Item = (DeviceId, Participant)>,
        rng: &mut impl CryptoRng,
    ) {
        let invitation = self.server.poll_transmit().expect("a server begins with an invitation");
        let bytes = encode_server(&invitation.message);
        for (id, mut participant) in participants {
            self.count(None, Some(id), &bytes);
            let message = decode_server(bytes.clone(), NO_LIMIT).expect("messages of the server are valid");
            if let ServerBody::Invite(params) = message.body
                && let Ok(device) = participant.join(&params, self.now, rng)
            {
                self.devices.insert(id, device);
                self.answer(id);
            }
        }
    }

    /// Delivers messages until the server waits for the application. `supply` submits requested
    /// inputs.
    fn run(&mut self, supply: &mut Supply<'_>) -> Result<Option<SlotSum>, SimulationError> {
        loop {
            while let Some(transmit) = self.server.poll_transmit() {
                let bytes = encode_server(&transmit.message);
                for to in transmit.to.iter() {
                    self.deliver(to, bytes.clone(), supply)?;
                }
            }
            match self.server.poll_event() {
                Some(ServerRoundEvent::Ended(failure)) => return Err(failure.into()),
                Some(ServerRoundEvent::Ready { .. }) => return Ok(None),
                // Simulated devices are honest.
                Some(ServerRoundEvent::Caught { .. } | ServerRoundEvent::Disputed { .. }) => continue,
                Some(ServerRoundEvent::Sum(sum)) => {
                    // If slots are left, the server reports that it is ready for the next one.
                    self.server.poll_event();
                    return Ok(Some(sum));
                }
                None => {}
            }
            // Everything has been answered or never will be, so the deadline passes.
            self.now = self.server.poll_timeout().expect("a server that waits for devices has a deadline");
            self.server.handle_timeout(self.now);
        }
    }

    /// Delivers one message to a device and its answers to the server.
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
        let message = decode_server(bytes, NO_LIMIT).expect("messages of the server are valid");
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
            let message = decode_device(bytes, NO_LIMIT).expect("messages of a device are valid");
            self.server.handle(self.now, from, message).expect("an honest device is not rejected");
        }
    }
}

fn server_config(config: &SimulationConfig, cohort: DeviceSet, roster: &Arc<KeyRoster>) -> ServerRoundConfig {
    let params = RoundParams {
        id: config.id,
        suite: config.suite,
        cohort: u32::try_from(cohort.len()).unwrap_or(u32::MAX),
        graph: config.graph,
        slots: config.slots,
        draw: None,
    };
    let (roster, min_members) = (Arc::clone(roster), config.min_members);
    ServerRoundConfig { params, cohort, roster, min_members, phase_timeout: Duration::from_secs(1) }
}

/// Returns a policy that requires exactly the protection of the configuration.
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
        defences: Defences::default(),
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
