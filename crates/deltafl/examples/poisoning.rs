//! What liars do to a federation: the error of the test devices with 1, 5 and 10 % of the train devices lying, FedAvg beside
//! Δ-FL at θ = 0.5, with and without a bound on the length of updates.
//!
//!     cargo run --release -p deltafl --example poisoning [-- SEEDS]
//!
//! A liar of the first kind has wrong labels and is honest otherwise. One of the others hands in its update backwards and many
//! times as long, heeds no bound, and says that its loss is ten times what it is, which puts it into every tail. The figures
//! of docs/src/measurements/poisoning.md are of three seeds.

use std::collections::BTreeSet;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use deltafl::algorithm::{Quantile, Tail, Track};
use deltafl::compute::{Block, Compute, ComputeError, Remembered, Threads, UpdateTask};
use deltafl::data::synthetic::{ExamplesPerDevice, Glyphs};
use deltafl::data::{
    DeviceExamples, Federation, FederationBuilder, FederationIndex, InputColumn, InputKind, Normalise, Split,
};
use deltafl::exchange::Simulation;
use deltafl::kernel::Isa;
use deltafl::memory::AlgorithmState;
use deltafl::metrics::Figures;
use deltafl::model::{ModelSpec, Score};
use deltafl::params::{Params, UpdateCode, UpdateSum, add_wrapping};
use deltafl::question::RoundKey;
use deltafl::server_step::{Mean, ServerStep, ServerStepInput};
use deltafl::superquantile::Conformity;
use deltafl::superquantile::private::PrivateQuantile;
use deltafl::task::Task;
use deltafl::terms::{Clip, Terms, TrackSchedule};
use deltafl::trainer::Sgd;
use deltafl::training::{Plan, Records, train};

const ROUNDS: u64 = 100;
/// C: near the median length of honest updates in the second half of a run without liars, which the first line tells.
const CLIP: f64 = 0.5;
/// Shares of the train devices that lie.
const SHARES: [f64; 3] = [0.01, 0.05, 0.1];

/// What a liar does.
#[derive(Clone, Copy, PartialEq)]
enum Lie {
    /// Every class of its examples is called by the next one.
    Labels,
    /// It hands in its update backwards, so many times as long as it may be.
    Backwards(i64),
}

/// What is done about liars.
#[derive(Clone, Copy, PartialEq)]
enum Defence {
    Nothing,
    /// Devices clip their updates; those that lie backwards do not.
    Clip,
    /// Besides, the server throws away a sum whose mean is longer than any clipped update.
    ClipAndCheck,
}

/// The devices of a federation, of which some lie.
struct Fleet<'a> {
    threads: Threads<'a>,
    liars: BTreeSet<FederationIndex>,
    lie: Lie,
    /// Rounds and lengths of honest updates, where they are asked for.
    lengths: Option<Vec<(u64, f64)>>,
}

impl Compute for Fleet<'_> {
    fn width(&self) -> usize {
        self.threads.width()
    }

    fn task(&self) -> Task {
        self.threads.task()
    }

    fn prefetch(&mut self, devices: &[FederationIndex]) {
        self.threads.prefetch(devices);
    }

    fn scores(&mut self, blocks: &[Block], params: &[&Params]) -> Result<Vec<Vec<Score>>, ComputeError> {
        let mut scores = self.threads.scores(blocks, params)?;
        if matches!(self.lie, Lie::Backwards(_)) {
            for scores in &mut scores {
                let lying = scores.iter_mut().zip(blocks).filter(|(_, b)| self.liars.contains(&b.device));
                lying.for_each(|(score, _)| score.loss *= 10.0);
            }
        }
        Ok(scores)
    }

    fn updates(
        &mut self,
        key: &RoundKey,
        tasks: &[UpdateTask<'_>],
        sums: &mut [Vec<u64>],
    ) -> Result<Remembered, ComputeError> {
        if let Some(lengths) = &mut self.lengths {
            for task in tasks {
                let answer = alone(&mut self.threads, key, task)?;
                lengths.extend(length(&answer).map(|length| (key.round, length)));
            }
        }
        let Lie::Backwards(times) = self.lie else { return self.threads.updates(key, tasks, sums) };
        let (lying, honest): (Vec<_>, Vec<_>) =
            tasks.iter().copied().partition(|task| self.liars.contains(&task.device));
        self.threads.updates(key, &honest, sums)?;
        for task in &lying {
            let mut answer = alone(&mut self.threads, key, task)?;
            let entries = &mut answer[..task.params.len()];
            entries.iter_mut().for_each(|entry| *entry = entry.wrapping_mul(times.wrapping_neg() as u64));
            add_wrapping(&mut sums[task.sum], &answer);
        }
        Ok(Remembered::new())
    }
}

