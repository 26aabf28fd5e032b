//! Δ-FL: the devices in the upper θ-tail of the losses participate (Algorithms 2 and 3).

use super::{Algorithm, AlgorithmParts, Requires};
use crate::memory::AlgorithmState;
use crate::options::{
    Interval, InvalidOption, OptionDefault, OptionKind, OptionSpec, OptionValue, OptionValues,
};
use crate::selection::{ETA, ETA_ROUND, Learned, Needs, SMOOTH_TAIL, Selection, SummedTail, TAIL, Weighting};
use crate::superquantile::private::{LossRange, PrivateQuantile, Search};
use crate::superquantile::smooth::Smoothing;
use crate::superquantile::{Conformity, DeviceLoss, quantile};

/// Δ-FL.
pub static DELTA_FL: Algorithm = Algorithm {
    kind: "delta-fl",
    title: "Δ-FL",
    about: "trains on the devices in the upper θ-tail of the losses, and so minimises the superquantile of the device losses",
    options: &[
        OptionSpec {
            name: "theta",
            symbol: "θ",
            kind: OptionKind::Real(Interval { least: 0.0, open: true, most: 1.0 }),
            default: OptionDefault::Required,
            usual: None,
            levels: true,
            about: "conformity level, the mass of the tail that is kept",
            example: OptionValue::Real(0.5),
            grid: &[0.8, 0.5, 0.1],
        },
        OptionSpec {
            name: "quantile",
            symbol: "quantile",
            kind: OptionKind::Word(&["open", "histogram", "one-shot", "bisection", "mm", "tree"]),
            default: OptionDefault::Value(OptionValue::Word("open")),
            usual: None,
            levels: false,
            about: "how the server finds η: open sends it the losses, the others only secure sums",
            example: OptionValue::Word("histogram"),
            grid: &[],
        },
        OptionSpec {
            name: "eta_every",
            symbol: "T_η",
            kind: OptionKind::Whole(1),
            default: OptionDefault::Value(OptionValue::Whole(1)),
            usual: None,
            levels: false,
            about: "rounds between two searches for η",
            example: OptionValue::Whole(20),
            grid: &[],
        },
        OptionSpec {
            name: "eta_rule",
            symbol: "η",
            kind: OptionKind::Word(&["watched", "fixed"]),
            default: OptionDefault::Value(OptionValue::Word("watched")),
            usual: None,
            levels: false,
            about: "for eta_every > 1: watched finds η again as soon as the kept mass differs much from θ, fixed follows \
                    the paper exactly",
            example: OptionValue::Word("fixed"),
            grid: &[],
        },
        OptionSpec {
            name: "nu",
            symbol: "ν",
            kind: OptionKind::Real(Interval::NON_NEGATIVE),
            default: OptionDefault::Value(OptionValue::Real(0.0)),
            usual: None,
            levels: false,
            about: "smooths the tail: a device has the weight g'_ν(F_k − η); 0 is the filter of Algorithm 2",
            example: OptionValue::Real(0.0),
            grid: &[],
        },
    ],
    build: |options| Ok(Tail::from_options(options)?.into_parts()),
    weightings: &[&TAIL, &SMOOTH_TAIL],
    corrections: &[],
    requires: Requires::Sums,
};

/// The method by which Δ-FL finds the quantile of the losses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Quantile {
    /// The server sees the losses of the cohort (Algorithm 2).
    #[default]
    Open,
    /// The server sees sums only (Algorithm 3).
    Private(PrivateQuantile),
}

/// The handling of an η that is older than a round (T_η > 1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum EtaRule {
    /// η is recomputed in the next round if the mass that it keeps is far from θ. Losses decrease
    /// while η is constant, so the tail would soon be empty.
    #[default]
    Watched,
    /// η is constant for T_η rounds, regardless of the mass that it keeps. This follows the paper
    /// exactly.
    Fixed,
}

/// The selection of Δ-FL: the upper θ-tail of the losses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tail {
    /// θ.
    pub theta: Conformity,
    /// Open or private.
    pub quantile: Quantile,
    /// T_η: rounds between two searches for η.
    pub eta_every: u64,
    /// The handling of η between two searches.
    pub eta_rule: EtaRule,
    /// ν of the smoothed tail. The paper's experiments do not use it.
    pub nu: Option<Smoothing>,
}

/// The bounds of the range of losses that a private quantile has determined.
const RANGE: [&str; 2] = ["range.lower", "range.upper"];
/// The kept weight per answering device in the round in which η was found.
const FRESH_WEIGHT: &str = "eta.weight";
/// Set if η must be recomputed.
const STALE: &str = "eta.stale";
/// The relative difference below which losses are equal up to rounding.
const ROUNDING: f64 = 1e-12;

