//! Devices that vanish, send noise or dawdle, and a server that is started again: no finished round
//! is lost.

#![allow(clippy::unwrap_used, missing_docs)]

#[path = "field/fleet.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared by several tests")]
mod fleet;
#[path = "../../deltafl/tests/exchanges/intercepted.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared by several tests")]
mod intercepted;
#[path = "field/watchdog.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared by several tests")]
mod watchdog;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use deltafl::data::FederationIndex;
use deltafl::exchange::Exchange as _;
use deltafl::trainer::Sgd;
use deltafl::training::{Event, Observer as _, train};
use deltafl_device::fault::Misconduct;
use deltafl_device::swarm::SwarmOptions;
use deltafl_device::{BlobCache, Consent, Device, DeviceData, Reason, ServerEndpoint, ServerTrust, Workers};
use deltafl_server::Deadlines;
use deltafl_server::exchange::{Permille, Rules};
use deltafl_server::refusal::Refusal;
use deltafl_server::serve::{Host, PhasePurpose, Setup};
use deltafl_wire::loopback;
use deltafl_wire::roster::RosterVersion;
use fleet::{Records, TestFederation, never, options, start_host};
use intercepted::Intercepted;
use tokio::sync::watch;

const EXPERIMENT: &str = r#"
    name = "faults"
    rounds = 6
    cohort = 10
    data = { source = { kind = "glyphs", devices = 40, seed = 3 } }
    model = { kind = "linear" }
    local = { steps = 2, batch = 10, learning_rate = 0.1 }
    algorithm = [{ kind = "fedavg" }, { kind = "delta-fl", theta = 0.5, quantile = "histogram" }]
"#;

