//! A network as a program: a CUDA source with a kernel per operation, and the order of the kernels.

use std::fmt::Write;

use super::network::{Layer, Network, NetworkInput};
use crate::compile::KernelSource;

mod convolution;
mod halves;
mod maps;
mod recurrent;

/// The threads of a block, except in recurrent layers.
const THREADS: u32 = 256;

/// The most floats of a device's parameters, and of its activations. Kernels index them by `int`, and
/// add up to a quarter of the length of a vector to an index before they compare it with the length.
const MOST_FLOATS: usize = 3 << 29;
/// The most threads of a kernel per device, which number themselves by `u32`.
const MOST_THREADS: u64 = u32::MAX as u64;
/// The most entries of a map of an example in `conv.cuh`, where an `int` contains an index and a tap.
const MOST_MAP_ENTRIES: usize = 1 << 25;

/// The sequences of launches of a step.
pub(crate) const SEQUENCES: usize = 4;

/// The kinds of activations, as in `maps.cuh`.
const RELU: usize = 0;
const TANH: usize = 1;
const GELU: usize = 2;

/// A launch of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Launch {
    /// The number of the kernel.
    pub(crate) kernel: usize,
    /// Blocks per device.
    pub(crate) blocks: u32,
    pub(crate) threads: u32,
    /// The time step of a recurrent layer.
    pub(crate) time: u32,
    /// Bytes of dynamic shared memory per block.
    pub(crate) shared: u32,
    /// The sequence of launches that this one belongs to: 0 for that of activations and slopes. The
    /// others are descents, which no launch of sequence 0 in the same step depends on. A sequence
    /// starts after the launches of sequence 0 that precede it.
    pub(crate) sequence: usize,
}

/// A network for batches of a size, as kernels and launches.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) source: KernelSource,
    /// The launches of a step, or of a forward pass.
    pub(crate) launches: Vec<Launch>,
    pub(crate) kernels: usize,
    /// The number of parameters.
    pub(crate) flat: usize,
    /// Floats of a device's parameters in working form: every tensor starts at a multiple of four.
    pub(crate) working: usize,
    /// Floats of a device's activations and slopes.
    pub(crate) arena: usize,
    /// Entries of the largest map of an example in `conv.cuh`.
    largest_map: usize,
}

/// A tensor of the parameters: places in flat order and in working form.
struct Tensor {
    flat: usize,
    at: usize,
    len: usize,
    /// Rows and columns of the matrices of the working form, if they are transposes.
    transposed: Option<[usize; 2]>,
}

/// The output of a layer.
#[derive(Clone, Copy)]
struct Activation {
    at: usize,
    width: usize,
    /// Rows per example: time steps of a sequence.
    rows: usize,
    /// The place of the slopes, unless no parameters precede.
    slopes: Option<usize>,
    /// Whether slopes pass a ReLU: they are zero where the value is.
    cut: bool,
}

struct Builder {
    batch: usize,
    trains: bool,
    clusters: bool,
    text: String,
    tensors: Vec<Tensor>,
    flat: usize,
    working: usize,
    arena: usize,
    largest_map: usize,
    forward: Vec<Launch>,
    /// The launches of each layer's backward pass.
    backward: Vec<Vec<Launch>>,
    kernels: usize,
}

impl Launch {
    /// Moves a descent to a sequence of its own.
    fn beside(self, sequence: usize) -> Self {
        Self { sequence, ..self }
    }
}

impl Program {
    /// Builds the program of a step with batches of this size, or of a forward pass.
    /// `clusters` is set if the GPU has clusters of blocks.
    pub(crate) fn new(network: &Network, batch: usize, trains: bool, clusters: bool) -> Self {
        let mut builder = Builder {
            batch,
            trains,
            clusters,
            text: String::new(),
            tensors: Vec::new(),
            flat: 0,
            working: 0,
            arena: 0,
            largest_map: 0,
            forward: Vec::new(),
            backward: Vec::new(),
            kernels: 0,
        };
        let labels = builder.place(batch);
        let mut symbols = 0;
        let mut x = builder.input(network.input, &mut symbols);
        for layer in &network.layers {
            x = builder.layer(layer, x, symbols);
        }
        builder.head(network.is_logistic, x);
        builder.finish(network, labels)
    }

