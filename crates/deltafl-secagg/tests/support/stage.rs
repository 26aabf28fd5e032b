//! Honest devices and a script that sends them arbitrary messages, for tests of malicious servers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use chacha20::ChaCha20Rng;
use deltafl_secagg::defences::Defences;
use deltafl_secagg::device::{Abort, AdversaryModel, DeviceEvent, DevicePolicy, DeviceRound, Participant};
use deltafl_secagg::graph::{GraphRule, Permille};
use deltafl_secagg::identity::{DeviceId, KeyRoster, SigningIdentity};
use deltafl_secagg::mask::MaskSuite;
use deltafl_secagg::message::{DeviceBody, DeviceMessage, DeviceSet, KeyBundle, ServerBody, ServerMessage};
use deltafl_secagg::params::{RoundId, RoundParams};
use deltafl_secagg::ring::{Ring, RingVector};
use rand_core::SeedableRng;

/// The number of coordinates of the inputs.
pub(crate) const LEN: u32 = 4;

/// Honest devices on a full graph that have advertised their keys.
pub(crate) struct Stage {
    pub(crate) round: RoundId,
    pub(crate) devices: BTreeMap<DeviceId, DeviceRound>,
    pub(crate) keys: BTreeMap<DeviceId, KeyBundle>,
    pub(crate) boxes: BTreeMap<DeviceId, BTreeMap<DeviceId, prost::bytes::Bytes>>,
    pub(crate) inputs: BTreeMap<DeviceId, Vec<u8>>,
    pub(crate) roster: Arc<KeyRoster>,
}

pub(crate) fn set(ids: impl IntoIterator<Item = u32>) -> DeviceSet {
    ids.into_iter().map(DeviceId).collect()
}

pub(crate) fn policy() -> DevicePolicy {
    DevicePolicy {
        min_members: 3,
        adversary: AdversaryModel::Active { gamma: Permille::default().into() },
        max_len: 1000,
        patience: Duration::from_secs(60),
        max_left_out: None,
        defences: Defences::default(),
    }
}

impl Stage {
    /// Creates devices 0 … n−1 with threshold t. Device n is on the roster but not invited.
    pub(crate) fn new(n: u32, threshold: u32) -> Self {
        Self::with(n, GraphRule::Full { threshold }, policy(), 1)
    }

    pub(crate) fn with(n: u32, graph: GraphRule, policy: DevicePolicy, round: u64) -> Self {
        let mut rng = ChaCha20Rng::seed_from_u64(42 + round);
        // The identities outlive the round.
        let identity = |i: u32| SigningIdentity::from_secret(DeviceId(i), &[i as u8 + 1; 32]);
        let mut roster = KeyRoster::new();
        for i in 0..=n {
            roster.add(DeviceId(i), &identity(i).public()).expect("distinct devices");
        }
        let roster = Arc::new(roster);
        let id = RoundId { session: [9; 16], round };
        let params = RoundParams { id, suite: MaskSuite::default(), cohort: n, graph, slots: 2, draw: None };
        let mut stage = Self {
            round: id,
            devices: BTreeMap::new(),
            keys: BTreeMap::new(),
            boxes: BTreeMap::new(),
            inputs: BTreeMap::new(),
            roster: Arc::clone(&roster),
        };
        for i in 0..n {
            let mut participant =
                Participant::new(Arc::new(identity(i)), Arc::clone(&roster), [9; 16], policy);
            let mut device =
                participant.join(&params, Duration::ZERO, &mut rng).expect("a round within the policy");
            let Some(DeviceMessage { body: DeviceBody::Advertise(keys), .. }) = device.poll_transmit() else {
                panic!("expected keys");
            };
            stage.keys.insert(DeviceId(i), keys);
            stage.devices.insert(DeviceId(i), device);
        }
        stage
    }

    /// Advances to the point at which all devices hold each other's shares.
    pub(crate) fn shared(n: u32, threshold: u32) -> Self {
        let mut stage = Self::new(n, threshold);
        stage.share();
        for id in stage.ids() {
            let said = stage.tell(id, ServerBody::Shares(stage.boxes_for(id))).expect("honest so far");
            assert!(matches!(&said[..], [DeviceBody::Confirm { complaints, .. }] if complaints.is_empty()));
        }
        stage
    }

