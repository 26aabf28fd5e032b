//! Operations on images and rows: pooling, normalisation, and changes of layout.

use super::ActivationShape;
use super::operation::{Backward, Descent, FeatureOrder, Form, Operation, Pass};
use crate::kernel::cells::{self, NormShape, PoolShape};
use crate::kernel::sums;
use crate::model::layout::{section, sections_len, take_sections};
use crate::stream::Stream;

/// The largest entry or the mean of windows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pool {
    shape: PoolShape,
    is_max: bool,
}

impl Pool {
    pub(super) fn new(input: &Form, size: usize, stride: usize, is_max: bool) -> Self {
        let ActivationShape::Image { height, width, .. } = input.shape else {
            unreachable!("shapes are inferred before operations are created")
        };
        let shape = PoolShape { height, width, channels: input.stride, size, stride };
        Self { shape, is_max }
    }

    fn output_len(&self) -> usize {
        let [rows, columns] = self.shape.output();
        rows * columns * self.shape.channels
    }
}

impl Operation for Pool {
    fn memory_len(&self, batch: usize) -> usize {
        if self.is_max { section(batch * self.output_len()) } else { 0 }
    }

    fn forward(&self, pass: &Pass<'_>, _: &[f32], input: &[f32], output: &mut [f32], memory: &mut [f32]) {
        let (inputs, outputs) = (self.shape.input_len(), self.output_len());
        let images = input.chunks_exact(inputs).zip(output.chunks_exact_mut(outputs));
        if self.is_max {
            for ((map, values), winners) in images.zip(memory.chunks_exact_mut(outputs)) {
                cells::max_pool(pass.kernel, self.shape, map, values, winners);
            }
        } else {
            images.for_each(|(map, values)| cells::mean_pool(pass.kernel, self.shape, map, values));
        }
    }

    fn backward(&self, pass: &Pass<'_>, _: Descent<'_>, step: Backward<'_>) {
        let Some(to) = step.to else { return };
        let (inputs, outputs) = (self.shape.input_len(), self.output_len());
        let images = step.slopes.chunks_exact(outputs).zip(to.chunks_exact_mut(inputs));
        if self.is_max {
            for ((slopes, to), winners) in images.zip(step.memory.chunks_exact(outputs)) {
                cells::max_pool_backward(pass.kernel, self.shape, winners, slopes, to);
            }
        } else {
            images.for_each(|(slopes, to)| cells::mean_pool_backward(pass.kernel, self.shape, slopes, to));
        }
    }
}

/// Group or layer normalisation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Norm {
    shape: NormShape,
    /// Rows of the slot per example.
    rows: usize,
}

impl Norm {
    /// Creates a normalisation of groups of channels, or of all entries of a row or an image.
    pub(super) fn new(input: &Form, groups: Option<usize>) -> Self {
        let is_image = matches!(input.shape, ActivationShape::Image { .. });
        let cells = if is_image { input.rows() } else { 1 };
        let (channels, stride) = (input.entries(), input.stride);
        let by_cell = is_image && groups.is_none();
        let shape = NormShape { cells, channels, stride, groups: groups.unwrap_or(1), by_cell };
        Self { shape, rows: if is_image { 1 } else { input.rows() } }
    }

    /// Returns the number of scales.
    fn scales(&self) -> usize {
        if self.shape.by_cell { self.shape.cells * self.shape.channels } else { self.shape.channels }
    }

    /// Returns the position of a scale in working form. In flat order, the channel of an image is
    /// outermost.
    fn at(&self, i: usize) -> usize {
        match self.shape.by_cell {
            true => i % self.shape.cells * self.shape.stride + i / self.shape.cells,
            false => i,
        }
    }

    /// Returns the floats of the normalised entries, of the factors of the groups, and of the
    /// slopes of the scales and shifts.
    fn memory_lens(&self, batch: usize) -> [usize; 4] {
        let (rows, scales) = (batch * self.rows, self.shape.scales());
        [rows * self.shape.len(), rows * self.shape.groups, scales, scales]
    }
}

impl Operation for Norm {
    fn flat_len(&self) -> usize {
        2 * self.scales()
    }

    fn working_len(&self) -> usize {
        2 * section(self.shape.scales())
    }

    /// Scales of 1 and shifts of 0.
    fn init(&self, _: &mut Stream, flat: &mut [f32]) {
        let (scale, shift) = flat.split_at_mut(self.scales());
        scale.fill(1.0);
        shift.fill(0.0);
    }

    fn load(&self, flat: &[f32], working: &mut [f32]) {
        working.fill(0.0);
        let halves = working.chunks_exact_mut(section(self.shape.scales()));
        for (from, to) in flat.chunks_exact(self.scales()).zip(halves) {
            from.iter().enumerate().for_each(|(i, x)| to[self.at(i)] = *x);
        }
    }

    fn store(&self, working: &[f32], flat: &mut [f32]) {
        let halves = working.chunks_exact(section(self.shape.scales()));
        for (to, from) in flat.chunks_exact_mut(self.scales()).zip(halves) {
            to.iter_mut().enumerate().for_each(|(i, x)| *x = from[self.at(i)]);
        }
    }

