//! IDX files, the format of MNIST and EMNIST: images, labels, and a table of the writers.
//!
//! ```text
//! 00 00 08 R   R dimensions, big-endian u32 each   bytes, row by row
//! ```
//!
//! The table is tab-separated with a header. Its columns are the device, its first image (from 0)
//! and its number of images; further columns are ignored. Without a table all images belong to one
//! device, and a partition can divide them.

use std::collections::HashSet;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::error::{FilePosition, FoundItem, ImportError, ImportProblem};
use super::input::Input;
use super::{ImportTarget, Imported};
use crate::FederationWriter;
use deltafl::data::{DeviceExamples, InputKind, Provenance, TargetKind};

/// The files of an IDX data set.
#[derive(Clone, Debug)]
pub struct IdxFiles {
    /// Images: the first dimension counts them.
    pub images: PathBuf,
    /// Labels, a byte each.
    pub labels: PathBuf,
    /// Device, first image and number of images, tab-separated.
    pub devices: Option<PathBuf>,
}

/// Imports images of grey levels.
pub fn import(files: &IdxFiles, target: &ImportTarget) -> Result<Imported, ImportError> {
    let mut source = Provenance::new("idx");
    let labels = read_labels(&files.labels)?;
    let mut images = IdxReader::open(&files.images)?;
    if images.count() != labels.len() as u64 {
        let (expected, got) = (images.count(), labels.len() as u64);
        return Err(ImportError::file(&files.labels, ImportProblem::Count { what: "labels", expected, got }));
    }
    let ranges = match &files.devices {
        Some(path) => read_devices(path, images.count())?,
        None => vec![DeviceRange { id: "all".to_owned(), first: 0, count: images.count() }],
    };
    [Some(&files.images), Some(&files.labels), files.devices.as_ref()]
        .into_iter()
        .flatten()
        .for_each(|file| source.file(file));
    let covered: u64 = ranges.iter().map(|range| range.count).sum();
    source.dropped("images of no device", images.count() - covered);
    write(&mut images, &labels, &ranges, target, source)
}

fn write(
    images: &mut IdxReader,
    labels: &[u8],
    ranges: &[DeviceRange],
    target: &ImportTarget,
    mut source: Provenance,
) -> Result<Imported, ImportError> {
    let counts: Vec<u64> = ranges.iter().map(|range| range.count).collect();
    let roster = target.roster(&counts, &mut source)?;
    let classes = target.classes(labels.iter().copied().max().unwrap_or_default().into())?;
    let kind = InputKind::Bytes { dim: images.item };
    let mut writer =
        FederationWriter::create(&target.out, target.heading("idx", kind, TargetKind::Classes(classes)))?;
    target.record(&mut writer, source);
    // Devices are written in the order of their images, so that the file is read once from start to
    // end.
    let mut in_order = roster;
    in_order.sort_by_key(|&(device, _)| ranges[device].first);
    let (mut pixels, mut device_labels) = (Vec::new(), Vec::new());
    for (device, split) in in_order {
        let DeviceRange { id, first, count } = &ranges[device];
        images.read(*first, *count, &mut pixels)?;
        device_labels.clear();
        let range = *first as usize..(first + count) as usize;
        device_labels.extend(labels[range].iter().map(|&label| u32::from(label)));
        writer.push(id, split, DeviceExamples::Bytes(&pixels), &device_labels)?;
    }
    images.check_end()?;
    Ok(Imported { manifest: writer.finish()?, out: target.out.clone() })
}

/// An IDX file of bytes that is read sequentially.
struct IdxReader {
    path: PathBuf,
    reader: Box<dyn Read>,
    dims: Vec<u64>,
    /// Bytes per item.
    item: usize,
    /// Items and bytes read so far.
    next: u64,
    at: u64,
}

impl IdxReader {
    fn open(path: &Path) -> Result<Self, ImportError> {
        let reader = Box::new(Input::open(path)?.into_reader());
        let mut idx = Self { path: path.to_owned(), reader, dims: Vec::new(), item: 1, next: 0, at: 0 };
        let magic = idx.word()?;
        let [0, 0, 8, rank @ 1..=4] = magic else {
            let found = FoundItem::Byte(magic.into_iter().find(|&byte| byte != 0).unwrap_or_default());
            let expected = "an IDX file of bytes (00 00 08 and 1 to 4 dimensions)";
            return Err(ImportError::at(
                path,
                FilePosition::Byte(0),
                ImportProblem::Expected { expected, found },
            ));
        };
        for _ in 0..rank {
            let dim = u32::from_be_bytes(idx.word()?);
            idx.dims.push(dim.into());
        }
        let item: u64 = idx.dims[1..].iter().fold(1, |product: u64, &dim| product.saturating_mul(dim));
        const LARGEST: u64 = 1 << 24;
        if item == 0 || item > LARGEST {
            let problem =
                ImportProblem::TooLong { what: "an item that is empty or", limit: LARGEST as usize };
            return Err(ImportError::at(path, FilePosition::Byte(8), problem));
        }
        idx.item = item as usize;
        Ok(idx)
    }

