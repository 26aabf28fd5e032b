//! Experiments: TOML files that describe a training run, checked when they are parsed.
//!
//! Every number has a type that guarantees its range. An error therefore has the place of the value
//! in the file, and later code need not check again. A file that is written back contains the
//! defaults.

use std::num::{NonZeroU64, NonZeroUsize};

use serde::{Deserialize, Serialize};

use deltafl::adversary::Adversary;
use deltafl::algorithm::{Requires, Track, TrackLabel, track_names};
use deltafl::cohort::{Availability, Sampling};
use deltafl::memory::AlgorithmState;
use deltafl::options::OptionValues;
use deltafl::selection::Needs;
use deltafl::superquantile::Conformity;
use deltafl::terms::{Clip, Terms, TrackSchedule, Weights};
use deltafl::training::{Decay, InvalidPlan, Local, Plan};

mod address;
mod algorithm;
mod data;
mod differences;
mod external;
pub mod keys;
mod list;
mod model;
mod name;
mod parse;
mod privacy;
mod renamed;
mod resolved;
mod split;

pub use algorithm::AlgorithmSection;
pub use data::{DataSection, DataSource, LoadError};
pub use deltafl::number::{NonNegative, OutOfRange, Positive};
pub use external::{ExternalAlgorithms, ExternalPart, ExternalSection};
pub use list::OneOrMore;
pub use model::ModelSection;
pub use name::{InvalidFolderName, check_name};
pub use parse::{InvalidExperiment, layer_span};
pub use privacy::{PrivacyCost, PrivacySection};
pub use resolved::{BackendName, Population, Resolved};
pub use split::{InvalidSplitSection, SplitSection};

/// An experiment. Only [`Experiment::parse`] creates one, and the `with_…` methods change one, so
/// that every experiment is valid.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Experiment(ExperimentFile);

/// The keys of an experiment file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExperimentFile {
    #[serde(deserialize_with = "name::checked")]
    name: String,
    #[serde(default = "first_seed")]
    seeds: OneOrMore<u64>,
    rounds: NonZeroU64,
    cohort: NonZeroUsize,
    #[serde(default)]
    with_replacement: bool,
    #[serde(default = "evaluate_every")]
    evaluate_every: NonZeroU64,
    /// `None` only while the file is parsed.
    weights: Option<Weights>,
    /// The tracks that train in a round, and their devices, if the file contains it or η is found
    /// in secure sums.
    #[serde(skip_serializing_if = "Option::is_none")]
    tracks: Option<TrackSchedule>,
    #[serde(skip_serializing_if = "Option::is_none")]
    clip: Option<Clip>,
    #[serde(default)]
    secagg: SecureAggregation,
    data: DataSection,
    /// Parsed separately, like the algorithms: `kind` determines the keys.
    #[serde(skip_deserializing)]
    model: ModelSection,
    local: Local,
    #[serde(default)]
    availability: Availability,
    #[serde(skip_serializing_if = "Option::is_none")]
    privacy: Option<PrivacySection>,
    #[serde(default, skip_serializing_if = "Adversary::is_default")]
    adversary: Adversary,
    #[serde(skip_deserializing)]
    algorithm: Vec<AlgorithmSection>,
    /// A file to be run need not contain it.
    #[serde(skip_serializing_if = "Option::is_none")]
    resolved: Option<Resolved>,
}

fn first_seed() -> OneOrMore<u64> {
    OneOrMore::from(1)
}

fn evaluate_every() -> NonZeroU64 {
    NonZeroU64::new(Plan::EVALUATE_EVERY).unwrap_or(NonZeroU64::MIN)
}

/// How a simulation adds up the answers of devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SecureAggregation {
    /// Without masks. The bits are the same.
    #[default]
    Plain,
    /// With the protocol of a deployed server.
    Real,
}

/// The keys of the file.
impl Experiment {
    /// Returns the name of the experiment and of its run folder.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the seeds; each is a run.
    pub fn seeds(&self) -> &[u64] {
        self.0.seeds.as_slice()
    }

    /// Returns T, the number of rounds.
    pub fn rounds(&self) -> u64 {
        self.0.rounds.get()
    }

    /// Returns m, the number of devices drawn in a round.
    pub fn cohort(&self) -> usize {
        self.0.cohort.get()
    }