    fn memory_len(&self, batch: usize) -> usize {
        sections_len(self.memory_lens(batch))
    }

    fn forward(
        &self,
        pass: &Pass<'_>,
        params: &[f32],
        input: &[f32],
        output: &mut [f32],
        mut memory: &mut [f32],
    ) {
        let [normal, inverse, ..] = take_sections(&mut memory, self.memory_lens(pass.batch));
        let (scale, shift) = params.split_at(params.len() / 2);
        let (len, groups) = (self.shape.len(), self.shape.groups);
        let rows = input.chunks_exact(len).zip(output.chunks_exact_mut(len));
        let kept = normal.chunks_exact_mut(len).zip(inverse.chunks_exact_mut(groups));
        for ((x, out), (normal, inverse)) in rows.zip(kept) {
            cells::normalise(pass.kernel, self.shape, x, scale, shift, out, normal, inverse);
        }
    }

    fn backward(&self, pass: &Pass<'_>, mut descent: Descent<'_>, step: Backward<'_>) {
        let mut memory = step.memory;
        let [normal, inverse, of_scale, of_shift] = take_sections(&mut memory, self.memory_lens(pass.batch));
        of_scale.fill(0.0);
        of_shift.fill(0.0);
        let (len, groups) = (self.shape.len(), self.shape.groups);
        let half = descent.params().len() / 2;
        let kept = normal.chunks_exact(len).zip(inverse.chunks_exact(groups));
        let mut to = step.to;
        for (i, ((normal, inverse), slopes)) in kept.zip(step.slopes.chunks_exact(len)).enumerate() {
            let scale = &descent.params()[..half];
            let out = to.as_mut().map_or(&mut [][..], |to| &mut to[i * len..][..len]);
            let shape = self.shape;
            cells::normalise_backward(
                pass.kernel,
                shape,
                normal,
                inverse,
                scale,
                slopes,
                out,
                of_scale,
                of_shift,
            );
        }
        let (target, decay) = descent.target();
        let (scale, shift) = target.split_at_mut(half);
        sums::add_decayed(pass.kernel, of_scale, decay, scale);
        sums::add_decayed(pass.kernel, of_shift, decay, shift);
    }
}

/// A copy of a slot in another layout.
#[derive(Clone, Copy, Debug)]
pub(super) enum Relayout {
    /// Rows of `len` floats to rows of `stride` floats, at the positions of `order` if it is
    /// backwards.
    Rows { len: usize, from: usize, to: usize, order: FeatureOrder },
    /// Images channel by channel to cells of `stride` floats.
    Cells { channels: usize, cells: usize, stride: usize },
    /// Steps of all examples to a row of steps per example.
    Steps { len: usize, stride: usize },
}

impl Operation for Relayout {
    fn forward(&self, pass: &Pass<'_>, _: &[f32], input: &[f32], output: &mut [f32], _: &mut [f32]) {
        match *self {
            Self::Rows { len, from, to, order } => {
                for (x, out) in input.chunks_exact(from).zip(output.chunks_exact_mut(to)) {
                    match order {
                        FeatureOrder::Plain => out[..len].copy_from_slice(&x[..len]),
                        order => (0..len).for_each(|j| out[j] = x[order.at(j)]),
                    }
                    out[len..].fill(0.0);
                }
            }
            Self::Cells { channels, cells, stride } => {
                let images = input.chunks_exact(channels * cells);
                for (image, out) in images.zip(output.chunks_exact_mut(cells * stride)) {
                    for (cell, out) in out.chunks_exact_mut(stride).enumerate() {
                        (0..channels).for_each(|channel| out[channel] = image[channel * cells + cell]);
                        out[channels..].fill(0.0);
                    }
                }
            }
            Self::Steps { len, stride } => {
                for (i, row) in input.chunks_exact(stride).take(len * pass.batch).enumerate() {
                    let (step, example) = (i / pass.batch, i % pass.batch);
                    output[(example * len + step) * stride..][..stride].copy_from_slice(row);
                }
            }
        }
    }

    fn backward(&self, pass: &Pass<'_>, _: Descent<'_>, step: Backward<'_>) {
        let Some(to) = step.to else { return };
        match *self {
            Self::Rows { len, from, to: stride, order } => {
                for (slopes, to) in step.slopes.chunks_exact(stride).zip(to.chunks_exact_mut(from)) {
                    to.fill(0.0);
                    (0..len).for_each(|j| to[order.at(j)] = slopes[j]);
                }
            }
            // Only the data has this layout, and it needs no slopes.
            Self::Cells { .. } => {}
            Self::Steps { len, stride } => {
                for (i, row) in to.chunks_exact_mut(stride).take(len * pass.batch).enumerate() {
                    let (t, example) = (i / pass.batch, i % pass.batch);
                    row.copy_from_slice(&step.slopes[(example * len + t) * stride..][..stride]);
                }
            }
        }
    }
}
