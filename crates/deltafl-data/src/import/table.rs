//! CSV and TSV files with a header: one row per example, with columns for its device, its label and
//! its features.
//!
//! A column contains numbers or words, according to its first value; see `encoding.rs` for the
//! conversion of words.

use std::path::Path;

use super::delimited::{Delimited, column};
use super::encoding::{
    FeatureEncoding, LabelEncoding, MOST_CATEGORIES, TableEncoding, WordCollection, WordSet, is_number,
};
use super::error::{ImportError, ImportProblem};
use super::features::{FeatureSpool, Features};
use super::{ImportTarget, Imported};
use crate::writer::MOST_CLASSES;
use deltafl::data::{Provenance, Split};

pub use super::delimited::Dialect;

/// The columns of a table.
#[derive(Clone, Debug, Default)]
pub struct TableColumns {
    /// The device of the example; one device for all examples if `None`, and a partition can divide
    /// them.
    pub device: Option<String>,
    /// The class, a whole number or a word; with [`ImportTarget::regression`] the real target.
    pub label: String,
    /// The features: names, or `prefix*`. If empty, all other columns, except an unnamed first one.
    pub features: Vec<String>,
    /// Columns of features that contain words although they start with a number.
    pub categories: Vec<String>,
    /// The split of each example, `train`, `test` or `validation`, which determines the split of
    /// devices.
    pub split: Option<String>,
}

/// The indices of the columns of a file.
struct ColumnIndices {
    device: Option<usize>,
    split: Option<usize>,
    label: usize,
    features: Vec<usize>,
}

/// Imports a delimited file.
pub fn import(
    path: &Path,
    dialect: Dialect,
    columns: &TableColumns,
    features: Features,
    target: &ImportTarget,
) -> Result<Imported, ImportError> {
    let mut file = Delimited::open(path, dialect, true)?;
    let header = file.header()?;
    let places = ColumnIndices {
        device: columns.device.as_ref().map(|name| column(path, &header, name)).transpose()?,
        split: columns.split.as_ref().map(|name| column(path, &header, name)).transpose()?,
        label: column(path, &header, &columns.label)?,
        features: feature_columns(path, &header, columns)?,
    };
    let encoding = survey(path, dialect, &header, &places, columns, target)?;
    let mut rows = FeatureSpool::new(target, features)?;
    let mut row = Vec::with_capacity(places.features.len());
    while file.next()? {
        read_features(&file, &places, &encoding, &mut row)?;
        rows.check(&row).map_err(|problem| file.error(problem))?;
        let (id, split) = owner(&file, &places)?;
        let device = rows.spool.device_in(id, split);
        rows.row(device, &row)?;
        let text = file.text(places.label)?;
        match &encoding.label {
            LabelEncoding::Class => {
                let class = parse_label(text, target.classes).map_err(|problem| file.error(problem))?;
                rows.spool.label(class);
            }
            LabelEncoding::Words(words) => {
                let class = words.number(text).and_then(|class| in_range(class, target.classes));
                rows.spool.label(class.map_err(|problem| file.error(problem))?);
            }
            LabelEncoding::Value => rows.spool.value(value(text).map_err(|problem| file.error(problem))?),
        }
    }
    if rows.spool.rows() == 0 {
        return Err(ImportError::file(path, ImportProblem::Nothing("no examples")));
    }
    let mut source = Provenance::new(if dialect == Dialect::Tsv { "tsv" } else { "csv" });
    source.file(path);
    if columns.features.is_empty() && is_index(&header, columns) {
        source.dropped("unnamed first column, an index", 1);
    }
    rows.set_encoding(&encoding);
    rows.finish(target, source)
}

/// Returns the conversion of each column: from its first value, and for a word, from all values.
fn survey(
    path: &Path,
    dialect: Dialect,
    header: &[String],
    places: &ColumnIndices,
    columns: &TableColumns,
    target: &ImportTarget,
) -> Result<TableEncoding, ImportError> {
    let mut file = Delimited::open(path, dialect, true)?;
    file.header()?;
    let has_rows = file.next()?;
    let holds_words = |file: &Delimited, place: usize| -> Result<bool, ImportError> {
        let text = file.text(place)?.trim();
        Ok(has_rows && !text.is_empty() && !is_number(text))
    };
    let mut survey = WordCollection::default();
    for &place in &places.features {
        let words = columns.categories.contains(&header[place]) || holds_words(&file, place)?;
        let set = words.then(|| WordSet::new(&header[place], MOST_CATEGORIES));
        survey.features.push((header[place].clone(), set));
    }
    let words = !target.regression && holds_words(&file, places.label)?;
    survey.label = words.then(|| WordSet::new(&header[places.label], MOST_CLASSES));
    let any = survey.label.is_some() || survey.features.iter().any(|(_, set)| set.is_some());
    let mut more = has_rows && any;
    while more {
        for ((_, set), &place) in survey.features.iter_mut().zip(&places.features) {
            if let Some(set) = set {
                set.add(file.text(place)?).map_err(|problem| file.error(problem))?;
            }
        }
        if let Some(classes) = &mut survey.label {
            classes.add(file.text(places.label)?).map_err(|problem| file.error(problem))?;
        }
        more = file.next()?;
    }
    Ok(survey.finish(target.regression))
}

