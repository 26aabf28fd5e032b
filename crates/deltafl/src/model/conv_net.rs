//! The convolutional network of EMNIST.
//!
//! ```text
//! conv 5×5 1→c₁, ReLU, max-pool 2/2, conv 5×5 c₁→c₂, ReLU, max-pool 2/2, full → classes, cross-entropy
//! ```
//!
//! Flat order, as in PyTorch: first filters `c₁ × 5 × 5`, their biases, second filters `c₂ × c₁ × 5
//! × 5`, their biases, full layer `classes × (c₂ · pooled₂²)` with the channel outermost in a row,
//! its biases.
//!
//! A step has three parts. First the forward pass, image by image. Then the gradients that need the
//! parameters: those of the second map, of the first map, and of the small first filters. Last the
//! descent, which adds the gradients of the large layers to the parameters without storing them.

use super::full::Full;
use super::layout::{section, sections_len, split, split_mut, take_sections};
use super::network::{self, LayeredModel};
use super::{Batch, Model, ModelDefinition, Score, Step, Tensor};
use crate::kernel::conv::{self, Pooled, Sizes, TAPS};
use crate::kernel::product::Layout;
use crate::kernel::winograd::{self, Second};
use crate::kernel::{Granted, Isa, pooled, softmax, sums};
use crate::options::{OptionDefault, OptionKind, OptionSpec, OptionValue};
use crate::stream::Stream;

/// The entry of the table.
pub static CONV_NET: ModelDefinition = ModelDefinition {
    kind: "conv-net",
    about: "the convolutional network of EMNIST, for square images",
    tasks: &["classes"],
    options: &[OptionSpec::new(
        "channels",
        OptionKind::WholePair(1),
        OptionDefault::Value(OptionValue::WholePair([32, 64])),
        "channels of the two convolutions",
        OptionValue::WholePair([8, 16]),
    )],
    build: |request| {
        let channels = request.options.whole_pair("channels")?.map(|channels| channels as usize);
        let classes = request.classes()?;
        let side = request.image_side(ConvNet::SMALLEST_SIDE)?;
        Ok(Box::new(ConvNet::new(side, channels, classes, request.isa)))
    },
};

/// The convolutional network.
#[derive(Clone, Debug)]
pub struct ConvNet {
    sizes: Sizes,
    channels: [usize; 2],
    full: Full,
    kernel: Granted,
}

impl ConvNet {
    /// Creates a network for square images of `side`, with `channels` of the two convolutions.
    ///
    /// # Panics
    /// If the image is too small to be pooled twice (a side below 16), or if this CPU does not
    /// support the instruction set.
    pub fn new(side: usize, channels: [usize; 2], classes: usize, isa: Isa) -> Self {
        let sizes = Sizes::new(side, channels).expect("an image of side 16 or more leaves something to pool");
        let kernel = Granted::new(isa);
        Self { sizes, channels, full: Full { inputs: sizes.map_2(), classes, kernel }, kernel }
    }

    /// The smallest side of an image.
    pub const SMALLEST_SIDE: usize = 16;

    /// Returns the position of feature `j` of the flat order (channel, then cell): cell, then
    /// channel.
    fn feature_row(&self, j: usize) -> usize {
        j % self.sizes.cells_2() * self.sizes.second + j / self.sizes.cells_2()
    }

    /// Returns the inputs of the full layer in flat order.
    fn features(&self) -> usize {
        self.channels[1] * self.sizes.cells_2()
    }

    /// The flat parameters: first filters and biases, second filters and biases, full layer and
    /// biases.
    fn flat_lens(&self) -> [usize; 6] {
        let [first, second] = self.channels;
        let classes = self.full.classes;
        [TAPS * first, first, TAPS * first * second, second, self.features() * classes, classes]
    }

    /// The same in working form. The first filters include their biases.
    fn working_lens(&self) -> [usize; 5] {
        let [full, full_bias] = self.full.working_lens();
        [self.sizes.filters_1(), self.sizes.filters_2(), self.sizes.second, full, full_bias].map(section)
    }

