//! Asking for memory before it is needed.

/// Bytes per cache line.
const LINE: usize = 64;

/// How much of a slice is asked for; beyond it, the processor has seen where the reads go.
const REACH: usize = 4096;

/// Asks for the beginning of a slice to be brought near. It never waits and never faults: a page that is not in
/// memory stays where it is.
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
    // SAFETY: a prefetch is a hint, for any address whatever.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(address) };
}

#[cfg(not(target_arch = "x86_64"))]
fn prefetch_line(_: *const i8) {}
