//! Sizes and layouts of the convolutional network, and its first convolution.
//!
//! ```text
//! image side²  ─conv 5×5, ReLU, max-pool 2→  pooled₁²  ─conv 5×5, ReLU, max-pool 2→  pooled₂²  ─→ classes
//! ```
//!
//! ReLU commutes with the maximum: relu(max(z) + b) is computed once per pooled cell from four sums
//! in registers. The index of the maximum is stored, because only that position receives the
//! gradient. Channels are padded to a multiple of 16 with parameters that remain zero.

#![allow(unsafe_code, unsafe_op_in_unsafe_fn)]

use super::dispatch::entry;
use super::product::padded;
use super::simd::Simd;

/// The side of the filters.
pub(crate) const FILTER: usize = 5;
/// The entries of a filter.
pub(crate) const TAPS: usize = FILTER * FILTER;
/// Channels that are contiguous in memory.
pub(crate) const BLOCK: usize = 16;

/// Calls a method for the five rows of a filter, as many at once as the registers of `S` allow.
macro_rules! over_filter_rows {
    ($simd:ident, $work:ident.$method:ident) => {
        match $simd::TAP_ROWS {
            5 => $work.$method::<$simd, 5>(0),
            2 => {
                $work.$method::<$simd, 2>(0);
                $work.$method::<$simd, 2>(2);
                $work.$method::<$simd, 1>(4);
            }
            _ => (0..FILTER).for_each(|row| $work.$method::<$simd, 1>(row)),
        }
    };
}
pub(super) use over_filter_rows;

/// The sizes of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// The side of the image.
    pub(crate) side: usize,
    /// Channels of the first convolution, padded.
    pub(crate) first: usize,
    /// Channels of the second convolution, padded.
    pub(crate) second: usize,
    /// The side of the first pooled map.
    pub(crate) pooled_1: usize,
    /// The side of the second pooled map.
    pub(crate) pooled_2: usize,
}

impl Sizes {
    /// Returns the sizes for images of `side`, or `None` if nothing is left to pool.
    pub(crate) fn new(side: usize, channels: [usize; 2]) -> Option<Self> {
        let pooled = |side: usize| side.checked_sub(FILTER - 1).map(|side| side / 2).filter(|&side| side > 0);
        let pooled_1 = pooled(side)?;
        let pooled_2 = pooled(pooled_1)?;
        Some(Self { side, first: padded(channels[0]), second: padded(channels[1]), pooled_1, pooled_2 })
    }

    /// Returns the pixels of an image.
    pub(crate) fn pixels(&self) -> usize {
        self.side * self.side
    }

    /// Returns the floats of the first pooled map: `first / 16` blocks of `pooled_1²` cells of 16
    /// channels.
    pub(crate) fn map_1(&self) -> usize {
        self.pooled_1 * self.pooled_1 * self.first
    }

    /// Returns the floats of the second pooled map: `pooled_2²` cells of `second` channels.
    pub(crate) fn map_2(&self) -> usize {
        self.cells_2() * self.second
    }

    /// Returns the cells of the second pooled map.
    pub(crate) fn cells_2(&self) -> usize {
        self.pooled_2 * self.pooled_2
    }

    /// Returns the floats of the first filters: a row of `first` channels per tap, and a row of
    /// biases.
    pub(crate) fn filters_1(&self) -> usize {
        (TAPS + 1) * self.first
    }

    /// Returns the floats of the second filters: per channel, per block of 16 input channels, 25
    /// taps.
    pub(crate) fn filters_2(&self) -> usize {
        self.second * self.first * TAPS
    }

    /// Returns the position of (channel, cell) in the first map.
    pub(crate) fn at_1(&self, channel: usize, cell: usize) -> usize {
        (channel / BLOCK * self.pooled_1 * self.pooled_1 + cell) * BLOCK + channel % BLOCK
    }

    /// Returns the position of an entry of a second filter.
    pub(crate) fn at_filter_2(&self, channel: usize, input: usize, tap: usize) -> usize {
        ((channel * self.first / BLOCK + input / BLOCK) * TAPS + tap) * BLOCK + input % BLOCK
    }
}

/// A pooled map: its values, and the position of each maximum (0–3, row by row).
#[derive(Debug)]
pub(crate) struct Pooled<'a> {
    pub(crate) values: &'a mut [f32],
    pub(crate) winners: &'a mut [f32],
}

