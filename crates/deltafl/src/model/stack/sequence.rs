//! Operations on words and sequences: embeddings, and the last step or the mean over time.

use super::operation::{Backward, Descent, Operation, Pass};
use crate::data::WordVectors;
use crate::kernel::product::padded;
use crate::kernel::{bag, sums};
use crate::model::layout::section;
use crate::stream::Stream;

/// The first trained word: word 0 of a text is padding.
fn first_word(is_padded: bool) -> u32 {
    u32::from(is_padded)
}

/// Vectors of words: a row per step and example.
#[derive(Clone, Debug)]
pub(super) struct Embedding {
    pub(super) len: usize,
    pub(super) vocabulary: usize,
    pub(super) entries: usize,
    /// Whether word 0 is padding, whose vector remains zero.
    pub(super) is_padded: bool,
    /// Whether the output is the mean over the words of each text.
    pub(super) is_mean: bool,
}

impl Embedding {
    fn stride(&self) -> usize {
        padded(self.entries)
    }
}

impl Operation for Embedding {
    fn flat_len(&self) -> usize {
        self.vocabulary * self.entries
    }

    fn working_len(&self) -> usize {
        section(self.vocabulary * self.stride())
    }

    /// U(±1/2), and zero for padding.
    fn init(&self, stream: &mut Stream, flat: &mut [f32]) {
        let (padding, words) = flat.split_at_mut(first_word(self.is_padded) as usize * self.entries);
        padding.fill(0.0);
        words.iter_mut().for_each(|entry| *entry = stream.uniform(-0.5, 0.5) as f32);
    }

    fn load(&self, flat: &[f32], working: &mut [f32]) {
        if self.entries == self.stride() {
            return working[..flat.len()].copy_from_slice(flat);
        }
        let rows = working.chunks_exact_mut(self.stride());
        for (to, from) in rows.zip(flat.chunks_exact(self.entries)) {
            to[..from.len()].copy_from_slice(from);
            to[from.len()..].fill(0.0);
        }
    }

    fn store(&self, working: &[f32], flat: &mut [f32]) {
        if self.entries == self.stride() {
            let len = flat.len();
            return flat.copy_from_slice(&working[..len]);
        }
        let rows = working.chunks_exact(self.stride());
        for (to, from) in flat.chunks_exact_mut(self.entries).zip(rows) {
            to.copy_from_slice(&from[..to.len()]);
        }
    }

    fn forward(&self, pass: &Pass<'_>, params: &[f32], _: &[f32], output: &mut [f32], _: &mut [f32]) {
        let stride = self.stride();
        if self.is_mean {
            return bag::means(pass.kernel, params, stride, pass.tokens, self.len, output);
        }
        for (i, row) in output.chunks_exact_mut(stride).take(self.len * pass.batch).enumerate() {
            let word = pass.tokens[i % pass.batch * self.len + i / pass.batch];
            if word < first_word(self.is_padded) {
                row.fill(0.0);
                continue;
            }
            row.copy_from_slice(&params[word as usize * stride..][..stride]);
        }
    }

    /// Changes the vectors of the words of the batch only, unless there is a decay.
    fn backward(&self, pass: &Pass<'_>, mut descent: Descent<'_>, step: Backward<'_>) {
        let (vectors, decay) = descent.target();
        if decay < 1.0 {
            vectors.iter_mut().for_each(|entry| *entry *= decay);
        }
        let stride = self.stride();
        if self.is_mean {
            return bag::add_slopes(pass.kernel, step.slopes, stride, pass.tokens, self.len, vectors);
        }
        let rows = step.slopes.chunks_exact(stride).take(self.len * pass.batch);
        for (i, slopes) in rows.enumerate() {
            let word = pass.tokens[i % pass.batch * self.len + i / pass.batch];
            if word >= first_word(self.is_padded) {
                sums::add_rows(pass.kernel, slopes, &mut vectors[word as usize * stride..][..stride]);
            }
        }
    }
}

