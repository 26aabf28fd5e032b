//! `logistic`: the federation known as synthetic(α, β) since the FedProx and LEAF papers.
//!
//! Each device k has a separate softmax model and a separate distribution of inputs:
//!
//! ```text
//! u_k ~ N(0, α)    W_k ~ N(u_k, 1) entrywise, 10 × 60    b_k ~ N(u_k, 1)
//! B_k ~ N(0, β)    v_k ~ N(B_k, 1) entrywise             x ~ N(v_k, Σ),  Σ_jj = j^−1.2
//! y = argmax softmax(W_k x + b_k)
//! ```
//!
//! α controls how much the models of the devices differ, and β how much their inputs differ. Both
//! are variances. The number of examples is 50 plus a log-normal variable with σ = 2, as published,
//! limited to `examples.max`.

use std::num::NonZeroU32;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::{ExamplesPerDevice, Fraction, Variance, assign_splits};
use crate::data::{DeviceExamples, Federation, FederationBuilder, InputKind};
use crate::stream::{Purpose, Stream};

const FEATURES: usize = 60;
const CLASSES: usize = 10;

/// The synthetic(α, β) federation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SyntheticLogistic {
    /// Number of devices.
    pub devices: NonZeroU32,
    /// The seed.
    pub seed: u64,
    /// Fraction of the devices that train; the others test.
    pub train: Fraction,
    /// Variance of the models' means u_k.
    pub alpha: Variance,
    /// Variance of the inputs' means B_k.
    pub beta: Variance,
    /// Examples per device.
    pub examples: ExamplesPerDevice,
}

impl Default for SyntheticLogistic {
    fn default() -> Self {
        Self {
            devices: const { NonZeroU32::new(100).unwrap() },
            seed: 1,
            train: Fraction::HALF,
            alpha: const { Variance::new(1.0).unwrap() },
            beta: const { Variance::new(1.0).unwrap() },
            examples: const { ExamplesPerDevice::new(50, 105, 5000).unwrap() },
        }
    }
}

impl SyntheticLogistic {
    /// Generates the federation, the same on any number of threads.
    pub fn build(&self) -> Federation {
        let devices = self.devices.get();
        let splits = assign_splits(self.seed, &vec![(); devices as usize], self.train);
        let examples: Vec<_> = (0..devices).into_par_iter().map(|device| self.device(device)).collect();
        let mut builder = FederationBuilder::new("logistic", InputKind::Dense { dim: FEATURES }, CLASSES);
        for (device, ((features, labels), split)) in examples.iter().zip(splits).enumerate() {
            builder
                .push(&format!("d{device:05}"), split, DeviceExamples::Dense(features), labels)
                .expect("a device has finite examples and an identity of its own");
        }
        builder.build()
    }

    /// Draws the features and labels of a device.
    fn device(&self, device: u32) -> (Vec<f32>, Vec<u32>) {
        let mut stream = Stream::new(self.seed, Purpose::Synthesis, 0, u64::from(device));
        let count = self.examples.draw(2.0, &mut stream) as usize;
        let mut around =
            |mean: f64, n: usize| -> Vec<f64> { (0..n).map(|_| mean + stream.normal()).collect() };
        let u = self.alpha.deviation() * around(0.0, 1)[0];
        let b = self.beta.deviation() * around(0.0, 1)[0];
        let (matrix, bias, centre) = (around(u, CLASSES * FEATURES), around(u, CLASSES), around(b, FEATURES));

        let deviations: Vec<f64> = (1..=FEATURES).map(|j| (j as f64).powf(-1.2).sqrt()).collect();
        let mut features = Vec::with_capacity(count * FEATURES);
        let mut labels = Vec::with_capacity(count);
        let mut x = vec![0.0; FEATURES];
        for _ in 0..count {
            for ((x, v), deviation) in x.iter_mut().zip(&centre).zip(&deviations) {
                *x = v + deviation * stream.normal();
            }
            labels.push(label(&matrix, &bias, &x));
            features.extend(x.iter().map(|&x| x as f32));
        }
        (features, labels)
    }
}

/// Returns argmax(Wx + b), which equals that of its softmax.
fn label(matrix: &[f64], bias: &[f64], x: &[f64]) -> u32 {
    let logit = |row: &[f64], bias: &f64| bias + row.iter().zip(x).map(|(w, x)| w * x).sum::<f64>();
    let logits = matrix.chunks_exact(FEATURES).zip(bias).map(|(row, bias)| logit(row, bias));
    let best = logits.enumerate().max_by(|(_, a), (_, b)| a.total_cmp(b));
    best.map_or(0, |(class, _)| class as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::BatchBuffer;

    /// Returns the mean of each feature on each device.
    fn centres(spec: &SyntheticLogistic) -> Vec<Vec<f64>> {
        let federation = spec.build();
        let mut buffer = BatchBuffer::default();
        let mut centre = |device| {
            let examples = federation.examples(device);
            let rows = buffer.gather(&examples, 0..examples.len()).inputs.dense();
            let mean = |j| rows.iter().skip(j).step_by(FEATURES).map(|&x| f64::from(x)).sum::<f64>();
            (0..FEATURES).map(|j| mean(j) / examples.len() as f64).collect()
        };
        federation.devices().map(&mut centre).collect()
    }

    #[test]
    fn beta_is_the_variance_of_the_devices_centres() {
        let variance = |beta: f64| {
            let spec =
                SyntheticLogistic { beta: Variance::new(beta).unwrap(), ..SyntheticLogistic::default() };
            let means: Vec<f64> =
                centres(&spec).iter().map(|centre| centre.iter().sum::<f64>() / FEATURES as f64).collect();
            means.iter().map(|mean| mean * mean).sum::<f64>() / means.len() as f64
        };
        assert!(variance(0.0) < 0.1, "{}", variance(0.0));
        assert!((2.5..6.0).contains(&variance(4.0)), "{}", variance(4.0));
    }

    #[test]
    fn devices_disagree_about_the_classes() {
        let federation = SyntheticLogistic::default().build();
        let mut seen = [false; CLASSES];
        for device in federation.devices() {
            let examples = federation.examples(device);
            (0..examples.len()).for_each(|i| seen[examples.label(i) as usize] = true);
        }
        assert_eq!(seen, [true; CLASSES]);
    }

    #[test]
    fn the_label_is_the_largest_logit() {
        let mut matrix = vec![0.0; CLASSES * FEATURES];
        matrix[3 * FEATURES] = 2.0;
        let x: Vec<f64> = (0..FEATURES).map(|j| if j == 0 { 1.0 } else { 0.0 }).collect();
        assert_eq!(label(&matrix, &[0.0; CLASSES], &x), 3);
    }
}
