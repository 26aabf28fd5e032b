//! An experiment that fits a federation: its model, split, batch size, and a learning rate from a
//! short search.

use std::fmt::Write as _;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use deltafl::data::{Federation, FederationSummary, InputKind, Split, TargetKind};
use deltafl::exchange::{Exchange as _, Simulation, SplitEvaluation};
use deltafl::kernel::Isa;
use deltafl::model::{ConvNet, find};
use deltafl::trainer::Sgd;
use deltafl::training::{Records, train};
use deltafl_data::OpenError;
use deltafl_data::experiment::Experiment;

use crate::error::{ErrorKind, Excerpt, Explain};
use crate::session::{RunError, build_model, prepare};
use crate::text_table;

/// The reason why no experiment can be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StarterError {
    /// The federation cannot be opened.
    #[error("cannot open the federation {path}")]
    Open {
        /// The folder.
        path: PathBuf,
        /// The error of the folder.
        source: OpenError,
    },
    /// There is no such model.
    #[error("there is no model {name}")]
    Model {
        /// The requested name.
        name: String,
    },
    /// The experiment does not fit the federation.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A value that was given does not make a valid experiment.
    #[error("these values do not make a valid experiment: {reason}")]
    Invalid {
        /// The error of the experiment.
        reason: String,
    },
}

impl Explain for StarterError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Run(error) => error.kind(),
            _ => ErrorKind::InvalidInput,
        }
    }

    fn help(&self) -> Option<String> {
        match self {
            Self::Run(error) => error.help(),
            Self::Open { .. } => Some("`deltafl data import auto FILE` imports a table or images".to_owned()),
            _ => None,
        }
    }

    fn excerpt(&self) -> Option<Excerpt<'_>> {
        None
    }
}

/// The values that the caller chooses instead of the defaults.
#[derive(Clone, Debug, Default)]
pub struct StarterOptions {
    /// The name of the experiment.
    pub name: String,
    /// The model.
    pub model: Option<String>,
    /// The learning rate; without it, a short search chooses one.
    pub learning_rate: Option<f64>,
    /// The number of rounds.
    pub rounds: Option<u64>,
    /// The number of devices per round.
    pub cohort: Option<u64>,
    /// The examples per step.
    pub batch: Option<u64>,
    /// The levels of Δ-FL, in addition to FedAvg; 0.5 if empty.
    pub theta: Vec<f64>,
    /// Number of threads; one per core if `None`.
    pub threads: Option<NonZeroUsize>,
}

/// Learning rates with the train loss after a few rounds; `None` if a rate diverged.
pub type TriedRates = Vec<(f64, Option<f64>)>;

/// An experiment with the reasons of its values.
#[derive(Clone, Debug)]
pub struct StarterExperiment {
    /// The experiment file.
    pub text: String,
    /// The decisions: a name, a value and the option that changes it.
    pub decisions: Vec<StarterDecision>,
    /// The learning rates of the search with the train loss after it; `None` if a rate diverged.
    pub search: TriedRates,
}

/// A decision for an experiment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StarterDecision {
    /// The name of the value.
    pub name: &'static str,
    /// The value, with the reason.
    pub value: String,
    /// The option that changes it.
    pub option: &'static str,
}

/// The values of an experiment, except its learning rate.
struct Draft {
    name: String,
    source: PathBuf,
    split: Option<&'static str>,
    normalise: bool,
    model: &'static str,
    intercept: bool,
    rounds: u64,
    cohort: u64,
    batch: u64,
    theta: Vec<f64>,
}

/// Devices that are needed to hold some of them out for testing.
const DEVICES_TO_SPLIT: usize = 20;

