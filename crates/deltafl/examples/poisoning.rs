//! Measures the effect of liars on a federation: the error of the test devices if 1, 5 and 10 % of
//! the train devices lie, for FedAvg and for Δ-FL at θ = 0.5, with and without a bound on the
//! length of updates.
//!
//!     cargo run --release -p deltafl --example poisoning [-- SEEDS]
//!
//! A liar of the first kind has wrong labels and is honest otherwise. The other liars flip the sign
//! of their updates, make them many times as long, ignore the bound, and report ten times their
//! loss, which puts them into every tail. The figures of docs/src/measurements/poisoning.md are
//! means of three seeds.

use std::collections::BTreeSet;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use deltafl::adversary::{Adversarial, Lie, flip_labels};
use deltafl::algorithm::{Quantile, Tail, Track};
use deltafl::compute::{Block, Compute, ComputeError, Remembered, Threads, UpdateTask};
use deltafl::data::synthetic::{ExamplesPerDevice, Glyphs};
use deltafl::data::{Federation, FederationIndex, Normalise, Split};
use deltafl::exchange::Simulation;
use deltafl::kernel::Isa;
use deltafl::memory::AlgorithmState;
use deltafl::metrics::Figures;
use deltafl::model::{ModelSpec, Score};
use deltafl::params::{Params, UpdateCode, UpdateSum};
use deltafl::question::RoundKey;
use deltafl::server_step::{Mean, ServerStep, ServerStepInput};
use deltafl::superquantile::Conformity;
use deltafl::superquantile::private::PrivateQuantile;
use deltafl::task::Task;
use deltafl::terms::{Clip, Terms, TrackSchedule};
use deltafl::trainer::Sgd;
use deltafl::training::{Plan, Records, train};

const ROUNDS: u64 = 100;
/// C: near the median length of honest updates in the second half of a run without liars, which the
/// program prints first.
const CLIP: f64 = 0.5;
/// The shares of the train devices that lie.
const SHARES: [f64; 3] = [0.01, 0.05, 0.1];

/// The behaviour of a liar.
#[derive(Clone, Copy, PartialEq)]
enum Behaviour {
    /// Each class of its examples is replaced by the next one.
    WrongLabels,
    /// It flips the sign of its update and multiplies the length by this factor.
    Reversed(f64),
}

/// The measures against liars.
#[derive(Clone, Copy, PartialEq)]
enum Defence {
    Nothing,
    /// Devices clip their updates, except for those that reverse them.
    Clip,
    /// In addition, the server rejects a sum whose mean is longer than any clipped update.
    ClipAndCheck,
}

/// Computes devices and records the lengths of their updates, with their rounds.
struct MeasuredLengths<C> {
    inner: C,
    lengths: Option<Vec<(u64, f64)>>,
}

impl<C: Compute> Compute for MeasuredLengths<C> {
    fn width(&self) -> usize {
        self.inner.width()
    }

    fn task(&self) -> Task {
        self.inner.task()
    }

    fn prefetch(&mut self, devices: &[FederationIndex]) {
        self.inner.prefetch(devices);
    }

    fn scores(&mut self, blocks: &[Block], params: &[&Params]) -> Result<Vec<Vec<Score>>, ComputeError> {
        self.inner.scores(blocks, params)
    }

