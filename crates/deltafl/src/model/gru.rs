//! The character model of Shakespeare: a GRU over symbols, last state → full layer.
//!
//! Flat order, as in PyTorch: embedding `alphabet × dim` (if trained), W_ih `3H × inputs`, W_hh `3H
//! × H`, b_ih, b_hh, full layer `classes × H`, its biases. Gates are in the order r, z, n.
//!
//! The contribution of a symbol to the gates, W_ih x + b_ih, is one row of a table, computed once
//! per batch. With one-hot input the table is W_ih itself, and with an embedding a small product.
//! In both cases the input costs a look-up forward and the addition of a row backward.

use super::full::Full;
use super::layout::{Gates, load_transposed, section, sections_len, split, split_mut, store_transposed};
use super::network::{self, LayeredModel};
use super::{Batch, Model, ModelDefinition, ModelMismatch, ModelRequest, Score, Step, Tensor};
use crate::data::InputKind;
use crate::kernel::gru::{self, Kept, Recurrent, Units};
use crate::kernel::product::{Entries, Layout, Shape, padded, panels_len, product, transposed};
use crate::kernel::{Granted, Isa, softmax, sums};
use crate::options::{OptionDefault, OptionKind, OptionSpec, OptionValue};
use crate::stream::Stream;
use crate::task::Task;

mod memory;

use memory::{Backward, Forward, Parts, around};

/// The entry of the table.
pub static GRU: ModelDefinition = ModelDefinition {
    kind: "gru",
    about: "the GRU over symbols or words",
    tasks: &["next-symbol", "classes"],
    options: &[
        OptionSpec::new(
            "hidden",
            OptionKind::Whole(1),
            OptionDefault::Value(OptionValue::Whole(128)),
            "units of the recurrent layer",
            OptionValue::Whole(64),
        ),
        OptionSpec::new(
            "embedding",
            OptionKind::Whole(0),
            OptionDefault::Value(OptionValue::Whole(0)),
            "entries of the trained embedding of a symbol; 0 is one-hot input",
            OptionValue::Whole(8),
        ),
    ],
    build,
};

fn build(request: &ModelRequest<'_>) -> Result<Box<dyn Model>, ModelMismatch> {
    let (len, alphabet) = request.sequences()?;
    let embedding = match request.size("embedding")? {
        0 => Embedding::OneHot,
        entries => Embedding::Trained(entries),
    };
    let classes = request.classes()?;
    let gru = Gru::new(len, alphabet, embedding, request.size("hidden")?, classes, request.isa);
    let follows = matches!(request.federation.kind(), InputKind::Windows { .. });
    Ok(Box::new(if follows { gru } else { gru.of_classes() }))
}

/// The encoding of a symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Embedding {
    /// A unit vector (the paper).
    OneHot,
    /// A trained vector of this many entries (the authors' released code, with 8).
    Trained(usize),
}

/// The GRU.
#[derive(Clone, Debug)]
pub struct Gru {
    len: usize,
    alphabet: usize,
    embedding: Embedding,
    gates: Gates,
    full: Full,
    task: Task,
    kernel: Granted,
}

impl Gru {
    /// Creates a GRU over windows of `len` symbols.
    ///
    /// # Panics
    /// If this CPU does not support the instruction set.
    pub fn new(
        len: usize,
        alphabet: usize,
        embedding: Embedding,
        hidden: usize,
        classes: usize,
        isa: Isa,
    ) -> Self {
        let kernel = Granted::new(isa);
        let gates = Gates { count: 3, hidden, multiple: gru::UNITS };
        let full = Full { inputs: hidden, classes, kernel };
        Self { len, alphabet, embedding, gates, full, task: Task::NextSymbol, kernel }
    }

    /// Returns the same network for classes other than the next symbols.
    pub fn of_classes(self) -> Self {
        Self { task: Task::Classes, ..self }
    }

    /// Returns the inputs of W_ih.
    fn inputs(&self) -> usize {
        match self.embedding {
            Embedding::OneHot => self.alphabet,
            Embedding::Trained(dim) => dim,
        }
    }