    /// Whether cohorts are drawn with replacement, as the paper writes it.
    pub fn with_replacement(&self) -> bool {
        self.0.with_replacement
    }

    /// Returns the number of rounds between two evaluations of every device.
    pub fn evaluate_every(&self) -> u64 {
        self.0.evaluate_every.get()
    }

    /// Returns the weights of devices.
    pub fn weights(&self) -> Weights {
        self.0.weights.unwrap_or_default()
    }

    /// Returns the schedule of tracks, if the file contains one or η is found in secure sums.
    pub fn schedule(&self) -> Option<TrackSchedule> {
        self.0.tracks
    }

    /// Returns the bound on the length of updates; unbounded if `None`.
    pub fn clip(&self) -> Option<Clip> {
        self.0.clip
    }

    /// Returns whether sums in a simulation go through the real protocol.
    pub fn secagg(&self) -> SecureAggregation {
        self.0.secagg
    }

    /// Returns the section on the devices and their examples.
    pub fn data(&self) -> &DataSection {
        &self.0.data
    }

    /// Returns the section on the model.
    pub fn model(&self) -> &ModelSection {
        &self.0.model
    }

    /// Returns the local update of devices.
    pub fn local(&self) -> &Local {
        &self.0.local
    }

    /// Returns which devices are unavailable and which drop out.
    pub fn availability(&self) -> &Availability {
        &self.0.availability
    }

    /// Returns which simulated devices lie.
    pub fn adversary(&self) -> &Adversary {
        &self.0.adversary
    }

    /// Returns the sections on the algorithms. Each of their levels is a track.
    pub fn algorithms(&self) -> &[AlgorithmSection] {
        &self.0.algorithm
    }

    /// Returns the values that a run folder adds.
    pub fn resolved(&self) -> Option<&Resolved> {
        self.0.resolved.as_ref()
    }
}

/// The same experiment with another value of a key.
impl Experiment {
    /// With another name.
    ///
    /// # Errors
    /// The text cannot be the name of a folder.
    pub fn with_name(mut self, name: &str) -> Result<Self, InvalidFolderName> {
        check_name(name)?;
        name.clone_into(&mut self.0.name);
        Ok(self)
    }

    /// With other seeds.
    #[must_use]
    pub fn with_seeds(self, seeds: OneOrMore<u64>) -> Self {
        Self(ExperimentFile { seeds, ..self.0 })
    }

    /// With another number of rounds.
    #[must_use]
    pub fn with_rounds(self, rounds: NonZeroU64) -> Self {
        Self(ExperimentFile { rounds, ..self.0 })
    }

    /// With an evaluation after the last round only.
    #[must_use]
    pub fn evaluated_at_the_end(self) -> Self {
        Self(ExperimentFile { evaluate_every: self.0.rounds, ..self.0 })
    }

    /// With sums through the real protocol, or without.
    #[must_use]
    pub fn with_secagg(self, secagg: SecureAggregation) -> Self {
        Self(ExperimentFile { secagg, ..self.0 })
    }

    /// With another schedule of tracks.
    #[must_use]
    pub fn with_schedule(self, tracks: Option<TrackSchedule>) -> Self {
        Self(ExperimentFile { tracks, ..self.0 })
    }

    /// With another split of the devices or their examples.
    #[must_use]
    pub fn with_split(mut self, split: Option<SplitSection>) -> Self {
        self.0.data.split = split;
        self
    }

    /// With an evaluation of at most this many devices per split; of all devices if `None`.
    #[must_use]
    pub fn with_evaluation_sample(mut self, sample: Option<NonZeroUsize>) -> Self {
        self.0.data.evaluate_sample = sample;
        self
    }

    /// With another learning rate and decay.
    #[must_use]
    pub fn with_learning_rate(mut self, learning_rate: Positive, decay: Option<Decay>) -> Self {
        self.0.local = Local { learning_rate: learning_rate.get(), decay, ..self.0.local };
        self
    }

    /// With other algorithms. The weights stay.
    ///
    /// # Errors
    /// There is no algorithm, or one sends more than w and updates are clipped.
    pub fn with_algorithms(self, algorithm: Vec<AlgorithmSection>) -> Result<Self, InvalidExperiment> {
        let experiment = Self(ExperimentFile { algorithm, ..self.0 });
        experiment.check_algorithms()?;
        Ok(experiment)
    }

