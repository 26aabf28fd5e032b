//! The results of a sweep over splits of the devices, with training seeds nested in splits.
//!
//! The headline of each track is its difference to the baseline, paired by split and seed. A
//! difference whose sign changes over splits is undecided.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use deltafl::data::Split;
use deltafl::exchange::{Evaluation, SplitEvaluation};
use deltafl::metrics::{DifferenceOverSplits, Dispersion, Figures, OverSplits, Verdict};
use deltafl::task::{Direction, Task};
use deltafl_data::experiment::{Experiment, SplitSection};
use deltafl_data::run_folder;
use serde::Serialize;

use super::SweepError;
use super::axes::SPLIT;
use super::folder::SweepFolder;
use super::points::{SEEDS, Sweep, SweepPoint};
use crate::report::tracks::{baseline, tracks};
use crate::text_table;

/// The figures of a track after the last round, in the order of the tables.
const FIGURES: [FigureInfo; 11] = [
    FigureInfo { key: "p90", title: "90th percentile", unit: FigureUnit::Metric },
    FigureInfo { key: "mean", title: "mean", unit: FigureUnit::Metric },
    FigureInfo { key: "std", title: "deviation over devices", unit: FigureUnit::Metric },
    FigureInfo { key: "worst_tenth", title: "worst tenth", unit: FigureUnit::Metric },
    FigureInfo { key: "gini", title: "Gini", unit: FigureUnit::Number },
    FigureInfo { key: "small_std", title: "deviation, small devices", unit: FigureUnit::Metric },
    FigureInfo { key: "small_worst_tenth", title: "worst tenth, small devices", unit: FigureUnit::Metric },
    FigureInfo { key: "small_gini", title: "Gini, small devices", unit: FigureUnit::Number },
    FigureInfo { key: "train_loss_mean", title: "train loss, mean", unit: FigureUnit::Loss },
    FigureInfo { key: "train_loss_p90", title: "train loss, 90th percentile", unit: FigureUnit::Loss },
    FigureInfo { key: "train_loss_std", title: "train loss, deviation", unit: FigureUnit::Loss },
];

/// A figure of the tables.
struct FigureInfo {
    key: &'static str,
    title: &'static str,
    unit: FigureUnit,
}

/// The unit of a figure.
#[derive(Clone, Copy)]
enum FigureUnit {
    Metric,
    Loss,
    Number,
}

/// The results of all points that differ only in their split and seed.
#[derive(Debug, Serialize)]
pub struct SplitResults {
    /// The name of the experiment.
    pub name: String,
    /// The values of the other axes.
    pub settings: BTreeMap<String, String>,
    /// The seeds of the splits with a finished run.
    pub splits: Vec<u64>,
    /// Finished runs, one per split and seed.
    pub runs: usize,
    /// Planned runs.
    pub runs_planned: usize,
    /// The task.
    pub task: Task,
    /// The track with which the others are compared.
    pub baseline: String,
    /// The results of each track.
    pub tracks: Vec<TrackOverSplits>,
}

/// The results of a track over splits.
#[derive(Debug, Serialize)]
pub struct TrackOverSplits {
    /// The track.
    pub track: String,
    /// The kind of its algorithm.
    pub algorithm: String,
    /// θ.
    pub theta: f64,
    /// Each figure by name.
    pub figures: BTreeMap<&'static str, OverSplits>,
    /// The difference of each figure to the baseline. Empty for the baseline.
    pub differences: BTreeMap<&'static str, DifferenceOverSplits>,
}

/// The figures of one run and track.
type TrackFigures = BTreeMap<&'static str, f64>;

/// Returns whether a sweep has several splits of the devices.
pub fn has_splits(sweep: &Sweep) -> bool {
    sweep.axes.iter().any(|axis| axis.key == SPLIT && axis.values.len() > 1)
}

