//! A server that asks about models that differ in the last binary place of one parameter, so that
//! nothing which recognises a model by its bits notices that it is asked the same thing twice.
//!
//! Each attack runs against the real server engine and real devices. With the defences of a device
//! switched off it reads single devices. With the default consent of a device it reads nothing.

#![allow(clippy::unwrap_used, missing_docs)]

#[path = "field/fleet.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared by several tests")]
mod fleet;
#[path = "field/watchdog.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared by several tests")]
mod watchdog;

#[path = "nearly_equal_models/attack.rs"]
mod attack;
#[path = "nearly_equal_models/divided.rs"]
mod divided;

use attack::{Asked, Attack, DEVICES, Owners, update};
use deltafl::evaluation::Measure;
use deltafl::exchange::CohortSum;
use deltafl::params::Params;
use deltafl::question::{Ask, Query};
use deltafl::selection::Weighting;
use deltafl::superquantile::private::{Bins, QuantileQuery};
use deltafl::terms::{Terms, TrackSchedule};
use deltafl_device::Consent;

/// The same model, but for the last places of one parameter.
fn moved(w: &Params, units: u32) -> Params {
    let mut entries = w.as_slice().to_vec();
    entries[1] = f32::from_bits(entries[1].to_bits() + units);
    entries.into()
}

fn difference(one: &[u64], other: &[u64]) -> Vec<u64> {
    one.iter().zip(other).map(|(one, other)| one.wrapping_sub(*other)).collect()
}

/// Thresholds that lie between two losses each, from the lowest.
fn thresholds(secrets: &[(f64, Vec<u64>)], count: usize) -> Vec<f64> {
    let mut losses: Vec<f64> = secrets.iter().map(|(loss, _)| *loss).collect();
    losses.sort_by(f64::total_cmp);
    losses.windows(2).map(|pair| pair[0].midpoint(pair[1])).take(count).collect()
}

/// A query for each of these thresholds, at a model that differs from the next one in the last
/// place of one parameter.
fn one_query_per_threshold(w: &Params, etas: &[f64], track: impl Fn(usize) -> usize) -> Vec<Query> {
    let query =
        |(i, &eta): (usize, &f64)| update(moved(w, i as u32), Weighting::tail(eta)).of_track(track(i));
    etas.iter().enumerate().map(query).collect()
}

/// The updates of single devices that the differences of consecutive sums are.
fn devices_read(sums: &[CohortSum], secrets: &[(f64, Vec<u64>)]) -> usize {
    let differences = sums.windows(2).map(|pair| difference(&pair[0].values, &pair[1].values));
    differences.filter(|read| secrets.iter().any(|(_, secret)| is_close(read, secret))).count()
}

/// Whether two answers are equal up to what a unit in the last place of one parameter changes in a
/// cohort of updates: a few units of 2⁻²⁴.
fn is_close(one: &[u64], other: &[u64]) -> bool {
    let apart = |(&one, &other): (&u64, &u64)| (one.wrapping_sub(other) as i64).unsigned_abs();
    one.iter().zip(other).map(apart).all(|apart| apart <= 64)
}

