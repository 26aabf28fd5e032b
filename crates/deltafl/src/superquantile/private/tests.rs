//! Tests of private quantiles.

use proptest::prelude::*;

use super::super::tests::{cohort, devices, level, theta};
use super::*;
use crate::superquantile::quantile;

const KINDS: [PrivateQuantile; 4] =
    [PrivateQuantile::TwoLevel, PrivateQuantile::OneShot, PrivateQuantile::Bisection, PrivateQuantile::Mm];

#[test]
fn a_tree_finds_the_open_quantile_in_one_sum() {
    let cohort: Vec<_> = (0..300).map(|k| (f64::from(k * k % 301) / 40.0, 1.0)).collect();
    let cohort = devices(&cohort);
    for level in [0.05, 0.3, 0.5, 0.9, 1.0] {
        let search = run(PrivateQuantile::Tree, theta(level), LossRange::default(), &cohort);
        let (eta, open) = (search.eta().unwrap(), quantile(theta(level), &cohort).unwrap());
        assert!(eta <= open && open - eta <= search.resolution(), "{level}: {eta} {open}");
        assert_eq!(search.sums(), 1);
    }
}

#[test]
fn the_range_of_a_tree_follows_losses_beyond_its_end() {
    let (mut range, cohort) = (LossRange::default(), devices(&[(1000.0, 1.0), (990.0, 1.0), (980.0, 1.0)]));
    for _ in 0..16 {
        range = run(PrivateQuantile::Tree, theta(0.5), range, &cohort).range();
    }
    let search = run(PrivateQuantile::Tree, theta(0.5), range, &cohort);
    assert!((search.eta().unwrap() - 990.0).abs() < 40.0, "{:?} {range:?}", search.eta());
}

#[test]
fn only_a_tree_accepts_noisy_counts() {
    let mut exact = Search::new(PrivateQuantile::TwoLevel, theta(0.5), None, &LossRange::default());
    assert_eq!(exact.take_noisy(&[0.0; 66]), Err(RefusedSum::Noisy));
    let mut tree = Search::new(PrivateQuantile::Tree, theta(0.5), None, &LossRange::default());
    assert_eq!(tree.take_noisy(&[0.0; 66]), Err(RefusedSum::WrongLength { expected: 511, got: 66 }));
    tree.take_noisy(&[2.0; 511]).unwrap();
    assert!(tree.eta().is_some());
}

fn any_kind() -> impl Strategy<Value = PrivateQuantile> {
    prop::sample::select(KINDS.to_vec())
}

fn sum_of_answers(query: &QuantileQuery, cohort: &[DeviceLoss]) -> Vec<u64> {
    let mut sum = vec![0; query.len()];
    cohort.iter().for_each(|&device| query.answer(device, &mut sum));
    sum
}

fn run(kind: PrivateQuantile, theta: Conformity, range: LossRange, cohort: &[DeviceLoss]) -> Search {
    let mut search = Search::new(kind, theta, None, &range);
    while let Some(query) = search.query() {
        search.take(&sum_of_answers(&query, cohort)).unwrap();
    }
    search
}

