//! The algorithms. Each has its own file and a line in [`ALGORITHMS`].
//!
//! Three independent parts train a track of a run:
//!
//! ```text
//! Selection      the devices that count, and their weights  crate::selection
//! LocalTrainer   the local training of a device from w      crate::trainer
//! ServerStep     computes w_{t+1} from the sum              crate::server_step
//! ```
//!
//! An [`Algorithm`] declares its options and builds the parts from them. All other code reads the
//! table. The experiment file validates options with it, questions look up weightings in it, and
//! tables, pages and the server take the names of tracks from it. To add an algorithm, copy
//! `fed_avg.rs` and add its line.

use crate::aggregation::Aggregation;
use crate::options::{InvalidOption, OptionSpec, OptionValue, OptionValues};
use crate::selection::{Everyone, Selection, WeightingKind};
use crate::server_step::{Mean, ServerStep};
use crate::superquantile::Conformity;
use crate::trainer::{Correction, Personal};

mod afl;
mod agnostic_groups;
pub mod alternating;
mod apfl;
mod composed;
mod delta_fl;
mod ditto;
mod drfa;
mod fed_adagrad;
mod fed_adam;
mod fed_avg;
mod fed_avg_m;
mod fed_dyn;
mod fed_nova;
mod fed_prox;
mod fed_prox_adaptive;
mod fed_yogi;
mod fine_tuning;
mod geometric_median;
mod gifair;
mod gifair_sums;
mod krum;
mod median;
mod prop_fair;
mod q_ffl;
mod scaffold;
mod semi_vred;
mod term;
mod track;
mod trimmed_mean;

pub use afl::AFL;
pub use agnostic_groups::AGNOSTIC_GROUPS;
pub use apfl::APFL;
pub use composed::{DELTA_FL_DITTO, DELTA_FL_FED_ADAM, DELTA_FL_FED_PROX, DELTA_FL_SCAFFOLD};
pub use delta_fl::{DELTA_FL, EtaRule, Quantile, Tail};
pub use ditto::DITTO;
pub use drfa::DRFA;
pub use fed_adagrad::FED_ADAGRAD;
pub use fed_adam::FED_ADAM;
pub use fed_avg::FED_AVG;
pub use fed_avg_m::FED_AVG_M;
pub use fed_dyn::{DYNAMIC_REGULARISER, FED_DYN};
pub use fed_nova::FED_NOVA;
pub use fed_prox::FED_PROX;
pub use fed_prox_adaptive::FED_PROX_ADAPTIVE;
pub use fed_yogi::FED_YOGI;
pub use fine_tuning::FINE_TUNING;
pub use geometric_median::GEOMETRIC_MEDIAN;
pub use gifair::GIFAIR;
pub use gifair_sums::GIFAIR_SUMS;
pub use krum::KRUM;
pub use median::MEDIAN;
pub use prop_fair::PROP_FAIR;
pub use q_ffl::Q_FFL;
pub use scaffold::{CONTROL_VARIATE, SCAFFOLD};
pub use semi_vred::SEMI_VRED;
pub use term::TERM;
pub use track::{Track, TrackLabel, track_names};
pub use trimmed_mean::TRIMMED_MEAN;

/// All algorithms that an experiment can name.
pub static ALGORITHMS: &[&Algorithm] = &[
    &FED_AVG,
    &DELTA_FL,
    &FED_PROX,
    &FED_ADAM,
    &SCAFFOLD,
    &FED_AVG_M,
    &FED_YOGI,
    &FED_ADAGRAD,
    &FED_PROX_ADAPTIVE,
    &FED_NOVA,
    &FED_DYN,
    &Q_FFL,
    &TERM,
    &PROP_FAIR,
    &SEMI_VRED,
    &GIFAIR,
    &GIFAIR_SUMS,
    &AFL,
    &DRFA,
    &AGNOSTIC_GROUPS,
    &MEDIAN,
    &TRIMMED_MEAN,
    &GEOMETRIC_MEDIAN,
    &KRUM,
    &DELTA_FL_FED_ADAM,
    &DELTA_FL_FED_PROX,
    &DELTA_FL_SCAFFOLD,
    &DELTA_FL_DITTO,
    &DITTO,
    &FINE_TUNING,
    &APFL,
];

/// A training algorithm.
#[derive(Debug)]
pub struct Algorithm {
    /// Its name in files: `kind = "…"`.
    pub kind: &'static str,
    /// Its name in tables.
    pub title: &'static str,
    /// A one-sentence description.
    pub about: &'static str,
    /// The options.
    pub options: &'static [OptionSpec],
    /// Builds its parts from checked options.
    pub build: fn(&OptionValues) -> Result<AlgorithmParts, InvalidOption>,
    /// The weightings that its questions name.
    pub weightings: &'static [&'static WeightingKind],
    /// The corrections of local steps that its questions use.
    pub corrections: &'static [&'static Correction],
    /// The answers that its server needs.
    pub requires: Requires,
}