    fn parts<'a>(&self, working: &'a [f32]) -> Parts<&'a [f32]> {
        Parts::from(split(working, self.working_lens()))
    }

    fn parts_mut<'a>(&self, working: &'a mut [f32]) -> Parts<&'a mut [f32]> {
        Parts::from(split_mut(working, self.working_lens()))
    }

    /// Runs the forward pass of a batch up to the logits. The filters must have been transformed.
    fn forward(&self, parts: &Parts<&[f32]>, images: &[f32], memory: &mut Forward<'_>) {
        let (sizes, kernel) = (self.sizes, self.kernel);
        let second =
            Second { filters: parts.second, transformed: memory.transformed, bias: parts.second_bias };
        let firsts = memory
            .map_1
            .chunks_exact_mut(sizes.map_1())
            .zip(memory.winners_1.chunks_exact_mut(sizes.map_1()));
        let seconds = memory
            .map_2
            .chunks_exact_mut(sizes.map_2())
            .zip(memory.winners_2.chunks_exact_mut(sizes.map_2()));
        let images = images.chunks_exact(sizes.pixels());
        for ((image, (values, winners)), (values_2, winners_2)) in images.zip(firsts).zip(seconds) {
            conv::first_forward(kernel, sizes, image, parts.first, Pooled { values, winners });
            let map = Pooled { values: values_2, winners: winners_2 };
            winograd::second_forward(kernel, sizes, values, second, map, memory.scratch);
        }
        self.full.logits([parts.full, parts.full_bias], memory.map_2, sizes.map_2(), memory.logits);
    }

    /// Computes the gradients that need the parameters, from the residuals in `forward.logits`.
    fn backward(
        &self,
        parts: &Parts<&[f32]>,
        images: &[f32],
        forward: &Forward<'_>,
        backward: &mut Backward<'_>,
    ) {
        let (sizes, kernel) = (self.sizes, self.kernel);
        self.full.slopes(parts.full, forward.logits, backward.full_transposed, backward.map_2);
        backward.first.fill(0.0);
        backward.second_bias.fill(0.0);
        let lists = backward.live.chunks_exact_mut(pooled::lists_len(&sizes));
        for (i, (image, live)) in images.chunks_exact(sizes.pixels()).zip(lists).enumerate() {
            let (first, second) = (i * sizes.map_1(), i * sizes.map_2());
            let range = second..second + sizes.map_2();
            pooled::list_live(
                &sizes,
                &forward.map_2[range.clone()],
                &forward.winners_2[range.clone()],
                &backward.map_2[range],
                live,
                backward.second_bias,
            );
            pooled::input_gradient(kernel, sizes, parts.second, live, backward.map_1);
            let range = first..first + sizes.map_1();
            let (map, winners) = (&forward.map_1[range.clone()], &forward.winners_1[range]);
            conv::first_gradient(kernel, sizes, image, map, winners, backward.map_1, backward.first);
        }
    }

    /// Returns the filters of the second convolution in the layout of the forward pass.
    fn transform(&self, parts: &Parts<&[f32]>, memory: &mut Forward<'_>) {
        let Forward { transformed, scratch, .. } = memory;
        winograd::transform_filters(self.kernel, self.sizes, parts.second, transformed, scratch);
    }
}

/// Parameters in working form.
struct Parts<T> {
    first: T,
    second: T,
    second_bias: T,
    full: T,
    full_bias: T,
}

impl<T> From<[T; 5]> for Parts<T> {
    fn from([first, second, second_bias, full, full_bias]: [T; 5]) -> Self {
        Self { first, second, second_bias, full, full_bias }
    }
}

/// Memory of a forward pass.
pub(super) struct Forward<'a> {
    transformed: &'a mut [f32],
    scratch: &'a mut [f32],
    map_1: &'a mut [f32],
    winners_1: &'a mut [f32],
    map_2: &'a mut [f32],
    winners_2: &'a mut [f32],
    logits: &'a mut [f32],
}

