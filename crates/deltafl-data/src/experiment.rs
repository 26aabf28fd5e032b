//! Experiments: the TOML file that says what is trained, checked on entry.
//!
//! Every number has a type that cannot hold a wrong one, so that an error points at the value in the file and
//! nothing behind has to check again. A file written back has every default in it.

use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};

use serde::{Deserialize, Serialize};

use crate::run_folder::Difference;
use deltafl::algorithm::{Track, TrackLabel, track_names};
use deltafl::cohort::{Availability, Sampling};
use deltafl::data::{Federation, Split};
use deltafl::kernel::Isa;
use deltafl::memory::AlgorithmState;
use deltafl::options::OptionValues;
use deltafl::selection::Needs;
use deltafl::terms::{Clip, Terms, TrackSchedule, Weights};
use deltafl::trainer::Work;
use deltafl::training::{self, Decay, Plan};

mod address;
mod algorithm;
mod data;
pub mod keys;
mod list;
mod model;
mod name;
mod parse;
mod renamed;
mod split;

pub use algorithm::AlgorithmSection;
pub use data::{DataSection, LoadError, Source};
pub use deltafl::number::{NonNegative, OutOfRange, Positive};
pub use list::OneOrMore;
pub use model::ModelSection;
pub use name::{InvalidName, check_name};
pub use parse::InvalidExperiment;
pub use split::{InvalidSplitSection, SplitSection};

/// An experiment. It is made by [`Experiment::parse`] alone, so that none is wrong.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Experiment {
    /// Its name, and that of its run folder.
    pub name: String,
    /// A run each.
    pub seeds: OneOrMore<u64>,
    /// T.
    pub rounds: NonZeroU64,
    /// m, the devices drawn in a round.
    pub cohort: NonZeroUsize,
    /// Draw them with replacement, as the paper writes it.
    pub with_replacement: bool,
    /// Rounds between two evaluations of every device.
    pub evaluate_every: NonZeroU64,
    /// What a device counts with.
    pub weights: Weights,
    /// Which tracks train in a round, and with which devices, where the file says so or η is found in secure sums.
    #[serde(rename = "tracks", skip_serializing_if = "Option::is_none")]
    pub schedule: Option<TrackSchedule>,
    /// How long an update may be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip: Option<Clip>,
    /// Whether sums in a simulation go through the real protocol.
    pub secagg: SecureAggregation,
    /// The devices and their examples.
    pub data: DataSection,
    /// What they train.
    pub model: ModelSection,
    /// How they train.
    pub local: LocalSection,
    /// Who is away, and who vanishes.
    pub availability: Availability,
    /// How the server combines them; each level of θ is a track.
    pub algorithm: Vec<AlgorithmSection>,
    /// What a run folder adds: ignored in a file that is to be run.
    #[serde(skip_serializing_if = "Option::is_none")]
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

/// LocalUpdate (Algorithm 2, lines 10–12).
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
    /// Where devices computed; the CPU in a run of before this was recorded.
    #[serde(default)]
    pub compute: ComputedOn,
    /// d.
    pub params: usize,
    /// The devices of each split, where a sample of them is evaluated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub population: Option<Population>,
}

/// Where devices computed: bits may differ between two places.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum ComputedOn {
    /// The CPU; [`Resolved::kernel`] says with which instructions.
    #[default]
    Cpu,
    /// A GPU of this name.
    Gpu(String),
}

impl From<String> for ComputedOn {
    fn from(text: String) -> Self {
        if text == "cpu" { Self::Cpu } else { Self::Gpu(text) }
    }
}

impl From<ComputedOn> for String {
    fn from(place: ComputedOn) -> Self {
        match place {
            ComputedOn::Cpu => "cpu".to_owned(),
            ComputedOn::Gpu(name) => name,
        }
    }
}

/// How many devices there are, of which a sample is evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Population {
    /// Train devices.
    pub train: usize,
    /// Test devices.
    pub test: usize,
    /// Train devices held out for validation.
    pub validation: usize,
}

impl Population {
    /// Of a federation that evaluates a sample; `None` of one that evaluates every device.
    pub fn of(federation: &Federation) -> Option<Self> {
        let count = |split| federation.split(split).len();
        federation.evaluates_a_sample().then(|| Self {
            train: count(Split::Train),
            test: count(Split::Test),
            validation: count(Split::Validation),
        })
    }