impl Tail {
    /// Creates Algorithm 2 at θ, with η in every round and no smoothing.
    pub fn new(theta: Conformity) -> Self {
        Self { theta, quantile: Quantile::Open, eta_every: 1, eta_rule: EtaRule::Watched, nu: None }
    }

    /// Creates the tail with these options.
    fn from_options(options: &OptionValues) -> Result<Self, InvalidOption> {
        let theta = Conformity::try_from(options.real("theta")?)
            .map_err(|e| InvalidOption::new("theta", e.to_string()))?;
        let quantile = match options.word("quantile")? {
            "open" => Quantile::Open,
            "one-shot" => Quantile::Private(PrivateQuantile::OneShot),
            "bisection" => Quantile::Private(PrivateQuantile::Bisection),
            "mm" => Quantile::Private(PrivateQuantile::Mm),
            "tree" => Quantile::Private(PrivateQuantile::Tree),
            _ => Quantile::Private(PrivateQuantile::TwoLevel),
        };
        let nu = Smoothing::try_from(options.real("nu")?).ok();
        if nu.is_some() && matches!(options.word("quantile")?, "bisection" | "mm") {
            let reason = "a smoothed tail needs quantile = open, histogram, one-shot or tree";
            return Err(InvalidOption::new("nu", reason));
        }
        let eta_rule = if options.word("eta_rule")? == "fixed" { EtaRule::Fixed } else { EtaRule::Watched };
        Ok(Self { theta, quantile, eta_every: options.whole("eta_every")?, eta_rule, nu })
    }

    /// Δ-FL with this tail.
    pub fn into_parts(self) -> AlgorithmParts {
        AlgorithmParts { selection: Box::new(self), theta: self.theta, ..AlgorithmParts::default() }
    }

    /// Computes η from the losses of the cohort. Returns `None` without devices.
    fn open_eta(&self, losses: &[DeviceLoss]) -> Option<f64> {
        match self.nu {
            Some(nu) => nu.minimisers(self.theta, losses).map(|minimisers| minimisers.eta()),
            None => quantile(self.theta, losses).map(|eta| least_equal(eta, losses)),
        }
    }

    fn range(memory: &AlgorithmState) -> LossRange {
        let [lower, upper] = RANGE.map(|end| memory.number(end));
        lower.zip(upper).and_then(|(lower, upper)| LossRange::new(lower, upper).ok()).unwrap_or_default()
    }

    /// Returns `true` if the mass that an old η keeps is far from θ.
    fn is_far(&self, mass: f64) -> bool {
        let theta = self.theta.get();
        mass < theta / 2.0 || mass > (2.0 * theta).min(f64::midpoint(1.0, theta))
    }
}

/// Returns the smallest loss that equals η up to rounding, through a chain of such losses. If all
/// devices have the same loss, as at w₀ = 0, rounding noise must not determine the tail.
fn least_equal(eta: f64, losses: &[DeviceLoss]) -> f64 {
    let mut below: Vec<f64> = losses.iter().map(DeviceLoss::loss).filter(|&loss| loss < eta).collect();
    below.sort_unstable_by(|a, b| b.total_cmp(a));
    below.into_iter().fold(
        eta,
        |least, loss| {
            if least - loss <= ROUNDING * least.abs() { loss } else { least }
        },
    )
}

impl Selection for Tail {
    fn needs(&self, round: u64, memory: &AlgorithmState) -> Needs {
        let in_force = memory.number(ETA).is_some() && memory.number(STALE).is_none();
        match self.quantile {
            _ if in_force && !round.is_multiple_of(self.eta_every) => Needs::Nothing,
            Quantile::Open => Needs::Losses,
            Quantile::Private(kind) => {
                Needs::Quantile(Search::new(kind, self.theta, self.nu, &Self::range(memory)))
            }
        }
    }

    fn learn(&self, round: u64, learned: Learned<'_>, memory: &mut AlgorithmState) {
        let eta = match learned {
            Learned::Nothing | Learned::NamedLosses(_) => return,
            Learned::Losses(losses) => self.open_eta(losses),
            Learned::Quantile(search) => {
                memory.set_number(RANGE[0], search.range().lower());
                memory.set_number(RANGE[1], search.range().upper());
                search.eta()
            }
        };
        memory.forget(STALE);
        memory.forget(FRESH_WEIGHT);
        match eta {
            Some(eta) => {
                memory.set_number(ETA, eta);
                memory.set_number(ETA_ROUND, round as f64);
            }
            None => {
                memory.forget(ETA);
                memory.forget(ETA_ROUND);
            }
        }
    }