impl<'a> Forward<'a> {
    fn lens(model: &ConvNet, batch: usize) -> [usize; 7] {
        let sizes = &model.sizes;
        let (map_1, map_2) = (batch * sizes.map_1(), batch * sizes.map_2());
        let logits = batch * model.full.rows().stride;
        [winograd::filters_len(sizes), winograd::scratch_len(sizes), map_1, map_1, map_2, map_2, logits]
    }

    fn take(model: &ConvNet, batch: usize, memory: &mut &'a mut [f32]) -> Self {
        let [transformed, scratch, map_1, winners_1, map_2, winners_2, logits] =
            take_sections(memory, Self::lens(model, batch));
        Self { transformed, scratch, map_1, winners_1, map_2, winners_2, logits }
    }
}

/// Memory of a backward pass: gradients, and the lists of active cells.
pub(super) struct Backward<'a> {
    full_transposed: &'a mut [f32],
    map_2: &'a mut [f32],
    live: &'a mut [f32],
    map_1: &'a mut [f32],
    first: &'a mut [f32],
    second_bias: &'a mut [f32],
}

impl<'a> Backward<'a> {
    fn lens(model: &ConvNet, batch: usize) -> [usize; 6] {
        let sizes = &model.sizes;
        let (map_2, live) = (batch * sizes.map_2(), batch * pooled::lists_len(sizes));
        [model.full.transposed_len(), map_2, live, sizes.map_1(), sizes.filters_1(), sizes.second]
    }

    fn take(model: &ConvNet, batch: usize, memory: &mut &'a mut [f32]) -> Self {
        let [full_transposed, map_2, live, map_1, first, second_bias] =
            take_sections(memory, Self::lens(model, batch));
        Self { full_transposed, map_2, live, map_1, first, second_bias }
    }
}

impl LayeredModel for ConvNet {
    const PART: usize = 16;
    type Slopes<'a> = (Forward<'a>, Backward<'a>);

    fn differentiate<'a>(
        &self,
        working: &[f32],
        batch: Batch<'_>,
        scale: f32,
        mut memory: &'a mut [f32],
    ) -> Self::Slopes<'a> {
        let (parts, images) = (self.parts(working), batch.inputs.dense());
        let mut forward = Forward::take(self, batch.len(), &mut memory);
        let mut backward = Backward::take(self, batch.len(), &mut memory);
        self.transform(&parts, &mut forward);
        self.forward(&parts, images, &mut forward);
        softmax::residuals(self.kernel, self.full.rows(), forward.logits, batch.targets.classes(), scale);
        self.backward(&parts, images, &forward, &mut backward);
        (forward, backward)
    }

    fn descend(&self, working: &mut [f32], decay: f32, (forward, backward): Self::Slopes<'_>) {
        let (parts, sizes, kernel) = (self.parts_mut(working), self.sizes, self.kernel);
        sums::add_decayed(kernel, backward.first, decay, parts.first);
        sums::add_decayed(kernel, backward.second_bias, decay, parts.second_bias);
        pooled::add_filter_gradient(kernel, sizes, forward.map_1, backward.live, decay, parts.second);
        let full = [parts.full, parts.full_bias];
        self.full.descend(full, forward.map_2, sizes.map_2(), forward.logits, decay);
    }
}

impl Model for ConvNet {
    fn num_params(&self) -> usize {
        self.flat_lens().iter().sum()
    }

    fn tensors(&self) -> Vec<Tensor> {
        let [first, second] = self.channels;
        vec![
            Tensor::new("conv1.weight", &[first, 1, 5, 5]),
            Tensor::new("conv1.bias", &[first]),
            Tensor::new("conv2.weight", &[second, first, 5, 5]),
            Tensor::new("conv2.bias", &[second]),
            Tensor::new("fc.weight", &[self.full.classes, self.features()]),
            Tensor::new("fc.bias", &[self.full.classes]),
        ]
    }

    /// U(±1/√fan_in) for filters and biases.
    fn init(&self, stream: &mut Stream, params: &mut [f32]) {
        let fan_in = [TAPS, TAPS * self.channels[0], self.features()];
        let mut rest = params;
        for (lens, fan_in) in self.flat_lens().chunks_exact(2).zip(fan_in) {
            let (layer, after) = rest.split_at_mut(lens[0] + lens[1]);
            let bound = 1.0 / (fan_in as f64).sqrt();
            layer.iter_mut().for_each(|w| *w = stream.uniform(-bound, bound) as f32);
            rest = after;
        }
    }

