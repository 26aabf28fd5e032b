//! A time step of a GRU, forward and backward.
//!
//! ```text
//! r = σ(r̂)   z = σ(ẑ)   n = tanh(x̂ + r∘ĥ)   h' = n + z∘(h − n)
//!
//! δz = dh'∘(h − n)∘z(1−z)    δn = dh'∘(1−z)(1−n²)    δr = δn∘ĥ∘r(1−r)    δĥ = δn∘r    dh = dh'∘z + …
//! ```
//!
//! ĥ = W_hn h + b_hn and a part of r̂ and ẑ come from the recurrent product. x̂ = W_in x + b_in and
//! the rest of r̂ and ẑ come from a table with a row per symbol. Forward, the product and the gates
//! are one kernel: the three sums of a unit become its next state in registers. Backward, the rest
//! of dh is another recurrent product.

#![allow(unsafe_code, unsafe_op_in_unsafe_fn)]

use super::activation::{sigmoid, tanh};
use super::dispatch::entry;
use super::product::{Layout, Rows};
use super::simd::Simd;

/// The number of units to which a gate is padded, so that no vector contains units of two gates.
pub(crate) const UNITS: usize = 16;

/// The layout of the rows of a time step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Units {
    /// The number of examples.
    pub(crate) batch: usize,
    /// Units of a gate, padded to a multiple of [`UNITS`].
    pub(crate) units: usize,
    /// Floats of a row of gates: r, z and ĥ, contiguously.
    pub(crate) gates: usize,
    /// Floats of a row of states.
    pub(crate) states: usize,
}

/// One time step of a batch, a row per example.
#[derive(Debug)]
pub(crate) struct Forward<'a> {
    /// W_hh, transposed, panel by panel. `None` in the first step, where h = 0.
    pub(crate) recurrent: Option<Recurrent<'a>>,
    pub(crate) before: &'a [f32],
    pub(crate) after: &'a mut [f32],
    /// The contribution of each symbol to r̂, ẑ and x̂: a row per symbol.
    pub(crate) table: &'a [f32],
    /// b_hn.
    pub(crate) bias: &'a [f32],
    /// The symbol of the first example. The next example's symbol is `length` entries further.
    pub(crate) symbols: &'a [u32],
    pub(crate) length: usize,
    /// The outputs for the backward pass, if there is one.
    pub(crate) kept: Option<Kept<'a>>,
}

/// The recurrent matrix: a row per unit of h.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recurrent<'a> {
    pub(crate) panels: &'a [f32],
    pub(crate) hidden: usize,
}

/// Out: the gates of a time step.
#[derive(Debug)]
pub(crate) struct Kept<'a> {
    /// r, z, ĥ.
    pub(crate) gates: &'a mut [f32],
    /// n.
    pub(crate) inner: &'a mut [f32],
}

/// One time step of a batch in the backward pass.
#[derive(Debug)]
pub(crate) struct Backward<'a> {
    /// In: r, z, ĥ. Out: δr, δz, δĥ.
    pub(crate) gates: &'a mut [f32],
    /// n.
    pub(crate) inner: &'a [f32],
    pub(crate) before: &'a [f32],
    /// In: dh'. Out: dh'∘z.
    pub(crate) slope: &'a mut [f32],
    /// The symbol of the first example. The next example's symbol is `length` entries further.
    pub(crate) symbols: &'a [u32],
    pub(crate) length: usize,
    /// Out: δr, δz, δn, added to the row of the symbol.
    pub(crate) table: &'a mut [f32],
    /// Out: δĥ, added.
    pub(crate) bias: &'a mut [f32],
}