    /// Returns the entries of the embedding of all symbols.
    fn embedding_len(&self) -> usize {
        match self.embedding {
            Embedding::OneHot => 0,
            Embedding::Trained(dim) => self.alphabet * dim,
        }
    }

    /// Returns the layout of the rows of a time step.
    fn rows(&self, batch: usize) -> Units {
        let (units, gates) = (self.gates.units(), self.gates.columns());
        Units { batch, units, gates, states: padded(self.gates.hidden) }
    }

    /// Splits the parameters: embedding, W_ih, W_hh, b_ih, b_hh, full, bias.
    fn flat_lens(&self) -> [usize; 7] {
        let Gates { hidden, .. } = self.gates;
        let (rows, classes) = (self.gates.rows(), self.full.classes);
        [self.embedding_len(), rows * self.inputs(), rows * hidden, rows, rows, classes * hidden, classes]
    }

    fn working_lens(&self) -> [usize; 7] {
        let columns = self.gates.columns();
        let recurrent = panels_len(self.gates.hidden, columns);
        let [full, full_bias] = self.full.working_lens();
        [self.embedding_len(), self.inputs() * columns, recurrent, columns, columns, full, full_bias]
            .map(section)
    }

    fn parts<'a>(&self, working: &'a [f32]) -> Parts<&'a [f32]> {
        Parts::from(split(working, self.working_lens()))
    }

    fn parts_mut<'a>(&self, working: &'a mut [f32]) -> Parts<&'a mut [f32]> {
        Parts::from(split_mut(working, self.working_lens()))
    }

    /// Fills the table: W_ih x + b_ih of each symbol, and b_hh of the gates r and z.
    fn fill_table(&self, parts: &Parts<&[f32]>, memory: &mut Forward<'_>) {
        let (columns, direct) = (self.gates.columns(), 2 * self.gates.units());
        memory.bias.copy_from_slice(&parts.input_bias[..columns]);
        sums::add_rows(self.kernel, &parts.recurrent_bias[..direct], &mut memory.bias[..direct]);
        match self.embedding {
            Embedding::OneHot => sums::biased(self.kernel, parts.input, memory.bias, memory.table),
            Embedding::Trained(dim) => {
                memory.table.chunks_exact_mut(columns).for_each(|row| row.copy_from_slice(memory.bias));
                let shape = Shape { m: self.alphabet, n: columns, k: dim };
                let embedding = Entries { values: parts.embedding, row: dim, column: 1 };
                let rows = Layout::rows(columns);
                product(self.kernel, shape, embedding, parts.input, rows, memory.table, rows, 1.0);
            }
        }
    }

    /// Runs the forward pass of a batch up to the logits. The table must have been filled.
    fn forward(&self, parts: &Parts<&[f32]>, tokens: &[u32], memory: &mut Forward<'_>) {
        let rows = memory.rows;
        memory.states[..rows.batch * rows.states].fill(0.0);
        for t in 0..self.len {
            let (before, after) = around(memory.states, rows.batch * rows.states, t);
            let recurrent = Recurrent { panels: parts.recurrent, hidden: self.gates.hidden };
            let step = gru::Forward {
                recurrent: (t > 0).then_some(recurrent),
                before,
                after,
                table: memory.table,
                bias: &parts.recurrent_bias[2 * rows.units..],
                symbols: &tokens[t..],
                length: self.len,
                kept: memory.kept.as_mut().map(|kept| kept.at(t, rows)),
            };
            gru::forward(self.kernel, rows, step);
        }
        let (last, _) = around(memory.states, rows.batch * rows.states, self.len);
        self.full.logits([parts.full, parts.full_bias], last, rows.states, memory.logits);
    }

    /// Runs backward through time, from the residuals in `forward.logits` to the slopes of all
    /// gates.
    fn backward(
        &self,
        parts: &Parts<&[f32]>,
        tokens: &[u32],
        forward: &mut Forward<'_>,
        memory: &mut Backward<'_>,
    ) {
        let (kernel, hidden, rows) = (self.kernel, self.gates.hidden, forward.rows);
        let panels = Layout::panels(hidden);
        transposed(kernel, hidden, rows.gates, parts.recurrent, panels, memory.recurrent_transposed);
        self.full.slopes(parts.full, forward.logits, memory.full_transposed, memory.slope);
        memory.table.fill(0.0);
        memory.bias.fill(0.0);
        for t in (0..self.len).rev() {
            let (before, _) = around(forward.states, rows.batch * rows.states, t);
            let Some(kept) = &mut forward.kept else { unreachable!("a pass that goes back keeps its gates") };
            let Kept { gates, inner } = kept.at(t, rows);
            let step = gru::Backward {
                gates,
                inner,
                before,
                slope: memory.slope,
                symbols: &tokens[t..],
                length: self.len,
                table: memory.table,
                bias: memory.bias,
            };
            gru::backward(kernel, rows, step);
            if t > 0 {
                let shape = Shape { m: rows.batch, n: rows.states, k: 3 * rows.units };
                let slopes = Entries { values: gates, row: rows.gates, column: 1 };
                let layouts = [Layout::panels(rows.gates), Layout::rows(rows.states)];
                let back = &*memory.recurrent_transposed;
                product(kernel, shape, slopes, back, layouts[0], memory.slope, layouts[1], 1.0);
            }
        }
        if let Embedding::Trained(dim) = self.embedding {
            let (columns, layout) = (rows.gates, Layout::rows(rows.gates));
            transposed(kernel, dim, columns, parts.input, layout, memory.input_transposed);
            memory.embedding.copy_from_slice(&parts.embedding[..self.embedding_len()]);
        }
    }

    /// b_ih and b_hh have the same slopes at r and z. At n, the slope of b_hh passes the reset
    /// gate.
    fn descend_biases(
        &self,
        input: &mut [f32],
        recurrent: &mut [f32],
        decay: f32,
        backward: &mut Backward<'_>,
    ) {
        let (columns, units) = (self.gates.columns(), self.gates.units());
        let Backward { table, bias, total, .. } = backward;
        total.fill(0.0);
        sums::add_rows(self.kernel, table, total);
        sums::add_decayed(self.kernel, total, decay, &mut input[..columns]);
        total[2 * units..3 * units].copy_from_slice(bias);
        sums::add_decayed(self.kernel, total, decay, &mut recurrent[..columns]);
    }

    fn descend_inputs(&self, embedding: &mut [f32], input: &mut [f32], decay: f32, backward: &Backward<'_>) {
        let Embedding::Trained(dim) = self.embedding else {
            return sums::add_decayed(self.kernel, backward.table, decay, input);
        };
        let (columns, kernel) = (self.gates.columns(), self.kernel);
        let rows = Layout::rows(columns);
        let vectors = Entries { values: backward.embedding, row: 1, column: dim };
        let shape = Shape { m: dim, n: columns, k: self.alphabet };
        product(kernel, shape, vectors, backward.table, rows, input, rows, decay);
        // The embedding is small and its rows are not padded, so it is updated entry by entry.
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
}

