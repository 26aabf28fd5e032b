//! Predictions of a trained model for new data.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use deltafl::algorithm::{FED_AVG, TrackLabel};
use deltafl::data::{DataContract, Federation};
use deltafl::kernel::Isa;
use deltafl::model::{ModelSpec, Predictor};
use deltafl_data::experiment::Experiment;
use deltafl_data::import::table::{LikeOptions, UNSEEN, import_like};
use deltafl_data::import::{ImportError, ImportTarget, auto, images};
use deltafl_data::parquet_table::{TableColumn, TableWriter};
use deltafl_data::run_folder;
use parquet::basic::Compression;
use parquet::errors::ParquetError;

use crate::contract::ContractError;
use crate::error::{ErrorKind, Excerpt, Explain, FileError};
use crate::evaluate::{EvaluateError, fitted};
use crate::session::RunError;

/// The reason why nothing can be predicted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PredictError {
    /// The run or the federation cannot be used.
    #[error(transparent)]
    Evaluate(#[from] EvaluateError),
    /// The run has no contract.
    #[error(transparent)]
    Contract(#[from] ContractError),
    /// The model cannot be built.
    #[error(transparent)]
    Model(#[from] RunError),
    /// The table cannot be read.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// A file cannot be written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The predictions cannot be encoded.
    #[error("cannot write {path}: {reason}")]
    Write {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The run has no such seed.
    #[error("the run has no seed {seed}")]
    NoSeed {
        /// The requested seed.
        seed: u64,
        /// The seeds of the run.
        seeds: Vec<u64>,
    },
    /// Several tracks of the run have the requested level, and none of them is FedAvg.
    #[error("the run has several models for θ = {theta}")]
    SeveralTracks {
        /// The requested level.
        theta: f64,
        /// Their names.
        tracks: Vec<String>,
    },
    /// The parameters have another size than the model.
    #[error("the parameters of the model do not have the size that its contract requires")]
    OtherParams,
}

impl Explain for PredictError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Evaluate(error) => error.kind(),
            Self::Contract(error) => error.kind(),
            Self::Model(error) => error.kind(),
            Self::File(error) => error.kind(),
            Self::Import(_) | Self::NoSeed { .. } | Self::SeveralTracks { .. } | Self::OtherParams => {
                ErrorKind::InvalidInput
            }
            Self::Write { .. } => ErrorKind::Failure,
        }
    }

    fn help(&self) -> Option<String> {
        match self {
            Self::Evaluate(error) => error.help(),
            Self::Contract(error) => error.help(),
            Self::Model(error) => error.help(),
            Self::File(error) => error.help(),
            Self::Import(error) => error.help().map(str::to_owned),
            Self::NoSeed { seeds, .. } => {
                let seeds: Vec<String> = seeds.iter().map(u64::to_string).collect();
                Some(format!("its seeds are {}", seeds.join(", ")))
            }
            Self::SeveralTracks { tracks, .. } => Some(format!(
                "they are {}; without --theta the first model of the run is used, and `deltafl export` writes all",
                tracks.join(", ")
            )),
            Self::OtherParams | Self::Write { .. } => None,
        }
    }

    fn excerpt(&self) -> Option<Excerpt<'_>> {
        None
    }
}

/// A trained model with the contract of its data.
#[derive(Clone, Debug)]
pub struct TrainedModel {
    /// The model.
    pub spec: ModelSpec,
    /// The shape and preparation of its data.
    pub contract: DataContract,
    /// Its parameters.
    pub params: Vec<f32>,
    /// Its name.
    pub name: String,
}

impl TrainedModel {
    /// Reads a model of a run: the first level, or that of `theta`, of the first seed, or of
    /// `seed`. If several tracks have the level, it is the model of FedAvg. Also returns all levels
    /// of the run.
    ///
    /// # Errors
    ///
    /// Fails if the run cannot be read, or has no such model.
    pub fn of_run(
        run: &Path,
        theta: Option<f64>,
        seed: Option<u64>,
    ) -> Result<(Self, Vec<TrackLabel>), PredictError> {
        let failed = |error| PredictError::Evaluate(EvaluateError::from(error));
        let experiment = run_folder::read_experiment(run).map_err(failed)?;
        let levels: Vec<f64> = theta.into_iter().collect();
        let chosen = crate::evaluate::chosen(&experiment, &levels)?;
        let fed_avg = chosen.iter().find(|(_, label)| label.algorithm == FED_AVG.kind);
        let track = match (theta, fed_avg) {
            (Some(_), Some((track, _))) => *track,
            (Some(theta), None) if chosen.len() > 1 => {
                let tracks = chosen.iter().map(|(_, label)| label.to_string()).collect();
                return Err(PredictError::SeveralTracks { theta, tracks });
            }
            _ => chosen[0].0,
        };
        Ok((Self::of_track(run, &experiment, track, seed)?, experiment.labels()))
    }

