//! Whole rounds of Δ-FL: the losses of the cohort, the tail, its updates and their sum.
//!
//! Rounds with one thread and with all threads alternate, so that both run under the same
//! conditions.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::time::Instant;

use deltafl::algorithm::{Tail, Track};
use deltafl::data::Federation;
use deltafl::exchange::{Exchange, Simulation};
use deltafl::kernel::Isa;
use deltafl::superquantile::Conformity;
use deltafl::trainer::{LocalTrainer, Sgd};
use deltafl::training::{Event, Plan, State, train};
use miette::{IntoDiagnostic, Result};
use serde::Serialize;

use super::cases::Case;
use super::median;

/// The cost of a round.
#[derive(Debug, Serialize)]
pub(super) struct RoundFigures {
    model: String,
    cohort: usize,
    examples: u64,
    threads: u16,
    /// Medians over the rounds.
    seconds: f64,
    seconds_one_thread: f64,
    speedup: f64,
}

/// Measures rounds of a case with every device of a federation in the cohort.
pub(super) fn measure(
    case: &Case,
    isa: Isa,
    threads: u16,
    cohort: usize,
    rounds: u32,
) -> Result<RoundFigures> {
    let federation = case.federation(cohort);
    let model = case.spec.build(&federation, isa).into_diagnostic()?;
    let trainer = Sgd::boxed(&*model);
    let mut one = EqualRounds::new(case, &federation, &*trainer, 1)?;
    let mut all = EqualRounds::new(case, &federation, &*trainer, threads)?;
    let (mut alone, mut together) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        alone.push(one.seconds()?);
        together.push(if threads == 1 { alone[alone.len() - 1] } else { all.seconds()? });
    }
    let (alone, together) = (median(alone), median(together));
    Ok(RoundFigures {
        model: case.name.clone(),
        cohort,
        examples: federation.devices().map(|device| federation.example_count(device)).sum(),
        threads,
        seconds: together,
        seconds_one_thread: alone,
        speedup: alone / together,
    })
}

/// Prints the header of the table.
pub(super) fn print_header(isa: Isa, threads: u16, rounds: u32) {
    println!("{isa} kernels; whole rounds of Δ-FL at θ = 0.5, median of {rounds}\n");
    let together = format!("{threads} thread(s)");
    println!(
        "{:<18}{:>8}{:>11}{:>14}{:>14}{:>9}",
        "model", "cohort", "examples", "1 thread", together, "speedup"
    );
}

impl RoundFigures {
    pub(super) fn print(&self) {
        let Self { model, cohort, examples, seconds, seconds_one_thread, speedup, .. } = self;
        println!(
            "{model:<18}{cohort:>8}{examples:>11}{:>11.3} ms{:>11.3} ms{speedup:>9.2}",
            1e3 * seconds_one_thread,
            1e3 * seconds,
        );
    }
}

/// Rounds that all start from the same state and therefore have the same cost.
struct EqualRounds<'a> {
    exchange: Box<dyn Exchange + 'a>,
    plan: Plan,
    start: State,
}

impl<'a> EqualRounds<'a> {
    fn new(
        case: &Case,
        federation: &'a Federation,
        trainer: &'a dyn LocalTrainer,
        threads: u16,
    ) -> Result<Self> {
        let half = Conformity::try_from(0.5).expect("0.5 is in (0, 1]");
        let plan = Plan::builder().rounds(u64::MAX).evaluate_every(u64::MAX).cohort(federation.len());
        let plan = plan.batch(case.batch).learning_rate(f64::from(case.learning_rate));
        let plan = plan.track(Track { l2: case.l2, ..Tail::new(half).into() }).build().into_diagnostic()?;
        let mut start = plan.start(1, trainer);
        start.round = 1; // round 0 would evaluate every device
        let threads = NonZeroUsize::new(threads.into());
        let exchange = Box::new(Simulation::with_threads(trainer, federation, threads).into_diagnostic()?);
        let mut rounds = Self { exchange, plan, start };
        rounds.seconds()?; // warms up the memory
        Ok(rounds)
    }

    fn seconds(&mut self) -> Result<f64> {
        let mut state = self.start.clone();
        let begin = Instant::now();
        let mut one_round = |_: Event<'_>| Ok(ControlFlow::Break(()));
        train(&mut *self.exchange, &self.plan, &mut state, &mut one_round).into_diagnostic()?;
        Ok(begin.elapsed().as_secs_f64())
    }
}
