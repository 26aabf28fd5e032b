//! The general engine: networks of any size, as a program of layers over all devices of a wave
//! (`kernels/general`). Specialised kernels are faster for the shapes that they support.

#![allow(unsafe_code)]

use std::collections::HashMap;
use std::sync::Arc;

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaGraph, CudaStream};

use self::network::Network;
use self::program::{Launch, Program, SEQUENCES};
use super::groups::GroupScores;
use super::{KernelSetup, Scorer, Scores, Trainer, Updates};
use crate::GpuError;
use crate::device::Kernel;
use crate::launch::{Arg, LaunchGrid, launch, launch_wave};
use crate::memory::{Buffer, Mirror};
use crate::task::{NOW_BYTES, Task, Wave};

mod network;
mod program;
mod stack;

/// The lowest compute capability with the instructions of the kernels.
const CAPABILITY: (i32, i32) = (8, 0);
/// Examples per group of a forward pass.
const SCORED: usize = 64;
/// Bytes of activations of a forward pass.
const SCORED_BYTES: usize = 1 << 30;
/// Devices of one launch, at most the rows of a grid.
const MOST_DEVICES: usize = 1 << 15;

pub(super) fn trainer(setup: &KernelSetup<'_>, batch: usize) -> Result<Box<dyn Trainer>, GpuError> {
    Ok(Box::new(ProgramTrainer {
        engine: Engine::new(setup, &program(setup, batch, true)?)?,
        graphs: HashMap::new(),
        captured: None,
    }))
}

pub(super) fn scorer(setup: &KernelSetup<'_>) -> Result<Box<dyn Scorer>, GpuError> {
    Ok(Box::new(ProgramScorer {
        engine: Engine::new(setup, &program(setup, SCORED, false)?)?,
        groups: GroupScores::new(setup.stream)?,
    }))
}

/// Returns the program of a model for batches of this size.
fn program(setup: &KernelSetup<'_>, batch: usize, trains: bool) -> Result<Program, GpuError> {
    let program = Program::new(&Network::for_model(setup)?, batch, trains, has_clusters(setup));
    match program.exceeded_limit() {
        None => Ok(program),
        Some(limit) => Err(setup.unsupported(format!("with batches of {batch}: {limit}"))),
    }
}

/// Returns true if the GPU has clusters of blocks, and the shared memory of compute capability 9.0.
/// GPUs of capability 12 have less.
fn has_clusters(setup: &KernelSetup<'_>) -> bool {
    ((9, 0)..(12, 0)).contains(&setup.device.capability())
}

/// A loaded program and its memory.
struct Engine {
    kernels: Vec<Kernel>,
    launches: Vec<Launch>,
    to_working: Kernel,
    spread: Kernel,
    collect: Kernel,
    add_groups: Kernel,
    /// The number of parameters.
    flat: usize,
    /// Floats of a device: parameters in working form, activations and slopes.
    working: usize,
    arena_len: usize,
    starts: Buffer<f32>,
    weights: Buffer<f32>,
    arena: Buffer<f32>,
    now: Buffer<u8>,
    step: Mirror<u32>,
    /// The streams of the sequences after the first.
    sequences: Vec<Arc<CudaStream>>,
}

