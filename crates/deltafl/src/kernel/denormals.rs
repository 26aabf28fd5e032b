//! Flushing of denormal numbers to zero while a thread trains.
//!
//! A product with operands near 1e-41 takes about a hundred times as long as an ordinary one, and
//! parameters that decay towards zero reach that range.

#![allow(unsafe_code)]

use std::marker::PhantomData;

/// A guard during whose lifetime this thread treats denormal numbers as zero. Its drop restores the
/// previous mode.
#[derive(Debug)]
#[must_use = "denormals are flushed only while the guard lives"]
pub struct FlushDenormals {
    before: u32,
    /// The register belongs to the thread, so the guard must not be sent to another thread.
    _thread: PhantomData<*const ()>,
}

/// Flushes denormal numbers to zero on this thread (FTZ and DAZ of x86-64, nothing elsewhere).
pub fn flush_denormals() -> FlushDenormals {
    let before = control::read();
    control::write(before | control::FLUSH_TO_ZERO | control::DENORMALS_ARE_ZERO);
    FlushDenormals { before, _thread: PhantomData }
}

impl Drop for FlushDenormals {
    fn drop(&mut self) {
        control::write(self.before);
    }
}

/// The MXCSR register. Its intrinsics are deprecated in favour of assembly.
#[cfg(target_arch = "x86_64")]
mod control {
    use std::arch::asm;

    pub(super) const FLUSH_TO_ZERO: u32 = 1 << 15;
    pub(super) const DENORMALS_ARE_ZERO: u32 = 1 << 6;

    pub(super) fn read() -> u32 {
        let mut value = 0u32;
        // SAFETY: stores the 32-bit register to a valid address.
        unsafe { asm!("stmxcsr [{}]", in(reg) &mut value, options(nostack, preserves_flags)) };
        value
    }

    pub(super) fn write(value: u32) {
        // SAFETY: `value` is a previous value of the register with at most the two flushing bits
        // set. No exception is unmasked, and the rounding mode does not change.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &value, options(nostack, preserves_flags)) };
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod control {
    pub(super) const FLUSH_TO_ZERO: u32 = 0;
    pub(super) const DENORMALS_ARE_ZERO: u32 = 0;

    pub(super) fn read() -> u32 {
        0
    }

    pub(super) fn write(_value: u32) {}
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use std::hint::black_box;

    use super::*;

    fn halved_denormal() -> f32 {
        black_box(1e-41f32) * black_box(0.5)
    }

    #[test]
    fn denormals_are_flushed_while_the_guard_lives() {
        assert!(halved_denormal() > 0.0);
        let guard = flush_denormals();
        assert_eq!(halved_denormal().to_bits(), 0);
        drop(guard);
        assert!(halved_denormal() > 0.0);
    }
}
