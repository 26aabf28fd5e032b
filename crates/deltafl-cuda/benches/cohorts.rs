//! Rounds of the paper's cohorts on one GPU: `cargo bench -p deltafl-cuda`. Without a GPU it prints
//! a message. Arguments select the cohorts whose names contain one of them.
//!
//! A round includes everything that a run waits for: uploads, all local updates, their integer sum
//! and the download. The order of the next round is drawn concurrently, as in a run. A complete
//! round of Δ-FL starts with the losses of the cohort at a new w. Each figure is the median of
//! five.

use std::time::{Duration, Instant};

use deltafl::compute::{Block, Compute, TaskNoise, UpdateTask};
use deltafl::data::{
    DeviceExamples, Federation, FederationBuilder, FederationIndex, InputKind, Split, WordVectors,
};
use deltafl::device::blocks;
use deltafl::kernel::Isa;
use deltafl::model::stack::{Layer, STACK};
use deltafl::model::{CONV_NET, GRU, LSTM, ModelDefinition, ModelSpec};
use deltafl::options::OptionValue;
use deltafl::params::{Params, UpdateCode};
use deltafl::privacy::Noise;
use deltafl::question::{Ask, RoundKey};
use deltafl::selection::Weighting;
use deltafl::stream::{Purpose, Stream};
use deltafl::task::Targets;
use deltafl::terms::{Clip, Terms};
use deltafl::trainer::{LocalPlan, Work};
use deltafl_cuda::{Gpu, GpuDevice, GpuOptions, KernelCache};

type Failure = Box<dyn std::error::Error>;

struct Cohort {
    name: &'static str,
    spec: ModelSpec,
    federation: Federation,
    batch: usize,
    rate: f32,
}

impl Cohort {
    /// Returns an epoch without regularisation.
    fn plan(&self) -> LocalPlan {
        LocalPlan {
            work: Work::Epochs(1),
            batch: self.batch,
            learning_rate: self.rate,
            l2: 0.0,
            proximal: 0.0,
            correction: None,
        }
    }
}

fn main() {
    let cache = KernelCache::in_folder(std::env::temp_dir().join("deltafl-bench-kernels"));
    let device = match GpuDevice::open(0, cache) {
        Ok(device) => device,
        Err(error) => return println!("no bench: {error}"),
    };
    println!("{}", device.name());
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|part| name.contains(part));
    for cohort in cohorts().into_iter().filter(|cohort| is_wanted(cohort.name)) {
        if let Err(error) = round(&device, &cohort) {
            println!("{}: {error}", cohort.name);
        }
    }
    for cohort in private_cohorts().into_iter().filter(|cohort| is_wanted(cohort.name)) {
        if let Err(error) = private_round(&device, &cohort) {
            println!("{}: {error}", cohort.name);
        }
    }
    if is_wanted("evaluation")
        && let Err(error) = evaluation(&device)
    {
        println!("evaluation: {error}");
    }
}

fn cohorts() -> Vec<Cohort> {
    let gru = GRU.spec();
    vec![
        Cohort {
            name: "linear, 100 devices of 179 images, batch 10",
            spec: ModelSpec::LINEAR,
            federation: images(100, 179),
            batch: 10,
            rate: 0.05,
        },
        Cohort {
            name: "ConvNet, 100 devices of 179 images, batch 16",
            spec: CONV_NET.spec(),
            federation: images(100, 179),
            batch: 16,
            rate: 0.1,
        },
        Cohort {
            name: "LSTM, 50 devices of 69 messages, batch 10",
            spec: LSTM.spec(),
            federation: messages(50, 69),
            batch: 10,
            rate: 0.5,
        },
        Cohort {
            name: "GRU, 20 devices of 1288 windows, batch 16",
            spec: gru.clone(),
            federation: texts(20, |_| 1288),
            batch: 16,
            rate: 0.1,
        },
        Cohort {
            name: "ConvNet in the general engine, 100 devices of 179 images, batch 18",
            spec: CONV_NET.spec(),
            federation: images(100, 179),
            batch: 18,
            rate: 0.1,
        },
        Cohort {
            name: "ConvNet on 32 × 32, channels 32 and 64, 50 devices of 160 images, batch 16",
            spec: CONV_NET.spec(),
            federation: squares(50, 160, 32),
            batch: 16,
            rate: 0.1,
        },
        Cohort {
            name: "ConvNet, channels 16 and 32, 100 devices of 179 images, batch 16",
            spec: conv_net([16, 32]),
            federation: images(100, 179),
            batch: 16,
            rate: 0.1,
        },
        Cohort {
            name: "stack on 3 × 32 × 32, channels 32 and 64, 50 devices of 160 images, batch 16",
            spec: stack([32, 64]),
            federation: of_features(50, 160, 3072),
            batch: 16,
            rate: 0.1,
        },
        Cohort {
            name: "stack on 3 × 32 × 32, channels 24 and 48, 50 devices of 160 images, batch 16",
            spec: stack([24, 48]),
            federation: of_features(50, 160, 3072),
            batch: 16,
            rate: 0.1,
        },
        recurrent(&GRU, 64),
        recurrent(&GRU, 96),
        recurrent(&GRU, 256),
        recurrent(&LSTM, 64),
        recurrent(&LSTM, 96),
        recurrent(&LSTM, 256),
        Cohort {
            name: "GRU, 400 devices of 100 to 10,000 windows, batch 16",
            spec: gru,
            federation: texts(400, |k| 100 + 9900 * (k % 20) * (k % 20) / 361),
            batch: 16,
            rate: 0.1,
        },
    ]
}

