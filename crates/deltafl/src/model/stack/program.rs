//! The compilation of a stack into operations on slots.
//!
//! A slot contains the activations of a batch in one layout. Slots are numbered in the order of the
//! forward pass, so that an operation reads a slot with a lower number than it writes. Activations
//! such as ReLU replace the entries of their slot if no backward pass reads them.

use super::convolution::Convolution;
use super::dense::Dense;
use super::elementwise::{Dropout, Gelu, Relu, Tanh};
use super::maps::{Norm, Pool, Relayout};
use super::operation::{FeatureOrder, Form, InPlace, Operation};
use super::recurrent::{Gru, Lstm};
use super::sequence::{Embedding, FrozenVectors, OverTime};
use super::{ActivationShape, Layer, ShapedLayer, Stack};
use crate::data::WordVectors;

/// The number of a slot. Slot 0 is the batch itself.
pub(super) type Slot = usize;

/// A step of the program.
#[derive(Debug)]
pub(super) enum Instruction {
    /// An operation from one slot to another.
    Apply { operation: Box<dyn Operation>, input: Slot, output: Slot },
    /// An operation that replaces a slot.
    Replace { operation: Box<dyn InPlace>, slot: Slot },
    /// Copies the input of a residual.
    Fork { input: Slot, output: Slot },
    /// Adds the input of a residual to the output of its layers.
    Join { input: Slot, skip: Slot, output: Slot },
}

/// The readers of a slot in the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    /// The slot may be replaced.
    Free,
    /// The sign of an entry that is not zero must remain.
    Sign,
    /// It must not be changed.
    Values,
}

/// A compiled stack.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) instructions: Vec<Instruction>,
    /// Floats of an example, of each slot. Slot 0 has none.
    pub(super) lens: Vec<usize>,
    /// Whether the slopes of a slot are needed: an operation with parameters comes before.
    pub(super) needs_slopes: Vec<bool>,
    /// The slot of the output.
    pub(super) output: Slot,
    /// Whether a training step draws random numbers.
    pub(super) has_dropout: bool,
}

/// Compiles a stack. The vectors are those of the data.
pub(super) fn compile(stack: &Stack, vectors: Option<&WordVectors>) -> Program {
    let mut compiler = Compiler {
        instructions: Vec::new(),
        forms: vec![source_form(stack)],
        kept: vec![Kept::Values],
        needs_slopes: vec![false],
        dropouts: 0,
        vectors,
    };
    let mut current = 0;
    if let ActivationShape::Image { channels, .. } = stack.input {
        let is_conv = matches!(stack.layers.first(), Some(ShapedLayer { layer: Layer::Conv2d { .. }, .. }));
        current = compiler.image(channels, is_conv);
    }
    let output = compiler.sequence(&stack.layers, current);
    let mut lens: Vec<usize> = compiler.forms.iter().map(Form::len).collect();
    lens[0] = 0;
    Program {
        instructions: compiler.instructions,
        lens,
        needs_slopes: compiler.needs_slopes,
        output,
        has_dropout: compiler.dropouts > 0,
    }
}

/// The layout of the data: rows without padding.
fn source_form(stack: &Stack) -> Form {
    let stride = match stack.input {
        ActivationShape::Image { .. } => 1,
        shape => shape.len(),
    };
    Form { shape: stack.input, stride, order: FeatureOrder::Plain }
}

struct Compiler<'a> {
    instructions: Vec<Instruction>,
    forms: Vec<Form>,
    kept: Vec<Kept>,
    needs_slopes: Vec<bool>,
    dropouts: u64,
    vectors: Option<&'a WordVectors>,
}

