//! NumPy's `.npz`: arrays of inputs, labels and devices with one row per example.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use zip::ZipArchive;

use super::error::{FilePosition, ImportError, ImportProblem};
use super::features::{FeatureSpool, Features, MOST_FEATURES};
use super::npy::{NpyElement, NpyHeader};
use super::table::{check_density, class, finite, in_range};
use super::{ImportTarget, Imported};
use deltafl::data::Provenance;

/// The names of the arrays.
#[derive(Clone, Debug)]
pub struct NpzArrays {
    /// Inputs: the first axis counts examples, the others are flattened.
    pub x: String,
    /// Labels: whole numbers, or real numbers for a regression.
    pub y: String,
    /// Devices: whole numbers or strings; one device for all examples if `None`.
    pub device: Option<String>,
}

/// Imports an archive.
pub fn import(
    path: &Path,
    arrays: &NpzArrays,
    features: Features,
    target: &ImportTarget,
) -> Result<Imported, ImportError> {
    let mut archive = NpzArchive::open(path)?;
    let mut spool = FeatureSpool::new(target, features)?;
    let (labels, class_names) = archive.labels(&arrays.y, target)?;
    let devices = match &arrays.device {
        Some(name) => archive.devices(name, &mut spool)?,
        None => vec![spool.spool.device("all"); labels.len()],
    };
    let mut x = archive.array(&arrays.x)?;
    let rows = x.header.rows();
    let device_array = arrays.device.as_ref().unwrap_or(&arrays.y);
    for (name, got) in [(&arrays.y, labels.len()), (device_array, devices.len())] {
        if got != rows {
            let problem = ImportProblem::Count { what: "rows", expected: rows as u64, got: got as u64 };
            return Err(ImportError::at(path, FilePosition::Member(member_name(name)), problem));
        }
    }
    // Bytes in an array are grey levels by default.
    if x.header.element == NpyElement::BYTE && features == Features::Auto {
        spool.features = Features::GreyLevels;
    }
    x.transpose()?;
    let (mut row, dim) = (Vec::new(), x.header.row_len());
    for (i, (&label, &device)) in labels.iter().zip(&devices).enumerate() {
        x.row(i, dim, &mut row)?;
        spool.check(&row).map_err(|problem| ImportError::at(path, FilePosition::Row(i as u64), problem))?;
        spool.row(device, &row)?;
        spool.spool.label(label);
    }
    x.end()?;
    let mut source = Provenance::new("npz");
    source.file(path);
    if target.classes.is_none() && !target.regression && class_names.is_empty() {
        check_density(&labels).map_err(|problem| ImportError::file(path, problem))?;
    }
    spool.set_class_names(class_names);
    spool.finish(target, source)
}

fn member_name(name: &String) -> String {
    format!("{name}.npy")
}

struct NpzArchive<'p> {
    path: &'p Path,
    zip: ZipArchive<BufReader<File>>,
}

impl<'p> NpzArchive<'p> {
    fn open(path: &'p Path) -> Result<Self, ImportError> {
        let file = File::open(path).map_err(|source| ImportError::file(path, source))?;
        let zip = ZipArchive::new(BufReader::new(file))
            .map_err(|error| ImportError::file(path, ImportProblem::Zip(error.to_string())))?;
        Ok(Self { path, zip })
    }

    /// Opens an array at its first element.
    fn array(&mut self, name: &String) -> Result<NpzArray<'_>, ImportError> {
        let member = member_name(name);
        let names: Vec<String> =
            self.zip.file_names().map(|name| name.trim_end_matches(".npy").to_owned()).collect();
        let path = self.path;
        if !names.contains(name) {
            return Err(ImportError::file(
                path,
                ImportProblem::NoArray { name: name.clone(), arrays: names },
            ));
        }
        let file = self.zip.by_name(&member);
        let file = file.map_err(|error| ImportError::file(path, ImportProblem::Zip(error.to_string())))?;
        let mut array = NpzArray {
            path,
            member,
            reader: Box::new(BufReader::new(file)),
            header: NpyHeader::default(),
            transposed: None,
        };
        array.header = NpyHeader::read(&mut array.reader).map_err(|problem| array.error(problem))?;
        Ok(array)
    }

    /// Returns the label of each row; for a regression, the bits of the real targets. Strings are
    /// names of classes, which are returned too.
    fn labels(
        &mut self,
        name: &String,
        target: &ImportTarget,
    ) -> Result<(Vec<u32>, Vec<String>), ImportError> {
        let mut array = self.array(name)?;
        if array.header.element.is_string() {
            return array.named_labels(target);
        }
        let mut labels = Vec::new();
        for _ in 0..array.header.len() {
            let label = array.number()?;
            if target.regression {
                labels.push(finite(label as f32).map_err(|problem| array.error(problem))?.to_bits());
                continue;
            }
            if label.fract() != 0.0 || !(0.0..=f64::from(u32::MAX)).contains(&label) {
                return Err(array.error(ImportProblem::Label(label.to_string())));
            }
            labels.push(class(label as u32, target.classes).map_err(|problem| array.error(problem))?);
        }
        Ok((labels, Vec::new()))
    }

    /// Returns the index of the device of each row. An identity is stored once.
    fn devices(&mut self, name: &String, spool: &mut FeatureSpool) -> Result<Vec<u32>, ImportError> {
        let mut array = self.array(name)?;
        let mut devices = Vec::new();
        for _ in 0..array.header.len() {
            let id = array.header.element.read_string(&mut array.reader);
            let id = id.map_err(|problem| array.error(problem))?;
            if id.trim().is_empty() {
                return Err(array.error(ImportProblem::UnnamedDevice));
            }
            devices.push(spool.spool.device(&id));
        }
        Ok(devices)
    }
}