impl LayeredModel for Gru {
    const PART: usize = 24;
    type Slopes<'a> = (Forward<'a>, Backward<'a>);

    fn differentiate<'a>(
        &self,
        working: &[f32],
        batch: Batch<'_>,
        scale: f32,
        mut memory: &'a mut [f32],
    ) -> Self::Slopes<'a> {
        let (parts, tokens) = (self.parts(working), batch.inputs.tokens());
        let mut forward = Forward::for_training(self, batch.len(), &mut memory);
        let mut backward = Backward::take(self, batch.len(), &mut memory);
        self.fill_table(&parts, &mut forward);
        self.forward(&parts, tokens, &mut forward);
        softmax::residuals(self.kernel, self.full.rows(), forward.logits, batch.targets.classes(), scale);
        self.backward(&parts, tokens, &mut forward, &mut backward);
        (forward, backward)
    }

    fn descend(&self, working: &mut [f32], decay: f32, (mut forward, mut backward): Self::Slopes<'_>) {
        let (parts, kernel, hidden, rows) =
            (self.parts_mut(working), self.kernel, self.gates.hidden, forward.rows);
        let step = rows.batch * rows.states;
        if let (Some(kept), 2..) = (&mut forward.kept, self.len) {
            let shape = Shape { m: hidden, n: rows.gates, k: (self.len - 1) * rows.batch };
            let h = Entries { values: &forward.states[step..], row: 1, column: rows.states };
            let slopes = &kept.gates[rows.batch * rows.gates..];
            let layouts = [Layout::rows(rows.gates), Layout::panels(hidden)];
            product(kernel, shape, h, slopes, layouts[0], parts.recurrent, layouts[1], decay);
        } else {
            parts.recurrent.iter_mut().for_each(|w| *w *= decay);
        }
        self.descend_biases(parts.input_bias, parts.recurrent_bias, decay, &mut backward);
        self.descend_inputs(parts.embedding, parts.input, decay, &backward);
        let last = &forward.states[self.len * step..];
        self.full.descend([parts.full, parts.full_bias], last, rows.states, forward.logits, decay);
    }
}

