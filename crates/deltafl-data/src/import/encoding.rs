//! The conversion of cells to features and labels.
//!
//! A column of words with k different values becomes k features in the order of the values: 1 for the
//! value of the example, 0 for the others. A label in words becomes a class, numbered in the order of
//! the words. The classes keep their names.

use deltafl::data::{FeatureColumn, MISSING};

use super::cell::{Cell, Decimal, days, is_day_first, is_missing, number, truth_word};
use super::error::ImportProblem;
use super::fast_hash::FastMap;

/// Most different words of a feature column: each is a feature.
pub(crate) const MOST_CATEGORIES: usize = 1000;

/// The conversion of a column to features.
#[derive(Debug)]
pub(crate) struct FeatureCoder {
    /// The index of the column in the table.
    pub(crate) place: usize,
    pub(crate) column: FeatureColumn,
    index: FastMap<usize>,
    decimal: Decimal,
    /// The number of words that are not among the categories.
    unseen: std::cell::Cell<u64>,
}

impl FeatureCoder {
    pub(crate) fn new(place: usize, column: FeatureColumn, decimal: Decimal) -> Self {
        let index = column.categories.iter().cloned().zip(0..).collect();
        Self { place, column, index, decimal, unseen: std::cell::Cell::new(0) }
    }

    /// Returns the number of words so far that are not among the categories.
    pub(crate) fn unseen(&self) -> u64 {
        self.unseen.get()
    }

    /// Appends the features of a cell.
    pub(crate) fn push(&self, cell: &Cell<'_>, row: &mut Vec<f32>) -> Result<(), ImportProblem> {
        if self.column.categories.is_empty() {
            let number = self.number(cell)?;
            let filled = number.or(self.column.fill);
            row.push(filled.ok_or_else(|| missing_value(&self.column.name))?);
            if self.column.indicator {
                row.push(f32::from(u8::from(number.is_none())));
            }
            return Ok(());
        }
        let first = row.len();
        row.resize(first + self.column.width(), 0.0);
        let word = word(cell, &self.column.name)?;
        let place = find_word(word.as_deref().unwrap_or(MISSING), &self.index);
        let other = self.column.other.then_some(self.column.categories.len());
        if place.is_none() {
            self.unseen.set(self.unseen.get() + 1);
        }
        if let Some(place) = place.or(other) {
            row[first + place] = 1.0;
        }
        Ok(())
    }

    /// Returns the number of a cell, or `None` if it is missing.
    fn number(&self, cell: &Cell<'_>) -> Result<Option<f32>, ImportProblem> {
        match self.column.date {
            true => date(cell, &self.column.name),
            false => numeric(cell, &self.column.name, self.decimal),
        }
    }
}

/// Returns the place of a word. Formats spell truth values and whole numbers differently: `True` and
/// `3.0` of pandas are `true` of JSON and `3` of Parquet.
pub(crate) fn find_word<T: Copy>(word: &str, index: &FastMap<T>) -> Option<T> {
    const SPELLINGS: [[&str; 3]; 2] = [["true", "True", "TRUE"], ["false", "False", "FALSE"]];
    index.get(word).copied().or_else(|| {
        if word.bytes().next().is_some_and(|byte| byte.is_ascii_digit() || byte == b'-') {
            let whole = class_name(word);
            let other = if whole.len() < word.len() { whole.to_owned() } else { format!("{word}.0") };
            return index.get(&other).copied();
        }
        let spellings = SPELLINGS.iter().find(|spellings| spellings.contains(&word))?;
        spellings.iter().find_map(|spelling| index.get(*spelling).copied())
    })
}

/// Returns the error of a missing value.
pub(crate) fn missing_value(column: &str) -> ImportProblem {
    ImportProblem::MissingValue { column: column.to_owned() }
}

/// Returns the error of a type that is not a feature.
pub(crate) fn unsupported(column: &str, found: &str) -> ImportProblem {
    ImportProblem::Unsupported {
        what: format!("the column {column:?}"),
        found: found.to_owned(),
        supported: "numbers, words and dates, and in Parquet files also lists of numbers and images,",
    }
}

/// Returns the number of a cell, or `None` if it is missing.
pub(crate) fn numeric(cell: &Cell<'_>, column: &str, decimal: Decimal) -> Result<Option<f32>, ImportProblem> {
    match cell {
        Cell::Missing => Ok(None),
        Cell::Number(number) => Ok(Some(number.as_f32())),
        Cell::Truth(truth) => Ok(Some(f32::from(u8::from(*truth)))),
        Cell::Days(days) => Ok(Some(*days as f32)),
        Cell::Text(text) => match number(text, decimal) {
            Some(number) if number.is_nan() => Ok(None),
            Some(number) => Ok(Some(number)),
            None if is_missing(text) || *text == "?" || *text == "-" => Ok(None),
            None => Err(ImportProblem::Word { text: text.clone().into_owned(), column: column.to_owned() }),
        },
        Cell::Other(found) => Err(unsupported(column, found)),
    }
}

/// Returns the days of a date, or `None` if it is missing.
pub(crate) fn date(cell: &Cell<'_>, column: &str) -> Result<Option<f32>, ImportProblem> {
    match cell {
        Cell::Missing => Ok(None),
        Cell::Days(days) => Ok(Some(*days as f32)),
        Cell::Text(text) => match days(text) {
            Some(_) if is_day_first(text) => {
                Err(ImportProblem::DayFirst { text: text.clone().into_owned(), column: column.to_owned() })
            }
            Some(days) => Ok(Some(days as f32)),
            None if is_missing(text) => Ok(None),
            None => Err(ImportProblem::Date { text: text.clone().into_owned(), column: column.to_owned() }),
        },
        Cell::Number(number) => {
            Err(ImportProblem::Date { text: number.to_string(), column: column.to_owned() })
        }
        Cell::Truth(truth) => Err(ImportProblem::Date { text: truth.to_string(), column: column.to_owned() }),
        Cell::Other(found) => Err(unsupported(column, found)),
    }
}

/// Returns the word of a cell, or `None` if it is missing.
pub(crate) fn word<'c>(
    cell: &'c Cell<'_>,
    column: &str,
) -> Result<Option<std::borrow::Cow<'c, str>>, ImportProblem> {
    Ok(match cell {
        Cell::Missing => None,
        Cell::Text(text) if is_missing(text) => None,
        Cell::Text(text) => Some(std::borrow::Cow::Borrowed(text)),
        Cell::Number(number) => Some(number.to_string().into()),
        Cell::Truth(truth) => Some(truth_word(*truth).into()),
        Cell::Days(days) => Some(days.to_string().into()),
        Cell::Other(found) => return Err(unsupported(column, found)),
    })
}

/// The conversion of the label.
#[derive(Debug)]
pub(crate) enum LabelCoder {
    /// A class by its number.
    Class,
    /// A class by its name.
    Words(FastMap<u32>, Vec<String>),
    /// A real number.
    Value(Decimal),
}

impl LabelCoder {
    pub(crate) fn words(names: Vec<String>) -> Self {
        Self::Words(names.iter().cloned().zip(0..).collect(), names)
    }

    /// The names of the classes, if they have names.
    pub(crate) fn class_names(&self) -> Vec<String> {
        match self {
            Self::Words(_, names) => names.clone(),
            Self::Class | Self::Value(_) => Vec::new(),
        }
    }
}

/// Returns the name of a class: `3.0` is class 3, as data frames write it.
pub(crate) fn class_name(text: &str) -> &str {
    match text.strip_suffix(".0") {
        Some(whole) if whole.parse::<i64>().is_ok() => whole,
        _ => text,
    }
}