/// Writes an experiment for a federation folder.
///
/// # Errors
///
/// Fails if the federation cannot be read, or if a given value does not fit it.
pub fn starter(path: &Path, options: &StarterOptions) -> Result<StarterExperiment, StarterError> {
    let opened = deltafl_data::open(path);
    let federation = opened.map_err(|source| StarterError::Open { path: path.to_owned(), source })?;
    let (draft, mut decisions) = draft(path, &federation, options)?;
    let (rate, search) = match options.learning_rate {
        Some(rate) => (rate, Vec::new()),
        None => search(&draft, &federation, options.threads)?,
    };
    let reason = match (search.len(), untrained_scale(&federation, &search)) {
        (0, _) => format!("{rate}"),
        (tried, Some(scale)) => {
            let advice = advice(draft.model, federation.kind(), scale);
            format!("{rate}, but none of {tried} was better than a constant prediction{advice}")
        }
        (tried, None) => format!("{rate}, the best of {tried} in {} rounds", draft.search_rounds()),
    };
    decisions.push(StarterDecision { name: "learning rate", value: reason, option: "--rate" });
    let text = draft.text(rate, &search);
    let experiment = Experiment::parse(&text).map_err(|e| StarterError::Invalid { reason: e.message })?;
    // The model is built, so that a given model that does not fit is rejected here.
    let prepared = prepare(&experiment, federation)?;
    build_model(&experiment, &prepared, Isa::detect())?;
    Ok(StarterExperiment { text, decisions, search })
}

fn draft(
    path: &Path,
    federation: &Federation,
    options: &StarterOptions,
) -> Result<(Draft, Vec<StarterDecision>), StarterError> {
    let summary = FederationSummary::new(federation);
    let (train, test) = (summary.splits.train, summary.splits.test);
    let (model, why) = match &options.model {
        Some(name) => {
            let model = find(name).ok_or_else(|| StarterError::Model { name: name.clone() })?;
            (model.kind, "as requested")
        }
        None => model_for(federation),
    };
    let (split, split_reason) = if test > 0 {
        (None, format!("as imported: {train} train, {test} test devices"))
    } else if train >= DEVICES_TO_SPLIT {
        (Some("{ train = 0.7 }"), "30 % of the devices are for testing".to_owned())
    } else {
        (
            Some("{ within = { train = 0.8 } }"),
            "20 % of the examples of each device are for testing".to_owned(),
        )
    };
    let trains = if split == Some("{ train = 0.7 }") { (train * 7 / 10).max(1) } else { train.max(1) };
    let cohort = options.cohort.unwrap_or((trains / 5).clamp(10, 50).min(trains) as u64);
    let median = summary.examples_per_device.median as u64;
    let batch = options.batch.unwrap_or(median.clamp(1, 10));
    let is_dense = matches!(federation.kind(), InputKind::Dense { .. });
    let has_intercept =
        find(model).is_some_and(|m| m.options.iter().any(|option| option.name == "intercept"));
    let draft = Draft {
        name: options.name.clone(),
        source: path.to_owned(),
        split,
        normalise: is_dense,
        model,
        intercept: has_intercept,
        rounds: options.rounds.unwrap_or(if model == "conv-net" { 50 } else { 100 }),
        cohort,
        batch,
        theta: if options.theta.is_empty() { vec![0.5] } else { options.theta.clone() },
    };
    let task = match federation.targets() {
        TargetKind::Classes(classes) => format!("{classes} classes"),
        TargetKind::Values => "numbers to predict".to_owned(),
    };
    let decision = |name, value, option| StarterDecision { name, value, option };
    let decisions = vec![
        decision("task", task, "data import --regression"),
        decision("model", format!("{model}, {why}"), "--model"),
        decision("split", split_reason, "data.split in the file"),
        decision("rounds", draft.rounds.to_string(), "--rounds"),
        decision("cohort", format!("{cohort} of {trains} train devices"), "--cohort"),
        decision("batch", format!("{batch} examples"), "--batch"),
    ];
    Ok((draft, decisions))
}

