//! Convolutions: maps in shared memory if they fit (`slab.cuh`), else tiles from global memory
//! (`conv.cuh`).

use super::{Activation, Builder, Launch, THREADS, or_none};
use crate::model::general::network::Convolution;

/// The shortest part of a convolution's gradient sum for a separate block.
const SHORTEST_PART: usize = 512;
/// Blocks per device that keep a GPU busy with few devices.
const FEW_BLOCKS: usize = 8;
/// Bytes of shared memory of a block, of which two fit on a multiprocessor of compute capability 9.0,
/// and of a block of every supported GPU.
const SLAB_BYTES: [usize; 2] = [110 * 1024, 80 * 1024];
/// The most positions in a piece of a gradient's sum.
const PIECE: usize = 128;
/// The most tiles of a warp, whose sums are in registers.
const MOST_TILES: usize = 16;
/// The warps of a block along the rows and the columns.
const WARPS: [[usize; 2]; 3] = [[8, 1], [4, 2], [2, 4]];

/// The tiles of a product whose maps are in shared memory.
#[derive(Clone, Copy)]
struct Tiles {
    warps: [usize; 2],
    /// 16 × 8 tiles of a warp.
    tiles: [usize; 2],
    /// Examples of a block.
    images: usize,
    /// Blocks of an example.
    pieces: usize,
    /// Blocks per device.
    blocks: usize,
    shared: usize,
    cost: f64,
}

impl Tiles {
    fn rows(warps: [usize; 2], tiles: [usize; 2]) -> [usize; 2] {
        [warps[0] * tiles[0] * 16, warps[1] * tiles[1] * 8]
    }

    /// Returns the time of a block per eight products, in cycles: that of the tensor cores, and
    /// that of loads and splits.
    fn time([rows, columns]: [usize; 2]) -> f64 {
        4.8 * (rows * columns) as f64 + (4 * rows + 2 * columns) as f64
    }

    /// Returns the fastest tiles of a product with slabs of this many bytes per example.
    fn of_slab(
        batch: usize,
        [positions, columns, sum]: [usize; 3],
        slab: usize,
        memory: usize,
    ) -> Option<Self> {
        let mut best: Option<Self> = None;
        for warps in WARPS {
            for tiles in (1..=4).flat_map(|rows| (1..=4).map(move |columns| [rows, columns])) {
                let [most, wide] = Self::rows(warps, tiles);
                let pieces = positions.div_ceil(most);
                let images = if pieces > 1 { 1 } else { (most / positions).clamp(1, batch) };
                let shared =
                    images * slab.next_multiple_of(16) + 4 * (3 * wide * 36 + sum.next_multiple_of(32));
                if tiles[0] * tiles[1] > MOST_TILES
                    || shared > memory
                    || positions.div_ceil(pieces).next_multiple_of(16) > most
                {
                    continue;
                }
                let blocks = columns.div_ceil(wide) * batch.div_ceil(images) * pieces;
                let cost = blocks as f64 * Self::time(tiles);
                if best.is_none_or(|best| cost < best.cost) {
                    best = Some(Self { warps, tiles, images, pieces, blocks, shared, cost });
                }
            }
        }
        best
    }

    fn sizes(&self) -> Vec<(&'static str, i64)> {
        vec![
            ("WR", self.warps[0] as i64),
            ("WC", self.warps[1] as i64),
            ("MT", self.tiles[0] as i64),
            ("NT", self.tiles[1] as i64),
            ("IMAGES", self.images as i64),
            ("PIECES", self.pieces as i64),
        ]
    }
}

/// The division of the product that returns the slopes of the input.
enum SlopesPlan {
    Slab(Tiles),
    Fold(Fold),
}

/// The kernels of a convolution with maps in shared memory.
struct Slabs {
    forward: Tiles,
    /// Unless the input needs no slopes.
    backward: Option<SlopesPlan>,
    gradient: Tiles,
    /// Rows of the convolution in a piece of the gradient's sum, and parts of that sum.
    lines: usize,
    splits: usize,
}

