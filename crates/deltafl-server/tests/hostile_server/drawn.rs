//! Cohorts that the server chose although the roster requires a draw.

use std::time::Duration;

use deltafl::exchange::{CohortMember, Exchange as _, Reachable, Round, TrainIndex};
use deltafl::params::Params;
use deltafl::question::{Ask, Query};
use deltafl::selection::Weighting;
use deltafl::terms::Terms;
use deltafl::trainer::{LocalPlan, Work};
use deltafl_device::{DeviceState, TranscriptEvent};
use deltafl_server::exchange::{DrawChain, Rules};
use deltafl_wire::loopback;
use deltafl_wire::roster::{Roster, SignedRoster};
use tokio::task::JoinHandle;

use super::fleet::{TestFederation, never, start_host};
use super::{EXPERIMENT, later, roster, spawn, transcript, watchdog};

/// A roster of a test that says how cohorts are drawn, and the chain that draws them.
fn drawn_roster(test: &TestFederation) -> (SignedRoster, DrawChain) {
    let chain = DrawChain::new([6; 32]);
    let signed = roster(test, later(4), test.devices().len());
    let roster = Roster::decode(signed.bytes).unwrap().with_draws(Some(chain.commitment()));
    (loopback::signed(&roster), chain)
}

/// Asks eight devices for their updates, under a roster that says that cohorts are drawn, by a
/// server that draws or chooses. What the devices wrote down, and how many answered.
async fn run_drawn(chain: impl FnOnce(DrawChain) -> Option<DrawChain>) -> (Vec<TranscriptEvent>, usize) {
    let test = TestFederation::new(EXPERIMENT);
    let (roster, honest) = drawn_roster(&test);
    let mut host = start_host(test.setup(), &roster).await;
    let folders: Vec<_> = test.devices().iter().map(|_| tempfile::tempdir().unwrap()).collect();
    let devices: Vec<_> = test
        .devices()
        .into_iter()
        .zip(&folders)
        .map(|(k, folder)| {
            spawn(&test, k, host.address().to_string(), DeviceState::open(folder.path()).unwrap())
        })
        .collect();
    let mut rules = Rules { attempts: 1, ..test.rules() };
    rules.present = test.devices().len();
    rules.deadlines.setup = Duration::from_secs(5);
    let exchange = host.exchange(rules, never());
    let mut exchange = match chain(honest) {
        Some(chain) => exchange.drawing_by(chain),
        None => exchange,
    };
    let params = Params::from(vec![0.0; test.model.num_params()]);
    let sums = tokio::task::spawn_blocking(move || {
        // What the round loop does: draw among those that can be reached.
        let Reachable::Some(reachable) = exchange.reachable().unwrap() else { panic!("devices come and go") };
        let cohort: Vec<CohortMember> = (0..)
            .zip(reachable)
            .filter(|(_, reachable)| *reachable)
            .take(8)
            .map(|(device, _)| CohortMember { device: TrainIndex(device), times: 1, dropped: false })
            .collect();
        let round = Round { seed: 1, index: 0, cohort: &cohort, terms: Terms::PRIVATE, own: &[] };
        let plan = LocalPlan {
            work: Work::Steps(1),
            batch: 10,
            learning_rate: 0.1,
            l2: 0.0,
            proximal: 0.0,
            correction: None,
        };
        let ask = Ask::Update { weighting: Weighting::everyone(), plan };
        exchange.secure_sum(&round, &[Query::new(params, ask)]).map_or(0, |sums| sums[0].answered as usize)
    });
    let answered = sums.await.unwrap();
    let events = folders.iter().flat_map(|folder| transcript(folder.path())).collect();
    devices.iter().for_each(JoinHandle::abort);
    (events, answered)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cohort_that_was_drawn_comes_to_a_sum_and_one_that_the_server_chose_does_not() {
    let _limit = watchdog::start();
    let (events, answered) = run_drawn(Some).await;
    assert_eq!(answered, 8);
    let left_out = |event: &TranscriptEvent| match event {
        TranscriptEvent::Drawn { drawn, left_out, members, .. } => Some((members.0, *drawn, *left_out)),
        _ => None,
    };
    let noted: Vec<_> = events.iter().filter_map(left_out).collect();
    assert_eq!(noted.len(), 8, "every member notes who was left out");
    assert!(noted.iter().all(|(members, drawn, left_out)| *members == 8 && drawn - left_out == 8));

    // The same server without the chain: it asks whom it likes, and opens no draw.
    let (events, answered) = run_drawn(|_| None).await;
    assert_eq!(answered, 0);
    assert!(!events.iter().any(|event| matches!(event, TranscriptEvent::Joined { .. })), "nobody joins");

    // A chain of its own, made after the roster was signed.
    let (_, answered) = run_drawn(|_| Some(DrawChain::new([9; 32]))).await;
    assert_eq!(answered, 0);
}
