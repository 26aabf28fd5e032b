//! The seeds of an experiment: one driver for runs in a process, on MPI ranks and with
//! deployed devices.
//!
//! The caller provides the initial state of each seed and its exchange. One or several workers
//! process the seeds. Seeds are independent, so the result has the same bits as training one seed
//! after another.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use deltafl::trainer::LocalTrainer;
use deltafl::training::{Outcome, State};

use crate::experiment::Experiment;

/// The seeds of an experiment that are not finished.
pub struct Seeds {
    /// Their states, new or saved.
    pending: Vec<State>,
    /// The index of the first seed that no worker has taken.
    next: AtomicUsize,
    /// Set if a seed has failed. The others end after the current round.
    failed: AtomicBool,
}

impl Seeds {
    /// Determines the state of each seed. `saved` returns the state from which an existing seed
    /// continues.
    ///
    /// # Errors
    ///
    /// Returns the first error of `saved`.
    pub fn new<E>(
        experiment: &Experiment,
        trainer: &dyn LocalTrainer,
        mut saved: impl FnMut(u64) -> Result<Option<State>, E>,
    ) -> Result<Self, E> {
        let plan = experiment.plan();
        let mut pending = Vec::new();
        for &seed in &experiment.seeds {
            let state = saved(seed)?.unwrap_or_else(|| plan.start(seed, trainer));
            if state.round < experiment.rounds.get() {
                pending.push(state);
            }
        }
        Ok(Self { pending, next: AtomicUsize::new(0), failed: AtomicBool::new(false) })
    }

    /// Returns the states of the unfinished seeds when training begins.
    pub fn pending(&self) -> &[State] {
        &self.pending
    }

    /// Returns the flag that is set when a seed has failed.
    pub fn failed(&self) -> &AtomicBool {
        &self.failed
    }

    /// Trains seeds that no worker has taken until none is left. Returns the state of the seed in
    /// which training was stopped.
    ///
    /// # Errors
    ///
    /// Returns the first error of training. Other workers then stop after the current round.
    pub fn work<E>(
        &self,
        mut train: impl FnMut(&mut State) -> Result<Outcome, E>,
    ) -> Result<Option<State>, E> {
        while let Some(state) = self.pending.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            let mut state = state.clone();
            match train(&mut state) {
                Ok(Outcome::Finished) => {}
                Ok(Outcome::Stopped) => return Ok(Some(state)),
                Err(error) => {
                    self.failed.store(true, Ordering::Relaxed);
                    return Err(error);
                }
            }
        }
        Ok(None)
    }

    /// Returns the finished seeds of the experiment after all workers have ended. `stopped`
    /// contains the states of stopped seeds.
    pub fn finished(&self, experiment: &Experiment, stopped: &[State]) -> Vec<u64> {
        // Seeds that were taken and did not stop are finished. The rest was not taken.
        let taken = self.next.load(Ordering::Relaxed).min(self.pending.len());
        let open = |seed: u64| stopped.iter().chain(&self.pending[taken..]).any(|state| state.seed == seed);
        experiment.seeds.iter().copied().filter(|&seed| !open(seed)).collect()
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

    /// Returns seeds of which the second is finished and the third has trained two rounds.
    fn seeds(experiment: &Experiment) -> Seeds {
        let federation = experiment.data.load().unwrap();
        let model = experiment.model.spec().build(&federation, Isa::detect()).unwrap();
        let trainer = Sgd::new(&*model);
        let saved = |seed: u64| {
            let at = |round| State { round, ..experiment.plan().start(seed, &trainer) };
            Ok(match seed {
                2 => Some(at(5)),
                3 => Some(at(2)),
                _ => None,
            })
        };
        Seeds::new::<()>(experiment, &trainer, saved).unwrap()
    }

    #[test]
    fn finished_seeds_are_skipped_and_unfinished_ones_continue() {
        let experiment = Experiment::parse(EXPERIMENT).unwrap();
        let (seeds, mut trained) = (seeds(&experiment), Vec::new());
        let stopped: Result<_, ()> = seeds.work(|state| {
            trained.push((state.seed, state.round));
            state.round = 5;
            Ok(Outcome::Finished)
        });
        assert!(stopped.unwrap().is_none());
        assert_eq!(trained, [(1, 0), (3, 2), (4, 0)]);
        assert_eq!(seeds.finished(&experiment, &[]), [1, 2, 3, 4]);
    }

    #[test]
    fn a_stopped_seed_ends_the_work_and_later_seeds_are_not_finished() {
        let experiment = Experiment::parse(EXPERIMENT).unwrap();
        let seeds = seeds(&experiment);
        let stopped: Result<_, ()> = seeds.work(|state| {
            let stops = state.seed == 3;
            state.round += 1;
            Ok(if stops { Outcome::Stopped } else { Outcome::Finished })
        });
        let stopped = stopped.unwrap().unwrap();
        assert_eq!((stopped.seed, stopped.round), (3, 3));
        assert_eq!(seeds.finished(&experiment, &[stopped]), [1, 2]);
    }

    #[test]
    fn a_failed_seed_sets_the_flag_for_the_others() {
        let experiment = Experiment::parse(EXPERIMENT).unwrap();
        let seeds = seeds(&experiment);
        assert!(seeds.work(|_| Err("a full disk")).is_err());
        assert!(seeds.failed().load(Ordering::Relaxed));
    }
}