#[test]
fn names_are_those_of_the_experiment_file() {
    let names = KINDS.map(|kind| serde_json::to_string(&kind).unwrap());
    assert_eq!(names, [r#""histogram""#, r#""one-shot""#, r#""bisection""#, r#""mm""#]);
}

#[test]
fn queries_survive_the_wire() {
    for kind in KINDS {
        let query = Search::new(kind, theta(0.5), None, &LossRange::default()).query().unwrap();
        let text = serde_json::to_string(&query).unwrap();
        assert_eq!(serde_json::from_str::<QuantileQuery>(&text).unwrap(), query);
    }
}

#[test]
fn a_sum_of_zeros_ends_the_search_without_a_threshold() {
    for kind in KINDS {
        let search = run(kind, theta(0.5), LossRange::default(), &[]);
        assert_eq!((search.eta(), search.sums()), (None, 1));
        assert_eq!(search.range(), LossRange::default());
    }
}

#[test]
fn a_sum_that_answers_nothing_is_refused() {
    let mut search = Search::new(PrivateQuantile::TwoLevel, theta(0.5), None, &LossRange::default());
    assert_eq!(search.take(&[1; 65]), Err(RefusedSum::WrongLength { expected: 66, got: 65 }));
    assert_eq!(search.sums(), 0);
    search.take(&[0; 66]).unwrap();
    assert_eq!(search.take(&[0; 66]), Err(RefusedSum::NothingAsked));
}

#[test]
fn a_quantile_out_of_the_range_costs_one_more_sum() {
    for (loss, range) in [(30.0, LossRange::default()), (-30.0, LossRange::default())] {
        let search = run(PrivateQuantile::TwoLevel, theta(0.5), range, &devices(&[(loss, 1.0)]));
        assert_eq!(search.sums(), 3);
        assert!(search.eta().unwrap() <= loss && loss - search.eta().unwrap() < search.resolution());
    }
}

#[test]
fn no_finite_loss_is_out_of_reach() {
    for kind in KINDS {
        for loss in [0.0, 1e-300, 1e6, -1e6, 1e100, f64::MAX, f64::MIN] {
            let search = run(kind, theta(0.3), LossRange::default(), &devices(&[(loss, 5.0)]));
            assert!(search.eta().is_some_and(|eta| eta <= loss), "{kind:?} {loss}");
            assert!(search.sums() <= 70, "{kind:?} {loss}: {} sums", search.sums());
            let next = run(kind, theta(0.3), search.range(), &devices(&[(loss, 5.0)]));
            assert!(next.eta().is_some_and(|eta| eta <= loss), "{kind:?} {loss}");
        }
    }
}

#[test]
fn a_loss_of_a_million_is_found_from_the_first_range_to_a_twentieth() {
    for kind in KINDS {
        for loss in [1e6, -1e6] {
            let search = run(kind, theta(0.3), LossRange::default(), &devices(&[(loss, 5.0)]));
            assert!(search.resolution() <= 5e4, "{kind:?}: {}", search.resolution());
        }
    }
}

#[test]
fn a_smoothed_tail_keeps_theta_of_the_weight() {
    let cohort: Vec<_> = (0..200).map(|k| (f64::from(k * k) / 20_000.0, 1.0 + f64::from(k % 9))).collect();
    let (cohort, total) = (devices(&cohort), cohort.iter().map(|(_, weight)| weight).sum::<f64>());
    for level in [0.1, 0.5, 0.8] {
        for nu in [0.05, 0.5, 3.0] {
            for kind in [PrivateQuantile::TwoLevel, PrivateQuantile::OneShot] {
                let nu = Smoothing::try_from(nu).unwrap();
                let mut search = Search::new(kind, theta(level), Some(nu), &LossRange::default());
                while let Some(query) = search.query() {
                    search.take(&sum_of_answers(&query, &cohort)).unwrap();
                }
                let eta = search.eta().unwrap();
                let tail: f64 = cohort.iter().map(|d| d.weight() * nu.slope(d.loss() - eta)).sum();
                assert!((tail / total - level).abs() < 0.02, "{kind:?} θ={level} ν={nu:?}: {}", tail / total);
            }
        }
    }
}

#[test]
fn the_largest_promised_cohort_does_not_overflow_the_fixed_point() {
    let cohort: Vec<_> = (0..10_000).map(|k| (f64::from(k) * 100.0 + 1.0, 1e6)).collect();
    let cohort = devices(&cohort);
    for theta in [theta(0.9), theta(0.001), Conformity::FULL] {
        let open = quantile(theta, &cohort).unwrap();
        let search = run(PrivateQuantile::Mm, theta, LossRange::default(), &cohort);
        let eta = search.eta().unwrap();
        assert!(eta <= open && open - eta <= search.resolution(), "{eta} for {open}");
    }
}

#[test]
fn one_device_out_of_bounds_does_not_hide_the_others() {
    let query = QuantileQuery::MeanStep { mu: 0.0, floor: 0.08 };
    let mut sum = sum_of_answers(&query, &devices(&[(-1.0, 1e6), (f64::MAX, f64::MAX)]));
    assert_eq!(sum[0] as i64, ((1 << 20) - 1_000_000) << 29);
    sum = sum_of_answers(&QuantileQuery::MeanStep { mu: f64::NAN, floor: 0.0 }, &devices(&[(1.0, 1.0)]));
    assert_eq!(sum[2], 1);
}

#[test]
fn devices_that_leave_between_two_sums_end_the_search_next_to_where_it_was() {
    let (low, high) = (devices(&[(1.0, 10.0); 5]), devices(&[(6.0, 10.0); 5]));
    let everybody = [low.clone(), high.clone()].concat();
    for (left, expected) in [(low, 6.0), (high, 6.125)] {
        let mut search = Search::new(PrivateQuantile::TwoLevel, theta(0.3), None, &LossRange::default());
        let query = search.query().unwrap();
        search.take(&sum_of_answers(&query, &everybody)).unwrap(); // in the bin [6, 6.125)
        let query = search.query().unwrap();
        // Devices with lower losses, or whose losses have risen, now determine the quantile.
        let moved: Vec<_> = left.iter().map(|d| DeviceLoss::new(d.loss() * 1.1, 10.0).unwrap()).collect();
        search.take(&sum_of_answers(&query, &moved)).unwrap();
        assert_eq!(search.eta(), Some(expected));
    }
}

#[test]
fn the_range_settles_to_two_sums_while_losses_fall() {
    let mut range = LossRange::new(0.0, 1e4).unwrap();
    for round in 0..60 {
        let scale = 4.0 * 0.95_f64.powi(round);
        let cohort: Vec<_> = (0..50).map(|k| (scale * (1.0 + f64::from(k * k) / 400.0), 10.0)).collect();
        let search = run(PrivateQuantile::TwoLevel, theta(0.2), range, &devices(&cohort));
        assert_eq!(search.sums(), 2, "round {round}");
        range = search.range();
        if round >= 15 {
            assert!(search.resolution() < scale / 100.0, "round {round}: {}", search.resolution());
        }
    }
}

proptest! {
    #[test]
    fn eta_lies_within_the_resolution_below_the_open_quantile(
        kind in any_kind(), theta in level(), cohort in cohort(), lower in -20.0..20.0, span in 1e-3..1e3,
    ) {
        let range = LossRange::new(lower, lower + span).unwrap();
        let search = run(kind, theta, range, &cohort);
        let (eta, open) = (search.eta().unwrap(), quantile(theta, &cohort).unwrap());
        prop_assert!(eta <= open && open - eta <= search.resolution(), "{} for {}", eta, open);
    }

    #[test]
    fn any_sums_end_every_search(kind in any_kind(), theta in level(), sums in prop::collection::vec(any::<u64>(), 1..50)) {
        let mut search = Search::new(kind, theta, None, &LossRange::default());
        let mut garbage = sums.iter().cycle();
        while let Some(query) = search.query() {
            let sum: Vec<u64> = garbage.by_ref().take(query.len()).copied().collect();
            search.take(&sum).unwrap();
            prop_assert!(search.sums() <= 256);
        }
        search.range();
    }
}
