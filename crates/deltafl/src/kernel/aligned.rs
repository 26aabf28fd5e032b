//! Memory that is aligned to a cache line.

#![allow(unsafe_code)]

use std::ops::{Deref, DerefMut};

/// Floats per cache line.
const FLOATS: usize = 16;

/// One cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct CacheLine([f32; FLOATS]);

impl CacheLine {
    const ZERO: Self = Self([0.0; FLOATS]);
}

/// A vector of floats that is aligned to 64 bytes, so that no 64-byte load crosses a cache line. It
/// is used for working parameters, scratch and batches.
#[derive(Clone, Debug, Default)]
pub struct Aligned {
    lines: Vec<CacheLine>,
    len: usize,
}

impl Aligned {
    /// Creates a vector of `len` zeros.
    pub fn zeroed(len: usize) -> Self {
        Self { lines: vec![CacheLine::ZERO; len.div_ceil(FLOATS)], len }
    }

    /// Resizes the vector to `len`. New entries have unspecified values.
    pub fn resize(&mut self, len: usize) {
        let lines = len.div_ceil(FLOATS);
        if lines > self.lines.len() {
            self.lines.resize(lines, CacheLine::ZERO);
        }
        self.len = len;
    }
}

impl Deref for Aligned {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        // SAFETY: `lines` contains at least `len` initialised floats without gaps. A `CacheLine` is
        // 16 floats, 64 bytes.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }
}

impl DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [f32] {
        // SAFETY: as in `deref`, and the borrow of `self` is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_starts_on_a_cache_line_at_every_length() {
        let mut memory = Aligned::default();
        for len in [0, 1, 15, 16, 17, 1000, 3] {
            memory.resize(len);
            memory.fill(1.0);
            assert_eq!(memory.len(), len);
            assert_eq!(memory.as_ptr() as usize % 64, 0);
        }
        assert!(Aligned::zeroed(17).iter().all(|x| x.to_bits() == 0));
    }
}
