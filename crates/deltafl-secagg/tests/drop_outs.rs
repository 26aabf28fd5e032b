//! Devices that drop out: the exact sum of the remaining devices, or a typed failure.

use std::collections::BTreeMap;

use chacha20::ChaCha20Rng;
use deltafl_secagg::device::SurvivorKeys;
use deltafl_secagg::graph::{GraphRule, Permille};
use deltafl_secagg::identity::DeviceId;
use deltafl_secagg::mask::MaskSuite;
use deltafl_secagg::message::ServerBody;
use deltafl_secagg::message::wire::decode_server;
use deltafl_secagg::server::{PhaseName, RoundFailure};
use deltafl_secagg::simulate::{
    Coordinate, Delivery, DropOut, SimulatedRound, SimulationConfig, SimulationError, secure_sum,
};
use proptest::prelude::*;
use rand_core::{Rng, SeedableRng};

/// The phases of a full graph with one slot, in order.
const PHASES: [PhaseName; 6] = [
    PhaseName::Advertise,
    PhaseName::Share,
    PhaseName::Confirm,
    PhaseName::MaskedInput(0),
    PhaseName::Consistency(0),
    PhaseName::Unmask(0),
];

fn devices(n: u32) -> Vec<DeviceId> {
    (0..n).map(|i| DeviceId(7 * i + 2)).collect()
}

/// A device's pseudo-random vector, the same in every run.
fn input(seed: u64, id: DeviceId, len: u32) -> Vec<u64> {
    let mut rng = ChaCha20Rng::seed_from_u64(seed ^ (u64::from(id.0) << 32));
    (0..len).map(|_| rng.next_u64()).collect()
}

fn plain_sum(seed: u64, ids: &[DeviceId], len: u32) -> Vec<u64> {
    let mut sum = vec![0u64; len as usize];
    for &id in ids {
        for (sum, value) in sum.iter_mut().zip(input(seed, id, len)) {
            *sum = sum.wrapping_add(value);
        }
    }
    sum
}

/// The expected result on a full graph: removes the devices phase by phase and stops below the
/// threshold.
fn expected(
    devices: &[DeviceId],
    drops: &BTreeMap<DeviceId, PhaseName>,
    threshold: usize,
) -> Result<Vec<DeviceId>, RoundFailure> {
    let mut here = devices.to_vec();
    let mut survivors = Vec::new();
    for phase in PHASES {
        here.retain(|id| drops.get(id) != Some(&phase));
        let need = match phase {
            PhaseName::Consistency(_) | PhaseName::Unmask(_) => threshold,
            _ => threshold.max(2),
        };
        if here.len() < need {
            return Err(RoundFailure::TooFew { phase, have: here.len(), need });
        }
        if phase == PhaseName::MaskedInput(0) {
            survivors.clone_from(&here);
        }
    }
    Ok(survivors)
}

fn config(threshold: u32) -> SimulationConfig {
    SimulationConfig { graph: GraphRule::Full { threshold }, ..SimulationConfig::default() }
}

fn as_drops(drops: &BTreeMap<DeviceId, PhaseName>) -> Vec<DropOut> {
    drops.iter().map(|(&device, &before)| DropOut { device, before }).collect()
}

/// Checks that the round ends exactly as `expected`, including the failure.
fn check(n: u32, threshold: u32, drops: &BTreeMap<DeviceId, PhaseName>, seed: u64) {
    let devices = devices(n);
    let mut rng = ChaCha20Rng::seed_from_u64(seed);
    let answer =
        secure_sum(&config(threshold), &devices, &as_drops(drops), 3, &mut rng, |id| input(seed, id, 3));
    match expected(&devices, drops, threshold as usize) {
        Ok(survivors) => {
            let (sum, _) = answer.expect("enough devices");
            assert_eq!(sum.survivors.as_slice(), survivors, "{drops:?}");
            assert_eq!(sum.sum, plain_sum(seed, &survivors, 3), "{drops:?}");
        }
        Err(failure) => assert_eq!(answer.map(|_| ()), Err(SimulationError::Failed(failure)), "{drops:?}"),
    }
}

#[test]
fn every_subset_dropped_at_every_phase_gives_the_right_sum_or_failure() {
    for n in 2..=6 {
        let threshold = n / 2 + 1;
        for phase in PHASES {
            for subset in 0..1u32 << n {
                let gone = devices(n).into_iter().enumerate().filter(|(i, _)| subset >> i & 1 == 1);
                let drops = gone.map(|(_, id)| (id, phase)).collect();
                check(n, threshold, &drops, 11);
            }
        }
    }
}

#[test]
fn thresholds_of_all_devices_and_of_one_device_are_enforced() {
    let lost = BTreeMap::from([(devices(4)[1], PhaseName::Unmask(0))]);
    check(4, 4, &BTreeMap::new(), 5);
    check(4, 4, &lost, 5);
    check(4, 1, &lost, 5);
}