entry! {
    /// The first convolution of one image, with bias, ReLU and pooling.
    pub(crate) fn first_forward(sizes: Sizes, image: &[f32], filters: &[f32], map: Pooled<'_>)
        = first_in_registers, first_reference
}

entry! {
    /// Adds the gradient of the first filters and biases, given that of the first map.
    pub(crate) fn first_gradient(
        sizes: Sizes, image: &[f32], map: &[f32], winners: &[f32], map_gradient: &[f32], gradient: &mut [f32],
    ) = gradient_in_registers, gradient_reference
}

fn first_reference(sizes: Sizes, image: &[f32], filters: &[f32], map: Pooled<'_>) {
    let (weights, bias) = filters.split_at(TAPS * sizes.first);
    for cell in 0..sizes.pooled_1 * sizes.pooled_1 {
        let (y, x) = (cell / sizes.pooled_1, cell % sizes.pooled_1);
        for channel in 0..sizes.first {
            let sums = std::array::from_fn(|q| {
                let corner = (2 * y + q / 2) * sizes.side + 2 * x + q % 2;
                let tap = |t: usize| image[corner + t / FILTER * sizes.side + t % FILTER];
                (0..TAPS).map(|t| weights[t * sizes.first + channel] * tap(t)).sum()
            });
            let at = sizes.at_1(channel, cell);
            (map.values[at], map.winners[at]) = pool(sums, bias[channel]);
        }
    }
}

/// Returns relu(max z + b) and the first position of the maximum.
pub(crate) fn pool(sums: [f32; 4], bias: f32) -> (f32, f32) {
    let mut winner = 0;
    for q in 1..4 {
        if sums[q] > sums[winner] {
            winner = q;
        }
    }
    let value = sums[winner] + bias;
    (if value < 0.0 { 0.0 } else { value }, winner as f32)
}

fn gradient_reference(
    sizes: Sizes,
    image: &[f32],
    map: &[f32],
    winners: &[f32],
    map_gradient: &[f32],
    gradient: &mut [f32],
) {
    let (weights, bias) = gradient.split_at_mut(TAPS * sizes.first);
    for cell in 0..sizes.pooled_1 * sizes.pooled_1 {
        let (y, x) = (cell / sizes.pooled_1, cell % sizes.pooled_1);
        for channel in 0..sizes.first {
            let at = sizes.at_1(channel, cell);
            if map[at] > 0.0 {
                let q = winners[at] as usize;
                let corner = (2 * y + q / 2) * sizes.side + 2 * x + q % 2;
                for t in 0..TAPS {
                    let pixel = image[corner + t / FILTER * sizes.side + t % FILTER];
                    weights[t * sizes.first + channel] += map_gradient[at] * pixel;
                }
                bias[channel] += map_gradient[at];
            }
        }
    }
}

/// Processes the four sums of one or two cells and of two vectors of channels at a time.
#[inline(always)]
unsafe fn first_in_registers<S: Simd>(_: S, sizes: Sizes, image: &[f32], filters: &[f32], map: Pooled<'_>) {
    assert!(image.len() >= sizes.pixels() && filters.len() >= sizes.filters_1());
    assert!(map.values.len() >= sizes.map_1() && map.winners.len() >= sizes.map_1());
    let pair = S::LANES == BLOCK; // 32 registers hold two cells
    let wide = 2 * S::LANES;
    for channel in (0..sizes.first).step_by(wide) {
        let two = channel + wide <= sizes.first;
        for y in 0..sizes.pooled_1 {
            let mut x = 0;
            while x < sizes.pooled_1 {
                let corner =
                    Corner { sizes, image: image.as_ptr(), filters: filters.as_ptr(), channel, y, x };
                let (values, winners) = (map.values.as_mut_ptr(), map.winners.as_mut_ptr());
                let cells = if pair && x + 2 <= sizes.pooled_1 { 2 } else { 1 };
                match (two, cells) {
                    (true, 2) => corner.fill::<S, 2, 2>(values, winners),
                    (true, _) => corner.fill::<S, 2, 1>(values, winners),
                    (false, 2) => corner.fill::<S, 1, 2>(values, winners),
                    (false, _) => corner.fill::<S, 1, 1>(values, winners),
                }
                x += cells;
            }
        }
    }
}

/// The inputs of a few cells of the first map.
#[derive(Clone, Copy)]
struct Corner {
    sizes: Sizes,
    image: *const f32,
    filters: *const f32,
    channel: usize,
    y: usize,
    x: usize,
}

impl Corner {
    #[inline(always)]
    unsafe fn fill<S: Simd, const WIDE: usize, const CELLS: usize>(
        self,
        values: *mut f32,
        winners: *mut f32,
    ) {
        let Sizes { side, first, pooled_1, .. } = self.sizes;
        let image = self.image.add(2 * self.y * side + 2 * self.x);
        let filters = self.filters.add(self.channel);
        let mut sums = [[[S::zero(); WIDE]; 4]; CELLS];
        for ky in 0..FILTER {
            for kx in 0..FILTER {
                let mut weights = [S::zero(); WIDE];
                for (v, weight) in weights.iter_mut().enumerate() {
                    *weight = S::load(filters.add((ky * FILTER + kx) * first + v * S::LANES));
                }
                let pixel = image.add(ky * side + kx);
                for (cell, sums) in sums.iter_mut().enumerate() {
                    for (q, sums) in sums.iter_mut().enumerate() {
                        let x = S::splat(*pixel.add(q / 2 * side + q % 2 + 2 * cell));
                        for (sum, weight) in sums.iter_mut().zip(weights) {
                            *sum = S::fma(x, weight, *sum);
                        }
                    }
                }
            }
        }
        for (cell, sums) in sums.iter().enumerate() {
            let [a, b, c, d] = *sums;
            for (v, sums) in a.into_iter().zip(b).zip(c.into_iter().zip(d)).enumerate() {
                let ((a, b), (c, d)) = sums;
                let bias = S::load(filters.add(TAPS * first + v * S::LANES));
                let (value, winner) = pool_vector::<S>([a, b, c, d], bias);
                let at = self.sizes.at_1(self.channel + v * S::LANES, self.y * pooled_1 + self.x + cell);
                S::store(values.add(at), value);
                S::store(winners.add(at), winner);
            }
        }
    }
}

/// [`pool`] on vectors.
#[inline(always)]
pub(crate) unsafe fn pool_vector<S: Simd>(sums: [S::V; 4], bias: S::V) -> (S::V, S::V) {
    let (mut best, mut winner) = (sums[0], S::zero());
    for (q, &sum) in sums.iter().enumerate().skip(1) {
        winner = S::where_greater(sum, best, S::splat(q as f32), winner);
        best = S::where_greater(sum, best, sum, best);
    }
    (S::max(S::zero(), S::add(best, bias)), winner)
}

/// Distributes the gradient of a cell over its four positions: all of it to the maximum.
#[inline(always)]
unsafe fn split_by_winner<S: Simd>(gradient: S::V, winner: S::V) -> [S::V; 4] {
    let bottom = S::where_greater(winner, S::splat(1.5), gradient, S::zero());
    let top = S::sub(gradient, bottom);
    let bottom_right = S::where_greater(winner, S::splat(2.5), bottom, S::zero());
    let top_right = S::where_greater(winner, S::splat(0.5), top, S::zero());
    [S::sub(top, top_right), top_right, S::sub(bottom, bottom_right), bottom_right]
}

#[inline(always)]
unsafe fn gradient_in_registers<S: Simd>(
    _: S,
    sizes: Sizes,
    image: &[f32],
    map: &[f32],
    winners: &[f32],
    map_gradient: &[f32],
    gradient: &mut [f32],
) {
    assert!(image.len() >= sizes.pixels() && gradient.len() >= sizes.filters_1());
    assert!(map.len().min(winners.len()).min(map_gradient.len()) >= sizes.map_1());
    for channel in (0..sizes.first).step_by(S::LANES) {
        let cells = FirstCells {
            sizes,
            image: image.as_ptr(),
            map: map.as_ptr(),
            winners: winners.as_ptr(),
            map_gradient: map_gradient.as_ptr(),
            gradient: gradient.as_mut_ptr(),
            channel,
        };
        cells.add_bias::<S>();
        over_filter_rows!(S, cells.add_rows);
    }
}

/// The inputs of the gradient of some first filters.
#[derive(Clone, Copy)]
struct FirstCells {
    sizes: Sizes,
    image: *const f32,
    map: *const f32,
    winners: *const f32,
    map_gradient: *const f32,
    gradient: *mut f32,
    channel: usize,
}

impl FirstCells {
    /// Returns the gradient of a cell if ReLU is active.
    #[inline(always)]
    unsafe fn alive<S: Simd>(self, at: usize) -> S::V {
        S::where_greater(S::load(self.map.add(at)), S::zero(), S::load(self.map_gradient.add(at)), S::zero())
    }

    #[inline(always)]
    unsafe fn add_bias<S: Simd>(self) {
        let bias = self.gradient.add(TAPS * self.sizes.first + self.channel);
        let mut sum = S::load(bias);
        for cell in 0..self.sizes.pooled_1 * self.sizes.pooled_1 {
            sum = S::add(sum, self.alive::<S>(self.sizes.at_1(self.channel, cell)));
        }
        S::store(bias, sum);
    }

    /// Adds the gradient of the filter rows from `row`, with sums in registers over all cells.
    #[inline(always)]
    unsafe fn add_rows<S: Simd, const ROWS: usize>(self, row: usize) {
        let Sizes { side, first, pooled_1, .. } = self.sizes;
        let mut sums = [[S::zero(); FILTER]; ROWS];
        for y in 0..pooled_1 {
            for x in 0..pooled_1 {
                let at = self.sizes.at_1(self.channel, y * pooled_1 + x);
                let parts = split_by_winner::<S>(self.alive::<S>(at), S::load(self.winners.add(at)));
                let patch = self.image.add((2 * y + row) * side + 2 * x);
                // Each pixel is loaded once for up to four sums, which stay in registers.
                for py in 0..ROWS + 1 {
                    for px in 0..FILTER + 1 {
                        let pixel = S::splat(*patch.add(py * side + px));
                        for (q, &part) in parts.iter().enumerate() {
                            let (ky, kx) = (py.wrapping_sub(q / 2), px.wrapping_sub(q % 2));
                            if ky < ROWS && kx < FILTER {
                                sums[ky][kx] = S::fma(pixel, part, sums[ky][kx]);
                            }
                        }
                    }
                }
            }
        }
        for (ky, sums) in sums.iter().enumerate() {
            for (kx, &sum) in sums.iter().enumerate() {
                let at = self.gradient.add(((row + ky) * FILTER + kx) * first + self.channel);
                S::store(at, S::add(S::load(at), sum));
            }
        }
    }
}
