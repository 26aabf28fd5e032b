//! The operations of a compiled stack, and the layouts of activations between them.
//!
//! An operation reads the activations of a slot and writes those of another. Backward, it reads the
//! slopes of its output, writes those of its input, and moves its parameters. A step moves the
//! parameters of an operation as soon as its slopes are known, because no later part of the pass
//! reads them. The gradient of a parameter matrix is therefore never stored.

use std::fmt::Debug;

use super::ActivationShape;
use crate::kernel::Granted;
use crate::kernel::product::padded;
use crate::stream::Stream;

/// The values shared by all operations of a pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pass<'a> {
    /// The number of examples.
    pub(super) batch: usize,
    /// The words of the batch, if the data contains words.
    pub(super) tokens: &'a [u32],
    pub(super) kernel: Granted,
    /// The key of the random numbers of a training step. Without a key nothing is random.
    pub(super) key: Option<u64>,
}

/// The parameters of an operation in a backward pass, and the target of their gradient.
pub(super) enum Descent<'a> {
    /// Computes params ← decay·params + gradient.
    InPlace { params: &'a mut [f32], decay: f32 },
    /// Computes total ← total + gradient.
    Into { params: &'a [f32], total: &'a mut [f32] },
}

impl Descent<'_> {
    /// Returns the parameters.
    pub(super) fn params(&self) -> &[f32] {
        match self {
            Self::InPlace { params, .. } => params,
            Self::Into { params, .. } => params,
        }
    }

    /// Returns the target of the gradient, and the factor by which its values are multiplied first.
    pub(super) fn target(&mut self) -> (&mut [f32], f32) {
        match self {
            Self::InPlace { params, decay } => (params, *decay),
            Self::Into { total, .. } => (total, 1.0),
        }
    }
}

/// An operation from one slot to another.
pub(super) trait Operation: Send + Sync + Debug {
    /// Returns the floats of its parameters in flat order.
    fn flat_len(&self) -> usize {
        0
    }

    /// Returns the floats of its parameters in working form, a multiple of 16.
    fn working_len(&self) -> usize {
        0
    }

    /// Writes initial parameters.
    fn init(&self, _stream: &mut Stream, _flat: &mut [f32]) {}

    /// Writes the working form of parameters, with zeros in its padding.
    fn load(&self, _flat: &[f32], _working: &mut [f32]) {}

    /// Writes parameters from their working form.
    fn store(&self, _working: &[f32], _flat: &mut [f32]) {}

    /// Returns the floats that it stores between the passes or needs within one, a multiple of 16.
    fn memory_len(&self, _batch: usize) -> usize {
        0
    }

    /// Returns `true` if the backward pass reads the output, which must not be changed then.
    fn reads_output(&self) -> bool {
        false
    }

    /// Computes the output.
    fn forward(&self, pass: &Pass<'_>, params: &[f32], input: &[f32], output: &mut [f32], memory: &mut [f32]);

    /// Moves the parameters and writes the slopes of the input if they are needed.
    fn backward(&self, pass: &Pass<'_>, descent: Descent<'_>, step: Backward<'_>);
}

/// The activations of an operation in a backward pass.
pub(super) struct Backward<'a> {
    pub(super) input: &'a [f32],
    pub(super) output: &'a [f32],
    /// The slopes of the output, which may be overwritten.
    pub(super) slopes: &'a mut [f32],
    /// The slopes of the input, if they are needed.
    pub(super) to: Option<&'a mut [f32]>,
    /// The memory of the forward pass.
    pub(super) memory: &'a mut [f32],
}

/// An operation that replaces the activations of a slot.
pub(super) trait InPlace: Send + Sync + Debug {
    /// Returns the floats that it stores for the backward pass, a multiple of 16.
    fn memory_len(&self, _batch: usize) -> usize {
        0
    }

    /// Replaces the activations.
    fn forward(&self, pass: &Pass<'_>, values: &mut [f32], memory: &mut [f32]);

    /// Replaces the slopes of the output by those of the input.
    fn backward(&self, pass: &Pass<'_>, values: &[f32], slopes: &mut [f32], memory: &[f32]);
}

/// The layout of the activations of a slot.
///
/// Features are a row per example, images are cells of channels per example, and sequences are a
/// row per step and example, with the step outermost. Entries after the last one of a row are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Form {
    pub(super) shape: ActivationShape,
    /// Floats from one row, cell or step to the next.
    pub(super) stride: usize,
    pub(super) order: FeatureOrder,
}

/// The positions of features in their row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FeatureOrder {
    /// In their order.
    Plain,
    /// The features of a flattened image, whose channels are contiguous: `cells` of `stride`
    /// floats.
    ByCell { cells: usize, stride: usize },
    /// The features of a flattened sequence: steps of `stride` floats with `entries` features each.
    ByStep { entries: usize, stride: usize },
}

impl FeatureOrder {
    /// Returns the position of a feature.
    pub(super) fn at(self, feature: usize) -> usize {
        match self {
            Self::Plain => feature,
            Self::ByCell { cells, stride } => feature % cells * stride + feature / cells,
            Self::ByStep { entries, stride } => feature / entries * stride + feature % entries,
        }
    }
}

impl Form {
    /// Returns the form in which operations write activations of a shape.
    pub(super) fn of(shape: ActivationShape) -> Self {
        let entries = match shape {
            ActivationShape::Features(features) => features,
            ActivationShape::Image { channels, .. } => channels,
            ActivationShape::Sequence { entries, .. } => entries,
            ActivationShape::Tokens { .. } => 0,
        };
        Self { shape, stride: padded(entries), order: FeatureOrder::Plain }
    }

    /// Returns the rows, cells or steps of an example.
    pub(super) fn rows(&self) -> usize {
        match self.shape {
            ActivationShape::Features(_) => 1,
            ActivationShape::Image { height, width, .. } => height * width,
            ActivationShape::Sequence { len, .. } => len,
            ActivationShape::Tokens { .. } => 0,
        }
    }

    /// Returns the entries of a row, cell or step, without padding.
    pub(super) fn entries(&self) -> usize {
        match self.shape {
            ActivationShape::Features(features) => features,
            ActivationShape::Image { channels, .. } => channels,
            ActivationShape::Sequence { entries, .. } => entries,
            ActivationShape::Tokens { .. } => 0,
        }
    }

    /// Returns the floats of an example.
    pub(super) fn len(&self) -> usize {
        self.rows() * self.stride
    }
}
