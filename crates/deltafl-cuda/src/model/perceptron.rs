//! The perceptron with one hidden layer (`kernels/perceptron.cu`).

use deltafl::data::InputKind;
use deltafl::model::ModelSpec;

use super::linear::dim;
use super::per_block::PerBlock;
use super::{Scorer, Setup, Trainer};
use crate::GpuError;
use crate::compile::Source;

const THREADS: u32 = 256;
/// Examples in flight in a forward pass.
const SCORED: usize = 8;

pub(super) fn trainer(setup: &Setup<'_>, batch: usize) -> Result<Box<dyn Trainer>, GpuError> {
    let kernel = setup.kernel(&checked_source(setup, batch)?, "update")?;
    Ok(Box::new(PerBlock { kernel, threads: THREADS }))
}

pub(super) fn scorer(setup: &Setup<'_>) -> Result<Box<dyn Scorer>, GpuError> {
    let kernel = setup.kernel(&checked_source(setup, SCORED)?, "score")?;
    Ok(Box::new(PerBlock { kernel, threads: THREADS }))
}

pub(super) fn sources() -> Vec<Source> {
    vec![source(InputKind::Bytes { dim: 784 }, 100, 62, 10), source(InputKind::Dense { dim: 3 }, 7, 2, 32)]
}

fn checked_source(setup: &Setup<'_>, batch: usize) -> Result<Source, GpuError> {
    match setup.spec {
        ModelSpec::Perceptron { hidden } => {
            Ok(source(setup.federation.kind(), *hidden, setup.federation.classes(), batch))
        }
        _ => Err(setup.unsupported("of this kind")),
    }
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
