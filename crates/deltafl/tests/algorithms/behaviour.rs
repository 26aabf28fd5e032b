//! The published behaviour of the algorithms on small problems.

use deltafl::adversary::{Adversarial, Adversary, Lie, draw_liars};
use deltafl::compute::Threads;
use deltafl::data::synthetic::{ExamplesPerDevice, Fraction, SyntheticLogistic};
use deltafl::data::{DeviceExamples, FederationBuilder, InputKind, TargetKind};
use deltafl::exchange::Evaluation;

use super::documented::document;
use super::small::{devices, small_plan};
use super::*;

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn variance(values: &[f64]) -> f64 {
    mean(&values.iter().map(|value| (value - mean(values)).powi(2)).collect::<Vec<_>>())
}

/// The mean accuracy at which values of q are compared.
const ACCURACY: f64 = 0.65;

/// The accuracies and the losses of the devices of synthetic(1, 1), per track, when their mean
/// accuracy first reaches [`ACCURACY`].
fn at_equal_accuracy(tracks: Vec<Track>, seed: u64) -> Vec<[Vec<f64>; 2]> {
    let (examples, train) = (ExamplesPerDevice::new(20, 40, 80).unwrap(), Fraction::new(1.0).unwrap());
    let federation = SyntheticLogistic { seed, examples, train, ..Default::default() }.build();
    let model = ModelSpec::LINEAR.build(&federation, Isa::detect()).unwrap();
    let trainer = Sgd::new(&*model);
    let mut exchange = Simulation::with_threads(&trainer, &federation, NonZeroUsize::new(1)).unwrap();
    let terms = Terms { weights: Weights::Uniform, ..Terms::OPEN };
    let builder = Plan::builder().rounds(450).cohort(100).evaluate_every(10).terms(terms);
    let plan = builder.learning_rate(0.1).tracks(tracks).build().unwrap();
    let (mut state, mut records) = (plan.start(seed, &trainer), Records::default());
    super::train(&mut exchange, &plan, &mut state, &mut records).unwrap();
    let of_track = |t: usize| {
        let evaluations = records.evaluations.iter().map(|(_, splits)| &splits[0].tracks[t]);
        let accuracies = |devices: &[Evaluation]| -> Vec<f64> {
            devices.iter().map(|device| 1.0 - device.metrics[0]).collect()
        };
        let mut reached = evaluations.filter(|devices| mean(&accuracies(devices)) >= ACCURACY);
        let first = reached.next().unwrap();
        [accuracies(first), first.iter().map(|device| device.loss).collect()]
    };
    (0..plan.tracks().len()).map(of_track).collect()
}

#[test]
fn a_larger_q_gives_accuracies_of_lower_variance_at_the_same_mean_accuracy() {
    let values = [0.0, 1.0, 5.0];
    let tracks = values.map(|q| track("q-ffl", &[("q", q)]));
    // The variance of accuracies and of losses over devices, per q.
    let found = at_equal_accuracy(tracks.into(), 101);
    let figures: Vec<[f64; 2]> = found.iter().map(|found| [0, 1].map(|i| variance(&found[i]))).collect();
    let lines = values.iter().zip(&figures);
    let lines = lines.map(|(q, [accuracies, losses])| format!("{q},{accuracies:.6},{losses:.6}"));
    document("q-ffl", "q,variance_of_accuracies,variance_of_losses", lines);
    for (figure, name) in ["accuracies", "losses"].iter().enumerate() {
        let variances: Vec<f64> = figures.iter().map(|figures| figures[figure]).collect();
        assert!(variances.is_sorted_by(|a, b| a > b), "{name}: {variances:?}");
    }
}

/// Devices of a regression in one dimension: F_k(w) is a parabola.
const POINTS: [&[(f32, f32)]; 4] =
    [&[(1.0, 2.0), (0.5, 1.5)], &[(1.0, -1.0), (1.0, -0.5)], &[(2.0, 1.0)], &[(1.0, 0.5), (0.2, 0.9)]];

/// Their groups.
const GROUPS: [&str; 4] = ["a", "b", "b", "a"];

