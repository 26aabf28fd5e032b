//! The backward pass of the second convolution through the pool.
//!
//! Of the four positions of a cell, only the maximum receives the gradient, and only if ReLU is
//! active. Therefore each channel has a list of its active cells, with the start of the 5 × 5
//! window of the maximum in the input. Both gradients visit only the lists, at most a quarter of
//! the dense work:
//!
//! ```text
//! ∂f/∂input[window of (c, cell)] += g · filter_c        filter_c in registers, loop over cells of c
//! ∂f/∂filter_c                   += g · input[window]    sums in registers, loop over cells of c
//! ```

#![allow(unsafe_code, unsafe_op_in_unsafe_fn)]

use super::conv::{BLOCK, FILTER, Sizes, TAPS, over_filter_rows};
use super::dispatch::entry;
use super::simd::Simd;

/// An active cell of a channel. The head of a list contains the number of active cells.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct ActiveCell {
    /// The start of the window of the maximum in a block of the first map.
    window: u32,
    /// The gradient of the cell.
    gradient: f32,
}

/// Returns the floats that the lists of one image take.
pub(crate) fn lists_len(sizes: &Sizes) -> usize {
    2 * sizes.second * stride(sizes)
}

fn stride(sizes: &Sizes) -> usize {
    sizes.cells_2() + 1
}

/// Interprets a slice of floats as lists.
fn lists(floats: &[f32]) -> &[ActiveCell] {
    // SAFETY: two floats have the size and alignment of an `ActiveCell`, for which every bit
    // pattern is valid.
    unsafe { std::slice::from_raw_parts(floats.as_ptr().cast(), floats.len() / 2) }
}

fn lists_mut(floats: &mut [f32]) -> &mut [ActiveCell] {
    // SAFETY: as above, and the borrow is exclusive.
    unsafe { std::slice::from_raw_parts_mut(floats.as_mut_ptr().cast(), floats.len() / 2) }
}

/// Lists the active cells of each channel of one image, and adds their gradients to that of the
/// bias.
pub(crate) fn list_live(
    sizes: &Sizes,
    map: &[f32],
    winners: &[f32],
    map_gradient: &[f32],
    floats: &mut [f32],
    bias_gradient: &mut [f32],
) {
    let Sizes { second, pooled_1, pooled_2, .. } = *sizes;
    let shifts = [0, 1, pooled_1, pooled_1 + 1].map(|shift| (shift * BLOCK) as u32);
    let lists = lists_mut(floats).chunks_exact_mut(stride(sizes));
    for (channel, (list, bias)) in lists.zip(bias_gradient).enumerate().take(second) {
        let (mut live, mut at, mut sum) = (0, channel, *bias);
        for y in 0..pooled_2 {
            for x in 0..pooled_2 {
                // Written always and counted if active, to avoid a branch.
                let corner = (2 * (y * pooled_1 + x) * BLOCK) as u32;
                let (window, gradient) = (corner + shifts[index(winners[at])], map_gradient[at]);
                list[live + 1] = ActiveCell { window, gradient };
                let alive = map[at] > 0.0;
                live += usize::from(alive);
                sum += if alive { gradient } else { 0.0 };
                at += second;
            }
        }
        list[0].window = live as u32;
        *bias = sum;
    }
}

/// Returns a small integral float modulo 4: its low bits after 2²³ is added.
fn index(winner: f32) -> usize {
    (winner + 8_388_608.0).to_bits() as usize & 3
}

entry! {
    /// Computes the gradient of the first map of one image.
    pub(crate) fn input_gradient(sizes: Sizes, filters: &[f32], live: &[f32], gradient: &mut [f32])
        = input_by_lists, input_reference
}

entry! {
    /// Computes filters ← decay·filters + gradient over the images with the given first maps and
    /// lists.
    pub(crate) fn add_filter_gradient(sizes: Sizes, maps: &[f32], live: &[f32], decay: f32, filters: &mut [f32])
        = filters_by_lists, filters_reference
}

