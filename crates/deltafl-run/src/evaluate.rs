//! Evaluation of the models of a run on other devices.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use deltafl::algorithm::TrackLabel;
use deltafl::data::contract::ContractMismatch;
use deltafl::data::{
    DataContract, DeviceSplit, Federation, InputKind, InvalidSplit, Normalise, Split, TargetKind,
};
use deltafl::exchange::{Exchange as _, ExchangeError, Simulation, SplitEvaluation};
use deltafl::kernel::Isa;
use deltafl::metrics::{DispersionBySize, Figures, FiguresOverSeeds};
use deltafl::params::Params;
use deltafl::task::Task;
use deltafl::trainer::Sgd;
use deltafl::training::State;
use deltafl_data::OpenError;
use deltafl_data::experiment::{Experiment, LoadError};
use deltafl_data::import::table::{LikeOptions, import_like};
use deltafl_data::import::{ImportError, ImportTarget, auto, images};
use deltafl_data::run_folder::{self, Classes, Groups, IdleRounds, RunFolderError, Summary, TrackSummary};

use crate::by_class::{self, ByClassError};
use crate::by_group;
use crate::error::{ErrorKind, Excerpt, Explain, FileError, FolderError};
use crate::session::{RunError, build_model};

/// The reason why the models of a run cannot be evaluated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EvaluateError {
    /// The run folder cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The run has no model for a level.
    #[error("the run has no model for θ = {theta}")]
    NoLevel {
        /// The requested level.
        theta: f64,
        /// The levels of the run.
        levels: Vec<String>,
    },
    /// The federation cannot be opened.
    #[error("cannot open the federation {path}")]
    Open {
        /// The folder.
        path: PathBuf,
        /// The error of the folder.
        source: OpenError,
    },
    /// A table or a folder of images cannot be imported.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// A temporary folder cannot be created.
    #[error(transparent)]
    File(#[from] FileError),
    /// The devices cannot be put into one split.
    #[error(transparent)]
    Split(#[from] InvalidSplit),
    /// Inputs, classes, features or words of the federation differ from those of the run's data.
    #[error("{path} is not like the data of the run")]
    Unlike {
        /// The federation folder.
        path: PathBuf,
        /// The difference.
        difference: DataDifference,
    },
    /// The federation does not match the contract of the run.
    #[error("{path} is not like the data of the run")]
    Mismatch {
        /// The federation folder.
        path: PathBuf,
        /// The difference.
        source: ContractMismatch,
    },
    /// The data of the run, which contains the constants of the normalisation, cannot be read.
    #[error("the data of the run cannot be read, and it contains the constants of the normalisation")]
    Normalisation(#[source] LoadError),
    /// The run has no checkpoint.
    #[error("{path} holds no checkpoint yet")]
    NoCheckpoint {
        /// The run folder.
        path: PathBuf,
    },
    /// The model cannot be built.
    #[error(transparent)]
    Model(#[from] RunError),
    /// The number of params of the run differs from that of the model.
    #[error("{path} does not fit the models of the run: its examples have another shape, or other classes")]
    OtherParams {
        /// The federation folder.
        path: PathBuf,
    },
    /// The devices cannot be evaluated.
    #[error("{path} cannot be evaluated")]
    Setup {
        /// The federation folder.
        path: PathBuf,
        /// The error of the exchange.
        source: ExchangeError,
    },
    /// An evaluation failed.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    /// The classes cannot be evaluated.
    #[error(transparent)]
    Classes(#[from] ByClassError),
}

/// A difference between two federations, with a description of each.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DataDifference {
    /// Inputs or targets.
    Kind {
        /// Those of the run.
        run: String,
        /// Those of the federation.
        federation: String,
    },
    /// The names of the classes.
    Classes {
        /// Those of the run.
        run: String,
        /// Those of the federation.
        federation: String,
    },
    /// The feature columns.
    Columns {
        /// Those of the run.
        run: String,
        /// Those of the federation.
        federation: String,
    },
    /// The vocabulary.
    Words,
}

impl From<RunFolderError> for EvaluateError {
    fn from(error: RunFolderError) -> Self {
        Self::Folder(error.into())
    }
}

impl Explain for EvaluateError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Folder(error) => error.kind(),
            Self::Model(error) => error.kind(),
            Self::Split(_) | Self::Exchange(_) | Self::Classes(_) | Self::File(_) => ErrorKind::Failure,
            _ => ErrorKind::InvalidInput,
        }
    }

    fn help(&self) -> Option<String> {
        Some(match self {
            Self::Folder(error) => return error.help(),
            Self::Model(error) => return error.help(),
            Self::Import(error) => return error.help().map(str::to_owned),
            Self::NoLevel { levels, .. } => format!("its levels are {}", levels.join(", ")),
            Self::Unlike { difference, .. } => match difference {
                DataDifference::Kind { run, federation } => {
                    format!("the run was trained on {run}; this is {federation}")
                }
                DataDifference::Classes { run, federation } => {
                    format!("the classes of the run are {run}; these are {federation}")
                }
                DataDifference::Columns { run, federation } => format!(
                    "the columns of the run are {run}; these are {federation}. They must be the same in the same order, \
                     with the same words in those of words"
                ),
                DataDifference::Words => {
                    "it has another vocabulary: import it with the same word vectors".to_owned()
                }
            },
            _ => return None,
        })
    }

    fn excerpt(&self) -> Option<Excerpt<'_>> {
        None
    }
}

