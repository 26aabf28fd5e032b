//! `deltafl tune`: the grid search of the paper, two sweeps one after the other.
//!
//! First γ₀ and c, by the weighted mean train loss of FedAvg at the end; then, for linear models, λ for each track, by
//! the 90th percentile of the task's metric over train devices that were held out.

use std::fs;
use std::path::{Path, PathBuf};

use deltafl::task::{Metric, Task};
use deltafl::training::Decay;
use deltafl_data::experiment::{Experiment, OneOrMore, Positive};
use deltafl_data::run_folder::{Summary, TrackSummary};
use miette::{IntoDiagnostic, Result, WrapErr, miette};
use serde::Serialize;

mod grid;
mod heat_map;

use crate::error::{bad_input, make_folder};
use crate::report::tracks::tracks;
use crate::run::Machine;
use crate::sweep::folder::SweepFolder;
use crate::sweep::points::{Point, Sweep};
use crate::sweep::train::{self, Effort};
use crate::{canvas, experiment_file, session, sweep, table};
use grid::{Asked, Grid};
use heat_map::HeatMap;

/// Search for the learning rate, its decay and the penalty, as the paper did
#[derive(clap::Args, Debug)]
#[command(
    after_help = "γ₀ and c are those with the lowest train loss of FedAvg at the end. λ, for linear models, is chosen for each θ: the \
best 90th percentile of the error (of the RMSE for a regression) over half of the train devices, which do not train. Interrupted, the \
same command goes on where it was.

Example:
  deltafl tune experiments/paper/emnist-linear.toml --rates 0.1,0.32,1 --set rounds=300
  deltafl run tune/emnist-linear/tuned.toml"
)]
pub(crate) struct Args {
    /// The experiment, a TOML file
    experiment: PathBuf,
    /// Learning rates γ₀ to try [default: 0.1, 0.32, 1, 3.2 and 10 times that of the experiment]
    #[arg(long, value_name = "RATES", value_delimiter = ',')]
    rates: Vec<f64>,
    /// Decays c to try, if the rate decays [default: 1, 1/2, 1/4 and 1/8]
    #[arg(long, value_name = "FACTORS", value_delimiter = ',')]
    decays: Vec<f64>,
    /// Penalties λ to try [default: 1e-8 to 1e-3 for linear models]
    #[arg(long, value_name = "PENALTIES", value_delimiter = ',')]
    l2: Vec<f64>,
    /// Average over the first N seeds of the experiment
    #[arg(long, value_name = "N", default_value = "1")]
    seeds: std::num::NonZeroUsize,
    /// Override a key of the experiment; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// The folder for the sweeps, the heat maps and tuned.toml [default: tune/NAME]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Points at once [default: one per thread]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    jobs: usize,
    #[command(flatten)]
    machine: Machine,
    /// Print what was chosen as JSON
    #[arg(long)]
    json: bool,
    /// Show no progress
    #[arg(long, short)]
    quiet: bool,
}

/// What was chosen.
#[derive(Debug, Serialize)]
struct Chosen {
    /// γ₀.
    learning_rate: f64,
    /// c; 1 where the rate does not decay.
    decay: f64,
    /// λ of each track.
    l2: Vec<TrackPenalty>,
    /// The file to run.
    experiment: PathBuf,
}

#[derive(Debug, Serialize)]
struct TrackPenalty {
    track: String,
    l2: f64,
}

pub(crate) fn run(args: Args) -> Result<()> {
    session::refuse_ranks(
        "tune in one process; its sweeps can be dealt out: deltafl sweep run DIR/rate/sweep.toml",
    )?;
    let experiment = experiment_file::read(&args.experiment, &args.overrides)?.with_resolved(None);
    let asked = Asked { rates: args.rates.clone(), decays: args.decays.clone(), l2: args.l2.clone() };
    let grid = Grid::new(&experiment, asked)?;
    let out = args.out.clone().unwrap_or_else(|| Path::new("tune").join(experiment.name()));
    let tuner = Tuner { args: &args, grid, out };

    let mut tuned = tuner.rate(&experiment)?;
    let mut penalties = Vec::new();
    if !tuner.grid.l2.is_empty() {
        let chosen = tuner.l2(&tuned)?;
        let names = tracks(&tuned).into_iter().map(|track| track.label);
        penalties = names.zip(&chosen).map(|(track, &l2)| TrackPenalty { track, l2 }).collect();
        tuned = grid::with_l2(tuned, &chosen);
    }
    let path = tuner.write("tuned.toml", tuner.file(&tuned, &penalties).as_bytes())?;
    let chosen = Chosen {
        learning_rate: tuned.local().learning_rate,
        decay: tuned.local().decay.map_or(1.0, |decay| decay.factor.get()),
        l2: penalties,
        experiment: path,
    };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&chosen).into_diagnostic()?);
    } else {
        println!("Ready to run:\n  deltafl run {}", chosen.experiment.display());
    }
    Ok(())
}

struct Tuner<'a> {
    args: &'a Args,
    grid: Grid,
    out: PathBuf,
}

