//! The federation in GPU memory.
//!
//! A federation that fits is uploaded once, column by column, and shared by all runs. For a larger
//! one, the devices of a cohort are uploaded on demand. In both cases a device is an offset into
//! the columns, and example i is at offset + i: a row of a table, or the start of a window of text.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, DeviceRepr, ValidAsZeroBits};
use deltafl::data::{Federation, FederationIndex, InputColumn, InputKind, TargetColumn};

use crate::GpuError;
use crate::device::{GpuDevice, Kernel};
use crate::launch::{Arg, LaunchGrid, launch, pointer};
use crate::sums;

/// An input column in GPU memory.
pub(crate) enum GpuInputs {
    Bytes(CudaSlice<u8>),
    Dense(CudaSlice<f32>),
    Tokens(CudaSlice<u32>),
    Text(CudaSlice<u8>),
}

/// The columns of some devices in GPU memory.
pub(crate) struct GpuColumns {
    inputs: GpuInputs,
    labels: CudaSlice<u16>,
    stream: Arc<CudaStream>,
}

/// The data shared by all devices: normalisation and word vectors.
pub(crate) struct Constants {
    scale: CudaSlice<f32>,
    shift: CudaSlice<f32>,
    vectors: CudaSlice<f32>,
    stream: Arc<CudaStream>,
}

/// The federation, resident in GPU memory or streamed.
pub(crate) struct GpuData<'a> {
    federation: &'a Federation,
    /// The stream of copies, concurrent with the kernels.
    stream: Arc<CudaStream>,
    clamp: Clamp,
    constants: Constants,
    /// The number of bytes that resident columns may take.
    limit: u64,
    resident: Option<GpuColumns>,
}

/// The devices whose columns are in GPU memory during one wave of work.
pub(crate) struct WaveData<'a> {
    /// The columns, unless they are the resident ones.
    streamed: Option<GpuColumns>,
    pub(crate) offsets: Offsets<'a>,
}

/// The offsets of devices in the columns.
pub(crate) enum Offsets<'a> {
    /// Every device, at its offset in the federation.
    Resident(&'a Federation),
    Streamed(HashMap<FederationIndex, u64>),
}

impl Offsets<'_> {
    /// Returns the offset of a device, or `None` if it is not in the columns.
    pub(crate) fn get(&self, device: FederationIndex) -> Option<u64> {
        match self {
            Self::Resident(federation) => Some(federation.offset(device)),
            Self::Streamed(offsets) => offsets.get(&device).copied(),
        }
    }
}

impl WaveData<'_> {
    /// Returns true if the columns contain all of these devices.
    pub(crate) fn holds(&self, devices: &[FederationIndex]) -> bool {
        devices.iter().all(|&device| self.offsets.get(device).is_some())
    }
}

impl<'a> GpuData<'a> {
    /// Uploads a federation whose columns take at most `limit` bytes. A larger one is streamed.
    pub(crate) fn new(device: &GpuDevice, federation: &'a Federation, limit: u64) -> Result<Self, GpuError> {
        let stream = device.stream()?;
        if matches!(federation.target_column(), TargetColumn::Many(_) | TargetColumn::Values(_)) {
            return Err(GpuError::Targets);
        }
        let module = device.load(&sums::source(), &stream)?;
        let kernel = |name| module.kernel(name, 0);
        let clamp = Clamp {
            bytes: kernel("clamp_bytes")?,
            shorts: kernel("clamp_shorts")?,
            words: kernel("clamp_words")?,
        };
        let constants = Constants::new(&stream, federation)?;
        // Other streams read the constants.
        stream.synchronize()?;
        let mut data = Self { federation, stream, clamp, constants, limit, resident: None };
        let whole = Ranges::whole(federation);
        if whole.bytes(federation) <= limit && whole.examples.end <= u64::from(u32::MAX) {
            data.resident = Some(data.upload(&[whole])?);
        }
        Ok(data)
    }

    /// Returns true if the whole federation is in GPU memory.
    pub(crate) fn is_resident(&self) -> bool {
        self.resident.is_some()
    }