/// The answer of one device.
fn alone(threads: &mut Threads<'_>, key: &RoundKey, task: &UpdateTask<'_>) -> Result<Vec<u64>, ComputeError> {
    let mut sums = [vec![0; UpdateCode::len(task.params.len())]];
    threads.updates(key, &[UpdateTask { sum: 0, ..*task }], &mut sums)?;
    let [sum] = sums;
    Ok(sum)
}

/// ‖w_k − w‖ of an answer; `None` of one without an update.
fn length(answer: &[u64]) -> Option<f64> {
    norm(&UpdateSum::new(answer.to_vec(), answer.len() - UpdateCode::len(0)).ok()?)
}

/// ‖mean of the updates‖; `None` of a sum over nobody.
fn norm(sum: &UpdateSum) -> Option<f64> {
    Some(sum.mean()?.map(|entry| entry * entry).sum::<f64>().sqrt())
}

/// A server that checks: a mean that is longer than any clipped update moves nothing, and is counted.
struct Checked {
    thrown_away: Arc<AtomicUsize>,
}

impl ServerStep for Checked {
    fn apply(
        &self,
        at: &ServerStepInput<'_>,
        sum: &UpdateSum,
        memory: &mut AlgorithmState,
    ) -> Option<Params> {
        // A thousandth for entries and weights that are rounded; the server of a deployment counts it out.
        if norm(sum)? <= CLIP * 1.001 {
            return Mean.apply(at, sum, memory);
        }
        self.thrown_away.fetch_add(1, Ordering::Relaxed);
        None
    }
}

/// Four hundred writers of glyphs, half of whom train.
fn writers() -> Result<Federation, Box<dyn Error>> {
    let examples = ExamplesPerDevice::new(40, 60, 120).ok_or("numbers in order")?;
    Ok(Glyphs { examples, ..Glyphs::default() }.build())
}

/// The writers, of whom `liars` train and lie; who they are.
fn federation(
    honest: &Federation,
    liars: usize,
    lie: Lie,
) -> Result<(Federation, BTreeSet<FederationIndex>), Box<dyn Error>> {
    // Devices are split at random, so that the first that train are as good as any.
    let liars: BTreeSet<FederationIndex> = honest.split(Split::Train).into_iter().take(liars).collect();
    let (InputColumn::Bytes(pixels), InputKind::Bytes { dim }) = (honest.inputs(), honest.kind()) else {
        return Err("glyphs are bytes".into());
    };
    let mut builder = FederationBuilder::new("glyphs with liars", honest.kind(), honest.classes());
    for device in honest.devices() {
        let (examples, first) = (honest.examples(device), honest.offset(device) as usize);
        let turned = u32::from(lie == Lie::Labels && liars.contains(&device));
        let label = |i| (examples.label(i) + turned) % honest.classes() as u32;
        let labels: Vec<u32> = (0..examples.len()).map(label).collect();
        let inputs = DeviceExamples::Bytes(&pixels[first * dim..(first + labels.len()) * dim]);
        builder.push(honest.id(device), honest.split_of(device), inputs, &labels)?;
    }
    Ok((builder.build().normalised(Normalise::MeanRatio), liars))
}

/// A federation with so many liars, and what is done about them.
#[derive(Clone, Copy)]
struct Case {
    liars: usize,
    lie: Lie,
    defence: Defence,
}

/// Sums thrown away, per track.
type Counters = Vec<Arc<AtomicUsize>>;

/// What came of a run.
struct Told {
    /// Mean and 90th percentile of the error of the test devices in %, per track.
    errors: Vec<[f64; 2]>,
    /// Sums thrown away, per track.
    thrown_away: Vec<usize>,
    lengths: Vec<(u64, f64)>,
}

impl Case {
    fn run(self, honest: &Federation, seed: u64) -> Result<Told, Box<dyn Error>> {
        let (federation, liars) = federation(honest, self.liars, self.lie)?;
        let (plan, thrown_away) = self.plan()?;
        let model = ModelSpec::LINEAR.build(&federation, Isa::detect())?;
        let trainer = Sgd::new(&*model);
        let lengths = (liars.is_empty() && self.defence == Defence::Nothing).then(Vec::new);
        let threads = Threads::new(&trainer, &federation, None)?;
        let mut exchange =
            Simulation::with_compute(Fleet { threads, liars, lie: self.lie, lengths }, &federation)?;
        let (mut state, mut records) = (plan.start(seed, &trainer), Records::default());
        train(&mut exchange, &plan, &mut state, &mut records)?;
        let (_, splits) = records.evaluations.last().ok_or("no evaluation")?;
        let test = splits.iter().find(|split| split.split == Split::Test).ok_or("no test devices")?;
        let figures = |track| {
            let figures = Figures::of_track(test, track).ok_or("no test devices")?;
            Ok([figures.mean, figures.percentile(90).unwrap_or(f64::NAN)].map(|error| 100.0 * error))
        };
        Ok(Told {
            errors: (0..plan.tracks().len()).map(figures).collect::<Result<_, Box<dyn Error>>>()?,
            thrown_away: thrown_away.iter().map(|count| count.load(Ordering::Relaxed)).collect(),
            lengths: exchange.compute().lengths.clone().unwrap_or_default(),
        })
    }

