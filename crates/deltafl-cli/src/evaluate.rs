//! `deltafl evaluate`: the models of a run on other devices.

use std::fs;
use std::path::{Path, PathBuf};

use deltafl::algorithm::TrackLabel;
use deltafl::compute::Threads;
use deltafl::data::{DeviceSplit, Federation, Normalise, Split};
use deltafl::exchange::{Direct, Exchange as _, SplitEvaluation};
use deltafl::metrics::{Figures, FiguresOverSeeds};
use deltafl::params::Params;
use deltafl::task::Task;
use deltafl::trainer::Sgd;
use deltafl::training::State;
use deltafl_data::experiment::Experiment;
use deltafl_data::run_folder::{self, Classes, IdleRounds, Summary, TrackSummary};
use miette::{IntoDiagnostic, Report, Result, WrapErr};

use crate::data::info;
use crate::error::{BadInput, bad_input};
use crate::run::CpuArgs;
use crate::session::{build_model, folder_error};
use crate::{by_class, table};

/// Evaluate the models of a run on the devices of another federation
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Every device of the federation is evaluated, however it is split. Features are normalised by the constants of the \
devices that the models were trained on, so that the data of the run must be where it was; its words must be those of the \
federation.\n\nExamples:\n  deltafl evaluate runs/emnist-linear --data data/other-writers\n  \
deltafl evaluate runs/emnist-linear --data data/other-writers --theta 0.5 --devices devices.csv"
)]
pub(crate) struct Args {
    /// The run folder
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// The federation folder
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Only the models of these levels; 1 is FedAvg [default: all]
    #[arg(long, value_name = "THETA", value_delimiter = ',')]
    theta: Vec<f64>,
    /// Write loss and error of each device as CSV
    #[arg(long, value_name = "FILE")]
    devices: Option<PathBuf>,
    #[command(flatten)]
    cpu: CpuArgs,
    /// Print the figures as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let experiment = run_folder::read_experiment(&args.run).map_err(folder_error)?;
    let tracks = chosen(&experiment, &args.theta)?;
    let federation = federation(&experiment, &args.data)?;
    let states = states(&args.run, &experiment)?;
    let model = build_model(&experiment, &federation, args.cpu.kernel.isa())?;
    if states.iter().flat_map(|state| &state.tracks).any(|track| track.params.len() != model.num_params()) {
        return Err(other_data(&args, "its examples have another shape, or other classes").into());
    }
    let trainer = Sgd::new(&*model);
    let refused = || bad_input(format!("{} cannot be evaluated", args.data.display()));
    let compute = Threads::new(&trainer, &federation, args.cpu.threads).map_err(|e| refused().because(e))?;
    let mut exchange = Direct::new(compute, &federation).map_err(|e| refused().because(e))?;
    let mut evaluations = Vec::new();
    for state in &states {
        let params: Vec<&Params> = tracks.iter().map(|(t, _)| &state.tracks[*t].params).collect();
        let evaluated = exchange.evaluate(Split::Train, &params).map_err(Report::from_err)?;
        // To the exchange all devices train; to the models they are new.
        evaluations.extend(evaluated.map(|evaluated| SplitEvaluation { split: Split::Test, ..evaluated }));
    }
    let summary = summary(&args.data, &experiment, &tracks, &states, &evaluations);
    if let Some(path) = &args.devices {
        write_devices(path, &tracks, &states, &evaluations)
            .wrap_err_with(|| format!("could not write {}", path.display()))?;
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&summary).into_diagnostic()?);
    } else {
        let title = format!(
            "Test {} over the {} devices of {}",
            table::metric(&summary),
            federation.len(),
            args.data.display()
        );
        print!("{}", table::titled(&title, &summary));
        let seeds: Vec<Vec<&Params>> = states
            .iter()
            .map(|state| tracks.iter().map(|(t, _)| &state.tracks[*t].params).collect())
            .collect();
        let classes = by_class::evaluate(&trainer, &federation, &seeds, args.cpu.threads)?;
        // To the federation all devices train; to the models they are new.
        if let Some(classes) = classes.map(|classes| Classes { split: Split::Test, ..classes }) {
            let names: Vec<String> = tracks.iter().map(|(_, label)| label.name.clone()).collect();
            print!("{}", by_class::rendered(&classes, &names));
        }
    }
    Ok(())
}

/// The tracks to evaluate, with their places.
fn chosen(experiment: &Experiment, levels: &[f64]) -> Result<Vec<(usize, TrackLabel)>, BadInput> {
    let labels = experiment.labels().into_iter().enumerate();
    let at = |label: &TrackLabel, theta: f64| label.theta.get().total_cmp(&theta).is_eq();
    let all: Vec<(usize, TrackLabel)> = labels.collect();
    if let Some(unknown) = levels.iter().find(|&&theta| all.iter().all(|(_, label)| !at(label, theta))) {
        let known: Vec<String> = all.iter().map(|(_, label)| label.theta.to_string()).collect();
        return Err(bad_input(format!("the run has no model for θ = {unknown}"))
            .help(format!("its levels are {}", known.join(", "))));
    }
    let wanted = |label: &TrackLabel| levels.is_empty() || levels.iter().any(|&theta| at(label, theta));
    Ok(all.into_iter().filter(|(_, label)| wanted(label)).collect())
}

