//! A bag of embeddings: the mean of the trained vectors of the words of a text → full layer.
//!
//! Flat order, as in PyTorch: embedding `vocabulary × dim`, full layer `classes × dim`, its biases.
//! Word 0 is padding. Its vector is zero, and it does not count towards the mean. With h the mean
//! of the n vectors of a text and δ the residuals of its logits,
//!
//! ```text
//! h = (1/n) Σ E[word],     z = hW + b,     ∂f/∂E[word] = (1/n) δWᵀ for each occurrence
//! ```
//!
//! A step reads and writes the vectors of the words of its batch only. The cost does not depend on
//! the size of the vocabulary, except for a penalty (λ > 0) or a pull, which change every vector.

use super::full::Full;
use super::layout::{
    load_transposed, section, sections_len, split, split_mut, store_transposed, take, take_sections,
};
use super::{Batch, Model, ModelDefinition, ModelMismatch, ModelRequest, Score, Step, Tensor};
use crate::kernel::product::{Layout, padded};
use crate::kernel::{Granted, Isa, bag, softmax};
use crate::options::{OptionDefault, OptionKind, OptionSpec, OptionValue};
use crate::stream::Stream;

/// The entry of the table.
pub static TEXT_BAG: ModelDefinition = ModelDefinition {
    kind: "text-bag",
    about: "the mean of trained word vectors, for texts",
    tasks: &["classes"],
    options: &[OptionSpec::new(
        "embedding",
        OptionKind::Whole(1),
        OptionDefault::Value(OptionValue::Whole(64)),
        "entries of the trained vector of a word",
        OptionValue::Whole(32),
    )],
    build,
};

fn build(request: &ModelRequest<'_>) -> Result<Box<dyn Model>, ModelMismatch> {
    let (len, vocabulary) = request.sequences()?;
    let (dim, classes) = (request.size("embedding")?, request.classes()?);
    Ok(Box::new(TextBag::new(len, vocabulary, dim, classes, request.isa)))
}

/// The bag of embeddings.
#[derive(Clone, Debug)]
pub struct TextBag {
    len: usize,
    vocabulary: usize,
    full: Full,
    kernel: Granted,
}

/// The examples of one pass of a gradient or an evaluation. Larger batches are split.
const PART: usize = 64;

/// The results of a backward pass: the means, the residuals of the logits, the slopes of the means.
struct BagSlopes<'a> {
    means: &'a [f32],
    residuals: &'a [f32],
    slopes: &'a mut [f32],
}

impl TextBag {
    /// Creates a model of texts of `len` words, with `dim` entries per word.
    ///
    /// # Panics
    /// If this CPU does not support the instruction set.
    pub fn new(len: usize, vocabulary: usize, dim: usize, classes: usize, isa: Isa) -> Self {
        let kernel = Granted::new(isa);
        Self { len, vocabulary, full: Full { inputs: dim, classes, kernel }, kernel }
    }

    fn dim(&self) -> usize {
        self.full.inputs
    }

    /// Returns the floats of the vector of a word in working form.
    fn stride(&self) -> usize {
        padded(self.dim())
    }

    fn flat_lens(&self) -> [usize; 3] {
        [self.vocabulary * self.dim(), self.full.classes * self.dim(), self.full.classes]
    }

    fn working_lens(&self) -> [usize; 3] {
        let [full, bias] = self.full.working_lens();
        [section(self.vocabulary * self.stride()), full, bias]
    }

    fn memory_lens(&self, batch: usize) -> [usize; 4] {
        let stride = self.stride();
        [batch * stride, batch * self.full.rows().stride, batch * stride, self.full.transposed_len()]
    }

    /// Computes the means and the logits of a batch.
    fn forward(&self, working: &[f32], tokens: &[u32], means: &mut [f32], logits: &mut [f32]) {
        let [vectors, weights, bias] = split(working, self.working_lens());
        bag::means(self.kernel, vectors, self.stride(), tokens, self.len, means);
        self.full.logits([weights, bias], means, self.stride(), logits);
    }

