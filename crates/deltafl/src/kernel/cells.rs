//! Pooling and normalisation of maps: plain loops over cells with contiguous channels, compiled for
//! each instruction set. All instruction sets give the same bits.

#![allow(unsafe_code)]

use super::dispatch::plain_entry;

/// The shape of a pool: windows of `size` × `size` cells, `stride` cells apart, without padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PoolShape {
    /// The rows of the input.
    pub(crate) height: usize,
    /// The columns of the input.
    pub(crate) width: usize,
    /// Floats per cell.
    pub(crate) channels: usize,
    pub(crate) size: usize,
    pub(crate) stride: usize,
}

impl PoolShape {
    /// Returns the rows and columns of the output.
    pub(crate) fn output(&self) -> [usize; 2] {
        [self.height, self.width].map(|side| (side - self.size) / self.stride + 1)
    }

    /// Returns the floats of the input.
    pub(crate) fn input_len(&self) -> usize {
        self.height * self.width * self.channels
    }

    /// Returns the start of an input cell.
    #[inline(always)]
    fn at(&self, y: usize, x: usize) -> usize {
        (y * self.width + x) * self.channels
    }
}

plain_entry! {
    /// Writes the largest entry of each window of one map, and the number of its cell in the
    /// window. The first of several equal entries is taken.
    pub(crate) fn max_pool(shape: PoolShape, map: &[f32], values: &mut [f32], winners: &mut [f32]) = each_max
}

plain_entry! {
    /// Writes the slopes of the input of [`max_pool`].
    pub(crate) fn max_pool_backward(shape: PoolShape, winners: &[f32], slopes: &[f32], out: &mut [f32])
        = each_max_slope
}

plain_entry! {
    /// Writes the mean of each window of one map.
    pub(crate) fn mean_pool(shape: PoolShape, map: &[f32], values: &mut [f32]) = each_mean
}

plain_entry! {
    /// Writes the slopes of the input of [`mean_pool`].
    pub(crate) fn mean_pool_backward(shape: PoolShape, slopes: &[f32], out: &mut [f32]) = each_mean_slope
}

#[inline(always)]
fn each_max(shape: PoolShape, map: &[f32], values: &mut [f32], winners: &mut [f32]) {
    let PoolShape { channels, size, stride, .. } = shape;
    let [rows, columns] = shape.output();
    let cells = values.chunks_exact_mut(channels).zip(winners.chunks_exact_mut(channels));
    for (cell, (values, winners)) in cells.take(rows * columns).enumerate() {
        let (y, x) = (cell / columns * stride, cell % columns * stride);
        values.copy_from_slice(&map[shape.at(y, x)..][..channels]);
        winners.fill(0.0);
        for q in 1..size * size {
            let candidates = &map[shape.at(y + q / size, x + q % size)..][..channels];
            let number = q as f32;
            for ((value, winner), candidate) in values.iter_mut().zip(&mut *winners).zip(candidates) {
                let is_larger = *candidate > *value;
                *winner = if is_larger { number } else { *winner };
                *value = if is_larger { *candidate } else { *value };
            }
        }
    }
}

#[inline(always)]
#[expect(clippy::float_cmp, reason = "a winner is a small whole number")]
fn each_max_slope(shape: PoolShape, winners: &[f32], slopes: &[f32], out: &mut [f32]) {
    let PoolShape { channels, size, stride, .. } = shape;
    let [rows, columns] = shape.output();
    out[..shape.input_len()].fill(0.0);
    let cells = winners.chunks_exact(channels).zip(slopes.chunks_exact(channels));
    for (cell, (winners, slopes)) in cells.take(rows * columns).enumerate() {
        let (y, x) = (cell / columns * stride, cell % columns * stride);
        for q in 0..size * size {
            let number = q as f32;
            let to = &mut out[shape.at(y + q / size, x + q % size)..][..channels];
            for ((to, winner), slope) in to.iter_mut().zip(winners).zip(slopes) {
                *to += if *winner == number { *slope } else { 0.0 };
            }
        }
    }
}

#[inline(always)]
fn each_mean(shape: PoolShape, map: &[f32], values: &mut [f32]) {
    let PoolShape { channels, size, stride, .. } = shape;
    let [rows, columns] = shape.output();
    let share = 1.0 / (size * size) as f32;
    for (cell, values) in values.chunks_exact_mut(channels).take(rows * columns).enumerate() {
        let (y, x) = (cell / columns * stride, cell % columns * stride);
        values.fill(0.0);
        for q in 0..size * size {
            let from = &map[shape.at(y + q / size, x + q % size)..][..channels];
            values.iter_mut().zip(from).for_each(|(sum, x)| *sum += x);
        }
        values.iter_mut().for_each(|sum| *sum *= share);
    }
}

#[inline(always)]
fn each_mean_slope(shape: PoolShape, slopes: &[f32], out: &mut [f32]) {
    let PoolShape { channels, size, stride, .. } = shape;
    let [rows, columns] = shape.output();
    let share = 1.0 / (size * size) as f32;
    out[..shape.input_len()].fill(0.0);
    for (cell, slopes) in slopes.chunks_exact(channels).take(rows * columns).enumerate() {
        let (y, x) = (cell / columns * stride, cell % columns * stride);
        for q in 0..size * size {
            let to = &mut out[shape.at(y + q / size, x + q % size)..][..channels];
            to.iter_mut().zip(slopes).for_each(|(to, slope)| *to += share * slope);
        }
    }
}

/// The shape of a normalisation: `cells` of `channels` entries each, `stride` floats apart, in
/// groups of neighbouring channels. The entries of a group share their mean and variance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NormShape {
    pub(crate) cells: usize,
    pub(crate) channels: usize,
    pub(crate) stride: usize,
    pub(crate) groups: usize,
    /// Whether each cell has its own scale and shift. Otherwise all cells share them.
    pub(crate) by_cell: bool,
}

