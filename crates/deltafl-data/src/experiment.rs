//! Experiments: the TOML file that says what is trained, checked on entry.
//!
//! Every number has a type that cannot hold a wrong one, so that an error points at the value in the file and
//! nothing behind has to check again. A file written back has every default in it.

use std::fmt;
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};

use serde::{Deserialize, Serialize};

use crate::run_folder::Difference;
use deltafl::algorithm::{Algorithm, DeltaFl, FedAvg, Quantile};
use deltafl::cohort::{Availability, Sampling};
use deltafl::device::Work;
use deltafl::kernel::Isa;
use deltafl::superquantile::Conformity;
use deltafl::superquantile::smooth::Smoothing;
use deltafl::training::{self, Decay, Plan};

mod address;
mod data;
mod list;
mod model;
mod number;
mod split;

pub use data::{DataSection, LoadError, Source};
pub use list::OneOrMore;
pub use model::{ForeignOption, ModelKind, ModelSection};
pub use number::{NonNegative, OutOfRange, Positive, Probability};
pub use split::{InvalidSplitSection, SplitSection};

/// An experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// Its name, and that of its run folder.
    pub name: String,
    /// A run each.
    #[serde(default = "first_seed")]
    pub seeds: OneOrMore<u64>,
    /// T.
    pub rounds: NonZeroU64,
    /// m, the devices drawn in a round.
    pub cohort: NonZeroUsize,
    /// Draw them with replacement, as the paper writes it.
    #[serde(default)]
    pub with_replacement: bool,
    /// Rounds between two evaluations of every device.
    #[serde(default = "ten")]
    pub evaluate_every: NonZeroU64,
    /// Whether sums in a simulation go through the real protocol.
    #[serde(default)]
    pub secagg: SecureAggregation,
    /// The devices and their examples.
    pub data: DataSection,
    /// What they train.
    pub model: ModelSection,
    /// How they train.
    pub local: LocalSection,
    /// Who is away, and who vanishes.
    #[serde(default)]
    pub availability: Availability,
    /// How the server combines them; each level of θ is a track.
    pub algorithm: Vec<AlgorithmSection>,
    /// What a run folder adds: ignored in a file that is to be run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolved: Option<Resolved>,
}

/// How a simulation adds up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SecureAggregation {
    /// Without masks: the same bits.
    #[default]
    Plain,
    /// By the protocol that the deployed server speaks.
    Real,
}

/// LocalUpdate (spec §3).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LocalSection {
    /// Passes over the device's examples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epochs: Option<NonZeroU32>,
    /// n_local, instead of epochs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<NonZeroU32>,
    /// Examples per step.
    pub batch: NonZeroUsize,
    /// γ₀.
    pub learning_rate: Positive,
    /// γ_t = γ₀·factor^⌊t/every⌋.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decay: Option<DecaySection>,
}

/// How the learning rate decays.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecaySection {
    /// c.
    pub factor: Positive,
    /// t₀.
    pub every: NonZeroU64,
}

/// An algorithm, and the levels at which it trains.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AlgorithmSection {
    /// Which.
    pub kind: AlgorithmKind,
    /// θ, a track each; Δ-FL needs at least one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub theta: Option<OneOrMore<Conformity>>,
    /// How Δ-FL finds η.
    #[serde(default)]
    pub quantile: Quantile,
    /// T_η.
    #[serde(default = "one")]
    pub eta_every: NonZeroU64,
    /// ν.
    #[serde(default)]
    pub nu: NonNegative,
    /// λ, instead of that of the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub l2: Option<NonNegative>,
}

/// The algorithms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AlgorithmKind {
    /// Federated averaging.
    #[serde(rename = "fedavg")]
    FedAvg,
    /// Δ-FL.
    DeltaFl,
}

/// What a run folder adds to its experiment, so that a run can be told from another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resolved {
    /// Our version.
    pub version: String,
    /// BLAKE3 of the data.
    pub data_hash: String,
    /// The instruction set of the kernels: bits may differ between two.
    pub kernel: Isa,
    /// d.
    pub params: usize,
}

/// What a track is called.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrackLabel {
    /// Name of the algorithm.
    pub algorithm: String,
    /// θ.
    pub theta: Conformity,
}

impl fmt::Display for TrackLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.algorithm.as_str() {
            "fedavg" => f.write_str("FedAvg"),
            "delta-fl" => write!(f, "Δ-FL θ={}", self.theta),
            other => write!(f, "{other} θ={}", self.theta),
        }
    }
}

/// A track of an experiment.
pub struct LabelledTrack {
    /// What it is called.
    pub label: TrackLabel,
    /// How it is trained.
    pub track: training::Track,
}

/// What is wrong with an experiment whose values are each right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidExperiment {
    /// No algorithm.
    #[error("there is no [[algorithm]]: an experiment trains at least one")]
    NoAlgorithm,
    /// Δ-FL without a level.
    #[error("[[algorithm]] {index} is delta-fl without theta: give one level in (0, 1] or a list of them")]
    NoTheta {
        /// Counted from 1.
        index: usize,
    },
    /// FedAvg with a level.
    #[error("[[algorithm]] {index} is fedavg, which has no theta: it is delta-fl at theta = 1")]
    ThetaOfFedAvg {
        /// Counted from 1.
        index: usize,
    },
    /// An option of another model.
    #[error(transparent)]
    Model(#[from] ForeignOption),
    /// Both or neither of epochs and steps.
    #[error("[local] needs either epochs or steps, not both")]
    Work,
}