    /// Reads the model of a track of a run.
    pub(crate) fn of_track(
        run: &Path,
        experiment: &Experiment,
        track: usize,
        seed: Option<u64>,
    ) -> Result<Self, PredictError> {
        let failed = |error| PredictError::Evaluate(EvaluateError::from(error));
        let seeds = experiment.seeds();
        let wanted = seed.or(seeds.first().copied()).unwrap_or(1);
        if !seeds.contains(&wanted) {
            return Err(PredictError::NoSeed { seed: wanted, seeds: seeds.to_vec() });
        }
        let state = run_folder::read_checkpoint(run, wanted).map_err(failed)?;
        let state = state.ok_or_else(|| EvaluateError::NoCheckpoint { path: run.to_owned() })?;
        let contract = run_folder::read_contract(run).map_err(failed)?;
        let contract = contract.ok_or_else(|| ContractError::OldRun { path: run.to_owned() })?;
        Ok(Self {
            spec: experiment.model().spec().clone(),
            contract,
            params: state.tracks[track].params.as_slice().to_vec(),
            name: match experiment.tracks()[track].personal {
                Some(personal) if personal.is_evaluated => {
                    format!("{}, the shared model", experiment.labels()[track])
                }
                _ => experiment.labels()[track].to_string(),
            },
        })
    }
}

/// The origin of the examples of predictions.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExampleOrigin {
    /// The rows of a table.
    Rows,
    /// The device of each example.
    Devices(Vec<String>),
    /// The file of each image.
    Files(Vec<String>),
}

impl ExampleOrigin {
    /// Returns the name of the first column of predictions.
    fn column(&self) -> &'static str {
        match self {
            Self::Rows => "row",
            Self::Devices(_) => "device",
            Self::Files(_) => "file",
        }
    }

    fn names(&self) -> Option<&[String]> {
        match self {
            Self::Rows => None,
            Self::Devices(names) | Self::Files(names) => Some(names),
        }
    }
}

/// Predictions, one row per example.
#[derive(Clone, Debug, PartialEq)]
pub struct Predictions {
    /// The names of the classes; empty for a regression.
    pub classes: Vec<String>,
    /// The origin of each example.
    pub origin: ExampleOrigin,
    /// A probability per class, or the predicted value, for each example.
    pub outputs: Vec<f32>,
    /// The numbers of values of categories that did not occur in training, by column.
    pub unseen: Option<String>,
}

/// Predicts the targets of new data: a federation folder, the files of a table, or images.
///
/// Images are files, files in folders, or paths in a column of a table. Tables and images are coded
/// by the constants of the model. Labels are not read.
///
/// # Errors
///
/// Fails if the data cannot be read or does not fit the model.
pub fn predict(model: &TrainedModel, data: &[PathBuf], kernel: Isa) -> Result<Predictions, PredictError> {
    let contract = &model.contract;
    if let [folder] = data
        && folder.join("federation.toml").exists()
    {
        let federation = fitted(contract, folder)?;
        let devices = federation.devices().flat_map(|k| {
            std::iter::repeat_n(federation.id(k).to_owned(), federation.example_count(k) as usize)
        });
        let origin = ExampleOrigin::Devices(devices.collect());
        return outputs(model, &federation, kernel, origin);
    }
    let scratch = tempfile::tempdir().map_err(FileError::write(Path::new("a temporary folder")))?;
    let target = ImportTarget::new(scratch.path().join("data"));
    let local = auto::LocalFiles::new(data)?;
    let mut unseen = None;
    let are_images = data.iter().any(|path| path.is_dir() || images::is_image(path));
    let origin = if are_images || contract.table.as_ref().is_some_and(|coding| coding.image.is_some()) {
        let files = images::find(&local.paths)?;
        images::import_unlabelled(&files, contract, &target)?;
        ExampleOrigin::Files(files.iter().map(|file| file.display().to_string()).collect())
    } else {
        let format = auto::detect(local.paths.first().map_or(Path::new("."), PathBuf::as_path))?;
        let options = LikeOptions { one_device: true, without_labels: true, ..LikeOptions::default() };
        let imported = import_like(&local.paths, format, contract, &options, &target)?;
        unseen = imported.manifest.source.and_then(|mut source| source.options.remove(UNSEEN));
        ExampleOrigin::Rows
    };
    let predictions = outputs(model, &fitted(contract, &target.out)?, kernel, origin)?;
    Ok(Predictions { unseen, ..predictions })
}