    pub(crate) fn constants(&self) -> &Constants {
        &self.constants
    }

    /// Splits a list of devices into consecutive parts that fit.
    pub(crate) fn parts(&self, devices: &[FederationIndex]) -> Vec<Range<usize>> {
        if self.is_resident() {
            return std::iter::once(0..devices.len()).collect();
        }
        parts(self.sizes(devices), self.stretch())
    }

    /// Returns true if these devices form one part.
    pub(crate) fn is_one_part(&self, devices: &[FederationIndex]) -> bool {
        self.sizes(devices).sum::<u64>() <= self.stretch()
    }

    /// Returns the bytes of the columns of each device.
    fn sizes(&self, devices: &[FederationIndex]) -> impl Iterator<Item = u64> {
        devices.iter().map(|&k| Ranges::for_device(self.federation, k).bytes(self.federation))
    }

    /// Returns the largest size of a part in bytes. The next part may be uploaded while one is
    /// read. Examples of a part have 32-bit numbers.
    fn stretch(&self) -> u64 {
        (self.limit / 2).min(u32::MAX.into())
    }

    /// Uploads the columns of these devices.
    pub(crate) fn place(&self, devices: &[FederationIndex]) -> Result<WaveData<'a>, GpuError> {
        if self.is_resident() {
            return Ok(WaveData { streamed: None, offsets: Offsets::Resident(self.federation) });
        }
        let ranges: Vec<Ranges> = devices.iter().map(|&k| Ranges::for_device(self.federation, k)).collect();
        let mut next = 0;
        let offset = |(&k, range): (&FederationIndex, &Ranges)| {
            let rows = range.examples.end - range.examples.start;
            next += rows;
            (k, next - rows)
        };
        let offsets = Offsets::Streamed(devices.iter().zip(&ranges).map(offset).collect());
        Ok(WaveData { streamed: Some(self.upload(&ranges)?), offsets })
    }

    /// Returns the columns that contain the placed devices.
    pub(crate) fn columns<'c>(&'c self, placed: &'c WaveData<'_>) -> &'c GpuColumns {
        match (&placed.streamed, &self.resident) {
            (Some(columns), _) | (None, Some(columns)) => columns,
            (None, None) => {
                unreachable!("devices have separate columns unless the federation is resident")
            }
        }
    }

    fn upload(&self, ranges: &[Ranges]) -> Result<GpuColumns, GpuError> {
        let (federation, stream) = (self.federation, &self.stream);
        let inputs = match federation.inputs() {
            InputColumn::Bytes(values) => GpuInputs::Bytes(gathered(stream, values, ranges)?),
            InputColumn::Dense(values) => GpuInputs::Dense(gathered(stream, values, ranges)?),
            InputColumn::Tokens(ids) => GpuInputs::Tokens(gathered(stream, ids, ranges)?),
            InputColumn::Text(text) => GpuInputs::Text(gathered(stream, text, ranges)?),
        };
        let rows: Vec<Ranges> = ranges.iter().map(Ranges::labels).collect();
        let labels = match federation.target_column() {
            TargetColumn::InText => stream.alloc_zeros(1)?,
            TargetColumn::Few(labels) => gathered(stream, labels, &rows)?,
            TargetColumn::Many(_) | TargetColumn::Values(_) => return Err(GpuError::Targets),
        };
        let columns = GpuColumns { inputs, labels, stream: stream.clone() };
        self.clamp.apply(&columns, federation)?;
        // Other streams may read the columns from here on.
        stream.synchronize()?;
        Ok(columns)
    }
}

impl GpuColumns {
    /// Returns the address of the inputs.
    pub(crate) fn inputs(&self) -> Arg {
        match &self.inputs {
            GpuInputs::Bytes(values) | GpuInputs::Text(values) => pointer(values, &self.stream),
            GpuInputs::Dense(values) => pointer(values, &self.stream),
            GpuInputs::Tokens(ids) => pointer(ids, &self.stream),
        }
    }

