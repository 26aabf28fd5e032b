//! The memory of a step of the GRU, split from borrowed scratch.

use super::Gru;
use crate::kernel::gru::{Kept, Units};
use crate::kernel::product::{padded, panels_len};
use crate::model::layout::take_sections;

/// Parameters in working form.
pub(super) struct Parts<T> {
    pub(super) embedding: T,
    pub(super) input: T,
    pub(super) recurrent: T,
    pub(super) input_bias: T,
    pub(super) recurrent_bias: T,
    pub(super) full: T,
    pub(super) full_bias: T,
}

impl<T> From<[T; 7]> for Parts<T> {
    fn from([embedding, input, recurrent, input_bias, recurrent_bias, full, full_bias]: [T; 7]) -> Self {
        Self { embedding, input, recurrent, input_bias, recurrent_bias, full, full_bias }
    }
}

/// Memory of a forward pass.
pub(in crate::model) struct Forward<'a> {
    pub(super) rows: Units,
    pub(super) table: &'a mut [f32],
    /// The bias shared by all rows of the table.
    pub(super) bias: &'a mut [f32],
    /// h before each time step and after the last, for training. Otherwise two alternating states.
    pub(super) states: &'a mut [f32],
    pub(super) logits: &'a mut [f32],
    /// The data of each time step for the backward pass, after which `gates` contains the slopes.
    pub(super) kept: Option<Kept<'a>>,
}

impl<'a> Forward<'a> {
    /// Returns the sections of a pass with this many states.
    pub(super) fn lens(model: &Gru, batch: usize, states: usize) -> [usize; 4] {
        let rows = model.rows(batch);
        let logits = batch * model.full.rows().stride;
        [model.alphabet * rows.gates, rows.gates, states * batch * rows.states, logits]
    }

    pub(super) fn kept_lens(model: &Gru, batch: usize) -> [usize; 2] {
        let rows = model.rows(batch);
        [model.len * batch * rows.gates, model.len * batch * rows.states]
    }

    /// Creates a pass that stores nothing.
    pub(super) fn for_evaluation(model: &Gru, batch: usize, mut memory: &'a mut [f32]) -> Self {
        let [table, bias, states, logits] = take_sections(&mut memory, Self::lens(model, batch, 2));
        Self { rows: model.rows(batch), table, bias, states, logits, kept: None }
    }

    /// Creates a pass that supports a backward pass.
    pub(super) fn for_training(model: &Gru, batch: usize, memory: &mut &'a mut [f32]) -> Self {
        let [table, bias, states, logits] = take_sections(memory, Self::lens(model, batch, model.len + 1));
        let [gates, inner] = take_sections(memory, Self::kept_lens(model, batch));
        Self { rows: model.rows(batch), table, bias, states, logits, kept: Some(Kept { gates, inner }) }
    }
}

impl Kept<'_> {
    /// Returns the part of time step t.
    pub(super) fn at(&mut self, t: usize, rows: Units) -> Kept<'_> {
        let (gates, inner) = (rows.batch * rows.gates, rows.batch * rows.states);
        Kept { gates: &mut self.gates[t * gates..][..gates], inner: &mut self.inner[t * inner..][..inner] }
    }
}

/// Returns the states before and after time step t, of `len` floats each, if they alternate.
pub(super) fn around(states: &mut [f32], len: usize, t: usize) -> (&[f32], &mut [f32]) {
    let slots = states.len() / len;
    let (before, after) = (t % slots, (t + 1) % slots);
    let (low, high) = states.split_at_mut(before.max(after) * len);
    if before < after {
        (&low[before * len..][..len], &mut high[..len])
    } else {
        (&high[..len], &mut low[after * len..][..len])
    }
}

/// Memory of a backward pass.
pub(in crate::model) struct Backward<'a> {
    pub(super) recurrent_transposed: &'a mut [f32],
    pub(super) full_transposed: &'a mut [f32],
    /// dh.
    pub(super) slope: &'a mut [f32],
    /// The gradient of the table.
    pub(super) table: &'a mut [f32],
    /// The gradient of b_hn.
    pub(super) bias: &'a mut [f32],
    /// Memory for the gradient of a bias.
    pub(super) total: &'a mut [f32],
    pub(super) input_transposed: &'a mut [f32],
    pub(super) embedding: &'a mut [f32],
}

impl<'a> Backward<'a> {
    pub(super) fn lens(model: &Gru, batch: usize) -> [usize; 8] {
        let rows = model.rows(batch);
        [
            panels_len(rows.gates, rows.states),
            model.full.transposed_len(),
            batch * rows.states,
            model.alphabet * rows.gates,
            rows.units,
            rows.gates,
            panels_len(rows.gates, padded(model.inputs())),
            model.embedding_len(),
        ]
    }

    pub(super) fn take(model: &Gru, batch: usize, memory: &mut &'a mut [f32]) -> Self {
        let [recurrent_transposed, full_transposed, slope, table, bias, total, input_transposed, embedding] =
            take_sections(memory, Self::lens(model, batch));
        Self { recurrent_transposed, full_transposed, slope, table, bias, total, input_transposed, embedding }
    }
}
