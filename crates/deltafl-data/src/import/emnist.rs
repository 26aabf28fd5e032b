//! EMNIST by writer, from the original files of NIST Special Database 19.
//!
//! ```text
//! by_write/hsf_0/f0000_14/d0000_14/d0000_14_00000.png      the writer, but not the character
//! by_class/4a/hsf_0/hsf_0_00000.png                        the character (0x4a = J), but not the writer
//! ```
//!
//! Both trees contain the same images, which are matched by their bytes. As in LEAF, images become
//! 28×28, and the first image of each writer occurs twice. Trees may be folders or the zip archives
//! of NIST.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use zip::ZipArchive;

use super::error::{FilePosition, ImportError, ImportProblem};
use super::{ImportTarget, Imported, image};
use crate::FederationWriter;
use deltafl::data::{DeviceExamples, InputKind, Provenance, TargetKind};

/// Pixels per side.
const SIDE: usize = 28;

/// Digits, upper case, lower case.
pub const CLASSES: usize = 62;

/// Imports the images of both trees.
pub fn import(by_write: &Path, by_class: &Path, target: &ImportTarget) -> Result<Imported, ImportError> {
    let classes = classes_by_hash(&mut Tree::open(by_class)?)?;
    let mut tree = Tree::open(by_write)?;
    let writers = writers(&tree);
    if writers.is_empty() {
        return Err(ImportError::file(by_write, ImportProblem::Nothing("no images at hsf_*/WRITER/*/*.png")));
    }
    let mut source = Provenance::new("emnist");
    source.file(by_write);
    source.file(by_class);
    source.option("resize", "28×28 Lanczos");
    source.option("first image", "twice, as in LEAF");
    // The selection of writers depends on the number of images with a class, so images are counted
    // before they are decoded.
    let mut unknown = 0;
    let mut labelled = Vec::with_capacity(writers.len());
    for (writer, files) in writers {
        let mut images = Vec::with_capacity(files.len());
        for file in files {
            match classes.get(&blake3::hash(&tree.read(file)?)) {
                Some(&class) => images.push((file, class)),
                None => unknown += 1,
            }
        }
        if let Some(&first) = images.first() {
            images.insert(0, first);
            labelled.push((writer, images));
        }
    }
    source.dropped("images that are in by_write but not in by_class", unknown);
    write(&mut tree, &labelled, target, source)
}

type Labelled = (String, Vec<(usize, u8)>);

fn write(
    tree: &mut Tree,
    writers: &[Labelled],
    target: &ImportTarget,
    mut source: Provenance,
) -> Result<Imported, ImportError> {
    let counts: Vec<u64> = writers.iter().map(|(_, images)| images.len() as u64).collect();
    let roster = target.roster(&counts, &mut source)?;
    let kind = InputKind::Bytes { dim: SIDE * SIDE };
    let mut writer =
        FederationWriter::create(&target.out, target.heading("emnist", kind, TargetKind::Classes(CLASSES)))?;
    target.record(&mut writer, source);
    for (device, split) in roster {
        let (id, images) = &writers[device];
        let (mut pixels, mut labels) = (Vec::new(), Vec::new());
        for &(file, class) in images {
            let image = image::decode(&tree.read(file)?).map_err(|problem| tree.error(file, problem))?;
            let image = image.into_grey();
            pixels.extend_from_slice(&image.resized(SIDE, SIDE).pixels);
            labels.push(u32::from(class));
        }
        writer.push(id, split, DeviceExamples::Bytes(&pixels), &labels)?;
    }
    Ok(Imported { manifest: writer.finish()?, out: target.out.clone() })
}

/// Returns the class of each image of `by_class` by the hash of its file; the first class if there
/// are two.
fn classes_by_hash(tree: &mut Tree) -> Result<HashMap<blake3::Hash, u8>, ImportError> {
    let mut classes = HashMap::new();
    let labelled: Vec<(usize, u8)> =
        (0..tree.names.len()).filter_map(|file| Some((file, class_of(&tree.names[file])?))).collect();
    if labelled.is_empty() {
        return Err(ImportError::file(&tree.path, ImportProblem::Nothing("no images at CLASS/hsf_*/*.png")));
    }
    for (file, class) in labelled {
        classes.entry(blake3::hash(&tree.read(file)?)).or_insert(class);
    }
    Ok(classes)
}