impl Tuner<'_> {
    /// The experiment with the best γ₀ and c.
    fn rate(&self, experiment: &Experiment) -> Result<Experiment> {
        let mut swept = vec![format!("local.learning_rate={}", listed(&self.grid.rates))];
        if !self.grid.decays.is_empty() {
            swept.push(format!("local.decay.factor={}", listed(&self.grid.decays)));
        }
        let (folder, sweep) = self.sweep("rate", grid::for_rate(experiment), &swept)?;
        folder.describe(&sweep)?;
        let points = self.trained(&folder, sweep)?;
        let columns = self.grid.decays.len().max(1);
        let losses: Vec<Option<f64>> =
            points.iter().map(|(_, summary)| train_loss(&summary.tracks[0])).collect();
        let best = lowest(&losses).ok_or_else(|| {
            bad_input("FedAvg diverged at every point of the grid")
                .help("try smaller rates: --rates 0.01,0.001")
        })?;
        let (rate, decay) = (best / columns, best % columns);
        // Rates from left to right, decays from top to bottom.
        let decays: Vec<String> =
            if self.grid.decays.is_empty() { vec!["none".to_owned()] } else { shown(&self.grid.decays) };
        let cells =
            (0..columns).map(|c| (0..self.grid.rates.len()).map(|r| losses[r * columns + c]).collect());
        self.picture(
            "rate",
            &HeatMap {
                title: "Train loss of FedAvg at the end".to_owned(),
                x: ("learning rate γ₀", shown(&self.grid.rates)),
                y: ("decay c", decays),
                cells: cells.collect(),
                chosen: vec![(decay, rate)],
                decimals: loss_decimals(&points, &losses),
            },
        )?;
        let learning_rate = Positive::try_from(self.grid.rates[rate]).into_diagnostic()?;
        let mut chosen = experiment.local().decay;
        let of_rate: Vec<Option<f64>> = losses.iter().copied().skip(decay).step_by(columns).collect();
        self.say(&format!("γ₀ = {}{}", self.grid.rates[rate], edge(rate, &of_rate, "--rates")));
        if let (Some(decay), Some(&c)) = (chosen, self.grid.decays.get(decay)) {
            let factor = Positive::try_from(c).into_diagnostic()?;
            chosen = (c < 1.0).then_some(Decay { factor, ..decay });
            self.say(&format!("c = {c}"));
        }
        Ok(experiment.clone().with_learning_rate(learning_rate, chosen))
    }

    /// The best λ of each track.
    fn l2(&self, experiment: &Experiment) -> Result<Vec<f64>> {
        let penalties: Vec<String> = self.grid.l2.iter().map(|l2| format!("{l2:e}")).collect();
        let swept = [format!("model.l2={}", penalties.join(","))];
        let (folder, sweep) = self.sweep("l2", grid::for_l2(experiment), &swept)?;
        // A grid of rates that has grown may have led to another rate, and so to other points.
        folder.describe_anew(&sweep)?;
        let points = self.trained(&folder, sweep)?;
        let metric = points.first().map_or(Task::Classes, |(_, summary)| summary.task).primary();
        let names: Vec<String> = tracks(experiment).into_iter().map(|track| track.label).collect();
        let errors: Vec<Vec<Option<f64>>> = (0..names.len())
            .map(|t| points.iter().map(|(_, summary)| validation_p90(metric, &summary.tracks[t])).collect())
            .collect();
        let best: Option<Vec<usize>> = errors.iter().map(|errors| best(metric, errors)).collect();
        let best = best.ok_or_else(|| bad_input("no device is held out: there are too few train devices"))?;
        let map = HeatMap {
            title: format!("90th percentile of the {} over held-out train devices", metric.heading()),
            x: ("penalty λ", penalties),
            y: ("track", names),
            decimals: table::decimals(metric, errors.iter().flatten().flatten().copied()),
            cells: errors,
            chosen: best.iter().copied().enumerate().collect(),
        };
        self.picture("l2", &map)?;
        for ((name, &i), errors) in map.y.1.iter().zip(&best).zip(&map.cells) {
            self.say(&format!("{name}: λ = {:e}{}", self.grid.l2[i], edge(i, errors, "--l2")));
        }
        Ok(best.into_iter().map(|i| self.grid.l2[i]).collect())
    }

    /// A sweep in a folder of its own.
    fn sweep(&self, name: &str, experiment: Experiment, swept: &[String]) -> Result<(SweepFolder, Sweep)> {
        let seeds: Vec<u64> = experiment.seeds().iter().copied().take(self.args.seeds.get()).collect();
        let experiment = experiment.with_seeds(OneOrMore::try_from(seeds).into_diagnostic()?);
        let folder = SweepFolder::at(&self.out.join(name));
        let sweep = Sweep::new(&folder.description(), &experiment.to_toml(), &[], swept)?;
        Ok((folder, sweep))
    }

    /// Trains a sweep; its points with what they came to.
    fn trained(&self, folder: &SweepFolder, sweep: Sweep) -> Result<Vec<(Point, Summary)>> {
        let effort = Effort {
            jobs: self.args.jobs,
            threads: self.args.machine.cpu.threads,
            kernel: self.args.machine.kernel(),
            compute: self.args.machine.compute,
            quiet: self.args.quiet || self.args.json,
        };
        let points: Vec<&Point> = sweep.points.iter().collect();
        let tally = train::train(folder, &points, &effort)?;
        let busy = tally.busy > 0;
        sweep::conclude(tally, folder, self.args.json)?;
        if busy {
            return Err(miette!(
                "nothing can be chosen yet: run the same command again when the others are done"
            ));
        }
        let summed = |point: Point| {
            let summary = Summary::read(&folder.point(&point.address)).map_err(session::folder_error)?;
            Ok((point, summary))
        };
        sweep.points.into_iter().map(summed).collect()
    }

    /// Draws a heat map, and prints it as a table.
    fn picture(&self, name: &str, map: &HeatMap) -> Result<()> {
        self.write(&format!("{name}.svg"), canvas::svg(map)?.as_bytes())?;
        let png = self.write(&format!("{name}.png"), &canvas::png(map)?)?;
        let mut rows = vec![[vec![String::new()], map.x.1.clone()].concat()];
        for (r, row) in map.cells.iter().enumerate() {
            let cell = |(c, figure): (usize, &Option<f64>)| {
                let mark = if map.chosen.contains(&(r, c)) { "*" } else { "" };
                figure.map_or_else(
                    || "–".to_owned(),
                    |figure| format!("{mark}{}", table::number(figure, map.decimals)),
                )
            };
            rows.push([vec![map.y.1[r].clone()], row.iter().enumerate().map(cell).collect()].concat());
        }
        self.say(&format!(
            "\n{} ({} across, {} down; {})\n\n{}",
            map.title,
            map.x.0,
            map.y.0,
            png.display(),
            table::aligned(&rows)
        ));
        Ok(())
    }

    fn write(&self, name: &str, contents: &[u8]) -> Result<PathBuf> {
        let path = self.out.join(name);
        make_folder(&self.out)?;
        fs::write(&path, contents).into_diagnostic().wrap_err_with(|| path.display().to_string())?;
        Ok(path)
    }

    /// The tuned experiment, with a word on where its values come from.
    fn file(&self, tuned: &Experiment, penalties: &[TrackPenalty]) -> String {
        let rate = format!(
            "# Tuned by `deltafl tune`: learning_rate{} by the train loss of FedAvg after {} rounds",
            if self.grid.decays.is_empty() { "" } else { " and decay" },
            tuned.rounds
        );
        let l2 = if penalties.is_empty() {
            ""
        } else {
            ",\n# l2 by the 90th percentile over half of the train devices, held out"
        };
        format!("{rate}{l2}.\n{}", tuned.to_toml())
    }

    fn say(&self, line: &str) {
        if !self.args.json {
            println!("{line}");
        }
    }
}

