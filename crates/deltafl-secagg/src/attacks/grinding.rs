//! Grinding over graphs: the server or an accomplice sees the nonces and then decides which of them
//! count.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use chacha20::ChaCha20Rng;
use rand_core::SeedableRng;

use super::{SESSION, ZERO};
use crate::defences::{Defence, Defences};
use crate::device::{Abort, AdversaryModel, DevicePolicy, DeviceRound, Participant};
use crate::graph::{self, CollusionBound, Graph, GraphRule, Permille, parameters};
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
    params: RoundParams,
    identities: BTreeMap<DeviceId, Arc<SigningIdentity>>,
    roster: Arc<KeyRoster>,
    policy: DevicePolicy,
    bundles: BTreeMap<DeviceId, KeyBundle>,
    server: ServerRound,
    devices: BTreeMap<DeviceId, DeviceRound>,
    commitments: BTreeMap<DeviceId, Sha256Digest>,
    drawers: DeviceSet,
}

fn committed() -> Committed {
    committed_with(N, GAMMA, Defences::default())
}

/// Devices with these defences.
fn committed_with(n: u32, gamma: CollusionBound, defences: Defences) -> Committed {
    let mut rng = ChaCha20Rng::seed_from_u64(5);
    let identities: Vec<Arc<SigningIdentity>> =
        (0..n).map(|i| Arc::new(SigningIdentity::generate(DeviceId(i), &mut rng))).collect();
    let mut roster = KeyRoster::new();
    for identity in &identities {
        roster.add(identity.id(), &identity.public()).expect("distinct");
    }
    let roster = Arc::new(roster);
    let graph = GraphRule::Active { gamma, delta: Permille::new(200).expect("a fifth") };
    let params =
        RoundParams { id: ROUND, suite: MaskSuite::default(), cohort: n, graph, slots: 1, draw: None };
    let config = ServerRoundConfig {
        params: params.clone(),
        cohort: (0..n).map(DeviceId).collect(),
        roster: Arc::clone(&roster),
        min_members: 3,
        phase_timeout: Duration::from_secs(1),
    };
    let mut server = ServerRound::new(config, ZERO).expect("sound parameters");
    server.poll_transmit().expect("the invitation");
    let adversary = AdversaryModel::Active { gamma };
    let policy = DevicePolicy {
        min_members: 3,
        adversary,
        max_len: 1,
        patience: Duration::MAX,
        max_left_out: None,
        defences,
    };
    let (mut devices, mut bundles) = (BTreeMap::new(), BTreeMap::new());
    let kept = identities.iter().map(|identity| (identity.id(), Arc::clone(identity))).collect();
    for identity in identities {
        let id = identity.id();
        let mut participant = Participant::new(identity, Arc::clone(&roster), SESSION, policy);
        let mut device = participant.join(&params, ZERO, &mut rng).expect("within the policy");
        let message = device.poll_transmit().expect("keys");
        if let DeviceBody::Advertise(bundle) = &message.body {
            bundles.insert(id, bundle.clone());
        }
        server.handle(ZERO, id, message).expect("an honest device");
        devices.insert(id, device);
    }
    let ServerBody::Commitments(commitments) = server.poll_transmit().expect("commitments").message.body
    else {
        panic!("a graph of this size is drawn");
    };
    let drawers = graph.drawers(n, &commitments);
    Committed { params, identities: kept, roster, policy, bundles, server, devices, commitments, drawers }
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

/// Returns the nonces that an honest server sends: of the drawers, and of others up to a quorum.
fn reveals(scene: &mut Committed) -> BTreeMap<DeviceId, Reveal> {
    let commitments = scene.commitments.clone();
    let drawers = scene.drawers.clone();
    let others = scene.params.graph.list_quorum(scene.params.cohort) - drawers.len();
    let others = commitments.keys().copied().filter(|&id| !drawers.contains(id)).take(others);
    let signers: Vec<DeviceId> = drawers.iter().chain(others).collect();
    signers.into_iter().map(|id| (id, scene.show(id, &commitments).expect("honest so far"))).collect()
}

#[test]
fn a_device_requires_every_nonce_that_counts_and_signatures_of_a_quorum() {
    let mut scene = committed();
    let (commitments, outsider) = (scene.commitments.clone(), DeviceId(N - 1));
    assert!(!scene.drawers.contains(outsider));
    let reveals = reveals(&mut scene);
    scene.show(outsider, &commitments).expect("honest so far");

    let mut fewer = reveals.clone();
    let withheld = scene.drawers.as_slice()[0];
    fewer.remove(&withheld);
    let told = |reveals| {
        let message = ServerMessage { round: ROUND, body: ServerBody::Reveals(reveals) };
        scene.devices[&outsider].clone().handle(ZERO, message)
    };
    assert_eq!(told(fewer), Err(Abort::Withheld(withheld)));
    let mut stranger = reveals.clone();
    stranger.insert(DeviceId(N), reveals[&withheld]);
    assert_eq!(told(stranger), Err(Abort::UnknownDevice(DeviceId(N))));
    let mut one_less = reveals.clone();
    let signer = reveals.keys().copied().find(|&id| !scene.drawers.contains(id)).expect("a quorum");
    one_less.remove(&signer);
    let need = one_less.len() + 1;
    assert_eq!(told(one_less), Err(Abort::TooFew { have: need - 1, need }), "without {signer}");
    assert_eq!(told(reveals), Ok(()));
}

#[test]
fn a_list_without_the_required_signatures_is_rejected() {
    // The server learns the nonces under one list, then searches for another list with a favourable
    // graph.
    let mut scene = committed();
    let (mut list, victim) = (scene.commitments.clone(), DeviceId(N - 1));
    let reveals = reveals(&mut scene);
    let left_out = list.keys().copied().find(|id| *id != victim && !reveals.contains_key(id));
    list.remove(&left_out.expect("many do not sign"));
    scene.show(victim, &list).expect("the device cannot detect it yet");
    let first = *reveals.keys().next().expect("a quorum");
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
    let (degree, _) = parameters::against_active(N as usize, 3, N as usize / 5, N as usize / 5 + 1)
        .expect("a sparse graph");
    let (keys, bundle) = (limit(&scene), KeyBundle::len_for(1));
    assert!((degree * bundle..(degree + 2) * bundle).contains(&keys), "{keys} bytes of keys");
    assert!(keys < N as usize * bundle);
}

/// The members of the cohort with the smallest commitments. A colluding device can try commitments
/// until its own is among them.
fn accomplices(scene: &Committed, count: usize) -> DeviceSet {
    let mut smallest: Vec<(Sha256Digest, DeviceId)> =
        scene.commitments.iter().map(|(&id, &commitment)| (commitment, id)).collect();
    smallest.sort_unstable();
    smallest.into_iter().take(count).map(|(_, id)| id).collect()
}

/// The server asks the one honest drawer of a list alone, computes the graph, removes the drawer
/// from the list and asks the next one. Returns the graphs until a device refuses a list.
fn grind(scene: &mut Committed, accomplices: &DeviceSet, most: usize) -> (Vec<Graph>, Option<Abort>) {
    let (rule, cohort) = (scene.params.graph, scene.params.cohort);
    let mut list = scene.commitments.clone();
    let mut graphs = Vec::new();
    let whole = list.clone();
    let nonces: BTreeMap<DeviceId, Reveal> =
        accomplices.iter().map(|id| (id, scene.show(id, &whole).expect("it colludes"))).collect();
    while graphs.len() < most {
        let drawers = rule.drawers(cohort, &list);
        let honest = drawers.iter().find(|&id| !accomplices.contains(id)).expect("c + 1 drawers");
        let reveal = match scene.show(honest, &list) {
            Ok(reveal) => reveal,
            Err(abort) => return (graphs, Some(abort)),
        };
        // Accomplices sign any list. The seed contains their nonces and not their signatures.
        let mut reveals = nonces.clone();
        reveals.insert(honest, reveal);
        let digest = graph::member_list(&scene.params.digest(), &list);
        let seed = graph::seed(&digest, &drawers, &reveals);
        let members: Vec<DeviceId> = list.keys().copied().collect();
        graphs.push(Graph::new(rule, cohort, &members, &seed));
        list.remove(&honest);
    }
    (graphs, None)
}

/// 330 devices of which 17 collude. The server sees as many graphs as (k, t) account for, and not
/// one more.
#[test]
fn a_server_sees_no_more_graphs_in_one_set_up_than_the_parameters_account_for() {
    let (n, c) = (330, 17);
    let gamma = CollusionBound::Devices(c);
    let undefended = Defences::default().without(Defence::MembersOfCohort);
    let mut scene = committed_with(n, gamma, undefended);
    let bound = scene.params.graph.graphs(n);
    assert_eq!(bound, 67, "a fifth of the cohort may be missing");
    let colluding = accomplices(&scene, c as usize);
    let (graphs, refused) = grind(&mut scene, &colluding, 200);
    assert_eq!((graphs.len(), refused), (200, None), "without the defence");

    let mut scene = committed_with(n, gamma, Defences::default());
    let (graphs, refused) = grind(&mut scene, &colluding, 200);
    assert!(graphs.len() >= 29, "an attack with 29 graphs is among those that are accounted for");
    assert_eq!(graphs.len(), bound);
    assert_eq!(refused, Some(Abort::TooFew { have: 263, need: 264 }));
    // On none of them can the server read a device (A1) or a part (A2).
    for graph in &graphs {
        let (k, t) = (graph.degree(), graph.threshold());
        for &id in graph.ring() {
            let near = graph.neighbours(id).into_iter().filter(|&id| colluding.contains(id)).count();
            assert!(2 * t > k + 1 + near, "A1 with {near} accomplices");
        }
        let ring = graph.ring();
        for first in 0..ring.len() {
            let side =
                (1..=k / 2).filter(|step| colluding.contains(ring[(first + step) % ring.len()])).count();
            assert!(t > k / 2 + 1 + side, "A2 with {side} accomplices");
        }
    }
}

/// Shows one list to one half of the honest devices and another list to the other half.
fn two_lists(defences: Defences) -> [Result<(), Abort>; 2] {
    let mut scene = committed_with(N, GAMMA, defences);
    let colluding = accomplices(&scene, 3);
    let honest: Vec<DeviceId> =
        scene.commitments.keys().copied().filter(|&id| !colluding.contains(id)).collect();
    let halves = [&honest[..honest.len() / 2], &honest[honest.len() / 2..]];
    let rule = scene.params.graph;
    [0, 1].map(|half| {
        // The list lacks some devices of the other half, so that its drawers are all of this half.
        let mut list = scene.commitments.clone();
        loop {
            let drawers = rule.drawers(N, &list);
            let mut foreign = drawers.iter().filter(|id| halves[1 - half].contains(id));
            let Some(foreign) = foreign.next() else { break };
            list.remove(&foreign);
        }
        let digest = graph::member_list(&scene.params.digest(), &list);
        let mut reveals: BTreeMap<DeviceId, Reveal> =
            halves[half].iter().map(|&id| (id, scene.show(id, &list).expect("honest so far"))).collect();
        for id in colluding.iter() {
            let mut device = scene.devices[&id].clone();
            let body = ServerBody::Commitments(scene.commitments.clone());
            device.handle(ZERO, ServerMessage { round: ROUND, body }).expect("it colludes");
            let Some(DeviceMessage { body: DeviceBody::Reveal(reveal), .. }) = device.poll_transmit() else {
                panic!("a nonce");
            };
            reveals.insert(id, Reveal::sign(&scene.identities[&id], &digest, reveal.nonce()));
        }
        shown(&mut scene, halves[half][0], reveals)
    })
}

#[test]
fn two_lists_of_one_set_up_are_not_both_accepted() {
    let undefended = Defences::default().without(Defence::ListQuorum);
    assert_eq!(two_lists(undefended), [Ok(()), Ok(())], "without the defence");
    let too_few = Err(Abort::TooFew { have: 152, need: 153 });
    assert_eq!(two_lists(Defences::default()), [too_few, too_few]);
}

/// A drawer colludes. After it has seen all other nonces, it signs nonces of its choice until three
/// accomplices are neighbours of the victim. Returns the number of nonces that it tried, and the
/// answer of the victim to the chosen one.
fn choose_last(defences: Defences) -> (u8, Result<(), Abort>) {
    let mut scene = committed_with(N, GAMMA, defences);
    let (commitments, victim) = (scene.commitments.clone(), DeviceId(N - 1));
    let mut reveals = reveals(&mut scene);
    if !reveals.contains_key(&victim) {
        scene.show(victim, &commitments).expect("honest so far");
    }
    let colluding = accomplices(&scene, 3);
    let last = scene.drawers.iter().find(|&id| colluding.contains(id)).expect("the smallest commitment");
    let list = graph::member_list(&scene.params.digest(), &commitments);
    let members: Vec<DeviceId> = commitments.keys().copied().collect();
    let tries = (1..=u8::MAX).find(|&nonce| {
        reveals.insert(last, Reveal::sign(&scene.identities[&last], &list, &[nonce; 32]));
        let seed = graph::seed(&list, &scene.drawers, &reveals);
        let near = Graph::new(scene.params.graph, N, &members, &seed).neighbours(victim);
        colluding.iter().all(|id| near.contains(&id))
    });
    (tries.expect("a graph in a few"), shown(&mut scene, victim, reveals))
}

#[test]
fn a_drawer_does_not_choose_its_nonce_after_it_has_seen_the_others() {
    let (tries, answer) = choose_last(Defences::default().without(Defence::NonceCommitment));
    assert_eq!(answer, Ok(()), "without the defence, after {tries} tries");
    assert!(tries > 1, "the first graph would need no choice");
    assert!(matches!(choose_last(Defences::default()).1, Err(Abort::BadCommitment(_))));
}

/// An accomplice signs two bundles. The list contains the commitment of one, and the server sends
/// the other to a neighbour.
#[test]
fn the_keys_of_a_neighbour_belong_to_the_commitment_on_the_list() {
    let mut scene = committed();
    let commitments = scene.commitments.clone();
    let reveals = reveals(&mut scene);
    let signers: Vec<DeviceId> = reveals.keys().copied().collect();
    let mut round = scene;
    for id in commitments.keys().copied().filter(|id| !signers.contains(id)).collect::<Vec<_>>() {
        round.show(id, &commitments).expect("honest so far");
    }
    let list = graph::member_list(&round.params.digest(), &commitments);
    let seed = graph::seed(&list, &round.drawers, &reveals);
    let members: Vec<DeviceId> = commitments.keys().copied().collect();
    let graph = Graph::new(round.params.graph, N, &members, &seed);
    let victim = DeviceId(N - 1);
    shown(&mut round, victim, reveals).expect("honest so far");
    let accomplice = graph.neighbours(victim)[0];
    let keys_of = |id: DeviceId, seed: u64| {
        let roster = Arc::clone(&round.roster);
        let mut participant =
            Participant::new(Arc::clone(&round.identities[&id]), roster, SESSION, round.policy);
        let mut rng = ChaCha20Rng::seed_from_u64(seed);
        let mut device = participant.join(&round.params, ZERO, &mut rng).expect("within the policy");
        match device.poll_transmit() {
            Some(DeviceMessage { body: DeviceBody::Advertise(bundle), .. }) => bundle,
            other => panic!("expected keys, got {other:?}"),
        }
    };
    let mut keys: BTreeMap<DeviceId, KeyBundle> =
        graph.neighbours(victim).into_iter().map(|id| (id, round.bundles[&id].clone())).collect();
    let tell = |keys: BTreeMap<DeviceId, KeyBundle>| {
        let message = ServerMessage { round: ROUND, body: ServerBody::Keys(keys) };
        round.devices[&victim].clone().handle(ZERO, message)
    };
    assert_eq!(tell(keys.clone()), Ok(()));
    keys.insert(accomplice, keys_of(accomplice, 77));
    assert_eq!(tell(keys), Err(Abort::BadCommitment(accomplice)));
}
