//! Convolutions with operands in fp16 parts (`halves.cuh`).

use super::convolution::{FEW_BLOCKS, Tiles};
use super::{Builder, Launch, THREADS, or_none};
use crate::model::general::network::Convolution;

/// The fewest input channels: rows have chunks of eight.
const FEWEST_CHANNELS: usize = 8;
/// The most 16 × 8 tiles of a warp along the rows and the columns.
const MOST_TILES: usize = 4;
/// Products of a step, steps of a stage and stages of the filters.
const STEP: usize = 16;
const DEPTH: usize = 2;
const STAGES: usize = 3;
/// Blocks per device that copy the filters.
const FILTER_BLOCKS: usize = 4;
/// Cycles of a multiprocessor's quarter for the three products of a tile, and of shared memory for
/// the operands of a tile of rows and of columns.
const PRODUCT_CYCLES: f64 = 19.4;
const ROW_CYCLES: f64 = 8.0;
const COLUMN_CYCLES: f64 = 4.0;
/// Cycles of a step for anything else.
const OTHER_CYCLES: f64 = 30.0;

/// The division of the gradient of the filters.
struct HalfGradient {
    warps: [usize; 2],
    tiles: [usize; 2],
    parts: usize,
    splits: usize,
    blocks: usize,
    shared: usize,
}

/// The kernels of a convolution.
pub(super) struct Halves {
    forward: Tiles,
    /// Unless the input needs no slopes.
    backward: Option<Tiles>,
    gradient: HalfGradient,
}

/// Bytes of a row in shared memory.
fn pitch(channels: usize) -> usize {
    32 * channels.div_ceil(8) + 16
}

/// Bytes of a line, as in the kernels.
fn line(wide: usize, pitch: usize, next: usize) -> usize {
    let skew = (next as isize - wide as isize) * (pitch / 16) as isize;
    wide * pitch + 16 * skew.rem_euclid(8) as usize
}

/// Floats of rows of halves.
fn row_floats(channels: usize) -> usize {
    8 * channels.div_ceil(8)
}

/// Returns how many of `tiles` belong to warp `warp` of `warps`.
fn share(tiles: usize, warp: usize, warps: usize) -> usize {
    (tiles + warps - 1).saturating_sub(warp) / warps
}

/// Returns the fastest tiles of a product of `positions` rows per example with `columns` columns and
/// `chunks` of eight products. `[image, border]` are bytes per example and block.
fn fastest(
    batch: usize,
    [positions, columns, chunks]: [usize; 3],
    [image, border]: [usize; 2],
    memory: usize,
) -> Option<Tiles> {
    let steps = chunks.div_ceil(2).next_multiple_of(DEPTH);
    let shared =
        |images: usize, wide: usize| images * image + border + STAGES * DEPTH * wide * 64 + 16 * steps;
    Tiles::fastest(batch, [positions, columns], memory, shared, |warps, _, used| step_cycles(warps, used))
}

/// Returns the cycles of a step of a block, for this many tiles along the rows and the columns.
fn step_cycles(warps: [usize; 2], used: [usize; 2]) -> f64 {
    let (mut products, mut loads) = ([0.0f64; 4], 0.0);
    for warp in 0..8 {
        let [rows, columns] =
            [share(used[0], warp / warps[1], warps[0]), share(used[1], warp % warps[1], warps[1])]
                .map(|tiles| tiles as f64);
        products[warp % 4] += PRODUCT_CYCLES * rows * columns;
        loads += ROW_CYCLES * rows + COLUMN_CYCLES * columns;
    }
    products.into_iter().fold(loads, f64::max) + OTHER_CYCLES
}

impl Halves {
    pub(super) fn new(
        convolution: &Convolution,
        batch: usize,
        needs_slopes: bool,
        memory: usize,
    ) -> Option<Self> {
        let [channels, height, width] = convolution.input;
        let (side, padding, stride) = (convolution.side, convolution.padding, convolution.stride);
        let (filters, taps, [tall, wide]) =
            (convolution.filters, convolution.taps(), convolution.used_size());
        if padding >= side || channels < FEWEST_CHANNELS {
            return None;
        }
        let chunks = |channels: usize| taps * channels.div_ceil(8);
        let map = |next| (height + 2 * padding) * line(width + 2 * padding, pitch(channels), next);
        let next = if convolution.pool { 4 } else { wide };
        let forward = fastest(batch, [tall * wide, filters, chunks(channels)], [map(next), 0], memory)?;
        // As `SlopeSlab`.
        let left = side - 1 - padding;
        let stretched = (wide - 1) * stride + 1;
        let bordered = stretched + left.max((width + side - 1).saturating_sub(left + stretched));
        let slopes = [(height + side - 1) * line(bordered, pitch(filters), width), left * pitch(filters)];
        let backward = if needs_slopes {
            Some(fastest(batch, [height * width, channels, chunks(filters)], slopes, memory)?)
        } else {
            None
        };
        let steps = (tall * wide).div_ceil(STEP);
        let shared = map(wide) + steps * STEP * (pitch(filters) + 4) + 4 * height * width;
        let gradient = HalfGradient::new(filters, chunks(channels), batch, shared);
        (shared <= memory).then_some(Self { forward, backward, gradient })
    }

