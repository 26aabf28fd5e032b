//! Rows that come in any order, put in the order of their devices.
//!
//! The rows go to an unnamed file beside the target, so that they take no memory and vanish with the process
//! whatever happens. What is remembered is, per stretch of rows of one device, where it starts.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::error::{ImportError, Problem};
use deltafl::data::Split;

/// Rows of a fixed width with a device and a label each.
#[derive(Debug)]
pub(crate) struct Spool {
    folder: PathBuf,
    file: BufWriter<File>,
    /// Bytes per row; known with the first row.
    width: usize,
    devices: Vec<String>,
    /// The numbers of devices by their identity, in each split that a file names and where none does.
    index: HashMap<Option<Split>, HashMap<String, u32>>,
    splits: Vec<Option<Split>>,
    runs: Vec<Run>,
    /// Classes, or real numbers by their bits.
    labels: Vec<u32>,
}

/// Consecutive rows of one device.
#[derive(Clone, Copy, Debug)]
struct Run {
    device: u32,
    first: u64,
    rows: u64,
}

impl Spool {
    /// An empty spool whose file lies in this folder.
    pub(crate) fn new(folder: &Path) -> Result<Self, ImportError> {
        let create = || {
            std::fs::create_dir_all(folder)?;
            tempfile::tempfile_in(folder)
        };
        let file = create().map_err(|source| ImportError::file(folder, source))?;
        Ok(Self {
            folder: folder.to_owned(),
            file: BufWriter::with_capacity(1 << 18, file),
            width: 0,
            devices: Vec::new(),
            index: HashMap::new(),
            splits: Vec::new(),
            runs: Vec::new(),
            labels: Vec::new(),
        })
    }

    /// The number of a device, by its identity.
    pub(crate) fn device(&mut self, id: &str) -> u32 {
        self.device_in(id, None)
    }

    /// The number of a device in a split that the file names: it stands once in each.
    pub(crate) fn device_in(&mut self, id: &str, split: Option<Split>) -> u32 {
        let index = self.index.entry(split).or_default();
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
        self.width = bytes.len();
        let next = match self.runs.last_mut() {
            Some(run) if run.device == device => {
                run.rows += 1;
                None
            }
            Some(run) => Some(run.first + run.rows),
            None => Some(0),
        };
        if let Some(first) = next {
            self.runs.push(Run { device, first, rows: 1 });
        }
        self.file.write_all(bytes).map_err(|source| ImportError::file(&self.folder, source))
    }

    /// Appends a label; labels come in the order of the rows.
    pub(crate) fn label(&mut self, label: u32) {
        self.labels.push(label);
    }

    /// Appends a number to predict, in place of a label.
    pub(crate) fn value(&mut self, value: f32) {
        self.labels.push(value.to_bits());
    }

    /// Rows so far.
    pub(crate) fn rows(&self) -> u64 {
        self.runs.last().map_or(0, |run| run.first + run.rows)
    }

    /// Nothing more will come.
    pub(crate) fn finish(self) -> Result<Sorted, ImportError> {
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
        Ok(Sorted {
            folder,
            file,
            width: self.width,
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
pub(crate) struct Sorted {
    folder: PathBuf,
    file: File,
    width: usize,
    pub(crate) ids: Vec<String>,
    /// The split of each device, where the file names it.
    pub(crate) splits: Vec<Option<Split>>,
    /// Rows of each device.
    pub(crate) counts: Vec<u64>,
    runs: Vec<Run>,
    /// The runs of each device.
    of_device: Vec<std::ops::Range<usize>>,
    labels: Vec<u32>,
}

impl Sorted {
    /// The highest label of all.
    pub(crate) fn highest_label(&self) -> u32 {
        self.labels.iter().copied().max().unwrap_or_default()
    }

    /// The rows and labels of a device.
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
            let (start, len) = (bytes.len(), run.rows as usize * self.width);
            bytes.resize(start + len, 0);
            read_at(&mut self.file, run.first * self.width as u64, &mut bytes[start..])
                .map_err(|source| ImportError::file(&self.folder, Problem::Io(source)))?;
        }
        Ok(())
    }
}

fn read_at(file: &mut File, offset: u64, out: &mut [u8]) -> io::Result<()> {
    file.seek(SeekFrom::Start(offset))?;
    file.read_exact(out)
}

/// Bytes as the `f32` they were.
pub(crate) fn as_f32(bytes: &[u8], out: &mut Vec<f32>) {
    out.clear();
    out.extend(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])));
}

/// Bytes as the `u32` they were.
pub(crate) fn as_u32(bytes: &[u8], out: &mut Vec<u32>) {
    out.clear();
    out.extend(bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_device_come_together_in_their_order() {
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
}