impl Slabs {
    fn new(convolution: &Convolution, batch: usize, needs_slopes: bool, memory: usize) -> Option<Self> {
        let [channels, height, width] = convolution.input;
        let (side, padding, stride) = (convolution.side, convolution.padding, convolution.stride);
        let [filters, rows, columns] = convolution.output();
        if padding >= side {
            return None;
        }
        let pool = if convolution.pool { 2 } else { 1 };
        let taps = side * side;
        let (tall, wide) = (pool * rows, pool * columns);
        let input = 4 * channels * (height + 2 * padding) * (width + 2 * padding);
        let forward = Tiles::of_slab(batch, [tall * wide, filters, channels * taps], input, memory)?;
        // As `SlopeSlab`.
        let left = side - 1 - padding;
        let with_border = |len: usize, input: usize| {
            let len = (len - 1) * stride + 1;
            len + left.max((input + side - 1).saturating_sub(left + len))
        };
        let [map_rows, map_columns] = [with_border(tall, height), with_border(wide, width)];
        let slopes = 4 * (filters * map_rows * map_columns + left * (map_columns + 1));
        let backward = Tiles::of_slab(batch, [height * width, channels, filters * taps], slopes, memory);
        let slab = backward.map(|tiles| (tiles.cost * (filters * taps).div_ceil(8) as f64, tiles));
        let backward = match (needs_slopes, slab, Fold::new(convolution, batch, memory)) {
            (false, _, _) => None,
            (true, Some((cost, tiles)), fold) if fold.as_ref().is_none_or(|fold| cost <= fold.cost) => {
                Some(SlopesPlan::Slab(tiles))
            }
            (true, _, Some(fold)) => Some(SlopesPlan::Fold(fold)),
            (true, _, None) => return None,
        };
        let (gradient, lines, splits) = Self::gradient(convolution, batch, memory)?;
        Some(Self { forward, backward, gradient, lines, splits })
    }

    /// Returns the tiles, lines and splits of the gradient.
    fn gradient(convolution: &Convolution, batch: usize, memory: usize) -> Option<(Tiles, usize, usize)> {
        let ([channels, _, width], [filters, rows, columns]) = (convolution.input, convolution.output());
        let (side, pool) = (convolution.side, if convolution.pool { 2 } else { 1 });
        let (taps, tall, wide) = (side * side, pool * rows, pool * columns);
        // Equal pieces of at most so many positions.
        let most = (PIECE / (pool * wide)).max(1) * pool;
        let pieces = tall.div_ceil(most);
        let lines = tall.div_ceil(pieces).next_multiple_of(pool);
        let pieces = tall.div_ceil(lines);
        let mut best: Option<(Tiles, usize)> = None;
        for warps in WARPS {
            for tiles in (1..=2).flat_map(|rows| (1..=4).map(move |columns| [rows, columns])) {
                let [most, taken] = Tiles::rows(warps, tiles);
                let of_sum = filters.div_ceil(most) * (channels * taps).div_ceil(taken);
                let splits = (FEW_BLOCKS + 4).div_ceil(of_sum).min(batch * pieces);
                let maps = ((taken - 2) / taps + 2).min(channels);
                let map = ((lines - 1) * convolution.stride + side) * (width + 2 * convolution.padding);
                let length = (lines * wide).next_multiple_of(8);
                let border = (width + 2 * convolution.padding) * convolution.stride + 8;
                let shared = 4 * (most * (length + 4) + (maps * map + border).next_multiple_of(4) + length);
                let blocks = of_sum * splits;
                let cost = of_sum as f64 * Tiles::time(tiles);
                if shared <= memory && best.is_none_or(|(best, _)| cost < best.cost) {
                    let tiles = Tiles { warps, tiles, images: 1, pieces: 1, blocks, shared, cost };
                    best = Some((tiles, splits));
                }
            }
        }
        best.map(|(tiles, splits)| (tiles, lines, splits))
    }
}

/// The slopes of the input as a product and a sum (`fold.cuh`).
struct Fold {
    channels: usize,
    /// Examples of a block.
    each: usize,
    warps: [usize; 2],
    /// 16 × 8 tiles of a warp.
    tiles: [usize; 2],
    blocks: usize,
    shared: usize,
    /// The time of a device, as that of `Tiles`.
    cost: f64,
}

