//! A field: many algorithms on the same federation, tuned with the same budget and compared.
//!
//! ```text
//! fields/NAME/
//!   field.toml        the experiment that all methods share
//!   points/ADDRESS/   a run folder per point, named after its experiment
//!   field.json        the results; field.md, field.csv, field.svg, field.png
//!   report.html       the page, with any two methods side by side
//! ```
//!
//! 1. Every method has [`CANDIDATES`] candidates: values of its options and of the learning rate.
//! 2. Successive halving chooses one by its error on held-out train devices ([`RUNGS`]).
//! 3. The chosen candidate trains on every split, with the seeds, cohorts and local work of all
//!    others.
//!
//! A point depends only on its experiment. A second call therefore continues where the first one
//! stopped, and shards on several machines are merged by copying their `points`.

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use deltafl_data::experiment::{Experiment, SplitSection};
use deltafl_data::run_folder::{RunFolderError, Summary};

mod base;
mod error;
mod method;
mod picture;
mod results;
mod statistics;
mod tables;

pub use error::FieldError;
pub use method::{CANDIDATES, Candidate, FieldMethod, MethodGrid};
pub use results::{FieldPaths, FieldResults, MethodResult, ToTarget, Tuned};
pub use statistics::{Estimate, LEVELS};

use crate::compare::Bootstrap;
use crate::error::{create_folder, write_file};
use crate::event::SweepObserver;
use crate::paper::estimate::{RemainingWork, RunPace};
use crate::session;
use crate::sweep::folder::{Standing, SweepFolder};
use crate::sweep::points::{Shard, SweepPoint};
use crate::sweep::train::{self, PointPlan, SweepOptions, Tally};

/// The rungs of successive halving: how many candidates of a method train, and for which fraction
/// of the rounds (numerator, denominator).
pub const RUNGS: [(usize, (u64, u64)); 2] = [(CANDIDATES, (1, 6)), (3, (1, 2))];

/// The statistic over validation devices that chooses between candidates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Criterion {
    /// The 90th percentile.
    #[default]
    P90,
    /// The mean.
    Mean,
}

/// How to run a field.
#[derive(Clone, Debug)]
pub struct FieldOptions {
    /// The methods; all that fit the federation if empty.
    pub methods: Vec<FieldMethod>,
    /// The kind of model; the default for the kind of input if `None`.
    pub model: Option<String>,
    /// `KEY=VALUE` overrides of the shared experiment.
    pub overrides: Vec<String>,
    /// The number of splits of the devices; 1 if the experiment lists the devices of its split.
    pub splits: NonZeroUsize,
    /// The statistic that chooses between candidates.
    pub criterion: Criterion,
    /// The error whose costs are reported, as displayed; near that of FedAvg if `None`.
    pub target: Option<f64>,
    /// The share of the methods that this process trains.
    pub shard: Shard,
    /// The folder; `fields/NAME` if `None`.
    pub out: Option<PathBuf>,
    /// How to train the points.
    pub sweep: SweepOptions,
    /// The resampling of the intervals.
    pub bootstrap: Bootstrap,
}

/// A planned field.
#[derive(Debug)]
pub struct Field {
    base: Experiment,
    methods: Vec<FieldMethod>,
    options: FieldOptions,
    out: PathBuf,
}

/// The remaining work of a field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FieldEstimate {
    /// Points that are not finished.
    pub points: usize,
    /// Their rounds.
    pub rounds: u64,
    /// The time, or `None` if no point is left.
    pub time: Option<Duration>,
}

/// A method with the candidates that are left.
struct Contender<'a> {
    method: &'a FieldMethod,
    candidates: Vec<Candidate>,
}

/// The points of a method that train now.
struct Contest<'a> {
    contender: Contender<'a>,
    /// Whether the server combines the updates of single devices.
    is_robust: bool,
    /// The current rung; [`RUNGS`]`.len()` for the final runs.
    rung: usize,
    points: Vec<SweepPoint>,
    /// The number of these points that are not finished.
    left: usize,
}

