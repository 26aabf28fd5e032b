//! The server divides one invitation into several lists of members and opens a sum for each.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use chacha20::ChaCha20Rng;
use rand_core::SeedableRng;

use super::{CONTEXT, LEN, SESSION, ZERO, truth};
use crate::defences::{Defence, Defences};
use crate::device::{AdversaryModel, DeviceEvent, DevicePolicy, DeviceRound, Participant};
use crate::graph::{CollusionBound, Graph, GraphRule, Permille};
use crate::identity::{DeviceId, KeyRoster, SigningIdentity};
use crate::mask::MaskSuite;
use crate::message::DeviceSet;
use crate::params::{RoundId, RoundParams};
use crate::ring::Ring;
use crate::server::{ServerRound, ServerRoundConfig, ServerRoundEvent};

const INVITED: u32 = 100;
const PART: u32 = 10;

/// Announces a cohort of [`INVITED`] and shows each [`PART`] of them another list. Returns the
/// number of sums.
fn sums(defences: Defences) -> usize {
    let mut rng = ChaCha20Rng::seed_from_u64(9);
    let identities: Vec<Arc<SigningIdentity>> =
        (0..INVITED).map(|i| Arc::new(SigningIdentity::generate(DeviceId(i), &mut rng))).collect();
    let mut roster = KeyRoster::new();
    for identity in &identities {
        roster.add(identity.id(), &identity.public()).expect("distinct");
    }
    let roster = Arc::new(roster);
    let gamma = CollusionBound::Devices(1);
    let params = RoundParams {
        id: RoundId { session: SESSION, round: 1 },
        suite: MaskSuite::default(),
        cohort: INVITED,
        graph: GraphRule::Active { gamma, delta: Permille::new(200).expect("a fifth") },
        slots: 1,
        draw: None,
    };
    let policy = DevicePolicy {
        min_members: PART as usize,
        adversary: AdversaryModel::Active { gamma },
        max_len: LEN,
        patience: Duration::MAX,
        max_left_out: None,
        defences,
    };
    let lying = Defences::ALL.without(Defence::MembersOfCohort).without(Defence::ThresholdOfCohort);
    let mut sums = 0;
    for part in identities.chunks(PART as usize) {
        let config = ServerRoundConfig {
            params: params.clone(),
            cohort: part.iter().map(|identity| identity.id()).collect(),
            roster: Arc::clone(&roster),
            min_members: PART as usize,
            phase_timeout: Duration::from_secs(1),
        };
        let mut server = ServerRound::new(config, ZERO).expect("sound parameters").with_defences(lying);
        let join = |identity: &Arc<SigningIdentity>| {
            let device = Participant::new(Arc::clone(identity), Arc::clone(&roster), SESSION, policy);
            (identity.id(), device.clone().join(&params, ZERO, &mut rng).expect("within the policy"))
        };
        let mut devices: BTreeMap<DeviceId, DeviceRound> = part.iter().map(join).collect();
        server.poll_transmit().expect("the invitation, which the devices have joined");
        sums += usize::from(sum_of(&mut server, &mut devices));
    }
    sums
}

/// Carries messages until the sum is known or no device answers. Returns true if there is a sum.
fn sum_of(server: &mut ServerRound, devices: &mut BTreeMap<DeviceId, DeviceRound>) -> bool {
    loop {
        let mut quiet = true;
        while let Some(event) = server.poll_event() {
            quiet = false;
            match event {
                ServerRoundEvent::Ready { .. } => {
                    server.open_slot(ZERO, Ring::Z64, LEN, CONTEXT).expect("ready");
                }
                ServerRoundEvent::Sum(sum) => {
                    assert_eq!(sum.survivors, devices.keys().copied().collect::<DeviceSet>());
                    return true;
                }
                _ => return false,
            }
        }
        while let Some(transmit) = server.poll_transmit() {
            for (id, device) in devices.iter_mut().filter(|(id, _)| transmit.to.contains(**id)) {
                quiet = false;
                let _ = device.handle(ZERO, transmit.message.clone());
                while let Some(event) = device.poll_event() {
                    if let DeviceEvent::InputWanted(_) = event {
                        device.submit(CONTEXT, truth(*id)).expect("the requested shape");
                    }
                }
            }
        }
        for (&id, device) in devices.iter_mut() {
            while let Some(message) = device.poll_transmit() {
                quiet = false;
                let _ = server.handle(ZERO, id, message);
            }
        }
        if quiet {
            return false;
        }
    }
}

#[test]
fn one_invitation_does_not_give_ten_sums() {
    let both = [Defence::MembersOfCohort, Defence::ThresholdOfCohort];
    let undefended = both.into_iter().fold(Defences::default(), Defences::without);
    assert_eq!(sums(undefended), 10, "without the defences");
    assert_eq!(sums(Defences::default()), 0);
    // Each of the two defences suffices.
    for defence in both {
        assert_eq!(sums(Defences::ALL.without(defence)), 0, "without {defence:?}");
    }
}

#[test]
fn the_threshold_of_a_full_graph_follows_from_the_announced_cohort() {
    let params = RoundParams {
        id: RoundId { session: SESSION, round: 1 },
        suite: MaskSuite::default(),
        cohort: 100,
        graph: GraphRule::default(),
        slots: 1,
        draw: None,
    };
    let members: DeviceSet = (0..80).map(DeviceId).collect();
    let graph = Graph::for_params(&params, &members, &[0; 32], Defences::default());
    // Two lists of 80 members with t signers each would have more than c = 5 signers in common.
    assert!(2 * graph.threshold() > 100 + 5, "{}", graph.threshold());
}