fn private_cohorts() -> Vec<Cohort> {
    let linear = |name, devices| Cohort {
        name,
        spec: ModelSpec::LINEAR,
        federation: images(devices, 179),
        batch: 10,
        rate: 0.05,
    };
    let conv_net = |name, devices| Cohort {
        name,
        spec: CONV_NET.spec(),
        federation: images(devices, 179),
        batch: 16,
        rate: 0.1,
    };
    vec![
        linear("private linear, 100 devices of 179 images, batch 10", 100),
        linear("private linear, 1000 devices of 179 images, batch 10", 1000),
        conv_net("private ConvNet, 100 devices of 179 images, batch 16", 100),
        conv_net("private ConvNet, 1000 devices of 179 images, batch 16", 1000),
    ]
}

/// A round with noise, and the same round without it. Half of the devices are in the tail.
fn private_round(device: &GpuDevice, cohort: &Cohort) -> Result<(), Failure> {
    let federation = &cohort.federation;
    let params = initial(&cohort.spec, federation);
    let mut gpu = Gpu::new(device, federation, &cohort.spec, params.len(), GpuOptions::default())?;
    let plan = cohort.plan();
    let clip = Some(Clip::try_from(0.5)?);
    let noise = Noise { variance: 10_000, units: 2048, honest: 50, clip, excess: None };
    let ask = Ask::Update { weighting: Weighting::everyone(), plan };
    let ids: Vec<FederationIndex> = federation.devices().collect();
    let mut once = |round: u64, noise: Option<Noise>| -> Result<(), Failure> {
        let task = |(k, &device): (usize, &FederationIndex)| UpdateTask {
            noise: noise.map(|noise| TaskNoise { noise, query: 0, kept: None }),
            ..UpdateTask::new(device, f64::from(k.is_multiple_of(2)), &params, &plan)
        };
        // Without noise, only the tail answers.
        let is_asked = |task: &UpdateTask<'_>| noise.is_some() || task.weight > 0.0;
        let tasks: Vec<UpdateTask<'_>> = ids.iter().enumerate().map(task).filter(is_asked).collect();
        let len = noise.map_or(UpdateCode::len(params.len()), |noise| noise.answer_len(&ask, params.len()));
        let key = RoundKey { run: 0, seed: 1, round, members: ids.len() as u32, terms: Terms::PRIVATE };
        gpu.prefetch(&ids);
        Ok(gpu.updates(&key, &tasks, &mut [vec![0; len]]).map(|_| ())?)
    };
    once(0, None)?;
    once(1, Some(noise))?;
    let plain = median(|i| once(2 + i, None))?;
    let noisy = median(|i| once(7 + i, Some(noise)))?;
    println!(
        "{}: a round {:.3} ms, without noise {:.3} ms",
        cohort.name,
        milliseconds(noisy),
        milliseconds(plain)
    );
    Ok(())
}

fn conv_net(channels: [u64; 2]) -> ModelSpec {
    CONV_NET.spec_with([("channels", OptionValue::WholePair(channels))]).expect("channels are an option")
}

