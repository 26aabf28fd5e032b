//! Images in files: a folder `device/class/image.png`, a folder `class/image.png`, or a table with a
//! column of paths.
//!
//! Images of another size than the most frequent one are resized with a Lanczos filter. Pixels are
//! stored channel by channel, one byte each. Images that follow an earlier import have its size, its
//! colours and its classes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use deltafl::data::{
    DataContract, DeviceExamples, ImageShape, InputKind, Provenance, TableCoding, TargetKind,
};

use super::error::{ImportError, ImportProblem};
use super::image::{DecodedImage, decode};
use super::input::Input;
use super::rows::{TableFiles, TableFormat};
use super::spool::Spool;
use super::table::TableColumns;
use super::{ImportTarget, Imported};
use crate::FederationWriter;

/// The largest file of an image, in bytes.
const LARGEST_FILE: usize = 1 << 28;

/// The images from which size and colour are derived.
const SAMPLE: usize = 500;

/// The colours of images.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Colour {
    /// Red, green and blue if an image is coloured, grey otherwise.
    #[default]
    Auto,
    /// The luminance of each pixel.
    Grey,
    /// Red, green and blue.
    Rgb,
}

/// The conversion of images.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageOptions {
    /// Width and height; the most frequent size if `None`.
    pub size: Option<(usize, usize)>,
    /// The colours.
    pub colour: Colour,
}

/// An image file with its device and class.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ImageFile {
    device: String,
    class: String,
    path: PathBuf,
}

/// Whether the name of a file is that of an image.
pub fn is_image(path: &Path) -> bool {
    let extension = path.extension().map(|end| end.to_string_lossy().to_lowercase());
    extension.is_some_and(|end| ["png", "jpg", "jpeg"].contains(&end.as_str()))
}

/// The conversion of images: chosen from the images, or that of an earlier import.
enum Conversion {
    New(ImageOptions),
    Like { shape: ImageShape, classes: Vec<String> },
}

impl Conversion {
    fn like(contract: &DataContract, path: &Path) -> Result<Self, ImportError> {
        let shape = contract.table.as_ref().and_then(|coding| coding.image);
        let shape = shape.ok_or_else(|| ImportError::file(path, ImportProblem::NoImages))?;
        let numbered = || (0..contract.classes).map(|class| class.to_string()).collect();
        let names = &contract.class_names;
        Ok(Self::Like { shape, classes: if names.is_empty() { numbered() } else { names.clone() } })
    }

    /// Returns the names of the classes in their order.
    fn classes(&self, files: &[ImageFile]) -> Vec<String> {
        if let Self::Like { classes, .. } = self {
            return classes.clone();
        }
        let names: BTreeSet<&str> = files.iter().map(|file| file.class.as_str()).collect();
        let mut names: Vec<String> = names.into_iter().map(str::to_owned).collect();
        if names.iter().all(|name| name.parse::<u32>().is_ok()) {
            names.sort_by_key(|name| name.parse::<u32>().unwrap_or(0));
        }
        names
    }

    fn shape(&self, files: &[ImageFile]) -> Result<ImageShape, ImportError> {
        match self {
            Self::New(options) => shape(files, *options),
            Self::Like { shape, .. } => Ok(*shape),
        }
    }
}

/// Imports a folder `device/class/image`, or `class/image` with one device.
pub fn import_folder(
    folder: &Path,
    options: ImageOptions,
    target: &ImportTarget,
) -> Result<Imported, ImportError> {
    folder_as(folder, &Conversion::New(options), target)
}

/// Imports a folder of images with the size, the colours and the classes of an earlier import.
pub fn import_folder_like(
    folder: &Path,
    contract: &DataContract,
    target: &ImportTarget,
) -> Result<Imported, ImportError> {
    folder_as(folder, &Conversion::like(contract, folder)?, target)
}

fn folder_as(folder: &Path, conversion: &Conversion, target: &ImportTarget) -> Result<Imported, ImportError> {
    let mut paths = Vec::new();
    let others = list(folder, &mut Vec::new(), &mut paths)?;
    let files = paths.into_iter().map(|(names, path)| match &names[..] {
        [class] => Ok(ImageFile { device: "all".to_owned(), class: class.clone(), path }),
        [device, class] => Ok(ImageFile { device: device.clone(), class: class.clone(), path }),
        _ => Err(ImportError::file(&path, ImportProblem::ImagePlace)),
    });
    let files = files.collect::<Result<Vec<_>, _>>()?;
    let mut source = Provenance::new("images");
    source.file(folder);
    source.dropped("files other than PNG and JPEG images", others);
    import(folder, &files, conversion, target, TableCoding::default(), source)
}