impl Compiler<'_> {
    /// Adds a slot.
    fn slot(&mut self, form: Form, kept: Kept, needs_slopes: bool) -> Slot {
        self.forms.push(form);
        self.kept.push(kept);
        self.needs_slopes.push(needs_slopes);
        self.forms.len() - 1
    }

    fn apply(&mut self, operation: impl Operation + 'static, input: Slot, form: Form) -> Slot {
        let needs_slopes = self.needs_slopes[input] || operation.flat_len() > 0;
        let kept = if operation.reads_output() { Kept::Values } else { Kept::Free };
        let output = self.slot(form, kept, needs_slopes);
        self.instructions.push(Instruction::Apply { operation: Box::new(operation), input, output });
        output
    }

    /// Converts the images of the data to cells of channels. The kernels of a convolution read
    /// cells without padding.
    fn image(&mut self, channels: usize, is_conv: bool) -> Slot {
        let Form { shape, .. } = self.forms[0];
        if is_conv && channels == 1 {
            return 0;
        }
        let stride = if is_conv { channels } else { Form::of(shape).stride };
        let form = Form { shape, stride, order: FeatureOrder::Plain };
        let relayout = Relayout::Cells { channels, cells: form.rows(), stride };
        self.apply(relayout, 0, form)
    }

    /// Returns a slot with the same entries in the layout that operations write, for operations
    /// that need it.
    fn plain(&mut self, input: Slot) -> Slot {
        let form = self.forms[input];
        let target = Form::of(form.shape);
        if form == target {
            return input;
        }
        let (len, from, to, order) = (form.entries(), form.stride, target.stride, form.order);
        self.apply(Relayout::Rows { len, from, to, order }, input, target)
    }

    /// Returns a copy of a slot if its entries must not be changed.
    fn replaceable(&mut self, input: Slot, keeps_sign: bool) -> Slot {
        let may_replace = match self.kept[input] {
            Kept::Free => true,
            Kept::Sign => keeps_sign,
            Kept::Values => false,
        };
        if may_replace {
            return input;
        }
        let form = self.forms[input];
        if form.order == FeatureOrder::Plain && form != Form::of(form.shape) {
            return self.plain(input);
        }
        let (len, order) = (form.stride, FeatureOrder::Plain);
        self.apply(Relayout::Rows { len, from: len, to: len, order }, input, form)
    }

    fn replace(&mut self, operation: impl InPlace + 'static, slot: Slot, kept: Kept) -> Slot {
        self.instructions.push(Instruction::Replace { operation: Box::new(operation), slot });
        self.kept[slot] = self.kept[slot].max(kept);
        slot
    }

    fn sequence(&mut self, layers: &[ShapedLayer], mut current: Slot) -> Slot {
        let mut rest = layers.iter().peekable();
        while let Some(layer) = rest.next() {
            let is_mean = matches!(rest.peek(), Some(ShapedLayer { layer: Layer::Mean, .. }));
            match (&layer.layer, layer.input) {
                // The mean of the words of a text needs no row per word.
                (Layer::Embedding { entries }, ActivationShape::Tokens { len, vocabulary, padded: true })
                    if is_mean =>
                {
                    let embedding =
                        Embedding { len, vocabulary, entries: *entries, is_padded: true, is_mean };
                    let form = Form::of(ActivationShape::Features(*entries));
                    current = self.apply(embedding, current, form);
                    rest.next();
                }
                _ => current = self.layer(layer, current),
            }
        }
        current
    }

    fn layer(&mut self, shaped: &ShapedLayer, input: Slot) -> Slot {
        let form = self.forms[input];
        let output = Form::of(shaped.output);
        match &shaped.layer {
            Layer::Dense { units, bias } => self.apply(Dense::new(&form, *units, *bias), input, output),
            Layer::Conv2d { channels, size, stride, padding } => {
                let sizes = [*channels, *size, *stride, *padding];
                self.apply(Convolution::new(&form, sizes, shaped.output), input, output)
            }
            Layer::MaxPool { size, stride } => {
                self.apply(Pool::new(&form, *size, *stride, true), input, output)
            }
            Layer::AvgPool { size, stride } => {
                self.apply(Pool::new(&form, *size, *stride, false), input, output)
            }
            Layer::GroupNorm { groups } => {
                let input = self.plain(input);
                self.apply(Norm::new(&output, Some(*groups)), input, output)
            }
            Layer::LayerNorm => {
                let input = self.plain(input);
                self.apply(Norm::new(&output, None), input, output)
            }
            Layer::Relu => {
                let slot = self.replaceable(input, true);
                self.replace(Relu, slot, Kept::Sign)
            }
            Layer::Gelu => {
                let slot = self.replaceable(input, false);
                self.replace(Gelu(self.forms[slot].len()), slot, Kept::Free)
            }
            Layer::Tanh => {
                let slot = self.replaceable(input, false);
                self.replace(Tanh, slot, Kept::Values)
            }
            Layer::Dropout { rate } => {
                let slot = self.replaceable(input, true);
                let dropout = Dropout { len: self.forms[slot].len(), rate: *rate, number: self.dropouts };
                self.dropouts += 1;
                self.replace(dropout, slot, Kept::Free)
            }
            Layer::Embedding { entries } => {
                let ActivationShape::Tokens { len, vocabulary, padded } = shaped.input else {
                    unreachable!("shapes are inferred before operations are created")
                };
                let (entries, is_padded) = (*entries, padded);
                let embedding = Embedding { len, vocabulary, entries, is_padded, is_mean: false };
                self.apply(embedding, input, output)
            }
            Layer::WordVectors => {
                let (len, entries) = (output.rows(), output.entries());
                self.apply(FrozenVectors { len, entries, vectors: self.vectors.cloned() }, input, output)
            }
            Layer::OneHot => {
                let (len, entries) = (output.rows(), output.entries());
                self.apply(FrozenVectors { len, entries, vectors: None }, input, output)
            }
            Layer::Lstm { hidden } => self.apply(Lstm::new(&form, *hidden), input, output),
            Layer::Gru { hidden } => self.apply(Gru::new(&form, *hidden), input, output),
            Layer::Last { padding } => {
                let over_time = over_time(shaped.input, form.stride, *padding, false);
                self.apply(over_time, input, output)
            }
            Layer::Mean => self.apply(over_time(shaped.input, form.stride, false, true), input, output),
            Layer::Flatten => self.flatten(input),
            Layer::Residual { .. } => self.residual(&shaped.layers, input),
        }
    }

    /// Flattens without a copy, except for sequences, whose steps are outermost.
    fn flatten(&mut self, input: Slot) -> Slot {
        let form = self.forms[input];
        let features = ActivationShape::Features(form.shape.len());
        match form.shape {
            // The data is channel by channel already.
            ActivationShape::Image { .. } if input == 0 => {
                self.forms[0] =
                    Form { shape: features, stride: form.shape.len(), order: FeatureOrder::Plain };
                input
            }
            ActivationShape::Image { .. } => {
                let order = FeatureOrder::ByCell { cells: form.rows(), stride: form.stride };
                self.forms[input] = Form { shape: features, stride: form.len(), order };
                input
            }
            ActivationShape::Sequence { len, entries, .. } => {
                let order = FeatureOrder::ByStep { entries, stride: form.stride };
                let flat = Form { shape: features, stride: form.len(), order };
                self.apply(Relayout::Steps { len, stride: form.stride }, input, flat)
            }
            ActivationShape::Features(_) | ActivationShape::Tokens { .. } => input,
        }
    }

    fn residual(&mut self, layers: &[ShapedLayer], input: Slot) -> Slot {
        let input = self.plain(input);
        let (form, needs_slopes) = (self.forms[input], self.needs_slopes[input]);
        let output = self.slot(form, Kept::Free, needs_slopes);
        // The backward pass adds to the slopes of the input, so no operation may replace it.
        self.kept[input] = Kept::Values;
        self.instructions.push(Instruction::Fork { input, output });
        let inner = self.sequence(layers, output);
        let inner = self.plain(inner);
        let needs_slopes = needs_slopes || self.needs_slopes[inner];
        let output = self.slot(form, Kept::Free, needs_slopes);
        self.instructions.push(Instruction::Join { input: inner, skip: input, output });
        output
    }
}

fn over_time(input: ActivationShape, stride: usize, reads_padding: bool, is_mean: bool) -> OverTime {
    let ActivationShape::Sequence { len, padded, .. } = input else {
        unreachable!("shapes are inferred before operations are created")
    };
    OverTime { len, stride, skips_padding: padded && !reads_padding, is_mean }
}

impl Kept {
    fn max(self, other: Self) -> Self {
        match (self, other) {
            (Self::Values, _) | (_, Self::Values) => Self::Values,
            (Self::Sign, _) | (_, Self::Sign) => Self::Sign,
            (Self::Free, Self::Free) => Self::Free,
        }
    }
}