/// A stack equal to the ConvNet, with these channels.
fn stack(channels: [usize; 2]) -> ModelSpec {
    let part = |channels| {
        let convolution = Layer::Conv2d { channels, size: 5, stride: 1, padding: 0 };
        [convolution, Layer::Relu, Layer::MaxPool { size: 2, stride: 2 }]
    };
    STACK.spec().with_layers(channels.into_iter().flat_map(part).chain([Layer::Flatten]).collect())
}

/// The paper's cohort of a recurrent model, with other units.
fn recurrent(model: &'static ModelDefinition, hidden: u64) -> Cohort {
    let spec = model.spec_with([("hidden", OptionValue::Whole(hidden))]).expect("units are an option");
    let is_gru = std::ptr::eq(model, &raw const GRU);
    let (federation, batch) = if is_gru { (texts(20, |_| 1288), 16) } else { (messages(50, 69), 10) };
    let name = match (is_gru, hidden) {
        (true, 64) => "GRU of 64 units, 20 devices of 1288 windows, batch 16",
        (true, 96) => "GRU of 96 units, 20 devices of 1288 windows, batch 16",
        (true, _) => "GRU of 256 units, 20 devices of 1288 windows, batch 16",
        (false, 64) => "LSTM of 64 units, 50 devices of 69 messages, batch 10",
        (false, 96) => "LSTM of 96 units, 50 devices of 69 messages, batch 10",
        (false, _) => "LSTM of 256 units, 50 devices of 69 messages, batch 10",
    };
    Cohort { name, spec, federation, batch, rate: if is_gru { 0.1 } else { 0.5 } }
}

fn round(device: &GpuDevice, cohort: &Cohort) -> Result<(), Failure> {
    let federation = &cohort.federation;
    let params = initial(&cohort.spec, federation);
    let mut gpu = Gpu::new(device, federation, &cohort.spec, params.len(), GpuOptions::default())?;
    let devices: Vec<(FederationIndex, f64)> =
        federation.devices().map(|k| (k, federation.example_count(k) as f64)).collect();
    let plan = cohort.plan();
    // w changes every round, so that every round uploads it.
    let moved: Params = params.as_slice().iter().map(|w| w + 1e-3).collect::<Vec<f32>>().into();
    let ids: Vec<FederationIndex> = devices.iter().map(|&(k, _)| k).collect();
    let all = blocks_of(federation, &ids);
    let tasks_at = |params| {
        let task = |&(device, weight): &_| UpdateTask::new(device, weight, params, &plan);
        devices.iter().map(task).collect::<Vec<UpdateTask<'_>>>()
    };
    let (tasks, others) = (tasks_at(&params), tasks_at(&moved));
    let mut sums = [vec![0; UpdateCode::len(params.len())]];
    let mut once = |round: u64, losses: bool| -> Result<(), Failure> {
        let key = RoundKey { run: 0, seed: 1, round, members: devices.len() as u32, terms: Terms::OPEN };
        let tasks = if round.is_multiple_of(2) { &tasks } else { &others };
        gpu.prefetch(&ids);
        if losses {
            gpu.scores(&all, &[tasks[0].params])?;
        }
        Ok(gpu.updates(&key, tasks, &mut sums).map(|_| ())?)
    };
    once(0, true)?;
    once(1, true)?;
    let training = median(|i| once(2 + i, false))?;
    let whole = median(|i| once(7 + i, true))?;
    let short = LocalPlan { work: Work::Steps(1), ..plan };
    let tasks: Vec<UpdateTask<'_>> = tasks.iter().map(|task| UpdateTask { plan: &short, ..*task }).collect();
    let key = RoundKey { run: 0, seed: 1, round: 9, members: devices.len() as u32, terms: Terms::OPEN };
    let mut sums = [vec![0; UpdateCode::len(params.len())]];
    let step = median(|_| Ok(gpu.updates(&key, &tasks, &mut sums).map(|_| ())?))?;
    let losses = median(|_| Ok(gpu.scores(&all, &[&params]).map(|_| ())?))?;
    let examples: u64 = ids.iter().map(|&k| federation.example_count(k)).sum();
    println!(
        "{}: a round {:.3} ms ({:.3} ms with one step per device, {:.3} ms with the losses before), losses {:.3} ms, {:.0} examples/s",
        cohort.name,
        milliseconds(training),
        milliseconds(step),
        milliseconds(whole),
        milliseconds(losses),
        examples as f64 / training.as_secs_f64()
    );
    Ok(())
}