fn read_features(
    file: &Delimited,
    places: &ColumnIndices,
    encoding: &TableEncoding,
    row: &mut Vec<f32>,
) -> Result<(), ImportError> {
    row.clear();
    for (&place, (name, feature)) in places.features.iter().zip(&encoding.features) {
        let text = file.text(place)?;
        let read = match feature {
            FeatureEncoding::Number => number(text, name).map(|x| row.push(x)),
            FeatureEncoding::Words(words) => words.push_one_hot(text, row),
        };
        read.map_err(|problem| file.error(problem))?;
    }
    Ok(())
}

/// Returns the device of an example, and its split if a column contains it.
fn owner<'f>(file: &'f Delimited, places: &ColumnIndices) -> Result<(&'f str, Option<Split>), ImportError> {
    let id = places.device.map_or(Ok("all"), |device| file.text(device))?;
    if id.trim().is_empty() {
        return Err(file.error(ImportProblem::UnnamedDevice));
    }
    let split = match places.split {
        None => None,
        Some(place) => Some(parse_split(file.text(place)?).map_err(|problem| file.error(problem))?),
    };
    Ok((id, split))
}

/// Returns the columns of the features: the named ones, or all except those of device, label, split
/// and index.
pub(crate) fn feature_columns(
    path: &Path,
    header: &[String],
    columns: &TableColumns,
) -> Result<Vec<usize>, ImportError> {
    let is_other = |name: &str| {
        [columns.device.as_deref(), columns.split.as_deref(), Some(columns.label.as_str())]
            .contains(&Some(name))
    };
    for name in &columns.categories {
        column(path, header, name)?;
    }
    if columns.features.is_empty() {
        let first = usize::from(is_index(header, columns));
        return Ok((first..header.len()).filter(|&i| !is_other(&header[i])).collect());
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

/// Whether the first column is the index that pandas writes: without a name, or with the name that
/// a second reading gives it.
pub(crate) fn is_index(header: &[String], columns: &TableColumns) -> bool {
    let is_named = |name: &String| columns.device.as_ref() == Some(name) || columns.label == *name;
    header.first().is_some_and(|name| {
        (name.is_empty() || name == "Unnamed: 0" || name == "__index_level_0__") && !is_named(name)
    })
}

fn number(text: &str, column: &str) -> Result<f32, ImportProblem> {
    let trimmed = text.trim();
    if trimmed.is_empty() {
        return Err(ImportProblem::MissingValue { column: column.to_owned() });
    }
    let word = || ImportProblem::Word { text: trimmed.to_owned(), column: column.to_owned() };
    trimmed.parse().map_err(|_| word())
}

/// Parses a real target.
pub(crate) fn value(text: &str) -> Result<f32, ImportProblem> {
    let value: f32 = text.trim().parse().map_err(|_| ImportProblem::Number(text.trim().to_owned()))?;
    finite(value)
}

/// Returns a real target if it is finite.
pub(crate) fn finite(value: f32) -> Result<f32, ImportProblem> {
    if value.is_finite() { Ok(value) } else { Err(ImportProblem::Value) }
}

/// Parses a class; `3.0` is one, as data frames write them.
pub(crate) fn parse_label(text: &str, classes: Option<usize>) -> Result<u32, ImportProblem> {
    let text = text.trim();
    let whole = text.strip_suffix(".0").unwrap_or(text);
    let label: u32 = whole.parse().map_err(|_| ImportProblem::Label(text.to_owned()))?;
    class(label, classes)
}

/// Parses the split of an example.
pub(crate) fn parse_split(text: &str) -> Result<Split, ImportProblem> {
    match text.trim().to_lowercase().as_str() {
        "train" | "training" => Ok(Split::Train),
        "test" | "testing" => Ok(Split::Test),
        "validation" | "valid" | "val" | "dev" => Ok(Split::Validation),
        _ => Err(ImportProblem::Split(text.trim().to_owned())),
    }
}

/// Returns the label if it is below the requested number of classes and below the limit.
pub(crate) fn class(label: u32, classes: Option<usize>) -> Result<u32, ImportProblem> {
    match label as usize {
        0..MOST_CLASSES => in_range(label, classes),
        _ => Err(ImportProblem::Label(label.to_string())),
    }
}

/// Returns the label if it is below the requested number of classes.
pub(crate) fn in_range(label: u32, classes: Option<usize>) -> Result<u32, ImportProblem> {
    match classes {
        Some(classes) if label as usize >= classes => Err(ImportProblem::LabelRange { label, classes }),
        _ => Ok(label),
    }
}
