//! The inspected values of a column, and the type and roles that they suggest.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use super::ColumnRole;
use crate::import::cell::{Cell, Decimal, days, has_comma, is_missing, number, truth_word};
use crate::import::encoding::class_name;
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
    /// Numbers with a unit or with separated thousands.
    decorated: u64,
    /// Numbers with decimal commas, where they are not expected.
    commas: u64,
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
            decorated: 0,
            commas: 0,
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
            Cell::Truth(truth) => Some(truth_word(*truth).to_owned()),
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
            Cell::Number(number) => Some(number.as_f32()),
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
            if is_decorated(&text) {
                self.decorated += 1;
            } else {
                self.commas += u64::from(has_comma(&text) && number(&text, Decimal::Comma).is_some());
            }
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
        if self.other.is_some() {
            return ColumnRole::Other;
        }
        if present == 0 || (distinct == 1 && present > 1) {
            return ColumnRole::Constant;
        }
        let unusual = self.decorated + self.commas;
        if 10 * (self.numbers + unusual) >= 9 * present && 10 * unusual >= present {
            return ColumnRole::Other;
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

    /// Why the column is not used, if its role is `Other` or `Constant`.
    pub(super) fn unused(&self) -> &'static str {
        match self.other {
            Some(found) => found,
            None if self.commas > 0 => "numbers with decimal commas: give --decimal ,",
            None if self.decorated > 0 => {
                "numbers with units or separated thousands: write plain numbers such as 1234.5"
            }
            None if self.present == 0 => "no values",
            None => "one value",
        }
    }

    pub(super) fn label_score(&self) -> u32 {
        // Labels are rarely missing.
        let is_complete = 10 * self.missing <= self.present;
        let is_few = u32::from(is_complete && !self.is_full && self.distinct.len() <= 20);
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

    /// Whether the name says that the column is a label.
    pub(super) fn is_named_label(&self) -> bool {
        self.label_score() >= 4
    }

    /// Whether the values are numbers to predict rather than classes.
    pub(super) fn is_quantity(&self) -> bool {
        self.kind() == ColumnRole::Number && (!self.is_whole || self.is_full || self.classes() > 20)
    }

    /// Whether the values are the whole numbers from 0 to one less than their count.
    pub(super) fn is_dense(&self) -> bool {
        self.is_whole && self.lowest.abs() < 0.5 && (self.highest as usize) < self.classes()
    }

    /// Returns the number of classes: `3` and `3.0` are one.
    fn classes(&self) -> usize {
        self.distinct.keys().map(|text| class_name(text)).collect::<HashSet<_>>().len()
    }

    pub(super) fn note(&self, role: ColumnRole, reason: Option<&str>, regression: bool) -> String {
        let mut notes = Vec::new();
        let more = if self.is_full { "more than " } else { "" };
        let distinct = self.distinct.len();
        match role {
            ColumnRole::Label if regression => notes.push("numbers to predict".to_owned()),
            ColumnRole::Label => notes.push(format!("{more}{} classes", self.classes())),
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

/// Whether a text is a number with a unit of money, a percent sign or separated thousands.
fn is_decorated(text: &str) -> bool {
    const UNITS: [char; 5] = ['%', '$', '€', '£', '¥'];
    let bare = text.trim_matches(|c: char| UNITS.contains(&c) || c.is_whitespace());
    let unsigned = bare.strip_prefix(['-', '+']).unwrap_or(bare).trim_start_matches(UNITS);
    let (whole, fraction) = unsigned.split_once('.').unwrap_or((unsigned, "0"));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let mut groups = whole.split([',', '\'', ' ', '\u{a0}', '\u{202f}']);
    let first = groups.next().unwrap_or_default();
    let mut is_grouped = false;
    let fits = groups.all(|group| {
        is_grouped = true;
        group.len() == 3 && digits(group)
    });
    let is_number = digits(first) && digits(fraction) && fits && (!is_grouped || first.len() <= 3);
    is_number && (is_grouped || unsigned != text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_that_is_written_in_two_ways_is_counted_once() {
        let mut labels = Sample::new("label");
        for text in ["0", "0.0", "2"] {
            labels.add(&Cell::Text(text.into()), Decimal::Point);
        }
        assert_eq!(labels.note(ColumnRole::Label, None, false), "2 classes");
        assert!(!labels.is_dense(), "no label is 1");
    }

    #[test]
    fn numbers_with_units_and_separated_thousands_are_recognised() {
        for text in ["12%", "$3.50", "1,234", "-1,234,567.8", "€ 12", "12 €", "1'000", "-$5", "1\u{a0}000.5"]
        {
            assert!(is_decorated(text), "{text}");
        }
        for text in
            ["12", "1.5", "1,23", "12,3456", "a%", "%", "", "1234,567", "3 rooms", "10-20", "1,234,56"]
        {
            assert!(!is_decorated(text), "{text}");
        }
    }
}
