//! The first pass over a table: the types of its columns, their categories and their constants.

use deltafl::data::{FeatureColumn, IgnoredColumn, MISSING, MissingRule};

use super::ImportTarget;
use super::cell::{Cell, Decimal, days, has_comma, is_missing, is_missing_label, number, truth_word};
use super::encoding::{
    FeatureCoder, LabelCoder, MOST_CATEGORIES, class_name, date, find_word, missing_value, numeric,
    unsupported, word,
};
use super::error::{ImportError, ImportProblem};
use super::fast_hash::FastMap;
use super::rows::{TableCursor, TableFiles};
use super::table::{ColumnIndices, TableColumns};
use crate::writer::MOST_CLASSES;

/// The type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ColumnType {
    Number,
    Words,
    Date,
    /// Dates that are not used, because no option names the column.
    UnnamedDate,
}

/// A column during the first pass.
#[derive(Debug)]
struct ColumnSurvey {
    name: String,
    place: usize,
    /// Whether an option names the column as a feature.
    named: bool,
    of: Option<ColumnType>,
    words: FastMap<u64>,
    missing: u64,
    count: u64,
    sum: f64,
    decimals: DecimalSurvey,
}

/// The decimal characters of a column of numbers.
#[derive(Clone, Copy, Debug, Default)]
struct DecimalSurvey {
    has_commas: bool,
    has_points: bool,
}

/// The label during the first pass.
#[derive(Debug)]
enum LabelSurvey {
    /// The first label is not known yet.
    Unknown,
    Words(FastMap<u64>),
    /// Class numbers or real numbers.
    Numbers,
}

/// The result of the first pass.
#[derive(Debug)]
pub(crate) struct TableSurvey {
    pub(crate) features: Vec<FeatureCoder>,
    pub(crate) label: LabelCoder,
    /// Columns that are not used, in addition to those that the caller ignores.
    pub(crate) ignored: Vec<IgnoredColumn>,
    /// Missing values of each column that has some.
    pub(crate) missing: Vec<(String, u64)>,
    /// Examples that are left out because a value is missing.
    pub(crate) dropped: u64,
}

impl TableSurvey {
    /// Returns the numbers of values of categories that the columns do not have, by column.
    pub(crate) fn unseen(&self) -> Option<String> {
        let columns = self.features.iter().filter(|coder| coder.unseen() > 0 && !coder.column.other);
        let counts = columns.map(|coder| format!("{}: {}", coder.column.name, coder.unseen()));
        Some(counts.collect::<Vec<_>>().join(", ")).filter(|counts| !counts.is_empty())
    }
}