    fn count(&self) -> u64 {
        self.dims[0]
    }

    fn word(&mut self) -> Result<[u8; 4], ImportError> {
        let mut word = [0; 4];
        self.fill(&mut word, "the header")?;
        Ok(word)
    }

    fn fill(&mut self, out: &mut [u8], what: &'static str) -> Result<(), ImportError> {
        let mut filled = 0;
        while filled < out.len() {
            let at = FilePosition::Byte(self.at + filled as u64);
            match self.reader.read(&mut out[filled..]) {
                Ok(0) => return Err(ImportError::at(&self.path, at, ImportProblem::Truncated(what))),
                Ok(read) => filled += read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(ImportError::at(&self.path, at, error.into())),
            }
        }
        self.at += out.len() as u64;
        Ok(())
    }

    /// Returns the items from `first` on, which must not be before those already read.
    ///
    /// The declared count is not trusted: memory grows with the bytes that arrive.
    fn read(&mut self, first: u64, count: u64, out: &mut Vec<u8>) -> Result<(), ImportError> {
        let mut skipped = [0; 1 << 14];
        let mut to_skip = (first - self.next) * self.item as u64;
        while to_skip > 0 {
            let len = to_skip.min(skipped.len() as u64) as usize;
            self.fill(&mut skipped[..len], "the items")?;
            to_skip -= len as u64;
        }
        out.clear();
        for _ in 0..count {
            let start = out.len();
            out.resize(start + self.item, 0);
            self.fill(&mut out[start..], "the items")?;
        }
        self.next = first + count;
        Ok(())
    }

    /// Checks that the file contains everything declared and nothing else.
    fn check_end(&mut self) -> Result<(), ImportError> {
        let mut rest = Vec::new();
        self.read(self.count(), 0, &mut rest)?;
        let at = FilePosition::Byte(self.at);
        match self.reader.read(&mut [0; 1]) {
            Ok(0) => Ok(()),
            Ok(_) => Err(ImportError::at(&self.path, at, ImportProblem::Trailing)),
            Err(error) => Err(ImportError::at(&self.path, at, error.into())),
        }
    }
}

fn read_labels(path: &Path) -> Result<Vec<u8>, ImportError> {
    let mut idx = IdxReader::open(path)?;
    let mut labels = Vec::new();
    if idx.dims.len() != 1 {
        let (expected, got) = (1, idx.dims.len() as u64);
        return Err(ImportError::file(
            path,
            ImportProblem::Count { what: "dimensions of the labels", expected, got },
        ));
    }
    idx.read(0, idx.count(), &mut labels)?;
    idx.check_end()?;
    Ok(labels)
}

/// The images of a device.
struct DeviceRange {
    id: String,
    first: u64,
    count: u64,
}

/// Reads the table of devices. It checks that they are inside the images, that no device occurs
/// twice, and that no image belongs to two devices.
fn read_devices(path: &Path, images: u64) -> Result<Vec<DeviceRange>, ImportError> {
    let mut input = Input::open(path)?;
    let mut buffer = Vec::new();
    input.line(&mut buffer)?; // the header
    let (mut ranges, mut seen, mut lines) = (Vec::new(), HashSet::new(), Vec::new());
    while let Some(line) = input.line(&mut buffer)? {
        if line.is_empty() {
            continue;
        }
        let range = parse_range(line).map_err(|problem| input.error(problem))?;
        if range.count == 0 {
            return Err(input.error(ImportProblem::EmptyDevice(range.id)));
        }
        if !seen.insert(range.id.clone()) {
            return Err(input.error(ImportProblem::DuplicateDevice(range.id)));
        }
        if range.first.checked_add(range.count).is_none_or(|end| end > images) {
            let got = range.first.saturating_add(range.count);
            return Err(input.error(ImportProblem::Count {
                what: "images up to this device",
                expected: images,
                got,
            }));
        }
        lines.push((range.first, range.count, ranges.len()));
        ranges.push(range);
    }
    lines.sort_unstable();
    if let Some(pair) = lines.windows(2).find(|pair| pair[0].0 + pair[0].1 > pair[1].0) {
        let (first, second) = (&ranges[pair[0].2], &ranges[pair[1].2]);
        let problem = ImportProblem::Overlap { first: first.id.clone(), second: second.id.clone() };
        return Err(ImportError::file(path, problem));
    }
    Ok(ranges)
}

fn parse_range(line: &[u8]) -> Result<DeviceRange, ImportProblem> {
    let line = std::str::from_utf8(line).map_err(|_| ImportProblem::Utf8)?;
    let mut fields = line.split('\t');
    let mut field = |name: &str| {
        fields.next().ok_or_else(|| ImportProblem::Missing { what: "the column", name: name.to_owned() })
    };
    let (id, first, count) = (field("device")?, field("first")?, field("count")?);
    let number = |text: &str| text.parse().map_err(|_| ImportProblem::Number(text.to_owned()));
    Ok(DeviceRange { id: id.to_owned(), first: number(first)?, count: number(count)? })
}
