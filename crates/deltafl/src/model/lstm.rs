//! The tweet model: frozen word vectors → LSTM, last output → one logit (spec §4, Sent140 LSTM).
//!
//! Flat order, as PyTorch's: W_ih `4H × dim`, W_hh `4H × H`, b_ih, b_hh, full layer `H`, its bias; gates in
//! the order i, f, g, o. All `len` words are read, padding included, without a mask.
//!
//! W_ih and W_hh lie on top of each other, and x_t and h_t side by side: a time step is one product, and
//! so is the gradient of both matrices over all time steps.

use super::layout::{Gates, add_decayed, add_rows, section, split, split_mut, take};
use super::logistic;
use super::{Batch, Inputs, Model, Score, Step};
use crate::data::WordVectors;
use crate::kernel::logistic as kernel_logistic;
use crate::kernel::lstm::{self, Units};
use crate::kernel::product::{Entries, Layout, Shape, padded, panels_len, product, transposed};
use crate::kernel::{Granted, Isa};
use crate::stream::Stream;

/// Examples that a forward pass holds at once.
const FORWARD: usize = 48;

/// The LSTM.
#[derive(Clone, Debug)]
pub struct Lstm {
    vectors: WordVectors,
    len: usize,
    gates: Gates,
    kernel: Granted,
}

impl Lstm {
    /// An LSTM of `hidden` units over sequences of `len` words with these vectors.
    ///
    /// # Panics
    /// When this CPU lacks the instruction set.
    pub fn new(vectors: WordVectors, len: usize, hidden: usize, isa: Isa) -> Self {
        Self { vectors, len, gates: Gates { count: 4, hidden }, kernel: Granted::new(isa) }
    }

    /// Rows of the two matrices together.
    fn inputs(&self) -> usize {
        self.vectors.dim + self.gates.hidden
    }

    /// Floats of a row (x_t, h_t).
    fn width(&self) -> usize {
        self.vectors.dim + self.gates.units()
    }

    /// Floats of a row of cells.
    fn cells(&self) -> usize {
        padded(self.gates.hidden)
    }

    /// W_ih, W_hh, b_ih, b_hh, full, bias.
    fn flat_lens(&self) -> [usize; 6] {
        let (rows, hidden) = (self.gates.rows(), self.gates.hidden);
        [rows * self.vectors.dim, rows * hidden, rows, rows, hidden, 1]
    }

    fn working_lens(&self) -> [usize; 5] {
        let columns = self.gates.columns();
        [panels_len(self.inputs(), columns), columns, columns, self.gates.hidden, 1].map(section)
    }

