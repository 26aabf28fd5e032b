//! The seeds of an experiment: one driver for `run`, for MPI ranks and for `serve`.
//!
//! Where a seed goes on from, and over which exchange it is trained, the caller says. Seeds are taken one after another, by one
//! worker or by several at once. None of them sees the others, so the bits are those of one seed after another.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use deltafl::trainer::LocalTrainer;
use deltafl::training::{Outcome, State};
use deltafl_data::experiment::Experiment;
use miette::Report;

/// The seeds of an experiment that are not finished.
pub(crate) struct Seeds {
    /// Their states, where they begin or go on.
    pending: Vec<State>,
    /// The first of them that nobody has taken.
    next: AtomicUsize,
    /// A seed has failed: the others end with their round.
    failed: AtomicBool,
}

impl Seeds {
    /// Finds out where each seed is: `saved` is the state that it goes on from, if it was begun before.
    pub(crate) fn new(
        experiment: &Experiment,
        trainer: &dyn LocalTrainer,
        mut saved: impl FnMut(u64) -> Result<Option<State>, Report>,
    ) -> Result<Self, Report> {
        let tracks = experiment.labels().len();
        let mut pending = Vec::new();
        for &seed in experiment.seeds() {
            let state = saved(seed)?.unwrap_or_else(|| State::new(seed, tracks, trainer));
            if state.round < experiment.rounds() {
                pending.push(state);
            }
        }
        Ok(Self { pending, next: AtomicUsize::new(0), failed: AtomicBool::new(false) })
    }

    /// Where the seeds that are not finished are when training begins.
    pub(crate) fn pending(&self) -> &[State] {
        &self.pending
    }

    /// Raised when a seed has failed.
    pub(crate) fn failed(&self) -> &AtomicBool {
        &self.failed
    }

    /// Trains seeds that nobody has taken until none is left. Returns the state of the seed in which training was stopped.
    pub(crate) fn work(
        &self,
        mut train: impl FnMut(&mut State) -> Result<Outcome, Report>,
    ) -> Result<Option<State>, Report> {
        while let Some(state) = self.pending.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            let mut state = state.clone();
            match train(&mut state) {
                Ok(Outcome::Finished) => {}
                Ok(Outcome::Stopped) => return Ok(Some(state)),
                Err(report) => {
                    self.failed.store(true, Ordering::Relaxed);
                    return Err(report);
                }
            }
        }
        Ok(None)
    }

    /// The seeds of the experiment that are finished when all workers have ended, some of them stopped in these states.
    pub(crate) fn finished(&self, experiment: &Experiment, stopped: &[State]) -> Vec<u64> {
        // Seeds that were taken and did not stop are finished; the rest was not taken.
        let taken = self.next.load(Ordering::Relaxed).min(self.pending.len());
        let open = |seed: u64| stopped.iter().chain(&self.pending[taken..]).any(|state| state.seed == seed);
        experiment.seeds().iter().copied().filter(|&seed| !open(seed)).collect()
    }
}

#[cfg(test)]
mod tests {
    use deltafl::kernel::Isa;
    use deltafl::trainer::Sgd;

    use super::*;

    const EXPERIMENT: &str = r#"
        name = "seeds"
        rounds = 5
        seeds = [1, 2, 3, 4]
        cohort = 2
        data = { source = { kind = "glyphs", devices = 4, seed = 3 } }
        model = { kind = "linear" }
        local = { steps = 1, batch = 10, learning_rate = 0.1 }
        algorithm = [{ kind = "fedavg" }]
    "#;

    /// Seeds of which the second is finished and the third has two rounds behind it.
    fn seeds(experiment: &Experiment) -> Seeds {
        let federation = experiment.data().load().unwrap();
        let model = experiment.model().spec().build(&federation, Isa::detect()).unwrap();
        let trainer = Sgd::new(&*model);
        let saved = |seed: u64| {
            let at = |round| State { round, ..State::new(seed, 1, &trainer) };
            Ok(match seed {
                2 => Some(at(5)),
                3 => Some(at(2)),
                _ => None,
            })
        };
        Seeds::new(experiment, &trainer, saved).unwrap()
    }

    #[test]
    fn finished_seeds_are_passed_over_and_begun_ones_go_on() {
        let experiment = Experiment::parse(EXPERIMENT).unwrap();
        let (seeds, mut trained) = (seeds(&experiment), Vec::new());
        let stopped = seeds.work(|state| {
            trained.push((state.seed, state.round));
            state.round = 5;
            Ok(Outcome::Finished)
        });
        assert!(stopped.unwrap().is_none());
        assert_eq!(trained, [(1, 0), (3, 2), (4, 0)]);
        assert_eq!(seeds.finished(&experiment, &[]), [1, 2, 3, 4]);
    }

    #[test]
    fn a_seed_that_is_stopped_ends_the_work_and_those_behind_it_are_not_finished() {
        let experiment = Experiment::parse(EXPERIMENT).unwrap();
        let seeds = seeds(&experiment);
        let stopped = seeds.work(|state| {
            let stops = state.seed == 3;
            state.round += 1;
            Ok(if stops { Outcome::Stopped } else { Outcome::Finished })
        });
        let stopped = stopped.unwrap().unwrap();
        assert_eq!((stopped.seed, stopped.round), (3, 3));
        assert_eq!(seeds.finished(&experiment, &[stopped]), [1, 2]);
    }

    #[test]
    fn a_seed_that_fails_tells_the_others() {
        let experiment = Experiment::parse(EXPERIMENT).unwrap();
        let seeds = seeds(&experiment);
        assert!(seeds.work(|_| Err(miette::miette!("a full disk"))).is_err());
        assert!(seeds.failed().load(Ordering::Relaxed));
    }
}
