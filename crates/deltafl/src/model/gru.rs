//! The character model of Shakespeare: a GRU over symbols, last state → full layer (spec §4).
//!
//! Flat order, as PyTorch's: embedding `alphabet × dim` (if trained), W_ih `3H × inputs`, W_hh `3H × H`, b_ih, b_hh, full layer
//! `classes × H`, its biases; gates in the order r, z, n.
//!
//! What a symbol adds to the gates, W_ih x + b_ih, is one row of a table with a row per symbol, made once per
//! batch: with one-hot input the table is W_ih itself, and with an embedding a small product. So the input
//! costs a look-up forward and the addition of a row back, in both cases.

use super::layout::{
    Gates, add_decayed, add_rows, load_transposed, section, split, split_mut, store_transposed, take,
};
use super::{Batch, Inputs, Model, Score, Step};
use crate::kernel::gru::{self, Units};
use crate::kernel::product::{Entries, Layout, Shape, padded, panels_len, product, transposed};
use crate::kernel::softmax::{self, Rows};
use crate::kernel::{Granted, Isa};
use crate::stream::Stream;

/// Examples that a forward pass holds at once.
const FORWARD: usize = 48;

/// How a symbol enters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Embedding {
    /// As a unit vector (the paper).
    OneHot,
    /// As a trained vector of so many entries (the authors' released code, with 8).
    Trained(usize),
}

/// The GRU.
#[derive(Clone, Debug)]
pub struct Gru {
    len: usize,
    alphabet: usize,
    embedding: Embedding,
    gates: Gates,
    classes: usize,
    kernel: Granted,
}

impl Gru {
    /// A GRU over windows of `len` symbols.
    ///
    /// # Panics
    /// When this CPU lacks the instruction set.
    pub fn new(
        len: usize,
        alphabet: usize,
        embedding: Embedding,
        hidden: usize,
        classes: usize,
        isa: Isa,
    ) -> Self {
        Self {
            len,
            alphabet,
            embedding,
            gates: Gates { count: 3, hidden },
            classes,
            kernel: Granted::new(isa),
        }
    }

    fn rows(&self) -> Rows {
        Rows { classes: self.classes, stride: padded(self.classes) }
    }

    /// Inputs of W_ih.
    fn inputs(&self) -> usize {
        match self.embedding {
            Embedding::OneHot => self.alphabet,
            Embedding::Trained(dim) => dim,
        }
    }

    /// Entries of the embedding of all symbols.
    fn embedding_len(&self) -> usize {
        match self.embedding {
            Embedding::OneHot => 0,
            Embedding::Trained(dim) => self.alphabet * dim,
        }
    }

    /// Floats of a row of states.
    fn states(&self) -> usize {
        padded(self.gates.hidden)
    }

    /// Embedding, W_ih, W_hh, b_ih, b_hh, full, bias.
    fn flat_lens(&self) -> [usize; 7] {
        let Gates { hidden, .. } = self.gates;
        let rows = self.gates.rows();
        let full = self.classes * hidden;
        [self.embedding_len(), rows * self.inputs(), rows * hidden, rows, rows, full, self.classes]
    }

    fn working_lens(&self) -> [usize; 7] {
        let columns = self.gates.columns();
        let recurrent = panels_len(self.gates.hidden, columns);
        let full = panels_len(self.gates.hidden, padded(self.classes));
        [
            self.embedding_len(),
            self.inputs() * columns,
            recurrent,
            columns,
            columns,
            full,
            padded(self.classes),
        ]
        .map(section)
    }

