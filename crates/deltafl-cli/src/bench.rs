//! `deltafl bench`: examples per second of each model on this machine.
//!
//! A repeat trains a cohort of devices for one epoch each from the same parameters, with the steps
//! of a round: load, shuffle, gather, step, store. Evaluation is one forward pass over the same
//! examples. Both are compared with the rate of a large matrix product, the practical peak of the
//! machine. `--rounds` measures whole rounds instead.

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser;
use deltafl::data::{BatchBuffer, Federation, FederationIndex};
use deltafl::kernel::{self, Aligned, Isa};
use deltafl::memory::AlgorithmState;
use deltafl::model::{Model, Step};
use deltafl::stream::{Purpose, Stream};
use deltafl::trainer::{LocalPlan, LocalTask, LocalTrainer, Sgd, Work, Worker};
use deltafl_cuda::BackendChoice;
use deltafl_run::experiment_file;
use miette::{IntoDiagnostic, Result};
use serde::Serialize;

mod cases;
mod clock;
mod on_gpu;
mod whole_rounds;

use crate::error::{bad_input, explained};
use crate::run::at_layer;
use cases::Case;
use clock::BenchClock;

/// Measure training and evaluation of each model on this machine.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    /// Measure only this model: emnist-linear, emnist-convnet, sent140-linear, sent140-lstm or
    /// shakespeare-gru.
    #[arg(long)]
    model: Option<String>,
    /// Measure the model of this experiment, a TOML file, on its data.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["model", "rounds"])]
    experiment: Option<PathBuf>,
    /// Number of threads that train in parallel.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    threads: u16,
    /// Kernels to use: reference, portable, avx2 or avx512 (default: the best of this CPU).
    #[arg(long)]
    kernel: Option<Isa>,
    /// Seconds to measure training and evaluation, each, per model.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Divide by the CPU time of the threads instead of the wall-clock time, for a shared machine
    /// (Linux only).
    #[arg(long)]
    cpu_time: bool,
    /// Run this many training steps of each model without measuring, for an instruction counter.
    #[arg(long, conflicts_with = "json")]
    steps: Option<u32>,
    /// Measure this many whole rounds of Δ-FL for each model, alternating between one thread and
    /// --threads.
    #[arg(long, conflicts_with_all = ["steps", "cpu_time", "seconds"], value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Measure rounds on a GPU: cuda or cuda:N.
    #[arg(long, value_name = "PLACE", default_value_t = BackendChoice::Cpu, conflicts_with_all = ["steps", "cpu_time", "seconds", "rounds"])]
    compute: BackendChoice,
    /// Number of devices in a whole round or a GPU round, each of the size of the paper's median
    /// device.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..))]
    cohort: u16,
    /// Print the results as JSON.
    #[arg(long)]
    json: bool,
}

/// The results of a machine.
#[derive(Debug, Serialize)]
struct BenchFigures {
    peak_gflops: f64,
    kernel: Isa,
    threads: u16,
    models: Vec<ModelFigures>,
}

