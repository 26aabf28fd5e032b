//! What the server remembers, in SQLite and in Postgres.
#![allow(clippy::unwrap_used)]

mod support;
#[path = "field/watchdog.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared by several tests")]
mod watchdog;

use std::time::Duration;

use deltafl::exchange::{CohortSum, Traffic};
use deltafl_data::experiment::Experiment;
use deltafl_data::run_folder::{RunFolder, checkpoint_bytes, read_rounds};
use sha2::{Digest as _, Sha256};

use deltafl_server::authority::Authority;
use deltafl_server::committer::RunStore;
use deltafl_server::live::{About, Live};
use deltafl_server::store::{
    BlobHash, Commit, NewDevice, PublishedLosses, RoundLosses, SlotKey, Store, StoreError, StoreSettings,
    StoredQuestion,
};
use deltafl_wire::identity::{Fingerprint, Token};
use deltafl_wire::params_file::read_params;
use deltafl_wire::roster::SignedRoster;
use support::{commit, federation, held_out, labels, lines, losses, phases, settings, state};

const EXPERIMENT: &str = "name = \"x\"\nrounds = 9\ncohort = 3\n\
    [data]\nsource = { kind = \"glyphs\", devices = 3 }\n[model]\nkind = \"linear\"\n\
    [local]\nsteps = 1\nbatch = 10\nlearning_rate = 0.1\n[[algorithm]]\nkind = \"fedavg\"\n";