/// The boxes of 70 devices exceed the size up to which a server waits for all of them.
#[test]
fn boxes_are_forwarded_early_also_for_devices_that_drop_out_later() {
    let (ids, seed) = (devices(70), 3);
    let drops = [(3, PhaseName::Share), (66, PhaseName::Share), (5, PhaseName::Confirm)];
    let drops = drops.into_iter().map(|(i, phase)| (ids[i], phase)).collect();
    let config = SimulationConfig { record: true, ..config(36) };
    let mut round =
        SimulatedRound::new(&config, &ids, &as_drops(&drops), &mut ChaCha20Rng::seed_from_u64(seed))
            .expect("most are there");
    let sum = round.sum(3, b"", |id| input(seed, id, 3)).expect("enough devices");
    let survivors = expected(&ids, &drops, 36).expect("enough devices");
    assert_eq!((sum.survivors.as_slice(), sum.sum), (&*survivors, plain_sum(seed, &survivors, 3)));
    let is_early = |delivery: &&Delivery| {
        let message = decode_server(delivery.bytes.clone(), usize::MAX);
        message.is_ok_and(|message| matches!(message.body, ServerBody::EarlyShares(_)))
    };
    let deliveries = round.recording().iter().filter(|delivery| delivery.from.is_none());
    let early: Vec<_> = deliveries.filter(is_early).filter_map(|delivery| delivery.to).collect();
    assert!(survivors.iter().all(|id| early.contains(id)), "{early:?}");
}

fn phase() -> impl Strategy<Value = PhaseName> {
    proptest::sample::select(PHASES.to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn devices_that_drop_at_different_phases_do_not_change_the_sum_of_the_rest(
        n in 3u32..12, lost in proptest::collection::btree_map(0u32..12, phase(), 0..6), seed: u64,
    ) {
        let ids = devices(n);
        let drops = lost.iter().filter_map(|(&i, &phase)| Some((*ids.get(i as usize)?, phase))).collect();
        check(n, n / 2 + 1, &drops, seed);
    }
}

fn five_percent() -> GraphRule {
    let share = Permille::new(50).expect("five in a hundred");
    GraphRule::HonestButCurious { gamma: share.into(), delta: share }
}

fn sparse_sum<C: Coordinate + From<u32> + PartialEq + std::fmt::Debug>(
    n: u32,
    suite: MaskSuite,
    drops: &[DropOut],
    seed: u64,
) -> (Vec<C>, Vec<DeviceId>) {
    let config = SimulationConfig { graph: five_percent(), suite, ..SimulationConfig::default() };
    let mut rng = ChaCha20Rng::seed_from_u64(seed);
    let (sum, _) = secure_sum(&config, &devices(n), drops, 2, &mut rng, |id| vec![C::from(id.0), C::from(1)])
        .expect("within the drop-outs that the graph tolerates");
    (sum.sum, sum.survivors.as_slice().to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, ..ProptestConfig::default() })]

    #[test]
    fn a_sparse_graph_tolerates_its_share_of_drop_outs(
        n in 50u32..80, first: prop::sample::Index, second: prop::sample::Index, reveal: bool, seed: u64, chacha: bool,
    ) {
        let ids = devices(n);
        let early = if reveal { PhaseName::Reveal } else { PhaseName::MaskedInput(0) };
        let drops = [
            DropOut { device: *first.get(&ids), before: early },
            DropOut { device: *second.get(&ids), before: PhaseName::Unmask(0) },
        ];
        let suite = if chacha { MaskSuite::ChaCha20 } else { MaskSuite::default() };
        let (sum, survivors) = sparse_sum::<u32>(n, suite, &drops, seed);
        let total: u32 = survivors.iter().map(|id| id.0).sum();
        prop_assert_eq!(sum, vec![total, survivors.len() as u32]);
        prop_assert!(survivors.len() >= ids.len() - 2);
    }
}

#[test]
fn slots_are_summed_in_order_and_dropped_devices_stay_dropped() {
    let ids = devices(6);
    let drops = [
        DropOut::before_input(ids[0], 1),
        DropOut { device: ids[1], before: PhaseName::Consistency(0) },
        DropOut { device: ids[2], before: PhaseName::Unmask(1) },
    ];
    let config = SimulationConfig { slots: 3, ..config(3) };
    let mut rng = ChaCha20Rng::seed_from_u64(9);
    let mut round =
        SimulatedRound::new(&config, &ids, &drops, &mut rng).expect("no device drops before the slots");
    let histogram = round.sum(64, b"first", |id| input(1, id, 64)).expect("six are left");
    assert_eq!(histogram.survivors.as_slice(), ids);
    assert_eq!(histogram.sum, plain_sum(1, &ids, 64));
    let finer = round.sum(16, b"second", |id| input(2, id, 16)).expect("four are left");
    assert_eq!(finer.survivors.as_slice(), &ids[2..]);
    assert_eq!(finer.sum, plain_sum(2, &ids[2..], 16));
    // A later request may depend on earlier sums.
    let factor = finer.sum[0] as u32 | 1;
    let update = round.sum::<u32>(1000, b"third", |id| vec![id.0.wrapping_mul(factor); 1000]).expect("three");
    assert_eq!(update.survivors.as_slice(), &ids[3..]);
    let total = ids[3..].iter().fold(0u32, |sum, id| sum.wrapping_add(id.0.wrapping_mul(factor)));
    assert_eq!(update.sum, vec![total; 1000]);
    assert_eq!(round.sum(1, b"fourth", |_| vec![0u64]), Err(SimulationError::SlotsUsedUp));
}