impl Fold {
    /// Returns the fastest division, if one fits into shared memory.
    fn new(convolution: &Convolution, batch: usize, memory: usize) -> Option<Self> {
        let ([all, height, width], [filters, rows, columns]) = (convolution.input, convolution.output());
        let pool = if convolution.pool { 4 } else { 1 };
        let positions = (pool * rows * columns).next_multiple_of(16);
        let taps = convolution.side * convolution.side;
        let mut best: Option<Self> = None;
        for channels in (1..=all).take_while(|&channels| channels <= 8) {
            let entries = channels * taps;
            let wide = entries.next_multiple_of(8);
            let pitches = positions + 8 + wide.next_multiple_of(16) + 8;
            let shared = 4 * (filters.next_multiple_of(8) * pitches + entries * (positions + 4));
            if shared > memory {
                break;
            }
            for warps in [[1, 8], [2, 4], [4, 2], [8, 1]] {
                let column_tiles = (wide / 8).div_ceil(warps[1]);
                let passes = (positions / 16).div_ceil(warps[0] * (MOST_TILES / column_tiles).max(1));
                let row_tiles = (positions / 16).div_ceil(warps[0] * passes);
                let groups = all.div_ceil(channels);
                let each = if groups * batch >= 32 { 2 } else { 1 };
                let product =
                    passes as f64 * filters.div_ceil(8) as f64 * Tiles::time([row_tiles, column_tiles]);
                // Three instructions per contribution.
                let sum = (channels * height * width).div_ceil(THREADS as usize) * taps * 3;
                let cost = (groups * batch) as f64 * (product + sum as f64);
                if column_tiles <= MOST_TILES && best.as_ref().is_none_or(|best| cost < best.cost) {
                    let tiles = [row_tiles, column_tiles];
                    let blocks = groups * batch.div_ceil(each);
                    best = Some(Self { channels, each, warps, tiles, blocks, shared, cost });
                }
            }
        }
        best
    }
}