/// Returns the model for the inputs and targets of a federation, and the reason.
fn model_for(federation: &Federation) -> (&'static str, &'static str) {
    let image = federation.image();
    match (federation.kind(), federation.targets()) {
        (InputKind::Tokens { .. }, TargetKind::Classes(_)) => ("text-bag", "because the examples are texts"),
        (InputKind::Tokens { .. }, TargetKind::Values) => {
            ("rnn", "because the examples are texts and the targets are numbers")
        }
        (InputKind::Windows { .. }, _) => ("gru", "because the examples are windows of a text"),
        (_, TargetKind::Values) => ("linear", "because the targets are numbers"),
        (InputKind::Bytes { dim }, _)
            if dim.isqrt().pow(2) == dim && dim.isqrt() >= ConvNet::SMALLEST_SIDE =>
        {
            match image {
                Some(image) if image.channels > 1 => {
                    ("perceptron", "because the examples are coloured images")
                }
                _ => ("conv-net", "because the examples are square images"),
            }
        }
        (InputKind::Bytes { .. }, _) => ("perceptron", "because the examples are images"),
        _ => ("linear", "because the examples are rows of a table"),
    }
}

impl Draft {
    fn search_rounds(&self) -> u64 {
        if self.model == "conv-net" { 4 } else { 10 }
    }

    /// The learning rates of the search.
    fn rates(&self) -> &'static [f64] {
        match self.model {
            // The gradient of a word is divided by the number of words of the text.
            "text-bag" => &[0.3, 1.0, 3.0, 10.0],
            "conv-net" => &[0.03, 0.1, 0.3],
            _ => &[0.003, 0.01, 0.03, 0.1, 0.3, 1.0],
        }
    }

    fn text(&self, rate: f64, search: &[(f64, Option<f64>)]) -> String {
        let quoted = |text: &str| toml_edit::Value::from(text).to_string().trim().to_owned();
        let mut out =
            String::from("# Written by `deltafl init`. `deltafl help experiment` lists every key.\n");
        let mut line = |text: String| writeln!(out, "{text}").expect("a string takes any text");
        line(format!("name = {}", quoted(&self.name)));
        line(format!("rounds = {}\ncohort = {}\nevaluate_every = 10\n", self.rounds, self.cohort));
        line(format!("[data]\nsource = {}", quoted(&self.source.display().to_string())));
        if let Some(split) = self.split {
            line(format!("split = {split}"));
        }
        if self.normalise {
            line("normalise = \"standard\"".to_owned());
        }
        line(format!("\n[model]\nkind = \"{}\"", self.model));
        if self.intercept {
            line("intercept = true".to_owned());
        }
        line(format!("\n[local]\nepochs = 1\nbatch = {}", self.batch));
        // The loss of a regression has the unit of the target and may have any magnitude.
        let digits = text_table::places(search.iter().filter_map(|(_, loss)| *loss)).max(4);
        let tried: Vec<String> = search
            .iter()
            .map(|(rate, loss)| match loss {
                Some(loss) => format!("{rate}: {loss:.digits$}"),
                None => format!("{rate}: diverged"),
            })
            .collect();
        if !tried.is_empty() {
            line(format!("# Train loss after {} rounds: {}.", self.search_rounds(), tried.join(", ")));
        }
        line(format!("learning_rate = {rate:?}\n\n[[algorithm]]\nkind = \"fedavg\"\n"));
        let theta: Vec<String> = self.theta.iter().map(|theta| format!("{theta:?}")).collect();
        line(format!("[[algorithm]]\nkind = \"delta-fl\"\ntheta = [{}]", theta.join(", ")));
        out
    }
}