impl Engine {
    fn new(setup: &KernelSetup<'_>, program: &Program) -> Result<Self, GpuError> {
        let got = setup.device.capability();
        if got < CAPABILITY {
            let (name, model) = (setup.device.name().to_owned(), setup.spec.name());
            return Err(GpuError::TooOld { name, model, got, needed: CAPABILITY });
        }
        let module = setup.device.load(&program.source, setup.stream)?;
        let kernel = |name: &str| module.kernel(name, 0);
        let stream = setup.stream;
        let shared =
            |i| program.launches.iter().find(|launch| launch.kernel == i).map_or(0, |launch| launch.shared);
        let operation = |i| module.kernel(&format!("op{i}"), shared(i));
        Ok(Self {
            kernels: (0..program.kernels).map(operation).collect::<Result<_, _>>()?,
            launches: program.launches.clone(),
            to_working: kernel("to_working")?,
            spread: kernel("spread")?,
            collect: kernel("collect")?,
            add_groups: kernel("add_groups")?,
            flat: program.flat,
            working: program.working,
            arena_len: program.arena,
            starts: Buffer::new(stream)?,
            weights: Buffer::new(stream)?,
            arena: Buffer::new(stream)?,
            now: Buffer::new(stream)?,
            step: Mirror::new(stream)?,
            sequences: (1..SEQUENCES).map(|_| setup.device.stream()).collect::<Result<_, _>>()?,
        })
    }

    /// Returns a grid with one thread per parameter, for this many devices or vectors.
    fn entries(&self, count: usize) -> LaunchGrid {
        LaunchGrid { blocks: (self.working.div_ceil(256) as u32, count as u32), threads: 256 }
    }

    /// Writes the working forms of vectors of parameters.
    fn start(&mut self, stream: &Arc<CudaStream>, params: Arg, vectors: usize) -> Result<(), GpuError> {
        self.starts.reserve(vectors * self.working)?;
        for first in (0..vectors).step_by(MOST_DEVICES) {
            let count = MOST_DEVICES.min(vectors - first);
            let from = params.offset::<f32>(first * self.flat);
            let to = self.starts.arg().offset::<f32>(first * self.working);
            launch(stream, &self.to_working, self.entries(count), &[from, to])?;
        }
        Ok(())
    }

    /// Reserves the memory of this many devices, and sets the number of the step to 0.
    fn reserve(&mut self, devices: usize) -> Result<(), GpuError> {
        self.arena.reserve(devices * self.arena_len)?;
        self.now.reserve(rounded_up(devices) * NOW_BYTES)?;
        self.step.send(2, |host| host.copy_from_slice(&[0, devices as u32]))
    }

    /// Launches all operations for the first `devices` of a wave.
    fn run(&self, stream: &Arc<CudaStream>, wave: &Wave, devices: u32) -> Result<(), GpuError> {
        let mut used = [false; SEQUENCES - 1];
        for Launch { kernel, blocks, threads, time, sequence, .. } in &self.launches {
            let grid = LaunchGrid { blocks: (*blocks, devices), threads: *threads };
            let on = match sequence.checked_sub(1) {
                None => stream,
                Some(i) => {
                    used[i] = true;
                    self.sequences[i].join(stream)?;
                    &self.sequences[i]
                }
            };
            launch_wave(on, &self.kernels[*kernel], grid, wave, *time)?;
        }
        for (sequence, _) in self.sequences.iter().zip(used).filter(|(_, used)| *used) {
            stream.join(sequence)?;
        }
        Ok(())
    }
}

/// Returns the next number of devices for which there is a graph: 1, 2, 3, 4, 6, 8, 12, 16, …
fn rounded_up(devices: usize) -> usize {
    let power = devices.next_power_of_two();
    if devices > 2 && devices <= power / 4 * 3 { power / 4 * 3 } else { power }
}

struct ProgramTrainer {
    engine: Engine,
    /// A step as a graph, by the number of devices.
    graphs: HashMap<usize, StepGraph>,
    /// The addresses in these graphs.
    captured: Option<Wave>,
}

struct StepGraph(CudaGraph);

// SAFETY: a graph may be used by any thread, one at a time. Its owner is not shared.
unsafe impl Send for StepGraph {}

impl Trainer for ProgramTrainer {
    fn train(&mut self, updates: &Updates<'_>) -> Result<(), GpuError> {
        let vectors = updates.tasks.iter().map(|task| task.params.max(task.anchor) + 1).max().unwrap_or(0);
        self.engine.start(updates.stream, updates.params, vectors as usize)?;
        for (i, tasks) in updates.tasks.chunks(MOST_DEVICES).enumerate() {
            self.train_chunk(updates, tasks, updates.task_list.offset::<Task>(i * MOST_DEVICES))?;
        }
        Ok(())
    }