    fn parts<'a>(&self, working: &'a [f32]) -> Parts<&'a [f32]> {
        Parts::from(split(working, self.working_lens()))
    }

    fn parts_mut<'a>(&self, working: &'a mut [f32]) -> Parts<&'a mut [f32]> {
        Parts::from(split_mut(working, self.working_lens()))
    }

    /// Rows that the memory of a batch has room for: of every time step, or of the last two.
    fn forward_len(&self, batch: usize, steps: usize) -> usize {
        section(self.alphabet * self.gates.columns())
            + section(steps * batch * self.gates.columns())
            + section(steps * batch * self.states())
            + section((steps + 1) * batch * self.states())
            + section(batch * self.rows().stride)
    }

    fn backward_len(&self, batch: usize) -> usize {
        let columns = self.gates.columns();
        section(panels_len(columns, self.states()))
            + section(panels_len(padded(self.classes), self.states()))
            + section(batch * self.states())
            + section(self.alphabet * columns)
            + section(panels_len(columns, padded(self.inputs())))
            + section(self.embedding_len())
    }

    /// The table: W_ih x + b_ih of each symbol, and b_hh of the gates r and z.
    fn fill_table(&self, parts: &Parts<&[f32]>, table: &mut [f32]) {
        let (columns, direct) = (self.gates.columns(), 2 * self.gates.units());
        for row in table.chunks_exact_mut(columns) {
            row.copy_from_slice(&parts.input_bias[..columns]);
            row[..direct].iter_mut().zip(parts.recurrent_bias).for_each(|(sum, b)| *sum += b);
        }
        match self.embedding {
            Embedding::OneHot => table.iter_mut().zip(parts.input).for_each(|(sum, w)| *sum += w),
            Embedding::Trained(dim) => {
                let shape = Shape { m: self.alphabet, n: columns, k: dim };
                let embedding = Entries { values: parts.embedding, row: dim, column: 1 };
                let rows = Layout::rows(columns);
                product(self.kernel, shape, embedding, parts.input, rows, table, rows, 1.0);
            }
        }
    }

    /// The forward pass of a batch, as far as the logits.
    fn forward(&self, parts: &Parts<&[f32]>, tokens: &[u32], memory: &mut Forward<'_>) {
        let (columns, states, batch) = (self.gates.columns(), self.states(), memory.batch);
        let (kernel, units) = (self.kernel, self.gates.units());
        let rows = Units { batch, units, gates: columns, states };
        memory.states[..batch * states].fill(0.0);
        for t in 0..self.len {
            let slot = memory.slot(t);
            let gates = &mut memory.gates[slot * batch * columns..][..batch * columns];
            let (before, after) = memory.states.split_at_mut((slot + 1) * batch * states);
            let before = &before[slot * batch * states..];
            if t > 0 {
                let shape = Shape { m: batch, n: columns, k: self.gates.hidden };
                let h = Entries { values: before, row: states, column: 1 };
                let layouts = [Layout::panels(self.gates.hidden), Layout::rows(columns)];
                product(kernel, shape, h, parts.recurrent, layouts[0], gates, layouts[1], 0.0);
            } else {
                gates.fill(0.0);
            }
            let inner = &mut memory.inner[slot * batch * states..][..batch * states];
            let after = &mut after[..batch * states];
            let step = gru::Forward {
                gates,
                inner,
                before,
                after,
                table: memory.table,
                bias: &parts.recurrent_bias[2 * units..],
                symbols: &tokens[t..],
                length: self.len,
            };
            gru::forward(kernel, rows, step);
            memory.carry();
        }
        let last = &memory.states[memory.slot(self.len) * batch * states..];
        let stride = self.rows().stride;
        for row in memory.logits.chunks_exact_mut(stride) {
            row.copy_from_slice(&parts.full_bias[..stride]);
        }
        let shape = Shape { m: batch, n: stride, k: self.gates.hidden };
        let h = Entries { values: last, row: states, column: 1 };
        let layouts = [Layout::panels(self.gates.hidden), Layout::rows(stride)];
        product(kernel, shape, h, parts.full, layouts[0], memory.logits, layouts[1], 1.0);
    }

    /// Back through time, from the residuals that `forward.logits` holds to the slopes of all gates.
    fn backward(
        &self,
        parts: &Parts<&[f32]>,
        tokens: &[u32],
        forward: &mut Forward<'_>,
        memory: &mut Backward<'_>,
    ) {
        let (columns, states, batch) = (self.gates.columns(), self.states(), forward.batch);
        let (kernel, hidden, stride) = (self.kernel, self.gates.hidden, self.rows().stride);
        let panels = Layout::panels(hidden);
        transposed(kernel, hidden, columns, parts.recurrent, panels, memory.recurrent_transposed);
        transposed(kernel, hidden, stride, parts.full, panels, memory.full_transposed);
        let shape = Shape { m: batch, n: states, k: self.classes };
        let residuals = Entries { values: forward.logits, row: stride, column: 1 };
        let layouts = [Layout::panels(stride), Layout::rows(states)];
        product(kernel, shape, residuals, memory.full_transposed, layouts[0], memory.slope, layouts[1], 0.0);

        let rows = Units { batch, units: self.gates.units(), gates: columns, states };
        for t in (0..self.len).rev() {
            let gates = &mut forward.gates[t * batch * columns..][..batch * columns];
            let inner = &mut forward.inner[t * batch * states..][..batch * states];
            let before = &forward.states[t * batch * states..][..batch * states];
            gru::backward(kernel, rows, gru::Backward { gates, inner, before, slope: memory.slope });
            if t > 0 {
                let shape = Shape { m: batch, n: states, k: 3 * self.gates.units() };
                let slopes = Entries { values: gates, row: columns, column: 1 };
                let layouts = [Layout::panels(columns), Layout::rows(states)];
                product(
                    kernel,
                    shape,
                    slopes,
                    memory.recurrent_transposed,
                    layouts[0],
                    memory.slope,
                    layouts[1],
                    1.0,
                );
            }
        }
        self.table_gradient(tokens, forward, memory.table);
        if let Embedding::Trained(dim) = self.embedding {
            transposed(kernel, dim, columns, parts.input, Layout::rows(columns), memory.input_transposed);
            memory.embedding.copy_from_slice(&parts.embedding[..self.embedding_len()]);
        }
    }

    /// The gradient of the table: the slopes of a row are those of the gates whenever its symbol came.
    fn table_gradient(&self, tokens: &[u32], forward: &Forward<'_>, table: &mut [f32]) {
        let (columns, states, units) = (self.gates.columns(), self.states(), self.gates.units());
        table.fill(0.0);
        for t in 0..self.len {
            for (i, window) in tokens.chunks_exact(self.len).enumerate() {
                let row = t * forward.batch + i;
                let sum = &mut table[window[t] as usize * columns..][..columns];
                let (direct, inner) = sum.split_at_mut(2 * units);
                add_rows(direct, &forward.gates[row * columns..][..2 * units], 2 * units);
                add_rows(&mut inner[..units], &forward.inner[row * states..][..units], units);
            }
        }
    }

    /// parts ← decay·parts + gradient.
    fn descend(&self, parts: Parts<&mut [f32]>, decay: f32, forward: &Forward<'_>, backward: &Backward<'_>) {
        let (columns, states, batch) = (self.gates.columns(), self.states(), forward.batch);
        let (kernel, hidden, stride) = (self.kernel, self.gates.hidden, self.rows().stride);
        let (panels, rows) = (Layout::panels(hidden), Layout::rows(columns));
        if self.len > 1 {
            let shape = Shape { m: hidden, n: columns, k: (self.len - 1) * batch };
            let h = Entries { values: &forward.states[batch * states..], row: 1, column: states };
            let slopes = &forward.gates[batch * columns..];
            product(kernel, shape, h, slopes, rows, parts.recurrent, panels, decay);
        } else {
            parts.recurrent.iter_mut().for_each(|w| *w *= decay);
        }
        self.descend_biases(parts.input_bias, parts.recurrent_bias, decay, forward, backward);
        self.descend_inputs(parts.embedding, parts.input, decay, backward);

        let last = Entries { values: &forward.states[self.len * batch * states..], row: 1, column: states };
        let shape = Shape { m: hidden, n: stride, k: batch };
        product(kernel, shape, last, forward.logits, Layout::rows(stride), parts.full, panels, decay);
        parts.full_bias.iter_mut().for_each(|b| *b *= decay);
        add_rows(parts.full_bias, forward.logits, stride);
    }

    /// b_ih and b_hh have the same slopes at r and z; at n that of b_hh passes the reset gate.
    fn descend_biases(
        &self,
        input: &mut [f32],
        recurrent: &mut [f32],
        decay: f32,
        forward: &Forward<'_>,
        backward: &Backward<'_>,
    ) {
        let (columns, direct) = (self.gates.columns(), 2 * self.gates.units());
        input.iter_mut().chain(recurrent.iter_mut()).for_each(|b| *b *= decay);
        add_rows(input, backward.table, columns);
        add_rows(&mut recurrent[..direct], backward.table, columns);
        for row in forward.gates.chunks_exact(columns) {
            recurrent[direct..columns].iter_mut().zip(&row[direct..]).for_each(|(b, slope)| *b += slope);
        }
    }

    fn descend_inputs(&self, embedding: &mut [f32], input: &mut [f32], decay: f32, backward: &Backward<'_>) {
        let Embedding::Trained(dim) = self.embedding else {
            return add_decayed(input, backward.table, decay);
        };
        let (columns, kernel) = (self.gates.columns(), self.kernel);
        let rows = Layout::rows(columns);
        let vectors = Entries { values: backward.embedding, row: 1, column: dim };
        let shape = Shape { m: dim, n: columns, k: self.alphabet };
        product(kernel, shape, vectors, backward.table, rows, input, rows, decay);
        // The embedding is small, and its rows are not padded: entry by entry.
        let transposed = Layout::panels(columns);
        for (vector, slopes) in embedding.chunks_exact_mut(dim).zip(backward.table.chunks_exact(columns)) {
            for (j, e) in vector.iter_mut().enumerate() {
                let slope: f32 = slopes
                    .iter()
                    .enumerate()
                    .map(|(p, s)| s * backward.input_transposed[transposed.at(p, j)])
                    .sum();
                *e = decay * *e + slope;
            }
        }
    }

    fn differentiate<'a>(
        &self,
        working: &[f32],
        batch: Batch<'_>,
        scale: f32,
        memory: &mut &'a mut [f32],
    ) -> (Forward<'a>, Backward<'a>) {
        let (parts, tokens) = (self.parts(working), batch.inputs.tokens());
        let mut forward = Forward::take(self, batch.len(), false, memory);
        let mut backward = Backward::take(self, batch.len(), memory);
        self.fill_table(&parts, forward.table);
        self.forward(&parts, tokens, &mut forward);
        softmax::residuals(self.kernel, self.rows(), forward.logits, batch.labels, scale);
        self.backward(&parts, tokens, &mut forward, &mut backward);
        (forward, backward)
    }
}