    fn scratch_len(&self, batch: usize) -> usize {
        network::scratch_len(self, batch, sections_len(Forward::lens(self, batch.min(Self::PART))))
    }

    fn gradient(&self, params: &[f32], batch: Batch<'_>, gradient: &mut [f32], scratch: &mut [f32]) -> f64 {
        network::gradient(self, params, batch, gradient, scratch)
    }

    fn evaluate(&self, working: &[f32], batch: Batch<'_>, scratch: &mut [f32]) -> Score {
        let parts = self.parts(working);
        let mut score = Score::default();
        for (i, part) in network::parts(self, batch).enumerate() {
            let mut forward = Forward::take(self, part.len(), &mut &mut *scratch);
            if i == 0 {
                self.transform(&parts, &mut forward);
            }
            self.forward(&parts, part.inputs.dense(), &mut forward);
            score += softmax::score(self.kernel, self.full.rows(), forward.logits, part.targets.classes());
        }
        score
    }

    fn working_len(&self) -> usize {
        self.working_lens().iter().sum()
    }

    fn load(&self, params: &[f32], working: &mut [f32]) {
        working.fill(0.0);
        let (sizes, [first, second]) = (self.sizes, self.channels);
        let parts = self.parts_mut(working);
        let flat = split(params, self.flat_lens());
        for channel in 0..first {
            for t in 0..TAPS {
                parts.first[t * sizes.first + channel] = flat[0][channel * TAPS + t];
            }
            parts.first[TAPS * sizes.first + channel] = flat[1][channel];
        }
        for (i, taps) in flat[2].chunks_exact(TAPS).enumerate() {
            for (t, &tap) in taps.iter().enumerate() {
                parts.second[sizes.at_filter_2(i / first, i % first, t)] = tap;
            }
        }
        parts.second_bias[..second].copy_from_slice(flat[3]);
        let layout = Layout::panels(sizes.map_2());
        for (class, row) in flat[4].chunks_exact(self.features()).enumerate() {
            for (j, &w) in row.iter().enumerate() {
                parts.full[layout.at(self.feature_row(j), class)] = w;
            }
        }
        parts.full_bias[..self.full.classes].copy_from_slice(flat[5]);
    }

    fn store(&self, working: &[f32], params: &mut [f32]) {
        let (sizes, first) = (self.sizes, self.channels[0]);
        let parts = self.parts(working);
        let [filters_1, bias_1, filters_2, bias_2, full, full_bias] = split_mut(params, self.flat_lens());
        for (channel, taps) in filters_1.chunks_exact_mut(TAPS).enumerate() {
            taps.iter_mut().enumerate().for_each(|(t, tap)| *tap = parts.first[t * sizes.first + channel]);
            bias_1[channel] = parts.first[TAPS * sizes.first + channel];
        }
        for (i, taps) in filters_2.chunks_exact_mut(TAPS).enumerate() {
            for (t, tap) in taps.iter_mut().enumerate() {
                *tap = parts.second[sizes.at_filter_2(i / first, i % first, t)];
            }
        }
        bias_2.copy_from_slice(&parts.second_bias[..bias_2.len()]);
        let layout = Layout::panels(sizes.map_2());
        for (class, row) in full.chunks_exact_mut(self.features()).enumerate() {
            for (j, w) in row.iter_mut().enumerate() {
                *w = parts.full[layout.at(self.feature_row(j), class)];
            }
        }
        full_bias.copy_from_slice(&parts.full_bias[..full_bias.len()]);
    }

    fn step_scratch_len(&self, batch: usize) -> usize {
        sections_len(Forward::lens(self, batch)) + sections_len(Backward::lens(self, batch))
    }

    fn step(&self, working: &mut [f32], batch: Batch<'_>, step: Step<'_>, scratch: &mut [f32]) {
        network::step(self, working, batch, step, scratch);
    }
}