    fn bytes_per_task(&self) -> u64 {
        4 * (self.engine.working + self.engine.arena_len) as u64 + NOW_BYTES as u64
    }

    fn bytes_per_vector(&self) -> u64 {
        4 * self.engine.working as u64
    }
}

impl ProgramTrainer {
    fn train_chunk(&mut self, updates: &Updates<'_>, tasks: &[Task], list: Arg) -> Result<(), GpuError> {
        let (engine, stream, count) = (&mut self.engine, updates.stream, tasks.len());
        engine.reserve(count)?;
        engine.weights.reserve(count * engine.working)?;
        let (starts, weights) = (engine.starts.arg(), engine.weights.arg());
        launch(stream, &engine.spread, engine.entries(count), &[list, starts, weights])?;
        let wave = Wave {
            tasks: list.address(),
            order: updates.order.address(),
            inputs: updates.columns.inputs().address(),
            labels: updates.columns.labels().address(),
            scale: updates.constants.scale().address(),
            shift: updates.constants.shift().address(),
            vectors: updates.constants.vectors().address(),
            starts: starts.address(),
            weights: weights.address(),
            arena: engine.arena.arg().address(),
            now: engine.now.arg().address(),
            step: engine.step.arg().address(),
            losses: 0,
            errors: 0,
        };
        for s in 0..tasks.first().map_or(0, Task::steps) {
            let active = tasks.partition_point(|task| task.steps() > s);
            self.step(stream, &wave, rounded_up(active))?;
        }
        let engine = &self.engine;
        launch(stream, &engine.collect, engine.entries(count), &[list, weights, updates.local])
    }

    /// Runs a step of the first devices, and records it on first use.
    fn step(&mut self, stream: &Arc<CudaStream>, wave: &Wave, devices: usize) -> Result<(), GpuError> {
        if self.captured.as_ref() != Some(wave) {
            // Graphs of other addresses may still run.
            if !self.graphs.is_empty() {
                stream.synchronize()?;
            }
            self.graphs.clear();
            self.captured = Some(*wave);
        }
        if !self.graphs.contains_key(&devices) {
            // Other threads may allocate memory meanwhile.
            stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED)?;
            let recorded = self.engine.run(stream, wave, devices as u32);
            let graph = stream.end_capture(CUgraphInstantiate_flags(0));
            recorded?;
            if let Some(graph) = graph? {
                self.graphs.insert(devices, StepGraph(graph));
            }
        }
        match self.graphs.get(&devices) {
            Some(StepGraph(graph)) => Ok(graph.launch()?),
            None => self.engine.run(stream, wave, devices as u32),
        }
    }
}

struct ProgramScorer {
    engine: Engine,
    groups: GroupScores,
}

impl Scorer for ProgramScorer {
    fn score(&mut self, pass: &Scores<'_>) -> Result<(), GpuError> {
        let groups = self.groups.start(pass, SCORED)?;
        let stream = pass.stream;
        self.engine.start(stream, pass.params, pass.vectors as usize)?;
        let most = (SCORED_BYTES / (4 * self.engine.arena_len).max(1)).clamp(1, MOST_DEVICES);
        for vector in 0..pass.vectors as usize {
            let weights = self.engine.starts.arg().offset::<f32>(vector * self.engine.working);
            for first in (0..groups).step_by(most) {
                let count = most.min(groups - first);
                self.engine.reserve(count)?;
                let [tasks, losses, errors] = self.groups.from(first);
                let wave = Wave {
                    tasks: tasks.address(),
                    order: 0,
                    inputs: pass.columns.inputs().address(),
                    labels: pass.columns.labels().address(),
                    scale: pass.constants.scale().address(),
                    shift: pass.constants.shift().address(),
                    vectors: pass.constants.vectors().address(),
                    starts: self.engine.starts.arg().address(),
                    weights: weights.address(),
                    arena: self.engine.arena.arg().address(),
                    now: self.engine.now.arg().address(),
                    step: self.engine.step.arg().address(),
                    losses: losses.address(),
                    errors: errors.address(),
                };
                self.engine.run(stream, &wave, count as u32)?;
            }
            self.groups.add(pass, vector, &self.engine.add_groups)?;
        }
        Ok(())
    }
}