fn parabolas() -> Federation {
    let mut builder = FederationBuilder::with_target("line", InputKind::Dense { dim: 1 }, TargetKind::Values);
    for (k, points) in POINTS.iter().enumerate() {
        let inputs: Vec<f32> = points.iter().map(|(x, _)| *x).collect();
        let values: Vec<f32> = points.iter().map(|(_, y)| *y).collect();
        builder.push(&format!("d{k}"), Split::Train, DeviceExamples::Dense(&inputs), &values).unwrap();
    }
    let group = |k: usize| (format!("d{k}"), GROUPS[k].to_owned());
    builder.build().with_groups((0..POINTS.len()).map(group)).unwrap()
}

/// F_k(w).
fn parabola(k: usize, w: f64) -> f64 {
    let residuals = POINTS[k].iter().map(|&(x, y)| f64::from(x) * w - f64::from(y));
    residuals.map(|residual| 0.5 * residual * residual).sum::<f64>() / POINTS[k].len() as f64
}

fn worst_parabola(w: f64) -> f64 {
    (0..POINTS.len()).map(|k| parabola(k, w)).fold(f64::MIN, f64::max)
}

/// The largest mean loss of a group.
fn worst_group(w: f64) -> f64 {
    let of_group = |group: &str| -> f64 {
        let members: Vec<usize> = (0..POINTS.len()).filter(|&k| GROUPS[k] == group).collect();
        mean(&members.iter().map(|&k| parabola(k, w)).collect::<Vec<_>>())
    };
    of_group("a").max(of_group("b"))
}

/// The minimum over w of a largest loss, by ternary search: the largest of convex functions is
/// convex.
fn minimax(worst: fn(f64) -> f64) -> f64 {
    let (mut low, mut high) = (-10.0, 10.0);
    for _ in 0..200 {
        let [left, right] = [low + (high - low) / 3.0, high - (high - low) / 3.0];
        if worst(left) < worst(right) { high = right } else { low = left }
    }
    worst(low)
}

/// w of each track after a run with all devices in every round.
fn minima(tracks: Vec<Track>) -> Vec<f64> {
    let federation = parabolas();
    let model = ModelSpec::LINEAR.build(&federation, Isa::detect()).unwrap();
    let trainer = Sgd::new(&*model);
    let mut exchange = Simulation::with_threads(&trainer, &federation, NonZeroUsize::new(1)).unwrap();
    let terms = Terms { weights: Weights::Uniform, ..Terms::OPEN };
    let tracks = tracks.into_iter().map(|track| Track { l2: 0.0, ..track });
    let builder = Plan::builder().rounds(4000).cohort(4).terms(terms).batch(2).learning_rate(0.02);
    let plan = builder.evaluate_every(4000).tracks(tracks).build().unwrap();
    let mut state = plan.start(7, &trainer);
    train(&mut exchange, &plan, &mut state, &mut Records::default()).unwrap();
    state.tracks.iter().map(|track| track.params.as_slice()[0].into()).collect()
}

#[test]
fn agnostic_learning_over_groups_reaches_the_minimum_of_the_largest_group_loss() {
    let found = minima(vec![Track::fed_avg(), track("agnostic-groups", &[("lambda_rate", 0.02)])]);
    let [fed_avg, agnostic] = [0, 1].map(|i| worst_group(found[i]) / minimax(worst_group) - 1.0);
    assert!(agnostic < 1e-3, "off by {agnostic} of the minimum");
    assert!(fed_avg > 0.01, "FedAvg is off by {fed_avg}");
}

#[test]
fn a_larger_tilt_trades_the_mean_loss_for_the_worst_loss() {
    let tilts = [0.0, 0.5, 1.0, 4.0, 16.0];
    let found = minima(tilts.map(|tilt| track("term", &[("tilt", tilt)])).into());
    let mean_parabola = |&w: &f64| mean(&(0..POINTS.len()).map(|k| parabola(k, w)).collect::<Vec<_>>());
    let means: Vec<f64> = found.iter().map(mean_parabola).collect();
    let worst: Vec<f64> = found.iter().map(|&w| worst_parabola(w)).collect();
    let lines = tilts.iter().zip(means.iter().zip(&worst));
    let lines = lines.map(|(tilt, (mean, worst))| format!("{tilt},{mean:.6},{worst:.6}"));
    document("term", "tilt,mean_loss,worst_loss", lines);
    assert!(means.is_sorted_by(|a, b| a < b), "{means:?}");
    assert!(worst.is_sorted_by(|a, b| a > b), "{worst:?}");
    assert!(worst[4] < 1.05 * minimax(worst_parabola), "{worst:?}");
}

