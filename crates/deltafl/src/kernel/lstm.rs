//! The gates of an LSTM, unit by unit, forward and backward.
//!
//! ```text
//! i, f, o = σ(î), σ(f̂), σ(ô)    g = tanh(ĝ)    c' = f∘c + i∘g    h' = o∘tanh(c')
//!
//! dc' += dh'∘o∘(1 − tanh² c')
//! δi = dc'∘g∘i(1−i)   δf = dc'∘c∘f(1−f)   δg = dc'∘i∘(1−g²)   δo = dh'∘tanh(c')∘o(1−o)   dc = dc'∘f
//! ```

#![allow(unsafe_code, unsafe_op_in_unsafe_fn)]

use super::activation::{sigmoid, tanh};
use super::dispatch::entry;
use super::gru::sum;
use super::simd::Simd;

/// The layout of the rows of a time step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Units {
    /// The number of examples.
    pub(crate) batch: usize,
    /// Units of a gate, padded to a multiple of 8.
    pub(crate) units: usize,
    /// Floats of a row of gates: i, f, g and o, contiguously.
    pub(crate) gates: usize,
    /// Floats from one row of h to the next.
    pub(crate) outputs: usize,
    /// Floats from one row of cells to the next.
    pub(crate) cells: usize,
}

/// One time step of a batch, a row per example.
#[derive(Debug)]
pub(crate) struct Forward<'a> {
    /// In: the sums of the gates without bias. Out: i, f, g, o.
    pub(crate) gates: &'a mut [f32],
    pub(crate) bias: &'a [f32],
    pub(crate) before: &'a [f32],
    pub(crate) after: &'a mut [f32],
    /// Out: tanh(c').
    pub(crate) squashed: &'a mut [f32],
    /// Out: h'.
    pub(crate) output: &'a mut [f32],
}

/// One time step of a batch in the backward pass.
#[derive(Debug)]
pub(crate) struct Backward<'a> {
    /// In: i, f, g, o. Out: δi, δf, δg, δo.
    pub(crate) gates: &'a mut [f32],
    pub(crate) before: &'a [f32],
    pub(crate) squashed: &'a [f32],
    /// dh'.
    pub(crate) slope: &'a [f32],
    /// In: dc' from later steps. Out: dc.
    pub(crate) cell_slope: &'a mut [f32],
}