/// Parameters in working form.
struct Parts<T> {
    embedding: T,
    input: T,
    recurrent: T,
    input_bias: T,
    recurrent_bias: T,
    full: T,
    full_bias: T,
}

impl<T> From<[T; 7]> for Parts<T> {
    fn from([embedding, input, recurrent, input_bias, recurrent_bias, full, full_bias]: [T; 7]) -> Self {
        Self { embedding, input, recurrent, input_bias, recurrent_bias, full, full_bias }
    }
}

/// Memory of a forward pass: of all time steps for training, of the last one for evaluation.
struct Forward<'a> {
    batch: usize,
    /// Whether each time step takes the place of the one before.
    rolling: bool,
    table: &'a mut [f32],
    /// r, z, ĥ of each time step; after the backward pass, their slopes.
    gates: &'a mut [f32],
    /// n of each time step; after the backward pass, its slope.
    inner: &'a mut [f32],
    /// h before each time step, and after the last.
    states: &'a mut [f32],
    logits: &'a mut [f32],
}

impl<'a> Forward<'a> {
    fn take(model: &Gru, batch: usize, rolling: bool, memory: &mut &'a mut [f32]) -> Self {
        let (columns, states) = (model.gates.columns(), model.states());
        let steps = if rolling { 1 } else { model.len };
        Self {
            batch,
            rolling,
            table: take(memory, model.alphabet * columns),
            gates: take(memory, steps * batch * columns),
            inner: take(memory, steps * batch * states),
            states: take(memory, (steps + 1) * batch * states),
            logits: take(memory, batch * model.rows().stride),
        }
    }

