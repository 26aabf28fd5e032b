//! Δ-FL: the devices in the upper θ-tail of the losses take part (Algorithms 2 and 3).

use serde::{Deserialize, Serialize};

use super::{Algorithm, Threshold};
use crate::device::Admission;
use crate::superquantile::private::PrivateQuantile;
use crate::superquantile::smooth::Smoothing;
use crate::superquantile::{Conformity, DeviceLoss, quantile};

/// How Δ-FL finds the quantile of the losses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Quantile {
    /// The server sees the losses of the cohort (Algorithm 2).
    #[default]
    Open,
    /// The server sees sums only (Algorithm 3).
    Private(PrivateQuantile),
}

/// Δ-FL at one conformity level.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeltaFl {
    /// θ.
    pub theta: Conformity,
    /// Open or private.
    pub quantile: Quantile,
    /// T_η: rounds between two updates of η.
    pub eta_every: u64,
    /// ν of the smoothed tail; none in the paper's experiments.
    pub nu: Option<Smoothing>,
}

impl DeltaFl {
    /// Algorithm 2 at θ, with η in every round and no smoothing.
    pub fn new(theta: Conformity) -> Self {
        Self { theta, quantile: Quantile::Open, eta_every: 1, nu: None }
    }
}

impl Algorithm for DeltaFl {
    fn name(&self) -> &'static str {
        "delta-fl"
    }

    fn theta(&self) -> Conformity {
        self.theta
    }

    fn threshold(&self, round: u64, eta: Option<f64>) -> Threshold {
        match self.quantile {
            _ if eta.is_some() && !round.is_multiple_of(self.eta_every) => Threshold::Kept,
            Quantile::Open => Threshold::Open,
            Quantile::Private(kind) => Threshold::Private(kind),
        }
    }

    fn eta(&self, losses: &[DeviceLoss]) -> Option<f64> {
        match self.nu {
            Some(nu) => nu.minimisers(self.theta, losses).map(|minimisers| minimisers.eta()),
            None => quantile(self.theta, losses),
        }
    }

    fn admission(&self, eta: Option<f64>) -> Admission {
        match (eta, self.nu) {
            // No loss was finite: nobody can be compared, everyone tries.
            (None, _) => Admission::Everyone,
            (Some(eta), Some(nu)) => Admission::Smooth { eta, nu },
            (Some(eta), None) => Admission::Tail { eta },
        }
    }
}

impl Serialize for Quantile {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Open => serializer.serialize_str("open"),
            Self::Private(kind) => kind.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Quantile {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        if name == "open" {
            return Ok(Self::Open);
        }
        let known: Result<_, serde::de::value::Error> =
            PrivateQuantile::deserialize(serde::de::value::StrDeserializer::new(&name));
        known.map(Self::Private).map_err(|_| {
            let expected = "expected open, histogram, one-shot, bisection or mm";
            serde::de::Error::custom(format_args!("unknown quantile {name:?}: {expected}"))
        })
    }
}
