//! Look-ups in tables, and recurrent layers.

use super::{Activation, Builder, Launch, THREADS, or_none};
use crate::model::general::network::{Cell, Recurrent};

/// Examples of a block of a recurrent layer, and its units unless they are 32.
const CELL_TILE: usize = 16;
/// The blocks of a portable cluster.
const MOST_BLOCKS: usize = 8;

impl Builder {
    /// Adds a look-up in a table with its place and rows, or in the frozen vectors. The biases are
    /// trained elsewhere. The row of the padding, if there is one, remains zero.
    pub(super) fn table(
        &mut self,
        len: usize,
        symbols: usize,
        table: Option<(usize, usize)>,
        columns: usize,
        [bias, padding]: [Option<usize>; 2],
    ) -> Activation {
        let count = len * self.batch;
        let at = self.place(count * columns);
        let trained = self.trains && table.is_some();
        // The slopes of one-hot inputs replace their contributions to the gates.
        let slopes = trained.then(|| if bias.is_some() { at } else { self.place(count * columns) });
        let next = if trained { self.place(count) } else { 0 };
        let layer = self.sizes(&[
            ("LEN", len as i64),
            ("SYMBOLS", symbols as i64),
            ("ROWS", table.map_or(0, |(_, rows)| rows as i64)),
            ("COLUMNS", columns as i64),
            ("TABLE", or_none(table.map(|(at, _)| at))),
            ("BIAS", or_none(bias)),
            ("PADDED", padding.is_some().into()),
            ("Z", at as i64),
            ("DZ", or_none(slopes)),
            ("NEXT", next as i64),
        ]);
        let blocks = (count * columns).div_ceil(1024);
        let launch = self.kernel(&format!("table_forward<{layer}>(wave)"), blocks, THREADS);
        self.forward.push(launch);
        if trained {
            let links = self.kernel(&format!("table_links<{layer}>(wave)"), count.div_ceil(64), 64);
            let blocks = (count * columns.div_ceil(128)).div_ceil(8);
            let descend = self.kernel(&format!("table_descend<{layer}>(wave)"), blocks, THREADS);
            self.backward.push(vec![links, descend]);
        }
        Activation { at, width: columns, rows: len, slopes, cut: false }
    }

