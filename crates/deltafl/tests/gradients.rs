//! The models of the paper, on every instruction set, against an independent f64 implementation
//! whose derivatives a tape computes, and the tape against central differences. `table` compares
//! every model of the table with central differences, so that a new model needs no change here.
#![allow(clippy::unwrap_used)]

#[path = "gradients/models.rs"]
mod models;
#[path = "gradients/stacks.rs"]
mod stacks;
#[path = "gradients/table.rs"]
mod table;
#[path = "gradients/tape.rs"]
mod tape;

use deltafl::data::WordVectors;
use deltafl::kernel::{Aligned, Isa};
use deltafl::model::{Batch, ConvNet, Embedding, Gru, Inputs, Linear, Logistic, Lstm, Model, Step};
use deltafl::stream::{Purpose, Stream};
use deltafl::task::ERRORS;
use models::{Example, Logits};
use tape::Tape;

/// A model beside its f64 twin, with a batch and parameters.
struct Pair {
    model: Box<dyn Fn(Isa) -> Box<dyn Model>>,
    twin: Logits,
    binary: bool,
    examples: Vec<Example>,
    labels: Vec<u32>,
    params: Vec<f32>,
}

impl Pair {
    fn new(
        model: impl Fn(Isa) -> Box<dyn Model> + 'static,
        twin: Logits,
        binary: bool,
        examples: Vec<Example>,
        classes: u64,
    ) -> Self {
        let stream = &mut Stream::new(3, Purpose::Synthesis, 0, 0);
        let labels = examples.iter().map(|_| stream.below(classes) as u32).collect();
        let params =
            (0..model(Isa::Reference).num_params()).map(|_| stream.uniform(-0.4, 0.4) as f32).collect();
        Self { model: Box::new(model), twin, binary, examples, labels, params }
    }

    /// Mean loss, errors and gradient, by the tape.
    fn truth(&self, params: &[f64]) -> (f64, u64, Vec<f64>) {
        let (mut loss, mut errors, mut gradient) = (0.0, 0, vec![0.0; params.len()]);
        let n = self.labels.len() as f64;
        for (example, &label) in self.examples.iter().zip(&self.labels) {
            let mut tape = Tape::default();
            let vars = tape.leaves(params);
            let mut logits = (self.twin)(&mut tape, &vars, example);
            if self.binary {
                logits.insert(0, tape.leaf(0.0));
            }
            let output = tape.cross_entropy(&logits, label as usize);
            loss += tape.value(output) / n;
            let best = tape.value(tape.max(&logits));
            errors += u64::from(tape.value(logits[label as usize]) < best);
            for (sum, slope) in gradient.iter_mut().zip(tape.gradient(output, &vars)) {
                *sum += slope / n;
            }
        }
        (loss, errors, gradient)
    }

