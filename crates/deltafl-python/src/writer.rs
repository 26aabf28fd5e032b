//! Writes a federation folder device by device.

use std::path::PathBuf;

use deltafl::data::{DeviceExamples, FeatureColumn, InputKind, TargetKind};
use deltafl_data::Heading;
use numpy::{PyReadonlyArray2, PyUntypedArrayMethods};
use pyo3::prelude::*;

use crate::failure::{chain, invalid};
use crate::federation::{GivenTargets, split};

/// A writer of a federation folder that keeps one device in memory at a time.
#[pyclass(module = "deltafl._deltafl")]
pub(crate) struct FederationWriter {
    folder: PathBuf,
    name: String,
    classes: Option<usize>,
    writer: Option<deltafl_data::FederationWriter>,
}

#[pymethods]
impl FederationWriter {
    #[new]
    fn new(folder: PathBuf, name: String, classes: Option<usize>) -> Self {
        Self { folder, name, classes, writer: None }
    }

    /// Adds a device.
    fn push(
        &mut self,
        py: Python<'_>,
        id: &str,
        split_name: &str,
        inputs: &Bound<'_, PyAny>,
        targets: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let split = split(py, split_name)?;
        let targets = GivenTargets::from_python(py, targets)?;
        if let Ok(matrix) = inputs.extract::<PyReadonlyArray2<'_, f32>>() {
            let values = matrix.as_slice().map_err(|e| invalid(py, e))?;
            let kind = InputKind::Dense { dim: matrix.shape()[1] };
            return self
                .writer(py, kind)?
                .push(id, split, DeviceExamples::Dense(values), targets.all())
                .map_err(|e| invalid(py, chain(&e)));
        }
        let matrix = inputs.extract::<PyReadonlyArray2<'_, u8>>();
        let matrix = matrix.map_err(|_| invalid(py, "the inputs must be a matrix of float32 or uint8"))?;
        let values = matrix.as_slice().map_err(|e| invalid(py, e))?;
        let kind = InputKind::Bytes { dim: matrix.shape()[1] };
        self.writer(py, kind)?
            .push(id, split, DeviceExamples::Bytes(values), targets.all())
            .map_err(|e| invalid(py, chain(&e)))
    }

    /// Completes the folder. Inputs without names have no `feature_names`.
    fn finish(&mut self, py: Python<'_>, feature_names: Vec<String>) -> PyResult<()> {
        let mut writer = self.writer.take().ok_or_else(|| invalid(py, "there are no devices"))?;
        writer.feature_columns(feature_names.into_iter().map(FeatureColumn::number).collect());
        py.detach(|| writer.finish()).map(drop).map_err(|e| invalid(py, chain(&e)))
    }
}

impl FederationWriter {
    /// Returns the writer. The first device determines the kind of the inputs.
    fn writer(&mut self, py: Python<'_>, kind: InputKind) -> PyResult<&mut deltafl_data::FederationWriter> {
        if self.writer.is_none() {
            let target = self.classes.map_or(TargetKind::Values, TargetKind::Classes);
            let heading = Heading { name: self.name.clone(), kind, target };
            let created = deltafl_data::FederationWriter::create(&self.folder, heading);
            self.writer = Some(created.map_err(|e| invalid(py, chain(&e)))?);
        }
        self.writer.as_mut().ok_or_else(|| invalid(py, "there is no writer"))
    }
}