    /// Runs forward and backward, with the slope of every loss multiplied by `scale`.
    fn differentiate<'a>(
        &self,
        working: &[f32],
        batch: Batch<'_>,
        scale: f32,
        mut memory: &'a mut [f32],
    ) -> BagSlopes<'a> {
        let [means, logits, slopes, transposed] = take_sections(&mut memory, self.memory_lens(batch.len()));
        self.forward(working, batch.inputs.tokens(), means, logits);
        softmax::residuals(self.kernel, self.full.rows(), logits, batch.targets.classes(), scale);
        let [_, weights, _] = split(working, self.working_lens());
        self.full.slopes(weights, logits, transposed, slopes);
        BagSlopes { means, residuals: logits, slopes }
    }

    /// Computes working ← decay·working + gradient. Only the vectors of the words are read and
    /// written, unless there is a decay.
    fn descend(&self, working: &mut [f32], decay: f32, tokens: &[u32], pass: BagSlopes<'_>) {
        let BagSlopes { means, residuals, slopes } = pass;
        let [vectors, weights, bias] = split_mut(working, self.working_lens());
        if decay < 1.0 {
            vectors.iter_mut().for_each(|entry| *entry *= decay);
        }
        bag::add_slopes(self.kernel, slopes, self.stride(), tokens, self.len, vectors);
        self.full.descend([weights, bias], means, self.stride(), residuals, decay);
    }
}

/// Returns the parts of a batch.
fn parts<'a>(batch: Batch<'a>) -> impl Iterator<Item = Batch<'a>> {
    (0..batch.len()).step_by(PART).map(move |start| batch.part(start..(start + PART).min(batch.len())))
}

impl Model for TextBag {
    fn num_params(&self) -> usize {
        self.flat_lens().iter().sum()
    }

    fn tensors(&self) -> Vec<Tensor> {
        let (dim, classes) = (self.dim(), self.full.classes);
        vec![
            Tensor::new("embedding.weight", &[self.vocabulary, dim]),
            Tensor::new("fc.weight", &[classes, dim]),
            Tensor::new("fc.bias", &[classes]),
        ]
    }

    /// U(±1/√dim) for the full layer and U(±1/2) for the vectors, except those of padding.
    fn init(&self, stream: &mut Stream, params: &mut [f32]) {
        let (vectors, rest) = params.split_at_mut(self.vocabulary * self.dim());
        let (padding, words) = vectors.split_at_mut(self.dim());
        padding.fill(0.0);
        words.iter_mut().for_each(|entry| *entry = stream.uniform(-0.5, 0.5) as f32);
        let bound = 1.0 / (self.dim() as f64).sqrt();
        rest.iter_mut().for_each(|w| *w = stream.uniform(-bound, bound) as f32);
    }

    fn scratch_len(&self, batch: usize) -> usize {
        2 * section(self.working_len()) + self.step_scratch_len(batch.min(PART))
    }

    fn gradient(&self, params: &[f32], batch: Batch<'_>, gradient: &mut [f32], scratch: &mut [f32]) -> f64 {
        let mut memory = scratch;
        let working = take(&mut memory, self.working_len());
        let total = take(&mut memory, self.working_len());
        self.load(params, working);
        total.fill(0.0);
        let (mut loss, scale) = (0.0, 1.0 / batch.len() as f32);
        for part in parts(batch) {
            loss += self.evaluate(working, part, memory).loss;
            let pass = self.differentiate(working, part, scale, memory);
            self.descend(total, 1.0, part.inputs.tokens(), pass);
        }
        self.store(total, gradient);
        loss / batch.len() as f64
    }

    fn evaluate(&self, working: &[f32], batch: Batch<'_>, scratch: &mut [f32]) -> Score {
        let mut score = Score::default();
        for part in parts(batch) {
            let mut memory = &mut scratch[..];
            let [means, logits, ..] = take_sections(&mut memory, self.memory_lens(part.len()));
            self.forward(working, part.inputs.tokens(), means, logits);
            score += softmax::score(self.kernel, self.full.rows(), logits, part.targets.classes());
        }
        score
    }

    fn working_len(&self) -> usize {
        self.working_lens().iter().sum()
    }

    fn load(&self, params: &[f32], working: &mut [f32]) {
        let [vectors, weights, bias] = split(params, self.flat_lens());
        let [to_vectors, to_weights, to_bias] = split_mut(working, self.working_lens());
        if self.dim() == self.stride() {
            to_vectors[..vectors.len()].copy_from_slice(vectors);
        } else {
            for (to, row) in to_vectors.chunks_exact_mut(self.stride()).zip(vectors.chunks_exact(self.dim()))
            {
                to[..row.len()].copy_from_slice(row);
                to[row.len()..].fill(0.0);
            }
        }
        to_weights.fill(0.0);
        to_bias.fill(0.0);
        load_transposed(weights, self.dim(), Layout::panels(self.dim()), to_weights);
        to_bias[..bias.len()].copy_from_slice(bias);
    }

