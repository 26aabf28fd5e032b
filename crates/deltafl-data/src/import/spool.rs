//! Sorts rows of any order by device.
//!
//! The rows are written to an unnamed temporary file in the folder of the target, so that they use no memory
//! and the system removes them if the process ends. Memory contains the labels and, for each run of
//! consecutive rows of one device, its place in the file.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use super::error::{ImportError, ImportProblem};
use super::fast_hash::FastMap;
use deltafl::data::Split;

/// Rows with a device and a label each. The rows of an import have one width, except texts.
#[derive(Debug)]
pub(crate) struct Spool {
    folder: PathBuf,
    file: BufWriter<File>,
    devices: Vec<String>,
    /// The indices of devices by identity, for `None` and for each split that a file names.
    index: [FastMap<u32>; 4],
    splits: Vec<Option<Split>>,
    runs: Vec<RowRun>,
    /// Classes, or the bits of real numbers.
    labels: Vec<u32>,
}

/// Consecutive rows of one device.
#[derive(Clone, Copy, Debug)]
struct RowRun {
    device: u32,
    /// The index of the first row, and the number of rows.
    first: u64,
    rows: u64,
    /// The place in the file.
    offset: u64,
    bytes: u64,
}

/// Ends a text: a byte that UTF-8 does not use.
const TEXT_END: u8 = 0xff;

impl Spool {
    /// Creates an empty spool with its file in this folder.
    pub(crate) fn new(folder: &Path) -> Result<Self, ImportError> {
        let create = || {
            std::fs::create_dir_all(folder)?;
            tempfile::tempfile_in(folder)
        };
        let file = create().map_err(|source| ImportError::file(folder, source))?;
        Ok(Self {
            folder: folder.to_owned(),
            file: BufWriter::with_capacity(1 << 18, file),
            devices: Vec::new(),
            index: Default::default(),
            splits: Vec::new(),
            runs: Vec::new(),
            labels: Vec::new(),
        })
    }

    /// Returns the index of a device by its identity.
    pub(crate) fn device(&mut self, id: &str) -> u32 {
        self.device_in(id, None)
    }

    /// Returns the index of a device in a split that the file names. A device has an index for each split.
    pub(crate) fn device_in(&mut self, id: &str, split: Option<Split>) -> u32 {
        let index = &mut self.index[match split {
            None => 0,
            Some(Split::Train) => 1,
            Some(Split::Test) => 2,
            Some(Split::Validation) => 3,
        }];
        if let Some(&device) = index.get(id) {
            return device;
        }
        let device = self.devices.len() as u32;
        self.devices.push(id.to_owned());
        self.splits.push(split);
        index.insert(id.to_owned(), device);
        device
    }

    /// Appends the input of an example; its label may come later.
    pub(crate) fn row(&mut self, device: u32, bytes: &[u8]) -> Result<(), ImportError> {
        let len = bytes.len() as u64;
        match self.runs.last_mut() {
            Some(run) if run.device == device => {
                run.rows += 1;
                run.bytes += len;
            }
            last => {
                let (first, offset) =
                    last.map_or((0, 0), |run| (run.first + run.rows, run.offset + run.bytes));
                self.runs.push(RowRun { device, first, rows: 1, offset, bytes: len });
            }
        }
        self.file.write_all(bytes).map_err(|source| ImportError::file(&self.folder, source))
    }

    /// Appends a text with its label, for [`SortedRows::for_each_text`].
    pub(crate) fn text(&mut self, id: &str, text: &str, label: u32) -> Result<(), ImportError> {
        let device = self.device(id);
        self.label(label);
        self.row(device, &[text.as_bytes(), &[TEXT_END]].concat())
    }

    /// Appends a text of a device; its label may come later.
    pub(crate) fn text_row(&mut self, device: u32, text: &str) -> Result<(), ImportError> {
        self.row(device, &[text.as_bytes(), &[TEXT_END]].concat())
    }

    /// Returns the labels so far.
    pub(crate) fn labels(&self) -> &[u32] {
        &self.labels
    }

    /// Appends a label; labels have the order of the rows.
    pub(crate) fn label(&mut self, label: u32) {
        self.labels.push(label);
    }

    /// Appends a real target instead of a label.
    pub(crate) fn value(&mut self, value: f32) {
        self.labels.push(value.to_bits());
    }

    /// Returns the number of rows so far.
    pub(crate) fn rows(&self) -> u64 {
        self.runs.last().map_or(0, |run| run.first + run.rows)
    }

    /// Sorts the rows by device.
    pub(crate) fn finish(self) -> Result<SortedRows, ImportError> {
        debug_assert_eq!(self.rows(), self.labels.len() as u64, "every row has a label");
        let folder = self.folder;
        let file = self.file.into_inner().map_err(|error| ImportError::file(&folder, error.into_error()))?;
        let mut counts = vec![0; self.devices.len()];
        for run in &self.runs {
            counts[run.device as usize] += run.rows;
        }
        let mut runs = self.runs;
        runs.sort_by_key(|run| run.device); // stable: a device keeps the order of its rows
        let mut of_device = vec![0..0; self.devices.len()];
        for (i, run) in runs.iter().enumerate() {
            let range = &mut of_device[run.device as usize];
            *range = if range.end == 0 { i } else { range.start }..i + 1;
        }
        Ok(SortedRows {
            folder,
            file,
            ids: self.devices,
            splits: self.splits,
            counts,
            runs,
            of_device,
            labels: self.labels,
        })
    }
}

