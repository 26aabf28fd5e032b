//! The perceptron with one hidden layer (`kernels/perceptron.cu`).

use deltafl::data::InputKind;

use super::Setup;
use super::linear::dim;
use super::per_block::PerBlockModel;
use crate::GpuError;
use crate::compile::Source;

pub(super) const KERNELS: PerBlockModel = PerBlockModel {
    threads: 256,
    scored: 8,
    kernel: |setup, batch, name| setup.kernel(&checked_source(setup, batch)?, name),
};

pub(super) fn sources() -> Vec<Source> {
    vec![source(InputKind::Bytes { dim: 784 }, 100, 62, 10), source(InputKind::Dense { dim: 3 }, 7, 2, 32)]
}

fn checked_source(setup: &Setup<'_>, batch: usize) -> Result<Source, GpuError> {
    Ok(source(setup.federation.kind(), setup.size("hidden")?, setup.federation.classes(), batch))
}

fn source(kind: InputKind, hidden: usize, classes: usize, batch: usize) -> Source {
    let sizes = vec![
        ("INPUTS", dim(kind)),
        ("HIDDEN", hidden),
        ("CLASSES", classes),
        ("BATCH", batch),
        ("BYTES", usize::from(matches!(kind, InputKind::Bytes { .. }))),
    ];
    Source { name: "perceptron.cu", text: include_str!("../kernels/perceptron.cu"), sizes }
}
