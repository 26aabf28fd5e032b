//! Runs with differential privacy.

use std::num::NonZeroU32;

use deltafl::cohort::Diurnal;
use deltafl::exchange::Reachable;
use deltafl::privacy::{ClipRule, Delta, Mechanism, PrivacyPlan, Rho};
use deltafl::terms::Weights;

use super::*;

fn privacy(multiplier: f64) -> PrivacyPlan {
    PrivacyPlan {
        mechanism: Mechanism::Distributed,
        delta: Delta::try_from(1e-5).unwrap(),
        survivors: 4,
        accomplices: 1,
        rounds_between: 1,
        clip: ClipRule { start: 0.5.try_into().unwrap(), adaptive: true },
        track_round: Rho::from_noise_multiplier(multiplier),
        evaluation: Rho::from_noise_multiplier(multiplier),
        quantile_share: 0.2,
        remove_excess: false,
    }
}

fn noisy_plan(schedule: TrackSchedule, privacy: PrivacyPlan) -> Plan {
    let terms = Terms { schedule, weights: Weights::Uniform, ..Terms::PRIVATE };
    let nu = Some(0.1.try_into().unwrap());
    // Not a number of devices of six: the least noise would decide on which side of a tie η lies.
    let tail = Tail::new(theta(0.45));
    let tracks = vec![
        Track::fed_avg(),
        private(PrivateQuantile::Tree, tail).into(),
        private(PrivateQuantile::Tree, Tail { nu, ..tail }).into(),
    ];
    plan(tracks).into_builder().terms(terms).privacy(privacy).build().unwrap()
}

#[test]
fn noisy_sums_have_the_same_bits_on_threads_and_under_masks() {
    let federation = federation();
    let model = linear(&federation);
    let trainer = Sgd::new(&*model);
    for (schedule, mechanism) in [
        (TrackSchedule::Together, Mechanism::Central),
        (TrackSchedule::InTurn, Mechanism::Distributed),
        (TrackSchedule::Apart, Mechanism::Distributed),
    ] {
        let plan = noisy_plan(schedule, PrivacyPlan { mechanism, ..privacy(2.0) });
        let plan = plan.into_builder().rounds(2).build().unwrap();
        let one = run(&federation, &plan, 1);
        assert_eq!(run(&federation, &plan, 3), one);
        let threads = NonZeroUsize::new(2);
        let mut masked = Simulation::with_threads(&trainer, &federation, threads).unwrap().masked(0.0);
        let masked = run_on(&mut masked, &plan, &trainer);
        assert_eq!(masked.checkpoint, one.checkpoint, "{schedule:?} {mechanism:?}");
    }
}

#[test]
fn removed_excess_noise_leaves_the_budget_and_the_same_bits_on_threads_and_under_masks() {
    let federation = federation();
    let model = linear(&federation);
    let trainer = Sgd::new(&*model);
    let delta = Delta::try_from(1e-5).unwrap();
    let guaranteed = (Rho::from_noise_multiplier(3.0) * 5).epsilon(delta);
    for (drop_out, schedule) in [(0.0, TrackSchedule::InTurn), (0.15, TrackSchedule::Apart)] {
        let privacy = PrivacyPlan { remove_excess: true, ..privacy(3.0) };
        let plan = with_drop_out(noisy_plan(schedule, privacy), drop_out);
        let one = run(&federation, &plan, 1);
        assert_eq!(run(&federation, &plan, 3), one);
        let threads = NonZeroUsize::new(2);
        let mut masked = Simulation::with_threads(&trainer, &federation, threads).unwrap().masked(drop_out);
        assert_eq!(run_on(&mut masked, &plan, &trainer).checkpoint, one.checkpoint, "{schedule:?}");
        if schedule == TrackSchedule::InTurn {
            // Six devices answer and the noise is calibrated to four. Without removal, ε would be
            // lower.
            let spent = one.rounds[4].privacy.unwrap().epsilon_server.unwrap();
            assert!(spent <= guaranteed && spent > 0.93 * guaranteed, "{spent} {guaranteed}");
        }
    }
}

#[test]
fn little_noise_and_a_wide_bound_train_like_exact_sums() {
    let federation = federation();
    let wide = ClipRule { start: 10.0.try_into().unwrap(), adaptive: false };
    let noisy = noisy_plan(TrackSchedule::Together, PrivacyPlan { clip: wide, ..privacy(1e-6) });
    let exact =
        noisy_plan(TrackSchedule::Together, privacy(1.0)).into_builder().privacy(None).build().unwrap();
    // A small rate: with a large one, the least difference grows from round to round.
    let params = |plan: Plan| {
        let plan = plan.into_builder().rounds(3).learning_rate(0.005).build().unwrap();
        run(&federation, &plan, 2).checkpoint.unwrap().tracks
    };
    // FedAvg differs by the remaining noise, 0.34 % over all entries. A track with a quantile also
    // differs by η, which decides about the devices at the edge of the tail.
    let tolerances = [0.01, 0.03, 0.03];
    for ((noisy, exact), most) in params(noisy).into_iter().zip(params(exact)).zip(tolerances) {
        let pairs = || noisy.params.as_slice().iter().zip(exact.params.as_slice());
        let distance = pairs().map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>().sqrt();
        let length = exact.params.as_slice().iter().map(|w| f64::from(*w).powi(2)).sum::<f64>().sqrt();
        assert!(distance < most * length, "{distance} of {length}");
    }
}

