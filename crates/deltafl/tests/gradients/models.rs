//! The five models once more, scalar by scalar in f64, straight from their formulas.

use super::tape::{Tape, Var};

/// One example's logits (one logit for the binary models).
pub(crate) type Logits = Box<dyn Fn(&mut Tape, &[Var], &Example) -> Vec<Var>>;

/// An input, as the federation holds it.
pub(crate) enum Example {
    Dense(Vec<f64>),
    Tokens(Vec<usize>),
}

impl Example {
    fn dense(&self) -> &[f64] {
        match self {
            Self::Dense(values) => values,
            Self::Tokens(_) => panic!("a dense example was expected"),
        }
    }

    fn tokens(&self) -> &[usize] {
        match self {
            Self::Tokens(tokens) => tokens,
            Self::Dense(_) => panic!("tokens were expected"),
        }
    }
}

/// Hands out consecutive parts of the parameters.
struct Cursor<'a>(&'a [Var]);

impl<'a> Cursor<'a> {
    fn take(&mut self, len: usize) -> &'a [Var] {
        let (part, rest) = self.0.split_at(len);
        self.0 = rest;
        part
    }
}

pub(crate) fn linear(classes: usize) -> Logits {
    Box::new(move |tape, params, example| {
        let x = tape.leaves(example.dense());
        let column = |c| params.iter().copied().skip(c).step_by(classes).collect::<Vec<_>>();
        (0..classes).map(|c| tape.dot(&x, &column(c))).collect()
    })
}

pub(crate) fn logistic() -> Logits {
    Box::new(|tape, params, example| {
        let x = tape.leaves(example.dense());
        vec![tape.dot(&x, params)]
    })
}

/// The same model over one feature more, which is always 1.
pub(crate) fn with_intercept(logits: Logits) -> Logits {
    Box::new(move |tape, params, example| {
        let mut x = example.dense().to_vec();
        x.push(1.0);
        logits(tape, params, &Example::Dense(x))
    })
}

/// A stack of square maps.
struct Maps {
    side: usize,
    maps: Vec<Vec<Var>>,
}

impl Maps {
    /// Convolution 5 × 5 without padding, bias, ReLU, max-pool 2/2.
    fn convolve(&self, tape: &mut Tape, filters: &[Var], bias: &[Var]) -> Self {
        let out = self.side - 4;
        let maps = bias.iter().zip(filters.chunks_exact(25 * self.maps.len())).map(|(&bias, filter)| {
            let mut map = Vec::new();
            for (y, x) in (0..out * out).map(|i| (i / out, i % out)) {
                let window = |map: &Vec<Var>| -> Vec<Var> {
                    (0..25).map(|t| map[(y + t / 5) * self.side + x + t % 5]).collect()
                };
                let inputs: Vec<Var> = self.maps.iter().flat_map(window).collect();
                let sum = tape.dot(&inputs, filter);
                let sum = tape.add(sum, bias);
                map.push(tape.relu(sum));
            }
            let half = out / 2;
            let cell = |i: usize| -> [Var; 4] {
                let at = 2 * (i / half) * out + 2 * (i % half);
                [map[at], map[at + 1], map[at + out], map[at + out + 1]]
            };
            (0..half * half).map(|i| tape.max(&cell(i))).collect()
        });
        let maps = maps.collect();
        Self { side: out / 2, maps }
    }
}

pub(crate) fn conv_net(side: usize, channels: [usize; 2], classes: usize) -> Logits {
    Box::new(move |tape, params, example| {
        let mut cursor = Cursor(params);
        let image = Maps { side, maps: vec![tape.leaves(example.dense())] };
        let (filters, bias) = (cursor.take(25 * channels[0]), cursor.take(channels[0]));
        let first = image.convolve(tape, filters, bias);
        let (filters, bias) = (cursor.take(25 * channels[0] * channels[1]), cursor.take(channels[1]));
        let second = first.convolve(tape, filters, bias);
        let features: Vec<Var> = second.maps.into_iter().flatten().collect();
        let full = cursor.take(classes * features.len());
        dense(tape, full, cursor.take(classes), &features)
    })
}

