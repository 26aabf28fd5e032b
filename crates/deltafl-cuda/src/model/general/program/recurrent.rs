//! Look-ups in tables, and recurrent layers.

use super::{Activation, Builder, Launch, THREADS, gradient_tile, or_none};
use crate::model::general::network::{Cell, Recurrent};

/// Examples of a block of a recurrent layer, and its units if a kernel computes one time step.
const CELL_TILE: usize = 16;
/// The most warps of a block that keeps W_hh: each needs many registers.
const MOST_WARPS: usize = 12;
/// Registers of a thread of `resident.cuh` that do not contain W_hh, forward and backward.
const OTHER_REGISTERS: [usize; 2] = [108, 124];
/// Bytes of shared memory of a block of compute capability 9.0, less those of the barriers.
const SHARED_BYTES: usize = 227 * 1024 - 1024;
/// The same of every GPU of capability 8.
const SMALL_SHARED_BYTES: usize = 99 * 1024 - 1024;

/// The division of a recurrent layer whose W_hh stays on the multiprocessors (`resident.cuh`).
struct Resident {
    units: usize,
    blocks: usize,
    forward: ResidentPass,
    backward: ResidentPass,
}

struct ResidentPass {
    /// Chunks of 16 rows in registers.
    kept: usize,
    /// Bytes of shared memory.
    shared: u32,
}

impl Resident {
    /// Returns the division among the fewest blocks that suffice, if there is one.
    fn new(cell: Cell, hidden: usize, batch: usize, clusters: bool) -> Option<Self> {
        let most = if clusters { SHARED_BYTES } else { SMALL_SHARED_BYTES };
        let of_blocks = |blocks: usize| {
            let units = hidden.div_ceil(8 * blocks) * 8;
            let warps = units / 8;
            let wide = units.next_multiple_of(16);
            let registers = (65_536 / (32 * warps) / 8 * 8).min(255);
            // A pass with this many tiles and chunks of W_hh, and floats of other data.
            let pass = |others: usize, tiles: usize, chunks: usize, floats: usize| {
                let kept = (registers.saturating_sub(others) / (4 * tiles)).min(chunks);
                let shared = 4 * floats + tiles * (chunks - kept) * warps * 512;
                (shared <= most).then_some(ResidentPass { kept, shared: shared as u32 })
            };
            let pitch = |columns: usize| if columns % 32 == 16 { columns } else { columns + 16 };
            let states = 2 * blocks * CELL_TILE * pitch(wide);
            let forward = pass(OTHER_REGISTERS[0], cell.gates(), blocks * wide / 16, states)?;
            let part = batch.min(CELL_TILE) * ((units + 7) / 16 * 16 + 8);
            let slopes = CELL_TILE * pitch(cell.gates() * wide) + 4 * blocks * part;
            let backward = pass(OTHER_REGISTERS[1], blocks, cell.gates() * wide / 16, slopes)?;
            (warps <= MOST_WARPS).then_some(Self { units, blocks, forward, backward })
        };
        let sizes: &[usize] = if clusters { &[2, 4, 8] } else { &[1] };
        sizes.iter().find_map(|&blocks| of_blocks(blocks))
    }
}

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
            let links = self.kernel(&format!("table_links<{layer}>(wave)"), count.div_ceil(8), THREADS);
            let blocks = (count * columns.div_ceil(128)).div_ceil(8);
            let descend = self.kernel(&format!("table_descend<{layer}>(wave)"), blocks, THREADS);
            self.backward.push(vec![links.beside(3), descend.beside(3)]);
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
                self.dense_between(x, z, input, Some(input_bias), false, false);
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
        let rows = if sequence { len } else { 1 };
        let [slopes, carry] = [self.slopes(rows * batch * hidden), self.slopes(batch * hidden)];
        let mut sizes = vec![
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
        ];
        let (row_tiles, trains) = (batch.div_ceil(CELL_TILE), self.trains);
        let name = match cell {
            Cell::Gru => "GruCell",
            Cell::Lstm => "LstmCell",
        };
        let (forward, backward) = if let Some(resident) = Resident::new(cell, hidden, batch, self.clusters) {
            sizes.extend([
                ("UNITS", resident.units as i64),
                ("BLOCKS", resident.blocks as i64),
                ("FORWARD_KEPT", resident.forward.kept as i64),
                ("BACKWARD_KEPT", resident.backward.kept as i64),
                ("FORWARD_SHARED", resident.forward.shared.into()),
                ("BACKWARD_SHARED", resident.backward.shared.into()),
            ]);
            let layer = self.sizes(&sizes);
            let threads = 4 * resident.units as u32;
            let cluster = match resident.blocks {
                1 => String::new(),
                blocks => format!("__cluster_dims__({blocks}, 1, 1) "),
            };
            let attributes = format!("{cluster}__launch_bounds__({threads}, 1)");
            let mut pass = |pass: &str, shared| {
                let call = format!("resident_{pass}<{name}, {layer}>(wave)");
                let launch = self.kernel_with(&attributes, &call, resident.blocks * row_tiles, threads);
                vec![Launch { shared, ..launch }]
            };
            let forward = pass("forward", resident.forward.shared);
            (forward, if trains { pass("backward", resident.backward.shared) } else { Vec::new() })
        } else {
            let layer = self.sizes(&sizes);
            let blocks = hidden.div_ceil(CELL_TILE) * row_tiles;
            // Strips of eight columns, and parts of the sums, as in `CellShape`.
            let mut step = |pass: &str, strips: usize, sum: usize| {
                let threads = 32 * strips * sum.div_ceil(64).min(24 / strips);
                self.kernel(&format!("step_{pass}<{name}, {layer}>(wave, t)"), blocks, threads as u32)
            };
            let forward = step("forward", cell.gates() * CELL_TILE / 8, hidden);
            let forward = (0..len as u32).map(|time| Launch { time, ..forward.clone() }).collect();
            let backward = if trains {
                let backward = step("backward", CELL_TILE / 8, gates);
                (1..=len as u32).rev().map(|time| Launch { time, ..backward.clone() }).collect()
            } else {
                Vec::new()
            };
            (forward, backward)
        };
        self.forward.extend(forward);
        if self.trains {
            let mut backward: Vec<Launch> = backward;
            backward.extend(self.recurrent_descent(
                [len, hidden, gates],
                [recurrent, states, bias],
                inner_slopes,
            ));
            if alphabet.is_some() {
                let layer = self.bias_sizes(len * batch, gates, input_bias, Some(contributions.at));
                let call = format!("biases_descend<{layer}>(wave)");
                backward.push(self.kernel(&call, gates.div_ceil(32), THREADS).beside(1));
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
            ("TILE", gradient_tile(gates) as i64),
            ("TRANSPOSED", 0),
        ]);
        let blocks = gates.div_ceil(gradient_tile(gates)) * hidden.div_ceil(64) + gates.div_ceil(32);
        Some(self.kernel(&format!("dense_descend<{layer}>(wave)"), blocks, THREADS).beside(2))
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
