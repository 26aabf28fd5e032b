//! The gates of a GRU, unit by unit, forward and back (spec §4).
//!
//! ```text
//! r = σ(r̂)   z = σ(ẑ)   n = tanh(x̂ + r∘ĥ)   h' = n + z∘(h − n)
//!
//! δz = dh'∘(h − n)∘z(1−z)    δn = dh'∘(1−z)(1−n²)    δr = δn∘ĥ∘r(1−r)    δĥ = δn∘r    dh = dh'∘z + …
//! ```
//!
//! ĥ = W_hn h + b_hn and a part of r̂ and ẑ come from the recurrent product, x̂ = W_in x + b_in and the rest of r̂ and
//! ẑ from a table with a row per symbol. What is left of dh, through the recurrent product, is a product again.

#![allow(unsafe_code, unsafe_op_in_unsafe_fn)]

use super::activation::{sigmoid, tanh};
use super::dispatch::entry;
use super::simd::Simd;

/// How the rows of a time step lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Units {
    /// Examples.
    pub(crate) batch: usize,
    /// Units of a gate, padded to a multiple of 8.
    pub(crate) units: usize,
    /// Floats of a row of gates: r, z and ĥ, one after the other.
    pub(crate) gates: usize,
    /// Floats of a row of states.
    pub(crate) states: usize,
}

/// One time step of a batch, a row per example.
#[derive(Debug)]
pub(crate) struct Forward<'a> {
    /// In: W_hh h. Out: r, z, ĥ.
    pub(crate) gates: &'a mut [f32],
    /// Out: n.
    pub(crate) inner: &'a mut [f32],
    pub(crate) before: &'a [f32],
    pub(crate) after: &'a mut [f32],
    /// What a symbol adds to r̂ and ẑ, and x̂: a row per symbol.
    pub(crate) table: &'a [f32],
    /// b_hn.
    pub(crate) bias: &'a [f32],
    /// The symbol of the first example; that of the next lies `length` further.
    pub(crate) symbols: &'a [u32],
    pub(crate) length: usize,
}

/// One time step of a batch, on the way back.
#[derive(Debug)]
pub(crate) struct Backward<'a> {
    /// In: r, z, ĥ. Out: δr, δz, δĥ.
    pub(crate) gates: &'a mut [f32],
    /// In: n. Out: δn.
    pub(crate) inner: &'a mut [f32],
    pub(crate) before: &'a [f32],
    /// In: dh'. Out: dh'∘z.
    pub(crate) slope: &'a mut [f32],
}

