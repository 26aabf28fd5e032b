//! Federations: borrowed Python arrays, federation folders, and synthetic data.

use std::collections::HashSet;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use deltafl::data::{
    self, BatchBuffer, Columns, ContentHash, DeviceExamples, DeviceTable, Examples, FeatureColumn,
    FederationIndex, InputColumn, InputKind, InvalidDevice, Shape, Split, TargetBuffer, TargetKind,
    synthetic,
};
use deltafl::model::Inputs;
use deltafl::task::Targets;
use numpy::{PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray1, PyUntypedArrayMethods};
use pyo3::prelude::*;

use crate::failure::{chain, invalid};
use crate::lent;

/// Devices and their examples.
#[pyclass(frozen, module = "deltafl._deltafl")]
pub(crate) struct Federation {
    /// The data, shared with every run that trains on it.
    pub(crate) inner: Arc<data::Federation>,
}

/// The parts of a federation of arrays.
#[derive(FromPyObject)]
pub(crate) struct Arrays<'py> {
    name: String,
    ids: Vec<String>,
    splits: Vec<String>,
    offsets: Vec<u64>,
    counts: Vec<u64>,
    inputs: Bound<'py, PyAny>,
    targets: Bound<'py, PyAny>,
    classes: Option<usize>,
    class_names: Vec<String>,
    feature_names: Vec<String>,
}

#[pymethods]
impl Federation {
    /// Creates a federation from the rows of a matrix without copying it.
    #[staticmethod]
    fn of_arrays(py: Python<'_>, arrays: Arrays<'_>) -> PyResult<Self> {
        let (kind, inputs) = input_column(py, &arrays.inputs)?;
        let table = DeviceTable {
            ids: arrays.ids.iter().collect(),
            split: splits(py, &arrays.splits)?.into(),
            offset: arrays.offsets.clone().into(),
            examples: arrays.counts.clone().into(),
        };
        let targets = GivenTargets::from_python(py, &arrays.targets)?;
        let target = arrays.classes.map_or(TargetKind::Values, TargetKind::Classes);
        let shape = Shape { kind, targets: target };
        let (buffer, hash) =
            py.detach(|| checked(shape, &table, &inputs, &targets)).map_err(|e| invalid(py, e))?;
        let columns = Columns {
            name: arrays.name,
            kind,
            target,
            devices: table,
            inputs,
            targets: buffer.into_column(),
            class_names: arrays.class_names,
            feature_columns: arrays.feature_names.into_iter().map(FeatureColumn::number).collect(),
            coding: None,
            words: None,
            vectors: None,
            symbols: None,
            source: None,
            device_split: None,
            hash,
        };
        let inner = data::Federation::from_columns(columns).map_err(|e| invalid(py, e))?;
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Opens a federation folder.
    #[staticmethod]
    fn open(py: Python<'_>, folder: PathBuf) -> PyResult<Self> {
        let inner = py.detach(|| deltafl_data::open(&folder));
        let inner = inner.map_err(|e| {
            invalid(py, format!("cannot open the federation {}: {}", folder.display(), chain(&e)))
        })?;
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Creates a synthetic federation from its options as JSON.
    #[staticmethod]
    fn synthetic(py: Python<'_>, options: &str) -> PyResult<Self> {
        let spec: synthetic::Spec = serde_json::from_str(options).map_err(|e| invalid(py, e))?;
        let pool = rayon::ThreadPoolBuilder::new().build().map_err(|e| invalid(py, e))?;
        Ok(Self { inner: Arc::new(py.detach(|| pool.install(|| spec.build()))) })
    }

    /// Writes it as a federation folder.
    fn save(&self, py: Python<'_>, folder: PathBuf) -> PyResult<()> {
        let saved = py.detach(|| deltafl_data::save(&self.inner, &folder));
        saved.map(drop).map_err(|e| invalid(py, chain(&e)))
    }

    fn __len__(&self) -> usize {
        self.inner.len()
    }

    #[getter]
    fn name(&self) -> &str {
        self.inner.name()
    }

    /// The number of classes, or 0 if targets are real numbers.
    #[getter]
    fn classes(&self) -> usize {
        self.inner.classes()
    }

    /// The names of the columns of the inputs. Empty if they have no names.
    #[getter]
    fn feature_names(&self) -> Vec<&str> {
        self.inner.feature_columns().iter().map(|column| column.name.as_str()).collect()
    }

    /// The BLAKE3 hash of the contents.
    #[getter]
    fn hash(&self) -> &str {
        self.inner.hash()
    }

    /// The kind of the inputs: bytes, dense, tokens or windows.
    #[getter]
    fn kind(&self) -> &'static str {
        match self.inner.kind() {
            InputKind::Bytes { .. } => "bytes",
            InputKind::Dense { .. } => "dense",
            InputKind::Tokens { .. } => "tokens",
            InputKind::Windows { .. } => "windows",
        }
    }

    /// The number of values of an example: features, words or symbols.
    #[getter]
    fn width(&self) -> usize {
        match self.inner.kind() {
            InputKind::Bytes { dim } | InputKind::Dense { dim } => dim,
            InputKind::Tokens { len, .. } | InputKind::Windows { len, .. } => len,
        }
    }

    /// Returns name, split and number of examples of every device.
    fn devices(&self) -> Vec<(String, &'static str, u64)> {
        let of_device = |k: FederationIndex| {
            (self.inner.id(k).to_owned(), self.inner.split_of(k).name(), self.inner.example_count(k))
        };
        self.inner.devices().map(of_device).collect()
    }

    /// Returns inputs and targets of a device in the form that a model receives.
    fn examples<'py>(
        &self,
        py: Python<'py>,
        device: u32,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
        if device as usize >= self.inner.len() {
            return Err(invalid(py, format!("there is no device {device}")));
        }
        let examples = self.inner.examples(FederationIndex(device));
        let all = 0..examples.len();
        gathered(py, &mut BatchBuffer::default(), &examples, all)
    }
}