/// How to evaluate the models of a run.
#[derive(Clone, Debug)]
pub struct EvaluateOptions {
    /// The levels whose models are evaluated; all if empty.
    pub levels: Vec<f64>,
    /// Number of threads; one per core if `None`.
    pub threads: Option<NonZeroUsize>,
    /// The instruction set of the kernels.
    pub kernel: Isa,
}

impl Default for EvaluateOptions {
    fn default() -> Self {
        Self { levels: Vec::new(), threads: None, kernel: Isa::detect() }
    }
}

/// The models of a run on the devices of a federation.
#[derive(Debug)]
#[non_exhaustive]
pub struct ModelEvaluation {
    /// The results of each track.
    pub summary: Summary,
    /// The error of each class, if classes have names.
    pub classes: Option<Classes>,
    /// The metric of each group of devices, if devices declare groups.
    pub groups: Option<Groups>,
    /// Number of devices.
    pub devices: usize,
    /// The tracks with personal models. Their shared models were evaluated.
    pub shared: Vec<String>,
    tracks: Vec<TrackLabel>,
    seeds: Vec<u64>,
    evaluations: Vec<SplitEvaluation>,
}

/// Evaluates the models of a run on every device of a federation, regardless of its split.
///
/// `data` is a federation folder, a table or a folder of images. Tables and images are converted as
/// the data of the run.
///
/// # Errors
///
/// Fails if the run or the federation cannot be read, if they do not fit each other, or if an
/// evaluation fails.
pub fn evaluate(
    run: &Path,
    data: &Path,
    options: &EvaluateOptions,
) -> Result<ModelEvaluation, EvaluateError> {
    let experiment = run_folder::read_experiment(run)?;
    let tracks = chosen(&experiment, &options.levels)?;
    let scratch; // It contains the converted file as long as it is mapped.
    let federation = match run_folder::read_contract(run)? {
        Some(contract) if data.exists() && !data.join("federation.toml").exists() => {
            scratch = tempfile::tempdir().map_err(FileError::write(Path::new("a temporary folder")))?;
            fitted(&contract, &converted(&contract, data, scratch.path())?)?
        }
        Some(contract) => fitted(&contract, data)?,
        None => federation(&experiment, data)?,
    };
    let states = states(run, &experiment)?;
    let model = build_model(&experiment, &federation, options.kernel)?;
    if states.iter().flat_map(|state| &state.tracks).any(|track| track.params.len() != model.num_params()) {
        return Err(EvaluateError::OtherParams { path: data.to_owned() });
    }
    let trainer = Sgd::boxed(&*model);
    let refused = |source| EvaluateError::Setup { path: data.to_owned(), source };
    let mut exchange = Simulation::with_threads(&*trainer, &federation, options.threads).map_err(refused)?;
    let mut evaluations = Vec::new();
    let mut seeds: Vec<Vec<&Params>> = Vec::new();
    for state in &states {
        let params: Vec<&Params> = tracks.iter().map(|(t, _)| &state.tracks[*t].params).collect();
        let evaluated = exchange.evaluate(Split::Train, &params)?;
        // The exchange treats all devices as train devices. For the models they are new.
        evaluations.extend(evaluated.map(|evaluated| SplitEvaluation { split: Split::Test, ..evaluated }));
        seeds.push(params);
    }
    let classes = by_class::evaluate(&*trainer, &federation, &seeds, options.threads)?;
    let groups = by_group::figures(&federation, Split::Test, &evaluations);
    let trained = experiment.tracks();
    let personal = |t: &usize| trained[*t].personal.is_some_and(|personal| personal.is_evaluated);
    let shared = tracks.iter().filter(|(t, _)| personal(t)).map(|(_, label)| label.to_string());
    Ok(ModelEvaluation {
        shared: shared.collect(),
        summary: summary(data, &experiment, &tracks, &states, &evaluations),
        classes: classes.map(|classes| Classes { split: Split::Test, ..classes }),
        groups,
        devices: federation.len(),
        tracks: tracks.into_iter().map(|(_, label)| label).collect(),
        seeds: states.iter().map(|state| state.seed).collect(),
        evaluations,
    })
}