fn new_device(name: &str, seed: u8) -> NewDevice {
    let mut bytes = [seed; 32];
    getrandom::fill(&mut bytes[1..]).unwrap();
    NewDevice {
        name: name.parse().unwrap(),
        number: None,
        signing_key: bytes,
        fingerprint: Fingerprint(bytes),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_committed_state_comes_back_to_the_bit() {
    let _limit = watchdog::start();
    let folder = tempfile::tempdir().unwrap();
    for settings in settings(folder.path()) {
        let store = Store::open(&settings).await.unwrap();
        let federation = federation(&store).await;
        assert_eq!(store.state(&federation, 1).await.unwrap(), None);
        let lease = store.lead(&federation, "a").await.unwrap();
        for round in 1..=4 {
            let (state, lines) = (state(round), lines(round - 1));
            store.commit(&lease, &commit(&state, &labels(), &lines, round % 2 == 0)).await.unwrap();
        }
        let again = Store::open(&settings).await.unwrap();
        assert_eq!(again.state(&federation, 1).await.unwrap().unwrap(), state(4));
        assert_eq!(again.state(&federation, 2).await.unwrap(), None, "another seed");
        let sha256: String =
            Sha256::digest(checkpoint_bytes(&state(4)).unwrap()).iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(again.committed(&federation, 1).await.unwrap(), Some((4, sha256)));
        let rounds = again.rounds(&federation, 1, 1, 2).await.unwrap();
        assert_eq!(rounds.iter().map(|r| r.round).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(rounds[0].lines, lines(1));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_is_newer_than_a_restored_store_repeats_no_round() {
    let _limit = watchdog::start();
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&StoreSettings::in_folder(folder.path())).await.unwrap();
    let federation = federation(&store).await;
    let lease = store.lead(&federation, "a").await.unwrap();
    let experiment = Experiment::parse(EXPERIMENT).unwrap();
    let mut run = RunFolder::create(&folder.path().join("run"), &experiment).unwrap();
    let add = |run: &mut RunFolder, round: u64| {
        let records: Vec<_> = lines(round).into_iter().map(|line| line.record).collect();
        run.append(&records, 0.5).unwrap();
        run.checkpoint(&state(round + 1)).unwrap();
    };
    (0..5).for_each(|round| add(&mut run, round));
    for round in 0..3 {
        let (next, lines) = (state(round + 1), lines(round));
        store.commit(&lease, &commit(&next, &labels(), &lines, false)).await.unwrap();
    }
    let live = Live::new(About {
        federation: federation.to_string(),
        experiment: experiment.name().to_owned(),
        model: "linear".to_owned(),
        open: false,
        rounds: 9,
        cohort: 40,
        tracks: labels(),
    });
    let rounds = RunStore::new(store, federation, live, &experiment, None);
    let resumed = rounds.catch_up(&mut run, 1, Some(state(5))).await.unwrap();
    assert_eq!(resumed, Some(state(3)));
    add(&mut run, 3);
    let written = read_rounds(run.path()).unwrap().into_iter().map(|line| line.record.round);
    assert!(written.eq((0..4).flat_map(|round| [round; 3])));
}

#[tokio::test(flavor = "multi_thread")]
async fn published_versions_stay_and_other_params_are_forgotten() {
    let _limit = watchdog::start();
    let folder = tempfile::tempdir().unwrap();
    for settings in settings(folder.path()) {
        let store = Store::open(&settings).await.unwrap();
        let federation = federation(&store).await;
        let lease = store.lead(&federation, "a").await.unwrap();
        let mut first = None;
        for round in 1..=6 {
            let (state, lines) = (state(round), lines(round - 1));
            store.commit(&lease, &commit(&state, &labels(), &lines, round == 2 || round == 6)).await.unwrap();
            if round == 1 {
                let params = state.tracks[0].params.clone();
                let blobs = walk(folder.path());
                first = blobs.into_iter().find(|bytes| read_params(bytes).is_ok_and(|(_, p)| p == params));
            }
        }
        let models = store.models(&federation).await.unwrap();
        let versions: Vec<(u64, f64)> = models.iter().map(|m| (m.round, m.label.theta.get())).collect();
        assert_eq!(versions, [(6, 1.0), (6, 0.5), (6, 0.1), (2, 1.0), (2, 0.5), (2, 0.1)]);
        let bytes = store.blob(&models[4].blob).await.unwrap();
        assert_eq!(read_params(&bytes).unwrap().1, state(2).tracks[1].params);
        assert_eq!(bytes.len() as u64, models[4].bytes);
        let first = BlobHash::for_bytes(&first.unwrap());
        assert!(store.blob(&first).await.is_err(), "the params of round 1 are gone");
    }
}

/// The contents of all blobs.
fn walk(folder: &std::path::Path) -> Vec<Vec<u8>> {
    let entries = std::fs::read_dir(folder.join("blobs")).unwrap().flatten();
    let files = entries.flat_map(|entry| std::fs::read_dir(entry.path()).unwrap().flatten());
    files.map(|file| std::fs::read(file.path()).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn phases_come_back_with_their_round_losses_and_evaluations_with_the_nearest_version() {
    let _limit = watchdog::start();
    let folder = tempfile::tempdir().unwrap();
    for settings in settings(folder.path()) {
        let store = Store::open(&settings).await.unwrap();
        let federation = federation(&store).await;
        let lease = store.lead(&federation, "a").await.unwrap();
        let (phases, labels) = (phases(), labels());
        for round in 1..=4 {
            let (state, mut lines) = (state(round), lines(round - 1));
            // The second track was evaluated at versions 0 and 1; of version 1 a later cohort told
            // again.
            if round <= 3 {
                lines[1].record.evaluations.push(held_out((round - 1).min(1), round as usize));
            }
            let known = [RoundLosses { round: round - 1, tracks: losses(round - 1) }];
            // The losses of the third round, at version 2, were not asked for.
            let known = if round == 3 { &[] } else { &known[..] };
            let commit = Commit {
                timeline: &phases,
                losses: known,
                ..commit(&state, &labels, &lines, round % 2 == 0)
            };
            store.commit(&lease, &commit).await.unwrap();
        }
        let rounds = Store::open(&settings).await.unwrap().rounds(&federation, 1, 1, 2).await.unwrap();
        assert_eq!(rounds[0].timeline, phases);
        let expected: Vec<_> = losses(1)
            .iter()
            .map(|known| known.as_ref().and_then(PublishedLosses::from_distribution))
            .collect();
        assert_eq!(rounds[0].losses, expected);
        assert_eq!(rounds[1].losses, [None, None, None]);

        let models = store.models(&federation).await.unwrap();
        let known = |track: usize, version| {
            let row = models.iter().find(|m| m.label == labels[track] && m.round == version).unwrap();
            row.losses.as_ref().map(|known| (known.version, known.distribution.clone()))
        };
        assert_eq!(known(0, 4), None, "FedAvg was never asked");
        assert_eq!(known(1, 4), Some((3, losses(3)[1].clone().unwrap())));
        assert_eq!(known(2, 2), Some((1, losses(1)[2].clone().unwrap())), "nothing is known at version 2");
        let told: Vec<_> = models.iter().map(|row| row.held_out.clone()).collect();
        let first = Some(held_out(1, 2));
        assert_eq!(
            told,
            [None, first.clone(), None, None, first, None],
            "versions 4 and 2, three tracks each"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_of_the_first_version_is_brought_up_to_date_and_loses_nothing() {
    let _limit = watchdog::start();
    let folder = tempfile::tempdir().unwrap();
    let settings = StoreSettings::in_folder(folder.path());
    let store = Store::open(&settings).await.unwrap();
    let federation = federation(&store).await;
    let lease = store.lead(&federation, "a").await.unwrap();
    store.commit(&lease, &commit(&state(1), &labels(), &lines(0), true)).await.unwrap();
    sqlx::any::install_default_drivers();
    let pool = sqlx::AnyPool::connect(&settings.database).await.unwrap();
    for back in [
        "DROP TABLE losses",
        "DROP TABLE rosters",
        "DROP TABLE draws",
        "DROP TABLE slots",
        "DROP TABLE evaluations",
        "DROP TABLE setups",
        "DELETE FROM schema_version WHERE version > 1",
        "UPDATE rounds SET timeline = NULL",
    ] {
        sqlx::query(back).execute(&pool).await.unwrap();
    }
    let store = Store::open(&settings).await.unwrap();
    assert_eq!(store.state(&federation, 1).await.unwrap().unwrap(), state(1));
    assert_eq!(store.rounds(&federation, 1, 0, 9).await.unwrap()[0].timeline, []);
    assert_eq!(store.models(&federation).await.unwrap().len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_commit_twice_is_one_and_another_outcome_is_refused() {
    let _limit = watchdog::start();
    let folder = tempfile::tempdir().unwrap();
    for settings in settings(folder.path()) {
        let store = Store::open(&settings).await.unwrap();
        let federation = federation(&store).await;
        let lease = store.lead(&federation, "a").await.unwrap();
        let (one, lines) = (state(1), lines(0));
        for _ in 0..2 {
            store.commit(&lease, &commit(&one, &labels(), &lines, false)).await.unwrap();
        }
        let mut other = state(1);
        other.tracks[0].memory.set_number("eta", 9.0);
        let refused = store.commit(&lease, &commit(&other, &labels(), &lines, false)).await;
        assert!(matches!(refused, Err(StoreError::Conflict { round: 1, .. })), "{refused:?}");
        assert_eq!(store.state(&federation, 1).await.unwrap().unwrap(), one);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_roster_has_no_gaps_and_no_doubles() {
    let _limit = watchdog::start();
    let folder = tempfile::tempdir().unwrap();
    for settings in settings(folder.path()) {
        let store = Store::open(&settings).await.unwrap();
        let federation = federation(&store).await;
        let first = [new_device("a", 1), new_device("b", 2)];
        assert_eq!(store.enrol(&federation, &first).await.unwrap(), 0);
        // All or none: the second name is taken.
        let refused = store.enrol(&federation, &[new_device("c", 3), new_device("a", 4)]).await;
        assert!(matches!(refused, Err(StoreError::DeviceExists { .. })), "{refused:?}");
        let mut wrong = new_device("c", 5);
        wrong.number = Some(7);
        let refused = store.enrol(&federation, &[wrong]).await;
        assert!(matches!(refused, Err(StoreError::Number { expected: 2, got: 7, .. })), "{refused:?}");

        // Devices that come at the same moment all get a number of their own.
        let tasks: Vec<_> = (0..8)
            .map(|i| {
                let (store, federation) = (store.clone(), federation.clone());
                tokio::spawn(
                    async move { store.enrol(&federation, &[new_device(&format!("d{i}"), i)]).await },
                )
            })
            .collect();
        for task in tasks {
            task.await.unwrap().unwrap();
        }
        let devices = store.devices(&federation).await.unwrap();
        assert_eq!(devices.iter().map(|d| d.number).collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
        assert_eq!(devices[1].signing_key, first[1].signing_key);

        let version = store.roster_version(&federation).await.unwrap();
        store.revoke(&federation, &"b".parse().unwrap()).await.unwrap();
        assert!(store.roster_version(&federation).await.unwrap() > version);
        assert_eq!(
            store.revoked(&federation).await.unwrap().into_iter().collect::<Vec<_>>(),
            [first[1].fingerprint]
        );
        assert_eq!(store.device_count(&federation).await.unwrap(), 9);
        let refused = store.revoke(&federation, &"nobody".parse().unwrap()).await;
        assert!(matches!(refused, Err(StoreError::NoDevice { .. })), "{refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_roster_that_was_signed_elsewhere_is_kept_and_no_older_one_replaces_it() {
    let _limit = watchdog::start();
    let folder = tempfile::tempdir().unwrap();
    for settings in settings(folder.path()) {
        let store = Store::open(&settings).await.unwrap();
        let federation = federation(&store).await;
        assert_eq!(store.kept_roster(&federation).await.unwrap(), None);
        let roster = |byte: u8| SignedRoster { bytes: vec![byte; 99].into(), signature: [byte; 64] };
        for (version, byte) in [(3, 1), (5, 2), (4, 3)] {
            store.keep_roster(&federation, version, &roster(byte)).await.unwrap();
        }
        assert_eq!(store.kept_roster_version(&federation).await.unwrap(), Some(5));
        assert_eq!(store.kept_roster(&federation).await.unwrap(), Some(roster(2)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_lets_in_as_many_devices_as_it_says_and_no_longer_than_it_says() {
    let _limit = watchdog::start();
    let folder = tempfile::tempdir().unwrap();
    for settings in settings(folder.path()) {
        let store = Store::open(&settings).await.unwrap();
        let ours = federation(&store).await;
        let other = federation(&store).await;
        let authority = Authority::generate(ours.clone(), 1).unwrap();
        let token = || Token::generate(authority.fingerprint(), authority.public_key()).unwrap().hash();
        let (good, stale) = (token(), token());
        store.add_token(&ours, &good, 2, Duration::from_secs(600)).await.unwrap();
        store.add_token(&ours, &stale, 2, Duration::ZERO).await.unwrap();
        assert_eq!(store.redeem(&ours, &good, &new_device("a", 1)).await.unwrap(), 0);
        // A refused device uses nothing up.
        assert!(store.redeem(&ours, &good, &new_device("a", 2)).await.is_err());
        assert_eq!(store.redeem(&ours, &good, &new_device("b", 3)).await.unwrap(), 1);
        for (federation, token) in [(&ours, &good), (&ours, &stale), (&ours, &token()), (&other, &good)] {
            let refused = store.redeem(federation, token, &new_device("c", 4)).await;
            assert!(matches!(refused, Err(StoreError::TokenRefused)), "{refused:?}");
        }
        assert_eq!(store.devices(&ours).await.unwrap().len(), 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_waits_while_the_database_is_locked() {
    let _limit = watchdog::start();
    let folder = tempfile::tempdir().unwrap();
    let settings = StoreSettings::in_folder(folder.path());
    let store = Store::open(&settings).await.unwrap();
    let federation = federation(&store).await;
    let lease = store.lead(&federation, "a").await.unwrap();

    sqlx::any::install_default_drivers();
    let locker = sqlx::AnyPool::connect(&settings.database).await.unwrap();
    let lock = locker.begin_with("BEGIN EXCLUSIVE").await.unwrap();
    let (state, lines) = (state(1), lines(0));
    let labels = labels();
    let committing = commit(&state, &labels, &lines, false);
    let mut committing = Box::pin(store.commit(&lease, &committing));
    // Longer than SQLite itself would wait.
    let waited = tokio::time::timeout(Duration::from_millis(2500), &mut committing).await;
    assert!(waited.is_err(), "the database is locked: {waited:?}");
    lock.rollback().await.unwrap();
    committing.await.unwrap();
    assert_eq!(store.state(&federation, 1).await.unwrap().unwrap(), state);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_or_missing_place_for_blobs_loses_no_round() {
    let _limit = watchdog::start();
    let folder = tempfile::tempdir().unwrap();
    let mut settings = StoreSettings::in_folder(folder.path());
    settings.patience = Duration::from_millis(100);
    let store = Store::open(&settings).await.unwrap();
    let federation = federation(&store).await;
    let lease = store.lead(&federation, "a").await.unwrap();
    let (one, two) = (state(1), state(2));
    store.commit(&lease, &commit(&one, &labels(), &lines(0), false)).await.unwrap();
    // A file where the folder was: nothing can be written below it.
    let blobs = folder.path().join("blobs");
    std::fs::rename(&blobs, folder.path().join("kept")).unwrap();
    std::fs::write(&blobs, "").unwrap();
    assert!(store.commit(&lease, &commit(&two, &labels(), &lines(1), false)).await.is_err());
    std::fs::remove_file(&blobs).unwrap();
    std::fs::rename(folder.path().join("kept"), &blobs).unwrap();
    assert_eq!(store.state(&federation, 1).await.unwrap().unwrap(), one);
    store.commit(&lease, &commit(&two, &labels(), &lines(1), false)).await.unwrap();
    assert_eq!(store.state(&federation, 1).await.unwrap().unwrap(), two);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_of_a_newer_version_and_places_that_are_none_are_refused() {
    let _limit = watchdog::start();
    let folder = tempfile::tempdir().unwrap();
    let settings = StoreSettings::in_folder(folder.path());
    Store::open(&settings).await.unwrap();
    Store::open(&settings).await.unwrap();
    let pool = sqlx::AnyPool::connect(&settings.database).await.unwrap();
    sqlx::query("INSERT INTO schema_version (version) VALUES (99)").execute(&pool).await.unwrap();
    let refused = Store::open(&settings).await;
    assert!(matches!(refused, Err(StoreError::Newer { found: 99, .. })), "{refused:?}");
    for database in ["", "sqlite:", "sqlite::memory:", "mysql://x", "/tmp/x"] {
        let refused = Store::open(&StoreSettings::new(database.to_owned(), settings.blobs.clone())).await;
        assert!(matches!(refused, Err(StoreError::Place { .. })), "{database}: {refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_round_under_way_is_kept_until_it_is_committed_and_by_the_leader_alone() {
    let _limit = watchdog::start();
    let folder = tempfile::tempdir().unwrap();
    for settings in settings(folder.path()) {
        let store = Store::open(&settings).await.unwrap();
        let federation = federation(&store).await;
        let lease = store.lead(&federation, "a").await.unwrap();
        let fence = lease.to_fence();
        let key = |number| SlotKey { seed: 1, round: 0, number };
        let slot = |question: &[u8]| StoredQuestion {
            question: blake3::hash(question),
            cohort: [3, 1, 4].into(),
            asked: [4, 1].into(),
            sums: None,
        };
        let traffic = Traffic { sums: 1, messages: 12, bytes_up: 300, bytes_down: 400 };
        let sum = CohortSum { values: vec![7, u64::MAX], answered: 2, traffic, remembered: Vec::new() };
        store.keep_asked(&fence, key(0), &slot(b"losses")).await.unwrap();
        store.keep_sums(&fence, key(0), std::slice::from_ref(&sum)).await.unwrap();
        store.keep_asked(&fence, key(1), &slot(b"updates")).await.unwrap();
        store.keep_asked(&fence, SlotKey { round: 1, ..key(0) }, &slot(b"next")).await.unwrap();

        let again = Store::open(&settings).await.unwrap();
        let kept = again.slots(&federation, 1, 0).await.unwrap();
        assert_eq!(kept, [StoredQuestion { sums: Some(vec![sum]), ..slot(b"losses") }, slot(b"updates")]);
        assert!(again.slots(&federation, 2, 0).await.unwrap().is_empty(), "another seed");

        let (one, lines) = (state(1), lines(0));
        store.commit(&lease, &commit(&one, &labels(), &lines, false)).await.unwrap();
        assert!(store.slots(&federation, 1, 0).await.unwrap().is_empty());
        assert_eq!(store.slots(&federation, 1, 1).await.unwrap(), [slot(b"next")], "it is not committed");

        lease.release().await.unwrap();
        let _other = store.lead(&federation, "b").await.unwrap();
        let refused = store.keep_asked(&fence, key(2), &slot(b"late")).await;
        assert!(matches!(refused, Err(StoreError::Deposed { .. })), "{refused:?}");
        let refused = store.keep_sums(&fence, SlotKey { round: 1, ..key(0) }, &[]).await;
        assert!(matches!(refused, Err(StoreError::Deposed { .. })), "{refused:?}");
    }
}
