//! Recurrent layers over sequences of vectors: LSTM and GRU.
//!
//! The input part of the gates, x W_ih, is one product over all steps. The recurrent part is a
//! product per step. Backward, the gradients of both matrices are products over all steps as well.

use super::operation::{Backward, Descent, Form, Operation, Pass};
use crate::kernel::product::{Entries, Layout, Shape, padded, panels_len, product, transposed};
use crate::kernel::{gru, lstm, sums};
use crate::model::layout::{Gates, section, sections_len, split, split_mut, take_sections};
use crate::stream::Stream;

/// The matrices of a recurrent layer: W_ih, W_hh, b_ih, b_hh.
#[derive(Clone, Copy, Debug)]
struct Matrices {
    len: usize,
    /// Entries of a vector of the input.
    inputs: usize,
    /// Floats of a vector of the input.
    stride: usize,
    gates: Gates,
}

impl Matrices {
    fn hidden(&self) -> usize {
        self.gates.hidden
    }

    /// Returns the floats of a row of states.
    fn states(&self) -> usize {
        padded(self.gates.hidden)
    }

    fn flat_lens(&self) -> [usize; 4] {
        let rows = self.gates.rows();
        [rows * self.inputs, rows * self.hidden(), rows, rows]
    }

    fn working_lens(&self) -> [usize; 4] {
        let columns = self.gates.columns();
        [panels_len(self.inputs, columns), panels_len(self.hidden(), columns), columns, columns].map(section)
    }

    /// Returns the floats of both transposed matrices.
    fn transposed_lens(&self) -> [usize; 2] {
        let columns = self.gates.columns();
        [panels_len(columns, padded(self.inputs)), panels_len(columns, self.states())]
    }

    fn init(&self, stream: &mut Stream, flat: &mut [f32]) {
        let bound = 1.0 / (self.hidden() as f64).sqrt();
        flat.iter_mut().for_each(|w| *w = stream.uniform(-bound, bound) as f32);
    }

    fn load(&self, flat: &[f32], working: &mut [f32]) {
        working.fill(0.0);
        let [input, recurrent, input_bias, recurrent_bias] = split(flat, self.flat_lens());
        let [to_input, to_recurrent, to_input_bias, to_recurrent_bias] =
            split_mut(working, self.working_lens());
        self.gates.load(input, Layout::panels(self.inputs), to_input);
        self.gates.load(recurrent, Layout::panels(self.hidden()), to_recurrent);
        self.gates.load_vector(input_bias, to_input_bias);
        self.gates.load_vector(recurrent_bias, to_recurrent_bias);
    }

    fn store(&self, working: &[f32], flat: &mut [f32]) {
        let [input, recurrent, input_bias, recurrent_bias] = split(working, self.working_lens());
        let [to_input, to_recurrent, to_input_bias, to_recurrent_bias] = split_mut(flat, self.flat_lens());
        self.gates.store(input, Layout::panels(self.inputs), to_input);
        self.gates.store(recurrent, Layout::panels(self.hidden()), to_recurrent);
        self.gates.store_vector(input_bias, to_input_bias);
        self.gates.store_vector(recurrent_bias, to_recurrent_bias);
    }

    /// Computes x W_ih of all steps, added to the rows if `beta` is 1.
    fn input_products(&self, pass: &Pass<'_>, matrix: &[f32], input: &[f32], gates: &mut [f32], beta: f32) {
        let columns = self.gates.columns();
        let shape = Shape { m: self.len * pass.batch, n: columns, k: self.inputs };
        let x = Entries { values: input, row: self.stride, column: 1 };
        let layouts = [Layout::panels(self.inputs), Layout::rows(columns)];
        product(pass.kernel, shape, x, matrix, layouts[0], gates, layouts[1], beta);
    }

    /// Adds slopes·W_hhᵀ to the slopes of the state before a step.
    fn state_slopes(&self, pass: &Pass<'_>, gates: &[f32], transposed: &[f32], slope: &mut [f32]) {
        let (columns, states) = (self.gates.columns(), self.states());
        let shape = Shape { m: pass.batch, n: states, k: self.gates.count * self.gates.units() };
        let slopes = Entries { values: gates, row: columns, column: 1 };
        let layouts = [Layout::panels(columns), Layout::rows(states)];
        product(pass.kernel, shape, slopes, transposed, layouts[0], slope, layouts[1], 1.0);
    }

