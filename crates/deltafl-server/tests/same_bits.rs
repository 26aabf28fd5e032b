//! The same experiment, simulated, and deployed with TLS and real secure aggregation, to the same
//! bits.

#![allow(clippy::unwrap_used, missing_docs)]

#[path = "field/certified.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared by several tests")]
mod certified;
#[path = "field/fleet.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared by several tests")]
mod fleet;
#[path = "field/watchdog.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared by several tests")]
mod watchdog;

use certified::Certified;
use fleet::{Records, TestFederation, never, options};

const PRIVATE: &str = r#"
    name = "same-bits"
    rounds = 3
    cohort = 8
    data = { source = { kind = "glyphs", devices = 30, seed = 3 } }
    model = { kind = "linear" }
    local = { epochs = 1, batch = 10, learning_rate = 0.1 }
    algorithm = [{ kind = "fedavg" }, { kind = "delta-fl", theta = [0.5, 0.8], quantile = "histogram" }]
"#;

/// Trains an experiment in this process, and deployed with certificates: what each told.
async fn both(experiment: &str) -> (Records, Records) {
    let test = TestFederation::new(experiment);
    let certified = Certified::new(&test, "same-bits");
    let mut host = certified.host(test.setup()).await;
    let _swarm = certified.swarm(&test, host.address(), &options());
    let mut exchange = host.exchange(test.rules(), never());
    let trained = tokio::task::spawn_blocking(move || {
        let (mut simulated, mut deployed) = (Records::default(), Records::default());
        test.simulate(&mut simulated);
        test.train(&mut exchange, &mut deployed).unwrap();
        (simulated, deployed)
    });
    let diaries = trained.await.unwrap();
    host.shut_down().await;
    diaries
}