    pub(super) fn recurrent(&mut self, recurrent: Recurrent, x: Activation, symbols: usize) -> Activation {
        let Recurrent { cell, hidden, symbols: alphabet, sequence } = recurrent;
        let (gates, len, batch) = (cell.gates() * hidden, x.rows, self.batch);
        let inputs = alphabet.unwrap_or(x.width);
        // One-hot inputs look up rows of the transposed matrix.
        let input = self.tensor(gates * inputs, alphabet.map(|symbols| [symbols, gates]));
        let recurrent = self.tensor(gates * hidden, None);
        let [input_bias, bias] = [self.tensor(gates, None), self.tensor(gates, None)];
        let contributions = match alphabet {
            Some(rows) => self.table(len, symbols, Some((input, rows)), gates, [Some(input_bias), None]),
            None => {
                // The slopes of the gates replace the gates.
                let at = self.place(len * batch * gates);
                let slopes = self.trains.then_some(at);
                let z = Activation { at, width: gates, rows: len, slopes, cut: false };
                self.dense_between(x, z, [input, input_bias], false, false);
                z
            }
        };
        let states = self.place((len + 1) * batch * hidden);
        let inner = match cell {
            Cell::Gru => self.place(len * batch * hidden),
            Cell::Lstm => self.place((len + 1) * batch * hidden),
        };
        let inner_slopes = match cell {
            Cell::Gru => self.slopes(len * batch * gates),
            Cell::Lstm => contributions.slopes,
        };
        // A cluster of the blocks of a device runs all time steps, if it is small enough.
        let units = if self.clusters && hidden > CELL_TILE * MOST_BLOCKS { 2 * CELL_TILE } else { CELL_TILE };
        let tiles = hidden.div_ceil(units);
        let in_cluster = self.clusters && tiles <= MOST_BLOCKS;
        let (units, tiles) =
            if in_cluster { (units, tiles) } else { (CELL_TILE, hidden.div_ceil(CELL_TILE)) };
        let rows = if sequence { len } else { 1 };
        let [slopes, carry] = [self.slopes(rows * batch * hidden), self.slopes(batch * hidden)];
        let layer = self.sizes(&[
            ("LEN", len as i64),
            ("H", hidden as i64),
            ("RECURRENT", recurrent as i64),
            ("BIAS", bias as i64),
            ("GATES", contributions.at as i64),
            ("STATES", states as i64),
            ("INNER", inner as i64),
            ("INNER_SLOPES", or_none(inner_slopes)),
            ("DH", or_none(slopes)),
            ("CARRY", or_none(carry)),
            ("SEQUENCE", sequence.into()),
            ("UNITS", units as i64),
            ("CLUSTER", in_cluster.into()),
        ]);
        let name = match cell {
            Cell::Gru => "gru",
            Cell::Lstm => "lstm",
        };
        let blocks = tiles * batch.div_ceil(CELL_TILE);
        let attribute = if in_cluster { format!("__cluster_dims__({tiles}, 1, 1)") } else { String::new() };
        // Strips of eight columns, and parts of the sums, as in `CellShape`.
        let strips = cell.gates() * units / 8;
        let threads = 32 * strips * hidden.div_ceil(64).min(24 / strips);
        let call = format!("{name}_forward<{layer}>(wave, t)");
        let step = self.kernel_with(&attribute, &call, blocks, threads as u32);
        let times = if in_cluster { 1 } else { len as u32 };
        self.forward.extend((0..times).map(|time| Launch { time, ..step.clone() }));
        if self.trains {
            let strips = units / 8;
            let threads = 32 * strips * gates.div_ceil(64).min(24 / strips);
            let call = format!("{name}_backward<{layer}>(wave, t)");
            let step = self.kernel_with(&attribute, &call, blocks, threads as u32);
            let mut backward: Vec<Launch> =
                (1..=times).rev().map(|time| Launch { time, ..step.clone() }).collect();
            backward.extend(self.recurrent_descent(
                [len, hidden, gates],
                [recurrent, states, bias],
                inner_slopes,
            ));
            if alphabet.is_some() {
                let layer = self.bias_sizes(len * batch, gates, input_bias, Some(contributions.at));
                let call = format!("biases_descend<{layer}>(wave)");
                backward.push(self.kernel(&call, gates.div_ceil(32), THREADS));
            }
            self.backward.push(backward);
        }
        let at = states + if sequence { 1 } else { len } * batch * hidden;
        Activation { at, width: hidden, rows, slopes, cut: false }
    }

    /// Adds the descent of W_hh and b_hh. The first time step has no recurrent product.
    fn recurrent_descent(
        &mut self,
        [len, hidden, gates]: [usize; 3],
        [recurrent, states, bias]: [usize; 3],
        slopes: Option<usize>,
    ) -> Option<Launch> {
        let (batch, slopes) = (self.batch, slopes?);
        let layer = self.sizes(&[
            ("ROWS", ((len - 1) * batch) as i64),
            ("I", hidden as i64),
            ("O", gates as i64),
            ("W", recurrent as i64),
            ("BIAS", bias as i64),
            ("X", (states + batch * hidden) as i64),
            ("DZ", (slopes + batch * gates) as i64),
            ("BIAS_DZ", slopes as i64),
            ("BIAS_ROWS", (len * batch) as i64),
            ("TRANSPOSED", 0),
        ]);
        let blocks = gates.div_ceil(64) * hidden.div_ceil(64) + gates.div_ceil(32);
        Some(self.kernel(&format!("dense_descend<{layer}>(wave)"), blocks, THREADS))
    }

    fn bias_sizes(&mut self, rows: usize, outputs: usize, bias: usize, slopes: Option<usize>) -> String {
        self.sizes(&[
            ("O", outputs as i64),
            ("BIAS", bias as i64),
            ("BIAS_DZ", or_none(slopes)),
            ("BIAS_ROWS", rows as i64),
        ])
    }
}
