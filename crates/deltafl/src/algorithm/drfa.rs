//! DRFA: devices are drawn by λ (Deng et al., "Distributionally Robust Federated Averaging", NeurIPS
//! 2020).
//!
//! ```text
//! m devices are drawn from λ_t with replacement; w_{t+1} is the mean of their updates
//! λ_{t+1} = projection of λ_t + γ_λ F(w_t) on the simplex
//! ```
//!
//! λ and its projection are those of AFL. Devices are drawn from the cohort of the round, which is a
//! uniform sample, so a cohort of all devices gives the rule of the paper. λ ascends along the losses
//! at w_t, where the paper uses the model of a random local step. The server knows λ and the loss of
//! each device by name, so only open simulations can use it.

use super::afl::{Density, LAMBDA_RATE, NAMED_LOSSES};
use super::{Algorithm, AlgorithmParts};
use crate::exchange::CohortMember;
use crate::memory::AlgorithmState;
use crate::selection::{Learned, Needs, Selection, SummedTail, Weighting};
use crate::stream::Stream;

/// DRFA.
pub static DRFA: Algorithm = Algorithm {
    kind: "drfa",
    title: "DRFA",
    about: "devices are drawn by weights that ascend along the losses",
    options: &[LAMBDA_RATE],
    build: |options| {
        let rate = options.real("lambda_rate")?;
        Ok(AlgorithmParts { selection: Box::new(DrawnByLambda { rate }), ..AlgorithmParts::default() })
    },
    weightings: &[],
    corrections: &[],
    requires: NAMED_LOSSES,
};

/// Ascends λ, and draws devices by it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct DrawnByLambda {
    rate: f64,
}

impl Selection for DrawnByLambda {
    fn needs(&self, _round: u64, _memory: &AlgorithmState) -> Needs {
        Needs::NamedLosses
    }

    fn learn(&self, _round: u64, learned: Learned<'_>, memory: &mut AlgorithmState) {
        if let Learned::NamedLosses(losses) = learned {
            Density::ascend(self.rate, losses, memory);
        }
    }

    fn weighting(&self, _memory: &AlgorithmState) -> Weighting {
        Weighting::everyone()
    }

    /// Draws as many devices as answer. The share of a device is the number of its draws. With the
    /// weights α of the devices, λ is α times this share in expectation.
    fn named_shares(
        &self,
        cohort: &[CohortMember],
        stream: &mut Stream,
        memory: &AlgorithmState,
    ) -> Option<Vec<f64>> {
        let density = |drawn: &CohortMember| match drawn.dropped {
            true => 0.0,
            false => Density::get(memory, drawn.device),
        };
        let densities: Vec<f64> = cohort.iter().map(density).collect();
        let total: f64 = densities.iter().sum();
        let mut shares = vec![0.0; cohort.len()];
        for _ in 0..cohort.iter().filter(|drawn| !drawn.dropped).count() {
            let mut rest = stream.unit() * total;
            let drawn = densities.iter().position(|density| {
                rest -= density;
                rest < 0.0
            });
            if let Some(place) = drawn {
                shares[place] += 1.0;
            }
        }
        Some(shares)
    }

    fn observe(&self, _summed: &SummedTail<'_>, memory: &mut AlgorithmState) {
        Density::advance(memory);
    }
}