impl Builder {
    pub(super) fn convolution(&mut self, convolution: Convolution, x: Activation) -> Activation {
        let ([channels, height, width], [filters, rows, columns]) = (convolution.input, convolution.output());
        let ([tall, wide], batch, taps) =
            (convolution.size(), self.batch, channels * convolution.side * convolution.side);
        let weights = self.tensor(filters * taps, None);
        let bias = convolution.bias.then(|| self.tensor(filters, None));
        let cells = batch * filters * rows * columns;
        let (at, slopes) = (self.place(cells), self.slopes(cells));
        let pool = if convolution.pool { 2 } else { 1 };
        let winners = if self.trains && pool == 2 { self.place(cells.div_ceil(4)) } else { 0 };
        let memory = SLAB_BYTES[usize::from(!self.clusters)];
        let slabs = Slabs::new(&convolution, batch, self.trains && x.slopes.is_some(), memory);
        let is_widened = self.trains && pool == 2 && slabs.is_none();
        let widened = is_widened.then(|| self.place(batch * filters * tall * wide));
        let tiles = filters.div_ceil(narrow(filters)) * taps.div_ceil(64);
        let sum = batch * rows * columns * pool * pool;
        let splits = match &slabs {
            Some(slabs) => slabs.splits,
            None => FEW_BLOCKS.div_ceil(tiles).min(sum / SHORTEST_PART).max(1),
        };
        let parts = if self.trains && splits > 1 { self.place(splits * filters * taps) } else { 0 };
        let layer = self.sizes(&[
            ("C", channels as i64),
            ("H", height as i64),
            ("W", width as i64),
            ("O", filters as i64),
            ("SIDE", convolution.side as i64),
            ("PAD", convolution.padding as i64),
            ("STRIDE", convolution.stride as i64),
            ("POOL", pool as i64),
            ("PH", tall as i64),
            ("PW", wide as i64),
            ("QH", rows as i64),
            ("QW", columns as i64),
            ("FILTERS", weights as i64),
            ("BIAS", or_none(bias)),
            ("X", x.at as i64),
            ("Z", at as i64),
            ("DX", or_none(x.slopes)),
            ("DZ", or_none(slopes)),
            ("WINNERS", winners as i64),
            ("WIDE", or_none(widened)),
            ("SPLITS", splits as i64),
            ("PARTS", parts as i64),
            ("RELU", convolution.relu.into()),
            ("CUT", x.cut.into()),
        ]);
        let bias_blocks = bias.map_or(0, |_| filters.div_ceil(8));
        let mut backward = Vec::new();
        if let Some(slabs) = slabs {
            let forward = self.slab_kernel("forward", &layer, slabs.forward, 0, &[]);
            self.forward.push(forward);
            match slabs.backward {
                Some(SlopesPlan::Slab(tiles)) => {
                    backward.push(self.slab_kernel("backward", &layer, tiles, 0, &[]));
                }
                Some(SlopesPlan::Fold(fold)) => backward.push(self.fold_kernel(&layer, &fold)),
                None => {}
            }
            if self.trains {
                let others = [("LINES", slabs.lines as i64), ("SPLITS", splits as i64)];
                let gradient = self.slab_kernel("gradient", &layer, slabs.gradient, bias_blocks, &others);
                backward.push(gradient.beside(1));
            }
        } else {
            let blocks = sum.div_ceil(128) * filters.div_ceil(narrow(filters));
            let forward = self.kernel(&format!("conv_forward<{layer}>(wave)"), blocks, THREADS);
            self.forward.push(forward);
            if widened.is_some() {
                let blocks = (batch * filters * tall * wide).div_ceil(1024);
                backward.push(self.kernel(&format!("conv_widen<{layer}>(wave)"), blocks, THREADS));
            }
            if self.trains && x.slopes.is_some() {
                let blocks = (batch * height * width).div_ceil(128) * channels.div_ceil(narrow(channels));
                backward.push(self.kernel(&format!("conv_backward<{layer}>(wave)"), blocks, THREADS));
            }
            if self.trains {
                let blocks = tiles * splits + bias_blocks;
                backward
                    .push(self.kernel(&format!("conv_gradient<{layer}>(wave)"), blocks, THREADS).beside(1));
            }
        }
        if self.trains {
            if splits > 1 {
                let blocks = (filters * taps).div_ceil(THREADS as usize);
                backward
                    .push(self.kernel(&format!("conv_descend<{layer}>(wave)"), blocks, THREADS).beside(1));
            }
            self.backward.push(backward);
        }
        let cut = convolution.relu && !convolution.pool;
        Activation { at, width: filters * rows * columns, rows: 1, slopes, cut }
    }

    /// Adds the kernel of `fold.cuh`.
    fn fold_kernel(&mut self, layer: &str, fold: &Fold) -> Launch {
        let plan = self.sizes(&[
            ("CHANNELS", fold.channels as i64),
            ("EACH", fold.each as i64),
            ("WR", fold.warps[0] as i64),
            ("WC", fold.warps[1] as i64),
            ("MT", fold.tiles[0] as i64),
            ("NT", fold.tiles[1] as i64),
        ]);
        let launch = self.kernel(&format!("fold_backward<{layer}, {plan}>(wave)"), fold.blocks, THREADS);
        Launch { shared: fold.shared as u32, ..launch }
    }

    /// Adds a kernel of `slab.cuh`, with blocks in addition to those of the tiles.
    fn slab_kernel(
        &mut self,
        pass: &str,
        layer: &str,
        tiles: Tiles,
        more: usize,
        others: &[(&'static str, i64)],
    ) -> Launch {
        let plan = self.sizes(&[tiles.sizes().as_slice(), others].concat());
        let call = format!("slab_{pass}<{layer}, {plan}>(wave)");
        let launch = self.kernel(&call, tiles.blocks + more, THREADS);
        Launch { shared: tiles.shared as u32, ..launch }
    }
}

/// Returns the width of a tile of this many columns.
fn narrow(columns: usize) -> usize {
    if columns <= 32 { 32 } else { 64 }
}
