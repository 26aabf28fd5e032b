//! Convolutions: maps in shared memory if they fit (`halves.cuh`, or `slab.cuh` for few channels),
//! else tiles from global memory (`conv.cuh`).

use super::halves::Halves;
use super::{Activation, Builder, Launch, THREADS, or_none};
use crate::model::general::network::Convolution;

/// The shortest part of a convolution's gradient sum for a separate block.
const SHORTEST_PART: usize = 512;
/// Blocks per device that keep a GPU busy with few devices.
pub(super) const FEW_BLOCKS: usize = 8;
/// Bytes of shared memory of a block, of which two fit on a multiprocessor of compute capability 9.0,
/// and of a block of every supported GPU.
const SLAB_BYTES: [usize; 2] = [110 * 1024, 80 * 1024];
/// The most positions in a piece of a gradient's sum: the first number for which it fits. Short
/// pieces wait for memory more often.
const PIECES: [usize; 2] = [448, 128];
/// The most tiles of a warp, whose sums are in registers.
const MOST_TILES: usize = 16;
/// The warps of a block along the rows and the columns.
const WARPS: [[usize; 2]; 4] = [[8, 1], [4, 2], [2, 4], [1, 8]];

/// The tiles of a product whose maps are in shared memory.
#[derive(Clone, Copy)]
pub(super) struct Tiles {
    warps: [usize; 2],
    /// 16 × 8 tiles of a warp.
    tiles: [usize; 2],
    /// Examples of a block.
    images: usize,
    /// Blocks of an example.
    pieces: usize,
    /// Blocks per device.
    pub(super) blocks: usize,
    pub(super) shared: usize,
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
        let shared = |images: usize, wide: usize| {
            images * slab.next_multiple_of(16) + 4 * (3 * wide * 36 + sum.next_multiple_of(32))
        };
        Self::fastest(batch, [positions, columns], memory, shared, |_, tiles, _| Self::time(tiles))
    }

    /// Returns the fastest tiles of a product of `positions` rows per example with `columns`
    /// columns. `shared(images, columns)` returns the bytes of a block, and
    /// `time(warps, tiles, used)` its time, where `used` are the tiles that are not empty.
    pub(super) fn fastest(
        batch: usize,
        [positions, columns]: [usize; 2],
        memory: usize,
        shared: impl Fn(usize, usize) -> usize,
        time: impl Fn([usize; 2], [usize; 2], [usize; 2]) -> f64,
    ) -> Option<Self> {
        let mut best: Option<Self> = None;
        for warps in WARPS {
            for tiles in (1..=4).flat_map(|rows| (1..=4).map(move |columns| [rows, columns])) {
                let [most, wide] = Self::rows(warps, tiles);
                let pieces = positions.div_ceil(most);
                let images = if pieces > 1 { 1 } else { (most / positions).clamp(1, batch) };
                let piece = positions.div_ceil(pieces).next_multiple_of(16);
                let rows = if pieces > 1 { piece } else { images * positions };
                let shared = shared(images, wide);
                if shared > memory || rows > most {
                    continue;
                }
                let blocks = columns.div_ceil(wide) * batch.div_ceil(images) * pieces;
                let used = [rows.div_ceil(16), columns.min(wide).div_ceil(8)];
                let cost = blocks as f64 * time(warps, tiles, used);
                if best.is_none_or(|best| cost < best.cost) {
                    best = Some(Self { warps, tiles, images, pieces, blocks, shared, cost });
                }
            }
        }
        best
    }

    pub(super) fn sizes(&self) -> Vec<(&'static str, i64)> {
        vec![
            ("WR", self.warps[0] as i64),
            ("WC", self.warps[1] as i64),
            ("MT", self.tiles[0] as i64),
            ("NT", self.tiles[1] as i64),
            ("IMAGES", self.images as i64),
            ("PIECES", self.pieces as i64),
            ("SHARED", self.shared as i64),
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
        let (filters, taps, [tall, wide]) =
            (convolution.filters, convolution.taps(), convolution.used_size());
        if padding >= side {
            return None;
        }
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
        let (gradient, lines, splits) =
            PIECES.into_iter().find_map(|most| Self::gradient(convolution, batch, most, memory))?;
        Some(Self { forward, backward, gradient, lines, splits })
    }

    /// Returns the tiles, lines and splits of the gradient, with pieces of at most `piece` positions.
    fn gradient(
        convolution: &Convolution,
        batch: usize,
        piece: usize,
        memory: usize,
    ) -> Option<(Tiles, usize, usize)> {
        let ([channels, _, width], side, pool) =
            (convolution.input, convolution.side, convolution.pool_side());
        let (filters, taps, [tall, wide]) =
            (convolution.filters, convolution.taps(), convolution.used_size());
        // Equal pieces of at most so many positions.
        let most = (piece / (pool * wide)).max(1) * pool;
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
        let ([all, height, width], [tall, wide]) = (convolution.input, convolution.used_size());
        let (filters, taps) = (convolution.filters, convolution.taps());
        let positions = (tall * wide).next_multiple_of(16);
        let mut best: Option<Self> = None;
        for channels in (1..=all).take_while(|&channels| channels <= 8) {
            let entries = channels * taps;
            let wide = entries.next_multiple_of(8);
            let pitches = positions + 8 + wide.next_multiple_of(16) + 8;
            let shared = 4 * (filters.next_multiple_of(8) * pitches + entries * (positions + 4));
            if shared > memory {
                break;
            }
            for warps in WARPS.into_iter().rev() {
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

/// The kernels of a convolution.
enum Plan {
    Halves(Halves),
    Slabs(Slabs),
    /// `conv.cuh`, with the parts of the gradient's sum.
    Tiles(usize),
}

impl Plan {
    fn new(convolution: &Convolution, batch: usize, needs_slopes: bool, memory: usize) -> Self {
        if let Some(halves) = Halves::new(convolution, batch, needs_slopes, memory) {
            return Self::Halves(halves);
        }
        if let Some(slabs) = Slabs::new(convolution, batch, needs_slopes, memory) {
            return Self::Slabs(slabs);
        }
        let [tall, wide] = convolution.used_size();
        let sum = batch * tall * wide;
        Self::Tiles(FEW_BLOCKS.div_ceil(gradient_tiles(convolution)).min(sum / SHORTEST_PART).max(1))
    }

    /// Returns the parts of the gradient's sum.
    fn splits(&self) -> usize {
        match self {
            Self::Halves(halves) => halves.splits(),
            Self::Slabs(slabs) => slabs.splits,
            Self::Tiles(splits) => *splits,
        }
    }
}

impl Builder {
    pub(super) fn convolution(&mut self, convolution: Convolution, x: Activation) -> Activation {
        let ([channels, height, width], [filters, rows, columns]) = (convolution.input, convolution.output());
        let ([tall, wide], batch, of_filter) =
            (convolution.size(), self.batch, channels * convolution.taps());
        let memory = SLAB_BYTES[usize::from(!self.clusters)];
        let plan = Plan::new(&convolution, batch, self.trains && x.slopes.is_some(), memory);
        let by_tap = [convolution.taps(), channels];
        let weights = self.tensor(filters * of_filter, matches!(plan, Plan::Halves(_)).then_some(by_tap));
        let bias = convolution.bias.then(|| self.tensor(filters, None));
        let cells = batch * filters * rows * columns;
        let (at, slopes) = (self.place(cells), self.slopes(cells));
        let winners = if self.trains && convolution.pool { self.place(cells.div_ceil(4)) } else { 0 };
        let is_widened = self.trains && convolution.pool && matches!(plan, Plan::Tiles(_));
        let widened = is_widened.then(|| self.place(batch * filters * tall * wide));
        let splits = plan.splits();
        let parts = if self.trains && splits > 1 { self.place(splits * filters * of_filter) } else { 0 };
        let mut sizes = vec![
            ("C", channels as i64),
            ("H", height as i64),
            ("W", width as i64),
            ("O", filters as i64),
            ("SIDE", convolution.side as i64),
            ("PAD", convolution.padding as i64),
            ("STRIDE", convolution.stride as i64),
            ("POOL", convolution.pool_side() as i64),
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
        ];
        if let Plan::Halves(_) = plan {
            sizes.extend(self.half_places(&convolution));
        }
        let layer = self.sizes(&sizes);
        let bias_blocks = bias.map_or(0, |_| filters.div_ceil(8));
        let mut backward = match plan {
            Plan::Halves(halves) => self.halves(&layer, &halves, bias_blocks),
            Plan::Slabs(slabs) => self.slabs(&layer, &slabs, bias_blocks),
            Plan::Tiles(splits) => self.tiles(&layer, &convolution, x, bias_blocks, splits),
        };
        if self.trains {
            if splits > 1 {
                let blocks = (filters * of_filter).div_ceil(THREADS as usize);
                let descend = self.kernel(&format!("conv_descend<{layer}>(wave)"), blocks, THREADS);
                let after = backward.iter().rposition(|launch| launch.sequence == 1).map_or(0, |i| i + 1);
                backward.insert(after, descend.beside(1));
            }
            self.backward.push(backward);
        }
        let cut = convolution.relu && !convolution.pool;
        Activation { at, width: filters * rows * columns, rows: 1, slopes, cut }
    }

    /// Adds the kernels of `slab.cuh`. Returns those of the backward pass.
    fn slabs(&mut self, layer: &str, slabs: &Slabs, bias_blocks: usize) -> Vec<Launch> {
        let forward = self.slab_kernel("forward", layer, slabs.forward, 0, &[]);
        self.forward.push(forward);
        let mut backward = Vec::new();
        match &slabs.backward {
            Some(SlopesPlan::Slab(tiles)) => {
                backward.push(self.slab_kernel("backward", layer, *tiles, 0, &[]));
            }
            Some(SlopesPlan::Fold(fold)) => backward.push(self.fold_kernel(layer, fold)),
            None => {}
        }
        if self.trains {
            let others = [("LINES", slabs.lines as i64), ("SPLITS", slabs.splits as i64)];
            let gradient = self.slab_kernel("gradient", layer, slabs.gradient, bias_blocks, &others);
            backward.push(gradient.beside(1));
        }
        backward
    }

    /// Adds the kernels of `conv.cuh`. Returns those of the backward pass.
    fn tiles(
        &mut self,
        layer: &str,
        convolution: &Convolution,
        x: Activation,
        bias_blocks: usize,
        splits: usize,
    ) -> Vec<Launch> {
        let ([channels, height, width], filters, batch) =
            (convolution.input, convolution.filters, self.batch);
        let ([tall, wide], [used_rows, used_columns]) = (convolution.size(), convolution.used_size());
        self.largest_map = self.largest_map.max(channels * height * width).max(filters * tall * wide);
        let blocks = (batch * used_rows * used_columns).div_ceil(128) * filters.div_ceil(narrow(filters));
        let forward = self.kernel(&format!("conv_forward<{layer}>(wave)"), blocks, THREADS);
        self.forward.push(forward);
        let mut backward = Vec::new();
        if !self.trains {
            return backward;
        }
        if convolution.pool {
            let blocks = (batch * filters * tall * wide).div_ceil(1024);
            backward.push(self.kernel(&format!("conv_widen<{layer}>(wave)"), blocks, THREADS));
        }
        if x.slopes.is_some() {
            let blocks = (batch * height * width).div_ceil(128) * channels.div_ceil(narrow(channels));
            backward.push(self.kernel(&format!("conv_backward<{layer}>(wave)"), blocks, THREADS));
        }
        let blocks = gradient_tiles(convolution) * splits + bias_blocks;
        backward.push(self.kernel(&format!("conv_gradient<{layer}>(wave)"), blocks, THREADS).beside(1));
        backward
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
            ("SHARED", fold.shared as i64),
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

/// Returns the tiles of the gradient of the filters in `conv.cuh`.
fn gradient_tiles(convolution: &Convolution) -> usize {
    let [channels, ..] = convolution.input;
    let filters = convolution.filters;
    filters.div_ceil(narrow(filters)) * (channels * convolution.taps()).div_ceil(64)
}
