//! Softmax regression (`kernels/linear.cu`).

use deltafl::data::InputKind;

use super::per_block::PerBlock;
use super::{Scorer, Setup, Trainer};
use crate::GpuError;
use crate::compile::Source;

const THREADS: u32 = 512;
/// Parameters that a thread holds in registers.
const PER_THREAD: usize = 104;
/// Examples in flight in a forward pass.
const SCORED: usize = 16;

pub(super) fn trainer(setup: &Setup<'_>, batch: usize) -> Result<Box<dyn Trainer>, GpuError> {
    let kernel = setup.kernel(&checked_source(setup, batch)?, "update")?;
    Ok(Box::new(PerBlock { kernel, threads: THREADS }))
}

pub(super) fn scorer(setup: &Setup<'_>) -> Result<Box<dyn Scorer>, GpuError> {
    let kernel = setup.kernel(&checked_source(setup, SCORED)?, "score")?;
    Ok(Box::new(PerBlock { kernel, threads: THREADS }))
}

pub(super) fn sources() -> Vec<Source> {
    let images = InputKind::Bytes { dim: 784 };
    [
        (images, 62, 10),
        (images, 10, 33),
        (InputKind::Dense { dim: 61 }, 5, 16),
        (InputKind::Bytes { dim: 33 }, 100, 1),
    ]
    .into_iter()
    .map(|(kind, classes, batch)| source(kind, classes, batch))
    .collect()
}

fn checked_source(setup: &Setup<'_>, batch: usize) -> Result<Source, GpuError> {
    let (kind, classes) = (setup.federation.kind(), setup.federation.classes());
    if classes > 128 || parameters_per_thread(dim(kind), classes) > PER_THREAD {
        let shape =
            format!("of {} inputs and {classes} classes: W does not fit into the registers", dim(kind));
        return Err(setup.unsupported(shape));
    }
    Ok(source(kind, classes, batch))
}

fn source(kind: InputKind, classes: usize, batch: usize) -> Source {
    let sizes = vec![
        ("INPUTS", dim(kind)),
        ("CLASSES", classes),
        ("BATCH", batch.next_multiple_of(2)),
        ("BYTES", usize::from(matches!(kind, InputKind::Bytes { .. }))),
    ];
    Source { name: "linear.cu", text: include_str!("../kernels/linear.cu"), sizes }
}

/// Features of an example; a federation of words or text has none and was refused with the model.
pub(super) fn dim(kind: InputKind) -> usize {
    match kind {
        InputKind::Bytes { dim } | InputKind::Dense { dim } => dim,
        InputKind::Tokens { .. } | InputKind::Windows { .. } => 0,
    }
}

/// Entries of W that a thread of the kernel holds.
fn parameters_per_thread(inputs: usize, classes: usize) -> usize {
    let quads = classes.div_ceil(4).next_power_of_two();
    4 * inputs.div_ceil(THREADS as usize / quads)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parameters_of_the_paper_fit_into_registers() {
        assert_eq!(parameters_per_thread(784, 62), 100);
        assert_eq!(parameters_per_thread(60, 10), 4);
        assert!(parameters_per_thread(3072, 100) > PER_THREAD);
    }
}