    /// Moves the matrices and writes the slopes of the input, from the slopes of the gates. `inner`
    /// contains the slopes of the recurrent products.
    fn finish(
        &self,
        pass: &Pass<'_>,
        descent: &mut Descent<'_>,
        step: (&[f32], &[f32], Option<&mut [f32]>),
        gates: &[f32],
        inner: &[f32],
        memory: &mut [f32],
    ) {
        let (input, output, to) = step;
        let (kernel, columns, batch) = (pass.kernel, self.gates.columns(), pass.batch);
        if let Some(to) = to {
            let matrix = &descent.params()[..self.working_lens()[0]];
            transposed(kernel, self.inputs, columns, matrix, Layout::panels(self.inputs), memory);
            let shape = Shape { m: self.len * batch, n: padded(self.inputs), k: columns };
            let slopes = Entries { values: gates, row: columns, column: 1 };
            let layouts = [Layout::panels(columns), Layout::rows(self.stride)];
            product(kernel, shape, slopes, memory, layouts[0], to, layouts[1], 0.0);
        }
        let (target, decay) = descent.target();
        let [matrix, recurrent, ..] = split_mut(target, self.working_lens());
        let shape = Shape { m: self.inputs, n: columns, k: self.len * batch };
        let x = Entries { values: input, row: 1, column: self.stride };
        let layouts = [Layout::rows(columns), Layout::panels(self.inputs)];
        product(kernel, shape, x, gates, layouts[0], matrix, layouts[1], decay);
        // h₀ = 0: the first step has no recurrent product.
        let shape = Shape { m: self.hidden(), n: columns, k: (self.len - 1) * batch };
        let h = Entries { values: output, row: 1, column: self.states() };
        let layouts = [Layout::rows(columns), Layout::panels(self.hidden())];
        let slopes = &inner[batch * columns..];
        product(kernel, shape, h, slopes, layouts[0], recurrent, layouts[1], decay);
    }
}

/// A layer of LSTM cells.
#[derive(Clone, Debug)]
pub(super) struct Lstm(Matrices);

impl Lstm {
    pub(super) fn new(input: &Form, hidden: usize) -> Self {
        let gates = Gates { count: 4, hidden, multiple: 8 };
        Self(Matrices { len: input.rows(), inputs: input.entries(), stride: input.stride, gates })
    }

    fn units(&self, batch: usize) -> lstm::Units {
        let (gates, states) = (self.0.gates, self.0.states());
        lstm::Units { batch, units: gates.units(), gates: gates.columns(), outputs: states, cells: states }
    }

    /// Returns the sections: bias, gates, cells before each step and after the last, their tanh,
    /// W_ihᵀ, W_hhᵀ, dh, dc.
    fn memory_lens(&self, batch: usize) -> [usize; 8] {
        let (columns, rows) = (self.0.gates.columns(), batch * self.0.states());
        let [input, recurrent] = self.0.transposed_lens();
        let len = self.0.len;
        [columns, len * batch * columns, (len + 1) * rows, len * rows, input, recurrent, rows, rows]
    }
}

impl Operation for Lstm {
    fn flat_len(&self) -> usize {
        self.0.flat_lens().iter().sum()
    }

    fn working_len(&self) -> usize {
        self.0.working_lens().iter().sum()
    }

    fn init(&self, stream: &mut Stream, flat: &mut [f32]) {
        self.0.init(stream, flat);
    }

    fn load(&self, flat: &[f32], working: &mut [f32]) {
        self.0.load(flat, working);
    }

    fn store(&self, working: &[f32], flat: &mut [f32]) {
        self.0.store(working, flat);
    }

    fn memory_len(&self, batch: usize) -> usize {
        sections_len(self.memory_lens(batch))
    }

    fn reads_output(&self) -> bool {
        true
    }

    fn forward(
        &self,
        pass: &Pass<'_>,
        params: &[f32],
        input: &[f32],
        output: &mut [f32],
        mut memory: &mut [f32],
    ) {
        let [bias, gates, cells, squashed, ..] = take_sections(&mut memory, self.memory_lens(pass.batch));
        let [matrix, recurrent, input_bias, recurrent_bias] = split(params, self.0.working_lens());
        let (columns, states, batch) = (self.0.gates.columns(), self.0.states(), pass.batch);
        for (sum, (a, b)) in bias.iter_mut().zip(input_bias.iter().zip(recurrent_bias)) {
            *sum = a + b;
        }
        self.0.input_products(pass, matrix, input, gates, 0.0);
        let row = batch * states;
        cells.fill(0.0);
        squashed.fill(0.0);
        output.fill(0.0);
        for t in 0..self.0.len {
            let gates = &mut gates[t * batch * columns..][..batch * columns];
            let (earlier, later) = output.split_at_mut(t * row);
            if t > 0 {
                let shape = Shape { m: batch, n: columns, k: self.0.hidden() };
                let h = Entries { values: &earlier[(t - 1) * row..], row: states, column: 1 };
                let layouts = [Layout::panels(self.0.hidden()), Layout::rows(columns)];
                product(pass.kernel, shape, h, recurrent, layouts[0], gates, layouts[1], 1.0);
            }
            let (before, after) = cells.split_at_mut((t + 1) * row);
            let (before, squashed) = (&before[t * row..], &mut squashed[t * row..]);
            let step = lstm::Forward { gates, bias, before, after, squashed, output: later };
            lstm::forward(pass.kernel, self.units(batch), step);
        }
    }