    fn weighting(&self, memory: &AlgorithmState) -> Weighting {
        match (memory.number(ETA), self.nu) {
            // No loss was finite, so devices cannot be compared and all of them train.
            (None, _) => Weighting::everyone(),
            (Some(eta), Some(nu)) => Weighting::smooth_tail(eta, nu),
            (Some(eta), None) => Weighting::tail(eta),
        }
    }

    fn keeps_threshold(&self) -> bool {
        self.eta_every > 1
    }

    /// Stores the mean weight that a device keeps in the round in which η is found. In that round a
    /// share θ of the cohort's weight is kept. Later rounds are compared with it, because the
    /// server never knows the weight of a whole cohort.
    fn observe(&self, summed: &SummedTail<'_>, memory: &mut AlgorithmState) {
        let Some(found) = memory.number(ETA_ROUND) else { return };
        if self.eta_every == 1 || self.eta_rule == EtaRule::Fixed || summed.answered == 0 {
            return;
        }
        let per_device = summed.tail_weight / summed.answered as f64;
        if summed.round as f64 <= found {
            memory.set_number(FRESH_WEIGHT, per_device);
        } else if let Some(fresh) = memory.number(FRESH_WEIGHT)
            && (fresh <= 0.0 || self.is_far(self.theta.get() * per_device / fresh))
        {
            memory.set_number(STALE, 1.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selection::DeviceFacts;
    use crate::superquantile::tests::{devices, theta};

    fn summed(round: u64, tail_weight: f64) -> SummedTail<'static> {
        SummedTail { round, answered: 10, tail_weight, reports: &[] }
    }

    fn learned(tail: &Tail, round: u64, losses: &[DeviceLoss]) -> AlgorithmState {
        let mut memory = AlgorithmState::default();
        tail.learn(round, Learned::Losses(losses), &mut memory);
        memory
    }

    #[test]
    fn losses_that_differ_by_rounding_alone_are_all_in_the_tail() {
        let ln = 62f64.ln();
        let noise: Vec<(f64, f64)> = (0..50).map(|k| (ln + f64::from(k % 7) * 8.9e-16, 10.0)).collect();
        let memory = learned(&Tail::new(theta(0.1)), 0, &devices(&noise));
        let weighting = Tail::new(theta(0.1)).weighting(&memory);
        assert!(noise.iter().all(|&(loss, _)| weighting.share(&DeviceFacts {
            loss,
            steps: 1,
            examples: 1,
            group: 0
        }) == 1.0));
    }

    #[test]
    fn losses_that_differ_by_more_are_told_apart() {
        let losses = devices(&[(1.0, 1.0), (1.0 + 1e-9, 1.0), (2.0, 2.0)]);
        assert_eq!(learned(&Tail::new(theta(0.4)), 0, &losses).number(ETA), Some(2.0));
        assert_eq!(learned(&Tail::new(theta(0.6)), 0, &losses).number(ETA), Some(1.0 + 1e-9));
    }

    #[test]
    fn an_old_eta_that_keeps_far_too_little_is_found_anew() {
        let tail = Tail { eta_every: 100, ..Tail::new(theta(0.5)) };
        let mut memory = learned(&tail, 0, &devices(&[(1.0, 1.0), (2.0, 1.0)]));
        tail.observe(&summed(0, 50.0), &mut memory);
        tail.observe(&summed(1, 40.0), &mut memory);
        assert!(matches!(tail.needs(2, &memory), Needs::Nothing));
        tail.observe(&summed(2, 10.0), &mut memory);
        assert!(matches!(tail.needs(3, &memory), Needs::Losses));
        tail.learn(3, Learned::Losses(&devices(&[(0.5, 1.0)])), &mut memory);
        assert_eq!((memory.number(ETA), memory.number(ETA_ROUND)), (Some(0.5), Some(3.0)));
        tail.observe(&summed(3, 50.0), &mut memory);
        assert!(matches!(tail.needs(4, &memory), Needs::Nothing));
        tail.observe(&summed(4, 90.0), &mut memory);
        assert!(matches!(tail.needs(5, &memory), Needs::Losses));
    }

    #[test]
    fn the_letter_of_the_paper_keeps_eta_whatever_it_keeps() {
        let tail = Tail { eta_every: 100, eta_rule: EtaRule::Fixed, ..Tail::new(theta(0.5)) };
        let mut memory = learned(&tail, 0, &devices(&[(1.0, 1.0), (2.0, 1.0)]));
        (0..5).for_each(|round| tail.observe(&summed(round, 0.0), &mut memory));
        assert!(matches!(tail.needs(5, &memory), Needs::Nothing));
        assert!(matches!(tail.needs(100, &memory), Needs::Losses));
    }
}