fn input_reference(sizes: Sizes, filters: &[f32], live: &[f32], gradient: &mut [f32]) {
    gradient.fill(0.0);
    for (channel, list) in lists(live).chunks_exact(stride(&sizes)).enumerate() {
        for cell in &list[1..=list[0].window as usize] {
            for c in 0..sizes.first {
                for t in 0..TAPS {
                    let corner = cell.window as usize / BLOCK;
                    let at = sizes.at_1(c, corner + t / FILTER * sizes.pooled_1 + t % FILTER);
                    gradient[at] += cell.gradient * filters[sizes.at_filter_2(channel, c, t)];
                }
            }
        }
    }
}

fn filters_reference(sizes: Sizes, maps: &[f32], live: &[f32], decay: f32, filters: &mut [f32]) {
    filters.iter_mut().for_each(|w| *w *= decay);
    for (map, live) in maps.chunks_exact(sizes.map_1()).zip(live.chunks_exact(lists_len(&sizes))) {
        for (channel, list) in lists(live).chunks_exact(stride(&sizes)).enumerate() {
            for cell in &list[1..=list[0].window as usize] {
                for c in 0..sizes.first {
                    for t in 0..TAPS {
                        let corner = cell.window as usize / BLOCK;
                        let at = sizes.at_1(c, corner + t / FILTER * sizes.pooled_1 + t % FILTER);
                        filters[sizes.at_filter_2(channel, c, t)] += cell.gradient * map[at];
                    }
                }
            }
        }
    }
}

/// Checks that no window leaves its map, which the kernels below require.
fn check(sizes: &Sizes, live: &[f32]) {
    let last = ((sizes.pooled_1 - FILTER) * (sizes.pooled_1 + 1) * BLOCK) as u32;
    for list in lists(live).chunks_exact(stride(sizes)) {
        let furthest = list[1..=list[0].window as usize].iter().fold(0, |far, cell| cell.window.max(far));
        assert!(furthest <= last, "a window leaves the map");
    }
}

#[inline(always)]
unsafe fn input_by_lists<S: Simd>(_: S, sizes: Sizes, filters: &[f32], live: &[f32], gradient: &mut [f32]) {
    assert!(filters.len() >= sizes.filters_2() && live.len() >= lists_len(&sizes));
    assert!(gradient.len() >= sizes.map_1());
    check(&sizes, live);
    gradient[..sizes.map_1()].fill(0.0);
    for input in (0..sizes.first).step_by(S::LANES) {
        for (channel, list) in lists(live).chunks_exact(stride(&sizes)).take(sizes.second).enumerate() {
            let spread = FilterSpread {
                row: sizes.pooled_1 * BLOCK,
                map: gradient.as_mut_ptr().add(sizes.at_1(input, 0)),
                filter: filters.as_ptr().add(sizes.at_filter_2(channel, input, 0)),
                cells: &list[1..=list[0].window as usize],
            };
            over_filter_rows!(S, spread.rows);
        }
    }
}

/// A filter for a vector of input channels, and the active cells over whose windows it is spread.
#[derive(Clone, Copy)]
struct FilterSpread<'a> {
    /// Floats between rows of the map.
    row: usize,
    map: *mut f32,
    filter: *const f32,
    cells: &'a [ActiveCell],
}

impl FilterSpread<'_> {
    /// Adds g · (filter rows from `first`) to the windows.
    #[inline(always)]
    unsafe fn rows<S: Simd, const ROWS: usize>(self, first: usize) {
        let mut taps = [[S::zero(); FILTER]; ROWS];
        for (ky, taps) in taps.iter_mut().enumerate() {
            for (kx, tap) in taps.iter_mut().enumerate() {
                *tap = S::load(self.filter.add(((first + ky) * FILTER + kx) * BLOCK));
            }
        }
        for cell in self.cells {
            let gradient = S::splat(cell.gradient);
            let window = self.map.add(cell.window as usize + first * self.row);
            for (ky, taps) in taps.iter().enumerate() {
                for (kx, &tap) in taps.iter().enumerate() {
                    let at = window.add(ky * self.row + kx * BLOCK);
                    S::store(at, S::fma(gradient, tap, S::load(at)));
                }
            }
        }
    }
}

