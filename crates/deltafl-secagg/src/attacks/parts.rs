//! The sum of a part: the server sees the graph and then says who dropped out, so that some devices are cut
//! off from the others.

use std::collections::{BTreeMap, BTreeSet};

use super::{Scene, curious, ring_from};
use crate::device::Abort;
use crate::graph::{Graph, GraphRule};
use crate::identity::DeviceId;
use crate::message::{DeviceSet, ServerBody, ServerMessage};

#[test]
fn more_drop_outs_than_the_graph_is_made_for_are_refused() {
    let scene = Scene::new(60, curious(50, 200));
    assert_eq!(scene.graph.least(), 48);
    let members: Vec<DeviceId> = scene.members().into_vec();
    let tell = |left: usize| {
        let survivors: DeviceSet = members[..left].iter().copied().collect();
        let body = ServerBody::Survivors { slot: 0, survivors };
        let mut device = scene.devices[&members[0]].clone();
        device.handle(super::ZERO, ServerMessage { round: scene.round, body })
    };
    assert_eq!(tell(48), Ok(()));
    assert_eq!(tell(47), Err(Abort::TooFew { have: 47, need: 48 }));
}

/// Everybody is shown the same survivors: two gaps of k/2 devices beside an arc of `arc` devices are said to
/// have dropped out. Whether the server gets the seeds of the whole arc.
fn arc_opens(graph: &Graph, first: DeviceId, arc: usize, colluding: &BTreeSet<DeviceId>) -> bool {
    let (ring, half) = (ring_from(graph, first), graph.degree() / 2);
    let gap = |place: usize| (arc..arc + half).contains(&place) || place >= ring.len() - half;
    let place: BTreeMap<DeviceId, usize> = ring.iter().enumerate().map(|(i, &id)| (id, i)).collect();
    let survives = |id: DeviceId| !gap(place[&id]);
    let circle = |id: DeviceId| graph.neighbours(id).into_iter().chain([id]);
    let helps = |id: &DeviceId| colluding.contains(id) || survives(*id);
    let answers = |id: DeviceId| circle(id).filter(helps).count() >= graph.threshold();
    ring[..arc].iter().filter(|id| !colluding.contains(id)).all(|&id| {
        let holders =
            circle(id).filter(|holder| colluding.contains(holder) || survives(*holder) && answers(*holder));
        holders.count() >= graph.threshold()
    })
}

#[test]
fn an_arc_of_the_ring_cannot_be_cut_off_whoever_is_said_to_have_dropped_out() {
    let members: Vec<DeviceId> = (0..1000).map(DeviceId).collect();
    let graph = Graph::new(GraphRule::default(), 1000, &members, &[5; 32]);
    let ring = ring_from(&graph, DeviceId(0));
    for arc in [5, 50, 103, 204, 400] {
        for first in [DeviceId(0), DeviceId(500)] {
            assert!(!arc_opens(&graph, first, arc, &BTreeSet::new()), "{arc} from {first}");
            let spread: BTreeSet<DeviceId> = ring.iter().copied().skip(10).step_by(20).collect();
            assert!(!arc_opens(&graph, first, arc, &spread), "{arc} from {first}");
        }
    }
}

#[test]
fn an_arc_of_the_ring_is_cut_off_under_honest_but_curious_parameters() {
    // That the arc is 100 devices long and the gaps 44 is within δ = 20 %: only the choice of who drops out
    // makes it.
    let members: Vec<DeviceId> = (0..500).map(DeviceId).collect();
    let graph = Graph::new(curious(50, 200), 500, &members, &[5; 32]);
    assert!(graph.degree() <= 500 - graph.least());
    assert!(arc_opens(&graph, DeviceId(0), 100, &BTreeSet::new()));
}

#[test]
fn a_neighbour_that_masked_without_somebody_gets_no_help_from_those_that_did_not() {
    // Told that the other side of a cut is gone, devices mask without it; the other side, told nothing of the
    // kind, is to help open them. What they attest is another transcript, so the server says that they are silent.
    let mut scene = Scene::new(60, curious(50, 200));
    assert!(!scene.graph.is_full());
    let (members, cut_off) = (scene.members(), DeviceId(7));
    let others: Vec<DeviceId> = members.iter().filter(|&id| id != cut_off).collect();
    let views = others.iter().map(|&id| (id, members.clone())).collect();
    let refused = |scene: &Scene| {
        let answered = scene.play(&views, &BTreeSet::new()).answered;
        others.iter().copied().filter(|id| !answered.contains(id)).collect::<Vec<_>>()
    };
    assert_eq!(refused(&scene), [], "a neighbour that masked between the same devices may fall silent");
    let fewer: DeviceSet = members.iter().filter(|id| id.0 != 9).collect();
    let signature = scene.masked_between(cut_off, &fewer);
    scene.masked.insert(cut_off, signature);
    assert_eq!(refused(&scene), scene.graph.neighbours(cut_off));
    scene.masked.remove(&cut_off);
    assert_eq!(
        refused(&scene),
        scene.graph.neighbours(cut_off),
        "neither attested nor signed with its input"
    );
}

/// What makes an attestation stand for the signature with the input: it is on between whom a device masked.
#[test]
fn a_device_that_masked_between_others_attests_another_transcript() {
    let scene = Scene::new(60, curious(50, 200));
    let members = scene.members();
    let fewer: DeviceSet = members.iter().filter(|id| id.0 != 9).collect();
    let (spec, survivors) = (Scene::spec(), fewer.clone());
    let attested = |active: &DeviceSet| scene.transcript.with_slot(&spec, active, &survivors).attestation();
    assert_ne!(attested(&members), attested(&fewer));
}