    /// With the values that a run folder adds, or without.
    #[must_use]
    pub fn with_resolved(self, resolved: Option<Resolved>) -> Self {
        Self(ExperimentFile { resolved, ..self.0 })
    }

    /// Checks the algorithms against the other keys; the caller adds the place in the file.
    fn check_algorithms(&self) -> Result<(), InvalidExperiment> {
        if self.0.algorithm.is_empty() {
            return Err(InvalidExperiment::whole("an experiment trains at least one algorithm"));
        }
        if let Some((algorithm, reason)) = self.needs_open_simulation() {
            let secure = match () {
                () if self.0.secagg == SecureAggregation::Real => Some("secagg = \"real\""),
                () if self.needs(|needs| matches!(needs, Needs::Quantile(_))) => Some("private mode"),
                () => None,
            };
            if let Some(secure) = secure {
                let message = format!("{algorithm} does not work with {secure}: {reason}");
                return Err(InvalidExperiment::whole(message));
            }
        }
        let sends_more = |track: &&Track| track.correction.is_some_and(|kind| !kind.sent.is_empty());
        match self.tracks().iter().find(sends_more) {
            Some(track) if self.0.clip.is_some() => Err(InvalidExperiment::whole(format!(
                "{} sends more than w, which a bound on the length of updates does not cover: leave clip out",
                track.label.algorithm
            ))),
            _ => self.check_privacy(),
        }
    }

    /// Checks that every sum can be noisy if the experiment has a section `[privacy]`.
    fn check_privacy(&self) -> Result<(), InvalidExperiment> {
        let Some(privacy) = &self.0.privacy else { return Ok(()) };
        let refused = |message: &str| Err(InvalidExperiment::whole(message));
        if privacy.epsilon.is_some() == privacy.noise.is_some() {
            return refused("[privacy] needs either epsilon or noise");
        }
        if privacy.quantile.get() >= 1.0 || privacy.evaluation.get() >= 1.0 {
            return refused(
                "[privacy] leaves nothing for the updates: quantile and evaluation are shares below 1",
            );
        }
        if !self.0.adversary.is_none() {
            return refused(
                "[adversary] cannot be combined with [privacy]: liars change updates without noise",
            );
        }
        match self.try_plan(None) {
            Err(error @ InvalidPlan::Private { .. }) => Err(InvalidExperiment::whole(error.to_string())),
            _ => Ok(()),
        }
    }
}

impl Experiment {
    /// Returns the tracks, in the order of the file. Tracks of external algorithms can be read but
    /// not trained.
    pub fn tracks(&self) -> Vec<Track> {
        self.tracks_with(None)
    }

    /// Returns the tracks, with the implementation of the external algorithms.
    fn tracks_with(&self, external: Option<&dyn ExternalAlgorithms>) -> Vec<Track> {
        let sections = self.0.algorithm.iter().enumerate();
        let points: Vec<(usize, &AlgorithmSection, OptionValues)> = sections
            .flat_map(|(i, section)| section.points().into_iter().map(move |options| (i, section, options)))
            .collect();
        let l2 = |section: &AlgorithmSection| section.l2.unwrap_or(self.0.model.l2).get() as f32;
        let named: Vec<_> = points.iter().map(|(_, s, options)| (s.title(), options, l2(s))).collect();
        let names = track_names(&named);
        let track = |(t, (i, section, options)): (usize, &(usize, &AlgorithmSection, OptionValues))| {
            let base = (section.algorithm().build)(options).expect("a section is checked when it is read");
            let parts = match (section.external(), external) {
                (None, _) => base,
                (Some(described), None) => described.described(base),
                (Some(_), Some(external)) => external.parts(*i, t, base),
            };
            let mut track = Track::new(&names[t], section.algorithm(), parts, l2(section));
            section.kind().clone_into(&mut track.label.algorithm);
            track
        };
        points.iter().enumerate().map(track).collect()
    }

    /// Returns the name of the first algorithm that only the caller's program implements.
    pub fn external(&self) -> Option<&str> {
        self.0.algorithm.iter().find_map(|section| Some(section.external()?.name.as_str()))
    }

