//! Memory of long vectors, kept for the next round.
//!
//! An allocator returns the memory of a long vector to the system. A sum and new params in every
//! round would then cost thousands of page faults, which take longer than the computation.

use std::sync::{Mutex, PoisonError};

use super::LONG;

/// The maximum number of bytes that are kept per type.
const LARGEST: usize = 1 << 28;

/// Vectors that are not in use.
pub(super) struct Spare<T>(Mutex<Vec<Vec<T>>>);

impl<T> Spare<T> {
    pub(super) const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    /// Returns a kept vector of this length with its old entries.
    pub(super) fn take(&self, len: usize) -> Option<Vec<T>> {
        if len < LONG {
            return None;
        }
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let place = kept.iter().position(|vector| vector.len() == len)?;
        Some(kept.swap_remove(place))
    }

    /// Keeps a long vector. Those of other lengths are freed if there is too little space.
    pub(super) fn keep(&self, vector: Vec<T>) {
        let bytes = |vector: &Vec<T>| vector.capacity() * size_of::<T>();
        if vector.len() < LONG || bytes(&vector) > LARGEST {
            return;
        }
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let used: usize = kept.iter().map(bytes).sum();
        if used + bytes(&vector) > LARGEST {
            kept.retain(|other| other.len() == vector.len());
        }
        if kept.iter().map(bytes).sum::<usize>() + bytes(&vector) <= LARGEST {
            kept.push(vector);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_vector_is_used_again_and_a_short_one_is_not() {
        let spare = Spare::new();
        spare.keep(vec![7_u8; LONG]);
        spare.keep(vec![1; 5]);
        assert_eq!((spare.take(5), spare.take(LONG + 1)), (None, None));
        assert_eq!(spare.take(LONG).map(|vector| vector[0]), Some(7));
        assert_eq!(spare.take(LONG), None);
    }

    #[test]
    fn the_kept_memory_is_bounded() {
        let spare = Spare::new();
        let half = LARGEST / 2;
        (0..3).for_each(|_| spare.keep(vec![0_u8; half]));
        assert!(spare.take(half).is_some() && spare.take(half).is_some() && spare.take(half).is_none());
        spare.keep(vec![0; LARGEST - LONG]);
        spare.keep(vec![0; half]);
        assert!(spare.take(half).is_some(), "vectors of another length are freed");
        assert!(spare.take(LARGEST - LONG).is_none());
        spare.keep(vec![0; LARGEST + 1]);
        assert!(spare.take(LARGEST + 1).is_none());
    }
}