    fn parts<'a>(&self, working: &'a [f32]) -> Parts<&'a [f32]> {
        Parts::from(split(working, self.working_lens()))
    }

    fn parts_mut<'a>(&self, working: &'a mut [f32]) -> Parts<&'a mut [f32]> {
        Parts::from(split_mut(working, self.working_lens()))
    }

    /// Where W_hh starts in the stacked matrices.
    fn recurrent<'a>(&self, matrix: &'a [f32]) -> &'a [f32] {
        &matrix[self.vectors.dim * Layout::panels(self.inputs()).row..]
    }

    fn forward_len(&self, batch: usize, steps: usize) -> usize {
        section(self.gates.columns())
            + section(steps * batch * self.gates.columns())
            + section((steps + 1) * batch * self.width())
            + section((steps + 1) * batch * self.cells())
            + section(steps * batch * self.cells())
            + section(batch)
    }

    fn backward_len(&self, batch: usize) -> usize {
        section(panels_len(self.gates.columns(), self.cells())) + 2 * section(batch * self.cells())
    }

    /// The forward pass of a batch, as far as the logits.
    fn forward(&self, parts: &Parts<&[f32]>, tokens: &[u32], memory: &mut Forward<'_>) {
        let (columns, width, cells) = (self.gates.columns(), self.width(), self.cells());
        let (dim, batch, hidden) = (self.vectors.dim, memory.batch, self.gates.hidden);
        let rows = Units { batch, units: self.gates.units(), gates: columns, outputs: width, cells };
        memory.cells[..batch * cells].fill(0.0);
        let biases = parts.input_bias.iter().zip(parts.recurrent_bias);
        memory.bias.iter_mut().zip(biases).for_each(|(sum, (a, b))| *sum = a + b);
        for t in 0..self.len {
            let slot = memory.slot(t);
            let inputs = &mut memory.inputs[slot * batch * width..][..batch * width];
            for (row, words) in inputs.chunks_exact_mut(width).zip(tokens.chunks_exact(self.len)) {
                let word = words[t] as usize * dim;
                row[..dim].copy_from_slice(&self.vectors.values[word..word + dim]);
            }
            let gates = &mut memory.gates[slot * batch * columns..][..batch * columns];
            // h₀ = 0: the first step has no recurrent product.
            let shape = Shape { m: batch, n: columns, k: if t == 0 { dim } else { dim + hidden } };
            let x = Entries { values: inputs, row: width, column: 1 };
            let layouts = [Layout::panels(self.inputs()), Layout::rows(columns)];
            product(self.kernel, shape, x, parts.matrix, layouts[0], gates, layouts[1], 0.0);

            let (before, after) = memory.cells.split_at_mut((slot + 1) * batch * cells);
            let step = lstm::Forward {
                gates,
                bias: memory.bias,
                before: &before[slot * batch * cells..],
                after,
                squashed: &mut memory.squashed[slot * batch * cells..],
                output: &mut memory.inputs[if memory.rolling { 0 } else { t + 1 } * batch * width + dim..],
            };
            lstm::forward(self.kernel, rows, step);
            memory.carry();
        }
        let last = &memory.inputs[memory.slot(self.len) * batch * width..];
        for (logit, row) in memory.logits.iter_mut().zip(last.chunks_exact(width)) {
            let sum: f32 = row[dim..].iter().zip(&parts.full[..hidden]).map(|(h, w)| h * w).sum();
            *logit = sum + parts.full_bias[0];
        }
    }

    /// Back through time, from the residuals that `forward.logits` holds to the slopes of all gates.
    fn backward(&self, parts: &Parts<&[f32]>, forward: &mut Forward<'_>, memory: &mut Backward<'_>) {
        let (columns, width, cells) = (self.gates.columns(), self.width(), self.cells());
        let (batch, hidden) = (forward.batch, self.gates.hidden);
        let rows = Units { batch, units: self.gates.units(), gates: columns, outputs: width, cells };
        let (kernel, stacked) = (self.kernel, Layout::panels(self.inputs()));
        transposed(kernel, hidden, columns, self.recurrent(parts.matrix), stacked, memory.transposed);
        memory.cell_slope.fill(0.0);
        memory.slope.fill(0.0);
        for (slope, residual) in memory.slope.chunks_exact_mut(cells).zip(&*forward.logits) {
            slope.iter_mut().zip(&parts.full[..hidden]).for_each(|(s, w)| *s = residual * w);
        }
        for t in (0..self.len).rev() {
            let gates = &mut forward.gates[t * batch * columns..][..batch * columns];
            let step = lstm::Backward {
                gates,
                before: &forward.cells[t * batch * cells..],
                squashed: &forward.squashed[t * batch * cells..],
                slope: memory.slope,
                cell_slope: memory.cell_slope,
            };
            lstm::backward(kernel, rows, step);
            if t > 0 {
                let shape = Shape { m: batch, n: cells, k: 4 * self.gates.units() };
                let slopes = Entries { values: gates, row: columns, column: 1 };
                let layouts = [Layout::panels(columns), Layout::rows(cells)];
                product(kernel, shape, slopes, memory.transposed, layouts[0], memory.slope, layouts[1], 0.0);
            }
        }
    }

    /// parts ← decay·parts + gradient.
    fn descend(&self, parts: Parts<&mut [f32]>, decay: f32, forward: &mut Forward<'_>) {
        let (columns, width, batch) = (self.gates.columns(), self.width(), forward.batch);
        let (dim, hidden) = (self.vectors.dim, self.gates.hidden);
        // The bias has been used: its place takes the slopes.
        forward.bias.fill(0.0);
        add_rows(forward.bias, forward.gates, columns);
        add_decayed(parts.input_bias, forward.bias, decay);
        add_decayed(parts.recurrent_bias, forward.bias, decay);

        let shape = Shape { m: self.inputs(), n: columns, k: self.len * batch };
        let inputs = Entries { values: forward.inputs, row: 1, column: width };
        let layouts = [Layout::rows(columns), Layout::panels(self.inputs())];
        product(self.kernel, shape, inputs, forward.gates, layouts[0], parts.matrix, layouts[1], decay);

        parts.full.iter_mut().chain(&mut *parts.full_bias).for_each(|w| *w *= decay);
        let last = forward.inputs[self.len * batch * width..].chunks_exact(width);
        for (residual, row) in forward.logits.iter().zip(last) {
            parts.full[..hidden].iter_mut().zip(&row[dim..]).for_each(|(w, h)| *w += residual * h);
            parts.full_bias[0] += residual;
        }
    }

    fn differentiate<'a>(
        &self,
        working: &[f32],
        batch: Batch<'_>,
        scale: f32,
        memory: &mut &'a mut [f32],
    ) -> Forward<'a> {
        let parts = self.parts(working);
        let mut forward = Forward::take(self, batch.len(), false, memory);
        let mut backward = Backward::take(self, batch.len(), memory);
        // h₀: zero in the first rows.
        for row in forward.inputs[..batch.len() * self.width()].chunks_exact_mut(self.width()) {
            row[self.vectors.dim..].fill(0.0);
        }
        self.forward(&parts, batch.inputs.tokens(), &mut forward);
        kernel_logistic::residuals(self.kernel, forward.logits, batch.labels, scale);
        self.backward(&parts, &mut forward, &mut backward);
        forward
    }
}

