//! Normalisation of dense features by constants of the train devices.
//!
//! The constants are computed from the train devices and applied to all devices when a batch is
//! gathered. The stored examples do not change.

use serde::{Deserialize, Serialize};

use super::{DeviceInputs, Federation, InputKind, Split};
use crate::kernel::{Granted, affine};

/// The normalisation of dense features.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Normalise {
    /// Features as stored.
    #[default]
    None,
    /// x' = (x − mean)/mean, as in the authors' released code.
    MeanRatio,
    /// x' = (x − mean)/standard deviation.
    Standard,
}

/// x'_j = scale_j · x_j + shift_j.
#[derive(Clone, Debug, PartialEq)]
pub struct Affine {
    pub(super) scale: Vec<f32>,
    pub(super) shift: Vec<f32>,
    kernel: Granted,
}

impl Affine {
    /// Applies it to rows of features. `out` has a row per index.
    pub(crate) fn apply(&self, values: &[f32], mut indices: impl Iterator<Item = usize>, out: &mut [f32]) {
        let dim = self.scale.len();
        // As many rows at a time as fit in the L1 cache.
        let mut rows = [0; 16];
        for out in out.chunks_mut(rows.len() * dim) {
            let rows = &mut rows[..out.len() / dim];
            rows.iter_mut().zip(&mut indices).for_each(|(row, index)| *row = index);
            affine::floats(self.kernel, values, rows, &self.scale, &self.shift, out);
        }
    }

    /// Applies it to a row of grey levels. The scale includes 1/255.
    pub(crate) fn apply_bytes(&self, row: &[u8], out: &mut [f32]) {
        affine::bytes(self.kernel, row, &self.scale, &self.shift, out);
    }
}

/// Sums over the train devices, per feature.
struct Moments {
    sum: Vec<f64>,
    square: Vec<f64>,
    count: f64,
}

impl Federation {
    /// Returns the same federation with dense features normalised by the moments of the train
    /// devices. A federation of words or symbols is returned unchanged.
    pub fn normalised(mut self, normalise: Normalise) -> Self {
        self.affine = None;
        let unit = match self.kind {
            InputKind::Bytes { .. } => 1.0 / 255.0,
            InputKind::Dense { .. } => 1.0,
            _ => return self,
        };
        if normalise != Normalise::None {
            let moments = self.moments();
            self.affine = Some(moments.affine(normalise, unit));
        }
        self
    }

    /// Returns the same federation with dense features normalised by the constants of another
    /// federation of the same kind, for example those of a trained model. A federation of a
    /// different kind is returned unchanged.
    pub fn normalised_as(mut self, other: &Self) -> Self {
        self.affine = if self.kind == other.kind { other.affine.clone() } else { None };
        self
    }

    /// Returns the same federation with dense features normalised by constants, x'_j = scale_j ·
    /// x_j + shift_j. For grey levels the scale includes 1/255. Returns `None` if there is not one
    /// pair per feature.
    pub fn normalised_by(mut self, scale: Vec<f32>, shift: Vec<f32>) -> Option<Self> {
        let (InputKind::Bytes { dim } | InputKind::Dense { dim }) = self.kind else { return None };
        let fits = scale.len() == dim && shift.len() == dim;
        self.affine = fits.then(|| Affine { scale, shift, kernel: Granted::best() });
        fits.then_some(self)
    }

    fn moments(&self) -> Moments {
        let (InputKind::Bytes { dim } | InputKind::Dense { dim }) = self.kind else {
            return Moments::new(0);
        };
        let mut moments = Moments::new(dim);
        for k in self.split(Split::Train) {
            match self.examples(k).inputs {
                DeviceInputs::Bytes { values, .. } => {
                    values.chunks_exact(dim).for_each(|row| moments.add(row.iter().map(|&x| f64::from(x))));
                }
                DeviceInputs::Dense { values, .. } => {
                    values.chunks_exact(dim).for_each(|row| moments.add(row.iter().map(|&x| f64::from(x))));
                }
                DeviceInputs::Tokens { .. } | DeviceInputs::Windows { .. } => {}
            }
        }
        moments
    }
}

impl Moments {
    fn new(dim: usize) -> Self {
        Self { sum: vec![0.0; dim], square: vec![0.0; dim], count: 0.0 }
    }

    fn add(&mut self, row: impl Iterator<Item = f64>) {
        self.count += 1.0;
        for ((sum, square), x) in self.sum.iter_mut().zip(&mut self.square).zip(row) {
            *sum += x;
            *square += x * x;
        }
    }

    /// `unit` converts a stored value to the feature: 1/255 for grey levels.
    fn affine(&self, normalise: Normalise, unit: f64) -> Affine {
        let count = self.count.max(1.0);
        let (mut scale, mut shift) = (Vec::new(), Vec::new());
        for (sum, square) in self.sum.iter().zip(&self.square) {
            let mean = sum / count * unit;
            let variance = (square / count * unit * unit - mean * mean).max(0.0);
            let divisor = match normalise {
                Normalise::None => 1.0,
                Normalise::MeanRatio => mean,
                Normalise::Standard => variance.sqrt(),
            };
            // A constant feature has no information: centre it and do not scale it (border pixels
            // of EMNIST).
            let divisor = if divisor.abs() < 1e-6 { 1.0 } else { divisor };
            scale.push((unit / divisor) as f32);
            shift.push((-mean / divisor) as f32);
        }
        Affine { scale, shift, kernel: Granted::best() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{BatchBuffer, DeviceExamples, FederationBuilder, FederationIndex};

    fn two_devices() -> Federation {
        let mut builder = FederationBuilder::new("t", InputKind::Dense { dim: 2 }, 2);
        builder.push("a", Split::Train, DeviceExamples::Dense(&[1.0, 5.0, 3.0, 5.0]), &[0, 1]).unwrap();
        builder.push("b", Split::Test, DeviceExamples::Dense(&[100.0, 5.0]), &[1]).unwrap();
        builder.build()
    }

    fn features(federation: &Federation, device: FederationIndex) -> Vec<f32> {
        let examples = federation.examples(device);
        let mut buffer = BatchBuffer::default();
        buffer.gather(&examples, 0..examples.len()).inputs.dense().to_vec()
    }

    #[test]
    fn mean_ratio_uses_the_train_devices_only() {
        let federation = two_devices().normalised(Normalise::MeanRatio);
        assert_eq!(features(&federation, FederationIndex(0)), [-0.5, 0.0, 0.5, 0.0]);
        assert_eq!(features(&federation, FederationIndex(1)), [49.0, 0.0]);
    }

    #[test]
    fn a_constant_feature_is_not_divided_by_zero() {
        let federation = two_devices().normalised(Normalise::Standard);
        assert_eq!(features(&federation, FederationIndex(0)), [-1.0, 0.0, 1.0, 0.0]);
    }
}
