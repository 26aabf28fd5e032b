//! The perceptron with one hidden layer (`kernels/perceptron.cu`).

use deltafl::data::InputKind;

use super::KernelSetup;
use super::linear::dim;
use super::per_block::PerBlockModel;
use crate::GpuError;
use crate::compile::KernelSource;

/// The largest batch. Loops over its examples are unrolled, so larger ones compile for minutes.
const MOST_BATCH: usize = 128;

pub(super) const KERNELS: PerBlockModel = PerBlockModel {
    threads: 256,
    scored: 8,
    kernel: |setup, batch, name| setup.kernel(&checked_source(setup, batch)?, name),
};

pub(super) fn sources() -> Vec<KernelSource> {
    vec![source(InputKind::Bytes { dim: 784 }, 100, 62, 10), source(InputKind::Dense { dim: 3 }, 7, 2, 32)]
}

fn checked_source(setup: &KernelSetup<'_>, batch: usize) -> Result<KernelSource, GpuError> {
    setup.check_batch(batch, MOST_BATCH)?;
    Ok(source(setup.federation.kind(), setup.size("hidden")?, setup.federation.classes(), batch))
}

fn source(kind: InputKind, hidden: usize, classes: usize, batch: usize) -> KernelSource {
    let sizes = vec![
        ("INPUTS", dim(kind)),
        ("HIDDEN", hidden),
        ("CLASSES", classes),
        ("BATCH", batch),
        ("BYTES", usize::from(matches!(kind, InputKind::Bytes { .. }))),
    ];
    KernelSource { name: "perceptron.cu", text: include_str!("../kernels/perceptron.cu").into(), sizes }
}