    fn backward(&self, pass: &Pass<'_>, mut descent: Descent<'_>, step: Backward<'_>) {
        let mut memory = step.memory;
        let [bias, gates, cells, squashed, input_transposed, recurrent_transposed, slope, cell_slope] =
            take_sections(&mut memory, self.memory_lens(pass.batch));
        let (columns, states, batch) = (self.0.gates.columns(), self.0.states(), pass.batch);
        let [_, recurrent, ..] = split(descent.params(), self.0.working_lens());
        let panels = Layout::panels(self.0.hidden());
        transposed(pass.kernel, self.0.hidden(), columns, recurrent, panels, recurrent_transposed);
        cell_slope.fill(0.0);
        let row = batch * states;
        for t in (0..self.0.len).rev() {
            slope.copy_from_slice(&step.slopes[t * row..][..row]);
            let (own, later) = gates.split_at_mut((t + 1) * batch * columns);
            if t + 1 < self.0.len {
                self.0.state_slopes(pass, later, recurrent_transposed, slope);
            }
            let gates = &mut own[t * batch * columns..];
            let (before, squashed) = (&cells[t * row..], &squashed[t * row..]);
            let step = lstm::Backward { gates, before, squashed, slope, cell_slope };
            lstm::backward(pass.kernel, self.units(batch), step);
        }
        let activations = (step.input, step.output, step.to);
        self.0.finish(pass, &mut descent, activations, gates, gates, input_transposed);
        // The bias is no longer needed, so its memory is reused for the slopes.
        bias.fill(0.0);
        sums::add_rows(pass.kernel, gates, bias);
        let (target, decay) = descent.target();
        let [_, _, input_bias, recurrent_bias] = split_mut(target, self.0.working_lens());
        sums::add_decayed(pass.kernel, bias, decay, input_bias);
        sums::add_decayed(pass.kernel, bias, decay, recurrent_bias);
    }
}

/// Examples that share one call of the kernels.
const EXAMPLES: usize = 1024;

/// A layer of GRU cells. The kernels read the input part of the gates as a table with a row per
/// symbol: here, a row per example, and the symbol of an example is its number.
#[derive(Clone, Debug)]
pub(super) struct Gru {
    matrices: Matrices,
    numbers: Vec<u32>,
}

impl Gru {
    pub(super) fn new(input: &Form, hidden: usize) -> Self {
        let gates = Gates { count: 3, hidden, multiple: gru::UNITS };
        let matrices = Matrices { len: input.rows(), inputs: input.entries(), stride: input.stride, gates };
        Self { matrices, numbers: (0..EXAMPLES as u32).collect() }
    }

    /// Returns the parts of a batch.
    fn parts(batch: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
        (0..batch).step_by(EXAMPLES).map(move |start| start..(start + EXAMPLES).min(batch))
    }

    fn units(&self, batch: usize) -> gru::Units {
        let gates = self.matrices.gates;
        gru::Units { batch, units: gates.units(), gates: gates.columns(), states: self.matrices.states() }
    }

    /// Returns the sections: h₀, table, r z ĥ of each step, n of each step, W_ihᵀ, W_hhᵀ, dh, the
    /// slopes of the table, of b_hn, and of a bias.
    fn memory_lens(&self, batch: usize) -> [usize; 10] {
        let (columns, rows) = (self.matrices.gates.columns(), batch * self.matrices.states());
        let [input, recurrent] = self.matrices.transposed_lens();
        let (len, units) = (self.matrices.len, self.matrices.gates.units());
        let table = len * batch * columns;
        [rows, table, table, len * rows, input, recurrent, rows, table, units, columns]
    }
}

impl Operation for Gru {
    fn flat_len(&self) -> usize {
        self.matrices.flat_lens().iter().sum()
    }

    fn working_len(&self) -> usize {
        self.matrices.working_lens().iter().sum()
    }