/// Rules for devices of which many drop out.
fn lenient(test: &TestFederation) -> Rules {
    let second = Duration::from_secs(1);
    let deadlines = Deadlines { setup: 5 * second, input: 5 * second, unmask: 5 * second };
    Rules { present: 10, quorum: 4, dropping: Permille::new(400).unwrap(), deadlines, ..test.rules() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn training_ends_though_a_third_vanishes_and_some_send_noise() {
    let _limit = watchdog::start();
    let test = TestFederation::new(EXPERIMENT);
    let mut host = test.host().await;
    let misconduct = Misconduct { drop_out: 0.3, garbage: 0.1, ..Misconduct::default() };
    let _swarm = test.swarm(host.address(), &SwarmOptions { misconduct, ..options() });
    let mut exchange = host.exchange(lenient(&test), never());
    let trained = tokio::task::spawn_blocking(move || {
        let mut diary = Records::default();
        test.train(&mut exchange, &mut diary).map(|state| (state, diary)).unwrap()
    });
    let (state, diary) = trained.await.unwrap();
    assert_eq!((state.round, diary.states.len()), (6, 6));
    assert!(diary.records.iter().any(|record| record.dropped > 0), "somebody vanished");
    assert!(host.refused(Refusal::Malformed) > 0, "somebody sent noise");
    assert!(state.tracks.iter().all(|track| track.params.as_slice().iter().all(|w| w.is_finite())));
    host.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_drained_finishes_the_round_and_its_devices_come_back() {
    let _limit = watchdog::start();
    let test = Arc::new(TestFederation::new(EXPERIMENT));
    let mut host = test.host().await;
    let address = host.address();
    let _swarm = test.swarm(address, &options());
    let stop: Arc<AtomicBool> = Arc::default();
    let mut exchange = host.exchange(test.rules(), Arc::clone(&stop));
    let mut status = host.status();
    let (trains, asked) = (Arc::clone(&test), Arc::clone(&stop));
    let trained = tokio::task::spawn_blocking(move || {
        let mut records = Records::default();
        let mut until_stopped = |event: Event<'_>| match event {
            Event::RoundFinished { .. } if asked.load(Ordering::Relaxed) => {
                records.handle(event).map(|_| ControlFlow::Break(()))
            }
            event => records.handle(event),
        };
        let state = trains.train(&mut exchange, &mut until_stopped).unwrap();
        (state.round, records.states.len())
    });
    // Keys are set up and the first sum is being asked for: more questions of this round are to
    // come.
    status.wait_for(|status| status.purpose == PhasePurpose::Losses).await.unwrap();
    stop.store(true, Ordering::Relaxed);
    let (rounds, kept) = trained.await.unwrap();
    assert!(
        (1..6).contains(&rounds) && kept == rounds as usize,
        "the round is done and kept: {rounds}, {kept}"
    );
    drop(status);
    host.shut_down().await;
    // Started again at the same address, it has all its devices without a new swarm.
    let mut again = start_host(Setup { address, ..test.setup() }, &test.roster(&[])).await;
    let mut exchange = again.exchange(test.rules(), never());
    let ready = tokio::task::spawn_blocking(move || exchange.reachable().map(|_| ()));
    ready.await.unwrap().unwrap();
    again.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_waits_for_a_device_that_dawdles() {
    let _limit = watchdog::start();
    let test = TestFederation::new(EXPERIMENT);
    let mut host = test.host().await;
    let (slow, quick) = test.devices().into_iter().partition::<Vec<FederationIndex>, _>(|k| k.0 % 8 == 1);
    let misconduct = Misconduct { delay_ms: 3_600_000, ..Misconduct::default() };
    let _slow = test.swarm_of(&slow, host.address(), &SwarmOptions { misconduct, ..options() });
    let _quick = test.swarm_of(&quick, host.address(), &options());
    let second = Duration::from_secs(1);
    let deadlines = Deadlines { setup: second, input: 2 * second, unmask: second };
    let rules = Rules { deadlines, quorum: 4, dropping: Permille::new(400).unwrap(), ..test.rules() };
    let mut exchange = host.exchange(rules, never());
    let trained = tokio::task::spawn_blocking(move || {
        let mut diary = Records::default();
        test.train(&mut exchange, &mut diary).map(|_| diary).unwrap()
    });
    let diary = trained.await.unwrap();
    assert_eq!(diary.states.len(), 6);
    assert!(diary.records.iter().any(|record| record.dropped > 0), "the slow ones were left behind");
    host.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_too_many_invited_the_first_to_come_take_part() {
    let _limit = watchdog::start();
    let test = TestFederation::new(&EXPERIMENT.replace("cohort = 10", "cohort = 14"));
    let mut host = test.host().await;
    let _swarm = test.swarm(host.address(), &options());
    let mut exchange = host.exchange(Rules { cohort: 10, ..test.rules() }, never());
    let trained = tokio::task::spawn_blocking(move || {
        let mut diary = Records::default();
        test.train(&mut exchange, &mut diary).map(|_| diary).unwrap()
    });
    let diary = trained.await.unwrap();
    assert!(diary.records.iter().all(|record| (record.cohort, record.dropped) == (14, 4)));
    host.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn devices_without_time_are_not_drawn_and_careful_ones_stay_out() {
    let _limit = watchdog::start();
    let test = TestFederation::new(EXPERIMENT);
    let mut host = test.host().await;
    let mut devices = test.devices();
    let others = devices.split_off(4);
    let busy = Consent { willing: Arc::new(|| Err(Reason::Busy)), ..options().consent };
    let careful = Consent { min_cohort: 100, ..options().consent };
    let _busy = test.swarm_of(&devices[..2], host.address(), &SwarmOptions { consent: busy, ..options() });
    let _careful =
        test.swarm_of(&devices[2..], host.address(), &SwarmOptions { consent: careful, ..options() });
    let _others = test.swarm_of(&others, host.address(), &options());
    let willing = others.len() + 2;
    let rules = Rules { present: willing, cohort: willing, ..test.rules() };
    let mut exchange = host.exchange(rules, never());
    let trained = tokio::task::spawn_blocking(move || {
        let test = TestFederation::new(&EXPERIMENT.replace("cohort = 10", "cohort = 20"));
        let mut diary = Records::default();
        test.train(&mut exchange, &mut diary).map(|_| diary).unwrap()
    });
    let diary = trained.await.unwrap();
    // Twenty devices train; two have no time, and two others find the cohort too small.
    assert!(diary.records.iter().all(|record| (record.cohort, record.dropped) == (18, 2)));
    host.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_starts_before_its_devices_are_enrolled_begins_no_round_in_vain() {
    let _limit = watchdog::start();
    let test = Arc::new(TestFederation::new(EXPERIMENT));
    let nobody =
        loopback::roster(RosterVersion { version: 1, expires: u64::MAX }, std::iter::empty(), |_| false)
            .unwrap();
    let mut host = start_host(test.setup(), &nobody).await;
    let _swarm = test.swarm(host.address(), &options());
    let exchange = host.exchange(test.rules(), never());
    let (status, host) = (host.status(), Arc::new(host));
    let (enrols, trains) = (Arc::clone(&host), Arc::clone(&test));
    let trained = tokio::task::spawn_blocking(move || {
        let roster = trains.roster(&[]);
        // Behind the first draws: when it is first asked who can be reached.
        let mut once = Some(move || enrols.change_roster(&roster).unwrap());
        let mut exchange = Intercepted::new(exchange).on_reachable(move || {
            once.take().into_iter().for_each(|enrol| enrol());
            None
        });
        trains.train(&mut exchange, &mut Records::default()).unwrap()
    });
    assert_eq!(trained.await.unwrap(), test.simulate(&mut Records::default()));
    assert_eq!(status.borrow().setups, 6, "a key set-up for each round");
    Arc::into_inner(host).unwrap().shut_down().await;
}

/// Waits until so many devices are online, all of them ready.
async fn until_ready(host: &Host, devices: usize) {
    while host.presence() != (devices, devices) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_that_was_away_holds_the_newest_params_before_it_can_be_drawn() {
    let _limit = watchdog::start();
    let test = TestFederation::new(EXPERIMENT);
    let host = test.host().await;
    let after = |round: u16| {
        let mut state = test.experiment.plan().start(1, &Sgd::new(&*test.model));
        for (track, value) in state.tracks.iter_mut().zip([0.25, 0.5]) {
            track.params = vec![f32::from(round) + value; test.model.num_params()].into();
        }
        state
    };
    let cache = Arc::<BlobCache>::default();
    let holds = |round| after(round).tracks.iter().all(|track| cache.holds(&track.params.hash()));
    let (tell, presence) = watch::channel(true);
    let (k, options) = (test.devices()[0], options());
    let server = ServerEndpoint { address: host.address().to_string(), trust: ServerTrust::Loopback };
    let device = Device::new(server, test.credentials(k), options.consent)
        .sharing(Arc::new(Workers::new(1)), Arc::clone(&cache))
        .with_backoff(options.backoff)
        .with_presence(presence);
    host.set_newest(&after(0));
    let (trainer, data) = (test.trainer(), DeviceData::new(Arc::clone(&test.federation), k));
    let running = tokio::spawn(device.run(trainer, data));
    until_ready(&host, 1).await;
    assert!(holds(0));

    // It stays while a round is finished, and says that it is ready once more: idle devices fetch
    // nothing.
    host.set_newest(&after(1));
    host.change_roster(&test.roster(&[])).unwrap();
    until_ready(&host, 1).await;
    assert!(!holds(1));

    tell.send(false).unwrap();
    until_ready(&host, 0).await;
    host.set_newest(&after(2));
    tell.send(true).unwrap();
    until_ready(&host, 1).await;
    assert!(holds(2));
    running.abort();
    host.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_started_again_after_every_round_ends_with_the_bits_of_the_simulation() {
    let _limit = watchdog::start();
    let test = Arc::new(TestFederation::new(EXPERIMENT));
    let mut host = test.host().await;
    let address = host.address();
    let _swarm = test.swarm(address, &options());
    let mut state = test.experiment.plan().start(1, &Sgd::new(&*test.model));
    let mut setups = 0;
    for round in 0..6 {
        let mut exchange = host.exchange(test.rules(), never()).after_setup(setups);
        let one = Arc::clone(&test);
        let trained = tokio::task::spawn_blocking(move || {
            let mut one_round = |event: Event<'_>| match event {
                Event::RoundFinished { .. } => Ok(ControlFlow::Break(())),
                _ => Ok(ControlFlow::Continue(())),
            };
            train(&mut exchange, &one.experiment.plan(), &mut state, &mut one_round).unwrap();
            (state, exchange.last_setup())
        });
        (state, setups) = trained.await.unwrap();
        assert_eq!(state.round, round + 1);
        host.shut_down().await;
        let setup = Setup { address, ..test.setup() };
        host = start_host(setup, &test.roster(&[])).await;
    }
    host.shut_down().await;
    let mut simulated = Records::default();
    let expected = test.simulate(&mut simulated);
    assert_eq!(state, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_waits_for_devices_can_be_stopped() {
    let _limit = watchdog::start();
    let test = TestFederation::new(EXPERIMENT);
    let mut host = test.host().await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut exchange = host.exchange(test.rules(), Arc::clone(&stop));
    let waiting = tokio::task::spawn_blocking(move || {
        test.train(&mut exchange, &mut Records::default()).map(|_| ()).unwrap_err().to_string()
    });
    stop.store(true, Ordering::Relaxed);
    assert_eq!(waiting.await.unwrap(), "no further round was started");
    host.shut_down().await;
}