/// Returns some examples of a device as arrays: inputs as float32 or int64, targets as int64 or
/// float32.
pub(crate) fn gathered<'py>(
    py: Python<'py>,
    buffer: &mut BatchBuffer,
    examples: &Examples<'_>,
    range: Range<usize>,
) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
    let count = range.len();
    let batch = buffer.gather(examples, range);
    let shape = |values: usize| [count, values / count.max(1)];
    let inputs = match batch.inputs {
        Inputs::Dense(values) => PyArray1::from_slice(py, values).reshape(shape(values.len()))?.into_any(),
        Inputs::Tokens(ids) => {
            let wide: Vec<i64> = ids.iter().map(|&id| i64::from(id)).collect();
            PyArray1::from_vec(py, wide).reshape(shape(ids.len()))?.into_any()
        }
    };
    let targets = match batch.targets {
        Targets::Classes(labels) => {
            let wide: Vec<i64> = labels.iter().map(|&label| i64::from(label)).collect();
            PyArray1::from_vec(py, wide).into_any()
        }
        Targets::Values(values) => PyArray1::from_slice(py, values).into_any(),
    };
    Ok((inputs, targets))
}

/// Converts a matrix to an input column, row by row.
fn input_column(py: Python<'_>, inputs: &Bound<'_, PyAny>) -> PyResult<(InputKind, InputColumn)> {
    let lies_elsewhere = || invalid(py, "the inputs must be a matrix with rows, in C order");
    if let Ok(matrix) = inputs.cast::<PyArray2<f32>>() {
        let column = lent::column(matrix).ok_or_else(lies_elsewhere)?;
        return Ok((InputKind::Dense { dim: matrix.shape()[1] }, InputColumn::Dense(column)));
    }
    if let Ok(matrix) = inputs.cast::<PyArray2<u8>>() {
        let column = lent::column(matrix).ok_or_else(lies_elsewhere)?;
        return Ok((InputKind::Bytes { dim: matrix.shape()[1] }, InputColumn::Bytes(column)));
    }
    Err(invalid(py, "the inputs must be a matrix of float32 or uint8"))
}