impl Experiment {
    /// Checks what no single value shows.
    pub fn validate(&self) -> Result<(), InvalidExperiment> {
        if self.algorithm.is_empty() {
            return Err(InvalidExperiment::NoAlgorithm);
        }
        for (i, section) in self.algorithm.iter().enumerate() {
            match (section.kind, &section.theta) {
                (AlgorithmKind::DeltaFl, None) => return Err(InvalidExperiment::NoTheta { index: i + 1 }),
                (AlgorithmKind::FedAvg, Some(_)) => {
                    return Err(InvalidExperiment::ThetaOfFedAvg { index: i + 1 });
                }
                _ => {}
            }
        }
        self.model.validate()?;
        if self.local.epochs.is_some() == self.local.steps.is_some() {
            return Err(InvalidExperiment::Work);
        }
        Ok(())
    }

    /// The tracks, in the order of the file.
    pub fn tracks(&self) -> Vec<LabelledTrack> {
        let l2_of = |section: &AlgorithmSection| section.l2.unwrap_or(self.model.l2).get() as f32;
        let labelled = |algorithm: Box<dyn Algorithm>, section: &AlgorithmSection| LabelledTrack {
            label: TrackLabel { algorithm: algorithm.name().to_owned(), theta: algorithm.theta() },
            track: training::Track { algorithm, l2: l2_of(section) },
        };
        let mut tracks = Vec::new();
        for section in &self.algorithm {
            match section.kind {
                AlgorithmKind::FedAvg => tracks.push(labelled(Box::new(FedAvg), section)),
                AlgorithmKind::DeltaFl => {
                    for &theta in section.theta.iter().flat_map(OneOrMore::iter) {
                        let algorithm = DeltaFl {
                            theta,
                            quantile: section.quantile,
                            eta_every: section.eta_every.get(),
                            nu: Smoothing::try_from(section.nu.get()).ok(),
                        };
                        tracks.push(labelled(Box::new(algorithm), section));
                    }
                }
            }
        }
        tracks
    }

    /// What the round loop needs.
    pub fn plan(&self) -> Plan {
        Plan {
            rounds: self.rounds.get(),
            sampling: Sampling {
                cohort_size: self.cohort.get(),
                with_replacement: self.with_replacement,
                availability: self.availability,
            },
            local: training::Local {
                work: match (self.local.epochs, self.local.steps) {
                    (_, Some(steps)) => Work::Steps(steps.get()),
                    (epochs, None) => Work::Epochs(epochs.map_or(1, NonZeroU32::get)),
                },
                batch: self.local.batch.get(),
                learning_rate: self.local.learning_rate.get(),
                decay: self.local.decay.map(|d| Decay { factor: d.factor.get(), every: d.every.get() }),
            },
            evaluate_every: self.evaluate_every.get(),
            tracks: self.tracks().into_iter().map(|labelled| labelled.track).collect(),
        }
    }

    /// Levels that leave too few devices in the tail to hide in: θ·m < 10 (spec §9).
    pub fn thin_tails(&self) -> Vec<TrackLabel> {
        let labels = self.tracks().into_iter().map(|track| track.label);
        labels.filter(|label| label.theta.get() * (self.cohort.get() as f64) < 10.0).collect()
    }

    /// Whether the server learns losses one by one, to find η (open mode).
    pub fn is_open(&self) -> bool {
        let open = |section: &AlgorithmSection| {
            section.kind == AlgorithmKind::DeltaFl && section.quantile == Quantile::Open
        };
        self.algorithm.iter().any(open)
    }

    /// The experiment as TOML, with every default written out.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("an experiment has string keys and finite numbers")
    }

    /// The keys in which another experiment differs.
    pub fn differences(&self, now: &Self) -> Vec<Difference> {
        let before = flattened(self);
        let now = flattened(now);
        let keys: std::collections::BTreeSet<&String> = before.keys().chain(now.keys()).collect();
        keys.into_iter()
            .filter(|key| before.get(*key) != now.get(*key))
            .map(|key| Difference {
                key: key.clone(),
                before: before.get(key).cloned(),
                now: now.get(key).cloned(),
            })
            .collect()
    }
}

/// Dotted keys and their values.
fn flattened(experiment: &Experiment) -> std::collections::BTreeMap<String, String> {
    fn walk(key: &str, value: &toml::Value, flat: &mut std::collections::BTreeMap<String, String>) {
        let below = |name: &str| if key.is_empty() { name.to_owned() } else { format!("{key}.{name}") };
        match value {
            toml::Value::Table(table) => {
                table.iter().for_each(|(name, value)| walk(&below(name), value, flat));
            }
            toml::Value::Array(values) if values.iter().any(toml::Value::is_table) => {
                values.iter().enumerate().for_each(|(i, value)| walk(&below(&i.to_string()), value, flat));
            }
            value => {
                flat.insert(key.to_owned(), value.to_string());
            }
        }
    }
    let mut flat = std::collections::BTreeMap::new();
    let value = toml::Value::try_from(experiment).expect("an experiment has string keys and finite numbers");
    walk("", &value, &mut flat);
    flat
}

fn first_seed() -> OneOrMore<u64> {
    OneOrMore::from(1)
}

fn one() -> NonZeroU64 {
    NonZeroU64::MIN
}

fn ten() -> NonZeroU64 {
    NonZeroU64::new(10).unwrap_or(NonZeroU64::MIN)
}