    /// The devices of a split.
    pub fn devices(&self, split: Split) -> usize {
        match split {
            Split::Train => self.train,
            Split::Test => self.test,
            Split::Validation => self.validation,
        }
    }
}

impl LocalSection {
    /// Epochs or steps: an experiment has one of the two.
    fn work(&self) -> Work {
        match (self.epochs, self.steps) {
            (_, Some(steps)) => Work::Steps(steps.get()),
            (epochs, None) => Work::Epochs(epochs.map_or(1, NonZeroU32::get)),
        }
    }
}

impl Experiment {
    /// The tracks, in the order of the file.
    pub fn tracks(&self) -> Vec<Track> {
        let points: Vec<(&AlgorithmSection, OptionValues)> = self
            .algorithm
            .iter()
            .flat_map(|section| section.points().into_iter().map(move |options| (section, options)))
            .collect();
        let l2 = |section: &AlgorithmSection| section.l2.unwrap_or(self.model.l2).get() as f32;
        let named: Vec<_> = points.iter().map(|(s, options)| (s.algorithm(), options, l2(s))).collect();
        let names = track_names(&named);
        let track = |((section, options), name): (&(&AlgorithmSection, OptionValues), &String)| {
            let parts = (section.algorithm().build)(options).expect("a section is checked when it is read");
            Track::new(name, section.algorithm(), parts, l2(section))
        };
        points.iter().zip(&names).map(track).collect()
    }

    /// What the tracks are called, in their order.
    pub fn labels(&self) -> Vec<TrackLabel> {
        self.tracks().into_iter().map(|track| track.label).collect()
    }

    /// What the round loop needs.
    pub fn plan(&self) -> Plan {
        let decay = self.local.decay.map(|d| Decay { factor: d.factor.get(), every: d.every.get() });
        let plan = Plan::builder()
            .rounds(self.rounds.get())
            .sampling(Sampling {
                cohort_size: self.cohort.get(),
                with_replacement: self.with_replacement,
                availability: self.availability,
            })
            .local(training::Local {
                work: self.local.work(),
                batch: self.local.batch.get(),
                learning_rate: self.local.learning_rate.get(),
                decay,
            })
            .evaluate_every(self.evaluate_every.get())
            .terms(self.terms())
            .tracks(self.tracks());
        plan.build().expect("an experiment that was read is a valid plan")
    }

    /// Levels that leave too few devices in the tail to hide in: θ·m < 10.
    pub fn thin_tails(&self) -> Vec<TrackLabel> {
        self.labels()
            .into_iter()
            .filter(|label| label.theta.get() * (self.cohort.get() as f64) < 10.0)
            .collect()
    }

    /// Whether the server learns losses one by one, to find η (open mode).
    pub fn is_open(&self) -> bool {
        self.needs(|needs| matches!(needs, Needs::Losses))
    }

    /// Whether the server looks for η in secure sums, and learns no loss (private mode).
    pub fn is_private(&self) -> bool {
        self.needs(|needs| matches!(needs, Needs::Quantile(_))) && !self.is_open()
    }

    /// On what terms devices answer.
    pub fn terms(&self) -> Terms {
        let tracks = u32::try_from(self.tracks().len()).unwrap_or(u32::MAX);
        let schedule = self.schedule.unwrap_or_default();
        Terms { weights: self.weights, schedule, tracks, clip: self.clip }
    }

    /// The schedule of a deployment, in turn where the file does not say; `None` where the file says that tracks train
    /// together, which devices refuse.
    pub fn deployed_schedule(&self) -> Option<TrackSchedule> {
        Some(self.schedule.unwrap_or(TrackSchedule::InTurn))
            .filter(|schedule| *schedule != TrackSchedule::Together)
    }

    /// What a device counts with where the file does not say: as in the paper where the server sees losses or nobody's loss is
    /// looked at, and nothing of the device where it looks for η in secure sums.
    fn usual_weights(&self) -> Weights {
        if self.is_private() { Terms::PRIVATE.weights } else { Terms::OPEN.weights }
    }

    fn needs(&self, wanted: fn(&Needs) -> bool) -> bool {
        self.tracks().iter().any(|track| wanted(&track.selection.needs(0, &AlgorithmState::default())))
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