/// Targets provided by the caller, one per row of the inputs.
pub(crate) enum GivenTargets {
    Classes(Vec<u32>),
    Values(Vec<f32>),
}

impl GivenTargets {
    /// Converts an array of uint32 or float32.
    pub(crate) fn from_python(py: Python<'_>, targets: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(labels) = targets.extract::<PyReadonlyArray1<'_, u32>>() {
            return Ok(Self::Classes(labels.as_array().to_vec()));
        }
        if let Ok(values) = targets.extract::<PyReadonlyArray1<'_, f32>>() {
            return Ok(Self::Values(values.as_array().to_vec()));
        }
        Err(invalid(py, "the targets must be a vector of uint32 or float32"))
    }

    /// Returns the targets of some rows.
    pub(crate) fn part(&self, rows: Range<usize>) -> Option<Targets<'_>> {
        match self {
            Self::Classes(labels) => labels.get(rows).map(Targets::Classes),
            Self::Values(values) => values.get(rows).map(Targets::Values),
        }
    }

    /// Returns all targets.
    pub(crate) fn all(&self) -> Targets<'_> {
        match self {
            Self::Classes(labels) => Targets::Classes(labels),
            Self::Values(values) => Targets::Values(values),
        }
    }
}

/// Converts the names of splits to numbers.
pub(crate) fn splits(py: Python<'_>, names: &[String]) -> PyResult<Vec<u8>> {
    names.iter().map(|name| split(py, name).map(|split| split as u8)).collect()
}

/// Returns the split of this name.
pub(crate) fn split(py: Python<'_>, name: &str) -> PyResult<Split> {
    Split::from_name(name)
        .ok_or_else(|| invalid(py, format!("a split is train, test or validation, not {name:?}")))
}

/// Checks every device and computes the hash of its data.
fn checked(
    shape: Shape,
    table: &DeviceTable,
    inputs: &InputColumn,
    targets: &GivenTargets,
) -> Result<(TargetBuffer, String), InvalidDevice> {
    let mut hash = ContentHash::default();
    let mut seen = HashSet::new();
    for k in 0..table.examples.len() {
        let id = table.ids.value(k);
        let rows = table.offset[k] as usize..table.offset[k].saturating_add(table.examples[k]) as usize;
        let wanted = rows.len();
        let outside = || InvalidDevice::Shape { id: id.to_owned(), expected: wanted, got: 0 };
        let held = targets.part(rows.clone()).ok_or_else(outside)?;
        let examples = match (inputs, shape.kind) {
            (InputColumn::Dense(values), InputKind::Dense { dim }) => {
                values.get(rows.start * dim..rows.end * dim).map(DeviceExamples::Dense)
            }
            (InputColumn::Bytes(values), InputKind::Bytes { dim }) => {
                values.get(rows.start * dim..rows.end * dim).map(DeviceExamples::Bytes)
            }
            _ => None,
        };
        let examples = examples.ok_or_else(outside)?;
        let count = shape.count(id, examples, held)?;
        if !seen.insert((id, table.split[k])) {
            return Err(InvalidDevice::Duplicate { id: id.to_owned() });
        }
        hash.device(id, table.split[k], count as u64);
        hash.inputs(examples.bytes());
        let mut stored = TargetBuffer::new(shape.kind, shape.targets);
        stored.extend(held);
        hash.targets(stored.bytes_from(0));
    }
    let mut buffer = TargetBuffer::new(shape.kind, shape.targets);
    buffer.extend(targets.all());
    Ok((buffer, hash.finish(shape.kind, shape.targets)))
}
