//! Rounds on a GPU: the local updates of a cohort with their sum, and the losses of the same
//! devices.

use std::time::Instant;

use deltafl::compute::{Block, Compute, UpdateTask};
use deltafl::data::{Federation, FederationIndex};
use deltafl::device::blocks;
use deltafl::kernel::Isa;
use deltafl::params::{Params, UpdateCode};
use deltafl::question::RoundKey;
use deltafl::stream::{Purpose, Stream};
use deltafl::terms::Terms;
use deltafl::trainer::{LocalPlan, Work};
use deltafl_cuda::{Gpu, GpuDevice, GpuError, GpuOptions};
use miette::{IntoDiagnostic, Result};
use serde::Serialize;

use super::cases::Case;
use super::median;

/// Repeats of each measurement.
const REPEATS: u64 = 5;

/// The results of a model on a GPU: medians over the repeats.
#[derive(Debug, Serialize)]
pub(super) struct GpuFigures {
    model: String,
    cohort: usize,
    examples: u64,
    /// The duration of a round: upload, local updates, the integer sum and the download. The order
    /// of the next round is drawn at the same time.
    round_seconds: f64,
    losses_seconds: f64,
    rounds_per_s: f64,
    train_examples_per_s: f64,
    eval_examples_per_s: f64,
    train_tflops: f64,
    eval_tflops: f64,
}

/// Opens the GPU to measure.
pub(super) fn device(ordinal: usize) -> Result<GpuDevice, GpuError> {
    GpuDevice::open(ordinal, deltafl_run::backend::kernel_cache())
}

/// Measures rounds of a case with every device of a federation in the cohort.
pub(super) fn measure(case: &Case, device: &GpuDevice, cohort: usize) -> Result<GpuFigures> {
    let federation = case.federation(cohort);
    let model = case.spec.build(&federation, Isa::detect()).into_diagnostic()?;
    let mut params = vec![0.0; model.num_params()];
    model.init(&mut Stream::new(1, Purpose::Init, 0, 0), &mut params);
    let params = Params::from(params);
    let mut gpu =
        Gpu::new(device, &federation, &case.spec, params.len(), GpuOptions::default()).into_diagnostic()?;
    let plan = LocalPlan {
        work: Work::Epochs(1),
        batch: case.batch,
        learning_rate: case.learning_rate,
        l2: case.l2,
        proximal: 0.0,
        correction: None,
    };
    let devices = federation.devices();
    let task = |device| UpdateTask::new(device, federation.example_count(device) as f64, &params, &plan);
    let tasks: Vec<UpdateTask<'_>> = devices.clone().map(task).collect();
    let cohort_devices: Vec<FederationIndex> = devices.clone().collect();
    let mut sums = [vec![0; UpdateCode::len(params.len())]];
    let round_seconds = timed(|round| {
        let key = RoundKey { run: 0, seed: 1, round, members: cohort as u32, terms: Terms::OPEN };
        // As in a run, the next round is prepared while the GPU computes.
        gpu.prefetch(&cohort_devices);
        gpu.updates(&key, &tasks, &mut sums).map(|_| ()).into_diagnostic()
    })?;
    let all: Vec<Block> = devices.flat_map(|device| blocks_of(&federation, device)).collect();
    let losses_seconds = timed(|_| gpu.scores(&all, &[&params]).map(|_| ()).into_diagnostic())?;
    let examples: u64 = federation.devices().map(|device| federation.example_count(device)).sum();
    let (train, eval) = (examples as f64 / round_seconds, examples as f64 / losses_seconds);
    Ok(GpuFigures {
        model: case.name.clone(),
        cohort,
        examples,
        round_seconds,
        losses_seconds,
        rounds_per_s: 1.0 / round_seconds,
        train_examples_per_s: train,
        eval_examples_per_s: eval,
        train_tflops: train * case.train_flops * 1e-12,
        eval_tflops: eval * case.eval_flops * 1e-12,
    })
}

fn blocks_of(federation: &Federation, device: FederationIndex) -> impl Iterator<Item = Block> + use<> {
    blocks(federation.example_count(device) as usize).map(move |examples| Block { device, examples })
}

/// Returns the median time of a call, after one that builds kernels and buffers.
fn timed(mut call: impl FnMut(u64) -> Result<()>) -> Result<f64> {
    call(0)?;
    let mut seconds = Vec::new();
    for round in 1..=REPEATS {
        let start = Instant::now();
        call(round)?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    Ok(median(seconds))
}

/// Prints the header of the table.
pub(super) fn print_header(device: &GpuDevice) {
    println!("{}; rounds of one epoch, median of {REPEATS}\n", device.name());
    println!(
        "{:<18}{:>8}{:>11}{:>12}{:>12}{:>16}{:>10}",
        "model", "cohort", "examples", "round", "losses", "train ex/s", "TFLOP/s"
    );
}

impl GpuFigures {
    pub(super) fn print(&self) {
        println!(
            "{:<18}{:>8}{:>11}{:>9.3} ms{:>9.3} ms{:>16.0}{:>10.2}",
            self.model,
            self.cohort,
            self.examples,
            1e3 * self.round_seconds,
            1e3 * self.losses_seconds,
            self.train_examples_per_s,
            self.train_tflops
        );
    }
}
