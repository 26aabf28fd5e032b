//! Binary logistic regression (`kernels/logistic.cu`).

use deltafl::data::InputKind;

use super::KernelSetup;
use super::linear::dim;
use super::per_block::PerBlockModel;
use crate::GpuError;
use crate::compile::KernelSource;

/// Features that a warp keeps in registers.
const MOST_INPUTS: usize = 4096;
/// The largest batch, whose residuals are in static shared memory.
const MOST_BATCH: usize = 4096;

pub(super) const KERNELS: PerBlockModel = PerBlockModel {
    threads: 32,
    scored: 1,
    kernel: |setup, batch, name| setup.kernel(&checked_source(setup, batch)?, name),
};

pub(super) fn sources() -> Vec<KernelSource> {
    vec![source(InputKind::Dense { dim: 50 }, 10), source(InputKind::Bytes { dim: 785 }, 16)]
}

fn checked_source(setup: &KernelSetup<'_>, batch: usize) -> Result<KernelSource, GpuError> {
    setup.check_batch(batch, MOST_BATCH)?;
    let kind = setup.federation.kind();
    if dim(kind) > MOST_INPUTS {
        let shape = format!("of {} inputs: the kernels take at most {MOST_INPUTS}", dim(kind));
        return Err(setup.unsupported(shape));
    }
    Ok(source(kind, batch))
}

fn source(kind: InputKind, batch: usize) -> KernelSource {
    let sizes = vec![
        ("INPUTS", dim(kind)),
        ("BATCH", batch),
        ("BYTES", usize::from(matches!(kind, InputKind::Bytes { .. }))),
    ];
    KernelSource { name: "logistic.cu", text: include_str!("../kernels/logistic.cu").into(), sizes }
}