/// Trains FedAvg for a few rounds with each learning rate, and returns the rate with the lowest
/// train loss.
fn search(
    draft: &Draft,
    federation: &Federation,
    threads: Option<NonZeroUsize>,
) -> Result<(f64, TriedRates), StarterError> {
    /// Most devices whose loss is computed.
    const EVALUATED: usize = 200;
    let mut tried = Vec::new();
    for &rate in draft.rates() {
        let mut experiment = toml_edit::DocumentMut::new();
        let text = draft.text(rate, &[]);
        if let Ok(parsed) = text.parse() {
            experiment = parsed;
        }
        experiment["rounds"] = toml_edit::value(draft.search_rounds() as i64);
        experiment["evaluate_every"] = toml_edit::value(draft.search_rounds() as i64);
        experiment["data"]["evaluate_sample"] = toml_edit::value(EVALUATED as i64);
        if let Some(algorithms) = experiment["algorithm"].as_array_of_tables_mut() {
            algorithms.remove(1);
        }
        let parsed = Experiment::parse(&experiment.to_string());
        let experiment = parsed.map_err(|e| StarterError::Invalid { reason: e.message })?;
        let prepared = prepare(&experiment, federation.clone())?;
        let model = build_model(&experiment, &prepared, Isa::detect())?;
        let trainer = Sgd::boxed(&*model);
        let mut exchange =
            Simulation::with_threads(&*trainer, &prepared, threads).map_err(RunError::Setup)?;
        let (plan, mut records) = (experiment.plan(), Records::default());
        let mut state = plan.start(1, &*trainer);
        let trained = train(&mut exchange, &plan, &mut state, &mut records);
        let params = &state.tracks[0].params;
        let loss = match trained {
            Ok(_) => exchange.evaluate(Split::Train, &[params]).ok().flatten(),
            Err(_) => None,
        };
        tried.push((rate, loss.as_ref().map(mean_loss).filter(|loss| loss.is_finite())));
    }
    let best = tried.iter().filter_map(|(rate, loss)| Some((*rate, (*loss)?)));
    let best = best.min_by(|a, b| a.1.total_cmp(&b.1));
    Ok((best.map_or(draft.rates()[0], |(rate, _)| rate), tried))
}

/// Returns the standard deviation of the targets if they are numbers and no learning rate had a
/// lower loss than the prediction of their mean. A network does not learn targets far from 1.
fn untrained_scale(federation: &Federation, tried: &[(f64, Option<f64>)]) -> Option<f64> {
    if federation.targets() != TargetKind::Values {
        return None;
    }
    let (mut count, mut mean, mut squares) = (0.0, 0.0, 0.0);
    for k in federation.split(Split::Train) {
        let examples = federation.examples(k);
        for value in (0..examples.len()).map(|i| f64::from(examples.value(i))) {
            count += 1.0;
            let before = value - mean;
            mean += before / count;
            squares += before * (value - mean);
        }
    }
    let variance = squares / f64::max(count, 1.0);
    let is_learned = |(_, loss): &(f64, Option<f64>)| loss.is_some_and(|loss| loss < variance / 2.0);
    let digits = 10f64.powf(variance.sqrt().log10().floor());
    (!tried.iter().any(is_learned)).then(|| (variance.sqrt() / digits).round() * digits)
}

/// Returns the advice for targets of this scale that no learning rate fits.
fn advice(model: &str, kind: InputKind, scale: f64) -> String {
    let divide = format!(": divide the targets by about {scale}, their standard deviation");
    match kind {
        // The scale of the targets does not change how well a linear model fits them.
        _ if model == "linear" => String::new(),
        InputKind::Bytes { .. } | InputKind::Dense { .. } => format!("{divide}, or use --model linear"),
        InputKind::Tokens { .. } | InputKind::Windows { .. } => divide,
    }
}

/// Returns the mean loss of the first track over all examples.
fn mean_loss(evaluation: &SplitEvaluation) -> f64 {
    let devices = evaluation.devices.iter().zip(&evaluation.tracks[0]);
    let (sum, count) = devices.fold((0.0, 0.0), |(sum, count), (device, figures)| {
        let examples = device.examples as f64;
        (sum + examples * figures.loss, count + examples)
    });
    sum / f64::max(count, 1.0)
}
