//! CSV and TSV with a header: a row per example, with columns for its device, its label and its features.

use std::path::Path;

use super::delimited::{Delimited, column};
use super::error::{ImportError, Problem};
use super::features::{FeatureSpool, Features};
use super::{Imported, Target};
use deltafl::data::Source;

pub use super::delimited::Dialect;

/// Which columns hold what.
#[derive(Clone, Debug)]
pub struct Columns {
    /// Whose example it is; `None` puts all examples on one device, for a partitioner to divide.
    pub device: Option<String>,
    /// The class, a whole number.
    pub label: String,
    /// The features: names, or `prefix*`; all other columns when empty.
    pub features: Vec<String>,
}

/// Imports a delimited file.
pub fn import(
    path: &Path,
    dialect: Dialect,
    columns: &Columns,
    features: Features,
    target: &Target,
) -> Result<Imported, ImportError> {
    let mut file = Delimited::open(path, dialect, true)?;
    let header = file.header()?;
    let device = columns.device.as_ref().map(|name| column(path, &header, name)).transpose()?;
    let label = column(path, &header, &columns.label)?;
    let inputs = feature_columns(path, &header, columns)?;
    let mut rows = FeatureSpool::new(target, features)?;
    let mut row = Vec::with_capacity(inputs.len());
    while file.next()? {
        row.clear();
        for &input in &inputs {
            row.push(number(file.text(input)?).map_err(|problem| file.error(problem))?);
        }
        rows.check(&row).map_err(|problem| file.error(problem))?;
        let class = parse_label(file.text(label)?, target.classes).map_err(|problem| file.error(problem))?;
        let device = rows.spool.device(device.map_or(Ok("all"), |device| file.text(device))?);
        rows.row(device, &row)?;
        rows.spool.label(class);
    }
    if rows.spool.rows() == 0 {
        return Err(ImportError::file(path, Problem::Nothing("no examples")));
    }
    let mut source = Source::new(if dialect == Dialect::Csv { "csv" } else { "tsv" });
    source.file(path);
    rows.finish(target, source)
}

/// The columns of the features: those named, or all but the device's and the label's.
pub(crate) fn feature_columns(
    path: &Path,
    header: &[String],
    columns: &Columns,
) -> Result<Vec<usize>, ImportError> {
    let is_other = |name: &str| Some(name) == columns.device.as_deref() || name == columns.label;
    if columns.features.is_empty() {
        return Ok((0..header.len()).filter(|&i| !is_other(&header[i])).collect());
    }
    let mut found = Vec::new();
    for name in &columns.features {
        match name.strip_suffix('*') {
            None => found.push(column(path, header, name)?),
            Some(prefix) => {
                let before = found.len();
                found.extend(
                    (0..header.len()).filter(|&i| header[i].starts_with(prefix) && !is_other(&header[i])),
                );
                if found.len() == before {
                    column(path, header, name)?;
                }
            }
        }
    }
    Ok(found)
}

fn number(text: &str) -> Result<f32, Problem> {
    let trimmed = text.trim();
    trimmed.parse().map_err(|_| Problem::Number(trimmed.to_owned()))
}

/// A class from text; `3.0` is one, as data frames write them.
pub(crate) fn parse_label(text: &str, classes: Option<usize>) -> Result<u32, Problem> {
    let text = text.trim();
    let whole = text.strip_suffix(".0").unwrap_or(text);
    let label: u16 = whole.parse().map_err(|_| Problem::Label(text.to_owned()))?;
    in_range(label.into(), classes)
}

/// The label, when it lies below the number of classes that was asked for.
pub(crate) fn in_range(label: u32, classes: Option<usize>) -> Result<u32, Problem> {
    match classes {
        Some(classes) if label as usize >= classes => Err(Problem::LabelRange { label, classes }),
        _ => Ok(label),
    }
}