entry! {
    /// Computes the next state.
    pub(crate) fn forward(rows: Units, step: Forward<'_>) = forward_in_registers, forward_reference
}

entry! {
    /// Computes the slopes of the gates from the slope of the next state.
    pub(crate) fn backward(rows: Units, step: Backward<'_>) = backward_in_vectors, backward_reference
}

fn forward_reference(rows: Units, mut step: Forward<'_>) {
    let Units { batch, units, gates, states } = rows;
    let logistic = |x: f32| 1.0 / (1.0 + (-x).exp());
    for (i, &symbol) in step.symbols.iter().step_by(step.length).take(batch).enumerate() {
        let input = &step.table[symbol as usize * gates..][..3 * units];
        let h = &step.before[i * states..][..units];
        for u in 0..units {
            let product = |column: usize| step.recurrent.map_or(0.0, |matrix| matrix.dot(column, h));
            let r = logistic(product(u) + input[u]);
            let z = logistic(product(units + u) + input[units + u]);
            let inner = product(2 * units + u) + step.bias[u];
            let n = (input[2 * units + u] + r * inner).tanh();
            step.after[i * states + u] = n + z * (h[u] - n);
            if let Some(kept) = &mut step.kept {
                let row = &mut kept.gates[i * gates..];
                (row[u], row[units + u], row[2 * units + u]) = (r, z, inner);
                kept.inner[i * states + u] = n;
            }
        }
    }
}

impl Recurrent<'_> {
    /// Returns the entry of h·W_hhᵀ in a column.
    fn dot(self, column: usize, h: &[f32]) -> f32 {
        let layout = Layout::panels(self.hidden);
        (0..self.hidden).map(|p| h[p] * self.panels[layout.at(p, column)]).sum()
    }
}

fn backward_reference(rows: Units, step: Backward<'_>) {
    let Units { batch, units, gates, states } = rows;
    for (i, &symbol) in step.symbols.iter().step_by(step.length).take(batch).enumerate() {
        let row = &mut step.gates[i * gates..][..3 * units];
        let table = &mut step.table[symbol as usize * gates..][..3 * units];
        for u in 0..units {
            let at = i * states + u;
            let (r, z, h) = (row[u], row[units + u], row[2 * units + u]);
            let (n, slope) = (step.inner[at], step.slope[at]);
            let through = slope * (1.0 - z) * (1.0 - n * n);
            row[u] = through * h * r * (1.0 - r);
            row[units + u] = slope * (step.before[at] - n) * z * (1.0 - z);
            row[2 * units + u] = through * r;
            step.slope[at] = slope * z;
            table[u] += row[u];
            table[units + u] += row[units + u];
            table[2 * units + u] += through;
            step.bias[u] += row[2 * units + u];
        }
    }
}

/// Processes one vector of units at a time, so that its three columns of the matrix stay in cache.
#[inline(always)]
unsafe fn forward_in_registers<S: Simd>(_: S, rows: Units, step: Forward<'_>) {
    let Units { batch, units, gates, states } = rows;
    assert!(3 * units <= gates && units <= states && units.is_multiple_of(UNITS));
    assert!(step.before.len().min(step.after.len()) >= batch * states && step.bias.len() >= units);
    check_symbols(batch, step.symbols, step.length, step.table.len() / gates);
    if let Some(Recurrent { panels, hidden }) = step.recurrent {
        assert!(hidden <= states && panels.len() >= Layout::panels(hidden).extent(hidden, 3 * units));
    }
    if let Some(kept) = &step.kept {
        assert!(kept.gates.len() >= batch * gates && kept.inner.len() >= batch * states);
    }
    let mut step = step;
    let height = batch.div_ceil(batch.div_ceil(S::ROWS_OF_THREE).max(1));
    let mut sums = [0.0; 8 * 3 * 16];
    for u in (0..units).step_by(S::LANES) {
        let mut i = 0;
        while i < batch {
            let examples = height.min(batch - i);
            if let Some(matrix) = step.recurrent {
                let tile = Tile { matrix, h: step.before.as_ptr().add(i * states), rows, u };
                tile.sum::<S>(examples, sums.as_mut_ptr());
            }
            for e in 0..examples {
                let sums = sums.as_ptr().add(e * 3 * S::LANES);
                squash::<S>(rows, &mut step, i + e, u, sums);
            }
            i += examples;
        }
    }
}

/// A few examples, and a vector of units of each gate.
#[derive(Clone, Copy)]
struct Tile<'a> {
    matrix: Recurrent<'a>,
    h: *const f32,
    rows: Units,
    u: usize,
}

