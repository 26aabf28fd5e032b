//! Labels and splits of examples.

use deltafl::data::Split;

use crate::import::error::ImportProblem;
use crate::writer::MOST_CLASSES;

/// Class numbers above this are checked for gaps.
const FEW_CLASSES: u32 = 1000;

/// Checks that class numbers use at least a tenth of the range up to the highest. Numbers to predict
/// that were imported as classes would give a class to each number of the range.
pub(crate) fn check_density(labels: &[u32]) -> Result<(), ImportProblem> {
    let highest = labels.iter().copied().max().unwrap_or_default();
    if highest < FEW_CLASSES {
        return Ok(());
    }
    let mut seen = labels.to_vec();
    seen.sort_unstable();
    seen.dedup();
    let (distinct, classes) = (seen.len(), highest as usize + 1);
    if classes > 10 * distinct {
        return Err(ImportProblem::SparseLabels { distinct, highest, classes });
    }
    Ok(())
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

/// Converts a number to a class.
pub(crate) fn whole_label(label: f64, classes: Option<usize>) -> Result<u32, ImportProblem> {
    if label.fract() != 0.0 || !(0.0..=f64::from(u32::MAX)).contains(&label) {
        return Err(ImportProblem::Label(label.to_string()));
    }
    class(label as u32, classes)
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
