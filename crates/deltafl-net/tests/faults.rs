//! Devices that vanish, send noise or dawdle, and a server that is started again: no finished round is lost.

#![allow(clippy::unwrap_used, missing_docs)]

#[path = "field/fleet.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared by several tests")]
mod fleet;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use deltafl::exchange::SplitEvaluation;
use deltafl::superquantile::LossDistribution;
use deltafl::trainer::Sgd;
use deltafl::training::{Observer, ObserverError, RoundRecord, State, Survey, train};
use deltafl_net::Deadlines;
use deltafl_net::device::{Consent, Reason};
use deltafl_net::engine::{Permille, Rules};
use deltafl_net::fault::Misconduct;
use deltafl_net::refusal::Refusal;
use deltafl_net::serve::{Host, Setup};
use deltafl_net::swarm::Conduct;
use fleet::{Diary, Field, conduct, never};

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
fn lenient(field: &Field) -> Rules {
    let second = Duration::from_secs(1);
    let deadlines = Deadlines { setup: 5 * second, input: 5 * second, unmask: 5 * second };
    Rules { present: 10, quorum: 4, dropping: Permille::new(400).unwrap(), deadlines, ..field.rules() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn training_ends_though_a_third_vanishes_and_some_send_noise() {
    let field = Field::new(EXPERIMENT);
    let mut host = field.host().await;
    let misconduct = Misconduct { drop_out: 0.3, garbage: 0.05, ..Misconduct::default() };
    let _swarm = field.swarm(host.address(), &Conduct { misconduct, ..conduct() });
    let mut engine = host.engine(lenient(&field), never()).unwrap();
    let trained = tokio::task::spawn_blocking(move || {
        let mut diary = Diary::default();
        field.train(&mut engine, &mut diary).map(|state| (state, diary)).unwrap()
    });
    let (state, diary) = trained.await.unwrap();
    assert_eq!((state.round, diary.states.len()), (6, 6));
    assert!(diary.records.iter().any(|record| record.dropped > 0), "somebody vanished");
    assert!(host.refused(Refusal::Malformed) > 0, "somebody sent noise");
    assert!(state.tracks.iter().all(|track| track.params.as_slice().iter().all(|w| w.is_finite())));
    host.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_waits_for_a_device_that_dawdles() {
    let field = Field::new(EXPERIMENT);
    let mut host = field.host().await;
    let (slow, quick) = field.devices().into_iter().partition::<Vec<u32>, _>(|k| k % 8 == 1);
    let misconduct = Misconduct { delay_ms: 3_600_000, ..Misconduct::default() };
    let _slow = field.swarm_of(&slow, host.address(), &Conduct { misconduct, ..conduct() });
    let _quick = field.swarm_of(&quick, host.address(), &conduct());
    let second = Duration::from_secs(1);
    let deadlines = Deadlines { setup: second, input: 2 * second, unmask: second };
    let rules = Rules { deadlines, quorum: 4, dropping: Permille::new(400).unwrap(), ..field.rules() };
    let mut engine = host.engine(rules, never()).unwrap();
    let trained = tokio::task::spawn_blocking(move || {
        let mut diary = Diary::default();
        field.train(&mut engine, &mut diary).map(|_| diary).unwrap()
    });
    let diary = trained.await.unwrap();
    assert_eq!(diary.states.len(), 6);
    assert!(diary.records.iter().any(|record| record.dropped > 0), "the slow ones were left behind");
    host.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_too_many_invited_the_first_to_come_take_part() {
    let field = Field::new(&EXPERIMENT.replace("cohort = 10", "cohort = 14"));
    let mut host = field.host().await;
    let _swarm = field.swarm(host.address(), &conduct());
    let mut engine = host.engine(Rules { cohort: 10, ..field.rules() }, never()).unwrap();
    let trained = tokio::task::spawn_blocking(move || {
        let mut diary = Diary::default();
        field.train(&mut engine, &mut diary).map(|_| diary).unwrap()
    });
    let diary = trained.await.unwrap();
    assert!(diary.records.iter().all(|record| (record.cohort, record.dropped) == (14, 4)));
    host.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn devices_without_time_are_not_drawn_and_careful_ones_stay_out() {
    let field = Field::new(EXPERIMENT);
    let mut host = field.host().await;
    let mut devices = field.devices();
    let others = devices.split_off(4);
    let busy = Consent { willing: Arc::new(|| Err(Reason::Busy)), ..conduct().consent };
    let careful = Consent { min_cohort: 100, ..conduct().consent };
    let _busy = field.swarm_of(&devices[..2], host.address(), &Conduct { consent: busy, ..conduct() });
    let _careful = field.swarm_of(&devices[2..], host.address(), &Conduct { consent: careful, ..conduct() });
    let _others = field.swarm_of(&others, host.address(), &conduct());
    let willing = others.len() + 2;
    let rules = Rules { present: willing, cohort: willing, ..field.rules() };
    let mut engine = host.engine(rules, never()).unwrap();
    let trained = tokio::task::spawn_blocking(move || {
        let field = Field::new(&EXPERIMENT.replace("cohort = 10", "cohort = 20"));
        let mut diary = Diary::default();
        field.train(&mut engine, &mut diary).map(|_| diary).unwrap()
    });
    let diary = trained.await.unwrap();
    // Twenty devices train; two have no time, and two others find the cohort too small.
    assert!(diary.records.iter().all(|record| (record.cohort, record.dropped) == (18, 2)));
    host.shut_down().await;
}

/// Keeps states, and stops after each round.
#[derive(Default)]
struct OneRound(Diary);

impl Observer for OneRound {
    fn round(&mut self, records: &[RoundRecord]) -> Result<ControlFlow<()>, ObserverError> {
        self.0.round(records).map(|_| ControlFlow::Break(()))
    }

    fn evaluation(&mut self, round: u64, splits: &[SplitEvaluation]) -> Result<(), ObserverError> {
        self.0.evaluation(round, splits)
    }

    fn checkpoint(&mut self, state: &State) -> Result<(), ObserverError> {
        self.0.checkpoint(state)
    }

    fn every_round(&self) -> bool {
        false
    }

    fn survey(&self, _: u64) -> Survey {
        Survey::None
    }

    fn losses(&mut self, _: u64, _: &[Option<LossDistribution>]) -> Result<(), ObserverError> {
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_started_again_after_every_round_ends_with_the_bits_of_the_simulation() {
    let field = Arc::new(Field::new(EXPERIMENT));
    let mut host = field.host().await;
    let address = host.address();
    let _swarm = field.swarm(address, &conduct());
    let mut state = State::new(1, 2, &Sgd::new(&*field.model));
    for round in 0..6 {
        let mut engine = host.engine(field.rules(), never()).unwrap();
        let one = Arc::clone(&field);
        let trained = tokio::task::spawn_blocking(move || {
            let mut observer = OneRound::default();
            train(&mut engine, &one.experiment.plan(), &mut state, &mut observer).unwrap();
            state
        });
        state = trained.await.unwrap();
        assert_eq!(state.round, round + 1);
        host.shut_down().await;
        let setup = Setup { address, ..field.setup() };
        host = Host::start(setup, &field.roster(&[])).await.unwrap();
    }
    host.shut_down().await;
    let mut simulated = Diary::default();
    let expected = field.simulate(&mut simulated);
    assert_eq!(state, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_waits_for_devices_can_be_stopped() {
    let field = Field::new(EXPERIMENT);
    let mut host = field.host().await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut engine = host.engine(field.rules(), Arc::clone(&stop)).unwrap();
    let waiting = tokio::task::spawn_blocking(move || {
        field.train(&mut engine, &mut Diary::default()).map(|_| ()).unwrap_err().to_string()
    });
    stop.store(true, Ordering::Relaxed);
    assert_eq!(waiting.await.unwrap(), "the round was not finished");
    host.shut_down().await;
}