/// The results of a model: medians over the repeats.
#[derive(Debug, Serialize)]
struct ModelFigures {
    model: String,
    batch: usize,
    train_examples_per_s: f64,
    eval_examples_per_s: f64,
    train_gflops: f64,
    eval_gflops: f64,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Result<()> {
    let isa = args.kernel.unwrap_or_else(Isa::detect).require().into_diagnostic()?;
    let cases = match &args.experiment {
        Some(path) => vec![of_experiment(path)?],
        None => chosen(args.model.as_deref())?,
    };
    if let Some(steps) = args.steps {
        return cases.iter().try_for_each(|case| take_steps(case, isa, steps));
    }
    if let Some(ordinal) = args.compute.ordinal() {
        return on_gpu(&args, &cases, ordinal);
    }
    if let Some(rounds) = args.rounds {
        return whole_rounds(&args, &cases, isa, rounds);
    }
    let budget = Duration::try_from_secs_f64(args.seconds).into_diagnostic()?;
    let measure = RateMeasurement { clock: BenchClock::new(args.cpu_time)?, repeat: budget / REPEATS };
    let mut figures = BenchFigures {
        peak_gflops: peak_gflops(isa, args.threads, measure),
        kernel: isa,
        threads: args.threads,
        models: Vec::new(),
    };
    if !args.json {
        print_header(&figures);
    }
    for case in cases {
        let measured = case_figures(&case, isa, args.threads, measure)?;
        if !args.json {
            print_line(&measured, figures.peak_gflops);
        }
        figures.models.push(measured);
    }
    if args.json {
        println!("{}", serde_json::to_string(&figures).into_diagnostic()?);
    }
    Ok(())
}

/// Measures rounds on a GPU.
fn on_gpu(args: &Args, cases: &[Case], ordinal: usize) -> Result<()> {
    let device = on_gpu::device(ordinal).map_err(|e| bad_input("there is no GPU to measure").because(e))?;
    let mut measured = Vec::new();
    if !args.json {
        on_gpu::print_header(&device);
    }
    for case in cases {
        let figures = on_gpu::measure(case, &device, usize::from(args.cohort))?;
        if args.json {
            measured.push(figures);
        } else {
            figures.print();
        }
    }
    if args.json {
        println!("{}", serde_json::json!({ "device": device.name(), "models": measured }));
    }
    Ok(())
}

/// Measures whole rounds.
fn whole_rounds(args: &Args, cases: &[Case], isa: Isa, rounds: u32) -> Result<()> {
    let mut measured = Vec::new();
    if !args.json {
        whole_rounds::print_header(isa, args.threads, rounds);
    }
    for case in cases {
        let figures = whole_rounds::measure(case, isa, args.threads, usize::from(args.cohort), rounds)?;
        if args.json {
            measured.push(figures);
        } else {
            figures.print();
        }
    }
    if args.json {
        let figures = serde_json::json!({ "kernel": isa, "rounds": measured });
        println!("{figures}");
    }
    Ok(())
}

/// Returns the case of an experiment file.
fn of_experiment(path: &Path) -> Result<Case> {
    let experiment = experiment_file::read(path, &[]).map_err(explained)?;
    Case::of_experiment(&experiment).map_err(|error| at_layer(error, path, &[]))
}

fn chosen(name: Option<&str>) -> Result<Vec<Case>> {
    let mut cases = cases::all();
    if let Some(name) = name {
        let names: Vec<_> = cases.iter().map(|case| case.name.clone()).collect();
        cases.retain(|case| case.name == name);
        if cases.is_empty() {
            let message = format!("there is no model {name:?}");
            return Err(bad_input(message).help(format!("choose one of {}", names.join(", "))).into());
        }
    }
    Ok(cases)
}

fn print_header(figures: &BenchFigures) {
    println!(
        "{} kernels, {} thread(s); a large product reaches {:.1} GFLOP/s\n",
        figures.kernel, figures.threads, figures.peak_gflops
    );
    println!(
        "{:<18}{:>6}{:>14}{:>10}{:>8}{:>14}{:>10}{:>8}",
        "model", "batch", "train ex/s", "GFLOP/s", "peak", "eval ex/s", "GFLOP/s", "peak"
    );
}

fn print_line(figures: &ModelFigures, peak: f64) {
    let ModelFigures { model, batch, train_examples_per_s, eval_examples_per_s, train_gflops, eval_gflops } =
        figures;
    println!(
        "{model:<18}{batch:>6}{train_examples_per_s:>14.0}{}{eval_examples_per_s:>14.0}{}",
        operations(*train_gflops, peak),
        operations(*eval_gflops, peak),
    );
}

/// Formats a rate of operations and its share of the peak, or dashes if the operations are unknown.
fn operations(gflops: f64, peak: f64) -> String {
    match gflops.is_nan() {
        true => format!("{:>10}{:>8}", "–", "–"),
        false => format!("{gflops:>10.1}{:>7.0}%", 100.0 * gflops / peak),
    }
}

/// Examples in a block of evaluation, as in the engine.
const EVALUATION_BLOCK: usize = 256;
/// Number of devices whose examples are used repeatedly.
const DEVICES: usize = 20;
/// Number of repeats whose median is reported.
const REPEATS: u32 = 5;

fn case_figures(case: &Case, isa: Isa, threads: u16, measure: RateMeasurement) -> Result<ModelFigures> {
    let federation = case.federation(DEVICES);
    let model = case.spec.build(&federation, isa).into_diagnostic()?;
    let params = initial(&*model);
    let trainer = Sgd::boxed(&*model);
    let race = Race { case, federation: &federation, trainer: &*trainer, params: &params, threads, measure };
    let train = race.examples_per_s(Pass::Train);
    let eval = race.examples_per_s(Pass::Evaluate);
    Ok(ModelFigures {
        model: case.name.clone(),
        batch: case.batch,
        train_examples_per_s: train,
        eval_examples_per_s: eval,
        train_gflops: train * case.train_flops * 1e-9,
        eval_gflops: eval * case.eval_flops * 1e-9,
    })
}

fn initial(model: &dyn Model) -> Vec<f32> {
    let mut params = vec![0.0; model.num_params()];
    model.init(&mut Stream::new(1, Purpose::Init, 0, 0), &mut params);
    params
}

/// Performs some steps on the first batch of the first device.
fn take_steps(case: &Case, isa: Isa, steps: u32) -> Result<()> {
    let federation = case.federation(DEVICES);
    let model = case.spec.build(&federation, isa).into_diagnostic()?;
    let mut working = Aligned::zeroed(model.working_len());
    model.load(&initial(&*model), &mut working);
    let mut scratch = Aligned::zeroed(model.step_scratch_len(case.batch));
    let step = Step { learning_rate: case.learning_rate, l2: case.l2, pull: None, key: 0 };
    let mut buffer = BatchBuffer::default();
    let batch = buffer.gather(&federation.examples(FederationIndex(0)), 0..case.batch);
    for _ in 0..steps {
        model.step(&mut working, batch, step, &mut scratch);
    }
    black_box(&working);
    Ok(())
}

/// The benchmark of one model.
#[derive(Clone, Copy)]
struct Race<'a> {
    case: &'a Case,
    federation: &'a Federation,
    trainer: &'a dyn LocalTrainer,
    params: &'a [f32],
    threads: u16,
    measure: RateMeasurement,
}

