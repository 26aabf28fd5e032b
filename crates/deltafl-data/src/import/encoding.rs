//! Columns of words: categorical features, and names of classes.
//!
//! A column whose first value is not a number contains words. A column of words with k different
//! values becomes k features in the order of the values: 1 for the value of the example, 0 for the
//! others. A label in words becomes a class, numbered in the order of the words. The classes keep
//! their names.

use std::collections::{BTreeSet, HashMap};

use deltafl::data::FeatureColumn;

use super::error::ImportProblem;

/// Most different words of a feature column: each is a feature.
pub(crate) const MOST_CATEGORIES: usize = 1000;

/// The different words of a column during collection.
#[derive(Debug)]
pub(crate) struct WordSet {
    column: String,
    most: usize,
    seen: BTreeSet<String>,
}

impl WordSet {
    pub(crate) fn new(column: &str, most: usize) -> Self {
        Self { column: column.to_owned(), most, seen: BTreeSet::new() }
    }

    pub(crate) fn add(&mut self, word: &str) -> Result<(), ImportProblem> {
        let word = word.trim();
        if word.is_empty() {
            return Err(ImportProblem::MissingValue { column: self.column.clone() });
        }
        if !self.seen.contains(word) {
            if self.seen.len() == self.most {
                return Err(ImportProblem::Categories { column: self.column.clone(), most: self.most });
            }
            self.seen.insert(word.to_owned());
        }
        Ok(())
    }

    pub(crate) fn finish(self) -> ColumnWords {
        let index = self.seen.iter().enumerate().map(|(i, word)| (word.clone(), i as u32)).collect();
        ColumnWords { column: self.column, sorted: self.seen.into_iter().collect(), index }
    }
}

/// The words of a column in sorted order.
#[derive(Debug)]
pub(crate) struct ColumnWords {
    column: String,
    pub(crate) sorted: Vec<String>,
    index: HashMap<String, u32>,
}

impl ColumnWords {
    /// Returns the index of a word.
    pub(crate) fn number(&self, word: &str) -> Result<u32, ImportProblem> {
        // The file is read twice and may have changed in between.
        let missing = || ImportProblem::MissingValue { column: self.column.clone() };
        self.index.get(word.trim()).copied().ok_or_else(missing)
    }

    /// Appends one feature per word: 1 for this word, 0 for the others.
    pub(crate) fn push_one_hot(&self, word: &str, row: &mut Vec<f32>) -> Result<(), ImportProblem> {
        let at = row.len() + self.number(word)? as usize;
        row.resize(row.len() + self.sorted.len(), 0.0);
        row[at] = 1.0;
        Ok(())
    }
}

/// The conversion of a column to features.
#[derive(Debug)]
pub(crate) enum FeatureEncoding {
    Number,
    Words(ColumnWords),
}

/// The conversion of the label.
#[derive(Debug)]
pub(crate) enum LabelEncoding {
    /// A class by its number.
    Class,
    /// A class by its name.
    Words(ColumnWords),
    /// A real number.
    Value,
}

/// The conversion of the columns of a table.
#[derive(Debug)]
pub(crate) struct TableEncoding {
    pub(crate) features: Vec<(String, FeatureEncoding)>,
    pub(crate) label: LabelEncoding,
}

impl TableEncoding {
    /// The columns from which the features are computed; empty if all columns contain numbers.
    pub(crate) fn feature_columns(&self) -> Vec<FeatureColumn> {
        if self.features.iter().all(|(_, feature)| matches!(feature, FeatureEncoding::Number)) {
            return Vec::new();
        }
        let column = |(name, feature): &(String, FeatureEncoding)| FeatureColumn {
            name: name.clone(),
            categories: match feature {
                FeatureEncoding::Number => Vec::new(),
                FeatureEncoding::Words(words) => words.sorted.clone(),
            },
        };
        self.features.iter().map(column).collect()
    }

    /// The names of the classes, if they have names.
    pub(crate) fn class_names(&self) -> Vec<String> {
        match &self.label {
            LabelEncoding::Words(words) => words.sorted.clone(),
            LabelEncoding::Class | LabelEncoding::Value => Vec::new(),
        }
    }
}

/// The words of the columns that contain words, during collection.
#[derive(Debug, Default)]
pub(crate) struct WordCollection {
    pub(crate) features: Vec<(String, Option<WordSet>)>,
    pub(crate) label: Option<WordSet>,
}

impl WordCollection {
    /// Returns the conversion of the columns.
    pub(crate) fn finish(self, regression: bool) -> TableEncoding {
        let feature = |set: Option<WordSet>| {
            set.map_or(FeatureEncoding::Number, |set| FeatureEncoding::Words(set.finish()))
        };
        TableEncoding {
            features: self.features.into_iter().map(|(name, set)| (name, feature(set))).collect(),
            label: match self.label {
                Some(set) => LabelEncoding::Words(set.finish()),
                None if regression => LabelEncoding::Value,
                None => LabelEncoding::Class,
            },
        }
    }
}

/// Whether a text is a number.
pub(crate) fn is_number(text: &str) -> bool {
    text.trim().parse::<f64>().is_ok()
}
