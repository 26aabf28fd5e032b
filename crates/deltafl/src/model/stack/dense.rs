//! The dense layer: y = xW + b, for the rows of a slot.
//!
//! Backward, blocks of the rows of W are read once: first for the slopes of the input, then for the
//! descent. The slopes of the input are computed as columns, (dx)ᵀ = W δᵀ, so that W is not
//! transposed.

use super::operation::{Backward, Descent, FeatureOrder, Form, Operation, Pass};
use crate::kernel::product::{
    Entries, Layout, PANEL, Shape, padded, panels_len, product, transposed_into, transposed_only,
};
use crate::kernel::{Granted, sums};
use crate::model::layout::{section, sections_len, take_sections};
use crate::stream::Stream;

/// Rows of W whose slopes and descent are computed together: they stay in the second-level cache.
const BLOCK: usize = 64;

/// A dense layer.
#[derive(Clone, Debug)]
pub(super) struct Dense {
    /// The features in flat order.
    inputs: usize,
    order: FeatureOrder,
    /// Floats from one row of the input to the next.
    stride: usize,
    /// The rows of W in working form.
    span: usize,
    /// Rows of the input per example.
    rows: usize,
    units: usize,
    has_bias: bool,
}

/// Consecutive features and their rows of W.
struct FeatureRun {
    /// The first feature in flat order.
    flat: usize,
    /// Its row.
    row: usize,
    len: usize,
    /// The layout of the rows.
    layout: Layout,
}

impl Dense {
    pub(super) fn new(input: &Form, units: usize, has_bias: bool) -> Self {
        let inputs = input.entries();
        let span = if input.order == FeatureOrder::Plain { inputs } else { input.stride };
        Self { inputs, order: input.order, stride: input.stride, span, rows: input.rows(), units, has_bias }
    }

    /// Returns the floats of a row of the output.
    fn columns(&self) -> usize {
        padded(self.units)
    }

    /// Returns the runs of features whose rows of W are equally far apart.
    fn parts(&self) -> impl Iterator<Item = FeatureRun> {
        let (len, step) = match self.order {
            FeatureOrder::Plain => (self.inputs, 1),
            FeatureOrder::ByCell { cells, stride } => (cells, stride),
            FeatureOrder::ByStep { entries, .. } => (entries, 1),
        };
        let (order, span, inputs) = (self.order, self.span, self.inputs);
        (0..inputs).step_by(len.max(1)).map(move |flat| FeatureRun {
            flat,
            row: order.at(flat),
            len,
            layout: Layout { row: step * PANEL, panel: span * PANEL },
        })
    }

    fn weights_len(&self) -> usize {
        section(panels_len(self.span, self.columns()))
    }

    /// Returns δᵀ and (dx)ᵀ of a backward pass.
    fn memory_lens(&self, batch: usize) -> [usize; 2] {
        let rows = padded(batch * self.rows);
        [self.columns() * rows, self.span * rows]
    }

    /// Computes (dx)ᵀ for some rows of W, panel by panel.
    fn slopes(
        &self,
        pass: &Pass<'_>,
        weights: &[f32],
        block: std::ops::Range<usize>,
        transposed: &[f32],
        columns: &mut [f32],
    ) {
        let n = transposed.len() / self.columns();
        let layout = Layout::rows(n);
        let out = &mut columns[block.start * n..block.end * n];
        for (panel, start) in (0..self.columns()).step_by(PANEL).enumerate() {
            let k = PANEL.min(self.columns() - start);
            let rows = &weights[(panel * self.span + block.start) * PANEL..];
            let shape = Shape { m: block.len(), n, k };
            let a = Entries { values: rows, row: PANEL, column: 1 };
            let beta = if panel == 0 { 0.0 } else { 1.0 };
            product(pass.kernel, shape, a, &transposed[start * n..], layout, out, layout, beta);
        }
    }
}

impl Operation for Dense {
    fn flat_len(&self) -> usize {
        self.units * (self.inputs + usize::from(self.has_bias))
    }

    fn working_len(&self) -> usize {
        self.weights_len() + if self.has_bias { section(self.columns()) } else { 0 }
    }

