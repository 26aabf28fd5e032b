//! The results of a field, read from the run folders of its points.

use std::path::PathBuf;
use std::sync::Arc;

use deltafl::algorithm::{FED_AVG, Requires};
use deltafl::data::Split;
use deltafl::exchange::{EvaluatedDevice, Evaluation, SplitEvaluation};
use deltafl::metrics::objective;
use deltafl::task::{Direction, Metric, Unit};
use deltafl_data::run_folder::{self, EvaluationFile, RoundLine};
use serde::Serialize;

use super::statistics::{self, Costs, Estimate, Intervals, LEVELS};
use super::{Candidate, Contender, Field, FieldError, FieldMethod, RUNGS, picture, tables};
use crate::drawing;
use crate::error::write_file;
use crate::report;
use crate::sweep::folder::Standing;

/// The results of a field.
#[derive(Clone, Debug, Serialize)]
pub struct FieldResults {
    /// The data.
    pub dataset: String,
    /// The kind of model.
    pub model: String,
    /// Rounds of the final runs.
    pub rounds: u64,
    /// Devices drawn in a round.
    pub cohort: usize,
    /// The number of splits.
    pub splits: usize,
    /// Test devices of the first split.
    pub devices: usize,
    /// The metric, as a heading.
    pub metric: String,
    /// The error whose costs are reported, in the unit of the results.
    pub target: f64,
    /// The methods, by their 90th percentile.
    pub methods: Vec<MethodResult>,
    /// The factor for display: 100 for shares.
    #[serde(skip)]
    pub(super) scale: f64,
    #[serde(skip)]
    pub(super) decimals: usize,
}

/// The results of a method. Shares are in [0, 1].
#[derive(Clone, Debug, Serialize)]
pub struct MethodResult {
    /// Its name.
    pub name: String,
    /// The kind of its algorithm.
    pub kind: &'static str,
    /// Whether it works under secure sums.
    pub secure_sums: bool,
    /// The chosen candidate.
    pub tuned: Tuned,
    /// The mean error over test devices.
    pub mean: Estimate,
    /// The 90th percentile of the error over test devices.
    pub p90: Estimate,
    /// Mean and 90th percentile minus those of FedAvg, if FedAvg takes part.
    pub change: Option<[Estimate; 2]>,
    /// The standard deviation of the error over devices.
    pub deviation: f64,
    /// The mean error of the worst tenth of the devices.
    pub worst_tenth: f64,
    /// The Gini coefficient of the accuracy over devices, or of the metric if it is not a share.
    pub gini: f64,
    /// F_θ of the train losses at θ = 0.8, 0.5 and 0.1.
    pub objectives: [Option<f64>; LEVELS.len()],
    /// The cost to reach the target; `None` if a run does not reach it.
    pub to_target: Option<ToTarget>,
    /// Whether no other method is better in mean and 90th percentile.
    pub on_front: bool,
    /// The final runs, one per split.
    #[serde(skip)]
    pub(super) runs: Vec<PathBuf>,
}

/// A chosen candidate.
#[derive(Clone, Debug, Serialize)]
pub struct Tuned {
    /// The learning rate.
    pub learning_rate: f64,
    /// The tuned options.
    pub options: Vec<(&'static str, f64)>,
}

/// The cost of a run until its mean error reaches the target, averaged over splits.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ToTarget {
    /// Rounds, in steps of the evaluations.
    pub rounds: f64,
    /// Calls of secure aggregation.
    pub sums: f64,
    /// Bytes between the server and all devices.
    pub bytes: f64,
}

/// The files of a field.
#[derive(Clone, Debug, Serialize)]
pub struct FieldPaths {
    /// The page.
    pub page: PathBuf,
    /// The tables: Markdown, CSV and JSON.
    pub tables: Vec<PathBuf>,
    /// The picture: SVG and PNG.
    pub pictures: Vec<PathBuf>,
}

/// The final runs of a method.
struct Finals<'a> {
    method: &'a FieldMethod,
    candidate: Candidate,
    /// Split by run.
    runs: Vec<FinalRun>,
    folders: Vec<PathBuf>,
}

/// The final run of a method on one split.
struct FinalRun {
    /// Seed by evaluation, in the order of the rounds.
    seeds: Vec<Vec<(u64, Vec<SplitEvaluation>)>>,
    lines: Vec<RoundLine>,
}