/// Reads the results of all points, grouped by the axes other than split and seeds.
///
/// # Errors
///
/// Fails if the run folder of a point cannot be used.
pub fn over_splits(folder: &SweepFolder, sweep: &Sweep) -> Result<Vec<SplitResults>, SweepError> {
    let mut groups: Vec<(BTreeMap<String, String>, Vec<&SweepPoint>)> = Vec::new();
    for point in &sweep.points {
        let settings = other_axes(sweep, point);
        match groups.iter_mut().find(|(known, _)| *known == settings) {
            Some((_, points)) => points.push(point),
            None => groups.push((settings, vec![point])),
        }
    }
    groups.into_iter().map(|(settings, points)| of_group(folder, sweep, settings, &points)).collect()
}

fn other_axes(sweep: &Sweep, point: &SweepPoint) -> BTreeMap<String, String> {
    let values = sweep.axes.iter().zip(&point.values);
    let others = values.filter(|(axis, _)| axis.key != SEEDS && axis.key != SPLIT);
    others.map(|(axis, value)| (axis.key.clone(), value.clone())).collect()
}

fn of_group(
    folder: &SweepFolder,
    sweep: &Sweep,
    settings: BTreeMap<String, String>,
    points: &[&SweepPoint],
) -> Result<SplitResults, SweepError> {
    let infos = tracks(&points[0].experiment);
    let baseline = baseline(&infos);
    // By split: for each run, the figures of each track.
    let mut splits: BTreeMap<u64, Vec<Vec<TrackFigures>>> = BTreeMap::new();
    let mut task = Task::Classes;
    for point in points {
        let path = folder.point(&point.address);
        if !path.join("devices").is_dir() {
            continue;
        }
        for file in run_folder::evaluations(&path)? {
            if file.round == point.experiment.rounds() {
                let evaluations = file.read()?;
                task = evaluations.first().map_or(task, |evaluation| evaluation.task);
                let of_track = |track: usize| figures(&evaluations, track);
                let run: Vec<TrackFigures> = (0..infos.len()).map(of_track).collect();
                splits.entry(split_seed(&point.experiment)).or_default().push(run);
            }
        }
    }
    let of_track = |track: usize| {
        let (mut over, mut differences) = (BTreeMap::new(), BTreeMap::new());
        for FigureInfo { key, .. } in &FIGURES {
            let values: Vec<Vec<f64>> = splits
                .values()
                .map(|runs| runs.iter().filter_map(|run| run[track].get(key).copied()).collect())
                .collect();
            over.extend(OverSplits::new(&values).map(|over| (*key, over)));
            if track != baseline {
                let pair = |run: &Vec<TrackFigures>| Some((*run[baseline].get(key)?, *run[track].get(key)?));
                let pairs: Vec<Vec<(f64, f64)>> =
                    splits.values().map(|runs| runs.iter().filter_map(pair).collect()).collect();
                differences.extend(DifferenceOverSplits::new(&pairs).map(|difference| (*key, difference)));
            }
        }
        let info = &infos[track];
        TrackOverSplits {
            track: info.label.clone(),
            algorithm: info.algorithm.clone(),
            theta: info.theta,
            figures: over,
            differences,
        }
    };
    Ok(SplitResults {
        name: sweep.name.clone(),
        settings,
        runs: splits.values().map(Vec::len).sum(),
        runs_planned: points.iter().map(|point| point.experiment.seeds().iter().len()).sum(),
        task,
        baseline: infos[baseline].label.clone(),
        tracks: (0..infos.len()).map(of_track).collect(),
        splits: splits.into_keys().collect(),
    })
}

fn split_seed(experiment: &Experiment) -> u64 {
    match &experiment.data().split {
        Some(SplitSection::Devices(split)) => split.seed,
        _ => 0,
    }
}