    fn init(&self, stream: &mut Stream, flat: &mut [f32]) {
        self.matrices.init(stream, flat);
    }

    fn load(&self, flat: &[f32], working: &mut [f32]) {
        self.matrices.load(flat, working);
    }

    fn store(&self, working: &[f32], flat: &mut [f32]) {
        self.matrices.store(working, flat);
    }

    fn memory_len(&self, batch: usize) -> usize {
        sections_len(self.memory_lens(batch))
    }

    fn reads_output(&self) -> bool {
        true
    }

    fn forward(
        &self,
        pass: &Pass<'_>,
        params: &[f32],
        input: &[f32],
        output: &mut [f32],
        mut memory: &mut [f32],
    ) {
        let [zeros, table, gates, inner, ..] = take_sections(&mut memory, self.memory_lens(pass.batch));
        let [matrix, recurrent, input_bias, recurrent_bias] = split(params, self.matrices.working_lens());
        let units = self.units(pass.batch);
        let (direct, columns, states) = (2 * units.units, units.gates, units.states);
        for row in table.chunks_exact_mut(columns) {
            row.copy_from_slice(&input_bias[..columns]);
            sums::add_rows(pass.kernel, &recurrent_bias[..direct], &mut row[..direct]);
        }
        self.matrices.input_products(pass, matrix, input, table, 1.0);
        zeros.fill(0.0);
        let row = pass.batch * states;
        for t in 0..self.matrices.len {
            let (earlier, later) = output.split_at_mut(t * row);
            let before = if t == 0 { &*zeros } else { &earlier[(t - 1) * row..] };
            for part in Self::parts(pass.batch) {
                let at = t * pass.batch + part.start;
                let panels = gru::Recurrent { panels: recurrent, hidden: self.matrices.hidden() };
                let kept = gru::Kept { gates: &mut gates[at * columns..], inner: &mut inner[at * states..] };
                let step = gru::Forward {
                    recurrent: (t > 0).then_some(panels),
                    before: &before[part.start * states..],
                    after: &mut later[part.start * states..],
                    table: &table[at * columns..],
                    bias: &recurrent_bias[direct..],
                    symbols: &self.numbers,
                    length: 1,
                    kept: Some(kept),
                };
                gru::forward(pass.kernel, self.units(part.len()), step);
            }
        }
    }

    fn backward(&self, pass: &Pass<'_>, mut descent: Descent<'_>, step: Backward<'_>) {
        let mut memory = step.memory;
        let [zeros, _, gates, inner, input_transposed, recurrent_transposed, slope, table, bias, total] =
            take_sections(&mut memory, self.memory_lens(pass.batch));
        let units = self.units(pass.batch);
        let (columns, states) = (units.gates, units.states);
        let [_, recurrent, ..] = split(descent.params(), self.matrices.working_lens());
        let (kernel, hidden) = (pass.kernel, self.matrices.hidden());
        transposed(kernel, hidden, columns, recurrent, Layout::panels(hidden), recurrent_transposed);
        table.fill(0.0);
        bias.fill(0.0);
        let row = pass.batch * states;
        slope.fill(0.0);
        for t in (0..self.matrices.len).rev() {
            sums::add_rows(kernel, &step.slopes[t * row..][..row], slope);
            let before = if t == 0 { &*zeros } else { &step.output[(t - 1) * row..] };
            for part in Self::parts(pass.batch) {
                let at = t * pass.batch + part.start;
                let step = gru::Backward {
                    gates: &mut gates[at * columns..],
                    inner: &inner[at * states..],
                    before: &before[part.start * states..],
                    slope: &mut slope[part.start * states..],
                    symbols: &self.numbers,
                    length: 1,
                    table: &mut table[at * columns..],
                    bias,
                };
                gru::backward(kernel, self.units(part.len()), step);
            }
            if t > 0 {
                let gates = &gates[t * pass.batch * columns..];
                self.matrices.state_slopes(pass, gates, recurrent_transposed, slope);
            }
        }
        let activations = (step.input, step.output, step.to);
        self.matrices.finish(pass, &mut descent, activations, table, gates, input_transposed);
        total.fill(0.0);
        sums::add_rows(kernel, table, total);
        let (target, decay) = descent.target();
        let [_, _, input_bias, recurrent_bias] = split_mut(target, self.matrices.working_lens());
        sums::add_decayed(kernel, total, decay, input_bias);
        // At n, the slope of b_hh passes the reset gate.
        total[2 * units.units..3 * units.units].copy_from_slice(bias);
        sums::add_decayed(kernel, total, decay, recurrent_bias);
    }
}