impl FieldResults {
    pub(super) fn read(field: &Field) -> Result<Self, FieldError> {
        let (mut finals, mut missing) = (Vec::new(), Vec::new());
        for method in field.methods() {
            match Finals::read(field, method)? {
                Some(found) => finals.push(found),
                None => missing.push(method.name()),
            }
        }
        if !missing.is_empty() {
            return Err(FieldError::Missing { methods: missing });
        }
        let mut metric: Option<&'static Metric> = None;
        let mut costs: Vec<Costs> = Vec::new();
        let devices = finals[0].devices();
        for found in &finals {
            if found.devices() != devices {
                return Err(FieldError::DifferentDevices { method: found.method.name() });
            }
            let primary = metric.get_or_insert(found.metric());
            costs.push(found.costs(primary));
        }
        let metric = metric.expect("a field has a method");
        let baseline = field.methods().iter().position(|method| method.algorithm().kind == FED_AVG.kind);
        let intervals = Intervals::new(&costs, baseline, field.options.bootstrap);
        let reference = intervals.figures[baseline.unwrap_or(0)][0].value;
        let target = match field.options.target {
            Some(displayed) => metric.cost(displayed / metric.display_value(1.0)),
            None => reference + 0.1 * reference.abs(),
        };
        let points: Vec<[f64; 2]> =
            intervals.figures.iter().map(|figures| figures.map(|estimate| estimate.value)).collect();
        let front = statistics::pareto_front(&points);
        let mut methods: Vec<MethodResult> = Vec::new();
        for (m, found) in finals.into_iter().enumerate() {
            let estimate = |estimate: Estimate| as_values(metric, estimate);
            let is_accuracy = metric.unit == Unit::Share && metric.direction == Direction::Lower;
            let performance = |cost: &f64| if is_accuracy { 1.0 - cost } else { metric.cost(*cost) };
            let gini = |costs: &[f64]| statistics::gini(&costs.iter().map(performance).collect::<Vec<_>>());
            methods.push(MethodResult {
                name: found.method.name(),
                kind: found.method.algorithm().kind,
                secure_sums: !matches!(found.method.algorithm().requires, Requires::Open(_)),
                mean: estimate(intervals.figures[m][0]),
                p90: estimate(intervals.figures[m][1]),
                change: intervals.differences[m].map(|changes| changes.map(estimate)),
                deviation: statistics::average(&costs[m], statistics::deviation),
                worst_tenth: metric.cost(statistics::average(&costs[m], statistics::worst_tenth)),
                gini: statistics::average(&costs[m], gini),
                objectives: found.objectives(),
                to_target: found.to_target(metric, target),
                on_front: front[m],
                tuned: Tuned {
                    learning_rate: found.candidate.rate,
                    options: found.candidate.options.clone(),
                },
                runs: found.folders,
            });
        }
        methods.sort_by(|a, b| metric.cost(a.p90.value).total_cmp(&metric.cost(b.p90.value)));
        let figures = methods.iter().flat_map(|method| [method.mean.value, method.p90.value]);
        Ok(Self {
            dataset: field.base().data().name(),
            model: field.base().model().spec().name().to_owned(),
            rounds: field.base().rounds(),
            cohort: field.base().cohort(),
            splits: costs.first().map_or(0, Vec::len),
            devices: devices.first().map_or(0, |devices| devices.len()),
            metric: metric.heading(),
            target: metric.cost(target),
            decimals: crate::text_table::decimals(metric, figures),
            methods,
            scale: metric.display_value(1.0),
        })
    }

    /// Renders the table for a terminal.
    pub fn rendered(&self) -> String {
        tables::rendered(self)
    }

    /// Writes the tables, the picture and the page into the folder of the field.
    ///
    /// # Errors
    ///
    /// Fails if a file cannot be drawn or written.
    pub fn write(&self, field: &Field) -> Result<FieldPaths, FieldError> {
        let write = |name: &str, contents: &[u8]| -> Result<PathBuf, FieldError> {
            let path = field.out().join(name);
            write_file(&path, contents)?;
            Ok(path)
        };
        let json = serde_json::to_vec_pretty(self).expect("results have string keys");
        let tables = vec![
            write("field.md", tables::markdown(self).as_bytes())?,
            write("field.csv", tables::csv(self).as_bytes())?,
            write("field.json", &json)?,
        ];
        let picture = picture::FieldPicture::new(self);
        let pictures = vec![
            write("field.svg", drawing::svg(&picture)?.as_bytes())?,
            write("field.png", &drawing::png(&picture)?)?,
        ];
        let splits = (0..self.splits).map(|split| {
            let folders = self.methods.iter().map(|method| (method.name.clone(), method.runs[split].clone()));
            (format!("split {}", split + 1), folders.collect())
        });
        let page = report::field_page(&splits.collect::<Vec<_>>(), &tables::markdown_rows(self))?;
        Ok(FieldPaths { page: write("report.html", page.as_bytes())?, tables, pictures })
    }
}

/// Converts costs to values of the metric.
fn as_values(metric: &Metric, estimate: Estimate) -> Estimate {
    let mut interval = estimate.interval.map(|bound| metric.cost(bound));
    interval.sort_by(f64::total_cmp);
    Estimate { value: metric.cost(estimate.value), interval }
}

impl<'a> Finals<'a> {
    /// Reads the final runs of a method. Returns `None` if a point is not finished.
    fn read(field: &Field, method: &'a FieldMethod) -> Result<Option<Self>, FieldError> {
        let folder = field.folder();
        let mut contender: Contender<'_> = field.contender(method);
        for rung in 0..RUNGS.len() {
            let points = field.rung(rung, &contender)?;
            for point in &points {
                if folder.standing(point)? != Standing::Finished {
                    return Ok(None);
                }
            }
            field.halve(rung, &mut contender, &points)?;
        }
        let candidate = contender.candidates.swap_remove(0);
        let (mut runs, mut folders) = (Vec::new(), Vec::new());
        for point in field.finals(method, &candidate)? {
            if folder.standing(&point)? != Standing::Finished {
                return Ok(None);
            }
            folders.push(folder.point(&point.address));
            runs.push(FinalRun::read(&folder.point(&point.address))?);
        }
        Ok(Some(Self { method, candidate, runs, folders }))
    }

