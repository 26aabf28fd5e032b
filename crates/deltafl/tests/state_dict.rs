//! Named tensors: a plain forward pass over a state dict, written after PyTorch's documentation of
//! its layers, has the loss of our models.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;

use deltafl::data::WordVectors;
use deltafl::kernel::{Aligned, Isa};
use deltafl::model::{
    Batch, ConvNet, Embedding, Gru, Inputs, InvalidState, Linear, Logistic, Lstm, Model, NamedTensor,
    Regression, from_state_dict, state_dict,
};
use deltafl::stream::{Purpose, Stream};
use deltafl::task::{RegressionLoss, Targets};

/// A state dict by name.
struct State(HashMap<String, NamedTensor>);

impl State {
    fn new(model: &dyn Model, params: &[f32]) -> Self {
        let state = state_dict(model, params);
        assert_eq!(from_state_dict(model, &state).unwrap(), params);
        let mut shuffled = state.clone();
        shuffled.reverse();
        assert_eq!(from_state_dict(model, &shuffled).unwrap(), params);
        Self(state.into_iter().map(|tensor| (tensor.name.clone(), tensor)).collect())
    }

    fn tensor(&self, name: &str) -> &NamedTensor {
        &self.0[name]
    }

    /// The entries of a vector.
    fn vector(&self, name: &str) -> Vec<f64> {
        self.tensor(name).values.iter().map(|&x| x.into()).collect()
    }

    /// y = x Aᵀ (+ b), torch.nn.Linear.
    fn linear(&self, weight: &str, bias: &str, x: &[f64]) -> Vec<f64> {
        let matrix = self.tensor(weight);
        let [rows, columns] = matrix.shape[..] else { panic!("{weight} is a matrix") };
        assert_eq!(columns, x.len(), "{weight}");
        let bias = self.0.get(bias).map(|bias| bias.values.clone()).unwrap_or(vec![0.0; rows]);
        let row = |r: usize| &matrix.values[r * columns..(r + 1) * columns];
        let dot = |r: usize| row(r).iter().zip(x).map(|(&w, x)| f64::from(w) * x).sum::<f64>();
        (0..rows).map(|r| dot(r) + f64::from(bias[r])).collect()
    }

    /// torch.nn.Conv2d without padding, then ReLU and max-pooling by 2: maps of `side`, channel by
    /// channel.
    fn conv_pool(&self, layer: &str, maps: &[Vec<f64>], side: usize) -> (Vec<Vec<f64>>, usize) {
        let weight = self.tensor(&format!("{layer}.weight"));
        let bias = self.vector(&format!("{layer}.bias"));
        let [out, channels, 5, 5] = weight.shape[..] else { panic!("filters of 5 × 5") };
        assert_eq!(channels, maps.len());
        let (wide, pooled) = (side - 4, (side - 4) / 2);
        let at = |o: usize, c: usize, i: usize, j: usize| {
            f64::from(weight.values[((o * channels + c) * 5 + i) * 5 + j])
        };
        let value = |o: usize, y: usize, x: usize| {
            let mut sum = bias[o];
            for (c, map) in maps.iter().enumerate() {
                for i in 0..5 {
                    for j in 0..5 {
                        sum += at(o, c, i, j) * map[(y + i) * side + x + j];
                    }
                }
            }
            sum.max(0.0)
        };
        assert!(pooled <= wide / 2);
        let pool = |o: usize, y: usize, x: usize| {
            let corners = [(0, 0), (0, 1), (1, 0), (1, 1)];
            corners.iter().map(|(i, j)| value(o, 2 * y + i, 2 * x + j)).fold(f64::NEG_INFINITY, f64::max)
        };
        let map = |o: usize| (0..pooled * pooled).map(|p| pool(o, p / pooled, p % pooled)).collect();
        ((0..out).map(map).collect(), pooled)
    }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn cross_entropy(logits: &[f64], label: u32) -> f64 {
    let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    logits.iter().map(|z| (z - most).exp()).sum::<f64>().ln() + most - logits[label as usize]
}

fn logistic_loss(logit: f64, label: u32) -> f64 {
    cross_entropy(&[0.0, logit], label)
}

fn normals(count: usize, key: u64) -> Vec<f32> {
    let stream = &mut Stream::new(17, Purpose::Synthesis, 0, key);
    (0..count).map(|_| 0.3 * stream.normal() as f32).collect()
}

/// The loss of one example by the model, and its parameters.
fn ours(model: &dyn Model, inputs: Inputs<'_>, targets: Targets<'_>) -> (f64, Vec<f32>) {
    let params = normals(model.num_params(), 5);
    let mut working = Aligned::zeroed(model.working_len());
    model.load(&params, &mut working);
    let mut scratch = Aligned::zeroed(model.scratch_len(1));
    (model.evaluate(&working, Batch { inputs, targets }, &mut scratch).loss, params)
}

fn assert_near(a: f64, b: f64) {
    assert!((a - b).abs() < 1e-4 * a.abs().max(1.0), "{a} and {b}");
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&x| x.into()).collect()
}