impl<'a> Contest<'a> {
    /// Begins with the first rung.
    fn new(field: &Field, method: &'a FieldMethod) -> Result<Self, FieldError> {
        let contender = field.contender(method);
        let experiment = method.experiment(&field.base, &contender.candidates[0])?;
        let is_robust = experiment.tracks().iter().any(|track| track.aggregation.is_some());
        let points = field.rung(0, &contender)?;
        Ok(Self { is_robust, rung: 0, left: points.len(), points, contender })
    }

    /// Counts a finished point. Returns the next points if it was the last of its rung.
    fn advance(&mut self, field: &Field) -> Result<Vec<SweepPoint>, FieldError> {
        self.left = self.left.saturating_sub(1);
        if self.left > 0 || self.rung >= RUNGS.len() {
            return Ok(Vec::new());
        }
        field.halve(self.rung, &mut self.contender, &self.points)?;
        self.rung += 1;
        self.points = match self.rung {
            rung if rung < RUNGS.len() => field.rung(rung, &self.contender)?,
            _ => field.finals(self.contender.method, &self.contender.candidates[0])?,
        };
        self.left = self.points.len();
        Ok(self.points.clone())
    }
}

impl Field {
    /// Plans a field. `federation` is a federation folder, the name of a synthetic federation such
    /// as `glyphs` or `synthetic(1,1)`, an inline table, or an experiment file.
    ///
    /// # Errors
    ///
    /// Fails if the federation, the model, an override or a method is invalid.
    pub fn new(federation: &str, mut options: FieldOptions) -> Result<Self, FieldError> {
        let base = base::experiment(federation, options.model.as_deref(), &options.overrides)?;
        if matches!(base.data().split, Some(SplitSection::Given(_))) {
            // Runs on the same lists of devices would count as several splits in the intervals.
            options.splits = NonZeroUsize::MIN;
        }
        let methods = match options.methods.as_slice() {
            [] => FieldMethod::all(&base),
            given => given.to_vec(),
        };
        for (i, method) in methods.iter().enumerate() {
            if methods[..i].iter().any(|other| other.name() == method.name()) {
                return Err(FieldError::Twice { method: method.name() });
            }
        }
        let out = options.out.clone().unwrap_or_else(|| Path::new("fields").join(base.name()));
        let field = Self { base, methods, options, out };
        let tuning = field.tuning()?;
        for method in &field.methods {
            for candidate in method.grid(&tuning).candidates() {
                method.experiment(&tuning, &candidate)?;
            }
        }
        Ok(field)
    }

    /// Returns the shared experiment.
    pub fn base(&self) -> &Experiment {
        &self.base
    }

    /// Returns the methods.
    pub fn methods(&self) -> &[FieldMethod] {
        &self.methods
    }

    /// Returns the folder.
    pub fn out(&self) -> &Path {
        &self.out
    }

    /// Returns the values that the tuning of each method tries.
    pub fn grids(&self) -> Vec<(String, MethodGrid)> {
        self.methods.iter().map(|method| (method.name(), method.grid(&self.base))).collect()
    }

    /// Measures a few rounds of all methods and returns the remaining work of this process. Returns
    /// `None` if `stop` is set meanwhile.
    ///
    /// # Errors
    ///
    /// Fails if the experiment cannot be trained on this machine, or if a point cannot be read.
    pub fn estimate(&self, stop: &AtomicBool) -> Result<Option<FieldEstimate>, FieldError> {
        let (mut estimate, mut time) = (FieldEstimate { points: 0, rounds: 0, time: None }, Duration::ZERO);
        let federation = session::load(&self.base)?;
        // Methods on a GPU and on the CPU are measured separately, each with all of its methods at
        // once.
        let on_cpu = |method: &FieldMethod| {
            let candidate = &method.grid(&self.base).candidates()[0];
            let experiment = method.experiment(&self.base, candidate)?;
            Ok::<_, FieldError>(experiment.tracks().iter().any(deltafl::algorithm::Track::needs_cpu))
        };
        for group in [false, true] {
            let mut methods = Vec::new();
            for method in self.shard() {
                if on_cpu(method)? == group {
                    methods.push(method);
                }
            }
            let mut left = RemainingWork::default();
            for method in &methods {
                let (points, work) = self.left(method)?;
                estimate.points += points;
                estimate.rounds += work.rounds;
                left += work;
            }
            if left == RemainingWork::default() {
                continue;
            }
            let mut sections = Vec::new();
            for method in &methods {
                let candidates = method.grid(&self.base).candidates();
                let experiment = method.experiment(&self.base, &candidates[candidates.len() / 2])?;
                sections.extend(experiment.algorithms().iter().cloned());
            }
            let together = self.base.clone().with_algorithms(sections);
            let together = together
                .map_err(|error| FieldError::Method { method: "all".into(), problem: error.message })?;
            let machine = &self.options.sweep.machine;
            let Some(pace) = RunPace::measure(&together, &federation, &self.out, machine, stop)? else {
                return Ok(None);
            };
            time += pace.time(left).div_f64(methods.len() as f64);
        }
        estimate.time = (estimate.points > 0).then_some(time);
        Ok(Some(estimate))
    }

