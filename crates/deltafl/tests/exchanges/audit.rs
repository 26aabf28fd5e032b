//! Audits: the empirical lower bound on ε stays below the accountant's.
//!
//! A canary is a device with a unique update or loss. The whole pipeline runs many times with it
//! and without it. A test that guesses from the result whether the canary took part has error rates
//! that bound ε from below: e^ε ≥ (P(guess in | in) − δ)/P(guess in | out). The rates are replaced
//! by the ends of their 95 % Clopper–Pearson intervals.

use deltafl::params::Params;
use deltafl::privacy::{ClipRule, Delta, Mechanism, PrivacyPlan, Rho};

use super::*;

const DELTA: f64 = 1e-5;

/// P(X ≤ k) for n trials of probability p.
fn binomial(k: u32, n: u32, p: f64) -> f64 {
    let mut log = f64::from(n) * (1.0 - p).ln();
    let mut total = log.exp();
    for i in 1..=k {
        log += (f64::from(n - i + 1) / f64::from(i) * p / (1.0 - p)).ln();
        total += log.exp();
    }
    total
}

/// Returns the upper end of the Clopper–Pearson interval of a probability, 97.5 % one-sided.
fn upper(k: u32, n: u32) -> f64 {
    if k == n {
        return 1.0;
    }
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if binomial(k, n, middle) > 0.025 { low = middle } else { high = middle }
    }
    high
}

/// Returns the lower bound on ε from the guesses "in" with the canary and without it.
fn lower_bound(with: u32, without: u32, runs: u32) -> f64 {
    let (found, mistaken) = (1.0 - upper(runs - with, runs), upper(without, runs));
    ((found - DELTA) / mistaken).ln().max(0.0)
}

fn privacy(multiplier: f64, quantile_share: f64) -> PrivacyPlan {
    PrivacyPlan {
        mechanism: Mechanism::Distributed,
        delta: Delta::try_from(DELTA).unwrap(),
        survivors: 6,
        accomplices: 0,
        rounds_between: 1,
        clip: ClipRule { start: 0.05.try_into().unwrap(), adaptive: false },
        track_round: Rho::from_noise_multiplier(multiplier),
        evaluation: Rho::ZERO,
        quantile_share,
        remove_excess: false,
    }
}

/// Six devices. The features of the last are those of nobody else, or zero.
fn devices(canary: bool) -> Federation {
    let mut builder = FederationBuilder::new("audit", InputKind::Dense { dim: 3 }, 2);
    let unique = if canary { [0.0, 0.0, 20.0] } else { [0.0; 3] };
    for k in 0..6 {
        let features = if k == 5 { unique } else { [0.01, 0.01, 0.0] };
        builder
            .push(
                &format!("{k}"),
                Split::Train,
                DeviceExamples::Dense(&features),
                &[if k == 5 { 0 } else { k % 2 }],
            )
            .unwrap();
    }
    builder.build()
}

/// The sum of the updates of one round, and η, per run. All tracks start from the same w.
fn runs(
    federation: &Federation,
    track: &dyn Fn() -> Track,
    tracks: usize,
    privacy: PrivacyPlan,
    count: u64,
) -> Vec<(Vec<f64>, f64)> {
    let model = linear(federation);
    let trainer = Sgd::new(&*model);
    let terms = Terms { schedule: TrackSchedule::Together, ..Terms::PRIVATE };
    let plan = Plan::builder().rounds(1).cohort(6).batch(1).learning_rate(1.0).terms(terms);
    let plan = plan.tracks((0..tracks).map(|_| track())).privacy(privacy).build().unwrap();
    let start: Params = (0..trainer.num_params()).map(|i| 0.02 * i as f32).collect::<Vec<f32>>().into();
    let mut exchange = Simulation::with_threads(&trainer, federation, NonZeroUsize::new(1)).unwrap();
    let one = |seed| {
        let mut state = plan.start_from(seed, start.clone(), trainer.tensors());
        let mut records = Records::default();
        train(&mut exchange, &plan, &mut state, &mut records).unwrap();
        let mut change = vec![0.0; start.len()];
        // The sums of the updates: the server divides them by a noisy weight, which it knows.
        for (track, record) in state.tracks.iter().zip(&records.rounds) {
            let pairs = track.params.as_slice().iter().zip(start.as_slice());
            let added = |(sum, (new, old)): (&mut f64, (&f32, &f32))| {
                *sum += record.tail_weight * f64::from(new - old);
            };
            change.iter_mut().zip(pairs).for_each(added);
        }
        (change, records.rounds[0].eta.unwrap_or(0.0))
    };
    (0..count).map(one).collect()
}

