//! Operations on single entries: activations and dropout.

use super::operation::{InPlace, Pass};
use crate::kernel::elementwise;
use crate::model::layout::section;
use crate::stream::{Purpose, Stream};

/// max(0, x).
#[derive(Clone, Copy, Debug)]
pub(super) struct Relu;

impl InPlace for Relu {
    fn forward(&self, pass: &Pass<'_>, values: &mut [f32], _: &mut [f32]) {
        elementwise::relu(pass.kernel, values);
    }

    fn backward(&self, pass: &Pass<'_>, values: &[f32], slopes: &mut [f32], _: &[f32]) {
        elementwise::relu_backward(pass.kernel, values, slopes);
    }
}

/// The hyperbolic tangent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tanh;

impl InPlace for Tanh {
    fn forward(&self, pass: &Pass<'_>, values: &mut [f32], _: &mut [f32]) {
        elementwise::tanh(pass.kernel, values);
    }

    fn backward(&self, pass: &Pass<'_>, values: &[f32], slopes: &mut [f32], _: &[f32]) {
        elementwise::tanh_backward(pass.kernel, values, slopes);
    }
}

/// x Φ(x), for slots of this many floats per example.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gelu(pub(super) usize);

impl InPlace for Gelu {
    fn memory_len(&self, batch: usize) -> usize {
        section(batch * self.0)
    }

    fn forward(&self, pass: &Pass<'_>, values: &mut [f32], memory: &mut [f32]) {
        elementwise::gelu(pass.kernel, values, memory);
    }

    fn backward(&self, pass: &Pass<'_>, _: &[f32], slopes: &mut [f32], memory: &[f32]) {
        elementwise::multiply(pass.kernel, memory, slopes);
    }
}

/// Dropout of a slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dropout {
    /// Floats per example.
    pub(super) len: usize,
    pub(super) rate: f32,
    /// The number of this layer among the layers with dropout.
    pub(super) number: u64,
}

/// The parts into which probabilities are divided: 16 random bits decide about an entry.
const PARTS: f32 = 65_536.0;

impl InPlace for Dropout {
    fn memory_len(&self, batch: usize) -> usize {
        section(batch * self.len)
    }

    /// Writes the factor of each entry to memory: 0, or 1/(1 − rate).
    fn forward(&self, pass: &Pass<'_>, values: &mut [f32], memory: &mut [f32]) {
        let Some(key) = pass.key else { return };
        let zeros = (self.rate * PARTS).round().min(PARTS - 1.0);
        let (kept, threshold) = (PARTS / (PARTS - zeros), zeros as u16);
        let mut stream = Stream::new(key, Purpose::Dropout, self.number, 0);
        for factors in memory[..values.len()].chunks_mut(4) {
            let bits = stream.next_u64();
            for (i, factor) in factors.iter_mut().enumerate() {
                *factor = if ((bits >> (16 * i)) as u16) < threshold { 0.0 } else { kept };
            }
        }
        elementwise::multiply(pass.kernel, memory, values);
    }

    fn backward(&self, pass: &Pass<'_>, _: &[f32], slopes: &mut [f32], memory: &[f32]) {
        if pass.key.is_some() {
            elementwise::multiply(pass.kernel, memory, slopes);
        }
    }
}