    fn updates(
        &mut self,
        key: &RoundKey,
        tasks: &[UpdateTask<'_>],
        sums: &mut [Vec<u64>],
    ) -> Result<Remembered, ComputeError> {
        if let Some(lengths) = &mut self.lengths {
            for task in tasks {
                let mut sums = [vec![0; UpdateCode::len(task.params.len())]];
                self.inner.updates(key, &[UpdateTask { sum: 0, ..*task }], &mut sums)?;
                let [answer] = sums;
                let update = UpdateSum::new(answer, task.params.len()).ok();
                lengths.extend(update.as_ref().and_then(norm).map(|length| (key.round, length)));
            }
        }
        self.inner.updates(key, tasks, sums)
    }
}

/// Returns ‖mean of the updates‖, or `None` if no device has a weight.
fn norm(sum: &UpdateSum) -> Option<f64> {
    Some(sum.mean()?.map(|entry| entry * entry).sum::<f64>().sqrt())
}

/// Ignores and counts a mean that is longer than any clipped update.
struct Checked {
    rejected: Arc<AtomicUsize>,
}

impl ServerStep for Checked {
    fn apply(
        &self,
        at: &ServerStepInput<'_>,
        sum: &UpdateSum,
        memory: &mut AlgorithmState,
    ) -> Option<Params> {
        // A thousandth allows for rounded entries and weights; a deployed server computes the
        // bound.
        if norm(sum)? <= CLIP * 1.001 {
            return Mean.apply(at, sum, memory);
        }
        self.rejected.fetch_add(1, Ordering::Relaxed);
        None
    }
}

/// Returns four hundred writers of glyphs, half of which train.
fn writers() -> Result<Federation, Box<dyn Error>> {
    let examples = ExamplesPerDevice::new(40, 60, 120).ok_or("numbers in order")?;
    Ok(Glyphs { examples, ..Glyphs::default() }.build())
}

/// A number of liars, their behaviour, and the defence.
#[derive(Clone, Copy)]
struct Case {
    liars: usize,
    behaviour: Behaviour,
    defence: Defence,
}

/// The number of rejected sums per track.
type Counters = Vec<Arc<AtomicUsize>>;

/// The results of a run.
struct RunFigures {
    /// Mean and 90th percentile of the error of the test devices in %, per track.
    errors: Vec<[f64; 2]>,
    /// The number of rejected sums per track.
    rejected: Vec<usize>,
    lengths: Vec<(u64, f64)>,
}

impl Case {
    fn run(self, honest: &Federation, seed: u64) -> Result<RunFigures, Box<dyn Error>> {
        // Devices are split at random, so the first train devices are a random sample.
        let liars: BTreeSet<FederationIndex> =
            honest.split(Split::Train).into_iter().take(self.liars).collect();
        let (federation, lie) = match self.behaviour {
            Behaviour::WrongLabels => (flip_labels(honest, &liars), Lie::NONE),
            Behaviour::Reversed(factor) => (honest.clone(), Lie { update: -factor, loss: 10.0 }),
        };
        let federation = federation.normalised(Normalise::MeanRatio);
        let (plan, rejected) = self.plan()?;
        let model = ModelSpec::LINEAR.build(&federation, Isa::detect())?;
        let trainer = Sgd::new(&*model);
        let lengths = (self.liars == 0 && self.defence == Defence::Nothing).then(Vec::new);
        let inner = Adversarial::new(Threads::new(&trainer, &federation, None)?, liars, lie);
        let mut exchange = Simulation::with_compute(MeasuredLengths { inner, lengths }, &federation)?;
        let (mut state, mut records) = (plan.start(seed, &trainer), Records::default());
        train(&mut exchange, &plan, &mut state, &mut records)?;
        let (_, splits) = records.evaluations.last().ok_or("no evaluation")?;
        let test = splits.iter().find(|split| split.split == Split::Test).ok_or("no test devices")?;
        let figures = |track| {
            let figures = Figures::of_track(test, track).ok_or("no test devices")?;
            Ok([figures.mean, figures.percentile(90).unwrap_or(f64::NAN)].map(|error| 100.0 * error))
        };
        Ok(RunFigures {
            errors: (0..plan.tracks().len()).map(figures).collect::<Result<_, Box<dyn Error>>>()?,
            rejected: rejected.iter().map(|count| count.load(Ordering::Relaxed)).collect(),
            lengths: exchange.compute().lengths.clone().unwrap_or_default(),
        })
    }