/// Imports a table or a folder of images by the conversion of a contract, and returns the
/// federation folder.
fn converted(contract: &DataContract, data: &Path, scratch: &Path) -> Result<PathBuf, EvaluateError> {
    let target = ImportTarget::new(scratch.join("data"));
    if data.is_dir() {
        images::import_folder_like(data, contract, &target)?;
    } else {
        let files = auto::LocalFiles::new(&[data.to_owned()])?;
        let format = auto::detect(&files.paths[0])?;
        import_like(&files.paths, format, contract, &LikeOptions::default(), &target)?;
    }
    Ok(target.out)
}

/// Returns the tracks to evaluate, with their indices.
pub(crate) fn chosen(
    experiment: &Experiment,
    levels: &[f64],
) -> Result<Vec<(usize, TrackLabel)>, EvaluateError> {
    let labels = experiment.labels().into_iter().enumerate();
    let at = |label: &TrackLabel, theta: f64| label.theta.get().total_cmp(&theta).is_eq();
    let all: Vec<(usize, TrackLabel)> = labels.collect();
    if let Some(unknown) = levels.iter().find(|&&theta| all.iter().all(|(_, label)| !at(label, theta))) {
        let levels = all.iter().map(|(_, label)| label.theta.to_string()).collect();
        return Err(EvaluateError::NoLevel { theta: *unknown, levels });
    }
    let wanted = |label: &TrackLabel| levels.is_empty() || levels.iter().any(|&theta| at(label, theta));
    Ok(all.into_iter().filter(|(_, label)| wanted(label)).collect())
}

/// Loads the federation with all its devices in one split, coded and normalised by the contract of
/// the run.
pub(crate) fn fitted(contract: &DataContract, path: &Path) -> Result<Federation, EvaluateError> {
    let opened =
        deltafl_data::open(path).map_err(|source| EvaluateError::Open { path: path.to_owned(), source })?;
    let all = DeviceSplit { train: 1.0, validation: 0.0, ..DeviceSplit::default() };
    let mismatch = |source| EvaluateError::Mismatch { path: path.to_owned(), source };
    contract.fit(opened.split_devices(&all)?).map_err(mismatch)
}

/// Loads the federation with all its devices in one split and the preparation of the run's data,
/// for runs without a contract.
fn federation(experiment: &Experiment, path: &Path) -> Result<Federation, EvaluateError> {
    let opened =
        deltafl_data::open(path).map_err(|source| EvaluateError::Open { path: path.to_owned(), source })?;
    let all = DeviceSplit { train: 1.0, validation: 0.0, ..DeviceSplit::default() };
    let federation = opened.split_devices(&all)?;
    let trained = experiment.data().load();
    let given = experiment.data().normalise.is_some_and(|normalise| normalise != Normalise::None);
    let unlike = |difference| Err(EvaluateError::Unlike { path: path.to_owned(), difference });
    match trained {
        Ok(trained) if trained.kind() != federation.kind() || trained.classes() != federation.classes() => {
            let about =
                |data: &Federation| format!("{}, {}", describe_input(data.kind()), describe_targets(data));
            unlike(DataDifference::Kind { run: about(&trained), federation: about(&federation) })
        }
        // Class numbers and feature positions are comparable only if their names are equal.
        Ok(trained) if trained.class_names() != federation.class_names() => {
            let names = |data: &Federation| data.class_names().join(", ");
            unlike(DataDifference::Classes { run: names(&trained), federation: names(&federation) })
        }
        Ok(trained) if trained.feature_columns() != federation.feature_columns() => {
            let names = |data: &Federation| {
                let columns = data.feature_columns().iter().map(|column| column.name.as_str());
                columns.collect::<Vec<_>>().join(", ")
            };
            unlike(DataDifference::Columns { run: names(&trained), federation: names(&federation) })
        }
        Ok(trained) if trained.words() != federation.words() => unlike(DataDifference::Words),
        Ok(trained) if trained.affine().is_some() => Ok(federation.normalised_as(&trained)),
        Err(e) if given => Err(EvaluateError::Normalisation(e)),
        _ => Ok(federation),
    }
}