/// Returns the lower bound on ε from an update canary in this many tracks. The guess is "in" above
/// the point at the share `cut` of the way from the result without the canary to that with it.
fn audited_updates(multiplier: f64, tracks: usize, count: u32, cut: f64) -> f64 {
    let (with, without) = (devices(true), devices(false));
    let fed_avg = || Track::fed_avg();
    // The direction of the canary is known to the adversary.
    let exact = |federation| runs(federation, &fed_avg, tracks, privacy(1e-4, 0.0), 1).remove(0).0;
    let (inside, outside) = (exact(&with), exact(&without));
    let direction: Vec<f64> = inside.iter().zip(&outside).map(|(a, b)| a - b).collect();
    let along = |change: &[f64]| change.iter().zip(&direction).map(|(a, b)| a * b).sum::<f64>();
    let threshold = along(&outside) + cut * (along(&inside) - along(&outside));
    let guesses = |federation| {
        let all = runs(federation, &fed_avg, tracks, privacy(multiplier, 0.0), count.into());
        all.iter().filter(|(change, _)| along(change) > threshold).count() as u32
    };
    lower_bound(guesses(&with), guesses(&without), count)
}

fn accounted(multiplier: f64, tracks: u64) -> f64 {
    (Rho::from_noise_multiplier(multiplier) * tracks).epsilon(Delta::try_from(DELTA).unwrap())
}

#[test]
fn intervals_are_those_of_the_tables() {
    // scipy.stats.beta.ppf(0.975, k + 1, n - k).
    assert!((upper(0, 100) - 0.036_217).abs() < 1e-5);
    assert!((upper(10, 100) - 0.176_223).abs() < 1e-5);
    assert!((lower_bound(100, 0, 100) - (0.963_783_f64 / 0.036_217).ln()).abs() < 1e-3);
}

#[test]
fn an_update_canary_is_found_without_noise_and_hidden_with_it() {
    let claimed = accounted(2.0, 1);
    let noisy = audited_updates(2.0, 1, 400, 0.5);
    assert!(noisy > 0.1 && noisy < claimed, "{noisy} {claimed}");
    let exact = audited_updates(1e-4, 1, 400, 0.5);
    assert!(exact > claimed, "without noise the same audit finds {exact}, and {claimed} was claimed");
}

#[test]
fn nearly_equal_models_asked_in_one_question_compose() {
    // 36 tracks at one w: the mean of their sums has a sixth of the noise.
    let (one, all) = (accounted(3.0, 1), accounted(3.0, 36));
    let found = audited_updates(3.0, 36, 300, 1.0);
    assert!(found < all, "{found} {all}");
    assert!(found > one, "an accountant that does not compose would claim {one}, the audit finds {found}");
}

#[test]
fn a_loss_canary_is_found_without_noise_and_hidden_with_it() {
    let (with, without) = (devices(true), devices(false));
    let tail = || private(PrivateQuantile::Tree, Tail::new(theta(0.1))).into();
    let bound = |multiplier: f64| {
        let privacy = privacy(multiplier, 0.5);
        let guesses = |federation| {
            let all = runs(federation, &tail, 1, privacy, 400);
            all.iter().filter(|(_, eta)| *eta > 0.8).count() as u32
        };
        // A canary with a loss above all others, or one with a loss below them.
        let (inside, outside) = (guesses(&with), guesses(&without));
        lower_bound(inside, outside, 400).max(lower_bound(400 - inside, 400 - outside, 400))
    };
    let claimed = accounted(2.0, 1);
    let (noisy, exact) = (bound(2.0), bound(1e-4));
    assert!(noisy < claimed, "{noisy} {claimed}");
    assert!(exact > claimed, "{exact} {claimed}");
}