/// Returns the class of `…/4a/hsf_0/x.png`: the folder is the ASCII code in hexadecimal.
fn class_of(name: &str) -> Option<u8> {
    let mut parts = name.rsplit('/').skip(1);
    let part = parts.next()?;
    let code =
        parts.next().filter(|code| code.len() == 2 && part.contains("hsf") && !part.contains("mit"))?;
    match u8::from_str_radix(code, 16).ok()? {
        code @ b'0'..=b'9' => Some(code - b'0'),
        code @ b'A'..=b'Z' => Some(code - b'A' + 10),
        code @ b'a'..=b'z' => Some(code - b'a' + 36),
        _ => None,
    }
}

/// Returns the images of each writer, `…/hsf_0/WRITER/KIND/x.png`. Writers and images are sorted by
/// name.
fn writers(tree: &Tree) -> Vec<(String, Vec<usize>)> {
    let mut writers: Vec<(String, Vec<usize>)> = Vec::new();
    let mut index = HashMap::new();
    for (file, name) in tree.names.iter().enumerate() {
        let mut parts = name.rsplit('/').skip(2);
        let (Some(writer), Some(part)) = (parts.next(), parts.next()) else { continue };
        if !part.starts_with("hsf") {
            continue;
        }
        let device = *index.entry(writer.to_owned()).or_insert_with(|| {
            writers.push((writer.to_owned(), Vec::new()));
            writers.len() - 1
        });
        writers[device].1.push(file);
    }
    writers
}

/// A tree of PNG files, in a folder or in a zip archive.
struct Tree {
    path: PathBuf,
    /// Names with `/` between folders, sorted.
    names: Vec<String>,
    zip: Option<ZipArchive<BufReader<File>>>,
}

impl Tree {
    fn open(path: &Path) -> Result<Self, ImportError> {
        let mut tree = Self { path: path.to_owned(), names: Vec::new(), zip: None };
        if path.is_dir() {
            tree.list(path, 0)?;
        } else {
            let file = File::open(path).map_err(|source| ImportError::file(path, source))?;
            let zip = ZipArchive::new(BufReader::new(file))
                .map_err(|error| ImportError::file(path, ImportProblem::Zip(error.to_string())))?;
            tree.names = zip.file_names().filter(|name| name.ends_with(".png")).map(str::to_owned).collect();
            tree.zip = Some(zip);
        }
        tree.names.sort_unstable();
        Ok(tree)
    }

    fn list(&mut self, folder: &Path, depth: usize) -> Result<(), ImportError> {
        const DEEPEST: usize = 6;
        let entries = fs::read_dir(folder).map_err(|source| ImportError::file(folder, source))?;
        for entry in entries {
            let path = entry.map_err(|source| ImportError::file(folder, source))?.path();
            if path.is_dir() && depth < DEEPEST {
                self.list(&path, depth + 1)?;
            } else if path.extension().is_some_and(|extension| extension == "png") {
                let inside = path.strip_prefix(&self.path).unwrap_or(&path);
                let parts: Vec<_> = inside.iter().map(|part| part.to_string_lossy()).collect();
                self.names.push(parts.join("/"));
            }
        }
        Ok(())
    }

    fn read(&mut self, file: usize) -> Result<Vec<u8>, ImportError> {
        const LARGEST: u64 = 1 << 24;
        let name = &self.names[file];
        let Some(zip) = &mut self.zip else {
            let path = self.path.join(name);
            return fs::read(&path).map_err(|source| ImportError::file(&path, source));
        };
        let mut bytes = Vec::new();
        let read = zip
            .by_name(name)
            .map_err(|error| ImportProblem::Zip(error.to_string()))
            .and_then(|member| Ok(member.take(LARGEST).read_to_end(&mut bytes)?));
        match read {
            Ok(_) => Ok(bytes),
            Err(problem) => Err(self.error(file, problem)),
        }
    }

    fn error(&self, file: usize, problem: ImportProblem) -> ImportError {
        ImportError::at(&self.path, FilePosition::Member(self.names[file].clone()), problem)
    }
}