    /// Returns the limit of the kernels that the program exceeds, if there is one.
    pub(crate) fn exceeded_limit(&self) -> Option<String> {
        let floats = self.arena.max(self.working);
        if floats > MOST_FLOATS {
            return Some(format!(
                "a device needs {floats} floats, and the kernels take at most {MOST_FLOATS}"
            ));
        }
        let threads = |launch: &Launch| u64::from(launch.blocks) * u64::from(launch.threads);
        let threads = self.launches.iter().map(threads).max().unwrap_or(0);
        if threads > MOST_THREADS {
            return Some(format!(
                "a device needs {threads} threads, and the kernels take at most {MOST_THREADS}"
            ));
        }
        let entries = self.largest_map;
        (entries > MOST_MAP_ENTRIES)
            .then(|| format!("a map has {entries} entries, and the kernels take at most {MOST_MAP_ENTRIES}"))
    }
}

impl Builder {
    /// Returns a place in the arena for this many floats.
    fn place(&mut self, len: usize) -> usize {
        let at = self.arena;
        self.arena = (at + len).next_multiple_of(4);
        at
    }

    /// Returns a place for slopes.
    fn slopes(&mut self, len: usize) -> Option<usize> {
        self.trains.then(|| self.place(len))
    }

    /// Adds a tensor and returns its place in working form.
    fn tensor(&mut self, len: usize, transposed: Option<[usize; 2]>) -> usize {
        let at = self.working;
        self.tensors.push(Tensor { flat: self.flat, at, len, transposed });
        self.flat += len;
        self.working = (at + len).next_multiple_of(4);
        at
    }

    /// Adds the sizes and places of a layer, or those of a plan, and returns their name.
    fn sizes(&mut self, sizes: &[(&str, i64)]) -> String {
        let name = format!("Layer{}", self.text.matches("struct Layer").count());
        let list: Vec<String> = sizes.iter().map(|(name, value)| format!("{name} = {value}")).collect();
        let _ = writeln!(self.text, "struct {name} {{ static constexpr int {}; }};", list.join(", "));
        name
    }

    /// Adds a kernel that calls a function of the headers, and returns its first launch.
    fn kernel(&mut self, call: &str, blocks: usize, threads: u32) -> Launch {
        let resident = if threads == THREADS { 2 } else { 1 };
        self.kernel_with(&format!("__launch_bounds__({threads}, {resident})"), call, blocks, threads)
    }

    /// Adds a kernel with attributes.
    fn kernel_with(&mut self, attributes: &str, call: &str, blocks: usize, threads: u32) -> Launch {
        let kernel = self.kernels;
        self.kernels += 1;
        let _ = writeln!(
            self.text,
            "extern \"C\" __global__ void {attributes} op{kernel}(const __grid_constant__ Wave wave, int t) {{ {call}; }}"
        );
        Launch { kernel, blocks: blocks as u32, threads, time: 0, shared: 0, sequence: 0 }
    }

    fn input(&mut self, input: NetworkInput, symbols: &mut usize) -> Activation {
        match input {
            NetworkInput::Bytes { dim } | NetworkInput::Dense { dim } => {
                let at = self.place(self.batch * dim);
                let layer = self.sizes(&[("DIM", dim as i64), ("Z", at as i64)]);
                let feature = if matches!(input, NetworkInput::Bytes { .. }) { "u8" } else { "float" };
                let blocks = (self.batch * dim).div_ceil(1024);
                let call = format!("gather_features<{feature}, {layer}>(wave)");
                let launch = self.kernel(&call, blocks, THREADS);
                self.forward.push(launch);
                Activation { at, width: dim, rows: 1, slopes: None, cut: false }
            }
            NetworkInput::Text { len } | NetworkInput::Words { len } => {
                *symbols = self.place(self.batch * len);
                let layer = self.sizes(&[("LEN", len as i64), ("SYMBOLS", *symbols as i64)]);
                let launch = self.kernel(&format!("gather_symbols<{layer}>(wave)"), 1, THREADS);
                self.forward.push(launch);
                Activation { at: *symbols, width: 1, rows: len, slopes: None, cut: false }
            }
        }
    }