/// Computes the predictions for a federation that fits the contract of the model.
fn outputs(
    model: &TrainedModel,
    federation: &Federation,
    kernel: Isa,
    origin: ExampleOrigin,
) -> Result<Predictions, PredictError> {
    let built = model.spec.build(federation, kernel).map_err(RunError::from)?;
    if built.num_params() != model.params.len() {
        return Err(PredictError::OtherParams);
    }
    let classes = federation.classes();
    let predictor = Predictor::new(&*built, classes, &model.params);
    let mut predictions = Predictions {
        classes: (0..classes as u32).map(|class| federation.class_name(class)).collect(),
        origin,
        outputs: Vec::new(),
        unseen: None,
    };
    for k in federation.devices() {
        predictions.outputs.extend(predictor.predict(federation, k).into_iter().map(|output| output as f32));
    }
    Ok(predictions)
}

impl Predictions {
    /// Returns the number of examples.
    pub fn len(&self) -> usize {
        self.outputs.len() / self.width()
    }

    /// Whether there are no examples.
    pub fn is_empty(&self) -> bool {
        self.outputs.is_empty()
    }

    fn width(&self) -> usize {
        self.classes.len().max(1)
    }

    /// Returns the most probable class of each example; empty for a regression.
    pub fn most_probable(&self) -> Vec<usize> {
        if self.classes.is_empty() {
            return Vec::new();
        }
        let best = |row: &[f32]| {
            let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            row.iter().position(|&p| p >= largest).unwrap_or(0)
        };
        self.outputs.chunks_exact(self.width()).map(best).collect()
    }

    /// Writes a file, Parquet if its name ends in `.parquet` and CSV otherwise. A row contains the
    /// number of the row, the device or the file, the prediction, and the probability of each class.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), PredictError> {
        let failed = |reason: String| PredictError::Write { path: path.to_owned(), reason };
        let file = File::create(path).map_err(FileError::write(path))?;
        if path.extension().is_some_and(|end| end == "parquet") {
            return self.write_parquet(file).map_err(|e| failed(e.to_string()));
        }
        let mut writer = csv::Writer::from_writer(BufWriter::new(file));
        self.write_csv(&mut writer).map_err(|e| failed(e.to_string()))
    }

    fn names(&self) -> Vec<String> {
        self.classes.iter().map(|class| format!("p({class})")).collect()
    }

    fn write_parquet(&self, file: File) -> Result<(), ParquetError> {
        let first = match self.origin.names() {
            None => TableColumn::U64((0..self.len() as u64).collect()),
            Some(names) => TableColumn::Text(names.to_vec()),
        };
        let mut columns = vec![(self.origin.column().to_owned(), first)];
        let column = |i: usize| {
            let values = self.outputs.iter().skip(i).step_by(self.width());
            TableColumn::F64(values.map(|&p| p.into()).collect())
        };
        columns.push(match self.classes.is_empty() {
            true => ("prediction".to_owned(), column(0)),
            false => {
                let names = self.most_probable().into_iter().map(|class| self.classes[class].clone());
                ("prediction".to_owned(), TableColumn::Text(names.collect()))
            }
        });
        columns.extend(self.names().into_iter().enumerate().map(|(i, name)| (name, column(i))));
        let mut writer = TableWriter::new(file, &columns, &[], Compression::SNAPPY)?;
        writer.write(&columns)?;
        writer.finish()
    }

    fn write_csv(&self, writer: &mut csv::Writer<BufWriter<File>>) -> Result<(), csv::Error> {
        let first = [self.origin.column().to_owned(), "prediction".to_owned()];
        writer.write_record(first.into_iter().chain(self.names()))?;
        let best = self.most_probable();
        for (i, row) in self.outputs.chunks_exact(self.width()).enumerate() {
            let name = self.origin.names().and_then(|names| names.get(i).cloned());
            let place = name.unwrap_or_else(|| i.to_string());
            match best.get(i) {
                Some(&class) => {
                    let row = row.iter().map(f32::to_string);
                    writer.write_record([place, self.classes[class].clone()].into_iter().chain(row))?;
                }
                None => writer.write_record([place, row[0].to_string()])?,
            }
        }
        Ok(writer.flush()?)
    }
}