/// The term that keeps a variance of zero finite.
const EPSILON: f32 = 1e-5;
/// The number of partial sums.
const LANES: usize = 16;

impl NormShape {
    /// Returns the floats of one example.
    pub(crate) fn len(&self) -> usize {
        self.cells * self.stride
    }

    /// Returns the floats of the scales in working form.
    pub(crate) fn scales(&self) -> usize {
        if self.by_cell { self.cells * self.stride } else { self.stride }
    }

    /// Returns the range of a group in a cell.
    #[inline(always)]
    fn group(&self, cell: usize, group: usize) -> std::ops::Range<usize> {
        let width = self.channels / self.groups;
        let start = cell * self.stride + group * width;
        start..start + width
    }

    /// Returns the range of the scales of a group in a cell.
    #[inline(always)]
    fn scale(&self, cell: usize, group: usize) -> std::ops::Range<usize> {
        self.group(if self.by_cell { cell } else { 0 }, group)
    }
}

plain_entry! {
    /// Normalises one example: out = scale · x̂ + shift, with x̂ = (x − mean)/√(variance + ε) per
    /// group. Also writes x̂, and 1/√(variance + ε) of each group.
    pub(crate) fn normalise(
        shape: NormShape, x: &[f32], scale: &[f32], shift: &[f32], out: &mut [f32], normal: &mut [f32],
        inverse: &mut [f32],
    ) = each_group
}

plain_entry! {
    /// Adds the slopes of the scales and shifts of one example, and writes the slopes of its input
    /// if `out` is not empty.
    pub(crate) fn normalise_backward(
        shape: NormShape, normal: &[f32], inverse: &[f32], scale: &[f32], slopes: &[f32], out: &mut [f32],
        of_scale: &mut [f32], of_shift: &mut [f32],
    ) = each_group_slope
}

/// Adds the entries of a slice to partial sums.
#[inline(always)]
fn add_lanes(sums: &mut [f32; LANES], terms: impl Iterator<Item = f32>) {
    for (i, term) in terms.enumerate() {
        sums[i % LANES] += term;
    }
}

fn total(sums: [f32; LANES]) -> f32 {
    sums.iter().sum()
}

#[inline(always)]
fn each_group(
    shape: NormShape,
    x: &[f32],
    scale: &[f32],
    shift: &[f32],
    out: &mut [f32],
    normal: &mut [f32],
    inverse: &mut [f32],
) {
    let count = (shape.cells * shape.channels / shape.groups) as f32;
    if shape.channels < shape.stride {
        out[..shape.len()].fill(0.0);
        normal[..shape.len()].fill(0.0);
    }
    for group in 0..shape.groups {
        let mut sums = [0.0; LANES];
        for cell in 0..shape.cells {
            add_lanes(&mut sums, x[shape.group(cell, group)].iter().copied());
        }
        let mean = total(sums) / count;
        let mut sums = [0.0; LANES];
        for cell in 0..shape.cells {
            add_lanes(&mut sums, x[shape.group(cell, group)].iter().map(|x| (x - mean) * (x - mean)));
        }
        let factor = 1.0 / (total(sums) / count + EPSILON).sqrt();
        inverse[group] = factor;
        for cell in 0..shape.cells {
            let (range, scales) = (shape.group(cell, group), shape.scale(cell, group));
            let outputs = out[range.clone()].iter_mut().zip(&mut normal[range.clone()]);
            let affine = scale[scales.clone()].iter().zip(&shift[scales]);
            for (((out, normal), x), (scale, shift)) in outputs.zip(&x[range]).zip(affine) {
                *normal = (x - mean) * factor;
                *out = *normal * scale + shift;
            }
        }
    }
}

#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn each_group_slope(
    shape: NormShape,
    normal: &[f32],
    inverse: &[f32],
    scale: &[f32],
    slopes: &[f32],
    out: &mut [f32],
    of_scale: &mut [f32],
    of_shift: &mut [f32],
) {
    let count = (shape.cells * shape.channels / shape.groups) as f32;
    let has_output = !out.is_empty();
    if has_output && shape.channels < shape.stride {
        out[..shape.len()].fill(0.0);
    }
    for (group, &factor) in inverse.iter().enumerate().take(shape.groups) {
        let (mut sums, mut products) = ([0.0; LANES], [0.0; LANES]);
        for cell in 0..shape.cells {
            let (range, scales) = (shape.group(cell, group), shape.scale(cell, group));
            let (normal, slopes) = (&normal[range.clone()], &slopes[range]);
            let scaled = || slopes.iter().zip(&scale[scales.clone()]).map(|(slope, scale)| slope * scale);
            add_lanes(&mut sums, scaled());
            add_lanes(&mut products, scaled().zip(normal).map(|(slope, normal)| slope * normal));
            let totals = of_scale[scales.clone()].iter_mut().zip(&mut of_shift[scales.clone()]);
            for ((of_scale, of_shift), (slope, normal)) in totals.zip(slopes.iter().zip(normal)) {
                *of_scale += slope * normal;
                *of_shift += slope;
            }
        }
        if !has_output {
            continue;
        }
        let (mean, along) = (total(sums) / count, total(products) / count);
        for cell in 0..shape.cells {
            let (range, scales) = (shape.group(cell, group), shape.scale(cell, group));
            let entries = normal[range.clone()].iter().zip(&slopes[range.clone()]).zip(&scale[scales]);
            for (out, ((normal, slope), scale)) in out[range].iter_mut().zip(entries) {
                *out = factor * (slope * scale - mean - normal * along);
            }
        }
    }
}
