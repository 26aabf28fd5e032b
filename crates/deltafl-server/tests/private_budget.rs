//! A deployed run with differential privacy: the devices compute ε themselves, store it on disk,
//! and decline beyond the limits of their owners.

#![allow(clippy::unwrap_used, missing_docs)]

#[path = "field/fleet.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared by several tests")]
mod fleet;
#[path = "field/watchdog.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared by several tests")]
mod watchdog;

use deltafl::privacy::{Delta, Rho};
use deltafl_device::{
    Backoff, Consent, Device, DeviceData, DeviceState, PrivacyLimit, ServerEndpoint, ServerTrust,
};
use deltafl_server::exchange::Rules;
use fleet::{Records, TestFederation, never};
use tempfile::TempDir;

const EXPERIMENT: &str = r#"
    name = "private-budget"
    rounds = 4
    cohort = 8
    data = { source = { kind = "glyphs", devices = 16, seed = 3 } }
    model = { kind = "linear" }
    local = { epochs = 1, batch = 10, learning_rate = 0.1 }
    privacy = { epsilon = 8, clip = 0.3, delta = 1e-5 }
    algorithm = [{ kind = "delta-fl", theta = 0.5, quantile = "tree" }]
"#;

fn delta() -> Delta {
    Delta::try_from(1e-5).unwrap()
}

/// Trains with devices whose owners allow this ε. Returns the records and the cost that each device
/// has on disk.
async fn deployed(experiment: &str, max_epsilon: Option<f64>) -> (Records, Vec<Rho>) {
    let test = TestFederation::new(experiment);
    let mut host = test.host().await;
    let delta = delta();
    let consent =
        Consent { min_cohort: 3, privacy: PrivacyLimit { max_epsilon, delta }, ..Consent::default() };
    let folders: Vec<TempDir> = test.devices().iter().map(|_| tempfile::tempdir().unwrap()).collect();
    let mut running = Vec::new();
    for (&data, folder) in test.devices().iter().zip(&folders) {
        let server = ServerEndpoint { address: host.address().to_string(), trust: ServerTrust::Loopback };
        let backoff = Backoff {
            first: std::time::Duration::from_millis(20),
            longest: std::time::Duration::from_millis(200),
        };
        let device = Device::new(server, test.credentials(data), consent.clone())
            .with_state(DeviceState::open(folder.path()).unwrap())
            .with_backoff(backoff);
        let (trainer, data) = (test.trainer(), DeviceData::new(test.federation.clone(), data));
        running.push(tokio::spawn(async move { device.run(trainer, data).await }));
    }
    // A round is given up after two cohorts whose devices decline.
    let rules = Rules { attempts: 2, ..test.rules() };
    let mut exchange = host.exchange(rules, never());
    let trained = tokio::task::spawn_blocking(move || {
        let mut records = Records::default();
        test.train(&mut exchange, &mut records).unwrap();
        records
    });
    let records = trained.await.unwrap();
    let spent = |folder: &TempDir| -> Rho {
        let spent = DeviceState::read_privacy(folder.path()).unwrap();
        assert!(spent.values().all(|spent| spent.exact == 0), "{spent:?}");
        spent.values().map(|spent| spent.rho).sum()
    };
    let spent = folders.iter().map(spent).collect();
    running.iter().for_each(tokio::task::JoinHandle::abort);
    host.shut_down().await;
    (records, spent)
}

/// Returns the rounds that changed the model.
fn effective(records: &Records) -> usize {
    let starts = records.states.windows(2);
    starts.filter(|pair| pair[0].tracks[0].params != pair[1].tracks[0].params).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn devices_count_their_own_privacy_and_decline_beyond_the_limit() {
    let _limit = watchdog::start();
    let (free, spent) = deployed(EXPERIMENT, None).await;
    assert_eq!(effective(&free), 3, "four rounds: three changes between their ends");
    let server = free.records.last().unwrap().privacy.unwrap().epsilon_server.unwrap();
    for epsilon in spent.iter().map(|rho| rho.epsilon(delta())) {
        // The device counts only the noise that is guaranteed, and the server that of the
        // survivors.
        assert!(epsilon >= server && epsilon < 3.0 * server, "{epsilon} {server}");
    }
    // A limit for two of the four rounds: the devices decline the third before they answer
    // anything.
    let limit = (spent[0] * 0.51).epsilon(delta());
    let (limited, spent) = deployed(EXPERIMENT, Some(limit)).await;
    assert_eq!(effective(&limited), 1, "two rounds: one change between their ends");
    for epsilon in spent.iter().map(|rho| rho.epsilon(delta())) {
        assert!(epsilon > 0.9 * limit && epsilon <= limit, "{epsilon} {limit}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_with_a_limit_declines_sums_without_noise() {
    let _limit = watchdog::start();
    let exact = EXPERIMENT.replace("privacy = { epsilon = 8, clip = 0.3, delta = 1e-5 }\n", "");
    let (records, spent) = deployed(&exact.replace("tree", "histogram"), Some(1000.0)).await;
    assert_eq!(effective(&records), 0);
    assert!(spent.iter().all(|&rho| rho == Rho::ZERO), "{spent:?}");
}