/// Describes the targets of a federation in a few words.
pub fn describe_targets(federation: &Federation) -> String {
    match federation.targets() {
        TargetKind::Classes(classes) => format!("{classes} classes"),
        TargetKind::Values => "numbers to predict".to_owned(),
    }
}

/// Describes the input of an example in a few words.
pub fn describe_input(kind: InputKind) -> String {
    match kind {
        InputKind::Bytes { dim } => format!("{dim} grey levels"),
        InputKind::Dense { dim } => format!("{dim} features"),
        InputKind::Tokens { len, vocabulary } => format!("{len} words of {vocabulary}"),
        InputKind::Windows { len, alphabet } => format!("windows of {len} symbols of {alphabet}"),
    }
}

/// Returns the last state of each seed that has one.
fn states(run: &Path, experiment: &Experiment) -> Result<Vec<State>, EvaluateError> {
    let mut states = Vec::new();
    for &seed in experiment.seeds() {
        states.extend(run_folder::read_checkpoint(run, seed)?);
    }
    if states.is_empty() {
        return Err(EvaluateError::NoCheckpoint { path: run.to_owned() });
    }
    Ok(states)
}

/// Returns the summary of the evaluations, in the format of a run's summary.
fn summary(
    data: &Path,
    experiment: &Experiment,
    tracks: &[(usize, TrackLabel)],
    states: &[State],
    evaluations: &[SplitEvaluation],
) -> Summary {
    let of_track = |(i, (_, label)): (usize, &(usize, TrackLabel))| {
        let figures: Vec<Figures> =
            evaluations.iter().filter_map(|evaluation| Figures::of_track(evaluation, i)).collect();
        TrackSummary {
            name: label.name.clone(),
            algorithm: label.algorithm.clone(),
            theta: label.theta,
            test: FiguresOverSeeds::new(&figures),
            test_dispersion: DispersionBySize::of_primary(evaluations, i),
            test_sample: None,
            validation: None,
            train_loss: None,
            train_loss_dispersion: None,
            train_loss_sample: None,
            objective: None,
            seeds: states.len(),
            rounds: states.iter().map(|state| state.round).min().unwrap_or(0),
            idle_rounds: IdleRounds::default(),
            held_out: Vec::new(),
            privacy: None,
        }
    };
    Summary {
        name: experiment.name().to_owned(),
        dataset: data.file_name().unwrap_or(data.as_os_str()).to_string_lossy().into_owned(),
        model: experiment.model().spec().name().to_owned(),
        task: evaluations.first().map_or(Task::Classes, |evaluation| evaluation.task),
        reported: Split::Test,
        tracks: tracks.iter().enumerate().map(of_track).collect(),
        baseline: None,
    }
}

impl ModelEvaluation {
    /// Writes a CSV file with a row per seed, track and device.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be written.
    pub fn write_devices(&self, path: &Path) -> Result<(), FileError> {
        let rows = self.device_rows().map_err(|e| FileError::write(path)(e.into()))?;
        crate::error::write_file(path, rows)
    }

    fn device_rows(&self) -> Result<Vec<u8>, csv::Error> {
        let mut writer = csv::Writer::from_writer(Vec::new());
        let metrics = self.summary.task.metrics();
        let names = ["seed", "track", "device", "examples", "loss"].into_iter();
        writer.write_record(names.chain(metrics.iter().map(|metric| metric.name)))?;
        for (seed, evaluation) in self.seeds.iter().zip(&self.evaluations) {
            for (label, devices) in self.tracks.iter().zip(&evaluation.tracks) {
                for (device, figures) in evaluation.devices.iter().zip(devices) {
                    let about = [
                        seed.to_string(),
                        label.to_string(),
                        device.id.clone(),
                        device.examples.to_string(),
                        figures.loss.to_string(),
                    ];
                    let metrics = figures.metrics[..metrics.len()].iter().map(f64::to_string);
                    writer.write_record(about.into_iter().chain(metrics))?;
                }
            }
        }
        Ok(writer.into_inner().map_err(csv::IntoInnerError::into_error)?)
    }
}