#[test]
fn linear_models_are_a_full_layer() {
    let x = normals(7, 1);
    for intercept in [false, true] {
        let linear = Linear::new(7, 4, Isa::detect());
        let linear = if intercept { linear.with_intercept() } else { linear };
        let (loss, params) = ours(&linear, Inputs::Dense(&x), Targets::Classes(&[2]));
        let logits = State::new(&linear, &params).linear("fc.weight", "fc.bias", &wide(&x));
        assert_near(loss, cross_entropy(&logits, 2));

        let logistic = Logistic::new(7, Isa::detect());
        let logistic = if intercept { logistic.with_intercept() } else { logistic };
        let (loss, params) = ours(&logistic, Inputs::Dense(&x), Targets::Classes(&[1]));
        let logit = State::new(&logistic, &params).linear("fc.weight", "fc.bias", &wide(&x));
        assert_near(loss, logistic_loss(logit[0], 1));

        let regression = Regression::new(7, RegressionLoss::Squared, intercept, Isa::detect());
        let (loss, params) = ours(&regression, Inputs::Dense(&x), Targets::Values(&[0.25]));
        let y = State::new(&regression, &params).linear("fc.weight", "fc.bias", &wide(&x));
        assert_near(loss, 0.5 * (y[0] - 0.25).powi(2));
    }
}

#[test]
fn the_convolutional_network_is_two_convolutions_and_a_full_layer() {
    let model = ConvNet::new(16, [3, 4], 5, Isa::detect());
    let x = normals(256, 2);
    let (loss, params) = ours(&model, Inputs::Dense(&x), Targets::Classes(&[3]));
    let state = State::new(&model, &params);
    let (maps, side) = state.conv_pool("conv1", &[wide(&x)], 16);
    let (maps, _) = state.conv_pool("conv2", &maps, side);
    let logits = state.linear("fc.weight", "fc.bias", &maps.concat());
    assert_near(loss, cross_entropy(&logits, 3));
}

#[test]
fn the_lstm_is_torchs_lstm() {
    let (dim, len, hidden) = (3, 4, 5);
    let vectors = normals(6 * dim, 3);
    let model = Lstm::new(WordVectors { dim, values: vectors.clone().into() }, len, hidden, Isa::detect());
    let words = [1, 5, 0, 2];
    let (loss, params) = ours(&model, Inputs::Tokens(&words), Targets::Classes(&[0]));
    let state = State::new(&model, &params);
    let (mut h, mut c) = (vec![0.0; hidden], vec![0.0; hidden]);
    for word in words.map(|word| word as usize) {
        let x = wide(&vectors[word * dim..(word + 1) * dim]);
        let input = state.linear("lstm.weight_ih_l0", "lstm.bias_ih_l0", &x);
        let recurrent = state.linear("lstm.weight_hh_l0", "lstm.bias_hh_l0", &h);
        let gate = |g: usize, k: usize| input[g * hidden + k] + recurrent[g * hidden + k];
        for k in 0..hidden {
            let [i, f, o] = [0, 1, 3].map(|g| sigmoid(gate(g, k)));
            c[k] = f * c[k] + i * gate(2, k).tanh();
            h[k] = o * c[k].tanh();
        }
    }
    assert_near(loss, logistic_loss(state.linear("fc.weight", "fc.bias", &h)[0], 0));
}

#[test]
fn the_gru_is_torchs_gru() {
    let (alphabet, len, hidden) = (6, 4, 5);
    for embedding in [Embedding::OneHot, Embedding::Trained(3)] {
        let model = Gru::new(len, alphabet, embedding, hidden, alphabet, Isa::detect());
        let symbols = [1, 5, 0, 2];
        let (loss, params) = ours(&model, Inputs::Tokens(&symbols), Targets::Classes(&[4]));
        let state = State::new(&model, &params);
        let mut h = vec![0.0; hidden];
        for symbol in symbols.map(|symbol| symbol as usize) {
            let x = match embedding {
                Embedding::OneHot => (0..alphabet).map(|a| f64::from(u8::from(a == symbol))).collect(),
                Embedding::Trained(dim) => {
                    wide(&state.tensor("embedding.weight").values[symbol * dim..(symbol + 1) * dim])
                }
                other => panic!("no reference for {other:?}"),
            };
            let input = state.linear("gru.weight_ih_l0", "gru.bias_ih_l0", &x);
            let recurrent = state.linear("gru.weight_hh_l0", "gru.bias_hh_l0", &h);
            for k in 0..hidden {
                let [r, z] = [0, 1].map(|g| sigmoid(input[g * hidden + k] + recurrent[g * hidden + k]));
                let n = (input[2 * hidden + k] + r * recurrent[2 * hidden + k]).tanh();
                h[k] = (1.0 - z) * n + z * h[k];
            }
        }
        assert_near(loss, cross_entropy(&state.linear("fc.weight", "fc.bias", &h), 4));
    }
}

#[test]
fn tensors_of_another_model_are_refused() {
    let model = Linear::new(2, 3, Isa::detect()).with_intercept();
    let state = state_dict(&model, &normals(9, 1));
    let refused = |state: &[NamedTensor]| from_state_dict(&model, state).unwrap_err();
    assert_eq!(refused(&state[..1]), InvalidState::Missing { name: "fc.bias".into() });
    let mut wrong = state.clone();
    wrong[0].shape = vec![2, 3];
    let shape = InvalidState::Shape { name: "fc.weight".into(), expected: vec![3, 2], got: vec![2, 3] };
    assert_eq!(refused(&wrong), shape);
    let mut more = state;
    more.push(NamedTensor { name: "fc2.bias".into(), shape: vec![1], values: vec![0.0] });
    assert_eq!(refused(&more), InvalidState::Unknown { name: "fc2.bias".into() });
}