/// Returns the figures of a track: the metric on the test devices, and the loss of the train
/// devices.
fn figures(evaluations: &[SplitEvaluation], track: usize) -> TrackFigures {
    let mut found = TrackFigures::new();
    for evaluation in evaluations {
        let Some(devices) = evaluation.tracks.get(track) else { continue };
        let sized = |value: fn(&Evaluation) -> f64| -> Vec<(f64, u64)> {
            let devices = devices.iter().zip(evaluation.devices.iter());
            devices.map(|(evaluation, device)| (value(evaluation), device.examples)).collect()
        };
        let values = |sized: &[(f64, u64)]| sized.iter().map(|(value, _)| *value).collect::<Vec<_>>();
        let measured = Figures::of_track(evaluation, track);
        match evaluation.split {
            Split::Test => {
                let direction = evaluation.task.primary().direction;
                let errors = sized(Evaluation::primary);
                let tail = if direction == Direction::Lower { 0.9 } else { 0.1 };
                found.extend(measured.map(|figures| ("mean", figures.mean)));
                found.extend(deltafl::metrics::percentile(&values(&errors), tail).map(|p90| ("p90", p90)));
                let all = Dispersion::new(&values(&errors), direction);
                let small = Dispersion::below_median_size(&errors, direction);
                insert(&mut found, ["std", "worst_tenth", "gini"], all);
                insert(&mut found, ["small_std", "small_worst_tenth", "small_gini"], small);
            }
            Split::Train => {
                found.extend(measured.map(|figures| ("train_loss_mean", figures.mean)));
                let p90 = measured.and_then(|figures| figures.percentile(90));
                found.extend(p90.map(|p90| ("train_loss_p90", p90)));
                let losses = values(&sized(|evaluation| evaluation.loss));
                let spread = Dispersion::new(&losses, Direction::Lower);
                found.extend(spread.map(|spread| ("train_loss_std", spread.std)));
            }
            Split::Validation => {}
        }
    }
    found
}

fn insert(found: &mut TrackFigures, keys: [&'static str; 3], dispersion: Option<Dispersion>) {
    if let Some(Dispersion { std, worst_tenth, gini }) = dispersion {
        found.extend([(keys[0], std), (keys[1], worst_tenth)]);
        found.extend(gini.map(|gini| (keys[2], gini)));
    }
}

impl SplitResults {
    /// Renders the differences and the table as plain text.
    pub fn rendered(&self) -> String {
        let mut text = format!("{}\n\n", self.heading());
        for line in self.headlines() {
            let _ = writeln!(text, "  {line}");
        }
        let rows = self.rows();
        format!("{text}\n{}", text_table::aligned(&rows))
    }

    /// Renders the differences and the table as Markdown.
    pub fn markdown(&self) -> String {
        let mut text = format!("**{}**\n\n", self.heading());
        for line in self.headlines() {
            let _ = writeln!(text, "- {line}");
        }
        text.push('\n');
        for (i, row) in self.rows().iter().enumerate() {
            let _ = writeln!(text, "| {} |", row.join(" | "));
            if i == 0 {
                let _ = writeln!(text, "|{}", "---|".repeat(row.len()));
            }
        }
        text
    }

    fn heading(&self) -> String {
        let settings: Vec<String> =
            self.settings.iter().map(|(key, value)| format!(", {key} = {value}")).collect();
        let unfinished = if self.runs < self.runs_planned {
            format!(" of {} planned", self.runs_planned)
        } else {
            String::new()
        };
        let splits: Vec<String> = self.splits.iter().map(ToString::to_string).collect();
        format!(
            "{}{}: {} runs{unfinished} on splits {} of the devices",
            self.name,
            settings.concat(),
            self.runs,
            splits.join(", ")
        )
    }

    /// Returns a sentence per track: the difference of the tail to the baseline.
    fn headlines(&self) -> Vec<String> {
        let metric = self.task.primary();
        let line = |track: &TrackOverSplits| {
            let difference = track.differences.get("p90")?;
            Some(format!(
                "{} − {} in the 90th percentile of the {}: {}",
                track.track,
                self.baseline,
                metric.heading(),
                self.sentence(difference)
            ))
        };
        self.tracks.iter().filter_map(line).collect()
    }

    /// Formats a difference, its interval and its sign over splits.
    fn sentence(&self, difference: &DifferenceOverSplits) -> String {
        let (scale, digits) = self.display(FigureUnit::Metric);
        let shown = |value: f64| format!("{:+.digits$}", scale * value);
        let interval = difference
            .interval
            .map_or_else(String::new, |[lower, upper]| format!(" [{}, {}]", shown(lower), shown(upper)));
        format!("{}{interval}, {}", shown(difference.over.mean), verdict(difference))
    }

    /// Returns the factor and the number of decimals with which figures of a unit are displayed.
    fn display(&self, unit: FigureUnit) -> (f64, usize) {
        let metric = self.task.primary();
        let of = |key| self.tracks.iter().filter_map(move |track| Some(track.figures.get(key)?.mean));
        match (unit, self.task) {
            (FigureUnit::Metric, _) => {
                (metric.display_value(1.0), text_table::decimals(metric, of("mean").chain(of("p90"))))
            }
            (FigureUnit::Loss, Task::Regression(_)) => (1.0, text_table::places(of("train_loss_mean"))),
            (FigureUnit::Loss | FigureUnit::Number, _) => (1.0, 3),
        }
    }

    /// Returns a header and a row per track and figure.
    fn rows(&self) -> Vec<[String; 7]> {
        let header = ["track", "figure", "mean", "± over splits", "± within", "difference", "sign"];
        let mut rows = vec![header.map(str::to_owned)];
        for track in &self.tracks {
            for FigureInfo { key, title, unit } in &FIGURES {
                let Some(over) = track.figures.get(key) else { continue };
                let (scale, digits) = self.display(*unit);
                let shown = |value: f64| text_table::number(scale * value, digits);
                let or_dash = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), shown);
                let signed = |value: f64| format!("{:+.digits$}", scale * value);
                let (difference, sign) = match track.differences.get(key) {
                    None => ("–".to_owned(), "–".to_owned()),
                    Some(difference) => {
                        let interval = difference.interval.map_or_else(String::new, |[lower, upper]| {
                            format!(" [{}, {}]", signed(lower), signed(upper))
                        });
                        (format!("{}{interval}", signed(difference.over.mean)), verdict(difference))
                    }
                };
                rows.push([
                    track.track.clone(),
                    (*title).to_owned(),
                    shown(over.mean),
                    or_dash(over.std_over_splits),
                    or_dash(over.std_within_split),
                    difference,
                    sign,
                ]);
            }
        }
        rows
    }
}