/// The experiment with its tracks on this schedule.
fn scheduled(experiment: &str, tracks: &str) -> String {
    experiment.replace("cohort = 8", &format!("cohort = 8\n    tracks = \"{tracks}\""))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn private_training_deployed_has_the_bits_of_the_simulation() {
    let _limit = watchdog::start();
    for (tracks, lines) in [("in-turn", 3), ("apart", 9)] {
        let (simulated, deployed) = both(&scheduled(PRIVATE, tracks)).await;
        assert_eq!((simulated.states.len(), deployed.records.len()), (3, lines));
        assert_eq!(simulated.states, deployed.states);
        for (simulated, deployed) in simulated.records.iter().zip(&deployed.records) {
            assert_eq!((simulated.eta, simulated.tail), (deployed.eta, deployed.tail));
            assert_eq!((deployed.dropped, deployed.cohort), (0, 8));
        }
        assert_eq!(deployed.evaluations, 0, "devices keep their figures to themselves");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stack_with_dropout_deployed_has_the_bits_of_the_simulation() {
    let _limit = watchdog::start();
    let layers = "[{ kind = 'dense', units = 6 }, { kind = 'relu' }, { kind = 'dropout', rate = 0.25 }]";
    let stack = PRIVATE.replace("{ kind = \"linear\" }", &format!("{{ kind = 'stack', layers = {layers} }}"));
    let (simulated, deployed) = both(&scheduled(&stack, "in-turn")).await;
    assert_eq!(simulated.states.len(), 3);
    assert_eq!(simulated.states, deployed.states);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn devices_tell_of_held_out_examples_what_the_simulation_tells() {
    let _limit = watchdog::start();
    for (quantile, tracks) in [("histogram", "in-turn"), ("histogram", "apart"), ("open", "apart")] {
        let within = scheduled(PRIVATE, tracks)
            .replace("seed = 3 } }", "seed = 3 }, split = { within = { train = 0.7 } } }")
            .replace("rounds = 3", "rounds = 3\n    evaluate_every = 2")
            .replace("histogram", quantile);
        let (simulated, deployed) = both(&within).await;
        assert_eq!(simulated.states, deployed.states);
        for (simulated, deployed) in simulated.records.iter().zip(&deployed.records) {
            assert_eq!(simulated.evaluations, deployed.evaluations);
            let versions: Vec<u64> = deployed.evaluations.iter().map(|told| told.version).collect();
            let expected: &[u64] = match tracks {
                // Each of the three tracks trains in one round, its first and its last.
                "in-turn" => &[0, 3],
                _ => [&[0][..], &[], &[2, 3]][deployed.round as usize],
            };
            assert_eq!(versions, expected, "round {}", deployed.round);
        }
        // The whole cohort told, each device of one track.
        for round in deployed.records.chunk_by(|one, other| one.round == other.round) {
            let told = round.iter().flat_map(|record| record.evaluations.first());
            let devices: u64 = told.map(deltafl::evaluation::CohortEvaluation::devices).sum();
            assert!(devices == 8 || round[0].evaluations.is_empty(), "{devices}");
        }
        assert_eq!(deployed.evaluations, 0, "device by device nothing is told");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn noisy_training_deployed_has_the_bits_of_the_simulation() {
    let _limit = watchdog::start();
    let within = scheduled(PRIVATE, "apart")
        .replace("seed = 3 } }", "seed = 3 }, split = { within = { train = 0.7 } } }")
        .replace("histogram", "tree")
        .replace(
            "model =",
            "privacy = { epsilon = 20, clip = 0.3, adaptive = true, evaluation = 0.1 }\n    model =",
        );
    // The server of the second run subtracts the noise whose keys the devices reveal. The
    // simulation never adds it.
    let removed = within.replace("evaluation = 0.1", "evaluation = 0.1, remove_excess = true");
    for experiment in [within, removed] {
        let (simulated, deployed) = both(&experiment).await;
        assert_eq!(simulated.states, deployed.states);
        for (simulated, deployed) in simulated.records.iter().zip(&deployed.records) {
            assert_eq!(simulated.evaluations, deployed.evaluations);
            assert_eq!((simulated.eta, simulated.privacy), (deployed.eta, deployed.privacy));
            let spent = deployed.privacy.unwrap();
            assert!(
                spent.epsilon_server.unwrap() > 0.0 && spent.epsilon_server.unwrap() <= 20.0,
                "{spent:?}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_training_deployed_has_the_bits_of_the_simulation() {
    let _limit = watchdog::start();
    let (simulated, deployed) = both(&PRIVATE.replace("histogram", "open")).await;
    assert_eq!(simulated.states, deployed.states);
    for (simulated, deployed) in simulated.records.iter().zip(&deployed.records) {
        assert_eq!((simulated.eta, simulated.loss), (deployed.eta, deployed.loss));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_devices_remember_stays_with_them_and_keeps_the_bits() {
    let _limit = watchdog::start();
    let scaffold = r#"{ kind = "scaffold" }, { kind = "delta-fl", theta = 0.5, quantile = "histogram" }]"#;
    let (experiment, _) = PRIVATE.split_once("algorithm = [").unwrap();
    // Enough rounds for devices to be drawn again.
    let experiment = format!("{experiment}algorithm = [{scaffold}").replace("rounds = 3", "rounds = 6");
    let (simulated, deployed) = both(&experiment).await;
    assert_eq!((simulated.states.len(), deployed.states.len()), (6, 6));
    for (simulated, deployed) in simulated.states.iter().zip(&deployed.states) {
        assert_eq!(simulated.tracks[0].params, deployed.tracks[0].params);
        assert_eq!(simulated.tracks[0].memory, deployed.tracks[0].memory);
        assert!(!simulated.tracks[0].devices.is_empty(), "a simulation holds what its devices remember");
        assert!(deployed.tracks[0].devices.is_empty(), "a server learns nothing of it");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn simulated_drop_outs_keep_the_bits() {
    let _limit = watchdog::start();
    let with = "cohort = 12\n    availability = { drop_out = 0.2 }";
    let (simulated, deployed) = both(&PRIVATE.replace("cohort = 8", with)).await;
    assert_eq!(simulated.states, deployed.states);
    let dropped = |diary: &Records| diary.records.iter().map(|record| record.dropped).sum::<u64>();
    assert_eq!(dropped(&simulated), dropped(&deployed));
    assert!(dropped(&simulated) > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cohort_in_which_a_device_counts_twice_is_not_asked() {
    let _limit = watchdog::start();
    let test =
        TestFederation::new(&PRIVATE.replace("cohort = 8", "cohort = 60\n    with_replacement = true"));
    let mut host = test.host().await;
    let _swarm = test.swarm(host.address(), &options());
    let mut exchange = host.exchange(test.rules(), never());
    let trained = tokio::task::spawn_blocking(move || test.train(&mut exchange, &mut Records::default()));
    let refused = format!("{:?}", trained.await.unwrap().unwrap_err());
    assert!(refused.contains("DrawnTwice"), "{refused}");
    host.shut_down().await;
}
