//! The second convolution by Winograd's minimal filtering, F(2×2, 5×5).
//!
//! Two outputs of a filter with five taps need six multiplications instead of ten. With the points
//! 0, ±1, ±2, ∞,
//!
//! ```text
//! y = Aᵀ[(G g) ∘ (Bᵀ d)]                 g: 5 taps, d: 6 inputs, y: 2 outputs
//!
//!      ⎡4  0 −5  0 1 0⎤      ⎡ 1/4                    ⎤
//!      ⎢0 −4 −4  1 1 0⎥      ⎢−1/6 −1/6 −1/6 −1/6 −1/6⎥
//! Bᵀ = ⎢0  4 −4 −1 1 0⎥  G = ⎢−1/6  1/6 −1/6  1/6 −1/6⎥  Aᵀ = ⎡1 1  1 1  1 0⎤
//!      ⎢0 −2 −1  2 1 0⎥      ⎢1/24 1/12  1/6  1/3  2/3⎥       ⎣0 1 −1 2 −2 1⎦
//!      ⎢0  2 −1 −2 1 0⎥      ⎢1/24−1/12  1/6 −1/3  2/3⎥
//!      ⎣0  4  0 −5 0 1⎦      ⎣                       1⎦
//! ```
//!
//! In two dimensions, a 2 × 2 tile is exactly a cell of the max-pool. It takes 36 multiplications
//! per pair of channels instead of 100. The sum over input channels commutes with the transforms,
//! so the work consists of 36 matrix products, one per point. The rounding error is about four
//! times that of the direct sum (1e-6 for outputs of order one).

#![allow(unsafe_code, unsafe_op_in_unsafe_fn)]

use super::conv::{BLOCK, FILTER, Pooled, Sizes, TAPS, pool, pool_vector};
use super::dispatch::entry;
use super::product::{Entries, Layout, Shape, multiply, panels_len};
use super::simd::Simd;

/// Points in one dimension: 2 + 5 − 1.
const POINTS: usize = 6;
/// Points of a tile.
const TILE: usize = POINTS * POINTS;

/// Returns the floats of the transformed filters: a matrix `first × second` per point, panel by
/// panel.
pub(crate) fn filters_len(sizes: &Sizes) -> usize {
    TILE * panels_len(sizes.first, sizes.second)
}

/// Returns the floats of scratch for one image, or for transforming the filters.
pub(crate) fn scratch_len(sizes: &Sizes) -> usize {
    let columns = 2 * sizes.pooled_2 + FILTER - 1;
    let image = TILE * sizes.cells_2() * (sizes.first + sizes.second) + columns * POINTS * BLOCK;
    image.max(TILE * BLOCK * BLOCK)
}

/// The second filters, original and transformed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Second<'a> {
    pub(crate) filters: &'a [f32],
    pub(crate) transformed: &'a [f32],
    pub(crate) bias: &'a [f32],
}

entry! {
    /// Computes G g Gᵀ of every filter. The reference does not use it.
    pub(crate) fn transform_filters(sizes: Sizes, filters: &[f32], transformed: &mut [f32], scratch: &mut [f32])
        = transform, leave_untransformed
}

entry! {
    /// The second convolution of one image, with bias, ReLU and pooling.
    pub(crate) fn second_forward(sizes: Sizes, input: &[f32], second: Second<'_>, map: Pooled<'_>, scratch: &mut [f32])
        = by_points, second_reference
}

fn leave_untransformed(_: Sizes, _: &[f32], _: &mut [f32], _: &mut [f32]) {}

/// The direct sum.
fn second_reference(sizes: Sizes, input: &[f32], second: Second<'_>, map: Pooled<'_>, _scratch: &mut [f32]) {
    for cell in 0..sizes.cells_2() {
        let (y, x) = (cell / sizes.pooled_2, cell % sizes.pooled_2);
        for channel in 0..sizes.second {
            let sums = std::array::from_fn(|q| {
                let corner = (2 * y + q / 2) * sizes.pooled_1 + 2 * x + q % 2;
                let mut sum = 0.0;
                for c in 0..sizes.first {
                    for t in 0..TAPS {
                        let at = sizes.at_1(c, corner + t / FILTER * sizes.pooled_1 + t % FILTER);
                        sum += second.filters[sizes.at_filter_2(channel, c, t)] * input[at];
                    }
                }
                sum
            });
            let at = cell * sizes.second + channel;
            (map.values[at], map.winners[at]) = pool(sums, second.bias[channel]);
        }
    }
}