    /// Where time step t is kept.
    fn slot(&self, t: usize) -> usize {
        if self.rolling { 0 } else { t }
    }

    /// In a rolling pass, the outcome of a time step becomes the state before the next.
    fn carry(&mut self) {
        if self.rolling {
            let half = self.states.len() / 2;
            self.states.copy_within(half.., 0);
        }
    }
}

/// Memory of a backward pass.
struct Backward<'a> {
    recurrent_transposed: &'a mut [f32],
    full_transposed: &'a mut [f32],
    /// dh.
    slope: &'a mut [f32],
    /// The gradient of the table.
    table: &'a mut [f32],
    input_transposed: &'a mut [f32],
    embedding: &'a mut [f32],
}

impl<'a> Backward<'a> {
    fn take(model: &Gru, batch: usize, memory: &mut &'a mut [f32]) -> Self {
        let (columns, states) = (model.gates.columns(), model.states());
        Self {
            recurrent_transposed: take(memory, panels_len(columns, states)),
            full_transposed: take(memory, panels_len(padded(model.classes), states)),
            slope: take(memory, batch * states),
            table: take(memory, model.alphabet * columns),
            input_transposed: take(memory, panels_len(columns, padded(model.inputs()))),
            embedding: take(memory, model.embedding_len()),
        }
    }
}