/// Returns programs of every kind of layer, for the test that compiles every source.
#[cfg(test)]
pub(super) fn sources() -> Vec<crate::compile::KernelSource> {
    use self::network::{Cell, Convolution, Layer, NetworkInput, Norm, Pool, Recurrent};
    let full = |outputs| Layer::Dense { outputs, bias: true, relu: false, transposed: false };
    let rectified = |outputs| Layer::Dense { outputs, bias: true, relu: true, transposed: false };
    let map = |input, filters, pool: bool| {
        Layer::Convolution(Convolution {
            input,
            filters,
            side: 5,
            padding: usize::from(!pool) * 2,
            stride: 1,
            bias: true,
            relu: true,
            pool,
        })
    };
    let units =
        |cell, hidden, symbols| Layer::Recurrent(Recurrent { cell, hidden, symbols, sequence: false });
    let sequence =
        |hidden, symbols| Layer::Recurrent(Recurrent { cell: Cell::Lstm, hidden, symbols, sequence: true });
    let norm = |channels, cells, groups| Layer::Norm(Norm { channels, cells, groups, by_cell: groups == 1 });
    let networks = [
        (
            NetworkInput::Bytes { dim: 3072 },
            vec![map([3, 32, 32], 32, true), map([32, 14, 14], 64, true), rectified(20), full(10)],
            false,
        ),
        (
            NetworkInput::Dense { dim: 256 },
            vec![map([1, 16, 16], 7, false), map([7, 16, 16], 5, true), full(3)],
            false,
        ),
        (NetworkInput::Text { len: 20 }, vec![units(Cell::Gru, 64, Some(53)), full(53)], false),
        (
            NetworkInput::Words { len: 5 },
            vec![Layer::Embedding { symbols: 40, dim: 8, padded: true }, units(Cell::Gru, 49, None), full(7)],
            false,
        ),
        (
            NetworkInput::Words { len: 6 },
            vec![
                sequence(20, Some(40)),
                Layer::Tanh,
                sequence(9, None),
                Layer::Mean { skips_padding: true },
                full(7),
            ],
            false,
        ),
        (
            NetworkInput::Dense { dim: 3 * 64 },
            vec![
                map([3, 8, 8], 12, false),
                Layer::Residual(vec![
                    norm(12, 64, 4),
                    Layer::Gelu,
                    map([12, 8, 8], 12, false),
                    norm(12, 64, 1),
                ]),
                Layer::Pool(Pool { input: [12, 8, 8], side: 3, stride: 2, is_max: true }),
                Layer::Pool(Pool { input: [12, 3, 3], side: 3, stride: 1, is_max: false }),
                full(4),
            ],
            false,
        ),
        (
            NetworkInput::Words { len: 25 },
            vec![Layer::FrozenVectors { dim: 50 }, units(Cell::Lstm, 256, None), full(1)],
            true,
        ),
        (
            NetworkInput::Dense { dim: 3072 },
            vec![Layer::Dense { outputs: 200, bias: false, relu: false, transposed: true }],
            false,
        ),
    ];
    let programs = networks.into_iter().flat_map(|(input, layers, is_logistic)| {
        let network = Network { input, layers, is_logistic };
        [
            Program::new(&network, 16, true, true).source,
            Program::new(&network, 16, true, false).source,
            Program::new(&network, SCORED, false, true).source,
        ]
    });
    programs.collect()
}