/// An array that is being read.
struct NpzArray<'a> {
    path: &'a Path,
    member: String,
    reader: Box<dyn Read + 'a>,
    header: NpyHeader,
    /// All elements of an array in Fortran order, row by row.
    transposed: Option<Vec<f32>>,
}

impl NpzArray<'_> {
    fn error(&self, problem: ImportProblem) -> ImportError {
        ImportError::at(self.path, FilePosition::Member(self.member.clone()), problem)
    }

    /// Returns the number and the names of the classes of an array of strings.
    fn named_labels(&mut self, target: &ImportTarget) -> Result<(Vec<u32>, Vec<String>), ImportError> {
        if target.regression {
            return Err(self.error(ImportProblem::Unsupported {
                what: "the array".to_owned(),
                found: "string".to_owned(),
                supported: "numbers",
            }));
        }
        let mut words = Vec::new();
        for _ in 0..self.header.len() {
            let word = self.header.element.read_string(&mut self.reader);
            words.push(word.map_err(|problem| self.error(problem))?);
        }
        let names: Vec<String> = words.iter().cloned().collect::<BTreeSet<_>>().into_iter().collect();
        let index: HashMap<&str, u32> = names.iter().map(String::as_str).zip(0..).collect();
        let labels = words.iter().map(|word| in_range(index[word.as_str()], target.classes));
        let labels = labels.collect::<Result<_, _>>().map_err(|problem| self.error(problem))?;
        Ok((labels, names))
    }

    fn number(&mut self) -> Result<f64, ImportError> {
        let number = self.header.element.read_number(&mut self.reader);
        number.map_err(|problem| self.error(problem))
    }

    /// Reads an array in Fortran order, whose rows are not contiguous, and stores its elements row
    /// by row.
    fn transpose(&mut self) -> Result<(), ImportError> {
        if !self.header.is_fortran || self.header.shape.len() == 1 {
            return Ok(());
        }
        // A file that declares more elements than it contains ends before it uses much memory.
        let mut elements = Vec::new();
        for _ in 0..self.header.len() {
            elements.push(self.number()? as f32);
        }
        let shape = &self.header.shape;
        let mut rows = vec![0.0; elements.len()];
        for (i, x) in elements.into_iter().enumerate() {
            // The position of element i: its index along each axis with the first axis contiguous,
            // converted to the last axis contiguous.
            let (mut rest, mut place, mut stride) = (i, 0, self.header.len());
            for &length in shape {
                stride /= length;
                place += rest % length * stride;
                rest /= length;
            }
            rows[place] = x;
        }
        self.transposed = Some(rows);
        Ok(())
    }

    fn row(&mut self, i: usize, dim: usize, row: &mut Vec<f32>) -> Result<(), ImportError> {
        if dim > MOST_FEATURES {
            return Err(self.error(ImportProblem::TooLong { what: "an example", limit: MOST_FEATURES }));
        }
        row.clear();
        if let Some(rows) = &self.transposed {
            row.extend_from_slice(&rows[i * dim..(i + 1) * dim]);
            return Ok(());
        }
        for _ in 0..dim {
            row.push(self.number()? as f32);
        }
        Ok(())
    }

    /// Reads to the end, so that the checksum of the archive is checked.
    fn end(&mut self) -> Result<(), ImportError> {
        match self.reader.read(&mut [0; 1]) {
            Ok(0) => Ok(()),
            Ok(_) => Err(self.error(ImportProblem::Trailing)),
            Err(error) => Err(self.error(error.into())),
        }
    }
}