#[test]
fn a_slot_with_too_few_devices_ends_the_round() {
    let ids = devices(4);
    let drops = [0, 1].map(|i| DropOut { device: ids[i], before: PhaseName::Unmask(0) });
    let config = SimulationConfig { slots: 2, ..config(2) };
    let mut round =
        SimulatedRound::new(&config, &ids, &drops, &mut ChaCha20Rng::seed_from_u64(1)).expect("four");
    assert_eq!(round.sum(1, b"", |_| vec![1u64]).expect("two answer").sum, [4]);
    assert_eq!(round.sum(1, b"", |_| vec![1u64]).expect("the same two").sum, [2]);

    let config = SimulationConfig { min_members: 3, ..config };
    let mut round =
        SimulatedRound::new(&config, &ids, &drops, &mut ChaCha20Rng::seed_from_u64(1)).expect("four");
    assert_eq!(round.sum(1, b"", |_| vec![1u64]).expect("four inputs").sum, [4]);
    let too_few = RoundFailure::TooFew { phase: PhaseName::MaskedInput(1), have: 2, need: 3 };
    assert_eq!(round.sum(1, b"", |_| vec![1u64]), Err(SimulationError::Failed(too_few)));
}

#[test]
fn equal_seeds_give_equal_traffic_and_a_long_vector_dominates_the_upload() {
    let ids = devices(4);
    let len = 100_000;
    let run = || {
        let mut rng = ChaCha20Rng::seed_from_u64(3);
        secure_sum(&config(3), &ids, &[], len, &mut rng, |id| vec![id.0; len as usize])
            .expect("no device drops")
    };
    let (_, traffic) = run();
    assert_eq!(run().1, traffic);
    for (_, device) in traffic.devices() {
        assert!(device.bytes_sent as f64 <= 1.02 * 4.0 * f64::from(len), "{device:?}");
        // Device: advertise, shares, confirm, input, attest, unmask. Server: invite, keys, shares,
        // open, survivors, attestations.
        assert_eq!((device.messages_sent, device.messages_received), (6, 6));
    }
}

/// Δ-FL requests two histograms and an update (`docs/src/explanation/secure-aggregation.md`, "Fewer
/// exchanges").
#[test]
fn three_sums_take_twelve_messages_per_direction_and_thirteen_on_a_drawn_graph() {
    let curious =
        GraphRule::HonestButCurious { gamma: Permille::default().into(), delta: Permille::default() };
    // On a drawn graph: commitments, a reveal, reveals.
    for (graph, expected) in [(GraphRule::Full { threshold: 4 }, (12, 12)), (curious, (13, 14))] {
        let config = SimulationConfig { graph, slots: 3, ..SimulationConfig::default() };
        let mut rng = ChaCha20Rng::seed_from_u64(3);
        let mut round = SimulatedRound::new(&config, &devices(6), &[], &mut rng).expect("six");
        for _ in 0..3 {
            round.sum(1, b"", |_| vec![1u64]).expect("no device drops");
        }
        for (_, device) in round.traffic().devices() {
            assert_eq!((device.messages_sent, device.messages_received), expected);
        }
    }
}

#[test]
fn survivors_reveal_the_key_of_their_number_and_no_other() {
    for dropped in 0..3 {
        let drops: Vec<DropOut> = (0..dropped).map(|id| DropOut::before_input(DeviceId(id), 0)).collect();
        let mut rng = ChaCha20Rng::seed_from_u64(3);
        let ids: Vec<DeviceId> = (0..7).map(DeviceId).collect();
        let mut round = SimulatedRound::new(&config(4), &ids, &drops, &mut rng).expect("seven");
        let keys = |id: DeviceId| {
            let key = |fewest: u64| (fewest, [(16 * fewest) as u8 | id.0 as u8; 32]);
            SurvivorKeys::new(vec![key(7), key(6)])
        };
        let sum = round.sum_with_keys(1, b"", |id| (vec![1u64], keys(id))).expect("enough survive");
        let survivors = 7 - dropped;
        assert_eq!(sum.sum, [u64::from(survivors)]);
        for id in ids {
            let expected =
                (id.0 >= dropped && survivors >= 6).then(|| [(16 * survivors) as u8 | id.0 as u8; 32]);
            assert_eq!(sum.revealed.get(&id).copied(), expected, "{dropped} {id:?}");
        }
    }
}

#[test]
fn an_input_of_the_wrong_length_is_an_error_not_a_panic() {
    let mut rng = ChaCha20Rng::seed_from_u64(3);
    let answer = secure_sum(&config(2), &devices(3), &[], 5, &mut rng, |_| vec![1u64; 4]);
    assert!(matches!(answer, Err(SimulationError::Input { .. })));
}