const THRESHOLDS: usize = 36;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_thresholds_in_one_question_take_an_undefended_cohort_apart() {
    let _limit = watchdog::start();
    let mut attack = Attack::start(Owners::Undefended).await;
    let w = attack.model();
    let secrets = attack.secrets(&w);
    let etas = thresholds(&secrets, THRESHOLDS);
    let terms = Terms { schedule: TrackSchedule::Together, tracks: THRESHOLDS as u32, ..Terms::PRIVATE };
    let asked = Asked { terms, ..Asked::new(0, one_query_per_threshold(&w, &etas, |i| i)) };
    let sums = attack.ask(asked).await.unwrap();
    let read = devices_read(&sums, &secrets);
    assert!(read >= 30, "{read} of {DEVICES} updates were read");
    attack.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_thresholds_in_one_question_read_nothing_of_devices_with_default_consent() {
    let _limit = watchdog::start();
    let mut attack = Attack::start(Owners::Default).await;
    let w = attack.model();
    let secrets = attack.secrets(&w);
    let etas = thresholds(&secrets, THRESHOLDS);
    let of = |schedule, tracks| Terms { schedule, tracks, ..Terms::PRIVATE };
    let many = THRESHOLDS as u32;
    // Whatever the server calls them: tracks of one question, one track over and over, tracks that
    // divide the cohort.
    let same = |_| 0;
    let each = |i: usize| i;
    let thirds = |i: usize| i % 3;
    let lies: [(Terms, &dyn Fn(usize) -> usize); 6] = [
        (of(TrackSchedule::Together, many), &each),
        (of(TrackSchedule::Together, 1), &same),
        (of(TrackSchedule::InTurn, many), &each),
        (of(TrackSchedule::InTurn, 1), &same),
        (of(TrackSchedule::Apart, many), &each),
        (of(TrackSchedule::Apart, 3), &thirds),
    ];
    for (round, (terms, track)) in (0..).zip(lies) {
        let queries = one_query_per_threshold(&w, &etas, track);
        let answered = attack.ask(Asked { terms, ..Asked::new(round, queries) }).await;
        assert!(answered.is_none(), "{terms:?}");
    }
    // Three tracks that divide the cohort are answered, and no device is in two sums.
    let everyone = |track: usize| update(moved(&w, track as u32), Weighting::everyone()).of_track(track);
    let asked = Asked::new(10, (0..3).map(everyone).collect());
    let sums = attack.ask(Asked { terms: of(TrackSchedule::Apart, 3), ..asked }).await.unwrap();
    let devices: u64 = sums.iter().map(|sum| sum.values[sum.values.len() - 2]).sum();
    assert_eq!(devices, u64::from(DEVICES));
    assert_eq!(devices_read(&sums, &secrets), 0);
    attack.stop().await;
}

/// Asks the cohort for updates, and again without its last device at a model that differs in the
/// last place.
async fn ask_again_without_one(owners: Owners) -> Option<bool> {
    let mut attack = Attack::start(owners).await;
    let w = attack.model();
    let whole = Asked::new(0, vec![update(w.clone(), Weighting::everyone())]);
    let first = attack.ask(whole).await.unwrap();
    assert_eq!(first[0].answered, u64::from(DEVICES));
    attack.let_the_keys_go().await;
    let again = Asked::new(0, vec![update(moved(&w, 1), Weighting::everyone())]).without(DEVICES - 1);
    let second = attack.ask(again).await;
    let (_, victim) = attack.secrets(&w).pop().unwrap();
    let read = second.map(|second| is_close(&difference(&first[0].values, &second[0].values), &victim));
    attack.stop().await;
    read
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_round_asked_again_at_a_nearly_equal_model_without_one_device_gets_no_answer() {
    let _limit = watchdog::start();
    assert_eq!(ask_again_without_one(Owners::Undefended).await, Some(true), "the difference is one device");
    assert_eq!(ask_again_without_one(Owners::Default).await, None);
}

/// The same in another session, with another seed and in a run of this number.
async fn ask_again_under_another_name(owners: Owners, run: u64) -> Option<u64> {
    let mut attack = Attack::start(owners).await;
    let w = attack.model();
    let whole = Asked::new(0, vec![update(w.clone(), Weighting::everyone())]);
    attack.ask(whole).await.unwrap();
    attack.begin_another_session().await;
    let again = Asked::new(0, vec![update(moved(&w, 1), Weighting::everyone())]).without(DEVICES - 1);
    let second = attack.ask_in_run(run, Asked { seed: 2, ..again }).await;
    attack.stop().await;
    second.map(|second| second[0].answered)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_session_seed_or_run_gets_no_second_answer_to_a_round() {
    let _limit = watchdog::start();
    let others = Some(u64::from(DEVICES) - 1);
    assert_eq!(ask_again_under_another_name(Owners::Undefended, 1).await, others);
    assert_eq!(ask_again_under_another_name(Owners::Default, 0).await, None, "the seed is no new run");
    assert_eq!(ask_again_under_another_name(Owners::Default, 1).await, None, "the authority signed one run");
}

/// Asks the cohort without its last device about the examples that it holds out, and then another
/// cohort in the same round. Returns the number of devices that add to each sum.
async fn evaluate_twice(owners: Owners, units: u32, without: &[u32]) -> (u64, Option<u64>) {
    let mut attack = Attack::start(owners).await;
    let w = attack.model();
    let measures = Measure::of_task(attack.test.model.task());
    let evaluation = |w: Params| vec![Query::new(w, Ask::Evaluation(measures.clone()))];
    // Each device adds one to a place of each measure.
    let devices = |sums: Vec<CohortSum>| sums[0].values[..measures[0].places()].iter().sum();
    let first = attack.ask(Asked::new(0, evaluation(w.clone())).without(DEVICES - 1)).await.unwrap();
    attack.let_the_keys_go().await;
    let again = Asked { without: without.to_vec(), ..Asked::new(0, evaluation(moved(&w, units))) };
    let second = attack.ask(again).await;
    attack.stop().await;
    (devices(first), second.map(devices))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn evaluations_at_nearly_equal_models_do_not_tell_the_bins_of_one_device() {
    let _limit = watchdog::start();
    let others = u64::from(DEVICES) - 1;
    let without = [0, DEVICES - 1];
    assert_eq!(evaluate_twice(Owners::Undefended, 1, &without).await, (others, Some(others - 1)));
    assert_eq!(evaluate_twice(Owners::Default, 1, &without).await, (others, None));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_is_not_evaluated_alone_among_devices_that_have_answered() {
    let _limit = watchdog::start();
    let others = u64::from(DEVICES) - 1;
    for units in [0, 1] {
        assert_eq!(evaluate_twice(Owners::Undefended, units, &[]).await, (others, Some(others + 1)));
        // If devices that have answered added zeros, the sum would be the answer of one device.
        assert_eq!(evaluate_twice(Owners::Default, units, &[]).await, (others, None));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_search_for_a_quantile_stays_at_one_model_and_ends_with_the_update() {
    let _limit = watchdog::start();
    let mut attack = Attack::start(Owners::Default).await;
    let w = attack.model();
    let bins = |upper| Ask::Quantile(QuantileQuery::Histogram(Bins::new(0.0, upper, 64).unwrap()));
    let losses = |w: Params, upper| Asked::new(0, vec![Query::new(w, bins(upper))]);
    assert!(attack.ask(losses(w.clone(), 8.0)).await.is_some());
    assert!(attack.ask(losses(moved(&w, 1), 8.0)).await.is_none(), "another w");
    assert!(attack.ask(losses(w.clone(), 0.125)).await.is_some(), "the second level");
    let elsewhere = Asked::new(0, vec![update(moved(&w, 1), Weighting::tail(0.5))]);
    assert!(attack.ask(elsewhere).await.is_none(), "an update at another w");
    assert!(attack.ask(Asked::new(0, vec![update(w.clone(), Weighting::tail(0.5))])).await.is_some());
    assert!(attack.ask(losses(w, 4.0)).await.is_none(), "no more losses after the update");
    attack.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_of_a_device_are_its_own_so_that_two_sums_differ_by_more_than_the_missing_device() {
    let _limit = watchdog::start();
    let mut sums = Vec::new();
    for owners in [Owners::Undefended, Owners::Default] {
        let mut attack = Attack::start(owners).await;
        let w = attack.model();
        let query = || vec![update(w.clone(), Weighting::everyone())];
        let sum = attack.ask(Asked::new(0, query())).await.unwrap().remove(0);
        let expected =
            attack.secrets(&w).into_iter().fold(vec![0u64; sum.values.len()], |mut total, (_, one)| {
                total.iter_mut().zip(one).for_each(|(total, one)| *total = total.wrapping_add(one));
                total
            });
        sums.push(sum.values == expected);
        attack.stop().await;
    }
    assert_eq!(sums, [true, false], "the server computes what reproducible devices add, and no others");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_lets_rounds_pass_between_two_answers_where_its_owner_insists() {
    let _limit = watchdog::start();
    let consent = Consent { rounds_between: 2, ..Consent::default() };
    let mut attack = Attack::start_with(Owners::Default, consent).await;
    let w = attack.model();
    let mut answers = Vec::new();
    for round in [0, 1, 2, 3, 4] {
        let asked = Asked::new(round, vec![update(w.clone(), Weighting::everyone())]);
        answers.push(attack.ask(asked).await.is_some());
    }
    assert_eq!(answers, [true, false, false, true, false]);
    attack.stop().await;
}

/// Starts sessions in which the first key set-up has the same number. Drawn cohorts follow from
/// that number, so the server could repeat a draw that suits it. Returns how many sessions gave a
/// sum.
async fn repeat_one_draw(owners: Owners, sessions: u64) -> u64 {
    let mut attack = Attack::start(owners).await;
    let w = attack.model();
    let mut sums = 0;
    for round in 0..sessions {
        if round > 0 {
            attack.begin_another_session_after(0).await;
        }
        // Each session asks another round of the run, which the ledger allows.
        let asked = Asked::new(round, vec![update(w.clone(), Weighting::everyone())]);
        sums += u64::from(attack.ask(asked).await.is_some());
    }
    attack.stop().await;
    sums
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_draw_is_joined_once_whatever_the_server_calls_the_session() {
    let _limit = watchdog::start();
    assert_eq!(repeat_one_draw(Owners::Undefended, 5).await, 5, "without the defence");
    assert_eq!(repeat_one_draw(Owners::Default, 5).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_gradient_of_one_example_is_not_given() {
    let _limit = watchdog::start();
    let mut attack = Attack::start_exactly(Owners::Default, Consent::default()).await;
    let asked = Asked::new(0, vec![update(attack.model(), Weighting::everyone())]);
    assert!(attack.ask(asked).await.is_none(), "one step on one example");
    attack.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_gives_no_more_answers_than_its_owner_allows() {
    let _limit = watchdog::start();
    for (consent, most) in [
        (Consent { answers: 2, ..Consent::default() }, 2),
        (Consent { answers_per_day: 1, ..Consent::default() }, 1),
    ] {
        let mut attack = Attack::start_with(Owners::Default, consent).await;
        let w = attack.model();
        for round in 0..most {
            let asked = Asked::new(round, vec![update(w.clone(), Weighting::everyone())]);
            assert!(attack.ask(asked).await.is_some(), "{round}");
        }
        // Devices that have spent their budget are not available any more.
        while attack.host.as_ref().unwrap().presence().1 > 0 {
            let asked = Asked::new(most, vec![update(w.clone(), Weighting::everyone())]);
            assert!(attack.ask_those_present(asked).await.is_none());
        }
        attack.stop().await;
    }
}
