//! Mini-batches: examples gathered into contiguous memory and normalised.

use super::{DeviceInputs, DeviceTargets, Examples};
use crate::kernel::Aligned;
use crate::model::{Batch, Inputs};
use crate::task::Targets;

/// Memory for one mini-batch, reused from step to step.
#[derive(Clone, Debug, Default)]
pub struct BatchBuffer {
    dense: Aligned,
    tokens: Vec<u32>,
    labels: Vec<u32>,
    values: Vec<f32>,
    is_valued: bool,
    is_dense: bool,
}

impl BatchBuffer {
    /// Fills the buffer with the examples of these indices and returns it as a batch.
    pub fn gather<'b>(
        &'b mut self,
        examples: &Examples<'_>,
        indices: impl ExactSizeIterator<Item = usize> + Clone,
    ) -> Batch<'b> {
        self.is_valued = matches!(examples.targets, DeviceTargets::Values(_));
        match examples.targets {
            DeviceTargets::Values(values) => {
                self.values.clear();
                self.values.extend(indices.clone().map(|i| values[i]));
            }
            // As in `label`, but the kind of targets is matched once per batch, which matters for
            // small models.
            DeviceTargets::Few(labels) => {
                let highest = examples.classes.saturating_sub(1) as u32;
                self.labels.clear();
                self.labels.extend(indices.clone().map(|i| u32::from(labels[i]).min(highest)));
            }
            DeviceTargets::Many(_) | DeviceTargets::InText => {
                self.labels.clear();
                self.labels.extend(indices.clone().map(|i| examples.label(i)));
            }
        }
        match examples.inputs {
            DeviceInputs::Bytes { values, dim } => {
                let rows = self.rows(indices.len(), dim).chunks_exact_mut(dim);
                for (i, out) in indices.zip(rows) {
                    let row = &values[i * dim..(i + 1) * dim];
                    match examples.affine {
                        Some(affine) => affine.apply_bytes(row, out),
                        None => unit_interval(row, out),
                    }
                }
            }
            DeviceInputs::Dense { values, dim } => {
                let out = self.rows(indices.len(), dim);
                match examples.affine {
                    Some(affine) => affine.apply(values, indices, out),
                    None => {
                        for (i, out) in indices.zip(out.chunks_exact_mut(dim)) {
                            out.copy_from_slice(&values[i * dim..(i + 1) * dim]);
                        }
                    }
                }
            }
            DeviceInputs::Tokens { ids, len, highest } => {
                self.tokens.clear();
                self.is_dense = false;
                for i in indices {
                    append_ids(&mut self.tokens, &ids[i * len..(i + 1) * len], highest);
                }
            }
            DeviceInputs::Windows { text, len, highest } => {
                self.tokens.clear();
                self.is_dense = false;
                for i in indices {
                    append_symbols(&mut self.tokens, &text[i..i + len], highest);
                }
            }
        }
        self.batch()
    }

    /// Returns memory for this many rows of dense features.
    fn rows(&mut self, count: usize, dim: usize) -> &mut [f32] {
        self.is_dense = true;
        self.dense.resize(count * dim);
        &mut self.dense
    }

    fn batch(&self) -> Batch<'_> {
        let inputs = if self.is_dense { Inputs::Dense(&self.dense) } else { Inputs::Tokens(&self.tokens) };
        let targets =
            if self.is_valued { Targets::Values(&self.values) } else { Targets::Classes(&self.labels) };
        Batch { inputs, targets }
    }
}

// Per-feature work is in separate non-generic functions, so that it is compiled with optimisation.
// `gather` is generic, and a crate that instantiates it may be built without optimisation.

/// Converts grey levels to features from 0 to 1.
#[inline(never)]
fn unit_interval(row: &[u8], out: &mut [f32]) {
    out.iter_mut().zip(row).for_each(|(o, &v)| *o = f32::from(v) * (1.0 / 255.0));
}

#[inline(never)]
fn append_ids(tokens: &mut Vec<u32>, ids: &[u32], highest: u32) {
    tokens.extend(ids.iter().map(|&id| id.min(highest)));
}

#[inline(never)]
fn append_symbols(tokens: &mut Vec<u32>, text: &[u8], highest: u8) {
    tokens.extend(text.iter().map(|&symbol| u32::from(symbol.min(highest))));
}