/// Transforms `LANES × LANES` filters at a time. Vectors run over input channels, and the block is
/// then transposed, because the products use vectors over output channels.
#[inline(always)]
unsafe fn transform<S: Simd>(
    _: S,
    sizes: Sizes,
    filters: &[f32],
    transformed: &mut [f32],
    scratch: &mut [f32],
) {
    assert!(filters.len() >= sizes.filters_2() && transformed.len() >= filters_len(&sizes));
    assert!(scratch.len() >= TILE * BLOCK * BLOCK);
    let (layout, matrix) = (Layout::panels(sizes.first), panels_len(sizes.first, sizes.second));
    let block = scratch.as_mut_ptr();
    for channel in (0..sizes.second).step_by(S::LANES) {
        for input in (0..sizes.first).step_by(S::LANES) {
            for lane in 0..S::LANES {
                let filter = filters.as_ptr().add(sizes.at_filter_2(channel + lane, input, 0));
                transform_one::<S>(filter, block.add(lane * S::LANES));
            }
            for point in 0..TILE {
                let to = transformed.as_mut_ptr().add(point * matrix + layout.at(input, channel));
                S::transpose(block.add(point * S::LANES * S::LANES), S::LANES, to, layout.row);
            }
        }
    }
}

/// Computes G g Gᵀ of one filter for a vector of input channels, with `LANES²` floats between
/// points.
#[inline(always)]
unsafe fn transform_one<S: Simd>(filter: *const f32, to: *mut f32) {
    let mut half = [[S::zero(); FILTER]; POINTS];
    for kx in 0..FILTER {
        let mut taps = [S::zero(); FILTER];
        for (ky, tap) in taps.iter_mut().enumerate() {
            *tap = S::load(filter.add((ky * FILTER + kx) * BLOCK));
        }
        let points = filter_points::<S>(taps);
        for (half, point) in half.iter_mut().zip(points) {
            half[kx] = point;
        }
    }
    for (i, half) in half.into_iter().enumerate() {
        let points = filter_points::<S>(half);
        for (j, point) in points.into_iter().enumerate() {
            S::store(to.add((i * POINTS + j) * S::LANES * S::LANES), point);
        }
    }
}

/// Returns G g.
#[inline(always)]
unsafe fn filter_points<S: Simd>([a, b, c, d, e]: [S::V; FILTER]) -> [S::V; POINTS] {
    let sixth = S::splat(-1.0 / 6.0);
    let (even, odd) = (S::add(S::add(a, c), e), S::add(b, d));
    let (even, odd) = (S::mul(even, sixth), S::mul(odd, sixth));
    let far_even =
        S::fma(S::splat(2.0 / 3.0), e, S::fma(S::splat(1.0 / 6.0), c, S::mul(S::splat(1.0 / 24.0), a)));
    let far_odd = S::fma(S::splat(1.0 / 3.0), d, S::mul(S::splat(1.0 / 12.0), b));
    [
        S::mul(S::splat(0.25), a),
        S::add(even, odd),
        S::sub(even, odd),
        S::add(far_even, far_odd),
        S::sub(far_even, far_odd),
        e,
    ]
}

/// Returns Bᵀ d.
#[inline(always)]
unsafe fn input_points<S: Simd>([a, b, c, d, e, f]: [S::V; POINTS]) -> [S::V; POINTS] {
    let (four, five) = (S::splat(4.0), S::splat(5.0));
    let (near_even, near_odd) = (S::fnma(four, c, e), S::fnma(four, b, d));
    let (far_even, far_odd) = (S::sub(e, c), S::sub(d, b));
    let far_odd = S::add(far_odd, far_odd);
    [
        S::fma(four, a, S::fnma(five, c, e)),
        S::add(near_even, near_odd),
        S::sub(near_even, near_odd),
        S::add(far_even, far_odd),
        S::sub(far_even, far_odd),
        S::fma(four, b, S::fnma(five, d, f)),
    ]
}

/// Returns Aᵀ m.
#[inline(always)]
unsafe fn outputs<S: Simd>([a, b, c, d, e, f]: [S::V; POINTS]) -> [S::V; 2] {
    let (near, far) = (S::add(b, c), S::add(d, e));
    let (near_odd, far_odd) = (S::sub(b, c), S::sub(d, e));
    [S::add(a, S::add(near, far)), S::fma(S::splat(2.0), far_odd, S::add(near_odd, f))]
}

