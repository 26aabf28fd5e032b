//! FedAvg: every device of the cohort takes part.

use super::{Algorithm, Threshold};
use crate::device::Admission;
use crate::superquantile::{Conformity, DeviceLoss};

/// Federated averaging (McMahan et al., 2017): Δ-FL at θ = 1 without looking at the losses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FedAvg;

impl Algorithm for FedAvg {
    fn name(&self) -> &'static str {
        "fedavg"
    }

    fn theta(&self) -> Conformity {
        Conformity::FULL
    }

    fn threshold(&self, _round: u64, _eta: Option<f64>) -> Threshold {
        Threshold::None
    }

    fn eta(&self, _losses: &[DeviceLoss]) -> Option<f64> {
        None
    }

    fn admission(&self, _eta: Option<f64>) -> Admission {
        Admission::Everyone
    }
}