/// Parameters in working form; `matrix` is W_ih on top of W_hh.
struct Parts<T> {
    matrix: T,
    input_bias: T,
    recurrent_bias: T,
    full: T,
    full_bias: T,
}

impl<T> From<[T; 5]> for Parts<T> {
    fn from([matrix, input_bias, recurrent_bias, full, full_bias]: [T; 5]) -> Self {
        Self { matrix, input_bias, recurrent_bias, full, full_bias }
    }
}

/// Memory of a forward pass: of all time steps for training, of the last one for evaluation.
struct Forward<'a> {
    batch: usize,
    /// Whether each time step takes the place of the one before.
    rolling: bool,
    /// b_ih + b_hh.
    bias: &'a mut [f32],
    /// i, f, g, o of each time step; after the backward pass, their slopes.
    gates: &'a mut [f32],
    /// (x, h) before each time step, and h after the last.
    inputs: &'a mut [f32],
    /// c before each time step, and after the last.
    cells: &'a mut [f32],
    /// tanh(c) after each time step.
    squashed: &'a mut [f32],
    logits: &'a mut [f32],
}

impl<'a> Forward<'a> {
    fn take(model: &Lstm, batch: usize, rolling: bool, memory: &mut &'a mut [f32]) -> Self {
        let (columns, cells) = (model.gates.columns(), model.cells());
        let steps = if rolling { 1 } else { model.len };
        Self {
            batch,
            rolling,
            bias: take(memory, columns),
            gates: take(memory, steps * batch * columns),
            inputs: take(memory, (steps + 1) * batch * model.width()),
            cells: take(memory, (steps + 1) * batch * cells),
            squashed: take(memory, steps * batch * cells),
            logits: take(memory, batch),
        }
    }

    /// Where time step t is kept.
    fn slot(&self, t: usize) -> usize {
        if self.rolling { 0 } else { t }
    }

    /// In a rolling pass, the outcome of a time step becomes the state before the next.
    fn carry(&mut self) {
        if self.rolling {
            let half = self.cells.len() / 2;
            self.cells.copy_within(half.., 0);
        }
    }
}

/// Memory of a backward pass.
struct Backward<'a> {
    /// W_hhᵀ.
    transposed: &'a mut [f32],
    /// dh.
    slope: &'a mut [f32],
    /// dc.
    cell_slope: &'a mut [f32],
}

impl<'a> Backward<'a> {
    fn take(model: &Lstm, batch: usize, memory: &mut &'a mut [f32]) -> Self {
        Self {
            transposed: take(memory, panels_len(model.gates.columns(), model.cells())),
            slope: take(memory, batch * model.cells()),
            cell_slope: take(memory, batch * model.cells()),
        }
    }
}

