//! Prefetching of memory.

/// Bytes per cache line.
const LINE: usize = 64;

/// The prefetched length of a slice. Beyond it, the hardware prefetcher follows the reads.
const REACH: usize = 4096;

/// Prefetches the beginning of a slice. It never waits or faults, and loads no pages from disk.
pub(crate) fn prefetch<T>(values: &[T]) {
    let bytes = size_of_val(values).min(REACH);
    for offset in (0..bytes).step_by(LINE) {
        prefetch_line(values.as_ptr().wrapping_byte_add(offset).cast());
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
#[allow(unsafe_code)]
fn prefetch_line(address: *const i8) {
    use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
    // SAFETY: a prefetch is a hint and valid for any address.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(address) };
}

#[cfg(not(target_arch = "x86_64"))]
fn prefetch_line(_: *const i8) {}
