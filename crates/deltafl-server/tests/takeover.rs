//! Servers that die: another goes on from the last committed round.
//!
//! The servers that are killed are this test program itself, started again to play one
//! (`play_a_server`).
#![allow(clippy::unwrap_used)]

mod support;
#[path = "field/watchdog.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared by several tests")]
mod watchdog;

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bytes::Bytes;

use deltafl_server::store::{Store, StoreError, StoreSettings};
use deltafl_wire::identity::FederationName;
use support::{commit, federation, labels, lines, settings, state};

/// Within this another server has to lead.
const TAKEOVER: Duration = Duration::from_secs(10);

/// Another process that leads the federation and commits round after round, up to `rounds`; then it
/// is in mid-round for ever, params written but no round committed.
fn server(
    settings: &StoreSettings,
    federation: &FederationName,
    rounds: u64,
) -> (Child, impl Iterator<Item = String>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "play_a_server", "--ignored", "--nocapture", "--test-threads=1"])
        .env("PLAY_DATABASE", &settings.database)
        .env("PLAY_BLOBS", &settings.blobs)
        .env("PLAY_FEDERATION", federation.as_str())
        .env("PLAY_ROUNDS", rounds.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    (child, lines.filter(|line| line.starts_with("committed")))
}

#[test]
#[ignore = "the other tests start it as a process of its own"]
fn play_a_server() {
    let _limit = watchdog::start();
    let told = |name: &str| std::env::var(name).unwrap();
    let settings = StoreSettings::new(told("PLAY_DATABASE"), told("PLAY_BLOBS"));
    let federation: FederationName = told("PLAY_FEDERATION").parse().unwrap();
    let rounds: u64 = told("PLAY_ROUNDS").parse().unwrap();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let store = Store::open(&settings).await.unwrap();
        let lease = store.lead(&federation, "child").await.unwrap();
        let done = store.state(&federation, 1).await.unwrap().map_or(0, |state| state.round);
        for round in done..rounds {
            let (next, lines) = (state(round + 1), lines(round));
            store.commit(&lease, &commit(&next, &labels(), &lines, round % 5 == 0)).await.unwrap();
            println!("\ncommitted {}", round + 1);
        }
        store.put_blob(&Bytes::from_static(b"half a round")).await.unwrap();
        std::future::pending::<()>().await;
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn another_server_goes_on_when_the_leader_is_killed_in_mid_round() {
    let _limit = watchdog::start();
    let folder = tempfile::tempdir().unwrap();
    for settings in settings(folder.path()) {
        let store = Store::open(&settings).await.unwrap();
        let federation = federation(&store).await;
        let (mut child, mut told) = server(&settings, &federation, 3);
        assert_eq!(told.by_ref().nth(2).unwrap(), "committed 3");
        assert!(store.try_lead(&federation, "b").await.unwrap().is_none(), "the first one leads");
        child.kill().unwrap();
        child.wait().unwrap();

        let lease = tokio::time::timeout(TAKEOVER, store.lead(&federation, "b")).await.unwrap().unwrap();
        assert_eq!(store.state(&federation, 1).await.unwrap().unwrap(), state(3));
        let (next, lines) = (state(4), lines(3));
        store.commit(&lease, &commit(&next, &labels(), &lines, false)).await.unwrap();
        assert_eq!(store.rounds(&federation, 1, 0, 10).await.unwrap().len(), 4);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_at_any_moment_lose_no_committed_round() {
    let _limit = watchdog::start();
    let folder = tempfile::tempdir().unwrap();
    let settings = StoreSettings::in_folder(folder.path());
    let store = Store::open(&settings).await.unwrap();
    let federation = federation(&store).await;
    let mut reached = 0;
    for kill in 0..6 {
        let (mut child, mut told) = server(&settings, &federation, u64::MAX);
        // It dies as soon as it has told of a commit, while it works on the next.
        let last = told.by_ref().nth(kill).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let told: u64 = last.strip_prefix("committed ").unwrap().parse().unwrap();
        let found = store.state(&federation, 1).await.unwrap().unwrap();
        assert!(found.round >= told && told > reached, "{} {told} {reached}", found.round);
        assert_eq!(found, state(found.round));
        let rounds = store.rounds(&federation, 1, 0, u32::MAX >> 1).await.unwrap();
        assert!(rounds.iter().map(|r| r.round).eq(0..found.round));
        reached = found.round;
    }
}

#[test]
fn a_leader_that_was_frozen_commits_nothing() {
    let _limit = watchdog::start();
    let folder = tempfile::tempdir().unwrap();
    let Some(mut settings) = support::postgres(folder.path()) else {
        eprintln!("skipped: DELTAFL_POSTGRES names no database (scripts/test starts one)");
        return;
    };
    settings.lease = Duration::from_millis(300);
    // The first server's tasks run only while it is asked something: it renews nothing in between.
    let frozen = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let store = frozen.block_on(Store::open(&settings)).unwrap();
    let federation = frozen.block_on(federation(&store));
    let lease = frozen.block_on(store.lead(&federation, "a")).unwrap();
    let (one, none) = (state(1), lines(0));
    frozen.block_on(store.commit(&lease, &commit(&one, &labels(), &none, false))).unwrap();

    let awake = tokio::runtime::Runtime::new().unwrap();
    let other = awake.block_on(Store::open(&settings)).unwrap();
    let taking = async { tokio::time::timeout(TAKEOVER, other.lead(&federation, "b")).await };
    let taken = awake.block_on(taking).unwrap().unwrap();
    assert!(taken.fence() > lease.fence());

    let two = state(2);
    let refused = frozen.block_on(store.commit(&lease, &commit(&two, &labels(), &lines(1), false)));
    assert!(matches!(refused, Err(StoreError::Deposed { .. })), "{refused:?}");
    frozen.block_on(lease.lost());
    assert!(!lease.is_held());
    awake.block_on(other.commit(&taken, &commit(&two, &labels(), &lines(1), false))).unwrap();
    assert_eq!(awake.block_on(other.state(&federation, 1)).unwrap().unwrap(), two);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_leaves_hands_over_at_once() {
    let _limit = watchdog::start();
    let folder = tempfile::tempdir().unwrap();
    for settings in settings(folder.path()) {
        let [a, b] = [Store::open(&settings).await.unwrap(), Store::open(&settings).await.unwrap()];
        let federation = federation(&a).await;
        let lease = a.try_lead(&federation, "a").await.unwrap().unwrap();
        assert!(b.try_lead(&federation, "b").await.unwrap().is_none());
        lease.release().await.unwrap();
        assert!(b.try_lead(&federation, "b").await.unwrap().is_some());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_outlives_a_restart_of_the_database() {
    let _limit = watchdog::start();
    let folder = tempfile::tempdir().unwrap();
    let (Some(settings), Ok(restart)) =
        (support::postgres(folder.path()), std::env::var("DELTAFL_POSTGRES_RESTART"))
    else {
        eprintln!("skipped: DELTAFL_POSTGRES_RESTART says no command that restarts the database");
        return;
    };
    let store = Store::open(&settings).await.unwrap();
    let federation = federation(&store).await;
    let lease = store.lead(&federation, "a").await.unwrap();
    let restarting = tokio::task::spawn_blocking(move || Command::new("sh").args(["-c", &restart]).status());
    for round in 1..=30 {
        let (next, lines) = (state(round), lines(round - 1));
        store.commit(&lease, &commit(&next, &labels(), &lines, false)).await.unwrap();
    }
    assert!(restarting.await.unwrap().unwrap().success());
    let (next, lines) = (state(31), lines(30));
    store.commit(&lease, &commit(&next, &labels(), &lines, false)).await.unwrap();
    assert_eq!(store.state(&federation, 1).await.unwrap().unwrap(), state(31));
}
