//! The quantile under secure aggregation (Algorithm 3, line 5; appendix).

use deltafl::superquantile::private::{LossRange, PrivateQuantile, QuantileQuery, Search};
use deltafl::superquantile::{Conformity, DeviceLoss, quantile};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use crate::{device, random_theta, rng, theta};

const KINDS: [PrivateQuantile; 4] =
    [PrivateQuantile::TwoLevel, PrivateQuantile::OneShot, PrivateQuantile::Bisection, PrivateQuantile::Mm];

fn run(kind: PrivateQuantile, theta: Conformity, range: &LossRange, cohort: &[DeviceLoss]) -> Search {
    let mut search = Search::new(kind, theta, None, range);
    while let Some(query) = search.query() {
        let mut sum = vec![0; query.len()];
        cohort.iter().for_each(|&device| query.answer(device, &mut sum));
        search.take(&sum).unwrap();
    }
    search
}

/// A cohort as the paper's: losses spread over a factor of ten or so, examples per device skewed.
fn cohort(rng: &mut ChaCha8Rng, devices: usize, scale: f64) -> Vec<DeviceLoss> {
    (0..devices)
        .map(|_| {
            let normal: f64 = (0..12).map(|_| rng.random_range(-0.5..0.5)).sum();
            let examples = (100.0 / rng.random_range(0.02..1.0_f64)).round();
            device(scale * (0.5 * normal).exp(), examples)
        })
        .collect()
}

#[test]
fn every_private_quantile_is_within_its_resolution_below_the_open_one() {
    let mut rng = rng(31);
    for case in 0..500 {
        let theta = random_theta(&mut rng);
        let size = rng.random_range(1..100);
        let cohort = cohort(&mut rng, size, 2.0);
        let open = quantile(theta, &cohort).unwrap();
        for kind in KINDS {
            let search = run(kind, theta, &LossRange::default(), &cohort);
            let below = open - search.eta().unwrap();
            assert!((0.0..=search.resolution()).contains(&below), "case {case}, {kind:?}: {below}");
        }
    }
}

#[test]
fn every_private_quantile_keeps_the_same_devices_when_no_other_loss_is_that_close() {
    let mut rng = rng(32);
    let mut compared = [0; 4];
    for _ in 0..500 {
        let theta = random_theta(&mut rng);
        let size = rng.random_range(1..30);
        let cohort = cohort(&mut rng, size, 2.0);
        let open = quantile(theta, &cohort).unwrap();
        for (kind, compared) in KINDS.into_iter().zip(&mut compared) {
            let search = run(kind, theta, &LossRange::default(), &cohort);
            let close = |d: &DeviceLoss| d.loss() < open && d.loss() >= open - search.resolution();
            if cohort.iter().any(close) {
                continue;
            }
            *compared += 1;
            let eta = search.eta().unwrap();
            assert!(cohort.iter().all(|d| d.in_tail(eta) == d.in_tail(open)), "{kind:?}");
        }
    }
    assert!(compared.iter().all(|&cases| cases > 100), "{compared:?}");
}

#[test]
fn two_level_histogram_needs_two_sums_once_its_range_has_settled() {
    let mut rng = rng(33);
    let mut range = LossRange::default();
    for round in 0..200 {
        let scale = 4.0 * 0.98_f64.powi(round);
        let search = run(PrivateQuantile::TwoLevel, theta(0.5), &range, &cohort(&mut rng, 50, scale));
        assert_eq!(search.sums(), 2, "round {round}");
        range = search.range();
        if round > 10 {
            assert!(search.resolution() < 4e-3 * scale, "round {round}: {}", search.resolution());
        }
    }
}

#[test]
fn a_quantile_above_the_range_costs_the_histogram_one_more_sum() {
    let mut rng = rng(34);
    let narrow = LossRange::new(0.0, 1.0).unwrap();
    let cohort = cohort(&mut rng, 50, 4.0);
    let search = run(PrivateQuantile::TwoLevel, theta(0.5), &narrow, &cohort);
    assert_eq!(search.sums(), 3);
    assert_eq!(run(PrivateQuantile::TwoLevel, theta(0.5), &search.range(), &cohort).sums(), 2);
}

#[test]
fn majorisation_minimisation_needs_at_most_40_sums_at_the_median() {
    let mut rng = rng(35);
    let mut sums: Vec<u32> = (0..1001)
        .map(|_| {
            let theta = random_theta(&mut rng);
            let size = rng.random_range(5..200);
            run(PrivateQuantile::Mm, theta, &LossRange::default(), &cohort(&mut rng, size, 2.0)).sums()
        })
        .collect();
    sums.sort_unstable();
    assert!(sums[500] <= 40, "median {}", sums[500]);
    assert!(sums[990] <= 60, "99th percentile {}", sums[990]);
}

#[test]
fn majorisation_minimisation_asks_for_the_weighted_mean_of_the_paper() {
    // τ = 1 − θ, β_k = α_k/|x_k − μ|, μ' = (Σ β_k x_k + (2τ−1) Σ α_k) / Σ β_k, for losses away from
    // μ.
    let cohort = [device(1.0, 30.0), device(2.5, 10.0), device(7.0, 20.0), device(7.5, 40.0)];
    let tau = 0.7;
    let mut search = Search::new(PrivateQuantile::Mm, theta(1.0 - tau), None, &LossRange::default());
    let Some(QuantileQuery::MeanStep { mu, floor }) = search.query() else { panic!("no mean step") };
    assert!(cohort.iter().all(|d| (d.loss() - mu).abs() > floor));
    let beta = |d: &DeviceLoss| d.weight() / (d.loss() - mu).abs();
    let weighted: f64 = cohort.iter().map(|d| beta(d) * d.loss()).sum();
    let next = (weighted + (2.0 * tau - 1.0) * 100.0) / cohort.iter().map(beta).sum::<f64>();

    let query = search.query().unwrap();
    let mut sum = vec![0; query.len()];
    cohort.iter().for_each(|&device| query.answer(device, &mut sum));
    search.take(&sum).unwrap();
    let Some(QuantileQuery::MeanStep { mu, .. }) = search.query() else { panic!("no second step") };
    assert!((mu - next).abs() < 1e-6, "{mu} for {next}");
}