/// What to add when the best lies at the edge of what was tried, and is better than its neighbour.
fn edge(best: usize, figures: &[Option<f64>], option: &str) -> String {
    let neighbour = if best == 0 { 1 } else { best - 1 };
    let at_edge = best == 0 || best + 1 == figures.len();
    if at_edge && figures.get(neighbour).is_some_and(|figure| *figure != figures[best]) {
        format!(", at the edge of the grid: a value beyond may be better ({option})")
    } else {
        String::new()
    }
}

fn train_loss(track: &TrackSummary) -> Option<f64> {
    track.train_loss.map(|loss| loss.mean.mean).filter(|loss| loss.is_finite())
}

/// Places behind the point of a train loss: that of a regression is in the target's unit, and may be of any size.
fn loss_decimals(points: &[(Point, Summary)], losses: &[Option<f64>]) -> usize {
    match points.first().map(|(_, summary)| summary.task) {
        Some(Task::Regression(_)) => table::places(losses.iter().flatten().copied()),
        _ => 4,
    }
}

/// As it is shown: shares in per cent.
fn validation_p90(metric: &Metric, track: &TrackSummary) -> Option<f64> {
    track.validation.map(|figures| metric.shown(figures.p90.mean)).filter(|figure| figure.is_finite())
}

/// The first of the best figures of a metric.
fn best(metric: &Metric, figures: &[Option<f64>]) -> Option<usize> {
    let costs: Vec<Option<f64>> =
        figures.iter().map(|figure| figure.map(|value| metric.cost(value))).collect();
    lowest(&costs)
}

/// The first of the lowest figures: of equal ones, the smallest value of the grid.
fn lowest(figures: &[Option<f64>]) -> Option<usize> {
    let finite = figures.iter().enumerate().filter_map(|(i, figure)| Some((i, (*figure)?)));
    finite.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(i, _)| i)
}

fn listed(values: &[f64]) -> String {
    shown(values).join(",")
}

fn shown(values: &[f64]) -> Vec<String> {
    values.iter().map(ToString::to_string).collect()
}