/// The answers that the server of an algorithm needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requires {
    /// Sums over the cohort. The algorithm works in private mode and in deployments.
    Sums,
    /// Sums over the cohort, and devices that a deployment does not have, for this reason. The
    /// algorithm works in private mode.
    Simulation(&'static str),
    /// The answers of individual devices, for this reason. Only open simulations provide them.
    Open(&'static str),
}

impl Algorithm {
    /// Validates options of this algorithm. Missing options have their defaults.
    pub fn options_with<'a>(
        &self,
        given: impl IntoIterator<Item = (&'a str, OptionValue)>,
    ) -> Result<OptionValues, InvalidOption> {
        OptionValues::new(self.kind, self.options, given)
    }
}

/// The parts of an algorithm.
pub struct AlgorithmParts {
    /// Which devices count, and how much.
    pub selection: Box<dyn Selection>,
    /// μ of the proximal term of the local update, or 0 for none.
    pub proximal: f32,
    /// The correction of the local steps.
    pub correction: Option<&'static Correction>,
    /// The personal models of devices.
    pub personal: Option<Personal>,
    /// The aggregation of the updates of individual devices; `None` for their sum.
    pub aggregation: Option<Box<dyn Aggregation>>,
    /// The server step, which computes w_{t+1} from the sum.
    pub server: Box<dyn ServerStep>,
    /// The mass of the devices that is kept, or 1 if every device counts.
    pub theta: Conformity,
}

/// The parts of FedAvg: every device counts, plain SGD, the weighted mean.
impl Default for AlgorithmParts {
    fn default() -> Self {
        Self {
            selection: Box::new(Everyone),
            proximal: 0.0,
            correction: None,
            personal: None,
            aggregation: None,
            server: Box::new(Mean),
            theta: Conformity::FULL,
        }
    }
}

impl AlgorithmParts {
    /// Combines the selection of `self` with the local training and the server step of another
    /// algorithm.
    #[must_use]
    pub fn trained_by(self, other: Self) -> Self {
        Self { selection: self.selection, theta: self.theta, ..other }
    }
}

/// Returns the algorithm with this name.
pub fn find(kind: &str) -> Option<&'static Algorithm> {
    ALGORITHMS.iter().copied().find(|algorithm| algorithm.kind == kind)
}

/// Returns the weighting with this name, of any algorithm.
pub fn weighting_kind(name: &str) -> Option<&'static WeightingKind> {
    let all = ALGORITHMS.iter().flat_map(|algorithm| algorithm.weightings);
    all.copied().find(|kind| kind.name == name)
}

/// Returns the correction with this name, of any algorithm.
pub fn correction(name: &str) -> Option<&'static Correction> {
    let all = ALGORITHMS.iter().flat_map(|algorithm| algorithm.corrections);
    all.copied().find(|correction| correction.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selection::MAX_NUMBERS;

    #[test]
    fn kinds_options_and_weightings_have_names_of_their_own() {
        for (i, algorithm) in ALGORITHMS.iter().enumerate() {
            assert!(ALGORITHMS[..i].iter().all(|other| other.kind != algorithm.kind));
            for (j, option) in algorithm.options.iter().enumerate() {
                assert!(
                    algorithm.options[..j].iter().all(|other| other.name != option.name),
                    "{}",
                    option.name
                );
                assert!(!["kind", "l2"].contains(&option.name), "{} is taken", option.name);
            }
        }
        let all: Vec<&WeightingKind> = ALGORITHMS.iter().flat_map(|a| a.weightings.iter().copied()).collect();
        for kind in &all {
            assert!(std::ptr::eq(weighting_kind(kind.name).unwrap(), *kind), "two weightings {}", kind.name);
            assert!(kind.numbers.len() <= MAX_NUMBERS && kind.name.len() <= usize::from(u8::MAX));
        }
        let all: Vec<&Correction> = ALGORITHMS.iter().flat_map(|a| a.corrections.iter().copied()).collect();
        for kind in &all {
            assert!(std::ptr::eq(correction(kind.name).unwrap(), *kind), "two corrections {}", kind.name);
            assert!((1..=usize::from(u8::MAX)).contains(&kind.name.len()));
        }
    }

    #[test]
    fn every_algorithm_builds_from_its_examples() {
        for algorithm in ALGORITHMS {
            let example = |option: &OptionSpec| (option.name, option.example);
            let options = algorithm.options_with(algorithm.options.iter().map(example)).unwrap();
            (algorithm.build)(&options).unwrap();
        }
    }

    #[test]
    fn every_value_of_a_grid_builds() {
        for algorithm in ALGORITHMS {
            for option in algorithm.options {
                for &value in option.grid {
                    let example = |other: &OptionSpec| (other.name, other.example);
                    let others =
                        algorithm.options.iter().filter(|other| other.name != option.name).map(example);
                    let given = others.chain([(option.name, OptionValue::Real(value))]);
                    let options = algorithm.options_with(given).unwrap();
                    assert!(
                        (algorithm.build)(&options).is_ok(),
                        "{} {} {value}",
                        algorithm.kind,
                        option.name
                    );
                }
            }
        }
    }
}
