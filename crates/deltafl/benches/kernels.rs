//! One training step and one block of evaluation of each model, on each instruction set beside the
//! reference.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use deltafl::data::WordVectors;
use deltafl::kernel::{Aligned, Isa, flush_denormals, square_product};
use deltafl::model::{Batch, ConvNet, Embedding, Gru, Inputs, Linear, Logistic, Lstm, Model, Step};
use deltafl::stream::{Purpose, Stream};

const VOCABULARY: u64 = 1000;

/// A model of the paper, and the shape of its data.
struct Case {
    name: &'static str,
    model: fn(Isa) -> Box<dyn Model>,
    batch: usize,
    /// Features, or symbols, per example.
    inputs: usize,
    /// Number of symbols; 0 for features.
    symbols: u64,
    classes: u64,
}

const CASES: [Case; 5] = [
    Case {
        name: "emnist-linear",
        model: |isa| Box::new(Linear::new(784, 62, isa)),
        batch: 10,
        inputs: 784,
        symbols: 0,
        classes: 62,
    },
    Case {
        name: "emnist-convnet",
        model: |isa| Box::new(ConvNet::new(28, [32, 64], 62, isa)),
        batch: 16,
        inputs: 784,
        symbols: 0,
        classes: 62,
    },
    Case {
        name: "sent140-linear",
        model: |isa| Box::new(Logistic::new(50, isa)),
        batch: 10,
        inputs: 50,
        symbols: 0,
        classes: 2,
    },
    Case {
        name: "sent140-lstm",
        model: |isa| Box::new(Lstm::new(word_vectors(), 20, 50, isa)),
        batch: 10,
        inputs: 20,
        symbols: VOCABULARY,
        classes: 2,
    },
    Case {
        name: "shakespeare-gru",
        model: |isa| Box::new(Gru::new(20, 53, Embedding::OneHot, 128, 53, isa)),
        batch: 16,
        inputs: 20,
        symbols: 53,
        classes: 53,
    },
];

fn word_vectors() -> WordVectors {
    let stream = &mut Stream::new(1, Purpose::Synthesis, 0, 0);
    let values: Vec<f32> = (0..VOCABULARY * 50).map(|_| stream.normal() as f32).collect();
    WordVectors { dim: 50, values: values.into() }
}

/// Examples drawn at random.
struct Examples {
    dense: Aligned,
    tokens: Vec<u32>,
    labels: Vec<u32>,
}

impl Examples {
    fn new(case: &Case, count: usize) -> Self {
        let stream = &mut Stream::new(1, Purpose::Synthesis, 0, 1);
        let (mut dense, mut tokens) = (Aligned::default(), Vec::new());
        if case.symbols == 0 {
            dense = Aligned::zeroed(count * case.inputs);
            dense.iter_mut().for_each(|x| *x = stream.uniform(-1.0, 1.0) as f32);
        } else {
            tokens = (0..count * case.inputs).map(|_| stream.below(case.symbols) as u32).collect();
        }
        let labels = (0..count).map(|_| stream.below(case.classes) as u32).collect();
        Self { dense, tokens, labels }
    }

    fn batch(&self) -> Batch<'_> {
        let inputs =
            if self.tokens.is_empty() { Inputs::Dense(&self.dense) } else { Inputs::Tokens(&self.tokens) };
        Batch { inputs, targets: (&self.labels).into() }
    }
}

fn models(c: &mut Criterion) {
    let _flush = flush_denormals();
    for case in &CASES {
        let (train, block) = (Examples::new(case, case.batch), Examples::new(case, 256));
        let mut group = c.benchmark_group(case.name);
        group.sample_size(20);
        for isa in Isa::available() {
            let model = (case.model)(isa);
            let mut params = vec![0.0; model.num_params()];
            model.init(&mut Stream::new(1, Purpose::Init, 0, 0), &mut params);
            let mut working = Aligned::zeroed(model.working_len());
            model.load(&params, &mut working);
            let scratch = model.step_scratch_len(case.batch).max(model.scratch_len(256));
            let mut scratch = Aligned::zeroed(scratch);
            group.throughput(Throughput::Elements(256));
            group.bench_function(BenchmarkId::new("evaluate", isa), |b| {
                b.iter(|| black_box(model.evaluate(&working, block.batch(), &mut scratch)));
            });
            group.throughput(Throughput::Elements(case.batch as u64));
            // A rate this small leaves the parameters, and with them the work, as they are.
            let step = Step { learning_rate: 1e-6, l2: 0.0, pull: None, key: 0 };
            group.bench_function(BenchmarkId::new("step", isa), |b| {
                b.iter(|| model.step(&mut working, train.batch(), step, &mut scratch));
            });
        }
        group.finish();
    }
}

fn product(c: &mut Criterion) {
    const SIDE: usize = 256;
    let mut group = c.benchmark_group("product");
    group.sample_size(20);
    group.throughput(Throughput::Elements(2 * (SIDE as u64).pow(3)));
    let (a, b) = (Aligned::zeroed(SIDE * SIDE), Aligned::zeroed(SIDE * SIDE));
    let mut out = Aligned::zeroed(SIDE * SIDE);
    for isa in Isa::available() {
        group.bench_function(BenchmarkId::new("square", isa), |bench| {
            bench.iter(|| square_product(isa, SIDE, &a, &b, black_box(&mut out)));
        });
    }
    group.finish();
}

criterion_group!(benches, models, product);
criterion_main!(benches);