/// The mean loss of the honest devices after a run in which a fifth of the devices tells this lie.
fn honest_losses(tracks: Vec<Track>, share: f64, lie: Lie) -> Vec<f64> {
    let federation = devices();
    let liars = draw_liars(&federation, share, 1);
    let model = ModelSpec::LINEAR.build(&federation, Isa::detect()).unwrap();
    let trainer = Sgd::new(&*model);
    let threads = Threads::new(&trainer, &federation, NonZeroUsize::new(1)).unwrap();
    let compute = Adversarial::new(threads, liars.clone(), lie);
    let mut exchange = Simulation::with_compute(compute, &federation).unwrap();
    let builder = small_plan(tracks).into_builder().rounds(40).cohort(9).evaluate_every(40);
    let terms = Terms { weights: Weights::Uniform, ..Terms::OPEN };
    let plan = builder.terms(terms).build().unwrap();
    let (mut state, mut records) = (plan.start(7, &trainer), Records::default());
    train(&mut exchange, &plan, &mut state, &mut records).unwrap();
    let (_, splits) = records.evaluations.pop().unwrap();
    let train = federation.split(Split::Train);
    let honest = |devices: &Vec<Evaluation>| {
        let losses = train.iter().zip(devices).filter(|(k, _)| !liars.contains(k));
        mean(&losses.map(|(_, device)| device.loss).collect::<Vec<_>>())
    };
    splits[0].tracks.iter().map(honest).collect()
}

#[test]
fn liars_ruin_the_mean_and_not_robust_aggregates() {
    let robust = ["median", "trimmed-mean", "geometric-median", "krum"];
    let tracks = || {
        let robust = robust.map(|kind| match kind {
            "trimmed-mean" => track(kind, &[("trim", 0.25)]),
            kind => track(kind, &[]),
        });
        [track("fedavg", &[])].into_iter().chain(robust).collect::<Vec<Track>>()
    };
    let honest = honest_losses(tracks(), 0.0, Lie::NONE);
    let attacked = honest_losses(tracks(), 0.2, Lie { update: -20.0, loss: 1.0 });
    assert!(attacked[0] > 3.0 * honest[0], "FedAvg: {} and {}", honest[0], attacked[0]);
    for (kind, loss) in robust.iter().zip(&attacked[1..]) {
        assert!(*loss < 10f64.ln() && *loss < 0.5 * attacked[0], "{kind}: {honest:?} {attacked:?}");
    }
}

#[test]
fn liars_with_high_losses_gain_weight_in_a_tail() {
    let lie = Lie { update: -2.0, loss: 10.0 };
    let tracks = || vec![track("fedavg", &[]), track("delta-fl", &[("theta", 0.3)])];
    let [honest, attacked] = [Lie::NONE, lie].map(|lie| honest_losses(tracks(), 0.2, lie));
    let lost = |i: usize| attacked[i] - honest[i];
    assert!(lost(1) > 2.0 * lost(0).max(0.0), "{honest:?} {attacked:?}");
}

#[test]
fn flipped_labels_are_those_of_the_liars() {
    let adversary: Adversary = toml::from_str("share = 0.3\nflip_labels = true").unwrap();
    let honest = devices();
    let falsified = adversary.falsified(&honest).unwrap();
    let liars = draw_liars(&honest, 0.3, adversary.seed);
    assert_eq!(liars.len(), 3);
    for device in honest.devices() {
        let turned = u32::from(liars.contains(&device));
        let [before, after] = [&honest, &falsified].map(|federation| federation.examples(device));
        let is_turned = |i| after.label(i) == (before.label(i) + turned) % honest.classes() as u32;
        assert!((0..before.len()).all(is_turned));
    }
    assert!(Adversary::default().falsified(&honest).is_none());
}
