//! Differential privacy of devices: noisy sums, their cost, and the noise that a budget needs.
//!
//! | item | purpose |
//! |---|---|
//! | [`PrivacyPlan`] | the budget of a run, divided among its sums |
//! | [`Noise`] | the noise of one query, which devices sign |
//! | [`Rho`], [`Sensitivity`] | the cost of a noisy sum, and its conversion to (ε, δ) |
//! | [`Excess`] | noise that is removed after the survivors are known |
//! | [`CorrelatedNoise`] | the error of noise that is correlated over rounds, by calculation |
//! | [`quantile_error`] | the error of a noisy quantile |
//! | [`SampledRound`] | amplification by sampling, for adversaries who do not know the cohorts |
//!
//! `docs/src/explanation/privacy.md` explains ε for readers who do not know differential privacy.

mod accountant;
mod budget;
mod correlated;
pub(crate) mod excess;
pub(crate) mod noise;
mod quantile_error;
mod sampled;
pub(crate) mod update;

pub use accountant::{Delta, InvalidDelta, Rho, Sensitivity};
pub use budget::{BudgetShares, ClipRule, Mechanism, Participation, PrivacyPlan};
pub use correlated::CorrelatedNoise;
pub use excess::{Excess, ExcessKey};
pub use noise::{Noise, NoiseTooLarge};
pub use quantile_error::quantile_error;
pub use sampled::SampledRound;