    /// Returns the address of the labels.
    pub(crate) fn labels(&self) -> Arg {
        pointer(&self.labels, &self.stream)
    }
}

impl Constants {
    fn new(stream: &Arc<CudaStream>, federation: &Federation) -> Result<Self, GpuError> {
        let plain = match federation.kind() {
            InputKind::Bytes { dim } => (vec![1.0 / 255.0; dim], vec![0.0; dim]),
            InputKind::Dense { dim } => (vec![1.0; dim], vec![0.0; dim]),
            InputKind::Tokens { .. } | InputKind::Windows { .. } => (vec![1.0], vec![0.0]),
        };
        let (scale, shift) = match federation.affine() {
            Some(affine) => (affine.scale().to_vec(), affine.shift().to_vec()),
            None => plain,
        };
        let vectors = match federation.vectors() {
            Some(vectors) => stream.clone_htod(&vectors.values[..])?,
            None => stream.alloc_zeros(1)?,
        };
        let (scale, shift) = (stream.clone_htod(&scale)?, stream.clone_htod(&shift)?);
        Ok(Self { scale, shift, vectors, stream: stream.clone() })
    }

    /// Returns the factor of each feature.
    pub(crate) fn scale(&self) -> Arg {
        pointer(&self.scale, &self.stream)
    }

    /// Returns the offset of each feature.
    pub(crate) fn shift(&self) -> Arg {
        pointer(&self.shift, &self.stream)
    }

    /// Returns the frozen word vectors.
    pub(crate) fn vectors(&self) -> Arg {
        pointer(&self.vectors, &self.stream)
    }
}

/// Kernels that clamp values to their range, as the CPU does when it reads them.
struct Clamp {
    bytes: Kernel,
    shorts: Kernel,
    words: Kernel,
}

impl Clamp {
    fn apply(&self, columns: &GpuColumns, federation: &Federation) -> Result<(), GpuError> {
        let (grid, stream) = (LaunchGrid { blocks: (1024, 1), threads: 256 }, &columns.stream);
        let highest = |count: usize| Arg::U32(count.saturating_sub(1) as u32);
        match (&columns.inputs, federation.kind()) {
            (GpuInputs::Text(text), InputKind::Windows { alphabet, .. }) => {
                let args = [pointer(text, stream), Arg::U64(text.len() as u64), highest(alphabet)];
                launch(stream, &self.bytes, grid, &args)?;
            }
            (GpuInputs::Tokens(ids), InputKind::Tokens { vocabulary, .. }) => {
                let args = [pointer(ids, stream), Arg::U64(ids.len() as u64), highest(vocabulary)];
                launch(stream, &self.words, grid, &args)?;
            }
            _ => {}
        }
        let labels = &columns.labels;
        let args = [pointer(labels, stream), Arg::U64(labels.len() as u64), highest(federation.classes())];
        launch(stream, &self.shorts, grid, &args)
    }
}

/// The part of the columns that belongs to some devices.
struct Ranges {
    /// Rows of a table, or symbols of a text.
    examples: Range<u64>,
    /// Entries of the input column per row.
    width: u64,
}

impl Ranges {
    fn whole(federation: &Federation) -> Self {
        let width = width(federation);
        let entries = match federation.inputs() {
            InputColumn::Bytes(values) | InputColumn::Text(values) => values.len(),
            InputColumn::Dense(values) => values.len(),
            InputColumn::Tokens(ids) => ids.len(),
        } as u64;
        Self { examples: 0..entries / width.max(1), width }
    }

    fn for_device(federation: &Federation, device: FederationIndex) -> Self {
        let (start, count) = (federation.offset(device), federation.example_count(device));
        let rows = match federation.kind() {
            InputKind::Windows { len, .. } => count + len as u64,
            _ => count,
        };
        Self { examples: start..start + rows, width: width(federation) }
    }

    /// Returns the same rows of the column of labels.
    fn labels(&self) -> Self {
        Self { examples: self.examples.clone(), width: 1 }
    }

