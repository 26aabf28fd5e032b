//! Layers without matrix products.

use super::{Activation, Builder, Launch, THREADS, or_none};
use crate::model::general::network::{Layer, Norm, Pool};

impl Builder {
    /// Adds a layer that has no parameters: a kernel forward and one backward. Slopes are needed if
    /// those of the input are.
    fn mapped(
        &mut self,
        name: &str,
        x: Activation,
        [width, rows]: [usize; 2],
        sizes: &[(&str, usize)],
        [forward_blocks, backward_blocks]: [usize; 2],
    ) -> Activation {
        let len = self.batch * width * rows;
        let at = self.place(len);
        let slopes = x.slopes.map(|_| self.place(len));
        let mut all = vec![
            ("X", x.at as i64),
            ("Z", at as i64),
            ("DX", or_none(x.slopes)),
            ("DZ", or_none(slopes)),
            ("CUT", x.cut.into()),
        ];
        all.extend(sizes.iter().map(|&(name, value)| (name, value as i64)));
        let layer = self.sizes(&all);
        let forward = self.kernel(&format!("{name}_forward<{layer}>(wave)"), forward_blocks, THREADS);
        self.forward.push(forward);
        if slopes.is_some() {
            let call = format!("{name}_backward<{layer}>(wave)");
            let backward = self.kernel(&call, backward_blocks, THREADS);
            self.backward.push(vec![backward]);
        }
        Activation { at, width, rows, slopes, cut: false }
    }

    /// Adds an activation of a kind, for example `RELU`.
    pub(super) fn activation(&mut self, kind: usize, x: Activation) -> Activation {
        let len = self.batch * x.width * x.rows;
        let blocks = len.div_ceil(1024);
        self.mapped("activation", x, [x.width, x.rows], &[("LEN", len), ("KIND", kind)], [blocks; 2])
    }

    pub(super) fn pool(&mut self, pool: Pool, x: Activation) -> Activation {
        let ([maps, height, width], [rows, columns]) = (pool.input, pool.size());
        let outputs = maps * rows * columns;
        let winners = if x.slopes.is_some() && pool.is_max { self.place(self.batch * outputs) } else { 0 };
        let sizes = [
            ("MAPS", maps),
            ("H", height),
            ("W", width),
            ("QH", rows),
            ("QW", columns),
            ("SIDE", pool.side),
            ("STRIDE", pool.stride),
            ("MAX", usize::from(pool.is_max)),
            ("WINNERS", winners),
        ];
        let blocks = [outputs, maps * height * width].map(|len| (self.batch * len).div_ceil(1024));
        self.mapped("pool", x, [outputs, 1], &sizes, blocks)
    }

    /// Adds a normalisation, with its scales and shifts.
    pub(super) fn norm(&mut self, norm: Norm, x: Activation) -> Activation {
        let rows = self.batch * x.rows;
        let scales = if norm.by_cell { norm.channels * norm.cells } else { norm.channels };
        let [scale, shift] = [self.tensor(scales, None), self.tensor(scales, None)];
        let len = rows * norm.channels * norm.cells;
        let (at, slopes) = (self.place(len), self.slopes(len));
        let statistics = self.slopes(2 * rows * norm.groups);
        let layer = self.sizes(&[
            ("ROWS", rows as i64),
            ("CHANNELS", norm.channels as i64),
            ("CELLS", norm.cells as i64),
            ("GROUPS", norm.groups as i64),
            ("BY_CELL", norm.by_cell.into()),
            ("SCALE", scale as i64),
            ("SHIFT", shift as i64),
            ("STATISTICS", or_none(statistics)),
            ("X", x.at as i64),
            ("Z", at as i64),
            ("DX", or_none(x.slopes)),
            ("DZ", or_none(slopes)),
            ("CUT", x.cut.into()),
        ]);
        let groups = (rows * norm.groups).div_ceil(8);
        let forward = self.kernel(&format!("norm_forward<{layer}>(wave)"), groups, THREADS);
        self.forward.push(forward);
        if self.trains {
            let mut backward: Vec<Launch> = Vec::new();
            if x.slopes.is_some() {
                backward.push(self.kernel(&format!("norm_backward<{layer}>(wave)"), groups, THREADS));
            }
            let blocks = scales.div_ceil(8);
            backward.push(self.kernel(&format!("norm_descend<{layer}>(wave)"), blocks, THREADS).beside(2));
            self.backward.push(backward);
        }
        Activation { at, width: x.width, rows: x.rows, slopes, cut: false }
    }

    /// Adds x + f(x).
    pub(super) fn residual(&mut self, layers: &[Layer], x: Activation, symbols: usize) -> Activation {
        let len = self.batch * x.width * x.rows;
        // Its backward pass follows that of its layers, so it precedes them here.
        let at_backward = self.backward.len();
        let y = layers.iter().fold(x, |y, layer| self.layer(layer, y, symbols));
        let at = self.place(len);
        let layer = self.sizes(&[
            ("LEN", len as i64),
            ("X", x.at as i64),
            ("Y", y.at as i64),
            ("Z", at as i64),
            ("DX", or_none(x.slopes)),
            ("DZ", or_none(y.slopes)),
            ("CUT", x.cut.into()),
        ]);
        let blocks = len.div_ceil(1024);
        let forward = self.kernel(&format!("residual_forward<{layer}>(wave)"), blocks, THREADS);
        self.forward.push(forward);
        if x.slopes.is_some() {
            let backward = self.kernel(&format!("residual_backward<{layer}>(wave)"), blocks, THREADS);
            self.backward.insert(at_backward, vec![backward]);
        }
        Activation { at, cut: false, ..y }
    }

    /// Adds the last step or the mean of a sequence.
    pub(super) fn over_time(
        &mut self,
        is_mean: bool,
        skips_padding: bool,
        x: Activation,
        symbols: usize,
    ) -> Activation {
        let sizes = [
            ("STEPS", x.rows),
            ("WIDTH", x.width),
            ("MEAN", usize::from(is_mean)),
            ("SKIPS", usize::from(skips_padding)),
            ("SYMBOLS", symbols),
        ];
        let blocks = (self.batch * x.width).div_ceil(256);
        self.mapped("over_time", x, [x.width, 1], &sizes, [blocks; 2])
    }

    /// Adds a change from steps of all examples to a row per example.
    pub(super) fn flatten(&mut self, x: Activation) -> Activation {
        let blocks = (self.batch * x.width * x.rows).div_ceil(1024);
        let sizes = [("STEPS", x.rows), ("WIDTH", x.width)];
        self.mapped("flatten", x, [x.width * x.rows, 1], &sizes, [blocks; 2])
    }
}