impl Model for Gru {
    fn task(&self) -> Task {
        self.task
    }

    fn num_params(&self) -> usize {
        self.flat_lens().iter().sum()
    }

    fn tensors(&self) -> Vec<Tensor> {
        let (rows, hidden, classes) = (self.gates.rows(), self.gates.hidden, self.full.classes);
        let embedding = match self.embedding {
            Embedding::OneHot => None,
            Embedding::Trained(dim) => Some(Tensor::new("embedding.weight", &[self.alphabet, dim])),
        };
        embedding
            .into_iter()
            .chain([
                Tensor::new("gru.weight_ih_l0", &[rows, self.inputs()]),
                Tensor::new("gru.weight_hh_l0", &[rows, hidden]),
                Tensor::new("gru.bias_ih_l0", &[rows]),
                Tensor::new("gru.bias_hh_l0", &[rows]),
                Tensor::new("fc.weight", &[classes, hidden]),
                Tensor::new("fc.bias", &[classes]),
            ])
            .collect()
    }

    /// U(±1/√H), and a standard normal embedding.
    fn init(&self, stream: &mut Stream, params: &mut [f32]) {
        let (embedding, rest) = params.split_at_mut(self.embedding_len());
        embedding.iter_mut().for_each(|e| *e = stream.normal() as f32);
        let bound = 1.0 / (self.gates.hidden as f64).sqrt();
        rest.iter_mut().for_each(|w| *w = stream.uniform(-bound, bound) as f32);
    }

    fn scratch_len(&self, batch: usize) -> usize {
        network::scratch_len(self, batch, sections_len(Forward::lens(self, batch.min(Self::PART), 2)))
    }

    fn gradient(&self, params: &[f32], batch: Batch<'_>, gradient: &mut [f32], scratch: &mut [f32]) -> f64 {
        network::gradient(self, params, batch, gradient, scratch)
    }

    fn evaluate(&self, working: &[f32], batch: Batch<'_>, scratch: &mut [f32]) -> Score {
        let parts = self.parts(working);
        let mut score = Score::default();
        for (i, part) in network::parts(self, batch).enumerate() {
            let mut forward = Forward::for_evaluation(self, part.len(), scratch);
            if i == 0 {
                self.fill_table(&parts, &mut forward);
            }
            self.forward(&parts, part.inputs.tokens(), &mut forward);
            score += softmax::score(self.kernel, self.full.rows(), forward.logits, part.targets.classes());
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
        parts.full_bias[..self.full.classes].copy_from_slice(flat.full_bias);
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
        flat.full_bias.copy_from_slice(&parts.full_bias[..self.full.classes]);
    }

    fn step_scratch_len(&self, batch: usize) -> usize {
        sections_len(Forward::lens(self, batch, self.len + 1))
            + sections_len(Forward::kept_lens(self, batch))
            + sections_len(Backward::lens(self, batch))
    }

    fn step(&self, working: &mut [f32], batch: Batch<'_>, step: Step<'_>, scratch: &mut [f32]) {
        network::step(self, working, batch, step, scratch);
    }
}
