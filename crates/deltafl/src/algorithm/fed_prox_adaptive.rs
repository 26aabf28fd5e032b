//! FedProx with a μ that follows the loss: the heuristic of its paper (Li et al., 2020).
//!
//! ```text
//! w_k = LocalUpdate of  f_k(w) + (μ/2)‖w − w_t‖²
//! μ  ← μ + step      if the mean loss of the cohort is larger than in the round before
//! μ  ← μ − step      if it was not larger in five consecutive rounds; at least 0
//! ```
//!
//! Devices report their losses in the sum of the updates. The server learns their mean only, so the
//! algorithm works under secure sums. The loss of a round changes μ of the next one.

use super::{Algorithm, AlgorithmParts, Requires};
use crate::memory::AlgorithmState;
use crate::options::{Interval, OptionSpec};
use crate::selection::{Learned, LossMean, MEAN_LOSS, Needs, PROXIMAL, Selection, SummedTail, Weighting};

/// FedProx with an adaptive μ.
pub static FED_PROX_ADAPTIVE: Algorithm = Algorithm {
    kind: "fedprox-adaptive",
    title: "FedProx, adaptive μ",
    about: "federated averaging with a proximal term that grows when the loss grows",
    options: &[
        OptionSpec::real(
            "first_mu",
            "μ₀",
            Interval::NON_NEGATIVE,
            0.0,
            "the proximal weight in the first round",
        ),
        OptionSpec::real("mu_step", "Δμ", Interval::NON_NEGATIVE, 0.1, "the change of μ in a round")
            .with_grid(&[0.01, 0.1, 1.0]),
    ],
    build: |options| {
        let (first, step) = (options.real("first_mu")?, options.real("mu_step")?);
        Ok(AlgorithmParts {
            selection: Box::new(FollowLoss { first, step }),
            proximal: first as f32,
            ..AlgorithmParts::default()
        })
    },
    weightings: &[&MEAN_LOSS],
    corrections: &[],
    requires: Requires::Sums,
};

/// The number of rounds without an increase of the loss after which μ decreases.
const PATIENCE: f64 = 5.0;
/// The number of consecutive rounds without an increase, in the track's memory.
const DECREASES: &str = "proximal.decreases";

/// Every device counts, and μ follows the mean loss.
#[derive(Clone, Copy, Debug, PartialEq)]
struct FollowLoss {
    first: f64,
    step: f64,
}

impl Selection for FollowLoss {
    fn needs(&self, _round: u64, _memory: &AlgorithmState) -> Needs {
        Needs::Nothing
    }

    fn learn(&self, _round: u64, _learned: Learned<'_>, _memory: &mut AlgorithmState) {}

    fn weighting(&self, _memory: &AlgorithmState) -> Weighting {
        Weighting::mean_loss()
    }

    fn observe(&self, summed: &SummedTail<'_>, memory: &mut AlgorithmState) {
        let Some(losses) = LossMean::from_reports(summed.reports) else { return };
        if let Some(before) = LossMean::read(memory) {
            let mu = memory.number(PROXIMAL).unwrap_or(self.first);
            let decreases = memory.number(DECREASES).unwrap_or(0.0) + 1.0;
            let (mu, decreases) = match losses.mean > before.mean {
                true => (mu + self.step, 0.0),
                false if decreases >= PATIENCE => ((mu - self.step).max(0.0), 0.0),
                false => (mu, decreases),
            };
            memory.set_number(PROXIMAL, mu);
            memory.set_number(DECREASES, decreases);
        }
        losses.store(memory);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mu_grows_with_the_loss_and_shrinks_after_five_rounds_without_growth() {
        let (rule, mut memory) = (FollowLoss { first: 0.5, step: 0.25 }, AlgorithmState::default());
        let mut mu_after = |loss: f64| {
            let reports = [2.0, 2.0 * loss];
            rule.observe(
                &SummedTail { round: 0, answered: 2, tail_weight: 2.0, reports: &reports },
                &mut memory,
            );
            memory.number(PROXIMAL)
        };
        assert_eq!(mu_after(1.0), None);
        assert_eq!(mu_after(2.0), Some(0.75));
        let falling = [1.9, 1.8, 1.7, 1.6, 1.5, 1.4].map(|loss| mu_after(loss).unwrap());
        assert_eq!(falling, [0.75, 0.75, 0.75, 0.75, 0.5, 0.5]);
        assert_eq!(mu_after(3.0), Some(0.75));
    }
}
