//! Time per round on one rank and on two, the overhead of the exchange, and its collectives.
//!
//! `cargo bench -p deltafl-mpi` starts this program again under `mpirun`; `-- conv-net` runs one
//! case. It wants idle cores: a rank that waits does so on a core of its own. The least of several
//! rounds is shown, and the median.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::time::Instant;

use deltafl::algorithm::{Tail, Track};
use deltafl::compute::Threads;
use deltafl::data::synthetic::{Glyphs, Spec};
use deltafl::data::{DeviceExamples, Federation, FederationBuilder, InputKind, Split};
use deltafl::kernel::Isa;
use deltafl::model::{Batch, CONV_NET, Model, ModelSpec, Score};
use deltafl::stream::Stream;
use deltafl::trainer::Sgd;
use deltafl::training::{Event, Plan, train};
use deltafl_mpi::World;
use mpi::collective::SystemOperation;
use mpi::topology::SimpleCommunicator;
use mpi::traits::CommunicatorCollectives;

#[path = "../tests/ranks/mpirun.rs"]
mod mpirun;

/// Cases, each with the numbers of ranks to compare.
const CASES: [(&str, &[usize]); 4] =
    [("all-reduce", &[2, 4]), ("null", &[1, 2, 4]), ("linear", &[1, 2]), ("conv-net", &[1, 2])];

/// Integers per sum: few numbers, the linear model and the ConvNet of EMNIST, and models of 1.2 and
/// 6.4 million parameters.
const LENGTHS: [usize; 5] = [3, 48_611, 115_649, 1_200_003, 6_400_003];

fn main() {
    match std::env::var("JOB") {
        Ok(case) => rank(&case),
        Err(_) => start(),
    }
}

fn start() {
    if !mpirun::Mpirun::is_installed() {
        return;
    }
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    for (case, sizes) in CASES {
        if !wanted.is_empty() && !wanted.iter().any(|wanted| wanted == case) {
            continue;
        }
        for &ranks in sizes {
            let output = mpirun::Mpirun { arguments: &[] }.run(ranks, &[("JOB", case)]);
            print!("{}", String::from_utf8_lossy(&output.stdout));
            if !output.status.success() {
                eprint!("{}", String::from_utf8_lossy(&output.stderr));
            }
        }
    }
}

fn rank(case: &str) {
    let world = World::init().expect("started by mpirun");
    match case {
        "all-reduce" => LENGTHS.into_iter().for_each(|len| all_reduce(&world, len)),
        "null" => rounds(&world, case, &dots(400), &Null, 400),
        "linear" => build_and_run(&world, case, &ModelSpec::LINEAR, 12),
        _ => build_and_run(&world, case, &CONV_NET.spec(), 3),
    }
}

/// Writers like those of EMNIST.
fn glyphs(devices: u32) -> Federation {
    let spec: Glyphs = toml::from_str(&format!("devices = {devices}\nseed = 1")).expect("a valid spec");
    Spec::Glyphs(spec).build()
}

/// Devices with one number each: nothing to read.
fn dots(devices: u32) -> Federation {
    let mut builder = FederationBuilder::new("dots", InputKind::Dense { dim: 1 }, 2);
    for k in 0..devices {
        let pushed = builder.push(&k.to_string(), Split::Train, DeviceExamples::Dense(&[1.0]), &[0]);
        pushed.expect("a valid device");
    }
    builder.build()
}

fn build_and_run(world: &World, case: &str, spec: &ModelSpec, times: u64) {
    let federation = glyphs(240);
    let model = spec.build(&federation, Isa::detect()).expect("the model fits glyphs");
    rounds(world, case, &federation, &*model, times);
}

/// The blocking all-reduce, and the non-blocking one of the exchange. Rank 0 prints the least and
/// the median time of each.
fn all_reduce(world: &World, len: usize) {
    let values = vec![world.rank() as u64; len];
    let mut sum = vec![0u64; len];
    let communicator = SimpleCommunicator::world();
    let mut times = [const { Vec::new() }; 2];
    let repetitions = if len < 2_000_000 { 40 } else { 12 };
    for _ in 0..repetitions {
        communicator.barrier();
        let since = Instant::now();
        communicator.all_reduce_into(&values[..], &mut sum[..], SystemOperation::sum());
        times[0].push(1e3 * since.elapsed().as_secs_f64());

        communicator.barrier();
        let since = Instant::now();
        mpi::request::scope(|scope| {
            let operation = SystemOperation::sum();
            let reduction =
                communicator.immediate_all_reduce_into(scope, &values[..], &mut sum[..], operation);
            reduction.wait_without_status();
        });
        times[1].push(1e3 * since.elapsed().as_secs_f64());
    }
    if world.is_root() {
        let [blocking, non_blocking] = times.map(|mut times| {
            times.sort_by(f64::total_cmp);
            format!("{:.3} ms (median {:.3})", times[0], times[times.len() / 2])
        });
        println!(
            "all-reduce of {len} u64, {} ranks: blocking {blocking}, non-blocking {non_blocking}",
            world.size()
        );
    }
}

/// Rounds of FedAvg and of Δ-FL at θ = 0.5, cohort 100, one thread per rank.
fn rounds(world: &World, case: &str, federation: &Federation, model: &dyn Model, times: u64) {
    let theta = 0.5.try_into().expect("a conformity level");
    let plan = Plan::builder().rounds(times).cohort(100).batch(16).evaluate_every(u64::MAX);
    let plan = plan.track(Track::fed_avg()).track(Tail::new(theta)).build().expect("a valid plan");
    let trainer = Sgd::new(model);
    let compute = Threads::new(&trainer, federation, Some(NonZeroUsize::MIN)).expect("a thread");
    let mut exchange = world.exchange(compute, federation).expect("there are train devices");
    let mut state = plan.start(1, &trainer);
    // Wall-clock time of each round but the first, which warms caches and memory.
    let (mut since, mut laps) = (None::<Instant>, Vec::new());
    let stopwatch = |event: Event<'_>| {
        if let Event::RoundFinished { .. } = event {
            laps.extend(since.map(|since| since.elapsed().as_secs_f64()));
            since = Some(Instant::now());
        }
        Ok(ControlFlow::Continue(()))
    };
    train(&mut exchange, &plan, &mut state, &mut world.observe(Some(stopwatch)))
        .expect("the run can be trained");

    let throughput = world.throughput(&exchange);
    if world.is_root() {
        laps.sort_by(f64::total_cmp);
        let (least, median) = (1e3 * laps[0], 1e3 * laps[laps.len() / 2]);
        println!("{case}, {} ranks: per round least {least:.2} ms, median {median:.2} ms", world.size());
        print!("{}", throughput.expect("rank 0 has the table"));
    }
}

/// A model that computes nothing.
struct Null;

impl Model for Null {
    fn num_params(&self) -> usize {
        1
    }

    fn init(&self, _: &mut Stream, params: &mut [f32]) {
        params.fill(0.0);
    }

    fn scratch_len(&self, _: usize) -> usize {
        0
    }

    fn gradient(&self, _: &[f32], _: Batch<'_>, gradient: &mut [f32], _: &mut [f32]) -> f64 {
        gradient.fill(0.0);
        0.0
    }

    fn evaluate(&self, _: &[f32], _: Batch<'_>, _: &mut [f32]) -> Score {
        Score::default()
    }
}
