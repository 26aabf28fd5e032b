//! The last layer of a network: features → logits, with biases.
//!
//! ```text
//! z = xW + b        dx = δ Wᵀ        W ← decay·W + xᵀδ        b ← decay·b + Σ δ
//! ```

use super::layout::section;
use crate::kernel::product::{Entries, Layout, Shape, padded, panels_len, product, transposed};
use crate::kernel::softmax::Rows;
use crate::kernel::{Granted, sums};

/// A full layer. Its parameters are `inputs × classes`, panel by panel, and a row of biases.
#[derive(Clone, Copy, Debug)]
pub(super) struct Full {
    pub(super) inputs: usize,
    pub(super) classes: usize,
    pub(super) kernel: Granted,
}

impl Full {
    /// Returns the layout of the logits.
    pub(super) fn rows(self) -> Rows {
        Rows { classes: self.classes, stride: padded(self.classes) }
    }

    /// Returns the floats of the parameters and of the biases, in working form.
    pub(super) fn working_lens(self) -> [usize; 2] {
        [panels_len(self.inputs, self.rows().stride), self.rows().stride].map(section)
    }

    /// Returns the floats of the transposed parameters.
    pub(super) fn transposed_len(self) -> usize {
        panels_len(self.rows().stride, padded(self.inputs))
    }

    /// Computes the logits of features, a row of `stride` floats per example.
    pub(super) fn logits(self, params: [&[f32]; 2], features: &[f32], stride: usize, logits: &mut [f32]) {
        let [weights, bias] = params;
        let n = self.rows().stride;
        for row in logits.chunks_exact_mut(n) {
            row.copy_from_slice(&bias[..n]);
        }
        let shape = Shape { m: logits.len() / n, n, k: self.inputs };
        let features = Entries { values: features, row: stride, column: 1 };
        let layouts = [Layout::panels(self.inputs), Layout::rows(n)];
        product(self.kernel, shape, features, weights, layouts[0], logits, layouts[1], 1.0);
    }

    /// Computes the slopes of the features from the residuals of the logits: rows of
    /// `padded(inputs)` floats.
    pub(super) fn slopes(self, weights: &[f32], residuals: &[f32], memory: &mut [f32], slopes: &mut [f32]) {
        let (stride, inputs) = (self.rows().stride, padded(self.inputs));
        transposed(self.kernel, self.inputs, stride, weights, Layout::panels(self.inputs), memory);
        let shape = Shape { m: residuals.len() / stride, n: inputs, k: self.classes };
        let residuals = Entries { values: residuals, row: stride, column: 1 };
        let layouts = [Layout::panels(stride), Layout::rows(inputs)];
        product(self.kernel, shape, residuals, memory, layouts[0], slopes, layouts[1], 0.0);
    }

    /// Computes params ← decay·params + gradient.
    pub(super) fn descend(
        self,
        params: [&mut [f32]; 2],
        features: &[f32],
        stride: usize,
        residuals: &[f32],
        decay: f32,
    ) {
        let [weights, bias] = params;
        let n = self.rows().stride;
        let shape = Shape { m: self.inputs, n, k: residuals.len() / n };
        let features = Entries { values: features, row: 1, column: stride };
        let layouts = [Layout::rows(n), Layout::panels(self.inputs)];
        product(self.kernel, shape, features, residuals, layouts[0], weights, layouts[1], decay);
        bias.iter_mut().for_each(|b| *b *= decay);
        sums::add_rows(self.kernel, residuals, &mut bias[..n]);
    }
}
