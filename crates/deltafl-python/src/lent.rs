//! Memory of a numpy array, borrowed as a column without a copy, and params as an array.
#![allow(unsafe_code, reason = "the numbers are read from memory owned by Python or by Rust")]

use deltafl::data::{Column, Number};
use deltafl::params::Params;
use numpy::ndarray::ArrayView1;
use numpy::{Element, PyArray1, PyArray2, PyArrayMethods, PyUntypedArrayMethods};
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

/// Params that an array refers to.
#[pyclass(frozen, module = "deltafl._deltafl")]
struct LentParams(Params);

/// Returns params as a float32 vector without a copy, which cannot be written.
pub(crate) fn vector<'py>(py: Python<'py>, params: &Params) -> PyResult<Bound<'py, PyArray1<f32>>> {
    let owner = Bound::new(py, LentParams(params.clone()))?;
    let entries = ArrayView1::from(owner.get().0.as_slice());
    // SAFETY: the entries belong to `owner`, which the array keeps alive and which never changes.
    let array = unsafe { PyArray1::borrow_from_array(&entries, owner.clone().into_any()) };
    Ok((*array.readwrite().make_nonwriteable()).clone())
}