/// Wx + b, row by row.
fn dense(tape: &mut Tape, matrix: &[Var], bias: &[Var], x: &[Var]) -> Vec<Var> {
    bias.iter()
        .zip(matrix.chunks_exact(x.len()))
        .map(|(&b, row)| {
            let sum = tape.dot(row, x);
            tape.add(sum, b)
        })
        .collect()
}

pub(crate) fn lstm(vectors: Vec<f64>, dim: usize, hidden: usize) -> Logits {
    Box::new(move |tape, params, example| {
        let mut cursor = Cursor(params);
        let (w_ih, w_hh) = (cursor.take(4 * hidden * dim), cursor.take(4 * hidden * hidden));
        let (b_ih, b_hh) = (cursor.take(4 * hidden), cursor.take(4 * hidden));
        let (full, full_bias) = (cursor.take(hidden), cursor.take(1));
        let mut h = tape.leaves(&vec![0.0; hidden]);
        let mut c = h.clone();
        for &word in example.tokens() {
            let x = tape.leaves(&vectors[word * dim..(word + 1) * dim]);
            let (from_x, from_h) = (dense(tape, w_ih, b_ih, &x), dense(tape, w_hh, b_hh, &h));
            let z: Vec<Var> = from_x.iter().zip(&from_h).map(|(&a, &b)| tape.add(a, b)).collect();
            for u in 0..hidden {
                let (i, f) = (tape.sigmoid(z[u]), tape.sigmoid(z[hidden + u]));
                let (g, o) = (tape.tanh(z[2 * hidden + u]), tape.sigmoid(z[3 * hidden + u]));
                let (kept, new) = (tape.mul(f, c[u]), tape.mul(i, g));
                c[u] = tape.add(kept, new);
                let squashed = tape.tanh(c[u]);
                h[u] = tape.mul(o, squashed);
            }
        }
        dense(tape, full, full_bias, &h)
    })
}

/// `embedding` = 0 is one-hot input.
pub(crate) fn gru(alphabet: usize, embedding: usize, hidden: usize, classes: usize) -> Logits {
    Box::new(move |tape, params, example| {
        let mut cursor = Cursor(params);
        let table = cursor.take(alphabet * embedding);
        let inputs = if embedding == 0 { alphabet } else { embedding };
        let (w_ih, w_hh) = (cursor.take(3 * hidden * inputs), cursor.take(3 * hidden * hidden));
        let (b_ih, b_hh) = (cursor.take(3 * hidden), cursor.take(3 * hidden));
        let (full, full_bias) = (cursor.take(classes * hidden), cursor.take(classes));
        let mut h = tape.leaves(&vec![0.0; hidden]);
        for &symbol in example.tokens() {
            let x = if embedding == 0 {
                let one_hot: Vec<f64> = (0..alphabet).map(|s| if s == symbol { 1.0 } else { 0.0 }).collect();
                tape.leaves(&one_hot)
            } else {
                table[symbol * embedding..(symbol + 1) * embedding].to_vec()
            };
            let (from_x, from_h) = (dense(tape, w_ih, b_ih, &x), dense(tape, w_hh, b_hh, &h));
            let gates: Vec<Var> = from_x.iter().zip(&from_h).map(|(&a, &b)| tape.add(a, b)).collect();
            for u in 0..hidden {
                let (r, z) = (tape.sigmoid(gates[u]), tape.sigmoid(gates[hidden + u]));
                let reset = tape.mul(r, from_h[2 * hidden + u]);
                let n = tape.add(from_x[2 * hidden + u], reset);
                let n = tape.tanh(n);
                // (1 − z) n + z h = n + z (h − n)
                let minus = tape.scale(n, -1.0);
                let change = tape.add(h[u], minus);
                let kept = tape.mul(z, change);
                h[u] = tape.add(n, kept);
            }
        }
        dense(tape, full, full_bias, &h)
    })
}
