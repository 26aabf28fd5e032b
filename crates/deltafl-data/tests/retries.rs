//! Devices that cannot be reached, and rounds that come to no sum: the loop draws again.
#![allow(clippy::unwrap_used)]

#[path = "../../deltafl/tests/exchanges/intercepted.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared by tests of several crates")]
mod intercepted;

use std::num::NonZeroUsize;
use std::ops::ControlFlow;

use deltafl::data::synthetic::{Glyphs, Spec};
use deltafl::exchange::{Exchange as _, ExchangeError, Reachable, Simulation};
use deltafl::kernel::Isa;
use deltafl::model::ModelSpec;
use deltafl::question::Ask;
use deltafl::trainer::Sgd;
use deltafl::training::{Event, State, TrainOptions, train_with};
use deltafl_data::experiment::Experiment;
use intercepted::Intercepted;

const EXPERIMENT: &str = r#"
    name = "retries"
    rounds = 3
    cohort = 6
    data = { source = { kind = "glyphs", devices = 24 } }
    model = { kind = "linear" }
    local = { epochs = 1, batch = 10, learning_rate = 0.1 }
    algorithm = [{ kind = "delta-fl", theta = 0.5, quantile = "histogram", eta_every = 2 }]
"#;

/// The cohorts asked for updates, the last state, and the numbers of evaluations and checkpoints.
fn run(failures: u32, present: Reachable) -> (Vec<Vec<u32>>, State, (u32, u32)) {
    let experiment = Experiment::parse(EXPERIMENT).unwrap();
    let federation = Spec::Glyphs(toml::from_str::<Glyphs>("devices = 24").unwrap()).build();
    let model = ModelSpec::LINEAR.build(&federation, Isa::detect()).unwrap();
    let trainer = Sgd::new(&*model);
    let threads = NonZeroUsize::new(1);
    let exchange = Simulation::with_threads(&trainer, &federation, threads).unwrap();
    let (mut failures, mut cohorts) = (failures, Vec::new());
    let mut engine = Intercepted::new(exchange)
        .without_evaluations()
        .on_reachable(|| Some(present.clone()))
        .on_sum(|exchange, round, queries| {
            if matches!(queries[0].ask, Ask::Update { .. }) {
                cohorts.push(round.cohort.iter().map(|drawn| drawn.device.0).collect());
                if failures > 0 {
                    failures -= 1;
                    return Err(ExchangeError::NoSum { source: "too few stayed".into() });
                }
            }
            exchange.secure_sum(round, queries)
        });
    let plan = experiment.plan();
    let mut state = plan.start(7, &trainer);
    let options = TrainOptions { checkpoint_every_round: true, ..TrainOptions::default() };
    let (mut evaluations, mut checkpoints) = (0, 0);
    let mut count = |event: Event<'_>| {
        evaluations += u32::from(matches!(event, Event::Evaluated { .. }));
        checkpoints += u32::from(matches!(event, Event::Checkpoint { .. }));
        Ok(ControlFlow::Continue(()))
    };
    train_with(&mut engine, &plan, &mut state, options, &mut count).unwrap();
    drop(engine);
    (cohorts, state, (evaluations, checkpoints))
}

#[test]
fn a_round_without_a_sum_is_begun_anew_with_another_cohort() {
    let (smooth, ..) = run(0, Reachable::Everyone);
    let (fickle, state, _) = run(2, Reachable::Everyone);
    assert_eq!((smooth.len(), fickle.len(), state.round), (3, 5, 3));
    assert_eq!(fickle[0], smooth[0], "the first attempt is the simulation's");
    assert!(fickle[0] != fickle[1] && fickle[1] != fickle[2]);
    assert_eq!(fickle[3..], smooth[1..], "later rounds do not know of it");
}

#[test]
fn only_devices_that_can_be_reached_are_drawn() {
    let present = Reachable::Some((0..12).map(|k| k % 2 == 0).collect());
    let (cohorts, ..) = run(0, present);
    assert!(
        cohorts.iter().all(|cohort| cohort.len() == 6 && cohort.iter().all(|k| k % 2 == 0)),
        "{cohorts:?}"
    );
}

#[test]
fn without_evaluations_every_round_can_be_kept_all_the_same() {
    let (.., evaluations_and_checkpoints) = run(0, Reachable::Everyone);
    assert_eq!(evaluations_and_checkpoints, (0, 3));
}
