//! An Arrow table that Python reads through the PyCapsule interface, without a copy.

use std::sync::Arc;

use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::{
    Array as _, ArrayRef, Float64Array, RecordBatch, RecordBatchIterator, StringArray, UInt32Array,
    UInt64Array,
};
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{ArrowError, Field, SchemaRef};
use numpy::PyReadonlyArray1;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule, PyList};

use crate::failure::invalid;

/// Columns that polars, pandas and pyarrow can read.
#[pyclass(frozen, module = "deltafl._deltafl")]
pub(crate) struct Table {
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
}

impl Table {
    /// Creates a table of these batches.
    pub(crate) fn new(schema: SchemaRef, batches: Vec<RecordBatch>) -> Self {
        Self { schema, batches }
    }
}

#[pymethods]
impl Table {
    /// Returns the table as a stream of batches. A requested schema is ignored, which the interface
    /// allows.
    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        drop(requested_schema);
        let batches = self.batches.clone().into_iter().map(Ok);
        let reader = RecordBatchIterator::new(batches, self.schema.clone());
        let stream = FFI_ArrowArrayStream::new(Box::new(reader));
        // The consumer marks the stream as released, so the destructor does not free it a second
        // time.
        PyCapsule::new_with_value(py, stream, c"arrow_array_stream")
    }

    fn __len__(&self) -> usize {
        self.batches.iter().map(RecordBatch::num_rows).sum()
    }

    /// Creates a table from columns of the same length: lists of strings, or arrays of float64.
    #[staticmethod]
    fn of_columns(py: Python<'_>, columns: Vec<(String, Bound<'_, PyAny>)>) -> PyResult<Self> {
        let column = |(name, values): (String, Bound<'_, PyAny>)| {
            let array: ArrayRef = match values.extract::<PyReadonlyArray1<'_, f64>>() {
                Ok(values) => Arc::new(Float64Array::from(values.as_array().to_vec())),
                Err(_) => Arc::new(StringArray::from(values.extract::<Vec<String>>()?)),
            };
            Ok((name, array, true))
        };
        let columns = columns.into_iter().map(column).collect::<PyResult<Vec<_>>>()?;
        let batch = RecordBatch::try_from_iter_with_nullable(columns).map_err(|e| invalid(py, e))?;
        Ok(Self::new(batch.schema(), vec![batch]))
    }

    /// Returns the table as a stream of Arrow, with its types and missing values.
    fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let written = || -> Result<Vec<u8>, ArrowError> {
            let mut writer = StreamWriter::try_new(Vec::new(), &self.schema)?;
            self.batches.iter().try_for_each(|batch| writer.write(batch))?;
            writer.into_inner()
        };
        Ok(PyBytes::new(py, &written().map_err(|e| invalid(py, e))?))
    }

    /// Reads the result of `to_bytes`.
    #[staticmethod]
    fn of_bytes(py: Python<'_>, bytes: &[u8]) -> PyResult<Self> {
        let read = || -> Result<Self, ArrowError> {
            let reader = StreamReader::try_new(bytes, None)?;
            Ok(Self { schema: reader.schema(), batches: reader.collect::<Result<_, _>>()? })
        };
        read().map_err(|e| invalid(py, e))
    }

    /// Returns every column as its name and its values: a list of strings or of numbers.
    fn to_columns<'py>(&self, py: Python<'py>) -> PyResult<Vec<(String, Bound<'py, PyAny>)>> {
        let of_column = |(i, field): (usize, &Arc<Field>)| {
            let values = PyList::empty(py);
            for batch in &self.batches {
                let column = batch.column(i);
                if let Some(texts) = column.as_any().downcast_ref::<StringArray>() {
                    texts.iter().try_for_each(|text| values.append(text))?;
                } else if let Some(numbers) = column.as_any().downcast_ref::<Float64Array>() {
                    numbers.iter().try_for_each(|number| values.append(number))?;
                } else if let Some(numbers) = column.as_any().downcast_ref::<UInt64Array>() {
                    numbers.iter().try_for_each(|number| values.append(number))?;
                } else if let Some(numbers) = column.as_any().downcast_ref::<UInt32Array>() {
                    numbers.iter().try_for_each(|number| values.append(number))?;
                }
            }
            Ok((field.name().clone(), values.into_any()))
        };
        self.schema.fields().iter().enumerate().map(of_column).collect()
    }

    /// The names of the columns.
    #[getter]
    fn columns(&self) -> Vec<&str> {
        self.schema.fields().iter().map(|field| field.name().as_str()).collect()
    }
}
