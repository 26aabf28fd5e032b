//! Convolutions of images whose channels are contiguous.
//!
//! The entries of a window in one row of the image are contiguous: (column, channel). A row of the
//! output is therefore a sum of one matrix product per row of the filters. The products read the
//! image directly, and no window is copied.

use super::ActivationShape;
use super::operation::{Backward, Descent, Form, Operation, Pass};
use crate::kernel::product::{Entries, Layout, PANEL, Shape, padded, panels_len, product, transposed};
use crate::kernel::sums;
use crate::model::layout::{section, sections_len, take_sections};
use crate::stream::Stream;

/// A convolution.
#[derive(Clone, Debug)]
pub(super) struct Convolution {
    /// Channels of the input.
    inputs: usize,
    /// Floats of a cell of the input.
    cell: usize,
    /// Rows and columns of the input.
    sides: [usize; 2],
    size: usize,
    stride: usize,
    padding: usize,
    channels: usize,
    /// Rows and columns of the output.
    outputs: [usize; 2],
}

impl Convolution {
    pub(super) fn new(
        input: &Form,
        [channels, size, stride, padding]: [usize; 4],
        output: ActivationShape,
    ) -> Self {
        let sides = |shape: ActivationShape| match shape {
            ActivationShape::Image { height, width, .. } => [height, width],
            _ => [0, 0],
        };
        Self {
            inputs: input.entries(),
            cell: input.stride,
            sides: sides(input.shape),
            size,
            stride,
            padding,
            channels,
            outputs: sides(output),
        }
    }

    /// Returns the floats of a cell of the output.
    fn columns(&self) -> usize {
        padded(self.channels)
    }

    /// Returns the floats of a row of a window.
    fn window_row(&self) -> usize {
        self.size * self.cell
    }

    /// Returns the rows of the filter matrix: a row per entry of a window.
    fn window(&self) -> usize {
        self.size * self.window_row()
    }

    fn weights_len(&self) -> usize {
        section(panels_len(self.window(), self.columns()))
    }

    /// Returns the rows and columns of the image with its padding.
    fn padded_sides(&self) -> [usize; 2] {
        self.sides.map(|side| side + 2 * self.padding)
    }

    /// Returns the floats of an image with its padding.
    fn image_len(&self) -> usize {
        let [height, width] = self.padded_sides();
        height * width * self.cell
    }

    fn output_len(&self) -> usize {
        self.outputs[0] * self.outputs[1] * self.columns()
    }

    /// Returns the padded images, the transposed filters and the padded slopes of one image.
    fn memory_lens(&self, batch: usize) -> [usize; 3] {
        let images = if self.padding > 0 { batch * self.image_len() } else { 0 };
        let transposed = self.size * self.size * self.tap_len();
        [images, transposed, if self.padding > 0 { self.image_len() } else { 0 }]
    }

    /// Returns the floats of the transposed filters of one tap.
    fn tap_len(&self) -> usize {
        panels_len(self.columns(), padded(self.cell))
    }

    /// Copies images into the middle of padded images.
    fn pad(&self, images: &[f32], to: &mut [f32]) {
        let [height, width] = self.sides;
        let row = width * self.cell;
        to.fill(0.0);
        let images = images.chunks_exact(height * row);
        for (image, to) in images.zip(to.chunks_exact_mut(self.image_len())) {
            for (y, from) in image.chunks_exact(row).enumerate() {
                to[self.inner(y)..][..row].copy_from_slice(from);
            }
        }
    }

    /// Returns the start of row `y` of the image in the padded image.
    fn inner(&self, y: usize) -> usize {
        ((y + self.padding) * self.padded_sides()[1] + self.padding) * self.cell
    }

    /// Returns the images that the windows read.
    fn images<'a>(&self, input: &'a [f32], memory: &'a [f32]) -> &'a [f32] {
        if self.padding > 0 { memory } else { input }
    }

    /// Returns the start of the window row `filter_row` of the output row `y`.
    fn at(&self, y: usize, filter_row: usize) -> usize {
        (y * self.stride + filter_row) * self.padded_sides()[1] * self.cell
    }

    /// Adds the slopes of one image, given those of its output and the transposed filters.
    fn image_slopes(&self, pass: &Pass<'_>, slopes: &[f32], transposed: &[f32], to: &mut [f32]) {
        let (n, columns, width) = (padded(self.cell), self.columns(), self.outputs[1]);
        let step = self.stride * self.cell;
        let shape = Shape { m: width, n, k: columns };
        for (y, slopes) in slopes.chunks_exact(width * columns).enumerate() {
            let slopes = Entries { values: slopes, row: columns, column: 1 };
            for tap in 0..self.size * self.size {
                let filters = &transposed[tap * self.tap_len()..];
                let corner = self.at(y, tap / self.size) + tap % self.size * self.cell;
                let layouts = [Layout::panels(columns), Layout { row: step, panel: PANEL }];
                let to = &mut to[corner..];
                product(pass.kernel, shape, slopes, filters, layouts[0], to, layouts[1], 1.0);
            }
        }
    }
}

impl Operation for Convolution {
    fn flat_len(&self) -> usize {
        self.channels * (self.inputs * self.size * self.size + 1)
    }

    fn working_len(&self) -> usize {
        self.weights_len() + section(self.columns())
    }

