//! The inspected values of a column, and the type and roles that they suggest.

use std::collections::HashMap;
use std::path::Path;

use super::ColumnRole;
use crate::import::cell::{Cell, Decimal, days, is_missing, number};
use crate::import::images::is_image;
use crate::import::table::parse_split;

/// Different values of a column that are counted.
const COUNTED: usize = 5000;

const LABELS: [&str; 19] = [
    "label",
    "class",
    "target",
    "outcome",
    "sentiment",
    "polarity",
    "stars",
    "rating",
    "grade",
    "diagnosis",
    "verdict",
    "species",
    "response",
    "churn",
    "admitted",
    "readmitted",
    "labels",
    "y",
    "survived",
];
const WEAK_LABELS: [&str; 9] =
    ["type", "category", "score", "price", "income", "quality", "result", "value", "status"];

/// The inspected values of a column.
pub(super) struct Sample {
    pub(super) name: String,
    present: u64,
    missing: u64,
    numbers: u64,
    is_whole: bool,
    lowest: f32,
    highest: f32,
    dates: u64,
    images: u64,
    words: u64,
    characters: u64,
    distinct: HashMap<String, u64>,
    is_full: bool,
    /// The type of the values, if it is not a feature.
    pub(super) other: Option<&'static str>,
}

impl Sample {
    pub(super) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            present: 0,
            missing: 0,
            numbers: 0,
            is_whole: true,
            lowest: f32::INFINITY,
            highest: f32::NEG_INFINITY,
            dates: 0,
            images: 0,
            words: 0,
            characters: 0,
            distinct: HashMap::new(),
            is_full: false,
            other: None,
        }
    }

    pub(super) fn add(&mut self, cell: &Cell<'_>, decimal: Decimal) {
        let text = match cell {
            Cell::Missing => None,
            Cell::Text(text) if is_missing(text) => None,
            Cell::Text(text) => Some(text.as_ref().to_owned()),
            Cell::Number(number) => Some(number.to_string()),
            Cell::Days(days) => Some(days.to_string()),
            Cell::Other(found) => {
                self.other = Some(found);
                None
            }
        };
        let Some(text) = text else {
            self.missing += 1;
            return;
        };
        self.present += 1;
        let value = match cell {
            Cell::Number(number) => Some(*number),
            Cell::Text(text) => number(text, decimal),
            _ => None,
        };
        if let Some(value) = value {
            self.numbers += 1;
            self.is_whole &= value.fract() == 0.0;
            self.lowest = self.lowest.min(value);
            self.highest = self.highest.max(value);
        } else {
            self.dates += u64::from(matches!(cell, Cell::Days(_)) || days(&text).is_some());
            self.images += u64::from(is_image(Path::new(&text)));
            self.words += text.split_whitespace().count() as u64;
            self.characters += text.chars().count() as u64;
        }
        if let Some(count) = self.distinct.get_mut(&text) {
            *count += 1;
        } else if self.distinct.len() < COUNTED {
            self.distinct.insert(text, 1);
        } else {
            self.is_full = true;
        }
    }

    /// Returns the type of the column by its values.
    pub(super) fn kind(&self) -> ColumnRole {
        let (present, distinct) = (self.present, self.distinct.len() as u64);
        let others = (present - self.numbers).max(1);
        if self.other.is_some() || present == 0 || (distinct == 1 && present > 1) {
            return ColumnRole::Constant;
        }
        if 2 * self.numbers >= present {
            let is_id =
                self.is_whole && distinct == present && present >= 10 && self.has_word(&["id", "index"]);
            return if is_id { ColumnRole::Identifier } else { ColumnRole::Number };
        }
        if 10 * self.images >= 9 * present {
            return ColumnRole::Image;
        }
        if 10 * self.dates >= 9 * present {
            return ColumnRole::Date;
        }
        let many = self.is_full || 2 * distinct >= present;
        if many && (self.words >= 3 * others || self.characters >= 40 * others) {
            return ColumnRole::Text;
        }
        if (distinct == present && present >= 10) || self.is_full || (distinct > 50 && 2 * distinct > present)
        {
            return ColumnRole::Identifier;
        }
        ColumnRole::Category
    }

    /// Whether a word of the name is in the list.
    pub(super) fn has_word(&self, list: &[&str]) -> bool {
        let mut spaced = String::new();
        let mut before_lower = false;
        for c in self.name.chars() {
            if c.is_uppercase() && before_lower {
                spaced.push(' ');
            }
            before_lower = c.is_lowercase();
            spaced.extend(if c.is_alphanumeric() { c.to_lowercase().collect::<Vec<_>>() } else { vec![' '] });
        }
        spaced
            .split(' ')
            .any(|word| list.contains(&word) || word.strip_suffix('s').is_some_and(|w| list.contains(&w)))
    }

    /// Whether all values are names of splits.
    pub(super) fn is_split(&self) -> bool {
        !self.distinct.is_empty() && self.distinct.keys().all(|text| parse_split(text).is_ok())
    }

    pub(super) fn can_be_device(&self) -> bool {
        let kind = self.kind();
        let has_repetitions = (self.distinct.len() as u64) < self.present || self.is_full;
        let is_name = matches!(kind, ColumnRole::Category | ColumnRole::Identifier);
        has_repetitions
            && self.distinct.len() > 1
            && (is_name || (kind == ColumnRole::Number && self.is_whole))
    }

    pub(super) fn can_be_label(&self) -> bool {
        matches!(self.kind(), ColumnRole::Category | ColumnRole::Number)
    }

    pub(super) fn label_score(&self) -> u32 {
        let is_few = u32::from(!self.is_full && self.distinct.len() <= 20);
        let exact = ["label", "class", "target", "y"].contains(&self.name.to_lowercase().as_str());
        if exact {
            8
        } else if self.has_word(&LABELS) {
            6 + is_few
        } else if self.has_word(&WEAK_LABELS) {
            4 + is_few
        } else {
            is_few
        }
    }

    /// Whether the values are numbers to predict rather than classes.
    pub(super) fn is_quantity(&self) -> bool {
        self.kind() == ColumnRole::Number && (!self.is_whole || self.is_full || self.distinct.len() > 20)
    }

    /// Whether the values are the whole numbers from 0 to one less than their count.
    pub(super) fn is_dense(&self) -> bool {
        self.is_whole && self.lowest.abs() < 0.5 && (self.highest as usize) < self.distinct.len()
    }

    pub(super) fn note(&self, role: ColumnRole, reason: Option<&str>, regression: bool) -> String {
        let mut notes = Vec::new();
        let more = if self.is_full { "more than " } else { "" };
        let distinct = self.distinct.len();
        match role {
            ColumnRole::Label if regression => notes.push("numbers to predict".to_owned()),
            ColumnRole::Label => notes.push(format!("{more}{distinct} classes")),
            ColumnRole::Device => notes.push(format!("{more}{distinct} devices")),
            ColumnRole::Category => notes.push(format!("{more}{distinct} values")),
            ColumnRole::Number => notes.push(format!("{} to {}", self.lowest, self.highest)),
            ColumnRole::Text => {
                let mean = self.words as f64 / self.present.max(1) as f64;
                notes.push(format!("{mean:.0} words on average"));
            }
            _ => {}
        }
        if self.missing > 0 && self.other.is_none() {
            notes.push(format!("{} missing", self.missing));
        }
        if let Some(reason) = reason {
            notes.push(format!("not used: {reason}"));
        }
        notes.join(", ")
    }
}
