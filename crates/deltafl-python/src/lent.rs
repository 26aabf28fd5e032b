//! Memory of a numpy array, borrowed as a column without a copy.
#![allow(unsafe_code, reason = "the numbers are read from memory owned by Python")]

use deltafl::data::{Column, Number};
use numpy::{Element, PyArray2, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::prelude::*;

/// The numbers of an array, which is kept alive.
struct Lent<T> {
    _array: Py<PyArray2<T>>,
    first: *const T,
    len: usize,
}

// SAFETY: the pointer refers to numbers owned by the array, which lives as long as this value. They
// are only read.
unsafe impl<T: Sync> Send for Lent<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Lent<T> {}

impl<T> AsRef<[T]> for Lent<T> {
    fn as_ref(&self) -> &[T] {
        // SAFETY: `first` points to `len` numbers of a C-contiguous array that lives as long as
        // this value. The documentation of the package forbids writing to the array meanwhile, as
        // with a mapped file.
        unsafe { std::slice::from_raw_parts(self.first, self.len) }
    }
}

/// Returns the numbers of an array as a column, or `None` if they are not stored row by row.
pub(crate) fn column<T: Number + Element>(array: &Bound<'_, PyArray2<T>>) -> Option<Column<T>> {
    if !array.is_c_contiguous() || array.len() == 0 {
        return None;
    }
    let lent = Lent { _array: array.clone().unbind(), first: array.data().cast_const(), len: array.len() };
    Some(Column::lent(lent))
}