impl Model for Lstm {
    fn num_params(&self) -> usize {
        self.flat_lens().iter().sum()
    }

    /// U(±1/√H).
    fn init(&self, stream: &mut Stream, params: &mut [f32]) {
        let bound = 1.0 / (self.gates.hidden as f64).sqrt();
        params.iter_mut().for_each(|w| *w = stream.uniform(-bound, bound) as f32);
    }

    fn scratch_len(&self, batch: usize) -> usize {
        let batch = batch.min(FORWARD);
        let gradient = 2 * section(self.working_len()) + self.step_scratch_len(batch);
        gradient.max(self.forward_len(batch, 1))
    }

    fn gradient(&self, params: &[f32], batch: Batch<'_>, gradient: &mut [f32], scratch: &mut [f32]) -> f64 {
        let mut memory = scratch;
        let working = take(&mut memory, self.working_len());
        let total = take(&mut memory, self.working_len());
        self.load(params, working);
        total.fill(0.0);
        let mut loss = 0.0;
        let tokens = batch.inputs.tokens().chunks(FORWARD * self.len);
        for (labels, tokens) in batch.labels.chunks(FORWARD).zip(tokens) {
            let part = Batch { inputs: Inputs::Tokens(tokens), labels };
            loss += self.evaluate(working, part, memory).loss;
            let mut forward = self.differentiate(working, part, 1.0 / batch.len() as f32, &mut &mut *memory);
            self.descend(self.parts_mut(total), 1.0, &mut forward);
        }
        self.store(total, gradient);
        loss / batch.len() as f64
    }

    fn evaluate(&self, working: &[f32], batch: Batch<'_>, scratch: &mut [f32]) -> Score {
        let parts = self.parts(working);
        let mut score = Score::default();
        let tokens = batch.inputs.tokens().chunks(FORWARD * self.len);
        for (labels, tokens) in batch.labels.chunks(FORWARD).zip(tokens) {
            let mut forward = Forward::take(self, labels.len(), true, &mut &mut *scratch);
            self.forward(&parts, tokens, &mut forward);
            score += logistic::score(forward.logits, labels);
        }
        score
    }

    fn working_len(&self) -> usize {
        self.working_lens().iter().sum()
    }

    fn load(&self, params: &[f32], working: &mut [f32]) {
        working.fill(0.0);
        let [input, recurrent, input_bias, recurrent_bias, full, full_bias] = split(params, self.flat_lens());
        let parts = self.parts_mut(working);
        let stacked = Layout::panels(self.inputs());
        self.gates.load(input, stacked, parts.matrix);
        self.gates.load(recurrent, stacked, &mut parts.matrix[self.vectors.dim * stacked.row..]);
        self.gates.load_vector(input_bias, parts.input_bias);
        self.gates.load_vector(recurrent_bias, parts.recurrent_bias);
        parts.full[..full.len()].copy_from_slice(full);
        parts.full_bias[0] = full_bias[0];
    }

    fn store(&self, working: &[f32], params: &mut [f32]) {
        let [input, recurrent, input_bias, recurrent_bias, full, full_bias] =
            split_mut(params, self.flat_lens());
        let parts = self.parts(working);
        let stacked = Layout::panels(self.inputs());
        self.gates.store(parts.matrix, stacked, input);
        self.gates.store(self.recurrent(parts.matrix), stacked, recurrent);
        self.gates.store_vector(parts.input_bias, input_bias);
        self.gates.store_vector(parts.recurrent_bias, recurrent_bias);
        full.copy_from_slice(&parts.full[..self.gates.hidden]);
        full_bias[0] = parts.full_bias[0];
    }

    fn step_scratch_len(&self, batch: usize) -> usize {
        self.forward_len(batch, self.len) + self.backward_len(batch)
    }

    fn step(&self, working: &mut [f32], batch: Batch<'_>, step: Step, scratch: &mut [f32]) {
        let mut memory = scratch;
        let scale = -step.learning_rate / batch.len() as f32;
        let mut forward = self.differentiate(working, batch, scale, &mut memory);
        self.descend(self.parts_mut(working), 1.0 - step.learning_rate * step.l2, &mut forward);
    }
}
