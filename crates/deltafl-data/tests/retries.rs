//! Devices that cannot be reached, and rounds that come to no sum: the loop draws again.
#![allow(clippy::unwrap_used)]

use std::ops::ControlFlow;

use deltafl::compute::Threads;
use deltafl::data::Split;
use deltafl::data::synthetic::{Glyphs, Spec};
use deltafl::exchange::{Direct, Drawn, Exchange, ExchangeError, Reachable, Round, SplitEvaluation, Sum};
use deltafl::kernel::Isa;
use deltafl::model::ModelSpec;
use deltafl::params::Params;
use deltafl::question::{Ask, Query};
use deltafl::superquantile::DeviceLoss;
use deltafl::trainer::Sgd;
use deltafl::training::{Event, State, TrainOptions, train_with};
use deltafl_data::experiment::Experiment;

const EXPERIMENT: &str = r#"
    name = "retries"
    rounds = 3
    cohort = 6
    data = { source = { kind = "glyphs", devices = 24 } }
    model = { kind = "linear" }
    local = { epochs = 1, batch = 10, learning_rate = 0.1 }
    algorithm = [{ kind = "delta-fl", theta = 0.5, quantile = "histogram", eta_every = 2 }]
"#;

/// An engine whose updates fail now and then, and whose devices come and go.
struct Fickle<'a> {
    exchange: Direct<'a, Threads<'a>>,
    /// Sums of updates that still come to nothing.
    failures: u32,
    present: Reachable,
    cohorts: Vec<Vec<u32>>,
}

impl Exchange for Fickle<'_> {
    fn devices(&self) -> usize {
        self.exchange.devices()
    }

    fn attempts(&self) -> u64 {
        self.exchange.attempts()
    }

    fn announce(&mut self, next: &[Drawn]) {
        self.exchange.announce(next);
    }

    fn reachable(&mut self) -> Result<Reachable, ExchangeError> {
        Ok(self.present.clone())
    }

    fn losses(
        &mut self,
        round: &Round<'_>,
        tracks: &[&Params],
    ) -> Result<Vec<Vec<DeviceLoss>>, ExchangeError> {
        self.exchange.losses(round, tracks)
    }

    fn secure_sum(&mut self, round: &Round<'_>, queries: &[Query]) -> Result<Vec<Sum>, ExchangeError> {
        if matches!(queries[0].ask, Ask::Update { .. }) {
            self.cohorts.push(round.cohort.iter().map(|drawn| drawn.device.0).collect());
            if self.failures > 0 {
                self.failures -= 1;
                return Err(ExchangeError::NoSum { source: "too few stayed".into() });
            }
        }
        self.exchange.secure_sum(round, queries)
    }

    fn evaluate(&mut self, _: Split, _: &[&Params]) -> Result<Option<SplitEvaluation>, ExchangeError> {
        Ok(None)
    }
}

/// The cohorts asked for updates, the last state, and the numbers of evaluations and checkpoints.
fn run(failures: u32, present: Reachable) -> (Vec<Vec<u32>>, State, (u32, u32)) {
    let experiment = Experiment::parse(EXPERIMENT).unwrap();
    let federation = Spec::Glyphs(toml::from_str::<Glyphs>("devices = 24").unwrap()).build();
    let model = ModelSpec::LINEAR.build(&federation, Isa::detect()).unwrap();
    let trainer = Sgd::new(&*model);
    let compute = Threads::new(&trainer, &federation, 1).unwrap();
    let exchange = Direct::new(compute, &federation).unwrap();
    let mut engine = Fickle { exchange, failures, present, cohorts: Vec::new() };
    let mut state = State::new(7, 1, &trainer);
    let options = TrainOptions { checkpoint_every_round: true, ..TrainOptions::default() };
    let (mut evaluations, mut checkpoints) = (0, 0);
    let mut count = |event: Event<'_>| {
        evaluations += u32::from(matches!(event, Event::Evaluated { .. }));
        checkpoints += u32::from(matches!(event, Event::Checkpoint { .. }));
        Ok(ControlFlow::Continue(()))
    };
    train_with(&mut engine, &experiment.plan(), &mut state, options, &mut count).unwrap();
    (engine.cohorts, state, (evaluations, checkpoints))
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