impl Model for Gru {
    fn num_params(&self) -> usize {
        self.flat_lens().iter().sum()
    }

    /// U(±1/√H), and a standard normal embedding.
    fn init(&self, stream: &mut Stream, params: &mut [f32]) {
        let (embedding, rest) = params.split_at_mut(self.embedding_len());
        embedding.iter_mut().for_each(|e| *e = stream.normal() as f32);
        let bound = 1.0 / (self.gates.hidden as f64).sqrt();
        rest.iter_mut().for_each(|w| *w = stream.uniform(-bound, bound) as f32);
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
            let (forward, backward) =
                self.differentiate(working, part, 1.0 / batch.len() as f32, &mut &mut *memory);
            self.descend(self.parts_mut(total), 1.0, &forward, &backward);
        }
        self.store(total, gradient);
        loss / batch.len() as f64
    }

    fn evaluate(&self, working: &[f32], batch: Batch<'_>, scratch: &mut [f32]) -> Score {
        let parts = self.parts(working);
        let mut score = Score::default();
        let tokens = batch.inputs.tokens().chunks(FORWARD * self.len);
        for (i, (labels, tokens)) in batch.labels.chunks(FORWARD).zip(tokens).enumerate() {
            let mut forward = Forward::take(self, labels.len(), true, &mut &mut *scratch);
            if i == 0 {
                self.fill_table(&parts, forward.table);
            }
            self.forward(&parts, tokens, &mut forward);
            score += softmax::score(self.kernel, self.rows(), forward.logits, labels);
        }
        score
    }

    fn working_len(&self) -> usize {
        self.working_lens().iter().sum()
    }

    fn load(&self, params: &[f32], working: &mut [f32]) {
        working.fill(0.0);
        let flat = Parts::from(split(params, self.flat_lens()));
        let parts = self.parts_mut(working);
        let panels = Layout::panels(self.gates.hidden);
        parts.embedding[..flat.embedding.len()].copy_from_slice(flat.embedding);
        self.gates.load(flat.input, Layout::rows(self.gates.columns()), parts.input);
        self.gates.load(flat.recurrent, panels, parts.recurrent);
        self.gates.load_vector(flat.input_bias, parts.input_bias);
        self.gates.load_vector(flat.recurrent_bias, parts.recurrent_bias);
        load_transposed(flat.full, self.gates.hidden, panels, parts.full);
        parts.full_bias[..self.classes].copy_from_slice(flat.full_bias);
    }

    fn store(&self, working: &[f32], params: &mut [f32]) {
        let flat = Parts::from(split_mut(params, self.flat_lens()));
        let parts = self.parts(working);
        let panels = Layout::panels(self.gates.hidden);
        let embedding = flat.embedding.len();
        flat.embedding.copy_from_slice(&parts.embedding[..embedding]);
        self.gates.store(parts.input, Layout::rows(self.gates.columns()), flat.input);
        self.gates.store(parts.recurrent, panels, flat.recurrent);
        self.gates.store_vector(parts.input_bias, flat.input_bias);
        self.gates.store_vector(parts.recurrent_bias, flat.recurrent_bias);
        store_transposed(parts.full, self.gates.hidden, panels, flat.full);
        flat.full_bias.copy_from_slice(&parts.full_bias[..self.classes]);
    }

    fn step_scratch_len(&self, batch: usize) -> usize {
        self.forward_len(batch, self.len) + self.backward_len(batch)
    }

    fn step(&self, working: &mut [f32], batch: Batch<'_>, step: Step, scratch: &mut [f32]) {
        let mut memory = scratch;
        let scale = -step.learning_rate / batch.len() as f32;
        let (forward, backward) = self.differentiate(working, batch, scale, &mut memory);
        self.descend(self.parts_mut(working), 1.0 - step.learning_rate * step.l2, &forward, &backward);
    }
}