#[test]
fn records_contain_the_privacy_spent_for_each_adversary() {
    let federation = federation();
    let plan = noisy_plan(TrackSchedule::InTurn, privacy(3.0));
    let records = run(&federation, &plan, 2).rounds;
    let spent: Vec<_> = records.iter().map(|record| record.privacy.unwrap()).collect();
    assert_eq!(spent.len(), 5);
    for (round, pair) in spent.windows(2).enumerate() {
        assert!(pair[0].epsilon_server < pair[1].epsilon_server, "{round}");
    }
    // Six of six devices answered, and five of them are honest. The noise was calibrated to three.
    let guaranteed = Rho::from_noise_multiplier(3.0) * 5;
    let delta = Delta::try_from(1e-5).unwrap();
    let last = spent[4];
    assert!(last.epsilon_server.unwrap() < (guaranteed * 0.62).epsilon(delta), "{last:?}");
    assert!(last.epsilon_server.unwrap() > (guaranteed * 0.55).epsilon(delta), "{last:?}");
    assert!(last.epsilon_readers <= last.epsilon_server.unwrap());
    assert!(last.clip > 0.0 && (0.0..=1.0).contains(&last.unclipped));
    let central =
        noisy_plan(TrackSchedule::InTurn, PrivacyPlan { mechanism: Mechanism::Central, ..privacy(3.0) });
    let central = run(&federation, &central, 2).rounds[4].privacy.unwrap();
    assert_eq!(central.epsilon_server, None);
    assert!((central.epsilon_readers / guaranteed.epsilon(delta) - 1.0).abs() < 0.02, "{central:?}");
}

#[test]
fn cohorts_of_connected_devices_and_of_a_time_of_day_are_not_amplified() {
    let spec: Glyphs = toml::from_str("devices = 80\nseed = 3").unwrap();
    let federation = Spec::Glyphs(spec).build();
    let model = linear(&federation);
    let trainer = Sgd::new(&*model);
    let plan = |availability: Availability| {
        let plan = noisy_plan(TrackSchedule::InTurn, privacy(30.0)).into_builder();
        plan.cohort(4).availability(availability).build().unwrap()
    };
    let last = |records: Records| records.rounds[4].privacy.unwrap();
    let all = last(run(&federation, &plan(Availability::default()), 2));
    assert!(all.epsilon_readers < all.epsilon_server.unwrap(), "{all:?}");
    // Half of the devices are connected in the first round.
    let mut rounds = 0..5;
    let connected = move || {
        let is_first = rounds.next() == Some(0);
        is_first.then(|| Reachable::Some((0..40).map(|device| device < 20).collect()))
    };
    let simulation = Simulation::new(&trainer, &federation).unwrap();
    let mut exchange = Intercepted::new(simulation).on_reachable(connected);
    let some = last(run_on(&mut exchange, &plan(Availability::default()), &trainer));
    assert_eq!(some.epsilon_server, Some(some.epsilon_readers));
    let diurnal = Diurnal { period: NonZeroU32::new(4).unwrap(), low: 0.9.try_into().unwrap() };
    let daily = plan(Availability { diurnal: Some(diurnal), ..Availability::default() });
    let daily = last(run(&federation, &daily, 2));
    assert_eq!(daily.epsilon_server, Some(daily.epsilon_readers));
}

#[test]
fn a_cohort_with_too_little_noise_is_replaced() {
    let federation = federation();
    let plan = with_drop_out(noisy_plan(TrackSchedule::InTurn, privacy(2.0)), 0.4);
    let records = run(&federation, &plan, 2).rounds;
    assert!(records.iter().all(|record| record.cohort - record.dropped >= 4));
    assert!(records.iter().any(|record| record.dropped > 0));
}

#[test]
fn noise_is_refused_where_something_would_leave_a_device_without_it() {
    let of = |algorithm: &Algorithm| {
        Track::from_options(algorithm, &algorithm.options_with([]).unwrap(), 0.0).unwrap()
    };
    let refused = |track: Track, terms: Terms| {
        let builder = Plan::builder().cohort(6).track(track).terms(terms).privacy(privacy(1.0));
        builder.build().err().map(|error| error.to_string()).unwrap_or_default()
    };
    let uniform = Terms::PRIVATE;
    for (track, reason) in [
        (half().into(), "open mode"),
        (private(PrivateQuantile::Mm, half()).into(), "exact sums"),
        (private(PrivateQuantile::TwoLevel, half()).into(), "exact sums"),
        (private(PrivateQuantile::Tree, Tail { eta_every: 2, ..half() }).into(), "eta_every"),
        (of(&SCAFFOLD), "control variates"),
        (of(&Q_FFL), "without noise"),
        (of(&AFL), "open mode"),
        (of(&KRUM), "individual devices"),
        (of(&DITTO), "personal"),
    ] {
        let track: Track = track;
        let name = track.label.name.clone();
        let error = refused(track, uniform);
        assert!(error.contains(reason), "{name}: {error}");
    }
    let exact = refused(Track::fed_avg(), Terms { weights: Weights::Exact, ..uniform });
    assert!(exact.starts_with("weights"), "{exact}");
    assert_eq!(refused(Track::fed_avg(), uniform), "");
}
