//! Softmax regression: on grey levels with tensor cores (`kernels/linear_grey.cu`), otherwise in
//! fp32 (`kernels/linear.cu`).

use deltafl::data::{Federation, InputKind};

use super::KernelSetup;
use super::per_block::PerBlockModel;
use crate::GpuError;
use crate::compile::KernelSource;
use crate::device::Kernel;

const THREADS: u32 = 512;
/// Parameters that a thread keeps in registers.
const PER_THREAD: usize = 104;
/// Concurrent examples of a forward pass. On tensor cores also the largest batch of an update.
const SCORED: usize = 16;
/// The largest batch without tensor cores. Loops over its examples are unrolled, so larger ones take
/// long to compile.
const MOST_BATCH: usize = 512;
/// The largest |x| that the tensor cores support.
const LARGEST_FEATURE: f32 = 60.0;

pub(super) const KERNELS: PerBlockModel = PerBlockModel { threads: THREADS, scored: SCORED, kernel };

/// Returns a kernel of one of the sources. The choice depends only on the federation, the batch and
/// the kind of GPU.
fn kernel(setup: &KernelSetup<'_>, batch: usize, name: &str) -> Result<Kernel, GpuError> {
    let classes = setup.federation.classes();
    if batch <= SCORED && classes <= 128 && largest_grey(setup.federation) < LARGEST_FEATURE {
        match setup.kernel(&grey_source(dim(setup.federation.kind()), classes, batch), name) {
            // Too large for the shared memory.
            Err(GpuError::Unsupported { .. }) => {}
            kernel => return kernel,
        }
    }
    setup.kernel(&checked_source(setup, batch)?, name)
}

/// Returns the largest magnitude of a grey level after normalisation, or infinity for other
/// features.
fn largest_grey(federation: &Federation) -> f32 {
    match (federation.kind(), federation.affine()) {
        (InputKind::Bytes { .. }, None) => 1.0,
        (InputKind::Bytes { .. }, Some(affine)) => {
            let ends = |(&scale, &shift): (&f32, &f32)| shift.abs().max((255.0 * scale + shift).abs());
            affine.scale().iter().zip(affine.shift()).map(ends).fold(0.0, f32::max)
        }
        _ => f32::INFINITY,
    }
}

pub(super) fn sources() -> Vec<KernelSource> {
    let images = InputKind::Bytes { dim: 784 };
    [
        (images, 62, 10),
        (images, 10, 33),
        (InputKind::Dense { dim: 61 }, 5, 16),
        (InputKind::Bytes { dim: 33 }, 100, 1),
    ]
    .into_iter()
    .map(|(kind, classes, batch)| source(kind, classes, batch))
    .chain([grey_source(784, 62, 10), grey_source(77, 5, 16), grey_source(33, 100, 7)])
    .collect()
}

fn grey_source(inputs: usize, classes: usize, batch: usize) -> KernelSource {
    let sizes = vec![("INPUTS", inputs), ("CLASSES", classes), ("BATCH", batch)];
    KernelSource { name: "linear_grey.cu", text: include_str!("../kernels/linear_grey.cu").into(), sizes }
}

fn checked_source(setup: &KernelSetup<'_>, batch: usize) -> Result<KernelSource, GpuError> {
    setup.check_batch(batch, MOST_BATCH)?;
    let (kind, classes) = (setup.federation.kind(), setup.federation.classes());
    if classes > 128 || parameters_per_thread(dim(kind), classes) > PER_THREAD {
        let shape =
            format!("of {} inputs and {classes} classes: W does not fit into the registers", dim(kind));
        return Err(setup.unsupported(shape));
    }
    Ok(source(kind, classes, batch))
}

fn source(kind: InputKind, classes: usize, batch: usize) -> KernelSource {
    let sizes = vec![
        ("INPUTS", dim(kind)),
        ("CLASSES", classes),
        ("BATCH", batch.next_multiple_of(2)),
        ("BYTES", usize::from(matches!(kind, InputKind::Bytes { .. }))),
    ];
    KernelSource { name: "linear.cu", text: include_str!("../kernels/linear.cu").into(), sizes }
}

/// Returns the features per example. The model has already rejected federations of words or text.
pub(super) fn dim(kind: InputKind) -> usize {
    match kind {
        InputKind::Bytes { dim } | InputKind::Dense { dim } => dim,
        InputKind::Tokens { .. } | InputKind::Windows { .. } => 0,
    }
}

/// Returns the entries of W per thread of the kernel.
fn parameters_per_thread(inputs: usize, classes: usize) -> usize {
    let quads = classes.div_ceil(4).next_power_of_two();
    4 * inputs.div_ceil(THREADS as usize / quads)
}

#[cfg(test)]
mod tests {
    use super::*;
    use deltafl::data::{DeviceExamples, FederationBuilder, Normalise, Split};

    #[test]
    fn large_normalised_grey_levels_do_not_use_tensor_cores() {
        let federation = |kind, examples: DeviceExamples<'_>| {
            let mut builder = FederationBuilder::new("t", kind, 2);
            builder.push("a", Split::Train, examples, &[0, 1]).unwrap();
            builder.build()
        };
        let grey = |bytes: &[u8]| federation(InputKind::Bytes { dim: 2 }, DeviceExamples::Bytes(bytes));
        assert!((largest_grey(&grey(&[1, 2, 3, 4])) - 1.0).abs() < 1e-6);
        // Means 1/255 and 128/255: the first feature can deviate by 254 times its mean.
        let unlike = grey(&[0, 1, 2, 255]).normalised(Normalise::MeanRatio);
        assert!((largest_grey(&unlike) - 254.0).abs() < 0.1);
        let alike = grey(&[200, 100, 220, 255]).normalised(Normalise::MeanRatio);
        assert!(largest_grey(&alike) < 2.0);
        let dense = federation(InputKind::Dense { dim: 2 }, DeviceExamples::Dense(&[0.0; 4]));
        assert!(largest_grey(&dense).is_infinite());
    }

    #[test]
    fn the_parameters_of_the_paper_fit_into_registers() {
        assert_eq!(parameters_per_thread(784, 62), 100);
        assert_eq!(parameters_per_thread(60, 10), 4);
        assert!(parameters_per_thread(3072, 100) > PER_THREAD);
    }
}