    /// FedAvg and θ = 0.5 as they are deployed: in private mode, every device counting alike.
    fn plan(self) -> Result<(Plan, Counters), Box<dyn Error>> {
        let half = Tail::new(Conformity::try_from(0.5)?);
        let private = Tail { quantile: Quantile::Private(PrivateQuantile::TwoLevel), ..half };
        let mut tracks = vec![Track::fed_avg(), private.into()];
        let thrown_away: Counters = tracks.iter().map(|_| Arc::default()).collect();
        if self.defence == Defence::ClipAndCheck {
            for (track, counter) in tracks.iter_mut().zip(&thrown_away) {
                track.server = Box::new(Checked { thrown_away: counter.clone() });
            }
        }
        let clip = (self.defence != Defence::Nothing).then(|| Clip::try_from(CLIP)).transpose()?;
        // Tracks that train in every round are compared after the same number of rounds.
        let terms = Terms { clip, schedule: TrackSchedule::Together, ..Terms::PRIVATE };
        let plan = Plan::builder().rounds(ROUNDS).cohort(50).evaluate_every(ROUNDS);
        let plan = plan.terms(terms).tracks(tracks).build()?;
        Ok((plan, thrown_away))
    }
}

/// Mean over seeds.
fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len() as f64;
    values.sum::<f64>() / count
}

fn tell(lie: &str, share: f64, defence: Defence, told: &[Told]) {
    let defence = match defence {
        Defence::Nothing => "nothing",
        Defence::Clip => "clip",
        Defence::ClipAndCheck => "clip and check",
    };
    print!("| {lie} | {:.0} % | {defence} |", 100.0 * share);
    for track in 0..told[0].errors.len() {
        let [error, tail] = [0, 1].map(|figure| mean(told.iter().map(|told| told.errors[track][figure])));
        let thrown_away = mean(told.iter().map(|told| told.thrown_away[track] as f64));
        print!(" {error:.1} | {tail:.1} | {thrown_away:.0} |");
    }
    println!();
}

/// The median length of honest updates over some rounds.
fn median(told: &[Told], rounds: std::ops::Range<u64>) -> f64 {
    let lengths = told.iter().flat_map(|told| &told.lengths).filter(|(round, _)| rounds.contains(round));
    let mut lengths: Vec<f64> = lengths.map(|(_, length)| *length).collect();
    lengths.sort_unstable_by(f64::total_cmp);
    lengths.get(lengths.len() / 2).copied().unwrap_or(f64::NAN)
}

fn main() -> Result<(), Box<dyn Error>> {
    let seeds: u64 = std::env::args().nth(1).map_or(Ok(1), |seeds| seeds.parse())?;
    let writers = writers()?;
    let devices = writers.split(Split::Train).len();
    let runs = |share: f64, lie, defence| {
        let liars = (share * devices as f64).round() as usize;
        (1..=seeds)
            .map(|seed| Case { liars, lie, defence }.run(&writers, seed))
            .collect::<Result<Vec<Told>, _>>()
    };
    let honest = runs(0.0, Lie::Labels, Defence::Nothing)?;
    let [first, later] = [0..1, ROUNDS / 2..ROUNDS].map(|rounds| median(&honest, rounds));
    println!(
        "{devices} train devices; honest updates have length {first:.2} in the first round and {later:.2} in"
    );
    println!("the second half, in the median; they are clipped to {CLIP}.\n");
    println!(
        "| lie | liars | against it | FedAvg: mean error, % | 90th percentile | sums thrown away | θ = 0.5: mean error, % | 90th percentile | sums thrown away |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    tell("none", 0.0, Defence::Nothing, &honest);
    for defence in [Defence::Clip, Defence::ClipAndCheck] {
        tell("none", 0.0, defence, &runs(0.0, Lie::Labels, defence)?);
    }
    for (name, lie) in [
        ("wrong labels", Lie::Labels),
        ("backwards, 10 times", Lie::Backwards(10)),
        ("backwards, 100 times", Lie::Backwards(100)),
    ] {
        for share in SHARES {
            for defence in [Defence::Nothing, Defence::Clip, Defence::ClipAndCheck] {
                tell(name, share, defence, &runs(share, lie, defence)?);
            }
        }
    }
    Ok(())
}