/// Constant vectors of words: the frozen vectors of the data, or unit vectors.
#[derive(Clone, Debug)]
pub(super) struct FrozenVectors {
    pub(super) len: usize,
    pub(super) entries: usize,
    /// The vectors. Without vectors, a word is a unit vector.
    pub(super) vectors: Option<WordVectors>,
}

impl Operation for FrozenVectors {
    fn forward(&self, pass: &Pass<'_>, _: &[f32], _: &[f32], output: &mut [f32], _: &mut [f32]) {
        let rows = output.chunks_exact_mut(padded(self.entries)).take(self.len * pass.batch);
        for (i, row) in rows.enumerate() {
            let word = pass.tokens[i % pass.batch * self.len + i / pass.batch] as usize;
            row.fill(0.0);
            match &self.vectors {
                Some(vectors) => {
                    let vector = &vectors.values[word * self.entries..][..self.entries];
                    row[..self.entries].copy_from_slice(vector);
                }
                None => row[word] = 1.0,
            }
        }
    }

    fn backward(&self, _: &Pass<'_>, _: Descent<'_>, _: Backward<'_>) {}
}

/// The last step, or the mean over time.
#[derive(Clone, Copy, Debug)]
pub(super) struct OverTime {
    pub(super) len: usize,
    pub(super) stride: usize,
    /// Whether steps of word 0 do not count.
    pub(super) skips_padding: bool,
    pub(super) is_mean: bool,
}

impl OverTime {
    /// Returns the words of an example.
    fn words<'a>(&self, pass: &Pass<'a>, example: usize) -> &'a [u32] {
        &pass.tokens[example * self.len..][..self.len]
    }

    /// Returns the last step of an example. A text without words has its first step.
    fn last(&self, pass: &Pass<'_>, example: usize) -> usize {
        match self.skips_padding {
            true => self.words(pass, example).iter().rposition(|&word| word > 0).unwrap_or(0),
            false => self.len - 1,
        }
    }

    /// Calls a function with each step that counts towards the mean of an example, and returns 1/n.
    fn counted(&self, pass: &Pass<'_>, example: usize, mut each: impl FnMut(usize)) -> f32 {
        let mut count = 0;
        for t in 0..self.len {
            if !self.skips_padding || self.words(pass, example)[t] > 0 {
                each(t);
                count += 1;
            }
        }
        1.0 / count.max(1) as f32
    }
}

impl Operation for OverTime {
    fn forward(&self, pass: &Pass<'_>, _: &[f32], input: &[f32], output: &mut [f32], _: &mut [f32]) {
        let (stride, batch) = (self.stride, pass.batch);
        let row = |t: usize, example: usize| &input[(t * batch + example) * stride..][..stride];
        for (example, out) in output.chunks_exact_mut(stride).take(batch).enumerate() {
            if !self.is_mean {
                out.copy_from_slice(row(self.last(pass, example), example));
                continue;
            }
            out.fill(0.0);
            let share = self.counted(pass, example, |t| sums::add_rows(pass.kernel, row(t, example), out));
            out.iter_mut().for_each(|sum| *sum *= share);
        }
    }

    fn backward(&self, pass: &Pass<'_>, _: Descent<'_>, step: Backward<'_>) {
        let Some(to) = step.to else { return };
        let (stride, batch) = (self.stride, pass.batch);
        to.fill(0.0);
        for (example, slopes) in step.slopes.chunks_exact_mut(stride).take(batch).enumerate() {
            let at = |t: usize| (t * batch + example) * stride;
            if !self.is_mean {
                to[at(self.last(pass, example))..][..stride].copy_from_slice(slopes);
                continue;
            }
            let share = self.counted(pass, example, |_| ());
            slopes.iter_mut().for_each(|slope| *slope *= share);
            self.counted(pass, example, |t| to[at(t)..][..stride].copy_from_slice(slopes));
        }
    }
}