    fn bytes(&self, federation: &Federation) -> u64 {
        let (entry, label) = match federation.kind() {
            InputKind::Bytes { .. } => (1, 2),
            InputKind::Windows { .. } => (1, 0),
            InputKind::Dense { .. } | InputKind::Tokens { .. } => (4, 2),
        };
        (self.examples.end - self.examples.start) * (self.width * entry + label)
    }

    fn entries(&self) -> Range<usize> {
        (self.examples.start * self.width) as usize..(self.examples.end * self.width) as usize
    }
}

/// Returns the entries of the input column per row.
fn width(federation: &Federation) -> u64 {
    match federation.kind() {
        InputKind::Bytes { dim } | InputKind::Dense { dim } => dim as u64,
        InputKind::Tokens { len, .. } => len as u64,
        InputKind::Windows { .. } => 1,
    }
}

/// Copies parts of a column to GPU memory, contiguously.
fn gathered<T: DeviceRepr + ValidAsZeroBits>(
    stream: &Arc<CudaStream>,
    column: &[T],
    ranges: &[Ranges],
) -> Result<CudaSlice<T>, GpuError> {
    let len: usize = ranges.iter().map(|range| range.entries().len()).sum();
    let mut slice = stream.alloc_zeros(len.max(1))?;
    let mut at = 0;
    for range in ranges {
        let part = &column[range.entries()];
        if !part.is_empty() {
            stream.memcpy_htod(part, &mut slice.slice_mut(at..at + part.len()))?;
        }
        at += part.len();
    }
    Ok(slice)
}

/// Splits a list of sizes into consecutive parts of at most `limit`. A larger entry forms its own
/// part.
fn parts(sizes: impl Iterator<Item = u64>, limit: u64) -> Vec<Range<usize>> {
    let (mut parts, mut start, mut total, mut count) = (Vec::new(), 0, 0, 0);
    for (i, size) in sizes.enumerate() {
        if i > start && total + size > limit {
            parts.push(start..i);
            (start, total) = (i, 0);
        }
        total += size;
        count = i + 1;
    }
    if count > start {
        parts.push(start..count);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use deltafl::data::{DeviceExamples, FederationBuilder, Split};
    use deltafl::task::Targets;

    #[test]
    fn parts_cover_every_device_in_order_and_fit() {
        let sizes = [5, 3, 9, 1, 1, 1, 20, 2];
        let cut = parts(sizes.into_iter(), 10);
        assert_eq!(cut, [0..2, 2..4, 4..6, 6..7, 7..8]);
        assert_eq!(parts(std::iter::empty(), 10), Vec::<Range<usize>>::new());
    }

    #[test]
    fn the_rows_of_a_device_with_windows_include_its_last_label() {
        let mut builder = FederationBuilder::new("t", InputKind::Windows { len: 2, alphabet: 5 }, 5);
        builder.push("a", Split::Train, DeviceExamples::Text(&[0, 1, 2, 3]), Targets::IN_TEXT).unwrap();
        builder.push("b", Split::Train, DeviceExamples::Text(&[4, 4, 1]), Targets::IN_TEXT).unwrap();
        let federation = builder.build();
        assert_eq!(Ranges::for_device(&federation, FederationIndex(1)).entries(), 4..7);
        assert_eq!(Ranges::whole(&federation).entries(), 0..7);
        assert_eq!(Ranges::for_device(&federation, FederationIndex(0)).bytes(&federation), 4);
    }

    #[test]
    fn the_rows_of_a_table_are_as_wide_as_an_example() {
        let mut builder = FederationBuilder::new("t", InputKind::Dense { dim: 2 }, 2);
        builder.push("a", Split::Train, DeviceExamples::Dense(&[1.0, 5.0, 3.0, 5.0]), &[0, 1]).unwrap();
        builder.push("b", Split::Test, DeviceExamples::Dense(&[100.0, 5.0]), &[1]).unwrap();
        let federation = builder.build();
        assert_eq!(Ranges::for_device(&federation, FederationIndex(1)).entries(), 4..6);
        assert_eq!(Ranges::for_device(&federation, FederationIndex(0)).bytes(&federation), 2 * (2 * 4 + 2));
    }
}
