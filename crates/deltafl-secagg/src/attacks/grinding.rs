//! Grinding over graphs: the server or an accomplice sees the nonces and then decides which of them
//! count.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use chacha20::ChaCha20Rng;
use rand_core::SeedableRng;

use super::{SESSION, ZERO};
use crate::device::{Abort, AdversaryModel, DevicePolicy, DeviceRound, Participant};
use crate::graph::{CollusionBound, GraphRule, Permille, parameters};
use crate::identity::{DeviceId, KeyRoster, SigningIdentity};
use crate::mask::MaskSuite;
use crate::message::{
    DeviceBody, DeviceMessage, DeviceSet, KeyBundle, REVEAL_LEN, Reveal, ServerBody, ServerMessage,
};
use crate::params::{RoundId, RoundParams};
use crate::server::{RoundFailure, ServerRound, ServerRoundConfig, ServerRoundEvent};
use crate::transcript::Sha256Digest;

/// The smallest cohort with a sparse graph.
const N: u32 = 301;
const GAMMA: CollusionBound = CollusionBound::Devices(3);
const ROUND: RoundId = RoundId { session: SESSION, round: 1 };

/// Devices, and a server that has received their commitments.
struct Committed {
    server: ServerRound,
    devices: BTreeMap<DeviceId, DeviceRound>,
    commitments: BTreeMap<DeviceId, Sha256Digest>,
    drawers: DeviceSet,
}

fn committed() -> Committed {
    let mut rng = ChaCha20Rng::seed_from_u64(5);
    let identities: Vec<Arc<SigningIdentity>> =
        (0..N).map(|i| Arc::new(SigningIdentity::generate(DeviceId(i), &mut rng))).collect();
    let mut roster = KeyRoster::new();
    for identity in &identities {
        roster.add(identity.id(), &identity.public()).expect("distinct");
    }
    let roster = Arc::new(roster);
    let graph = GraphRule::Active { gamma: GAMMA, delta: Permille::new(200).expect("a fifth") };
    let params =
        RoundParams { id: ROUND, suite: MaskSuite::default(), cohort: N, graph, slots: 1, draw: None };
    let config = ServerRoundConfig {
        params: params.clone(),
        cohort: (0..N).map(DeviceId).collect(),
        roster: Arc::clone(&roster),
        min_members: 3,
        phase_timeout: Duration::from_secs(1),
    };
    let mut server = ServerRound::new(config, ZERO).expect("sound parameters");
    server.poll_transmit().expect("the invitation");
    let adversary = AdversaryModel::Active { gamma: GAMMA };
    let policy =
        DevicePolicy { min_members: 3, adversary, max_len: 1, patience: Duration::MAX, max_left_out: None };
    let mut devices = BTreeMap::new();
    for identity in identities {
        let id = identity.id();
        let mut participant = Participant::new(identity, Arc::clone(&roster), SESSION, policy);
        let mut device = participant.join(&params, ZERO, &mut rng).expect("within the policy");
        server.handle(ZERO, id, device.poll_transmit().expect("keys")).expect("an honest device");
        devices.insert(id, device);
    }
    let ServerBody::Commitments(commitments) = server.poll_transmit().expect("commitments").message.body
    else {
        panic!("a graph of this size is drawn");
    };
    let drawers = graph.drawers(N, &commitments);
    Committed { server, devices, commitments, drawers }
}

impl Committed {
    fn show(
        &mut self,
        to: DeviceId,
        commitments: &BTreeMap<DeviceId, Sha256Digest>,
    ) -> Result<Reveal, Abort> {
        let device = self.devices.get_mut(&to).expect("a member");
        let body = ServerBody::Commitments(commitments.clone());
        device.handle(ZERO, ServerMessage { round: ROUND, body })?;
        match device.poll_transmit() {
            Some(DeviceMessage { body: DeviceBody::Reveal(reveal), .. }) => Ok(reveal),
            other => panic!("expected a nonce, got {other:?}"),
        }
    }

    /// Lets all devices but `silent` reveal. Returns the neighbours that the server then names to
    /// each device.
    fn neighbours(mut self, silent: Option<DeviceId>) -> Result<BTreeMap<DeviceId, DeviceSet>, RoundFailure> {
        let commitments = self.commitments.clone();
        for id in commitments.keys().copied().filter(|&id| Some(id) != silent) {
            let body = DeviceBody::Reveal(self.show(id, &commitments).expect("honest so far"));
            self.server.handle(ZERO, id, DeviceMessage { round: ROUND, body }).expect("honest");
        }
        if silent.is_some() {
            self.server.handle_timeout(Duration::from_secs(1));
        }
        if let Some(ServerRoundEvent::Ended(failure)) = self.server.poll_event() {
            return Err(failure);
        }
        let mut neighbours = BTreeMap::new();
        while let Some(transmit) = self.server.poll_transmit() {
            if let ServerBody::Keys(keys) = transmit.message.body {
                neighbours.insert(transmit.to.as_slice()[0], keys.into_keys().collect());
            }
        }
        Ok(neighbours)
    }
}