/// The rows, device by device.
#[derive(Debug)]
pub(crate) struct SortedRows {
    folder: PathBuf,
    file: File,
    pub(crate) ids: Vec<String>,
    /// The split of each device, if the file names it.
    pub(crate) splits: Vec<Option<Split>>,
    /// Rows of each device.
    pub(crate) counts: Vec<u64>,
    runs: Vec<RowRun>,
    /// The runs of each device.
    of_device: Vec<std::ops::Range<usize>>,
    labels: Vec<u32>,
}

impl SortedRows {
    /// Returns the highest label.
    pub(crate) fn highest_label(&self) -> u32 {
        self.labels.iter().copied().max().unwrap_or_default()
    }

    /// Reads the rows and labels of a device.
    pub(crate) fn load(
        &mut self,
        device: usize,
        bytes: &mut Vec<u8>,
        labels: &mut Vec<u32>,
    ) -> Result<(), ImportError> {
        bytes.clear();
        labels.clear();
        for run in &self.runs[self.of_device[device].clone()] {
            let rows = run.first as usize..(run.first + run.rows) as usize;
            labels.extend_from_slice(&self.labels[rows]);
            let start = bytes.len();
            bytes.resize(start + run.bytes as usize, 0);
            read_at(&mut self.file, run.offset, &mut bytes[start..])
                .map_err(|source| ImportError::file(&self.folder, ImportProblem::Io(source)))?;
        }
        Ok(())
    }

    /// Calls `each` with every text of a device and its label.
    pub(crate) fn for_each_text(
        &mut self,
        device: usize,
        mut each: impl FnMut(&str, u32),
    ) -> Result<(), ImportError> {
        let (mut bytes, mut labels) = (Vec::new(), Vec::new());
        self.load(device, &mut bytes, &mut labels)?;
        for (text, label) in bytes.split(|byte| *byte == TEXT_END).zip(labels) {
            each(&String::from_utf8_lossy(text), label);
        }
        Ok(())
    }
}

/// Reads bytes at a place, in one call of the system where it has one.
#[cfg(unix)]
fn read_at(file: &mut File, offset: u64, out: &mut [u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, out, offset)
}

#[cfg(not(unix))]
fn read_at(file: &mut File, offset: u64, out: &mut [u8]) -> io::Result<()> {
    use std::io::{Read as _, Seek as _};
    file.seek(io::SeekFrom::Start(offset))?;
    file.read_exact(out)
}

/// Converts bytes back to `f32`.
pub(crate) fn as_f32(bytes: &[u8], out: &mut Vec<f32>) {
    out.clear();
    out.extend(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])));
}

/// Converts bytes back to `u32`.
pub(crate) fn as_u32(bytes: &[u8], out: &mut Vec<u32>) {
    out.clear();
    out.extend(bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_device_are_consecutive_and_keep_their_order() {
        let dir = tempfile::tempdir().unwrap();
        let mut spool = Spool::new(dir.path()).unwrap();
        for (id, value) in [("b", 1), ("a", 2), ("b", 3), ("b", 4), ("a", 5)] {
            let device = spool.device(id);
            spool.row(device, &[value, value]).unwrap();
            spool.label(u32::from(value));
        }
        let mut sorted = spool.finish().unwrap();
        assert_eq!(
            (&sorted.ids[..], &sorted.counts[..]),
            (&["b".to_owned(), "a".to_owned()][..], &[3, 2][..])
        );
        let (mut bytes, mut labels) = (Vec::new(), Vec::new());
        sorted.load(0, &mut bytes, &mut labels).unwrap();
        assert_eq!((&bytes[..], &labels[..]), (&[1, 1, 3, 3, 4, 4][..], &[1, 3, 4][..]));
        sorted.load(1, &mut bytes, &mut labels).unwrap();
        assert_eq!((&bytes[..], &labels[..]), (&[2, 2, 5, 5][..], &[2, 5][..]));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn texts_of_a_device_keep_their_order_and_labels() {
        let dir = tempfile::tempdir().unwrap();
        let mut spool = Spool::new(dir.path()).unwrap();
        for (id, text, label) in [("b", "é", 1), ("a", "", 0), ("b", "two words", 0), ("b", "", 1)] {
            spool.text(id, text, label).unwrap();
        }
        let mut sorted = spool.finish().unwrap();
        let mut texts = Vec::new();
        sorted.for_each_text(0, |text, label| texts.push((text.to_owned(), label))).unwrap();
        assert_eq!(
            texts,
            [("é", 1), ("two words", 0), ("", 1)].map(|(text, label)| (text.to_owned(), label))
        );
        assert_eq!(sorted.counts, [3, 1]);
    }
}