    /// U(±1/√fan_in) for filters and biases.
    fn init(&self, stream: &mut Stream, flat: &mut [f32]) {
        let bound = 1.0 / ((self.inputs * self.size * self.size) as f64).sqrt();
        flat.iter_mut().for_each(|w| *w = stream.uniform(-bound, bound) as f32);
    }

    fn load(&self, flat: &[f32], working: &mut [f32]) {
        working.fill(0.0);
        let taps = self.size * self.size;
        let (filters, bias) = flat.split_at(self.channels * self.inputs * taps);
        let (weights, to_bias) = working.split_at_mut(self.weights_len());
        let layout = Layout::panels(self.window());
        for (i, filter) in filters.chunks_exact(taps).enumerate() {
            let (channel, input) = (i / self.inputs, i % self.inputs);
            for (tap, &w) in filter.iter().enumerate() {
                weights[layout.at(tap * self.cell + input, channel)] = w;
            }
        }
        to_bias[..bias.len()].copy_from_slice(bias);
    }

    fn store(&self, working: &[f32], flat: &mut [f32]) {
        let taps = self.size * self.size;
        let (filters, bias) = flat.split_at_mut(self.channels * self.inputs * taps);
        let (weights, from_bias) = working.split_at(self.weights_len());
        let layout = Layout::panels(self.window());
        for (i, filter) in filters.chunks_exact_mut(taps).enumerate() {
            let (channel, input) = (i / self.inputs, i % self.inputs);
            for (tap, w) in filter.iter_mut().enumerate() {
                *w = weights[layout.at(tap * self.cell + input, channel)];
            }
        }
        let len = bias.len();
        bias.copy_from_slice(&from_bias[..len]);
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
        let (weights, bias) = params.split_at(self.weights_len());
        let [images, ..] = take_sections(&mut memory, self.memory_lens(pass.batch));
        if self.padding > 0 {
            self.pad(input, images);
        }
        let images = self.images(input, images);
        let (n, width) = (self.columns(), self.outputs[1]);
        let shape = Shape { m: width, n, k: self.window_row() };
        let layouts = [Layout::panels(self.window()), Layout::rows(n)];
        output.chunks_exact_mut(n).for_each(|cell| cell.copy_from_slice(&bias[..n]));
        let outputs = output.chunks_exact_mut(self.output_len());
        for (image, output) in images.chunks_exact(self.image_len()).zip(outputs) {
            for (y, output) in output.chunks_exact_mut(width * n).enumerate() {
                for row in 0..self.size {
                    let values = &image[self.at(y, row)..];
                    let x = Entries { values, row: self.stride * self.cell, column: 1 };
                    let filters = &weights[row * self.window_row() * PANEL..];
                    product(pass.kernel, shape, x, filters, layouts[0], output, layouts[1], 1.0);
                }
            }
        }
    }

    fn backward(&self, pass: &Pass<'_>, mut descent: Descent<'_>, step: Backward<'_>) {
        let (kernel, n, width) = (pass.kernel, self.columns(), self.outputs[1]);
        let mut memory = step.memory;
        let [images, filters, image_slopes] = take_sections(&mut memory, self.memory_lens(pass.batch));
        if let Some(to) = step.to {
            let layout = Layout::panels(self.window());
            for tap in 0..self.size * self.size {
                let rows = &descent.params()[tap * self.cell * PANEL..self.weights_len()];
                let to = &mut filters[tap * self.tap_len()..][..self.tap_len()];
                transposed(kernel, self.cell, n, rows, layout, to);
            }
            let len = self.sides[0] * self.sides[1] * self.cell;
            let slopes = step.slopes.chunks_exact(self.output_len());
            for (slopes, to) in slopes.zip(to.chunks_exact_mut(len)) {
                if self.padding == 0 {
                    to.fill(0.0);
                    self.image_slopes(pass, slopes, filters, to);
                    continue;
                }
                image_slopes.fill(0.0);
                self.image_slopes(pass, slopes, filters, image_slopes);
                for (y, to) in to.chunks_exact_mut(self.sides[1] * self.cell).enumerate() {
                    to.copy_from_slice(&image_slopes[self.inner(y)..][..to.len()]);
                }
            }
        }
        let (target, decay) = descent.target();
        let (weights, bias) = target.split_at_mut(self.weights_len());
        bias.iter_mut().for_each(|b| *b *= decay);
        sums::add_rows(kernel, step.slopes, &mut bias[..n]);
        let images = self.images(step.input, images);
        let shape = Shape { m: self.window_row(), n, k: width };
        let layouts = [Layout::rows(n), Layout::panels(self.window())];
        let slopes = step.slopes.chunks_exact(self.output_len());
        for (i, (image, slopes)) in images.chunks_exact(self.image_len()).zip(slopes).enumerate() {
            for (y, slopes) in slopes.chunks_exact(width * n).enumerate() {
                let beta = if i == 0 && y == 0 { decay } else { 1.0 };
                for row in 0..self.size {
                    let values = &image[self.at(y, row)..];
                    let x = Entries { values, row: 1, column: self.stride * self.cell };
                    let filters = &mut weights[row * self.window_row() * PANEL..];
                    product(kernel, shape, x, slopes, layouts[0], filters, layouts[1], beta);
                }
            }
        }
    }
}