    fn with_batch<T>(&self, use_batch: impl FnOnce(Batch<'_>) -> T) -> T {
        let (mut dense, mut tokens) = (Vec::new(), Vec::new());
        for example in &self.examples {
            match example {
                Example::Dense(values) => dense.extend(values.iter().map(|&x| x as f32)),
                Example::Tokens(ids) => tokens.extend(ids.iter().map(|&id| id as u32)),
            }
        }
        let inputs = if tokens.is_empty() { Inputs::Dense(&dense) } else { Inputs::Tokens(&tokens) };
        use_batch(Batch { inputs, targets: (&self.labels).into() })
    }

    /// Every instruction set gives the loss, the errors, the gradient and the step of the twin.
    fn check(&self, name: &str) {
        let wide: Vec<f64> = self.params.iter().map(|&w| f64::from(w)).collect();
        let (loss, errors, gradient) = self.truth(&wide);
        let largest = gradient.iter().fold(0.0, |a: f64, g| a.max(g.abs()));
        let tolerance = 2e-5 * largest.max(0.01);
        for isa in Isa::available() {
            let model = (self.model)(isa);
            let (got, got_gradient) = self.gradient(&*model);
            assert!((got - loss).abs() < 1e-5 * loss.max(1.0), "{name} {isa}: loss {got}, not {loss}");
            assert_close(&gradient, &got_gradient, tolerance, &format!("{name} {isa}: gradient"));

            let step = Step { learning_rate: 0.5, l2: 0.01, pull: None, key: 0 };
            let (stepped, score) = self.step_and_evaluate(&*model, step);
            assert_eq!(score.sums[ERRORS] as u64, errors, "{name} {isa}");
            assert!(
                (score.loss / self.labels.len() as f64 - loss).abs() < 1e-5 * loss.max(1.0),
                "{name} {isa}"
            );
            let expected: Vec<f64> =
                wide.iter().zip(&gradient).map(|(w, g)| w - 0.5 * (g + f64::from(step.l2) * w)).collect();
            assert_close(&expected, &stepped, tolerance + 1e-6, &format!("{name} {isa}: step"));
            self.check_proximal(
                &*model,
                &wide,
                &gradient,
                tolerance,
                &format!("{name} {isa}: proximal step"),
            );
        }
    }

    /// The step towards a centre c: w − γ(g + λw + μ(w − c)).
    fn check_proximal(&self, model: &dyn Model, wide: &[f64], gradient: &[f64], tolerance: f64, name: &str) {
        let centre: Vec<f32> =
            self.params.iter().enumerate().map(|(i, w)| 0.5 * w + (i % 5) as f32 * 0.01).collect();
        let mut working = Aligned::zeroed(model.working_len());
        model.load(&centre, &mut working);
        working.iter_mut().for_each(|c| *c *= 0.5 * 0.3);
        let step = Step { learning_rate: 0.5, l2: 0.01 + 0.3, pull: Some(&working), key: 0 };
        let (stepped, _) = self.step_and_evaluate(model, step);
        let step = |((w, g), c): ((&f64, &f64), &f32)| {
            w - 0.5 * (g + f64::from(0.01_f32) * w + f64::from(0.3_f32) * (w - f64::from(*c)))
        };
        let expected: Vec<f64> = wide.iter().zip(gradient).zip(&centre).map(step).collect();
        assert_close(&expected, &stepped, tolerance + 1e-6, name);
    }

    fn gradient(&self, model: &dyn Model) -> (f64, Vec<f32>) {
        let mut scratch = Aligned::zeroed(model.scratch_len(self.labels.len()));
        let mut gradient = vec![f32::NAN; model.num_params()];
        let loss = self.with_batch(|batch| model.gradient(&self.params, batch, &mut gradient, &mut scratch));
        (loss, gradient)
    }

    /// Scratch and working memory start as garbage, as they are when a thread goes from device to
    /// device.
    fn step_and_evaluate(&self, model: &dyn Model, step: Step<'_>) -> (Vec<f32>, deltafl::model::Score) {
        let batch = self.labels.len();
        let mut scratch = Aligned::zeroed(model.scratch_len(batch).max(model.step_scratch_len(batch)));
        let mut working = Aligned::zeroed(model.working_len());
        scratch.fill(7.0);
        working.fill(-7.0);
        model.load(&self.params, &mut working);
        let score = self.with_batch(|batch| model.evaluate(&working, batch, &mut scratch));
        self.with_batch(|batch| model.step(&mut working, batch, step, &mut scratch));
        let mut params = vec![f32::NAN; model.num_params()];
        model.store(&working, &mut params);
        (params, score)
    }

    /// The twin's gradient is the slope of its loss.
    fn check_twin(&self) {
        let params: Vec<f64> = self.params.iter().map(|&w| f64::from(w)).collect();
        let (_, _, gradient) = self.truth(&params);
        let stream = &mut Stream::new(5, Purpose::Synthesis, 0, 0);
        for _ in 0..20 {
            let i = stream.below(params.len() as u64) as usize;
            let shifted = |shift: f64| {
                let mut params = params.clone();
                params[i] += shift;
                self.truth(&params).0
            };
            let slope = (shifted(1e-5) - shifted(-1e-5)) / 2e-5;
            assert!((slope - gradient[i]).abs() < 1e-7, "parameter {i}: {slope}, not {}", gradient[i]);
        }
    }
}

fn assert_close(expected: &[f64], got: &[f32], tolerance: f64, what: &str) {
    assert_eq!(expected.len(), got.len());
    for (i, (a, &b)) in expected.iter().zip(got).enumerate() {
        assert!((a - f64::from(b)).abs() <= tolerance, "{what}: entry {i} is {b}, not {a} (± {tolerance})");
    }
}

fn dense(dim: usize, count: usize) -> Vec<Example> {
    let stream = &mut Stream::new(7, Purpose::Synthesis, 0, dim as u64);
    let mut row = || (0..dim).map(|_| f64::from(stream.normal() as f32)).collect();
    (0..count).map(|_| Example::Dense(row())).collect()
}

fn linear(inputs: usize, classes: usize, batch: usize) -> Pair {
    let model = move |isa| -> Box<dyn Model> { Box::new(Linear::new(inputs, classes, isa)) };
    Pair::new(model, models::linear(classes), false, dense(inputs, batch), classes as u64)
}

fn logistic(inputs: usize, batch: usize) -> Pair {
    let model = move |isa| -> Box<dyn Model> { Box::new(Logistic::new(inputs, isa)) };
    Pair::new(model, models::logistic(), true, dense(inputs, batch), 2)
}

fn linear_with_intercept(inputs: usize, classes: usize, batch: usize) -> Pair {
    let model = move |isa| -> Box<dyn Model> { Box::new(Linear::new(inputs, classes, isa).with_intercept()) };
    let twin = models::with_intercept(models::linear(classes));
    Pair::new(model, twin, false, dense(inputs, batch), classes as u64)
}

fn logistic_with_intercept(inputs: usize, batch: usize) -> Pair {
    let model = move |isa| -> Box<dyn Model> { Box::new(Logistic::new(inputs, isa).with_intercept()) };
    Pair::new(model, models::with_intercept(models::logistic()), true, dense(inputs, batch), 2)
}

fn conv_net(side: usize, channels: [usize; 2], classes: usize, batch: usize) -> Pair {
    let model = move |isa| -> Box<dyn Model> { Box::new(ConvNet::new(side, channels, classes, isa)) };
    let twin = models::conv_net(side, channels, classes);
    Pair::new(model, twin, false, dense(side * side, batch), classes as u64)
}

fn tokens(vocabulary: usize, len: usize, count: usize) -> Vec<Example> {
    let stream = &mut Stream::new(9, Purpose::Synthesis, 0, len as u64);
    let mut row = || (0..len).map(|_| stream.below(vocabulary as u64) as usize).collect();
    (0..count).map(|_| Example::Tokens(row())).collect()
}

fn lstm(dim: usize, len: usize, hidden: usize, batch: usize) -> Pair {
    let stream = &mut Stream::new(2, Purpose::Synthesis, 0, 0);
    let values: Vec<f32> =
        (0..11 * dim).map(|i| if i < dim { 0.0 } else { stream.normal() as f32 }).collect();
    let wide = values.iter().map(|&v| f64::from(v)).collect();
    let vectors = WordVectors { dim, values: values.into() };
    let model = move |isa| -> Box<dyn Model> { Box::new(Lstm::new(vectors.clone(), len, hidden, isa)) };
    Pair::new(model, models::lstm(wide, dim, hidden), true, tokens(11, len, batch), 2)
}

fn gru(alphabet: usize, embedding: usize, len: usize, hidden: usize, batch: usize) -> Pair {
    let classes = alphabet;
    let kind = if embedding == 0 { Embedding::OneHot } else { Embedding::Trained(embedding) };
    let model =
        move |isa| -> Box<dyn Model> { Box::new(Gru::new(len, alphabet, kind, hidden, classes, isa)) };
    let twin = models::gru(alphabet, embedding, hidden, classes);
    Pair::new(model, twin, false, tokens(alphabet, len, batch), classes as u64)
}

#[test]
fn linear_has_the_gradient_of_its_f64_twin() {
    for (inputs, classes, batch) in [(1, 2, 1), (7, 3, 5), (33, 62, 10), (20, 17, 13), (784, 62, 3)] {
        linear(inputs, classes, batch).check("linear");
    }
}

#[test]
fn logistic_has_the_gradient_of_its_f64_twin() {
    for (inputs, batch) in [(1, 1), (7, 3), (16, 10), (50, 10), (50, 37), (33, 16)] {
        logistic(inputs, batch).check("logistic");
    }
}

#[test]
fn an_intercept_has_the_gradient_of_a_feature_that_is_one() {
    for (inputs, classes, batch) in [(1, 2, 1), (7, 3, 5), (33, 62, 10), (20, 17, 13)] {
        linear_with_intercept(inputs, classes, batch).check("linear with intercept");
        logistic_with_intercept(inputs, batch).check("logistic with intercept");
    }
}

#[test]
fn conv_net_has_the_gradient_of_its_f64_twin() {
    for (side, channels, classes, batch) in
        [(16, [3, 5], 4, 3), (19, [17, 20], 7, 2), (22, [16, 16], 3, 1), (17, [2, 3], 5, 18)]
    {
        conv_net(side, channels, classes, batch).check("conv-net");
    }
}

#[test]
fn conv_net_of_the_paper_has_the_gradient_of_its_f64_twin() {
    conv_net(28, [32, 64], 62, 1).check("conv-net");
}

#[test]
fn lstm_has_the_gradient_of_its_f64_twin() {
    for (dim, len, hidden, batch) in
        [(1, 1, 1, 1), (3, 4, 5, 3), (9, 6, 17, 10), (50, 5, 50, 3), (4, 2, 8, 50)]
    {
        lstm(dim, len, hidden, batch).check("lstm");
    }
}

#[test]
fn gru_has_the_gradient_of_its_f64_twin() {
    for embedding in [0, 3, 8] {
        for (alphabet, len, hidden, batch) in
            [(2, 1, 1, 1), (5, 4, 7, 3), (19, 3, 24, 10), (7, 2, 8, 50), (53, 3, 40, 2)]
        {
            gru(alphabet, embedding, len, hidden, batch).check("gru");
        }
    }
}

#[test]
fn gru_of_the_paper_has_the_gradient_of_its_f64_twin() {
    gru(53, 0, 3, 128, 1).check("gru");
}

#[test]
fn the_twins_are_differentiated_correctly() {
    for pair in [
        linear(7, 3, 5),
        logistic(7, 3),
        conv_net(16, [2, 3], 4, 1),
        lstm(3, 4, 5, 2),
        gru(5, 0, 4, 6, 2),
        gru(5, 3, 4, 6, 2),
    ] {
        pair.check_twin();
    }
}

#[test]
fn the_models_have_the_parameters_of_the_paper() {
    let isa = Isa::detect();
    assert_eq!(Linear::new(784, 62, isa).num_params(), 48_608);
    assert_eq!(ConvNet::new(28, [32, 64], 62, isa).num_params(), 115_646);
    assert_eq!(Logistic::new(50, isa).num_params(), 50);
    let vectors = WordVectors { dim: 50, values: vec![0.0; 50].into() };
    assert_eq!(Lstm::new(vectors, 20, 50, isa).num_params(), 20_451);
    assert_eq!(Gru::new(20, 53, Embedding::OneHot, 128, 53, isa).num_params(), 77_109);
    assert_eq!(Gru::new(20, 53, Embedding::Trained(8), 128, 53, isa).num_params(), 60_253);
}