    fn layer(&mut self, layer: &Layer, x: Activation, symbols: usize) -> Activation {
        match *layer {
            Layer::Convolution(convolution) => self.convolution(convolution, x),
            Layer::Dense { outputs, bias, relu, transposed } => {
                self.dense(x, outputs, bias, relu, transposed)
            }
            Layer::FrozenVectors { dim } => self.table(x.rows, symbols, None, dim, [None, None]),
            Layer::Embedding { symbols: rows, dim, padded } => {
                let table = self.tensor(rows * dim, None);
                let padding = padded.then_some(0);
                self.table(x.rows, symbols, Some((table, rows)), dim, [None, padding])
            }
            Layer::Recurrent(recurrent) => self.recurrent(recurrent, x, symbols),
            Layer::Relu => self.activation(RELU, x),
            Layer::Tanh => self.activation(TANH, x),
            Layer::Gelu => self.activation(GELU, x),
            Layer::Pool(pool) => self.pool(pool, x),
            Layer::Norm(norm) => self.norm(norm, x),
            Layer::Residual(ref layers) => self.residual(layers, x, symbols),
            Layer::Last { skips_padding } => self.over_time(false, skips_padding, x, symbols),
            Layer::Mean { skips_padding } => self.over_time(true, skips_padding, x, symbols),
            Layer::Flatten => self.flatten(x),
        }
    }

    fn dense(
        &mut self,
        x: Activation,
        outputs: usize,
        bias: bool,
        relu: bool,
        transposed: bool,
    ) -> Activation {
        let weights = self.tensor(x.width * outputs, None);
        let bias = bias.then(|| self.tensor(outputs, None));
        let rows = self.batch * x.rows;
        let (at, slopes) = (self.place(rows * outputs), self.slopes(rows * outputs));
        let z = Activation { at, width: outputs, rows: x.rows, slopes, cut: relu };
        self.dense_between(x, z, weights, bias, relu, transposed);
        z
    }

    /// Adds a full layer between two activations, with the places of its matrix and its biases.
    fn dense_between(
        &mut self,
        x: Activation,
        z: Activation,
        weights: usize,
        bias: Option<usize>,
        relu: bool,
        transposed: bool,
    ) {
        let (rows, outputs) = (self.batch * x.rows, z.width);
        let (m, n) = if transposed { (x.width, outputs) } else { (outputs, x.width) };
        let layer = self.sizes(&[
            ("ROWS", rows as i64),
            ("I", x.width as i64),
            ("O", outputs as i64),
            ("W", weights as i64),
            ("BIAS", or_none(bias)),
            ("X", x.at as i64),
            ("Z", z.at as i64),
            ("DX", or_none(x.slopes)),
            ("DZ", or_none(z.slopes)),
            ("BIAS_DZ", or_none(z.slopes)),
            ("BIAS_ROWS", rows as i64),
            ("TILE", gradient_tile(m) as i64),
            ("TRANSPOSED", transposed.into()),
            ("RELU", relu.into()),
            ("CUT", x.cut.into()),
        ]);
        let tiles = |m: usize, n: usize, tile: usize| m.div_ceil(tile) * n.div_ceil(64);
        let tile = if rows <= 16 { 16 } else { 64 };
        let launch =
            self.kernel(&format!("dense_forward<{layer}>(wave)"), tiles(rows, outputs, tile), THREADS);
        self.forward.push(launch);
        if self.trains {
            let mut backward = Vec::new();
            if x.slopes.is_some() {
                let blocks = tiles(rows, x.width, tile);
                backward.push(self.kernel(&format!("dense_backward<{layer}>(wave)"), blocks, THREADS));
            }
            let blocks = tiles(m, n, gradient_tile(m)) + bias.map_or(0, |_| outputs.div_ceil(32));
            backward.push(self.kernel(&format!("dense_descend<{layer}>(wave)"), blocks, THREADS).beside(1));
            self.backward.push(backward);
        }
    }

    fn head(&mut self, is_logistic: bool, z: Activation) {
        let layer = self.sizes(&[
            ("CLASSES", z.width as i64),
            ("LOGISTIC", is_logistic.into()),
            ("Z", z.at as i64),
            ("DZ", or_none(z.slopes)),
        ]);
        let launch = if self.trains {
            self.kernel(&format!("head_backward<{layer}>(wave)"), self.batch.div_ceil(8), THREADS)
        } else {
            self.kernel(&format!("head_score<{layer}>(wave)"), 1, THREADS)
        };
        self.forward.push(launch);
    }