    /// Returns the last evaluations: split by seed.
    fn last(&self) -> impl Iterator<Item = Vec<&Vec<SplitEvaluation>>> {
        self.runs.iter().map(|run| run.seeds.iter().filter_map(|seed| Some(&seed.last()?.1)).collect())
    }

    /// Returns the test devices of each split.
    fn devices(&self) -> Vec<Arc<[EvaluatedDevice]>> {
        let of_split = |seeds: Vec<&Vec<SplitEvaluation>>| {
            let test = seeds.first().and_then(|splits| test_devices(splits));
            test.map_or_else(|| Vec::new().into(), |test| test.devices.iter().cloned().collect())
        };
        self.last().map(of_split).collect()
    }

    fn metric(&self) -> &'static Metric {
        let first = self.last().next().and_then(|seeds| seeds.first().map(|splits| splits[0].task));
        first.unwrap_or(deltafl::task::Task::Classes).primary()
    }

    fn costs(&self, metric: &Metric) -> Costs {
        let of_seed = |splits: &Vec<SplitEvaluation>| test_costs(metric, splits);
        self.last().map(|seeds| seeds.into_iter().map(of_seed).collect()).collect()
    }

    /// Returns F_θ at each level, averaged over seeds and splits.
    fn objectives(&self) -> [Option<f64>; LEVELS.len()] {
        statistics::levels().map(|theta| {
            let all: Vec<&SplitEvaluation> = self.last().flatten().flatten().collect();
            let train = all.into_iter().filter(|split| split.split == Split::Train);
            let found: Option<Vec<f64>> = train.map(|split| objective(split, 0, theta)).collect();
            let found = found.filter(|found| !found.is_empty())?;
            Some(found.iter().sum::<f64>() / found.len() as f64)
        })
    }

    /// Returns the average cost of all runs to reach the target; `None` if one does not reach it.
    fn to_target(&self, metric: &Metric, target: f64) -> Option<ToTarget> {
        let (mut total, mut count) = (ToTarget { rounds: 0.0, sums: 0.0, bytes: 0.0 }, 0.0);
        for run in &self.runs {
            for (seed, evaluations) in run.seeds.iter().enumerate() {
                let reached = |(_, splits): &&(u64, Vec<SplitEvaluation>)| {
                    let costs = test_costs(metric, splits);
                    costs.iter().sum::<f64>() / costs.len() as f64 <= target
                };
                let (round, _) = evaluations.iter().find(reached)?;
                let before = run.lines_of_seed(seed).filter(|line| line.record.round < *round);
                total.rounds += *round as f64;
                for line in before {
                    total.sums += line.record.sums as f64;
                    total.bytes += (line.record.bytes_up + line.record.bytes_down) as f64;
                }
                count += 1.0;
            }
        }
        let ToTarget { rounds, sums, bytes } = total;
        Some(ToTarget { rounds: rounds / count, sums: sums / count, bytes: bytes / count })
    }
}

impl FinalRun {
    fn read(folder: &std::path::Path) -> Result<Self, FieldError> {
        let mut seeds: Vec<Vec<(u64, Vec<SplitEvaluation>)>> = Vec::new();
        let mut before: Option<u64> = None;
        for file in run_folder::evaluations(folder)? {
            let EvaluationFile { seed, round, .. } = file;
            if before.replace(seed) != Some(seed) {
                seeds.push(Vec::new());
            }
            let of_seed = seeds.last_mut().expect("a list was added for the seed");
            of_seed.push((round, file.read()?));
        }
        Ok(Self { seeds, lines: run_folder::read_rounds(folder)? })
    }

    /// Returns the records of the i-th seed.
    fn lines_of_seed(&self, place: usize) -> impl Iterator<Item = &RoundLine> {
        let mut seeds: Vec<u64> = self.lines.iter().map(|line| line.record.seed).collect();
        seeds.sort_unstable();
        seeds.dedup();
        let seed = seeds.get(place).copied();
        self.lines.iter().filter(move |line| Some(line.record.seed) == seed)
    }
}

fn test_devices(splits: &[SplitEvaluation]) -> Option<&SplitEvaluation> {
    splits.iter().find(|split| split.split == Split::Test)
}

/// Returns the cost of each test device. A value that is not a number counts as the worst.
fn test_costs(metric: &Metric, splits: &[SplitEvaluation]) -> Vec<f64> {
    let devices = test_devices(splits).and_then(|test| test.tracks.first());
    let cost = |evaluation: &Evaluation| {
        let cost = metric.cost(evaluation.primary());
        if cost.is_nan() { f64::INFINITY } else { cost }
    };
    devices.map_or_else(Vec::new, |devices| devices.iter().map(cost).collect())
}
