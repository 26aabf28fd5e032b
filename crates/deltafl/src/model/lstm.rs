//! The tweet model: frozen word vectors → LSTM, last output → one logit (Sent140 LSTM).
//!
//! Flat order, as in PyTorch: W_ih `4H × dim`, W_hh `4H × H`, b_ih, b_hh, full layer `H`, its bias.
//! Gates are in the order i, f, g, o. All `len` words are read, including padding, without a mask.
//!
//! W_ih and W_hh are stacked, and x_t and h_t are concatenated. Therefore a time step is one
//! product, and so is the gradient of both matrices over all time steps.

use super::layout::{Gates, section, sections_len, split, split_mut, take_sections};
use super::logistic;
use super::network::{self, LayeredModel};
use super::{Batch, Model, ModelDefinition, Score, Step, Tensor};
use crate::data::WordVectors;
use crate::kernel::logistic as kernel_logistic;
use crate::kernel::lstm::{self, Units};
use crate::kernel::product::{Entries, Layout, Shape, padded, panels_len, product, transposed};
use crate::kernel::{Granted, Isa, sums};
use crate::options::{OptionDefault, OptionKind, OptionSpec, OptionValue};
use crate::stream::Stream;
use crate::task::Task;

/// The entry of the table.
pub static LSTM: ModelDefinition = ModelDefinition {
    kind: "lstm",
    about: "the LSTM over frozen word vectors, for two classes",
    tasks: &["binary"],
    options: &[OptionSpec::new(
        "hidden",
        OptionKind::Whole(1),
        OptionDefault::Value(OptionValue::Whole(50)),
        "units of the recurrent layer",
        OptionValue::Whole(64),
    )],
    build: |request| {
        request.two_classes()?;
        let (len, vectors) = request.words()?;
        Ok(Box::new(Lstm::new(vectors, len, request.size("hidden")?, request.isa)))
    },
};

/// The LSTM.
#[derive(Clone, Debug)]
pub struct Lstm {
    vectors: WordVectors,
    len: usize,
    gates: Gates,
    kernel: Granted,
}

impl Lstm {
    /// Creates an LSTM of `hidden` units over sequences of `len` words with these vectors.
    ///
    /// # Panics
    /// If this CPU does not support the instruction set.
    pub fn new(vectors: WordVectors, len: usize, hidden: usize, isa: Isa) -> Self {
        Self { vectors, len, gates: Gates { count: 4, hidden, multiple: 8 }, kernel: Granted::new(isa) }
    }

    /// Returns the rows of the stacked matrices.
    fn inputs(&self) -> usize {
        self.vectors.dim + self.gates.hidden
    }

    /// Returns the floats of a row (x_t, h_t).
    fn width(&self) -> usize {
        self.vectors.dim + self.gates.units()
    }

    /// Returns the floats of a row of cells.
    fn cells(&self) -> usize {
        padded(self.gates.hidden)
    }

    /// Splits the parameters: W_ih, W_hh, b_ih, b_hh, full, bias.
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

    /// Returns the start of W_hh in the stacked matrices.
    fn recurrent<'a>(&self, matrix: &'a [f32]) -> &'a [f32] {
        &matrix[self.vectors.dim * Layout::panels(self.inputs()).row..]
    }

    /// Runs the forward pass of a batch up to the logits.
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

    /// Runs backward through time, from the residuals in `forward.logits` to the slopes of all
    /// gates.
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
}

/// Parameters in working form. `matrix` is W_ih stacked on W_hh.
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
pub(super) struct Forward<'a> {
    batch: usize,
    /// Whether each time step overwrites the previous one.
    rolling: bool,
    /// b_ih + b_hh.
    bias: &'a mut [f32],
    /// i, f, g, o of each time step. After the backward pass, their slopes.
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
    /// Returns the sections of a pass with this many stored time steps.
    fn lens(model: &Lstm, batch: usize, steps: usize) -> [usize; 6] {
        let (columns, cells) = (model.gates.columns(), model.cells());
        [
            columns,
            steps * batch * columns,
            (steps + 1) * batch * model.width(),
            (steps + 1) * batch * cells,
            steps * batch * cells,
            batch,
        ]
    }

    /// Creates a pass that stores one time step at a time.
    fn for_evaluation(model: &Lstm, batch: usize, mut memory: &'a mut [f32]) -> Self {
        Self { rolling: true, ..Self::take(model, batch, 1, &mut memory) }
    }

    /// Creates a pass that supports a backward pass.
    fn for_training(model: &Lstm, batch: usize, memory: &mut &'a mut [f32]) -> Self {
        Self::take(model, batch, model.len, memory)
    }

    fn take(model: &Lstm, batch: usize, steps: usize, memory: &mut &'a mut [f32]) -> Self {
        let [bias, gates, inputs, cells, squashed, logits] =
            take_sections(memory, Self::lens(model, batch, steps));
        Self { batch, rolling: false, bias, gates, inputs, cells, squashed, logits }
    }

    /// Returns the position of time step t.
    fn slot(&self, t: usize) -> usize {
        if self.rolling { 0 } else { t }
    }

    /// In a rolling pass, copies the result of a time step to the state before the next.
    fn carry(&mut self) {
        if self.rolling {
            let half = self.cells.len() / 2;
            self.cells.copy_within(half.., 0);
        }
    }
}