#[test]
fn a_member_that_is_silent_after_committing_keeps_its_position() {
    let whole = committed().neighbours(None).expect("all are there");
    assert_eq!(whole.len(), N as usize);
    let scene = committed();
    let silent = scene.commitments.keys().copied().find(|&id| !scene.drawers.contains(id));
    assert_eq!(scene.neighbours(silent).expect("its nonce does not count"), whole);
}

#[test]
fn withholding_a_nonce_that_counts_fails_the_round_and_names_the_member() {
    let scene = committed();
    let silent = scene.drawers.as_slice()[0];
    assert_eq!(scene.neighbours(Some(silent)), Err(RoundFailure::Withheld { device: silent }));
}

/// Returns a device's answer to these nonces.
fn shown(scene: &mut Committed, to: DeviceId, reveals: BTreeMap<DeviceId, Reveal>) -> Result<(), Abort> {
    let device = scene.devices.get_mut(&to).expect("a member");
    device.handle(ZERO, ServerMessage { round: ROUND, body: ServerBody::Reveals(reveals) })
}

fn reveals(scene: &mut Committed) -> BTreeMap<DeviceId, Reveal> {
    let commitments = scene.commitments.clone();
    let drawers = scene.drawers.clone();
    drawers.iter().map(|id| (id, scene.show(id, &commitments).expect("honest so far"))).collect()
}

#[test]
fn a_device_accepts_exactly_the_nonces_that_count() {
    let mut scene = committed();
    let (commitments, outsider) = (scene.commitments.clone(), DeviceId(N - 1));
    assert!(!scene.drawers.contains(outsider));
    let reveals = reveals(&mut scene);
    let own = scene.show(outsider, &commitments).expect("honest so far");

    let mut fewer = reveals.clone();
    let (withheld, _) = fewer.pop_first().expect("four nonces count");
    let told = |reveals| {
        let message = ServerMessage { round: ROUND, body: ServerBody::Reveals(reveals) };
        scene.devices[&outsider].clone().handle(ZERO, message)
    };
    assert_eq!(told(fewer), Err(Abort::Withheld(withheld)));
    let mut more = reveals.clone();
    more.insert(outsider, own);
    assert_eq!(told(more), Err(Abort::UnknownDevice(outsider)));
    assert_eq!(told(reveals), Ok(()));
}

#[test]
fn a_list_without_the_required_signatures_is_rejected() {
    // The server learns the nonces under one list, then searches for another list with a favourable
    // graph.
    let mut scene = committed();
    let (mut list, victim) = (scene.commitments.clone(), DeviceId(N - 1));
    let reveals = reveals(&mut scene);
    let left_out = list.keys().copied().find(|&id| id != victim && !scene.drawers.contains(id));
    list.remove(&left_out.expect("most nonces do not count"));
    scene.show(victim, &list).expect("the device cannot detect it yet");
    let first = scene.drawers.as_slice()[0];
    assert_eq!(shown(&mut scene, victim, reveals), Err(Abort::BadSignature(first)));
}

#[test]
fn message_limits_of_a_device_depend_on_its_degree_not_on_the_cohort() {
    let mut scene = committed();
    let (commitments, victim) = (scene.commitments.clone(), DeviceId(N - 1));
    let reveals = reveals(&mut scene);
    scene.show(victim, &commitments).expect("honest so far");
    let limit = |scene: &Committed| scene.devices[&victim].message_limit();
    let nonces = limit(&scene);
    assert!(nonces < N as usize * REVEAL_LEN, "{nonces} bytes of nonces for the few that count");
    shown(&mut scene, victim, reveals).expect("honest so far");
    let (degree, _) = parameters::against_active(N as usize, 3, N as usize / 5).expect("a sparse graph");
    let (keys, bundle) = (limit(&scene), KeyBundle::len_for(1));
    assert!((degree * bundle..(degree + 2) * bundle).contains(&keys), "{keys} bytes of keys");
    assert!(keys < N as usize * bundle);
}