/// Imports images without classes for predictions, as one device and in their order, with the size
/// and the colours of an earlier import.
pub fn import_unlabelled(
    files: &[PathBuf],
    contract: &DataContract,
    target: &ImportTarget,
) -> Result<Imported, ImportError> {
    let first = files.first().map_or(Path::new("."), PathBuf::as_path);
    let conversion = Conversion::like(contract, first)?;
    let class = conversion.classes(&[]).into_iter().next().unwrap_or_default();
    let file =
        |path: &PathBuf| ImageFile { device: "all".to_owned(), class: class.clone(), path: path.clone() };
    let files: Vec<ImageFile> = files.iter().map(file).collect();
    import(first, &files, &conversion, target, TableCoding::default(), Provenance::new("images"))
}

/// Returns the images among files, in folders at any depth, and in a column of tables.
pub fn find(paths: &[PathBuf]) -> Result<Vec<PathBuf>, ImportError> {
    let mut found = Vec::new();
    for path in paths {
        if path.is_dir() {
            let mut listed = Vec::new();
            list(path, &mut Vec::new(), &mut listed)?;
            if listed.is_empty() {
                return Err(ImportError::file(path, ImportProblem::Nothing("no PNG or JPEG images")));
            }
            found.extend(listed.into_iter().map(|(_, path)| path));
        } else if is_image(path) {
            found.push(path.clone());
        } else {
            found.extend(listed_in_table(path)?);
        }
    }
    Ok(found)
}

/// Returns the images of a table: those of the first column whose first value is the name of one.
fn listed_in_table(path: &Path) -> Result<Vec<PathBuf>, ImportError> {
    let table = TableFiles::open(&[path.to_owned()], super::auto::detect(path)?, None)?;
    let folder = path.parent().unwrap_or(Path::new("."));
    let (mut rows, mut column, mut found) = (table.rows()?, None, Vec::new());
    while rows.next()? {
        if column.is_none() {
            for place in 0..table.header.len() {
                let text = rows.text(place)?.unwrap_or_default();
                if column.is_none() && is_image(Path::new(text.trim())) {
                    column = Some(place);
                }
            }
        }
        let place = column.ok_or_else(|| rows.error(ImportProblem::Nothing("no path of an image")))?;
        let path = folder.join(rows.text(place)?.unwrap_or_default().trim());
        if !path.is_file() {
            return Err(rows.error(ImportProblem::NoImageFile(path)));
        }
        found.push(path);
    }
    Ok(found)
}

/// Imports a table with a column of paths, relative to the folder of the table.
pub fn import_table(
    path: &Path,
    format: TableFormat,
    columns: &TableColumns,
    image: &str,
    options: ImageOptions,
    target: &ImportTarget,
) -> Result<Imported, ImportError> {
    let conversion = Conversion::New(options);
    let table = TableFiles::open(&[path.to_owned()], format, None)?;
    let device = columns.device.as_deref().map(|name| table.column(name)).transpose()?;
    let (label, image) = (table.column(&columns.label)?, table.column(image)?);
    let folder = path.parent().unwrap_or(Path::new("."));
    let (mut rows, mut files) = (table.rows()?, Vec::new());
    while rows.next()? {
        let text = |place: usize| -> Result<String, ImportError> {
            let text = rows.text(place)?.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
            let column = || ImportProblem::MissingValue { column: table.header[place].clone() };
            text.ok_or_else(|| rows.error(column()))
        };
        let device = device.map_or_else(|| Ok("all".to_owned()), text)?;
        let path = folder.join(text(image)?);
        if !path.is_file() {
            return Err(rows.error(ImportProblem::NoImageFile(path)));
        }
        files.push(ImageFile { device, class: text(label)?, path });
    }
    let mut source = Provenance::new("images");
    source.file(path);
    let coding = TableCoding {
        device: columns.device.clone(),
        label: Some(columns.label.clone()),
        ..TableCoding::default()
    };
    import(path, &files, &conversion, target, coding, source)
}