/// Describes the sign of a difference over splits.
fn verdict(difference: &DifferenceOverSplits) -> String {
    let (lower, splits) = (difference.lower(), difference.of_splits.len());
    match difference.verdict {
        Verdict::Lower => format!("lower on all {splits} splits"),
        Verdict::Higher => format!("higher on all {splits} splits"),
        Verdict::Undecided => format!("undecided: lower on {lower} of {splits} splits"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use deltafl::exchange::EvaluatedDevice;

    #[test]
    fn figures_are_those_of_the_test_metric_and_of_the_train_loss() {
        let evaluation = |split| SplitEvaluation {
            split,
            task: Task::Classes,
            devices: [(10, "a"), (20, "b"), (30, "c")]
                .map(|(examples, id)| EvaluatedDevice { id: id.into(), examples })
                .into_iter()
                .collect(),
            tracks: vec![
                [(1.0, 0.2), (2.0, 0.4), (3.0, 0.6)].map(|(l, e)| Evaluation::of_primary(l, e)).to_vec(),
            ],
        };
        let found = figures(&[evaluation(Split::Test), evaluation(Split::Train)], 0);
        let close = |key: &str, expected: f64| (found[key] - expected).abs() < 1e-12;
        assert!(close("mean", 0.4) && close("p90", 0.56) && close("worst_tenth", 0.6), "{found:?}");
        assert!(close("small_std", 0.0) && close("small_worst_tenth", 0.2), "{found:?}");
        assert!(close("train_loss_mean", 140.0 / 60.0) && close("train_loss_p90", 3.0), "{found:?}");
        assert!(close("train_loss_std", (2.0f64 / 3.0).sqrt()), "{found:?}");
    }
}
