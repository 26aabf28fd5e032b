//! The partition attack: the server sees the graph and then claims drop-outs that cut off some
//! devices, to learn the sum of a part.

use std::collections::{BTreeMap, BTreeSet};

use super::{Scene, curious, ring_from};
use crate::device::Abort;
use crate::graph::{Graph, GraphRule};
use crate::identity::DeviceId;
use crate::message::{DeviceSet, ServerBody, ServerMessage};

#[test]
fn more_drop_outs_than_the_graph_tolerates_are_rejected() {
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

/// The set is large enough, but too few devices of the victim's circle are in it.
#[test]
fn a_set_with_too_few_devices_of_the_circle_is_rejected() {
    let scene = Scene::new(100, curious(50, 200));
    let victim = scene.members().as_slice()[0];
    let (t, near) = (scene.graph.threshold(), scene.graph.neighbours(victim));
    let tell = |left: usize| {
        let gone: BTreeSet<DeviceId> = near[left - 1..].iter().copied().collect();
        let survivors: DeviceSet = scene.members().iter().filter(|id| !gone.contains(id)).collect();
        assert!(survivors.len() >= scene.graph.least());
        let body = ServerBody::Survivors { slot: 0, survivors };
        scene.devices[&victim].clone().handle(super::ZERO, ServerMessage { round: scene.round, body })
    };
    assert_eq!(tell(t), Ok(()));
    assert_eq!(tell(t - 1), Err(Abort::TooFew { have: t - 1, need: t }));
}

/// Shows all devices the same survivors. Two gaps of k/2 devices next to an arc of `arc` devices
/// are claimed to have dropped out. Returns true if the server obtains the seeds of the whole arc.
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
fn no_claimed_drop_outs_cut_off_an_arc_of_the_ring() {
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
fn claimed_drop_outs_cut_off_an_arc_under_honest_but_curious_parameters() {
    // An arc of 100 devices and gaps of 44 are within δ = 20 %. Only the choice of the drop-outs
    // enables the attack.
    let members: Vec<DeviceId> = (0..500).map(DeviceId).collect();
    let graph = Graph::new(curious(50, 200), 500, &members, &[5; 32]);
    assert!(graph.degree() <= 500 - graph.least());
    assert!(arc_opens(&graph, DeviceId(0), 100, &BTreeSet::new()));
}

#[test]
fn devices_do_not_unmask_a_neighbour_that_masked_with_other_devices() {
    // Devices for which the other side of a cut is gone mask without it. The other side,
    // with a different view, is asked to unmask them. Their attestations are on a different
    // transcript, so the server claims that they are silent.
    let mut scene = Scene::new(60, curious(50, 200));
    assert!(!scene.graph.is_full());
    let (members, cut_off) = (scene.members(), DeviceId(7));
    let others: Vec<DeviceId> = members.iter().filter(|&id| id != cut_off).collect();
    let views = others.iter().map(|&id| (id, members.clone())).collect();
    let refused = |scene: &Scene| {
        let answered = scene.play(&views, &BTreeSet::new()).answered;
        others.iter().copied().filter(|id| !answered.contains(id)).collect::<Vec<_>>()
    };
    assert_eq!(refused(&scene), [], "a neighbour that masked with the same devices may be silent");
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

/// An attestation can replace the input signature, because it covers the active devices.
#[test]
fn a_device_that_masked_with_other_devices_attests_a_different_transcript() {
    let scene = Scene::new(60, curious(50, 200));
    let members = scene.members();
    let fewer: DeviceSet = members.iter().filter(|id| id.0 != 9).collect();
    let (spec, survivors) = (Scene::spec(), fewer.clone());
    let attested = |active: &DeviceSet| scene.transcript.with_slot(&spec, active, &survivors).attestation();
    assert_ne!(attested(&members), attested(&fewer));
}