/// Images whose first maps share the L1 cache, one block of 16 channels at a time.
const IMAGES: usize = 3;

#[inline(always)]
unsafe fn filters_by_lists<S: Simd>(
    _: S,
    sizes: Sizes,
    maps: &[f32],
    live: &[f32],
    decay: f32,
    filters: &mut [f32],
) {
    let (map_len, live_len) = (sizes.map_1(), lists_len(&sizes));
    assert!(filters.len() >= sizes.filters_2() && live.len().is_multiple_of(live_len));
    assert!(maps.len() / map_len >= live.len() / live_len, "a map per list");
    check(&sizes, live);
    for input in (0..sizes.first).step_by(S::LANES) {
        let mut decay = decay;
        for (maps, live) in maps.chunks(IMAGES * map_len).zip(live.chunks(IMAGES * live_len)) {
            for channel in 0..sizes.second {
                let filter = filters.as_mut_ptr().add(sizes.at_filter_2(channel, input, 0));
                let gather = Gather { sizes, maps, live, channel, input, filter, decay };
                over_filter_rows!(S, gather.rows);
            }
            decay = 1.0;
        }
    }
}

/// A filter for a vector of input channels, and the images whose windows it gathers.
#[derive(Clone, Copy)]
struct Gather<'a> {
    sizes: Sizes,
    maps: &'a [f32],
    live: &'a [f32],
    channel: usize,
    input: usize,
    filter: *mut f32,
    decay: f32,
}