    /// Tunes the methods of this process and trains them on all splits. A method advances to its next
    /// rung as soon as its own points are finished.
    ///
    /// # Errors
    ///
    /// Fails if a point fails, is interrupted or is trained by another process, or if no candidate
    /// of a method has a finite error.
    pub fn train(&self, observer: &mut SweepObserver<'_>) -> Result<(), FieldError> {
        create_folder(&self.out)?;
        write_file(&self.out.join("field.toml"), self.base.to_toml().as_bytes())?;
        let (mut contests, mut rounds) = (Vec::new(), 0);
        for method in self.shard() {
            contests.push(Contest::new(self, method)?);
            rounds += self.left(method)?.1.rounds;
        }
        // The server step of a robust method takes longer than the rounds of most others.
        contests.sort_by_key(|contest| !contest.is_robust);
        let first = contests.iter().flat_map(|contest| contest.points.iter().cloned()).collect();
        let points = contests.len()
            * (RUNGS.map(|(candidates, _)| candidates).iter().sum::<usize>() + self.options.splits.get());
        let contests: Vec<Mutex<Contest<'_>>> = contests.into_iter().map(Mutex::new).collect();
        let failed = Mutex::new(None);
        let next = |finished: &SweepPoint| {
            for contest in &contests {
                let mut contest = contest.lock().unwrap_or_else(PoisonError::into_inner);
                if contest.points.iter().any(|point| point.address == finished.address) {
                    return contest.advance(self).unwrap_or_else(|error| {
                        failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                        Vec::new()
                    });
                }
            }
            Vec::new()
        };
        let folder = self.folder();
        let plan = PointPlan { first, next: &next, points, rounds, done: 0 };
        let tally = train::train_plan(&folder, plan, &self.options.sweep, observer)?;
        match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None if is_complete(&tally) => Ok(()),
            None => Err(FieldError::Unfinished { folder: folder.path().to_owned(), tally }),
        }
    }

    /// Reads the results of all methods, trained by this process or by others.
    ///
    /// # Errors
    ///
    /// Fails if points are missing or cannot be read.
    pub fn results(&self) -> Result<FieldResults, FieldError> {
        FieldResults::read(self)
    }

    /// Returns the methods that this process trains.
    fn shard(&self) -> impl Iterator<Item = &FieldMethod> {
        self.options.shard.select(&self.methods)
    }

    fn contender<'a>(&self, method: &'a FieldMethod) -> Contender<'a> {
        Contender { method, candidates: method.grid(&self.base).candidates() }
    }

    fn folder(&self) -> SweepFolder {
        SweepFolder::at(&self.out.join("points"))
    }

    /// Returns the experiment on which methods are tuned.
    fn tuning(&self) -> Result<Experiment, FieldError> {
        base::for_tuning(&self.base, 1)
    }

    /// Returns the points of a rung, one per candidate.
    fn rung(&self, rung: usize, contender: &Contender<'_>) -> Result<Vec<SweepPoint>, FieldError> {
        let (numerator, denominator) = RUNGS[rung].1;
        let rounds = (self.base.rounds() * numerator).div_ceil(denominator);
        let rounds = NonZeroU64::new(rounds).unwrap_or(NonZeroU64::MIN);
        let tuning = self.tuning()?.with_rounds(rounds).evaluated_at_the_end();
        let of_candidate = |candidate: &Candidate| {
            let name = format!("{} {candidate} {} rounds", contender.method.name(), rounds);
            point(contender.method.experiment(&tuning, candidate)?, &name)
        };
        contender.candidates.iter().map(of_candidate).collect()
    }

    /// Keeps the candidates for the next rung, or the best one after the last rung.
    fn halve(
        &self,
        rung: usize,
        contender: &mut Contender<'_>,
        points: &[SweepPoint],
    ) -> Result<(), FieldError> {
        let keep = RUNGS.get(rung + 1).map_or(1, |(candidates, _)| *candidates);
        let folder = self.folder();
        let mut ranked = Vec::new();
        for (i, point) in points.iter().enumerate() {
            let summary = Summary::read(&folder.point(&point.address))?;
            ranked.push((self.costs(&summary).unwrap_or([f64::INFINITY; 2]), i));
        }
        ranked.sort_by(|a, b| a.0[0].total_cmp(&b.0[0]).then(a.0[1].total_cmp(&b.0[1])).then(a.1.cmp(&b.1)));
        if ranked.first().is_none_or(|best| best.0[0].is_infinite()) {
            return Err(FieldError::Diverged { method: contender.method.name() });
        }
        let kept = ranked.iter().take(keep).map(|&(_, i)| contender.candidates[i].clone());
        contender.candidates = kept.collect();
        Ok(())
    }

    /// Returns the validation statistic that chooses, and the other one for ties, as costs. The
    /// 90th percentile of an error may be 1 for every candidate.
    fn costs(&self, summary: &Summary) -> Option<[f64; 2]> {
        let figures = summary.tracks.first()?.validation?;
        let [p90, mean] = [figures.p90.mean, figures.mean.mean];
        let values = match self.options.criterion {
            Criterion::P90 => [p90, mean],
            Criterion::Mean => [mean, p90],
        };
        let costs = values.map(|value| summary.task.primary().cost(value));
        costs.iter().all(|cost| cost.is_finite()).then_some(costs)
    }

    /// Returns the points of a chosen candidate, one per split.
    fn finals(&self, method: &FieldMethod, candidate: &Candidate) -> Result<Vec<SweepPoint>, FieldError> {
        let of_split = |seed: u64| {
            let experiment = method.experiment(&base::on_split(&self.base, seed), candidate)?;
            point(experiment, &format!("{} split {seed}", method.name()))
        };
        (1..=self.options.splits.get() as u64).map(of_split).collect()
    }

    /// Returns the remaining points and work of a method. Rungs that are not decided count with
    /// their first candidates, which need the same work as any others.
    fn left(&self, method: &FieldMethod) -> Result<(usize, RemainingWork), FieldError> {
        let folder = self.folder();
        let (mut count, mut left) = (0, RemainingWork::default());
        let mut contender = self.contender(method);
        let mut add = |points: &[SweepPoint]| -> Result<bool, FieldError> {
            let mut finished = true;
            for point in points {
                if folder.standing(point)? != Standing::Finished {
                    (count, finished) = (count + 1, false);
                    left += RemainingWork::for_experiment(&point.experiment, &folder.point(&point.address))?;
                }
            }
            Ok(finished)
        };
        for rung in 0..RUNGS.len() {
            let points = self.rung(rung, &contender)?;
            if add(&points)? {
                self.halve(rung, &mut contender, &points)?;
            } else {
                let keep = RUNGS.get(rung + 1).map_or(1, |(candidates, _)| *candidates);
                contender.candidates.truncate(keep);
            }
        }
        add(&self.finals(method, &contender.candidates[0])?)?;
        Ok((count, left))
    }
}

fn is_complete(tally: &Tally) -> bool {
    tally.busy == 0 && !tally.interrupted && tally.failures.is_empty()
}

/// Returns the point of an experiment.
fn point(experiment: Experiment, name: &str) -> Result<SweepPoint, FieldError> {
    // The titles of compositions and symbols contain no character that a folder name excludes.
    let named = experiment.with_name(name);
    let experiment =
        named.map_err(|error| FieldError::Method { method: name.to_owned(), problem: error.to_string() })?;
    let address = experiment.address();
    Ok(SweepPoint { values: Vec::new(), typed: Vec::new(), experiment, address })
}

impl From<RunFolderError> for FieldError {
    fn from(error: RunFolderError) -> Self {
        Self::Folder(error.into())
    }
}