    fn store(&self, working: &[f32], params: &mut [f32]) {
        let [vectors, weights, bias] = split(working, self.working_lens());
        let [to_vectors, to_weights, to_bias] = split_mut(params, self.flat_lens());
        if self.dim() == self.stride() {
            let len = to_vectors.len();
            to_vectors.copy_from_slice(&vectors[..len]);
        } else {
            let rows = vectors.chunks_exact(self.stride());
            for (to, row) in to_vectors.chunks_exact_mut(self.dim()).zip(rows) {
                to.copy_from_slice(&row[..to.len()]);
            }
        }
        store_transposed(weights, self.dim(), Layout::panels(self.dim()), to_weights);
        to_bias.copy_from_slice(&bias[..to_bias.len()]);
    }

    fn step_scratch_len(&self, batch: usize) -> usize {
        sections_len(self.memory_lens(batch))
    }

    fn step(&self, working: &mut [f32], batch: Batch<'_>, step: Step<'_>, scratch: &mut [f32]) {
        let scale = -step.learning_rate / batch.len() as f32;
        let pass = self.differentiate(working, batch, scale, scratch);
        self.descend(working, step.decay(), batch.inputs.tokens(), pass);
        step.add_pull(working);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Inputs;
    use crate::stream::Purpose;
    use crate::task::Targets;

    const TOKENS: [u32; 12] = [1, 2, 2, 0, 3, 0, 0, 0, 0, 0, 0, 0];
    const LABELS: [u32; 3] = [2, 0, 1];

    fn batch() -> Batch<'static> {
        Batch { inputs: Inputs::Tokens(&TOKENS), targets: Targets::Classes(&LABELS) }
    }

    fn model_and_params(isa: Isa) -> (TextBag, Vec<f32>) {
        let model = TextBag::new(4, 5, 7, 3, isa);
        let mut params = vec![0.0; model.num_params()];
        model.init(&mut Stream::new(1, Purpose::Init, 0, 0), &mut params);
        (model, params)
    }

    #[test]
    fn the_gradient_is_the_slope_of_the_loss() {
        for isa in Isa::available() {
            let (model, params) = model_and_params(isa);
            let mut scratch = vec![0.0; model.scratch_len(3)];
            let mut gradient = vec![0.0; params.len()];
            model.gradient(&params, batch(), &mut gradient, &mut scratch);
            let mut working = vec![0.0; model.working_len()];
            for i in 0..params.len() {
                let mut at = |by: f32| {
                    let mut moved = params.clone();
                    moved[i] += by;
                    model.load(&moved, &mut working);
                    model.evaluate(&working, batch(), &mut scratch).loss / 3.0
                };
                let slope = (at(1e-2) - at(-1e-2)) / 2e-2;
                assert!((slope - f64::from(gradient[i])).abs() < 1e-3, "{isa} {i}: {slope} {}", gradient[i]);
            }
            assert!(gradient[..7].iter().all(|&g| g == 0.0), "padding is not trained");
            assert!(gradient[4 * 7..5 * 7].iter().all(|&g| g == 0.0), "nor a word that does not occur");
        }
    }

    #[test]
    fn a_step_is_the_step_along_the_gradient() {
        let (model, params) = model_and_params(Isa::detect());
        for l2 in [0.0, 0.1] {
            let step = Step { learning_rate: 0.5, l2, pull: None, key: 0 };
            let mut gradient = vec![0.0; params.len()];
            model.gradient(&params, batch(), &mut gradient, &mut vec![0.0; model.scratch_len(3)]);
            let (mut working, mut stepped) = (vec![0.0; model.working_len()], params.clone());
            model.load(&params, &mut working);
            model.step(&mut working, batch(), step, &mut vec![0.0; model.step_scratch_len(3)]);
            model.store(&working, &mut stepped);
            for ((after, before), g) in stepped.iter().zip(&params).zip(&gradient) {
                assert!((after - (before - 0.5 * (g + l2 * before))).abs() < 1e-6);
            }
        }
    }
}