impl Tile<'_> {
    /// Computes the sums of three gates for each example.
    #[inline(always)]
    unsafe fn sum<S: Simd>(self, examples: usize, sums: *mut f32) {
        match examples {
            1 => self.fill::<S, 1>(sums),
            2 => self.fill::<S, 2>(sums),
            3 if S::ROWS_OF_THREE >= 3 => self.fill::<S, 3>(sums),
            4 if S::ROWS_OF_THREE >= 4 => self.fill::<S, 4>(sums),
            5 if S::ROWS_OF_THREE >= 5 => self.fill::<S, 5>(sums),
            6 if S::ROWS_OF_THREE >= 6 => self.fill::<S, 6>(sums),
            7 if S::ROWS_OF_THREE >= 7 => self.fill::<S, 7>(sums),
            8 if S::ROWS_OF_THREE >= 8 => self.fill::<S, 8>(sums),
            _ => unreachable!("a tile has at most {} examples", S::ROWS_OF_THREE),
        }
    }

    #[inline(always)]
    unsafe fn fill<S: Simd, const EXAMPLES: usize>(self, to: *mut f32) {
        let layout = Layout::panels(self.matrix.hidden);
        let mut b = [self.matrix.panels.as_ptr(); 3];
        for (gate, b) in b.iter_mut().enumerate() {
            *b = b.add(layout.at(0, gate * self.rows.units + self.u));
        }
        let h = Rows { first: self.h, row: self.rows.states, column: 1 };
        let zero = [[S::zero(); 3]; EXAMPLES];
        let sums = h.add_product::<S, EXAMPLES, 3>(self.matrix.hidden, b, layout.row, zero);
        for (e, sums) in sums.iter().enumerate() {
            for (gate, &sum) in sums.iter().enumerate() {
                S::store(to.add((3 * e + gate) * S::LANES), sum);
            }
        }
    }
}

/// Computes a vector of the next state from the sums of the gates of example `i`.
#[inline(always)]
unsafe fn squash<S: Simd>(rows: Units, step: &mut Forward<'_>, i: usize, u: usize, sums: *const f32) {
    let Units { units, gates, states, .. } = rows;
    let at = i * states + u;
    let input = step.table.as_ptr().add(*step.symbols.get_unchecked(i * step.length) as usize * gates + u);
    let r = sigmoid::<S>(sum::<S>(sums, input, S::LANES));
    let z = sigmoid::<S>(sum::<S>(sums.add(S::LANES), input.add(units), S::LANES));
    let h = sum::<S>(sums.add(2 * S::LANES), step.bias.as_ptr().add(u), S::LANES);
    let n = tanh::<S>(S::fma(r, h, S::load(input.add(2 * units))));
    let before = S::load(step.before.as_ptr().add(at));
    S::store(step.after.as_mut_ptr().add(at), S::fma(z, S::sub(before, n), n));
    if let Some(kept) = &mut step.kept {
        let row = kept.gates.as_mut_ptr().add(i * gates + u);
        S::store(row, r);
        S::store(row.add(units), z);
        S::store(row.add(2 * units), h);
        S::store(kept.inner.as_mut_ptr().add(at), n);
    }
}

/// Returns the sum of two vectors in memory.
#[inline(always)]
pub(super) unsafe fn sum<S: Simd>(a: *const f32, b: *const f32, lanes: usize) -> S::V {
    S::add(S::load_first(a, lanes), S::load_first(b, lanes))
}