/// Transforms the input, multiplies point by point, and transforms back into pooled cells.
#[inline(always)]
unsafe fn by_points<S: Simd>(
    _: S,
    sizes: Sizes,
    input: &[f32],
    second: Second<'_>,
    map: Pooled<'_>,
    scratch: &mut [f32],
) {
    let cells = sizes.cells_2();
    assert!(input.len() >= sizes.map_1() && second.transformed.len() >= filters_len(&sizes));
    assert!(map.values.len() >= sizes.map_2() && map.winners.len() >= sizes.map_2());
    assert!(second.bias.len() >= sizes.second && scratch.len() >= scratch_len(&sizes));
    let (inputs, rest) = scratch.split_at_mut(TILE * cells * sizes.first);
    let (sums, columns) = rest.split_at_mut(TILE * cells * sizes.second);
    for channel in (0..sizes.first).step_by(S::LANES) {
        transform_input::<S>(sizes, input, channel, inputs.as_mut_ptr(), columns.as_mut_ptr());
    }
    let shape = Shape { m: cells, n: sizes.second, k: sizes.first };
    let matrix = panels_len(sizes.first, sizes.second);
    for point in 0..TILE {
        let inputs = &inputs[point * cells * sizes.first..][..cells * sizes.first];
        multiply::<S>(
            shape,
            Entries { values: inputs, row: sizes.first, column: 1 },
            second.transformed.as_ptr().add(point * matrix),
            Layout::panels(sizes.first),
            sums.as_mut_ptr().add(point * cells * sizes.second),
            Layout::rows(sizes.second),
            0.0,
        );
    }
    for channel in (0..sizes.second).step_by(S::LANES) {
        let bias = S::load(second.bias.as_ptr().add(channel));
        for cell in 0..cells {
            let at = cell * sizes.second + channel;
            let tile = transform_back::<S>(sums.as_ptr().add(at), cells * sizes.second);
            let (value, winner) = pool_vector::<S>(tile, bias);
            S::store(map.values.as_mut_ptr().add(at), value);
            S::store(map.winners.as_mut_ptr().add(at), winner);
        }
    }
}

/// Computes Bᵀ d B of every tile for a vector of channels. Tiles overlap, so the columns of a row
/// of tiles are transformed once.
#[inline(always)]
unsafe fn transform_input<S: Simd>(
    sizes: Sizes,
    input: &[f32],
    channel: usize,
    to: *mut f32,
    columns: *mut f32,
) {
    let Sizes { first, pooled_1, pooled_2, .. } = sizes;
    let input = input.as_ptr().add(sizes.at_1(channel, 0));
    let point_stride = sizes.cells_2() * first;
    for tile_y in 0..pooled_2 {
        for x in 0..2 * pooled_2 + FILTER - 1 {
            let top = input.add((2 * tile_y * pooled_1 + x) * BLOCK);
            let mut values = [S::zero(); POINTS];
            for (i, value) in values.iter_mut().enumerate() {
                *value = S::load(top.add(i * pooled_1 * BLOCK));
            }
            let points = input_points::<S>(values);
            for (i, point) in points.into_iter().enumerate() {
                S::store(columns.add((x * POINTS + i) * S::LANES), point);
            }
        }
        for tile_x in 0..pooled_2 {
            let to = to.add((tile_y * pooled_2 + tile_x) * first + channel);
            for i in 0..POINTS {
                let mut values = [S::zero(); POINTS];
                for (j, value) in values.iter_mut().enumerate() {
                    *value = S::load(columns.add(((2 * tile_x + j) * POINTS + i) * S::LANES));
                }
                let points = input_points::<S>(values);
                for (j, point) in points.into_iter().enumerate() {
                    S::store(to.add((i * POINTS + j) * point_stride), point);
                }
            }
        }
    }
}

/// Returns Aᵀ m A of one tile: the four sums of a pooled cell.
#[inline(always)]
unsafe fn transform_back<S: Simd>(sums: *const f32, point_stride: usize) -> [S::V; 4] {
    let (mut left, mut right) = ([S::zero(); POINTS], [S::zero(); POINTS]);
    for i in 0..POINTS {
        let mut row = [S::zero(); POINTS];
        for (j, value) in row.iter_mut().enumerate() {
            *value = S::load(sums.add((i * POINTS + j) * point_stride));
        }
        [left[i], right[i]] = outputs::<S>(row);
    }
    let ([top_left, bottom_left], [top_right, bottom_right]) = (outputs::<S>(left), outputs::<S>(right));
    [top_left, top_right, bottom_left, bottom_right]
}