/// Whether a row is used, under the rule for missing values.
pub(crate) fn is_complete(
    rows: &TableCursor<'_>,
    places: &ColumnIndices,
    features: &[usize],
    missing: MissingRule,
) -> Result<bool, ImportError> {
    if missing == MissingRule::Error {
        return Ok(true);
    }
    if let Some(place) = places.device
        && is_empty(&rows.cell(place)?)
    {
        return Ok(false);
    }
    if let Some(place) = places.label {
        let cell = rows.cell(place)?;
        let is_missing = match &cell {
            Cell::Text(text) => is_missing_label(text),
            cell => is_empty(cell),
        };
        if is_missing {
            return Ok(false);
        }
    }
    if missing == MissingRule::Drop {
        for &place in features {
            if is_empty(&rows.cell(place)?) {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

fn is_empty(cell: &Cell<'_>) -> bool {
    match cell {
        Cell::Missing => true,
        Cell::Text(text) => is_missing(text) || *text == "?",
        Cell::Number(number) => number.as_f32().is_nan(),
        Cell::Truth(_) | Cell::Days(_) | Cell::Other(_) => false,
    }
}

/// Reads all rows, and returns the conversion of each column.
pub(crate) fn survey(
    table: &TableFiles,
    places: &ColumnIndices,
    columns: &TableColumns,
    target: &ImportTarget,
) -> Result<TableSurvey, ImportError> {
    let decimal = table.decimal;
    let mut surveys: Vec<ColumnSurvey> = places
        .features
        .iter()
        .map(|&place| ColumnSurvey::new(&table.header[place], place, columns))
        .collect();
    let mut label = match (places.label, columns.class_words) {
        (Some(_), _) if target.regression => LabelSurvey::Numbers,
        (Some(_), true) => LabelSurvey::Words(FastMap::default()),
        (Some(_), false) => LabelSurvey::Unknown,
        (None, _) => LabelSurvey::Numbers,
    };
    let (mut rows, mut dropped, mut target_decimals) = (table.rows()?, 0, DecimalSurvey::default());
    while rows.next()? {
        if !is_complete(&rows, places, &places.features, columns.missing)? {
            dropped += 1;
            continue;
        }
        for survey in &mut surveys {
            let cell = rows.cell(survey.place)?;
            survey.add(&cell, decimal, columns).map_err(|problem| rows.error(problem))?;
        }
        if let Some(place) = places.label {
            let cell = rows.cell(place)?;
            if target.regression {
                target_decimals.add(&cell, decimal);
            }
            label.add(&cell, &table.header[place]).map_err(|problem| rows.error(problem))?;
        }
    }
    finish(table, surveys, (label, target_decimals), columns, target, dropped)
}

fn finish(
    table: &TableFiles,
    surveys: Vec<ColumnSurvey>,
    (label, target_decimals): (LabelSurvey, DecimalSurvey),
    columns: &TableColumns,
    target: &ImportTarget,
    dropped: u64,
) -> Result<TableSurvey, ImportError> {
    let mut result = TableSurvey {
        features: Vec::new(),
        label: match label {
            LabelSurvey::Words(words) => LabelCoder::words(sorted(words)),
            _ if target.regression => LabelCoder::Value(table.decimal),
            _ => LabelCoder::Class,
        },
        ignored: Vec::new(),
        missing: Vec::new(),
        dropped,
    };
    let has_commas = columns.decimal == Some(Decimal::Comma)
        || target_decimals.has_commas
        || surveys.iter().any(|survey| survey.decimals.has_commas);
    if has_commas && target_decimals.has_points {
        let problem = ImportProblem::MixedDecimals { column: columns.label.clone() };
        return Err(ImportError::file(table.path(), problem));
    }
    for survey in surveys {
        if survey.missing > 0 {
            result.missing.push((survey.name.clone(), survey.missing));
        }
        let ignored = |reason: &str| IgnoredColumn { name: survey.name.clone(), reason: reason.to_owned() };
        match survey.of {
            Some(ColumnType::UnnamedDate) => result.ignored.push(ignored("dates, unless --date names them")),
            None if columns.missing != MissingRule::Error => result.ignored.push(ignored("no values")),
            Some(ColumnType::Words) if survey.has_decimal_commas(columns) => {
                let problem = ImportProblem::DecimalCommas { column: survey.name };
                return Err(ImportError::file(table.path(), problem));
            }
            _ if has_commas && survey.decimals.has_points => {
                let problem = ImportProblem::MixedDecimals { column: survey.name };
                return Err(ImportError::file(table.path(), problem));
            }
            _ => {
                let (place, column) = (survey.place, survey.column(columns));
                result.features.push(FeatureCoder::new(place, column, table.decimal));
            }
        }
    }
    Ok(result)
}

fn sorted(words: FastMap<u64>) -> Vec<String> {
    let mut sorted: Vec<String> = words.into_keys().collect();
    sorted.sort();
    if sorted.iter().all(|word| word.parse::<i64>().is_ok()) {
        sorted.sort_by_key(|word| word.parse::<i64>().unwrap_or(0));
    }
    sorted
}

impl ColumnSurvey {
    fn new(name: &str, place: usize, columns: &TableColumns) -> Self {
        let is_in = |list: &[String]| list.iter().any(|column| column == name);
        let of = if is_in(&columns.categories) {
            Some(ColumnType::Words)
        } else if is_in(&columns.dates) {
            Some(ColumnType::Date)
        } else if is_in(&columns.numbers) {
            Some(ColumnType::Number)
        } else {
            None
        };
        Self {
            name: name.to_owned(),
            place,
            named: is_in(&columns.features),
            of,
            words: FastMap::default(),
            missing: 0,
            count: 0,
            sum: 0.0,
            decimals: DecimalSurvey::default(),
        }
    }

    /// Adds a value. The first value determines the type of a column that no option names.
    fn add(
        &mut self,
        cell: &Cell<'_>,
        decimal: Decimal,
        columns: &TableColumns,
    ) -> Result<(), ImportProblem> {
        let of = match self.of {
            Some(of) => of,
            None => match self.first_type(cell, decimal)? {
                Some(of) => *self.of.insert(of),
                None => return self.add_missing(columns),
            },
        };
        match of {
            ColumnType::UnnamedDate => Ok(()),
            ColumnType::Date => match date(cell, &self.name)? {
                Some(days) => self.add_number(days),
                None => self.add_missing(columns),
            },
            ColumnType::Number => {
                self.decimals.add(cell, decimal);
                match numeric(cell, &self.name, decimal)? {
                    Some(number) => self.add_number(number),
                    None => self.add_missing(columns),
                }
            }
            ColumnType::Words => match word(cell, &self.name)? {
                Some(word) => self.add_word(&word, columns),
                None => self.add_missing(columns),
            },
        }
    }

    fn first_type(&self, cell: &Cell<'_>, decimal: Decimal) -> Result<Option<ColumnType>, ImportProblem> {
        let dates = if self.named { ColumnType::Date } else { ColumnType::UnnamedDate };
        Ok(match cell {
            Cell::Missing => None,
            Cell::Number(_) => Some(ColumnType::Number),
            Cell::Truth(_) => Some(ColumnType::Words),
            Cell::Days(_) => Some(dates),
            Cell::Other(found) => return Err(unsupported(&self.name, found)),
            Cell::Text(text) if is_missing(text) => None,
            Cell::Text(text) if number(text, decimal).is_some() => Some(ColumnType::Number),
            Cell::Text(text) if days(text).is_some() => Some(dates),
            Cell::Text(_) => Some(ColumnType::Words),
        })
    }

    fn add_missing(&mut self, columns: &TableColumns) -> Result<(), ImportProblem> {
        if columns.missing == MissingRule::Error {
            return Err(missing_value(&self.name));
        }
        self.missing += 1;
        Ok(())
    }

    fn add_number(&mut self, number: f32) -> Result<(), ImportProblem> {
        if !number.is_finite() {
            return Err(ImportProblem::NonFinite);
        }
        self.count += 1;
        self.sum += f64::from(number);
        Ok(())
    }

    fn add_word(&mut self, word: &str, columns: &TableColumns) -> Result<(), ImportProblem> {
        if let Some(count) = self.words.get_mut(word) {
            *count += 1;
            return Ok(());
        }
        // Another spelling of the same value.
        if find_word(word, &self.words).is_some() {
            return Ok(());
        }
        // Columns with more values keep the most frequent ones, of a bounded number.
        let most = if columns.group_rare { 100 * MOST_CATEGORIES } else { MOST_CATEGORIES };
        if self.words.len() == most {
            if columns.group_rare {
                return Ok(());
            }
            return Err(ImportProblem::Categories { column: self.name.clone(), most });
        }
        self.words.insert(word.to_owned(), 1);
        Ok(())
    }

    /// Whether all words are numbers with decimal commas, and no option names the column.
    fn has_decimal_commas(&self, columns: &TableColumns) -> bool {
        let is_number = |word: &String| number(word, Decimal::Comma).is_some();
        let is_named = columns.categories.contains(&self.name);
        !is_named && self.words.keys().any(|word| has_comma(word)) && self.words.keys().all(is_number)
    }

    /// Returns the conversion of the column.
    fn column(self, columns: &TableColumns) -> FeatureColumn {
        let missing = self.missing > 0;
        if self.of == Some(ColumnType::Words) {
            let (mut kept, other) = frequent(self.words, MOST_CATEGORIES);
            if missing {
                kept.push(MISSING.to_owned());
            }
            return FeatureColumn { other, ..FeatureColumn::of_categories(self.name, kept) };
        }
        let mean = (self.sum / self.count.max(1) as f64) as f32;
        FeatureColumn {
            date: self.of == Some(ColumnType::Date),
            fill: matches!(columns.missing, MissingRule::Mean | MissingRule::Category).then_some(mean),
            indicator: missing && columns.missing == MissingRule::Category,
            ..FeatureColumn::number(self.name)
        }
    }
}

/// Returns the most frequent words in alphabetical order, and whether there are others.
fn frequent(words: FastMap<u64>, most: usize) -> (Vec<String>, bool) {
    let mut by_count: Vec<(String, u64)> = words.into_iter().collect();
    by_count.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let others = by_count.len() > most;
    by_count.truncate(most);
    let mut kept: Vec<String> = by_count.into_iter().map(|(word, _)| word).collect();
    kept.sort();
    (kept, others)
}

/// Rejects decimal points beside decimal commas in the columns of numbers of a later table.
pub(crate) fn check_decimals(
    table: &TableFiles,
    numbers: &[usize],
    decimal: Option<Decimal>,
) -> Result<(), ImportError> {
    if table.decimal != Decimal::Comma {
        return Ok(());
    }
    let mut found = vec![DecimalSurvey::default(); numbers.len()];
    let mut rows = table.rows()?;
    while rows.next()? {
        for (survey, &place) in found.iter_mut().zip(numbers) {
            survey.add(&rows.cell(place)?, table.decimal);
        }
    }
    let has_commas = decimal == Some(Decimal::Comma) || found.iter().any(|survey| survey.has_commas);
    match found.iter().zip(numbers).find(|(survey, _)| has_commas && survey.has_points) {
        None => Ok(()),
        Some((_, &place)) => {
            let problem = ImportProblem::MixedDecimals { column: table.header[place].clone() };
            Err(ImportError::file(table.path(), problem))
        }
    }
}

impl DecimalSurvey {
    fn add(&mut self, cell: &Cell<'_>, decimal: Decimal) {
        if decimal == Decimal::Comma
            && let Cell::Text(text) = cell
        {
            self.has_commas |= has_comma(text);
            self.has_points |= text.contains('.') && !has_comma(text);
        }
    }
}

impl LabelSurvey {
    fn add(&mut self, cell: &Cell<'_>, column: &str) -> Result<(), ImportProblem> {
        if let Self::Unknown = self {
            let is_words = match cell {
                Cell::Text(text) => !is_missing_label(text) && number(text, Decimal::Point).is_none(),
                Cell::Truth(_) => true,
                _ => false,
            };
            *self = if is_words { Self::Words(FastMap::default()) } else { Self::Numbers };
        }
        let Self::Words(words) = self else { return Ok(()) };
        let text = match cell {
            Cell::Text(text) if is_missing_label(text) => return Err(missing_value(column)),
            Cell::Text(text) => std::borrow::Cow::Borrowed(class_name(text)),
            Cell::Number(number) => number.to_string().into(),
            Cell::Truth(truth) => truth_word(*truth).into(),
            Cell::Days(days) => days.to_string().into(),
            Cell::Missing => return Err(missing_value(column)),
            Cell::Other(found) => return Err(unsupported(column, found)),
        };
        if let Some(count) = words.get_mut(&*text) {
            *count += 1;
            return Ok(());
        }
        if find_word(&text, words).is_some() {
            return Ok(());
        }
        if words.len() == MOST_CLASSES {
            return Err(ImportProblem::Categories { column: column.to_owned(), most: MOST_CLASSES });
        }
        words.insert(text.into_owned(), 1);
        Ok(())
    }
}