/// Processes one vector of units at a time, so that the slope of its bias stays in a register.
#[inline(always)]
unsafe fn backward_in_vectors<S: Simd>(_: S, rows: Units, step: Backward<'_>) {
    let Units { batch, units, gates, states } = rows;
    assert!(units.is_multiple_of(UNITS) && 3 * units <= gates && units <= states);
    assert!(step.gates.len() >= batch * gates && step.bias.len() >= units);
    assert!(step.inner.len().min(step.before.len()).min(step.slope.len()) >= batch * states);
    check_symbols(batch, step.symbols, step.length, step.table.len() / gates);
    let one = S::splat(1.0);
    for u in (0..units).step_by(S::LANES) {
        let mut bias = S::load(step.bias.as_ptr().add(u));
        for i in 0..batch {
            let (row, at) = (step.gates.as_mut_ptr().add(i * gates + u), i * states + u);
            let (r, z, h) = (S::load(row), S::load(row.add(units)), S::load(row.add(2 * units)));
            let (n, before) = (S::load(step.inner.as_ptr().add(at)), S::load(step.before.as_ptr().add(at)));
            let slope = S::load(step.slope.as_ptr().add(at));
            let kept = S::mul(slope, z);
            let through = S::mul(S::sub(slope, kept), S::fnma(n, n, one));
            let inner = S::mul(through, r);
            let reset = S::mul(S::mul(inner, h), S::sub(one, r));
            let update = S::mul(S::mul(kept, S::sub(one, z)), S::sub(before, n));
            S::store(row, reset);
            S::store(row.add(units), update);
            S::store(row.add(2 * units), inner);
            S::store(step.slope.as_mut_ptr().add(at), kept);
            let symbol = *step.symbols.get_unchecked(i * step.length) as usize;
            let table = step.table.as_mut_ptr().add(symbol * gates + u);
            for (gate, slope) in [reset, update, through].into_iter().enumerate() {
                let sum = table.add(gate * units);
                S::store(sum, S::add(S::load(sum), slope));
            }
            bias = S::add(bias, inner);
        }
        S::store(step.bias.as_mut_ptr().add(u), bias);
    }
}

/// Checks that every example has a symbol, and every symbol a row in the table.
fn check_symbols(batch: usize, symbols: &[u32], length: usize, rows: usize) {
    let each = symbols.iter().step_by(length).take(batch);
    assert!(each.len() == batch, "an example has no symbol");
    assert!(each.into_iter().all(|&symbol| (symbol as usize) < rows), "a symbol is not in the table");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::product::panels_len;
    use crate::kernel::{Granted, Isa};
    use crate::stream::{Purpose, Stream};

    /// Runs a step forward, with and without stored gates, and backward. Returns everything
    /// written.
    fn run(isa: Isa, rows: Units, hidden: usize, first: bool) -> [Vec<f32>; 6] {
        let Units { batch, units, gates: columns, states } = rows;
        let stream = &mut Stream::new(1, Purpose::Synthesis, 0, units as u64);
        let mut random = |len| -> Vec<f32> { (0..len).map(|_| stream.normal() as f32).collect() };
        let (panels, table) = (random(panels_len(hidden, columns)), random(4 * columns));
        let (before, mut slope) = (random(batch * states), random(batch * states));
        let (mut inner, mut gates) = (vec![0.0; before.len()], vec![0.0; batch * columns]);
        let symbols: Vec<u32> = (0..2 * batch as u32).map(|i| i % 4).collect();
        let pass = |kept: Option<Kept<'_>>| {
            let mut after = vec![0.0; before.len()];
            let step = Forward {
                recurrent: if first { None } else { Some(Recurrent { panels: &panels, hidden }) },
                before: &before,
                after: &mut after,
                table: &table,
                bias: &table[5..],
                symbols: &symbols,
                length: 2,
                kept,
            };
            forward(Granted::new(isa), rows, step);
            after
        };
        let unkept = pass(None);
        let after = pass(Some(Kept { gates: &mut gates, inner: &mut inner }));
        assert_eq!(unkept, after, "{isa}");
        let (mut table_slopes, mut bias) = (vec![1.0; table.len()], vec![1.0; units]);
        let step = Backward {
            gates: &mut gates,
            inner: &inner,
            before: &before,
            slope: &mut slope,
            symbols: &symbols,
            length: 2,
            table: &mut table_slopes,
            bias: &mut bias,
        };
        backward(Granted::new(isa), rows, step);
        [gates, inner, after, slope, table_slopes, bias]
    }

    #[test]
    fn every_instruction_set_agrees_with_the_reference_at_odd_sizes() {
        for (batch, hidden) in [(1, 3usize), (3, 17), (5, 40), (9, 16), (18, 128)] {
            let units = hidden.next_multiple_of(UNITS);
            let rows = Units { batch, units, gates: 3 * units, states: units };
            for first in [false, true] {
                let expected = run(Isa::Reference, rows, hidden, first).concat();
                for isa in Isa::available() {
                    let got = run(isa, rows, hidden, first).concat();
                    let worst = expected.iter().zip(got).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                    assert!(worst < 2e-5, "{isa}, {batch} × {hidden}: off by {worst}");
                }
            }
        }
    }
}