    /// Returns the labels of the tracks, in their order.
    pub fn labels(&self) -> Vec<TrackLabel> {
        self.tracks().into_iter().map(|track| track.label).collect()
    }

    /// Returns the plan for the round loop. Tracks of external algorithms can be read but not
    /// trained.
    pub fn plan(&self) -> Plan {
        self.plan_with(None)
    }

    /// Returns the plan for the round loop, with the implementation of the external algorithms.
    pub fn plan_with(&self, external: Option<&dyn ExternalAlgorithms>) -> Plan {
        self.try_plan(external).expect("a valid experiment is a valid plan")
    }

    fn sampling(&self) -> Sampling {
        Sampling {
            cohort_size: self.cohort(),
            with_replacement: self.with_replacement(),
            availability: self.0.availability,
        }
    }

    fn try_plan(&self, external: Option<&dyn ExternalAlgorithms>) -> Result<Plan, InvalidPlan> {
        let plan = Plan::builder()
            .rounds(self.rounds())
            .sampling(self.sampling())
            .local(self.0.local)
            .evaluate_every(self.evaluate_every())
            .terms(self.terms())
            .privacy(self.privacy_plan())
            .tracks(self.tracks_with(external));
        plan.build()
    }

    /// Returns the levels below 1 whose tail has too few devices for privacy: θ·m < 10.
    pub fn thin_tails(&self) -> Vec<TrackLabel> {
        let is_thin = |label: &TrackLabel| {
            label.theta != Conformity::FULL && label.theta.get() * (self.cohort() as f64) < 10.0
        };
        self.labels().into_iter().filter(is_thin).collect()
    }

    /// Whether the server receives individual losses to find η (open mode).
    pub fn is_open(&self) -> bool {
        self.needs(|needs| matches!(needs, Needs::Losses | Needs::NamedLosses))
    }

    /// Returns the first algorithm or section that runs in simulations only, with the reason.
    pub fn needs_simulation(&self) -> Option<(&'static str, &'static str)> {
        if !self.0.adversary.is_none() {
            return Some(("[adversary]", "only simulated devices lie on purpose"));
        }
        self.0.algorithm.iter().find_map(|section| match section.requires() {
            Requires::Open(reason) | Requires::Simulation(reason) => Some((section.kind(), reason)),
            Requires::Sums => None,
        })
    }

    /// Returns the first algorithm whose server sees the answers of individual devices, with the
    /// reason.
    fn needs_open_simulation(&self) -> Option<(&'static str, &'static str)> {
        self.0.algorithm.iter().find_map(|section| match section.requires() {
            Requires::Open(reason) => Some((section.kind(), reason)),
            Requires::Sums | Requires::Simulation(_) => None,
        })
    }

    /// Whether the server finds η in secure sums and receives no loss (private mode).
    pub fn is_private(&self) -> bool {
        self.needs(|needs| matches!(needs, Needs::Quantile(_))) && !self.is_open()
    }

    /// Returns the terms on which devices answer.
    pub fn terms(&self) -> Terms {
        let tracks = u32::try_from(self.tracks().len()).unwrap_or(u32::MAX);
        let schedule = self.0.tracks.unwrap_or_default();
        Terms { weights: self.weights(), schedule, tracks, clip: self.0.clip }
    }

    /// Returns the schedule of tracks in a deployment; in turn if the file does not contain one.
    /// Returns `None` if the file requests that tracks train together, which devices reject.
    pub fn deployed_schedule(&self) -> Option<TrackSchedule> {
        let schedule = self.0.tracks.unwrap_or(TrackSchedule::InTurn);
        (schedule != TrackSchedule::Together).then_some(schedule)
    }

    /// Returns the default weights. They are those of the paper if the server receives losses or no
    /// algorithm uses them, and reveal nothing about a device if the server finds η in secure sums.
    fn usual_weights(&self) -> Weights {
        let is_private = self.is_private() || self.0.privacy.is_some();
        if is_private { Terms::PRIVATE.weights } else { Terms::OPEN.weights }
    }

    fn needs(&self, wanted: fn(&Needs) -> bool) -> bool {
        self.tracks().iter().any(|track| wanted(&track.selection.needs(0, &AlgorithmState::default())))
    }

    /// Returns the experiment as TOML, with every default.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("an experiment has string keys and finite numbers")
    }
}
