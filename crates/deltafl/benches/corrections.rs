//! What a term beside the gradient costs: a step of FedProx or of SCAFFOLD, which are one to a
//! model, over a step of SGD.
//!
//! Each figure is the least time of many short slices, taken in turn, so that a machine that is
//! busy with other things tells the same ratios as one that is not. The goal is 1.10 at most.

use std::time::{Duration, Instant};

use deltafl::data::WordVectors;
use deltafl::kernel::{Aligned, Isa, flush_denormals};
use deltafl::model::{
    Batch, ConvNet, Embedding, Gru, Inputs, Linear, Logistic, Lstm, Model, Perceptron, Step,
};
use deltafl::stream::{Purpose, Stream};

const BATCH: usize = 10;

/// A model of the paper's size, and the shape of its data.
struct Case {
    name: &'static str,
    model: Box<dyn Model>,
    /// Features, or symbols, per example.
    inputs: usize,
    /// Number of symbols; 0 for features.
    symbols: u64,
    classes: u64,
}

fn cases(isa: Isa) -> Vec<Case> {
    let case = |name, model, inputs, symbols, classes| Case { name, model, inputs, symbols, classes };
    let vectors = WordVectors { dim: 50, values: vec![0.1; 50 * 1000].into() };
    vec![
        case("linear", Box::new(Linear::new(784, 62, isa)), 784, 0, 62),
        case("logistic", Box::new(Logistic::new(50, isa)), 50, 0, 2),
        case("perceptron", Box::new(Perceptron::new(784, 128, 62)), 784, 0, 62),
        case("conv-net", Box::new(ConvNet::new(28, [32, 64], 62, isa)), 784, 0, 62),
        case("lstm", Box::new(Lstm::new(vectors, 25, 100, isa)), 25, 1000, 2),
        case("gru", Box::new(Gru::new(20, 80, Embedding::OneHot, 128, 80, isa)), 20, 80, 80),
    ]
}

fn main() {
    let _flush = flush_denormals();
    println!("{:<12} {:>10} {:>9}", "model", "SGD, µs", "with pull");
    for case in cases(Isa::detect()) {
        let [sgd, pulled] = times(&case).map(|time| time.as_secs_f64() * 1e6);
        println!("{:<12} {sgd:>10.2} {:>9.3}", case.name, pulled / sgd);
    }
}

/// The least time of a step of each kind.
fn times(case: &Case) -> [Duration; 2] {
    let (model, stream) = (&*case.model, &mut Stream::new(1, Purpose::Synthesis, 0, 0));
    let mut params = vec![0.0; model.num_params()];
    model.init(&mut Stream::new(1, Purpose::Init, 0, 0), &mut params);
    let mut working = Aligned::zeroed(model.working_len());
    model.load(&params, &mut working);
    let mut centre = Aligned::zeroed(model.working_len());
    centre.copy_from_slice(&working);
    let dense: Vec<f32> = (0..BATCH * case.inputs).map(|_| stream.uniform(-1.0, 1.0) as f32).collect();
    let tokens: Vec<u32> =
        (0..BATCH * case.inputs).map(|_| stream.below(case.symbols.max(1)) as u32).collect();
    let labels: Vec<u32> = (0..BATCH).map(|_| stream.below(case.classes) as u32).collect();
    let inputs = if case.symbols == 0 { Inputs::Dense(&dense) } else { Inputs::Tokens(&tokens) };
    let batch = Batch { inputs, targets: (&labels).into() };

    // A rate this small leaves the parameters, and with them the work, as they are.
    let sgd = Step { learning_rate: 1e-6, l2: 0.0, pull: None, key: 0 };
    centre.iter_mut().for_each(|c| *c *= 1e-8);
    let steps = [sgd, Step { l2: 0.01, pull: Some(&centre), ..sgd }];
    let mut scratch = Aligned::zeroed(model.step_scratch_len(BATCH));
    let mut slice = |step: Step<'_>, count: u32| {
        let start = Instant::now();
        (0..count).for_each(|_| model.step(&mut working, batch, step, &mut scratch));
        start.elapsed() / count
    };
    // Slices of about half a millisecond: most of them pass without an interruption.
    let once = slice(sgd, 20).max(Duration::from_nanos(10));
    let count = (Duration::from_micros(500).as_nanos() / once.as_nanos()).clamp(1, 10_000) as u32;
    let mut least = [Duration::MAX; 2];
    for _ in 0..400 {
        for (least, step) in least.iter_mut().zip(steps) {
            *least = (*least).min(slice(step, count));
        }
    }
    least
}