    /// U(±1/√inputs).
    fn init(&self, stream: &mut Stream, flat: &mut [f32]) {
        let bound = 1.0 / (self.inputs as f64).sqrt();
        flat.iter_mut().for_each(|w| *w = stream.uniform(-bound, bound) as f32);
    }

    fn load(&self, flat: &[f32], working: &mut [f32]) {
        let (matrix, bias) = flat.split_at(self.units * self.inputs);
        let (weights, to_bias) = working.split_at_mut(self.weights_len());
        // Without padding, every entry is written below.
        if self.span != self.inputs || !self.units.is_multiple_of(PANEL) {
            weights.fill(0.0);
        }
        to_bias.fill(0.0);
        for part in self.parts() {
            let (from, to) = (&matrix[part.flat..], &mut weights[part.row * PANEL..]);
            let layouts = [Layout::rows(self.inputs), part.layout];
            transposed_only(Granted::best(), self.units, part.len, from, layouts[0], to, layouts[1]);
        }
        to_bias[..bias.len()].copy_from_slice(bias);
    }

    fn store(&self, working: &[f32], flat: &mut [f32]) {
        let (matrix, bias) = flat.split_at_mut(self.units * self.inputs);
        let (weights, from_bias) = working.split_at(self.weights_len());
        for part in self.parts() {
            let (from, to) = (&weights[part.row * PANEL..], &mut matrix[part.flat..]);
            let layouts = [part.layout, Layout::rows(self.inputs)];
            transposed_only(Granted::best(), part.len, self.units, from, layouts[0], to, layouts[1]);
        }
        let len = bias.len();
        bias.copy_from_slice(&from_bias[..len]);
    }

    fn memory_len(&self, batch: usize) -> usize {
        sections_len(self.memory_lens(batch))
    }

    fn forward(&self, pass: &Pass<'_>, params: &[f32], input: &[f32], output: &mut [f32], _: &mut [f32]) {
        let (weights, bias) = params.split_at(self.weights_len());
        let n = self.columns();
        if self.has_bias {
            output.chunks_exact_mut(n).for_each(|row| row.copy_from_slice(&bias[..n]));
        }
        let shape = Shape { m: pass.batch * self.rows, n, k: self.span };
        let x = Entries { values: input, row: self.stride, column: 1 };
        let layouts = [Layout::panels(self.span), Layout::rows(n)];
        let beta = if self.has_bias { 1.0 } else { 0.0 };
        product(pass.kernel, shape, x, weights, layouts[0], output, layouts[1], beta);
    }

    fn backward(&self, pass: &Pass<'_>, mut descent: Descent<'_>, step: Backward<'_>) {
        let (kernel, n, rows) = (pass.kernel, self.columns(), pass.batch * self.rows);
        let mut memory = step.memory;
        let [transposed, columns] = take_sections(&mut memory, self.memory_lens(pass.batch));
        let by_example = padded(rows);
        if step.to.is_some() {
            let layouts = [Layout::rows(n), Layout::rows(by_example)];
            transposed_into(kernel, rows, n, step.slopes, layouts[0], transposed, layouts[1]);
        }
        // Without slopes of the input, W is read once in any case.
        let height = if step.to.is_some() { BLOCK } else { self.span };
        for start in (0..self.span).step_by(height) {
            let block = start..(start + height).min(self.span);
            if step.to.is_some() {
                self.slopes(pass, descent.params(), block.clone(), transposed, columns);
            }
            let (target, decay) = descent.target();
            let shape = Shape { m: block.len(), n, k: rows };
            let x = Entries { values: &step.input[start..], row: 1, column: self.stride };
            let layouts = [Layout::rows(n), Layout::panels(self.span)];
            let weights = &mut target[start * PANEL..];
            product(kernel, shape, x, step.slopes, layouts[0], weights, layouts[1], decay);
        }
        if self.has_bias {
            let (target, decay) = descent.target();
            let bias = &mut target[self.weights_len()..][..n];
            bias.iter_mut().for_each(|b| *b *= decay);
            sums::add_rows(kernel, step.slopes, bias);
        }
        if let Some(to) = step.to {
            let layouts = [Layout::rows(by_example), Layout::rows(self.stride)];
            // A row of the slopes has the stride of the input, which is a multiple of 16 here.
            transposed_into(kernel, self.span, rows, columns, layouts[0], to, layouts[1]);
        }
    }
}