impl Gather<'_> {
    /// Computes filter rows from `first` ← decay · rows + Σ g · windows.
    #[inline(always)]
    unsafe fn rows<S: Simd, const ROWS: usize>(self, first: usize) {
        let row = self.sizes.pooled_1 * BLOCK;
        let filter = self.filter.add(first * FILTER * BLOCK);
        let decay = S::splat(self.decay);
        let mut sums = [[S::zero(); FILTER]; ROWS];
        for (ky, sums) in sums.iter_mut().enumerate() {
            for (kx, sum) in sums.iter_mut().enumerate() {
                *sum = S::mul(decay, S::load(filter.add((ky * FILTER + kx) * BLOCK)));
            }
        }
        let images =
            self.maps.chunks_exact(self.sizes.map_1()).zip(self.live.chunks_exact(lists_len(&self.sizes)));
        for (map, live) in images {
            let map = map.as_ptr().add(self.sizes.at_1(self.input, 0) + first * row);
            let list = &lists(live)[self.channel * stride(&self.sizes)..];
            for cell in &list[1..=list[0].window as usize] {
                let gradient = S::splat(cell.gradient);
                let window = map.add(cell.window as usize);
                for (ky, sums) in sums.iter_mut().enumerate() {
                    for (kx, sum) in sums.iter_mut().enumerate() {
                        *sum = S::fma(gradient, S::load(window.add(ky * row + kx * BLOCK)), *sum);
                    }
                }
            }
        }
        for (ky, sums) in sums.iter().enumerate() {
            for (kx, &sum) in sums.iter().enumerate() {
                S::store(filter.add((ky * FILTER + kx) * BLOCK), sum);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::conv::{Pooled, first_forward, first_gradient};
    use crate::kernel::winograd::{self, Second, second_forward, transform_filters};
    use crate::kernel::{Granted, Isa};
    use crate::stream::{Purpose, Stream};

    fn random(len: usize, stream: &mut Stream) -> Vec<f32> {
        (0..len).map(|_| stream.uniform(-1.0, 1.0) as f32).collect()
    }

    /// Runs every convolution kernel forward and backward for two images. Returns everything
    /// written.
    fn run(isa: Isa, sizes: Sizes) -> Vec<(&'static str, Vec<f32>)> {
        let kernel = Granted::new(isa);
        let stream = &mut Stream::new(1, Purpose::Synthesis, 0, sizes.side as u64);
        let (filters_1, bias) = (random(sizes.filters_1(), stream), random(sizes.second, stream));
        let mut filters_2 = random(sizes.filters_2(), stream);
        let mut transformed = vec![0.0; winograd::filters_len(&sizes)];
        let mut scratch = vec![0.0; winograd::scratch_len(&sizes)];
        transform_filters(kernel, sizes, &filters_2, &mut transformed, &mut scratch);
        let (mut maps, mut lists) = (Vec::new(), Vec::new());
        let (mut outputs, mut bias_gradient) = (Vec::new(), vec![0.0; sizes.second]);
        let mut first = vec![0.0; sizes.filters_1()];
        for _ in 0..2 {
            let image = random(sizes.pixels(), stream);
            let (mut map, mut winners) = (vec![0.0; sizes.map_1()], vec![0.0; sizes.map_1()]);
            let pooled = Pooled { values: &mut map, winners: &mut winners };
            first_forward(kernel, sizes, &image, &filters_1, pooled);
            let (mut map_2, mut winners_2) = (vec![0.0; sizes.map_2()], vec![0.0; sizes.map_2()]);
            let pooled = Pooled { values: &mut map_2, winners: &mut winners_2 };
            let second = Second { filters: &filters_2, transformed: &transformed, bias: &bias };
            second_forward(kernel, sizes, &map, second, pooled, &mut scratch);
            let slopes = random(sizes.map_2(), stream);
            let mut live = vec![0.0; lists_len(&sizes)];
            list_live(&sizes, &map_2, &winners_2, &slopes, &mut live, &mut bias_gradient);
            let mut map_gradient = vec![1.0; sizes.map_1()];
            input_gradient(kernel, sizes, &filters_2, &live, &mut map_gradient);
            first_gradient(kernel, sizes, &image, &map, &winners, &map_gradient, &mut first);
            outputs.push(("the second map", map_2));
            outputs.push(("the gradient of the first map", map_gradient));
            maps.extend(map);
            lists.extend(live);
        }
        add_filter_gradient(kernel, sizes, &maps, &lists, 0.5, &mut filters_2);
        outputs.push(("the first maps", maps));
        outputs.push(("the gradient of the first filters", first));
        outputs.push(("the second filters", filters_2));
        outputs.push(("the gradient of the second bias", bias_gradient));
        outputs
    }

    #[test]
    fn every_instruction_set_agrees_with_the_direct_convolution_at_odd_sizes() {
        for (side, channels) in [(16, [1, 1]), (17, [16, 16]), (19, [17, 33]), (28, [32, 64]), (23, [48, 7])]
        {
            let sizes = Sizes::new(side, channels).unwrap();
            let expected = run(Isa::Reference, sizes);
            for isa in Isa::available() {
                for ((name, a), (_, b)) in expected.iter().zip(run(isa, sizes)) {
                    let largest = a.iter().fold(1.0f32, |m, x| m.max(x.abs()));
                    let worst = a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                    assert!(
                        worst < 2e-5 * largest,
                        "{isa}, side {side}: {name} is off by {worst} of {largest}"
                    );
                }
            }
        }
    }

    #[test]
    fn an_image_too_small_to_be_pooled_twice_has_no_sizes() {
        assert!(Sizes::new(15, [1, 1]).is_none());
        assert!(Sizes::new(16, [1, 1]).is_some());
        assert!(Sizes::new(3, [1, 1]).is_none());
    }

    #[test]
    #[should_panic(expected = "a window leaves the map")]
    fn a_list_that_leaves_the_map_is_refused() {
        let sizes = Sizes::new(16, [1, 1]).unwrap();
        let mut live = vec![0.0; lists_len(&sizes)];
        lists_mut(&mut live)[0].window = 1;
        lists_mut(&mut live)[1].window = 1 << 20;
        let (filters, mut gradient) = (vec![0.0; sizes.filters_2()], vec![0.0; sizes.map_1()]);
        input_gradient(Granted::new(Isa::Portable), sizes, &filters, &live, &mut gradient);
    }
}