    /// Returns FedAvg and θ = 0.5 as in a deployment: private mode and equal weights.
    fn plan(self) -> Result<(Plan, Counters), Box<dyn Error>> {
        let half = Tail::new(Conformity::try_from(0.5)?);
        let private = Tail { quantile: Quantile::Private(PrivateQuantile::TwoLevel), ..half };
        let mut tracks = vec![Track::fed_avg(), private.into()];
        let rejected: Counters = tracks.iter().map(|_| Arc::default()).collect();
        if self.defence == Defence::ClipAndCheck {
            for (track, counter) in tracks.iter_mut().zip(&rejected) {
                track.server = Box::new(Checked { rejected: counter.clone() });
            }
        }
        let clip = (self.defence != Defence::Nothing).then(|| Clip::try_from(CLIP)).transpose()?;
        // Tracks that train in every round are compared after the same number of rounds.
        let terms = Terms { clip, schedule: TrackSchedule::Together, ..Terms::PRIVATE };
        let plan = Plan::builder().rounds(ROUNDS).cohort(50).evaluate_every(ROUNDS);
        let plan = plan.terms(terms).tracks(tracks).build()?;
        Ok((plan, rejected))
    }
}

/// Returns the mean over seeds.
fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len() as f64;
    values.sum::<f64>() / count
}

fn print_row(lie: &str, share: f64, defence: Defence, runs: &[RunFigures]) {
    let defence = match defence {
        Defence::Nothing => "nothing",
        Defence::Clip => "clip",
        Defence::ClipAndCheck => "clip and check",
    };
    print!("| {lie} | {:.0} % | {defence} |", 100.0 * share);
    for track in 0..runs[0].errors.len() {
        let [error, tail] = [0, 1].map(|figure| mean(runs.iter().map(|run| run.errors[track][figure])));
        let rejected = mean(runs.iter().map(|run| run.rejected[track] as f64));
        print!(" {error:.1} | {tail:.1} | {rejected:.0} |");
    }
    println!();
}

/// Returns the median length of honest updates over some rounds.
fn median(runs: &[RunFigures], rounds: std::ops::Range<u64>) -> f64 {
    let lengths = runs.iter().flat_map(|run| &run.lengths).filter(|(round, _)| rounds.contains(round));
    let mut lengths: Vec<f64> = lengths.map(|(_, length)| *length).collect();
    lengths.sort_unstable_by(f64::total_cmp);
    lengths.get(lengths.len() / 2).copied().unwrap_or(f64::NAN)
}

fn main() -> Result<(), Box<dyn Error>> {
    let seeds: u64 = std::env::args().nth(1).map_or(Ok(1), |seeds| seeds.parse())?;
    let writers = writers()?;
    let devices = writers.split(Split::Train).len();
    let runs = |share: f64, behaviour, defence| {
        let liars = (share * devices as f64).round() as usize;
        (1..=seeds)
            .map(|seed| Case { liars, behaviour, defence }.run(&writers, seed))
            .collect::<Result<Vec<RunFigures>, _>>()
    };
    let honest = runs(0.0, Behaviour::WrongLabels, Defence::Nothing)?;
    let [first, later] = [0..1, ROUNDS / 2..ROUNDS].map(|rounds| median(&honest, rounds));
    println!("{devices} train devices. The median length of honest updates is {first:.2} in the first round");
    println!("and {later:.2} in the second half. Updates are clipped to {CLIP}.\n");
    println!(
        "| lie | liars | defence | FedAvg: mean error, % | 90th percentile | rejected sums | θ = 0.5: mean error, % | 90th percentile | rejected sums |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    print_row("none", 0.0, Defence::Nothing, &honest);
    for defence in [Defence::Clip, Defence::ClipAndCheck] {
        print_row("none", 0.0, defence, &runs(0.0, Behaviour::WrongLabels, defence)?);
    }
    for (name, behaviour) in [
        ("wrong labels", Behaviour::WrongLabels),
        ("reversed, 10 times", Behaviour::Reversed(10.0)),
        ("reversed, 100 times", Behaviour::Reversed(100.0)),
    ] {
        for share in SHARES {
            for defence in [Defence::Nothing, Defence::Clip, Defence::ClipAndCheck] {
                print_row(name, share, defence, &runs(share, behaviour, defence)?);
            }
        }
    }
    Ok(())
}