/// The federation with all its devices in one split, prepared as the data of the run was.
fn federation(experiment: &Experiment, path: &Path) -> Result<Federation> {
    let opened = deltafl_data::open(path)
        .map_err(|e| bad_input(format!("cannot open the federation {}", path.display())).because(e))?;
    let all = DeviceSplit { train: 1.0, validation: 0.0, ..DeviceSplit::default() };
    let federation = opened.split_devices(&all).into_diagnostic()?;
    let trained = experiment.data().load();
    let needed = experiment.data().normalise != Normalise::None;
    match trained {
        Ok(trained) if trained.kind() != federation.kind() || trained.classes() != federation.classes() => {
            let about = |data: &Federation| format!("{}, {}", info::input(data.kind()), info::targets(data));
            let (run, here) = (about(&trained), about(&federation));
            Err(unlike(path).help(format!("the run was trained on {run}; this is {here}")).into())
        }
        // Numbers of classes and places of features mean nothing without their names.
        Ok(trained) if trained.class_names() != federation.class_names() => {
            let names = |data: &Federation| data.class_names().join(", ");
            let (run, here) = (names(&trained), names(&federation));
            Err(unlike(path).help(format!("the classes of the run are {run}; these are {here}")).into())
        }
        Ok(trained) if trained.feature_columns() != federation.feature_columns() => {
            let names = |data: &Federation| {
                let columns = data.feature_columns().iter().map(|column| column.name.as_str());
                columns.collect::<Vec<_>>().join(", ")
            };
            let (run, here) = (names(&trained), names(&federation));
            Err(unlike(path)
                .help(format!(
                    "the columns of the run are {run}; these are {here}. They must be the same in the same order, \
                     with the same words in those of words"
                ))
                .into())
        }
        Ok(trained) if trained.words() != federation.words() => {
            Err(bad_input(format!("{} has another vocabulary than the data of the run", path.display()))
                .help("import it with the same word vectors")
                .into())
        }
        Ok(trained) if needed => Ok(federation.normalised_as(&trained)),
        Err(e) if needed => Err(bad_input(
            "the data of the run cannot be read, and it holds the constants of the normalisation",
        )
        .because(e)
        .into()),
        _ => Ok(federation),
    }
}

fn unlike(path: &Path) -> BadInput {
    bad_input(format!("{} is not like the data of the run", path.display()))
}

/// The last state of each seed that has one.
fn states(run: &Path, experiment: &Experiment) -> Result<Vec<State>> {
    let mut states = Vec::new();
    for &seed in experiment.seeds() {
        states.extend(run_folder::read_checkpoint(run, seed).map_err(folder_error)?);
    }
    if states.is_empty() {
        return Err(bad_input(format!("{} holds no checkpoint yet", run.display())).into());
    }
    Ok(states)
}

fn other_data(args: &Args, why: &str) -> BadInput {
    bad_input(format!("{} does not fit the models of the run: {why}", args.data.display()))
}

/// What the evaluations come to, as a run's summary has it.
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
            test_sample: None,
            validation: None,
            train_loss: None,
            train_loss_sample: None,
            objective: None,
            seeds: states.len(),
            rounds: states.iter().map(|state| state.round).min().unwrap_or(0),
            idle_rounds: IdleRounds::default(),
            held_out: Vec::new(),
        }
    };
    Summary {
        name: experiment.name().to_owned(),
        dataset: data.file_name().unwrap_or(data.as_os_str()).to_string_lossy().into_owned(),
        model: experiment.model().spec().name().to_owned(),
        task: evaluations.first().map_or(Task::Classes, |evaluation| evaluation.task),
        reported: Split::Test,
        tracks: tracks.iter().enumerate().map(of_track).collect(),
    }
}

/// A row per seed, track and device.
fn write_devices(
    path: &Path,
    tracks: &[(usize, TrackLabel)],
    states: &[State],
    evaluations: &[SplitEvaluation],
) -> Result<()> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let metrics = evaluations.first().map_or(Task::Classes, |evaluation| evaluation.task).metrics();
    let names = ["seed", "track", "device", "examples", "loss"].into_iter();
    writer.write_record(names.chain(metrics.iter().map(|metric| metric.name))).into_diagnostic()?;
    for (state, evaluation) in states.iter().zip(evaluations) {
        for ((_, label), devices) in tracks.iter().zip(&evaluation.tracks) {
            for (device, figures) in evaluation.devices.iter().zip(devices) {
                let about = [
                    state.seed.to_string(),
                    label.to_string(),
                    device.id.clone(),
                    device.examples.to_string(),
                    figures.loss.to_string(),
                ];
                let metrics = figures.metrics[..metrics.len()].iter().map(f64::to_string);
                writer.write_record(about.into_iter().chain(metrics)).into_diagnostic()?;
            }
        }
    }
    fs::write(path, writer.into_inner().into_diagnostic()?).into_diagnostic()
}