/// The 4.29 million windows of Shakespeare at four levels.
fn evaluation(device: &GpuDevice) -> Result<(), Failure> {
    let (spec, federation) = (GRU.spec(), texts(1121, |_| 3827));
    let params = initial(&spec, &federation);
    let mut gpu = Gpu::new(device, &federation, &spec, params.len(), GpuOptions::default())?;
    let devices: Vec<FederationIndex> = federation.devices().collect();
    let four = [&params, &params, &params, &params];
    let all = blocks_of(&federation, &devices);
    gpu.scores(&all[..100], &four)?;
    let time = median(|_| Ok(gpu.scores(&all, &four).map(|_| ())?))?;
    println!("GRU, 4.29 million windows at four levels: {:.3} s", time.as_secs_f64());
    Ok(())
}

fn blocks_of(federation: &Federation, devices: &[FederationIndex]) -> Vec<Block> {
    let of_device = |&device: &FederationIndex| {
        let blocks = blocks(federation.example_count(device) as usize);
        blocks.map(move |examples| Block { device, examples })
    };
    devices.iter().flat_map(of_device).collect()
}

fn initial(spec: &ModelSpec, federation: &Federation) -> Params {
    let model = spec.build(federation, Isa::detect()).expect("the models fit the data");
    let mut params = vec![0.0; model.num_params()];
    model.init(&mut Stream::new(1, Purpose::Init, 0, 0), &mut params);
    params.into()
}

fn median(mut run: impl FnMut(u64) -> Result<(), Failure>) -> Result<Duration, Failure> {
    let mut times = Vec::new();
    for i in 0..5 {
        let start = Instant::now();
        run(i)?;
        times.push(start.elapsed());
    }
    times.sort();
    Ok(times[2])
}

fn milliseconds(time: Duration) -> f64 {
    1e3 * time.as_secs_f64()
}

fn images(devices: usize, count: usize) -> Federation {
    squares(devices, count, 28)
}

/// Grey images of this side.
fn squares(devices: usize, count: usize, side: usize) -> Federation {
    of_features(devices, count, side * side)
}

fn of_features(devices: usize, count: usize, dim: usize) -> Federation {
    let mut builder = FederationBuilder::new("images", InputKind::Bytes { dim }, 62);
    for k in 0..devices {
        let mut stream = Stream::new(3, Purpose::Synthesis, 0, k as u64);
        let labels: Vec<u32> = (0..count).map(|_| stream.below(62) as u32).collect();
        let bytes: Vec<u8> = (0..count * dim).map(|_| stream.next_u64() as u8).collect();
        builder
            .push(&format!("d{k}"), Split::Train, DeviceExamples::Bytes(&bytes), &labels)
            .expect("valid examples");
    }
    builder.build()
}

fn messages(devices: usize, count: usize) -> Federation {
    let kind = InputKind::Tokens { len: 25, vocabulary: 20_001 };
    let mut builder = FederationBuilder::new("messages", kind, 2);
    let mut stream = Stream::new(3, Purpose::Synthesis, 0, 1 << 32);
    let values: Vec<f32> = (0..20_001 * 50).map(|_| 0.5 * stream.normal() as f32).collect();
    builder.vectors(WordVectors { dim: 50, values: values.into() });
    for k in 0..devices {
        let mut stream = Stream::new(3, Purpose::Synthesis, 0, k as u64);
        let labels: Vec<u32> = (0..count).map(|_| stream.below(2) as u32).collect();
        let ids: Vec<u32> = (0..count * 25).map(|_| stream.below(20_001) as u32).collect();
        builder
            .push(&format!("d{k}"), Split::Train, DeviceExamples::Tokens(&ids), &labels)
            .expect("valid examples");
    }
    builder.build()
}

fn texts(devices: usize, count: impl Fn(usize) -> usize) -> Federation {
    let mut builder = FederationBuilder::new("texts", InputKind::Windows { len: 20, alphabet: 53 }, 53);
    for k in 0..devices {
        let mut stream = Stream::new(3, Purpose::Synthesis, 0, k as u64);
        let text: Vec<u8> = (0..count(k) + 20).map(|_| stream.below(53) as u8).collect();
        builder
            .push(&format!("d{k}"), Split::Train, DeviceExamples::Text(&text), Targets::IN_TEXT)
            .expect("valid examples");
    }
    builder.build()
}
