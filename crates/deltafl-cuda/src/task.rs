//! Tasks and items in the layout of the kernels (`kernels/common.cuh`, `kernels/sums.cu`,
//! `kernels/noise.cu`).

#![allow(unsafe_code)]

use cudarc::driver::{DeviceRepr, ValidAsZeroBits};

/// One local update.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub(crate) struct Task {
    /// The first entry in the order.
    pub(crate) order: u64,
    /// The index of the parameter vector at the start.
    pub(crate) params: u32,
    /// The number of entries per pass.
    pub(crate) draws: u32,
    pub(crate) passes: u32,
    pub(crate) batch: u32,
    /// γ.
    pub(crate) rate: f32,
    /// 1 − γ(λ + μ).
    pub(crate) keep: f32,
    /// The factor of the vector `anchor` in every step: γμ, or 1 if the vector is γ(μw_t − drift).
    pub(crate) pull: f32,
    /// The slot of w_k.
    pub(crate) slot: u32,
    /// The index of the vector that `pull` multiplies: that of the start, or of its own.
    pub(crate) anchor: u32,
    pub(crate) unused: u32,
}

impl Task {
    /// Returns the number of SGD steps.
    pub(crate) fn steps(&self) -> u64 {
        u64::from(self.draws.div_ceil(self.batch.max(1))) * u64::from(self.passes)
    }
}

/// Consecutive examples of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Item {
    pub(crate) first: u64,
    pub(crate) count: u32,
    pub(crate) unused: u32,
}

/// A completed local update and the sum that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub(crate) struct Trained {
    /// α·ω.
    pub(crate) weight: f64,
    /// min(1, C/‖w_k − w‖) if updates are clipped, which the GPU computes. Otherwise 1.
    pub(crate) factor: f64,
    pub(crate) params: u32,
    pub(crate) slot: u32,
    pub(crate) query: u32,
    pub(crate) unused: u32,
}

/// The share of one device in a noisy sum, in the layout of `kernels/noise.cu`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub(crate) struct NoisyJob {
    /// ω.
    pub(crate) weight: f64,
    /// C.
    pub(crate) clip: f64,
    /// K.
    pub(crate) units: f64,
    /// The largest sum of squares of the rounded entries.
    pub(crate) most_squares: f64,
    /// ‖w_k − w‖, which the GPU computes.
    pub(crate) norm: f64,
    /// The factor of w_k − w, which the GPU computes.
    pub(crate) scale: f64,
    /// ω in units of the footer.
    pub(crate) counted: u64,
    pub(crate) params: u32,
    pub(crate) slot: u32,
    pub(crate) sum: u32,
    /// The first word of the table, or `u32::MAX` without noise.
    pub(crate) table: u32,
    /// The first word of the signs.
    pub(crate) signs: u32,
    /// The accepted rounding, which the GPU computes.
    pub(crate) attempt: u32,
    /// The first words of the stream.
    pub(crate) keys: [u32; 16],
}

/// A sample that the host draws.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Undecided {
    pub(crate) job: u32,
    pub(crate) entry: u32,
    pub(crate) word: u32,
    /// The number of keys drawn from the stream before.
    pub(crate) keys: u32,
}

/// The addresses of a wave, in the layout of `kernels/general/wave.cuh`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Wave {
    pub(crate) tasks: u64,
    /// 0 if examples are contiguous.
    pub(crate) order: u64,
    pub(crate) inputs: u64,
    pub(crate) labels: u64,
    pub(crate) scale: u64,
    pub(crate) shift: u64,
    pub(crate) vectors: u64,
    pub(crate) starts: u64,
    pub(crate) weights: u64,
    pub(crate) arena: u64,
    pub(crate) now: u64,
    /// The number of the step, and that of the devices.
    pub(crate) step: u64,
    pub(crate) losses: u64,
    pub(crate) errors: u64,
}

/// The bytes of `Now` in `kernels/general/wave.cuh`.
pub(crate) const NOW_BYTES: usize = 32;

// SAFETY: numbers in C layout without padding. Zeros are valid.
unsafe impl DeviceRepr for Task {}
// SAFETY: as above.
unsafe impl ValidAsZeroBits for Task {}
// SAFETY: as above.
unsafe impl DeviceRepr for Wave {}
// SAFETY: as above.
unsafe impl DeviceRepr for Item {}
// SAFETY: as above.
unsafe impl ValidAsZeroBits for Item {}
// SAFETY: as above.
unsafe impl DeviceRepr for Trained {}
// SAFETY: as above.
unsafe impl ValidAsZeroBits for Trained {}
// SAFETY: as above.
unsafe impl DeviceRepr for NoisyJob {}
// SAFETY: as above.
unsafe impl ValidAsZeroBits for NoisyJob {}
// SAFETY: as above.
unsafe impl DeviceRepr for Undecided {}
// SAFETY: as above.
unsafe impl ValidAsZeroBits for Undecided {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layouts_match_the_kernels() {
        assert_eq!((size_of::<Task>(), size_of::<Item>(), size_of::<Trained>()), (48, 16, 32));
        assert_eq!((size_of::<NoisyJob>(), size_of::<Undecided>(), size_of::<Wave>()), (144, 16, 112));
    }

    #[test]
    fn steps_count_the_short_batch_of_each_pass() {
        let task = Task {
            order: 0,
            params: 0,
            draws: 179,
            passes: 2,
            batch: 16,
            rate: 0.1,
            keep: 1.0,
            pull: 0.0,
            slot: 0,
            anchor: 0,
            unused: 0,
        };
        assert_eq!(task.steps(), 24);
        assert_eq!(Task { draws: 160, passes: 1, ..task }.steps(), 10);
    }
}