entry! {
    /// Computes the next state from the sums of the gates.
    pub(crate) fn forward(rows: Units, step: Forward<'_>) = forward_in_vectors, forward_reference
}

entry! {
    /// Computes the slopes of the gates from the slope of the next state.
    pub(crate) fn backward(rows: Units, step: Backward<'_>) = backward_in_vectors, backward_reference
}

fn forward_reference(rows: Units, step: Forward<'_>) {
    let units = rows.units;
    let logistic = |x: f32| 1.0 / (1.0 + (-x).exp());
    for e in 0..rows.batch {
        let row = &mut step.gates[e * rows.gates..][..4 * units];
        for u in 0..units {
            let sum = |gate: usize| row[gate * units + u] + step.bias[gate * units + u];
            let (i, f, g, o) = (logistic(sum(0)), logistic(sum(1)), sum(2).tanh(), logistic(sum(3)));
            let cell = f * step.before[e * rows.cells + u] + i * g;
            (row[u], row[units + u], row[2 * units + u], row[3 * units + u]) = (i, f, g, o);
            step.after[e * rows.cells + u] = cell;
            step.squashed[e * rows.cells + u] = cell.tanh();
            step.output[e * rows.outputs + u] = o * cell.tanh();
        }
    }
}

fn backward_reference(rows: Units, step: Backward<'_>) {
    let units = rows.units;
    for e in 0..rows.batch {
        let row = &mut step.gates[e * rows.gates..][..4 * units];
        for u in 0..units {
            let at = e * rows.cells + u;
            let (i, f, g, o) = (row[u], row[units + u], row[2 * units + u], row[3 * units + u]);
            let (squashed, slope) = (step.squashed[at], step.slope[at]);
            let cell_slope = step.cell_slope[at] + slope * o * (1.0 - squashed * squashed);
            row[u] = cell_slope * g * i * (1.0 - i);
            row[units + u] = cell_slope * step.before[at] * f * (1.0 - f);
            row[2 * units + u] = cell_slope * i * (1.0 - g * g);
            row[3 * units + u] = slope * squashed * o * (1.0 - o);
            step.cell_slope[at] = cell_slope * f;
        }
    }
}

#[inline(always)]
unsafe fn forward_in_vectors<S: Simd>(_: S, rows: Units, step: Forward<'_>) {
    let Units { batch, units, gates, outputs, cells } = rows;
    assert!(4 * units <= gates && units <= cells && step.gates.len() >= batch * gates);
    assert!(step.before.len().min(step.after.len()).min(step.squashed.len()) >= batch * cells);
    assert!(step.bias.len() >= 4 * units);
    assert!(batch == 0 || step.output.len() >= (batch - 1) * outputs + units);
    for e in 0..batch {
        let row = step.gates.as_mut_ptr().add(e * gates);
        for u in (0..units).step_by(S::LANES) {
            let (at, lanes) = (e * cells + u, units - u);
            let (bias, row) = (step.bias.as_ptr().add(u), row.add(u));
            let i = sigmoid::<S>(sum::<S>(row, bias, lanes));
            let f = sigmoid::<S>(sum::<S>(row.add(units), bias.add(units), lanes));
            let g = tanh::<S>(sum::<S>(row.add(2 * units), bias.add(2 * units), lanes));
            let o = sigmoid::<S>(sum::<S>(row.add(3 * units), bias.add(3 * units), lanes));
            let cell = S::fma(f, S::load_first(step.before.as_ptr().add(at), lanes), S::mul(i, g));
            let squashed = tanh::<S>(cell);
            for (gate, value) in [i, f, g, o].into_iter().enumerate() {
                S::store_first(row.add(gate * units), value, lanes);
            }
            S::store_first(step.after.as_mut_ptr().add(at), cell, lanes);
            S::store_first(step.squashed.as_mut_ptr().add(at), squashed, lanes);
            S::store_first(step.output.as_mut_ptr().add(e * outputs + u), S::mul(o, squashed), lanes);
        }
    }
}

#[inline(always)]
unsafe fn backward_in_vectors<S: Simd>(_: S, rows: Units, step: Backward<'_>) {
    let Units { batch, units, gates, cells, .. } = rows;
    assert!(4 * units <= gates && units <= cells && step.gates.len() >= batch * gates);
    assert!(step.before.len().min(step.squashed.len()) >= batch * cells);
    assert!(step.slope.len().min(step.cell_slope.len()) >= batch * cells);
    let one = S::splat(1.0);
    for e in 0..batch {
        let row = step.gates.as_mut_ptr().add(e * gates);
        for u in (0..units).step_by(S::LANES) {
            let (at, lanes) = (e * cells + u, units - u);
            let (i, f) = (S::load_first(row.add(u), lanes), S::load_first(row.add(units + u), lanes));
            let g = S::load_first(row.add(2 * units + u), lanes);
            let o = S::load_first(row.add(3 * units + u), lanes);
            let squashed = S::load_first(step.squashed.as_ptr().add(at), lanes);
            let out = S::mul(S::load_first(step.slope.as_ptr().add(at), lanes), o);
            let later = S::load_first(step.cell_slope.as_ptr().add(at), lanes);
            let slope = S::fma(out, S::fnma(squashed, squashed, one), later);
            let (into, kept) = (S::mul(slope, i), S::mul(slope, f));
            let before = S::load_first(step.before.as_ptr().add(at), lanes);
            let slopes = [
                S::mul(S::mul(into, g), S::sub(one, i)),
                S::mul(S::mul(kept, before), S::sub(one, f)),
                S::mul(into, S::fnma(g, g, one)),
                S::mul(S::mul(out, squashed), S::sub(one, o)),
            ];
            for (gate, value) in slopes.into_iter().enumerate() {
                S::store_first(row.add(gate * units + u), value, lanes);
            }
            S::store_first(step.cell_slope.as_mut_ptr().add(at), kept, lanes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{Granted, Isa};
    use crate::stream::{Purpose, Stream};

    #[test]
    fn every_instruction_set_agrees_with_the_reference_at_odd_sizes() {
        for (batch, units) in [(1, 8usize), (3, 24), (5, 56), (2, 128)] {
            let cells = units.next_multiple_of(16);
            let rows =
                Units { batch, units, gates: (4 * units).next_multiple_of(16), outputs: units + 5, cells };
            let run = |isa| {
                let stream = &mut Stream::new(1, Purpose::Synthesis, 0, units as u64);
                let mut random = |len| -> Vec<f32> { (0..len).map(|_| stream.normal() as f32).collect() };
                let (mut gates, before) = (random(batch * rows.gates), random(batch * cells));
                let bias = random(rows.gates);
                let (slope, mut cell_slope) = (random(batch * cells), random(batch * cells));
                let (mut after, mut squashed) = (vec![0.0; batch * cells], vec![0.0; batch * cells]);
                let mut output = vec![0.0; batch * rows.outputs];
                let kernel = Granted::new(isa);
                let step = Forward {
                    gates: &mut gates,
                    bias: &bias,
                    before: &before,
                    after: &mut after,
                    squashed: &mut squashed,
                    output: &mut output,
                };
                forward(kernel, rows, step);
                let step = Backward {
                    gates: &mut gates,
                    before: &before,
                    squashed: &squashed,
                    slope: &slope,
                    cell_slope: &mut cell_slope,
                };
                backward(kernel, rows, step);
                [gates, after, squashed, output, cell_slope].concat()
            };
            let expected = run(Isa::Reference);
            for isa in Isa::available() {
                let worst = expected.iter().zip(run(isa)).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(worst < 2e-6, "{isa}, {batch} × {units}: off by {worst}");
            }
        }
    }
}