impl Race<'_> {
    /// Returns the examples per second of all threads together, median over the repeats.
    fn examples_per_s(&self, pass: Pass) -> f64 {
        let rates: Vec<Vec<f64>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.threads)
                .map(|_| scope.spawn(|| BenchWorker::new(self).rates(self.measure, pass)))
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("a worker does not panic")).collect()
        });
        let totals = (0..REPEATS as usize).map(|i| rates.iter().map(|rates| rates[i]).sum()).collect();
        median(totals)
    }
}

/// The operation on a device.
#[derive(Clone, Copy)]
enum Pass {
    Train,
    Evaluate,
}

/// One thread.
struct BenchWorker<'a> {
    race: &'a Race<'a>,
    worker: Box<dyn Worker + 'a>,
    memory: AlgorithmState,
}

impl<'a> BenchWorker<'a> {
    fn new(race: &'a Race<'a>) -> Self {
        let mut worker = race.trainer.worker();
        worker.load(race.params);
        Self { race, worker, memory: AlgorithmState::default() }
    }

    /// Returns the examples per second of each repeat.
    fn rates(&mut self, measure: RateMeasurement, pass: Pass) -> Vec<f64> {
        let _flush = kernel::flush_denormals();
        self.pass(pass, FederationIndex(0));
        let mut devices = self.race.federation.devices().cycle();
        let mut next = || {
            let device = devices.next().unwrap_or(FederationIndex(0));
            self.pass(pass, device);
            self.race.federation.example_count(device)
        };
        (0..REPEATS).map(|_| measure.rate(&mut next)).collect()
    }

    fn pass(&mut self, pass: Pass, device: FederationIndex) {
        match pass {
            Pass::Train => self.train(device),
            Pass::Evaluate => self.evaluate(device),
        }
    }

    /// Trains one epoch of a device from the common parameters.
    fn train(&mut self, device: FederationIndex) {
        let Race { case, federation, params, .. } = *self.race;
        let plan = LocalPlan {
            work: Work::Epochs(1),
            batch: case.batch,
            learning_rate: case.learning_rate,
            l2: case.l2,
            proximal: 0.0,
            correction: None,
        };
        let task = LocalTask { params, sent: &[], examples: &federation.examples(device), plan: &plan };
        let mut stream = Stream::new(1, Purpose::LocalUpdate, 0, u64::from(device.0));
        black_box(self.worker.update(&task, &mut self.memory, &mut stream).expect("SGD does not fail"));
    }

    /// Computes loss and errors of a device.
    fn evaluate(&mut self, device: FederationIndex) {
        let examples = self.race.federation.examples(device);
        for start in (0..examples.len()).step_by(EVALUATION_BLOCK) {
            let block = start..(start + EVALUATION_BLOCK).min(examples.len());
            black_box(self.worker.score(&examples, block).expect("SGD does not fail"));
        }
    }
}

/// The method of measuring rates.
#[derive(Clone, Copy)]
struct RateMeasurement {
    clock: BenchClock,
    /// The duration of a repeat.
    repeat: Duration,
}

impl RateMeasurement {
    /// Returns the sum of the results of `work` per second. Reading the clock takes time as well,
    /// so it is read rarely.
    fn rate(self, mut work: impl FnMut() -> u64) -> f64 {
        let (start, mut total, mut calls) = (self.clock.now(), 0, 1);
        loop {
            total += (0..calls).map(|_| work()).sum::<u64>();
            let elapsed = self.clock.now().saturating_sub(start);
            if elapsed >= self.repeat {
                return total as f64 / elapsed.as_secs_f64();
            }
            if elapsed < self.repeat / 20 {
                calls *= 2;
            }
        }
    }
}

/// Returns the GFLOP/s of a 512 × 512 × 512 product, all threads together: the best of the repeats.
fn peak_gflops(isa: Isa, threads: u16, measure: RateMeasurement) -> f64 {
    const SIDE: usize = 512;
    let products_per_s = || {
        let (a, b) = (Aligned::zeroed(SIDE * SIDE), Aligned::zeroed(SIDE * SIDE));
        let mut c = Aligned::zeroed(SIDE * SIDE);
        let mut multiply = || {
            kernel::square_product(isa, SIDE, &a, &b, &mut c);
            black_box(&mut c);
            1
        };
        (0..REPEATS).map(|_| measure.rate(&mut multiply)).fold(0.0, f64::max)
    };
    let per_s: f64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(products_per_s)).collect();
        threads.into_iter().map(|thread| thread.join().expect("a product does not panic")).sum()
    });
    per_s * 2.0 * (SIDE as f64).powi(3) * 1e-9
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}