    /// Advances to the point at which all devices have submitted the input of slot 0 in the same
    /// context.
    pub(crate) fn masked(n: u32, threshold: u32) -> Self {
        let mut stage = Self::shared(n, threshold);
        for id in stage.ids() {
            stage.ask(id, 0, set(0..n), b"eta").expect("honest so far");
        }
        stage
    }

    pub(crate) fn ids(&self) -> Vec<DeviceId> {
        self.devices.keys().copied().collect()
    }

    /// Sends all keys to all devices and collects the boxes.
    pub(crate) fn share(&mut self) {
        for id in self.ids() {
            let keys = ServerBody::Keys(self.keys.clone());
            let Some(DeviceBody::Shares(boxes)) = self.tell(id, keys).expect("honest so far").pop() else {
                panic!("expected shares");
            };
            self.boxes.insert(id, boxes);
        }
    }

    pub(crate) fn boxes_for(&self, to: DeviceId) -> BTreeMap<DeviceId, prost::bytes::Bytes> {
        let from = self.boxes.iter().filter(|(from, _)| **from != to);
        from.map(|(&from, boxes)| (from, boxes[&to].clone())).collect()
    }

    /// Sends a message of this round to a device.
    pub(crate) fn tell(&mut self, to: DeviceId, body: ServerBody) -> Result<Vec<DeviceBody>, Abort> {
        self.tell_in(self.round, to, body)
    }

    /// Sends a message of any round to a device.
    pub(crate) fn tell_in(
        &mut self,
        round: RoundId,
        to: DeviceId,
        body: ServerBody,
    ) -> Result<Vec<DeviceBody>, Abort> {
        let device = self.devices.get_mut(&to).expect("on stage");
        let answer = device.handle(Duration::ZERO, ServerMessage { round, body });
        let said = std::iter::from_fn(|| device.poll_transmit()).map(|message| message.body).collect();
        if let Err(abort) = answer {
            assert!(Vec::is_empty(&said), "a device that aborted sends nothing");
            let last = std::iter::from_fn(|| device.poll_event()).last();
            assert_eq!(last, Some(DeviceEvent::Aborted(abort)));
            return Err(abort);
        }
        Ok(said)
    }

    /// Opens a slot for a device, which submits its id in every coordinate.
    pub(crate) fn ask(
        &mut self,
        to: DeviceId,
        slot: u32,
        active: DeviceSet,
        context: &[u8],
    ) -> Result<(), Abort> {
        self.tell(to, ServerBody::OpenSlot { slot, ring: Ring::Z32, len: LEN, active })?;
        let device = self.devices.get_mut(&to).expect("on stage");
        let input = RingVector::Z32(vec![to.0; LEN as usize]);
        device.submit(context, input).expect("the requested shape");
        let Some(DeviceMessage { body: DeviceBody::MaskedInput { input, .. }, .. }) = device.poll_transmit()
        else {
            panic!("expected the submitted input");
        };
        self.inputs.insert(to, input.to_vec());
        Ok(())
    }

    /// Returns a device's signature on these survivors.
    pub(crate) fn attest(&mut self, to: DeviceId, survivors: DeviceSet) -> Result<[u8; 64], Abort> {
        match self.tell(to, ServerBody::Survivors { slot: 0, survivors })?.pop() {
            Some(DeviceBody::Attest { signature, .. }) => Ok(signature),
            other => panic!("expected a signature, got {other:?}"),
        }
    }

    /// Returns the signatures of all devices on these survivors.
    pub(crate) fn attest_all(&mut self, survivors: &DeviceSet) -> BTreeMap<DeviceId, [u8; 64]> {
        let signed =
            survivors.iter().map(|id| (id, self.attest(id, survivors.clone()).expect("honest so far")));
        signed.collect()
    }

    /// Sends signatures to a device and returns its shares.
    pub(crate) fn unmask(
        &mut self,
        to: DeviceId,
        signatures: BTreeMap<DeviceId, [u8; 64]>,
    ) -> Result<DeviceBody, Abort> {
        let said =
            self.tell(to, ServerBody::Attestations { slot: 0, signatures, masked: BTreeMap::new() })?;
        Ok(said.into_iter().next().expect("shares"))
    }
}