/// Memory of a backward pass.
pub(super) struct Backward<'a> {
    /// W_hhᵀ.
    transposed: &'a mut [f32],
    /// dh.
    slope: &'a mut [f32],
    /// dc.
    cell_slope: &'a mut [f32],
}

impl<'a> Backward<'a> {
    fn lens(model: &Lstm, batch: usize) -> [usize; 3] {
        let cells = model.cells();
        [panels_len(model.gates.columns(), cells), batch * cells, batch * cells]
    }

    fn take(model: &Lstm, batch: usize, memory: &mut &'a mut [f32]) -> Self {
        let [transposed, slope, cell_slope] = take_sections(memory, Self::lens(model, batch));
        Self { transposed, slope, cell_slope }
    }
}

impl LayeredModel for Lstm {
    const PART: usize = 48;
    type Slopes<'a> = Forward<'a>;

    fn differentiate<'a>(
        &self,
        working: &[f32],
        batch: Batch<'_>,
        scale: f32,
        mut memory: &'a mut [f32],
    ) -> Forward<'a> {
        let parts = self.parts(working);
        let mut forward = Forward::for_training(self, batch.len(), &mut memory);
        let mut backward = Backward::take(self, batch.len(), &mut memory);
        // h₀: zero in the first rows.
        for row in forward.inputs[..batch.len() * self.width()].chunks_exact_mut(self.width()) {
            row[self.vectors.dim..].fill(0.0);
        }
        self.forward(&parts, batch.inputs.tokens(), &mut forward);
        kernel_logistic::residuals(self.kernel, forward.logits, batch.targets.classes(), scale);
        self.backward(&parts, &mut forward, &mut backward);
        forward
    }

    fn descend(&self, working: &mut [f32], decay: f32, forward: Forward<'_>) {
        let (parts, kernel) = (self.parts_mut(working), self.kernel);
        let (columns, width, batch) = (self.gates.columns(), self.width(), forward.batch);
        let (dim, hidden) = (self.vectors.dim, self.gates.hidden);
        // The bias is no longer needed, so its memory is reused for the slopes.
        forward.bias.fill(0.0);
        sums::add_rows(kernel, forward.gates, forward.bias);
        sums::add_decayed(kernel, forward.bias, decay, parts.input_bias);
        sums::add_decayed(kernel, forward.bias, decay, parts.recurrent_bias);

        let shape = Shape { m: self.inputs(), n: columns, k: self.len * batch };
        let inputs = Entries { values: forward.inputs, row: 1, column: width };
        let layouts = [Layout::rows(columns), Layout::panels(self.inputs())];
        product(kernel, shape, inputs, forward.gates, layouts[0], parts.matrix, layouts[1], decay);

        parts.full.iter_mut().chain(&mut *parts.full_bias).for_each(|w| *w *= decay);
        let last = forward.inputs[self.len * batch * width..].chunks_exact(width);
        for (residual, row) in forward.logits.iter().zip(last) {
            parts.full[..hidden].iter_mut().zip(&row[dim..]).for_each(|(w, h)| *w += residual * h);
            parts.full_bias[0] += residual;
        }
    }
}

impl Model for Lstm {
    fn task(&self) -> Task {
        Task::Binary
    }

    fn num_params(&self) -> usize {
        self.flat_lens().iter().sum()
    }

    fn tensors(&self) -> Vec<Tensor> {
        let (rows, hidden) = (self.gates.rows(), self.gates.hidden);
        vec![
            Tensor::new("lstm.weight_ih_l0", &[rows, self.vectors.dim]),
            Tensor::new("lstm.weight_hh_l0", &[rows, hidden]),
            Tensor::new("lstm.bias_ih_l0", &[rows]),
            Tensor::new("lstm.bias_hh_l0", &[rows]),
            Tensor::new("fc.weight", &[1, hidden]),
            Tensor::new("fc.bias", &[1]),
        ]
    }

    /// U(±1/√H).
    fn init(&self, stream: &mut Stream, params: &mut [f32]) {
        let bound = 1.0 / (self.gates.hidden as f64).sqrt();
        params.iter_mut().for_each(|w| *w = stream.uniform(-bound, bound) as f32);
    }

    fn scratch_len(&self, batch: usize) -> usize {
        network::scratch_len(self, batch, sections_len(Forward::lens(self, batch.min(Self::PART), 1)))
    }

    fn gradient(&self, params: &[f32], batch: Batch<'_>, gradient: &mut [f32], scratch: &mut [f32]) -> f64 {
        network::gradient(self, params, batch, gradient, scratch)
    }

    fn evaluate(&self, working: &[f32], batch: Batch<'_>, scratch: &mut [f32]) -> Score {
        let parts = self.parts(working);
        let mut score = Score::default();
        for part in network::parts(self, batch) {
            let mut forward = Forward::for_evaluation(self, part.len(), scratch);
            self.forward(&parts, part.inputs.tokens(), &mut forward);
            score += logistic::score(forward.logits, part.targets.classes());
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
        sections_len(Forward::lens(self, batch, self.len)) + sections_len(Backward::lens(self, batch))
    }

    fn step(&self, working: &mut [f32], batch: Batch<'_>, step: Step<'_>, scratch: &mut [f32]) {
        network::step(self, working, batch, step, scratch);
    }
}