    /// Returns the parts of the gradient's sum.
    pub(super) fn splits(&self) -> usize {
        self.gradient.splits
    }
}

impl HalfGradient {
    /// Returns a division of a gradient with this many filters and tiles of columns. A warp has all
    /// rows if they are few: this needs the fewest loads.
    fn new(filters: usize, columns: usize, batch: usize, shared: usize) -> Self {
        let rows = filters.div_ceil(16);
        let warps = if rows <= MOST_TILES { [1, 8] } else { [2, 4] };
        let row_tiles = rows.div_ceil(warps[0]).min(MOST_TILES);
        let parts = columns.div_ceil(warps[1] * MOST_TILES);
        let tiles = [row_tiles, columns.div_ceil(parts).div_ceil(warps[1])];
        let of_sum = parts * rows.div_ceil(warps[0] * row_tiles);
        let splits = FEW_BLOCKS.div_ceil(of_sum).min(batch);
        Self { warps, tiles, parts, splits, blocks: of_sum * splits, shared }
    }

    fn sizes(&self) -> [(&'static str, i64); 7] {
        [
            ("WR", self.warps[0] as i64),
            ("WC", self.warps[1] as i64),
            ("MT", self.tiles[0] as i64),
            ("NT", self.tiles[1] as i64),
            ("PARTS", self.parts as i64),
            ("SPLITS", self.splits as i64),
            ("SHARED", self.shared as i64),
        ]
    }
}

impl Builder {
    /// Reserves the operands of a layer and returns their places.
    pub(super) fn half_places(&mut self, convolution: &Convolution) -> [(&'static str, i64); 5] {
        let [channels, height, width] = convolution.input;
        let (filters, [tall, wide], batch) = (convolution.filters, convolution.used_size(), self.batch);
        let maps = self.place(batch * height * width * row_floats(channels));
        let rows = self.place(filters.next_multiple_of(8) * convolution.taps() * row_floats(channels));
        let slopes = self.slopes(batch * tall * wide * row_floats(filters));
        let inverses = self.place(1 + 2 * batch);
        [
            ("X_HALVES", maps as i64),
            ("FILTER_HALVES", rows as i64),
            ("DZ_HALVES", or_none(slopes)),
            ("INVERSES", inverses as i64),
            ("FILTER_BLOCKS", FILTER_BLOCKS as i64),
        ]
    }

    /// Adds the kernels of a layer. Returns those of the backward pass.
    pub(super) fn halves(&mut self, layer: &str, plan: &Halves, bias_blocks: usize) -> Vec<Launch> {
        let call = format!("halves_prepare<{layer}>(wave)");
        let prepare = self.kernel(&call, self.batch + FILTER_BLOCKS, THREADS);
        let forward = self.half_kernel(
            "forward",
            layer,
            &plan.forward.sizes(),
            plan.forward.blocks,
            plan.forward.shared,
        );
        self.forward.extend([prepare, forward]);
        if !self.trains {
            return Vec::new();
        }
        let slopes = self.kernel(&format!("halves_slopes<{layer}>(wave)"), self.batch, THREADS);
        let of = &plan.gradient;
        let gradient = self.half_kernel("gradient", layer, &of.sizes(), of.blocks + bias_blocks, of.shared);
        let mut backward = vec![slopes, gradient.beside(1)];
        if let Some(tiles) = &plan.backward {
            backward.push(self.half_kernel("backward", layer, &tiles.sizes(), tiles.blocks, tiles.shared));
        }
        backward
    }

    fn half_kernel(
        &mut self,
        pass: &str,
        layer: &str,
        sizes: &[(&str, i64)],
        blocks: usize,
        shared: usize,
    ) -> Launch {
        let plan = self.sizes(sizes);
        let launch = self.kernel(&format!("halves_{pass}<{layer}, {plan}>(wave)"), blocks, THREADS);
        Launch { shared: shared as u32, ..launch }
    }
}