    fn finish(self, network: &Network, labels: usize) -> Program {
        let window = if let NetworkInput::Text { len } = network.input { len } else { 0 };
        let mut text =
            String::from("#include \"common.cuh\"\n#include \"split.cuh\"\n#include \"groups.cuh\"\n");
        if self.clusters {
            text += "#include \"cluster.cuh\"\n";
        }
        let _ = writeln!(text, "#define CLUSTERS {}", u8::from(self.clusters));
        let sizes = [
            ("BATCH", self.batch),
            ("WORKING", self.working),
            ("PARAMS", self.flat),
            ("LABELS", labels),
            ("TEXT", window),
        ];
        for (name, value) in sizes {
            let _ = writeln!(text, "constexpr int {name} = {value};");
        }
        let _ = writeln!(text, "constexpr size_t ARENA = {};", self.arena);
        let _ = writeln!(text, "constexpr bool TRAINS = {};", self.trains);
        const HEADERS: [&str; 12] = [
            "wave",
            "product",
            "dense",
            "conv",
            "slab",
            "fold",
            "halves",
            "recurrent",
            "resident",
            "table",
            "maps",
            "head",
        ];
        for header in HEADERS {
            let _ = writeln!(text, "#include \"general/{header}.cuh\"");
        }
        text += &self.flat_index();
        text += "#include \"general/params.cuh\"\n";
        text += &self.text;
        let launches = self.forward.into_iter().chain(self.backward.into_iter().rev().flatten()).collect();
        Program {
            source: KernelSource { name: "general.cu", text: text.into(), sizes: Vec::new() },
            launches,
            kernels: self.kernels,
            flat: self.flat,
            working: self.working,
            arena: self.arena,
            largest_map: self.largest_map,
        }
    }

    /// Returns a function from the working form to the flat order.
    fn flat_index(&self) -> String {
        let mut text = String::from("__device__ int flat_index(int i) {\n");
        for Tensor { flat, at, len, transposed } in &self.tensors {
            let place = match transposed {
                None => format!("{flat} + i - {at}"),
                Some([rows, columns]) => {
                    let (k, matrix) = (format!("(i - {at})"), rows * columns);
                    format!(
                        "{flat} + {k} / {matrix} * {matrix} + {k} % {columns} * {rows} + {k} % {matrix} / {columns}"
                    )
                }
            };
            let _ = writeln!(text, "  if (i >= {at} && i < {}) return {place};", at + len);
        }
        text + "  return -1;\n}\n"
    }
}

/// Returns the rows of a tile of a gradient with `m` rows. Large tiles need fewer loads per product.
fn gradient_tile(m: usize) -> usize {
    if m >= 512 { 128 } else { 64 }
}

/// Returns a place, or −1 for none.
fn or_none(place: Option<usize>) -> i64 {
    place.map_or(-1, |place| place as i64)
}

#[cfg(test)]
mod tests {
    use super::super::network::{Convolution, Norm};
    use super::*;

    #[test]
    fn programs_that_exceed_a_limit_of_the_kernels_are_found() {
        let dense = |dim| Network {
            input: NetworkInput::Dense { dim },
            layers: vec![Layer::Dense { outputs: 1, bias: true, relu: false, transposed: false }],
            is_logistic: true,
        };
        let limit = |network: &Network, batch| Program::new(network, batch, true, true).exceeded_limit();
        assert_eq!(limit(&dense(1 << 20), 1500), None);
        // Indices of more than 2³¹/1.25 features would overflow.
        assert!(limit(&dense(1 << 20), 1700).is_some_and(|limit| limit.contains("floats")));
        let channels = 1 << 24;
        let norm = Layer::Norm(Norm { channels, cells: 1, groups: channels, by_cell: false });
        let network = Network { layers: vec![norm], ..dense(channels) };
        assert!(limit(&network, 16).is_some_and(|limit| limit.contains("threads")));
        let side = 6000;
        let convolution = Convolution {
            input: [1, side, side],
            filters: 1,
            side: 3,
            padding: 1,
            stride: 1,
            bias: true,
            relu: true,
            pool: false,
        };
        let network = Network { layers: vec![Layer::Convolution(convolution)], ..dense(side * side) };
        assert!(limit(&network, 1).is_some_and(|limit| limit.contains("map")));
    }
}