/// Lists the images of a folder in the order of their names, with the names of the folders. Returns
/// the number of other files that are not hidden.
fn list(
    folder: &Path,
    names: &mut Vec<String>,
    found: &mut Vec<(Vec<String>, PathBuf)>,
) -> Result<u64, ImportError> {
    const DEEPEST: usize = 8;
    let failed = |source| ImportError::file(folder, ImportProblem::Io(source));
    let entries = std::fs::read_dir(folder).map_err(failed)?;
    let mut paths = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<Vec<_>, _>>()
        .map_err(failed)?;
    paths.sort();
    let mut others = 0;
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with('.') {
            continue;
        }
        if path.is_dir() && names.len() < DEEPEST {
            names.push(name);
            others += list(&path, names, found)?;
            names.pop();
        } else if is_image(&path) {
            found.push((names.clone(), path));
        } else {
            others += 1;
        }
    }
    Ok(others)
}

fn read(path: &Path) -> Result<DecodedImage, ImportError> {
    let bytes = Input::read_all(path, LARGEST_FILE)?;
    decode(&bytes).map_err(|problem| ImportError::file(path, problem))
}

/// Returns the shape of all images after the conversion.
fn shape(files: &[ImageFile], options: ImageOptions) -> Result<ImageShape, ImportError> {
    let (mut sizes, mut is_colour): (HashMap<(usize, usize), usize>, bool) = (HashMap::new(), false);
    let every = files.len().div_ceil(SAMPLE).max(1);
    for file in files.iter().step_by(every) {
        let image = read(&file.path)?;
        *sizes.entry((image.width, image.height)).or_default() += 1;
        is_colour |= image.is_colour;
    }
    let frequent = sizes.into_iter().max_by_key(|&(size, count)| (count, size)).map(|(size, _)| size);
    let (width, height) = options.size.or(frequent).unwrap_or((1, 1));
    let is_colour = match options.colour {
        Colour::Auto => is_colour,
        Colour::Grey => false,
        Colour::Rgb => true,
    };
    Ok(ImageShape { width, height, channels: if is_colour { 3 } else { 1 } })
}

fn import(
    path: &Path,
    files: &[ImageFile],
    conversion: &Conversion,
    target: &ImportTarget,
    coding: TableCoding,
    mut source: Provenance,
) -> Result<Imported, ImportError> {
    if files.is_empty() {
        return Err(ImportError::file(path, ImportProblem::Nothing("no PNG or JPEG images")));
    }
    let names = conversion.classes(files);
    let classes: BTreeMap<&str, u32> = names.iter().map(String::as_str).zip(0..).collect();
    let shape = conversion.shape(files)?;
    let mut spool = Spool::new(&target.parent())?;
    let (mut resized, mut grey) = (0, 0);
    for file in files {
        let image = read(&file.path)?;
        resized += u64::from((image.width, image.height) != (shape.width, shape.height));
        grey += u64::from(image.is_colour && shape.channels == 1);
        let device = spool.device(&file.device);
        spool.row(device, &pixels(image, shape))?;
        let class = classes.get(file.class.as_str()).ok_or_else(|| {
            let problem = ImportProblem::UnknownClass { name: file.class.clone(), known: names.clone() };
            ImportError::file(&file.path, problem)
        })?;
        spool.label(*class);
    }
    source.option("images", format!("{} × {} × {}", shape.width, shape.height, shape.channels));
    if resized > 0 {
        source.option("resized", format!("{resized} images, with a Lanczos filter"));
    }
    if grey > 0 {
        source.option("colours", format!("{grey} coloured images became grey"));
    }
    let mut sorted = spool.finish()?;
    let roster = target.roster(&sorted.counts, &mut source)?;
    let kind = InputKind::Bytes { dim: shape.features() };
    let heading =
        target.heading("images", kind, TargetKind::Classes(names.len().max(target.classes.unwrap_or(0))));
    let mut writer = FederationWriter::create(&target.out, heading)?;
    target.record(&mut writer, source);
    writer.class_names(names).coding(TableCoding { image: Some(shape), ..coding });
    let (mut bytes, mut labels) = (Vec::new(), Vec::new());
    for (device, split) in roster {
        sorted.load(device, &mut bytes, &mut labels)?;
        writer.push(&sorted.ids[device], split, DeviceExamples::Bytes(&bytes), &labels)?;
    }
    Ok(Imported::new(writer.finish()?, target))
}

/// Returns the pixels of an image in the shape, channel by channel.
fn pixels(image: DecodedImage, shape: ImageShape) -> Vec<u8> {
    let channels = match shape.channels {
        1 => vec![image.into_grey()],
        _ => Vec::from(image.into_channels()),
    };
    let in_shape = |channel: super::image::GreyImage| {
        if (channel.width, channel.height) == (shape.width, shape.height) {
            channel.pixels
        } else {
            channel.resized(shape.width, shape.height).pixels
        }
    };
    channels.into_iter().flat_map(in_shape).collect()
}