entry! {
    /// From the sums of the gates to the next state.
    pub(crate) fn forward(rows: Units, step: Forward<'_>) = forward_in_vectors, forward_reference
}

entry! {
    /// From the slope of the next state to those of the gates.
    pub(crate) fn backward(rows: Units, step: Backward<'_>) = backward_in_vectors, backward_reference
}

fn forward_reference(rows: Units, step: Forward<'_>) {
    let Units { batch, units, gates, states } = rows;
    for (i, &symbol) in step.symbols.iter().step_by(step.length).take(batch).enumerate() {
        let row = &mut step.gates[i * gates..][..3 * units];
        let input = &step.table[symbol as usize * gates..][..3 * units];
        for u in 0..units {
            let logistic = |x: f32| 1.0 / (1.0 + (-x).exp());
            row[u] = logistic(row[u] + input[u]);
            row[units + u] = logistic(row[units + u] + input[units + u]);
            row[2 * units + u] += step.bias[u];
            let n = (input[2 * units + u] + row[u] * row[2 * units + u]).tanh();
            step.inner[i * states + u] = n;
            step.after[i * states + u] = n + row[units + u] * (step.before[i * states + u] - n);
        }
    }
}

fn backward_reference(rows: Units, step: Backward<'_>) {
    let Units { batch, units, gates, states } = rows;
    for (i, row) in step.gates.chunks_exact_mut(gates).take(batch).enumerate() {
        for u in 0..units {
            let at = i * states + u;
            let (r, z, h) = (row[u], row[units + u], row[2 * units + u]);
            let (n, slope) = (step.inner[at], step.slope[at]);
            let through = slope * (1.0 - z) * (1.0 - n * n);
            row[u] = through * h * r * (1.0 - r);
            row[units + u] = slope * (step.before[at] - n) * z * (1.0 - z);
            row[2 * units + u] = through * r;
            step.inner[at] = through;
            step.slope[at] = slope * z;
        }
    }
}

#[inline(always)]
unsafe fn forward_in_vectors<S: Simd>(_: S, rows: Units, step: Forward<'_>) {
    let Units { batch, units, gates, states } = rows;
    assert!(3 * units <= gates && units <= states && step.gates.len() >= batch * gates);
    assert!(step.inner.len().min(step.before.len()).min(step.after.len()) >= batch * states);
    assert!(step.bias.len() >= units);
    let symbols = step.table.len() / gates;
    for (i, &symbol) in step.symbols.iter().step_by(step.length).take(batch).enumerate() {
        assert!((symbol as usize) < symbols, "a symbol is not in the table");
        let row = step.gates.as_mut_ptr().add(i * gates);
        let input = step.table.as_ptr().add(symbol as usize * gates);
        for u in (0..units).step_by(S::LANES) {
            let (at, lanes) = (i * states + u, units - u);
            let r = sigmoid::<S>(sum::<S>(row.add(u), input.add(u), lanes));
            let z = sigmoid::<S>(sum::<S>(row.add(units + u), input.add(units + u), lanes));
            let h = sum::<S>(row.add(2 * units + u), step.bias.as_ptr().add(u), lanes);
            let n = tanh::<S>(S::fma(r, h, S::load_first(input.add(2 * units + u), lanes)));
            let before = S::load_first(step.before.as_ptr().add(at), lanes);
            S::store_first(row.add(u), r, lanes);
            S::store_first(row.add(units + u), z, lanes);
            S::store_first(row.add(2 * units + u), h, lanes);
            S::store_first(step.inner.as_mut_ptr().add(at), n, lanes);
            S::store_first(step.after.as_mut_ptr().add(at), S::fma(z, S::sub(before, n), n), lanes);
        }
    }
}

/// The sum of two vectors in memory.
#[inline(always)]
pub(super) unsafe fn sum<S: Simd>(a: *const f32, b: *const f32, lanes: usize) -> S::V {
    S::add(S::load_first(a, lanes), S::load_first(b, lanes))
}

#[inline(always)]
unsafe fn backward_in_vectors<S: Simd>(_: S, rows: Units, step: Backward<'_>) {
    let Units { batch, units, gates, states } = rows;
    assert!(3 * units <= gates && units <= states && step.gates.len() >= batch * gates);
    assert!(step.inner.len().min(step.before.len()).min(step.slope.len()) >= batch * states);
    let one = S::splat(1.0);
    for i in 0..batch {
        let row = step.gates.as_mut_ptr().add(i * gates);
        for u in (0..units).step_by(S::LANES) {
            let (at, lanes) = (i * states + u, units - u);
            let (r, z) = (S::load_first(row.add(u), lanes), S::load_first(row.add(units + u), lanes));
            let h = S::load_first(row.add(2 * units + u), lanes);
            let n = S::load_first(step.inner.as_ptr().add(at), lanes);
            let before = S::load_first(step.before.as_ptr().add(at), lanes);
            let slope = S::load_first(step.slope.as_ptr().add(at), lanes);
            let kept = S::mul(slope, z);
            let through = S::mul(S::sub(slope, kept), S::fnma(n, n, one));
            let reset = S::mul(through, r);
            S::store_first(row.add(u), S::mul(S::mul(reset, h), S::sub(one, r)), lanes);
            let update = S::mul(S::mul(kept, S::sub(one, z)), S::sub(before, n));
            S::store_first(row.add(units + u), update, lanes);
            S::store_first(row.add(2 * units + u), reset, lanes);
            S::store_first(step.inner.as_mut_ptr().add(at), through, lanes);
            S::store_first(step.slope.as_mut_ptr().add(at), kept, lanes);
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
        for (batch, units) in [(1, 8), (3, 24), (5, 40), (2, 128)] {
            let rows = Units {
                batch,
                units,
                gates: (3 * units).next_multiple_of(16),
                states: units.next_multiple_of(16),
            };
            let run = |isa| {
                let stream = &mut Stream::new(1, Purpose::Synthesis, 0, units as u64);
                let mut random = |len| -> Vec<f32> { (0..len).map(|_| stream.normal() as f32).collect() };
                let (mut gates, table) = (random(batch * rows.gates), random(4 * rows.gates));
                let (before, mut slope) = (random(batch * rows.states), random(batch * rows.states));
                let (mut inner, mut after) = (vec![0.0; before.len()], vec![0.0; before.len()]);
                let symbols: Vec<u32> = (0..2 * batch as u32).map(|i| i % 4).collect();
                let (kernel, length) = (Granted::new(isa), 2);
                let step = Forward {
                    gates: &mut gates,
                    inner: &mut inner,
                    before: &before,
                    after: &mut after,
                    table: &table,
                    bias: &table[5..],
                    symbols: &symbols,
                    length,
                };
                forward(kernel, rows, step);
                let step =
                    Backward { gates: &mut gates, inner: &mut inner, before: &before, slope: &mut slope };
                backward(kernel, rows, step);
                [gates, inner, after, slope].concat()
            };
            let expected = run(Isa::Reference);
            for isa in Isa::available() {
                let worst = expected.iter().zip(run(isa)).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(worst < 2e-6, "{isa}, {batch} × {units}: off by {worst}");
            }
        }
    }
}
