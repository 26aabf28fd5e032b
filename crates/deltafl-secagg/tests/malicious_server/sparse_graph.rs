//! A malicious server on a sparse graph.

use deltafl_secagg::device::{Abort, AdversaryModel, DevicePolicy};
use deltafl_secagg::graph::{GraphRule, Permille};
use deltafl_secagg::identity::DeviceId;
use deltafl_secagg::message::{DeviceBody, KeyBundle, Reveal, ServerBody};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

use super::stage::{Stage, policy};
use super::{D0, D1};

/// Devices on a sparse graph whose commitments the server has.
fn sparse(n: u32) -> (Stage, BTreeMap<DeviceId, [u8; 32]>) {
    let share = Permille::new(50).expect("five in a hundred");
    let adversary = AdversaryModel::HonestButCurious { gamma: share.into(), delta: share };
    let graph = GraphRule::HonestButCurious { gamma: share.into(), delta: share };
    let stage = Stage::with(n, graph, DevicePolicy { adversary, ..policy() }, 1);
    let commitments = stage.keys.iter().map(|(&id, keys)| (id, KeyBundle::nonce_commitment(keys))).collect();
    (stage, commitments)
}

/// The same devices after they have revealed their nonces.
fn revealed(n: u32) -> (Stage, BTreeMap<DeviceId, Reveal>) {
    let (mut stage, commitments) = sparse(n);
    let mut nonces = BTreeMap::new();
    for id in stage.ids() {
        let said = stage.tell(id, ServerBody::Commitments(commitments.clone())).expect("honest so far");
        let [DeviceBody::Reveal(nonce)] = said[..] else { panic!("a device reveals its nonce") };
        nonces.insert(id, nonce);
    }
    (stage, nonces)
}

#[test]
fn the_graph_cannot_be_changed_after_the_commitments() {
    let (mut stage, mut nonces) = revealed(4);
    nonces.insert(D1, Reveal::from([0; 96]));
    assert_eq!(stage.tell(D0, ServerBody::Reveals(nonces)).err(), Some(Abort::BadCommitment(D1)));
    let (mut stage, mut nonces) = revealed(4);
    nonces.remove(&D0);
    assert_eq!(stage.tell(D0, ServerBody::Reveals(nonces)).err(), Some(Abort::LeftOut));
    let (mut stage, mut commitments) = sparse(4);
    commitments.insert(D0, [0; 32]);
    assert_eq!(stage.tell(D0, ServerBody::Commitments(commitments)).err(), Some(Abort::OwnKeys));
}

/// A device's commitment if its contribution to the graph's randomness were `nonce`.
fn commitment(params: &[u8; 32], id: DeviceId, nonce: &[u8; 32]) -> [u8; 32] {
    let part = |bytes: &[u8]| [&(bytes.len() as u64).to_le_bytes(), bytes].concat();
    let id = u64::from(id.0).to_le_bytes();
    let bytes = [part(b"deltafl-secagg/2/"), part(b"nonce"), part(params), id.to_vec(), part(nonce)].concat();
    Sha256::digest(bytes).into()
}

#[test]
fn the_server_cannot_commit_for_a_neighbour() {
    // The server commits to a nonce for device 1 and reveals it, but lacks the device's signature.
    let (mut stage, mut commitments) = sparse(4);
    let params = stage.devices[&D0].params().digest();
    commitments.insert(D1, commitment(&params, D1, &[7; 32]));
    let mut nonces = BTreeMap::from([(D1, Reveal::from([7; 96]))]);
    for id in [0, 2, 3].map(DeviceId) {
        let said =
            stage.tell(id, ServerBody::Commitments(commitments.clone())).expect("it cannot detect it yet");
        let [DeviceBody::Reveal(nonce)] = said[..] else { panic!("a device reveals its nonce") };
        nonces.insert(id, nonce);
    }
    assert_eq!(stage.tell(D0, ServerBody::Reveals(nonces)).err(), Some(Abort::BadSignature(D1)));
    assert_eq!(stage.tell(D1, ServerBody::Commitments(commitments)).err(), Some(Abort::OwnKeys));
}

#[test]
fn keys_on_a_sparse_graph_must_be_those_of_the_neighbours() {
    let (mut stage, nonces) = revealed(4);
    for id in stage.ids() {
        stage.tell(id, ServerBody::Reveals(nonces.clone())).expect("honest so far");
    }
    let mut keys = stage.keys.clone();
    keys.remove(&D0);
    keys.remove(&D1);
    assert_eq!(stage.tell(D0, ServerBody::Keys(keys)).err(), Some(Abort::MissingKeys(D1)));
    let keys = stage.keys.clone();
    assert_eq!(stage.tell(D1, ServerBody::Keys(keys)).err(), Some(Abort::UnknownDevice(D1)));
}

#[test]
fn the_server_cannot_switch_between_sparse_and_full_graphs() {
    let (mut stage, _) = sparse(4);
    let keys = stage.keys.clone();
    assert_eq!(stage.tell(D0, ServerBody::Keys(keys)).err(), Some(Abort::Unexpected));
    let mut full = Stage::new(4, 3);
    let commitments = full.keys.iter().map(|(&id, keys)| (id, keys.nonce_commitment())).collect();
    assert_eq!(full.tell(D0, ServerBody::Commitments(commitments)).err(), Some(Abort::Unexpected));
}
