//! Tables with one row per example, with columns for its device, its label and its features: CSV,
//! TSV, JSON lines and Parquet.
//!
//! The first pass over the rows determines the type of each column (`survey.rs`), and the second
//! converts the rows (`encoding.rs`). A column contains numbers, words or dates, according to its
//! first value. A column of text makes the examples texts (`texts.rs`).

use std::path::{Path, PathBuf};

use deltafl::data::{DataContract, IgnoredColumn, InputKind, MissingRule, Provenance, TableCoding};

use super::cell::{Cell, truth_word};
use super::encoding::{FeatureCoder, LabelCoder, class_name, find_word, missing_value, numeric};
use super::error::{ImportError, ImportProblem};
use super::features::{FeatureSpool, Features};
use super::rows::{TableCursor, TableFiles};
use super::spool::Spool;
use super::survey::{TableSurvey, check_decimals, is_complete, survey};
use super::texts::{TextRows, TextTable};
use super::{ImportTarget, Imported};

mod groups;
mod labels;

use groups::DeclaredGroups;
pub(crate) use labels::{check_density, class, finite, in_range, parse_label, parse_split, whole_label};

pub use super::cell::Decimal;
pub use super::delimited::Dialect;
pub use super::rows::TableFormat;
pub use super::texts::TextOptions;

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
    /// Columns of features that contain numbers.
    pub numbers: Vec<String>,
    /// Columns of dates, which become days since 1970-01-01. Other dates are not used.
    pub dates: Vec<String>,
    /// Columns of text. The examples are then these texts, and no other column is a feature.
    pub texts: Vec<String>,
    /// Columns that are not used, with the reason.
    pub ignored: Vec<IgnoredColumn>,
    /// The split of each example, `train`, `test` or `validation`, which determines the split of
    /// devices.
    pub split: Option<String>,
    /// The group of the device, for results by group. All rows of a device have the same.
    pub group: Option<String>,
    /// The treatment of missing values.
    pub missing: MissingRule,
    /// The decimal character of numbers; commas are recognised in files with semicolons if `None`.
    pub decimal: Option<Decimal>,
    /// Whether labels are names of classes even if they are numbers.
    pub class_words: bool,
    /// Whether the rare words of a column with very many words become one feature. Otherwise such a
    /// column is an error.
    pub group_rare: bool,
    /// The conversion of texts.
    pub text: TextOptions,
}

/// The option of the provenance with the numbers of values of categories that the earlier import does
/// not contain, by column.
pub const UNSEEN: &str = "values that did not occur in the earlier import";

/// The indices of the columns of a table.
#[derive(Debug)]
pub(crate) struct ColumnIndices {
    pub(crate) device: Option<usize>,
    pub(crate) split: Option<usize>,
    pub(crate) group: Option<usize>,
    pub(crate) label: Option<usize>,
    pub(crate) features: Vec<usize>,
    pub(crate) texts: Vec<usize>,
}

/// Imports a delimited file.
pub fn import(
    path: &Path,
    dialect: Dialect,
    columns: &TableColumns,
    features: Features,
    target: &ImportTarget,
) -> Result<Imported, ImportError> {
    import_files(&[path.to_owned()], TableFormat::Delimited(dialect), columns, features, target)
}

/// Imports the files of a table, which have the same columns in any order.
pub fn import_files(
    paths: &[PathBuf],
    format: TableFormat,
    columns: &TableColumns,
    features: Features,
    target: &ImportTarget,
) -> Result<Imported, ImportError> {
    let table = TableFiles::open(paths, format, columns.decimal)?;
    let places = ColumnIndices::find(&table, columns)?;
    let survey = survey(&table, &places, columns, target)?;
    if places.texts.is_empty() && survey.features.is_empty() {
        return Err(ImportError::file(table.path(), ImportProblem::NoFeatures));
    }
    let mut source = Provenance::new(format.name());
    table.names().for_each(|name| source.file(name));
    if columns.features.is_empty() && is_index(&table.header, columns) {
        source.dropped("unnamed first column, an index", 1);
    }
    source.dropped("examples with a missing value", survey.dropped);
    if columns.missing != MissingRule::Error {
        source.option("missing", columns.missing.name());
        let filled = survey.missing.iter().map(|(name, count)| format!("{name}: {count}"));
        let filled: Vec<String> = filled.collect();
        if !filled.is_empty() {
            source.option("missing values replaced", filled.join(", "));
        }
    }
    if table.decimal == Decimal::Comma {
        source.option("decimal", "comma");
    }
    let coding = TableCoding {
        device: columns.device.clone(),
        label: Some(columns.label.clone()),
        missing: columns.missing,
        text: None,
        image: None,
        ignored: columns.ignored.iter().cloned().chain(survey.ignored.iter().cloned()).collect(),
    };
    let pass = TablePass::new(&table, &places, columns.missing, target);
    let imported = if places.texts.is_empty() {
        pass.write_features(&survey, features, coding, source)
    } else {
        pass.write_texts(&survey, columns, coding, source)
    }?;
    pass.groups.write(&imported)?;
    Ok(imported)
}

/// The overrides of an import that follows a contract.
#[derive(Clone, Debug, Default)]
pub struct LikeOptions {
    /// The column of the device; that of the contract if `None`.
    pub device: Option<String>,
    /// Whether all rows belong to one device, in their order.
    pub one_device: bool,
    /// The column of the label; that of the contract if `None`.
    pub label: Option<String>,
    /// Whether labels are not read, for predictions.
    pub without_labels: bool,
    /// The decimal character of numbers.
    pub decimal: Option<Decimal>,
}

/// Imports the files of a table by the conversion of an earlier import: its columns in any order,
/// categories, classes and words. Missing values are replaced by the constants of the contract.
pub fn import_like(
    paths: &[PathBuf],
    format: TableFormat,
    contract: &DataContract,
    options: &LikeOptions,
    target: &ImportTarget,
) -> Result<Imported, ImportError> {
    let table = TableFiles::open(paths, format, options.decimal)?;
    let unknown = || ImportError::file(table.path(), ImportProblem::NoCoding);
    let coding = contract.table.clone().ok_or_else(unknown)?;
    if coding.image.is_some() {
        return Err(ImportError::file(table.path(), ImportProblem::ImagesExpected));
    }
    let texts = coding.text.as_ref().map(|text| text.columns.clone()).unwrap_or_default();
    if texts.is_empty() && contract.columns.is_empty() {
        return Err(unknown());
    }
    let device = options.device.clone().or_else(|| coding.device.clone()).filter(|_| !options.one_device);
    let label = options.label.clone().or_else(|| coding.label.clone());
    let label = label.filter(|_| !options.without_labels);
    let columns =
        |names: &[String]| names.iter().map(|name| table.column(name)).collect::<Result<Vec<_>, _>>();
    let names: Vec<String> = contract.columns.iter().map(|column| column.name.clone()).collect();
    let places = ColumnIndices {
        device: device.as_deref().map(|name| table.column(name)).transpose()?,
        split: None,
        group: None,
        label: label.as_deref().map(|name| table.column(name)).transpose()?,
        features: if texts.is_empty() { columns(&names)? } else { Vec::new() },
        texts: columns(&texts)?,
    };
    let target = ImportTarget {
        regression: contract.classes == 0,
        classes: Some(contract.classes).filter(|&classes| classes > 0),
        ..target.clone()
    };
    let coders = places.features.iter().zip(&contract.columns);
    let numbers = coders.clone().filter(|(_, column)| column.categories.is_empty() && !column.date);
    let numbers = numbers.map(|(&place, _)| place).chain(places.label.filter(|_| target.regression));
    check_decimals(&table, &numbers.collect::<Vec<_>>(), options.decimal)?;
    let survey = TableSurvey {
        features: coders
            .map(|(&place, column)| FeatureCoder::new(place, column.clone(), table.decimal))
            .collect(),
        label: match &contract.class_names[..] {
            _ if contract.classes == 0 => LabelCoder::Value(table.decimal),
            [] => LabelCoder::Class,
            names => LabelCoder::words(names.to_vec()),
        },
        ignored: Vec::new(),
        missing: Vec::new(),
        dropped: 0,
    };
    let mut source = Provenance::new(format.name());
    table.names().for_each(|name| source.file(name));
    source.option("like", "the constants of an earlier import");
    // A prediction exists for every row.
    let missing = if options.without_labels { MissingRule::Error } else { coding.missing };
    let pass = TablePass::new(&table, &places, missing, &target);
    match contract.inputs {
        InputKind::Tokens { len, .. } => {
            let text = coding.text.clone().ok_or_else(unknown)?;
            let texts = TextTable::like(&table, contract, text, len)?;
            pass.write_coded_texts(&survey, texts, coding, source)
        }
        InputKind::Bytes { .. } => pass.write_features(&survey, Features::GreyLevels, coding, source),
        _ => pass.write_features(&survey, Features::Dense, coding, source),
    }
}

/// The second pass over a table.
struct TablePass<'t> {
    table: &'t TableFiles,
    places: &'t ColumnIndices,
    missing: MissingRule,
    target: &'t ImportTarget,
    groups: DeclaredGroups,
}

impl<'t> TablePass<'t> {
    fn new(
        table: &'t TableFiles,
        places: &'t ColumnIndices,
        missing: MissingRule,
        target: &'t ImportTarget,
    ) -> Self {
        Self { table, places, missing, target, groups: DeclaredGroups::default() }
    }

    fn write_features(
        &self,
        survey: &TableSurvey,
        features: Features,
        coding: TableCoding,
        mut source: Provenance,
    ) -> Result<Imported, ImportError> {
        let mut out = FeatureSpool::new(self.target, features)?;
        let mut row = Vec::new();
        let mut rows = self.table.rows()?;
        while rows.next()? {
            if !is_complete(&rows, self.places, &self.places.features, self.missing)? {
                continue;
            }
            row.clear();
            for coder in &survey.features {
                coder.push(&rows.cell(coder.place)?, &mut row).map_err(|problem| rows.error(problem))?;
            }
            out.check(&row).map_err(|problem| rows.error(problem))?;
            let device = self.device(&rows, &mut out.spool)?;
            out.row(device, &row)?;
            self.push_label(&rows, survey, &mut out.spool)?;
        }
        self.check_labels(&out.spool, survey)?;
        if let Some(unseen) = survey.unseen() {
            source.option(UNSEEN, unseen);
        }
        let columns = survey.features.iter().map(|coder| coder.column.clone()).collect();
        out.set_coding(survey.label.class_names(), columns, coding);
        out.finish(self.target, source)
    }

    fn write_texts(
        &self,
        survey: &TableSurvey,
        columns: &TableColumns,
        coding: TableCoding,
        source: Provenance,
    ) -> Result<Imported, ImportError> {
        self.write_coded_texts(
            survey,
            TextTable::New(columns.texts.clone(), columns.text.clone()),
            coding,
            source,
        )
    }

    fn write_coded_texts(
        &self,
        survey: &TableSurvey,
        texts: TextTable,
        coding: TableCoding,
        source: Provenance,
    ) -> Result<Imported, ImportError> {
        let mut spool = Spool::new(&self.target.parent())?;
        let mut text = String::new();
        let mut rows = self.table.rows()?;
        while rows.next()? {
            if !is_complete(&rows, self.places, &[], self.missing)? {
                continue;
            }
            text.clear();
            for (i, &place) in self.places.texts.iter().enumerate() {
                text.push_str(if i > 0 { " " } else { "" });
                text.push_str(&rows.text(place)?.unwrap_or_default());
            }
            let device = self.device(&rows, &mut spool)?;
            spool.text_row(device, &text)?;
            self.push_label(&rows, survey, &mut spool)?;
        }
        self.check_labels(&spool, survey)?;
        let class_names = survey.label.class_names();
        let path = self.table.path().to_owned();
        TextRows { path, spool, class_names, coding, texts }.write(self.target, source)
    }

    /// Returns the index of the device of a row.
    fn device(&self, rows: &TableCursor<'_>, spool: &mut Spool) -> Result<u32, ImportError> {
        let id = match self.places.device {
            None => Some("all".into()),
            Some(place) => rows.text(place)?,
        };
        let id = id.filter(|id| !id.trim().is_empty());
        let id = id.ok_or_else(|| rows.error(ImportProblem::UnnamedDevice))?;
        if let Some(place) = self.places.group {
            let group = rows.text(place)?.unwrap_or_default();
            self.groups.add(&id, group.trim()).map_err(|problem| rows.error(problem))?;
        }
        let split = match self.places.split {
            None => None,
            Some(place) => {
                let text = rows.text(place)?.unwrap_or_default();
                Some(parse_split(&text).map_err(|problem| rows.error(problem))?)
            }
        };
        Ok(spool.device_in(&id, split))
    }

    fn push_label(
        &self,
        rows: &TableCursor<'_>,
        survey: &TableSurvey,
        spool: &mut Spool,
    ) -> Result<(), ImportError> {
        let Some(place) = self.places.label else {
            spool.label(0);
            return Ok(());
        };
        let (cell, name) = (rows.cell(place)?, &self.table.header[place]);
        self.label(&cell, name, survey, spool).map_err(|problem| rows.error(problem))
    }

    fn label(
        &self,
        cell: &Cell<'_>,
        name: &str,
        survey: &TableSurvey,
        spool: &mut Spool,
    ) -> Result<(), ImportProblem> {
        let classes = self.target.classes;
        match &survey.label {
            LabelCoder::Value(decimal) => {
                let number = numeric(cell, name, *decimal).map_err(|problem| match problem {
                    ImportProblem::Word { text, .. } => ImportProblem::Number(text),
                    problem => problem,
                })?;
                spool.value(finite(number.ok_or_else(|| missing_value(name))?)?);
            }
            LabelCoder::Words(index, names) => {
                let text = match cell {
                    Cell::Missing => return Err(missing_value(name)),
                    Cell::Text(text) => std::borrow::Cow::Borrowed(class_name(text)),
                    Cell::Number(number) => number.to_string().into(),
                    Cell::Truth(truth) => truth_word(*truth).into(),
                    Cell::Days(days) => days.to_string().into(),
                    Cell::Other(found) => return Err(super::encoding::unsupported(name, found)),
                };
                let class = find_word(&text, index);
                let unknown =
                    || ImportProblem::UnknownClass { name: text.clone().into_owned(), known: names.clone() };
                spool.label(in_range(class.ok_or_else(unknown)?, classes)?);
            }
            LabelCoder::Class => match cell {
                Cell::Text(text) if text.is_empty() => return Err(missing_value(name)),
                Cell::Missing => return Err(missing_value(name)),
                Cell::Text(text) => spool.label(parse_label(text, classes)?),
                Cell::Number(label) => spool.label(whole_label(label.as_f64(), classes)?),
                Cell::Truth(truth) => spool.label(in_range(u32::from(*truth), classes)?),
                Cell::Days(days) => return Err(ImportProblem::Label(days.to_string())),
                Cell::Other(found) => return Err(super::encoding::unsupported(name, found)),
            },
        }
        Ok(())
    }

    /// Checks that there are examples, and that class numbers are not numbers to predict.
    fn check_labels(&self, spool: &Spool, survey: &TableSurvey) -> Result<(), ImportError> {
        if spool.rows() == 0 {
            return Err(ImportError::file(self.table.path(), ImportProblem::Nothing("no examples")));
        }
        if self.target.classes.is_none() && matches!(survey.label, LabelCoder::Class) {
            check_density(spool.labels()).map_err(|problem| ImportError::file(self.table.path(), problem))?;
        }
        Ok(())
    }
}

impl ColumnIndices {
    fn find(table: &TableFiles, columns: &TableColumns) -> Result<Self, ImportError> {
        let column = |name: &String| table.column(name);
        let places = Self {
            device: columns.device.as_ref().map(column).transpose()?,
            split: columns.split.as_ref().map(column).transpose()?,
            group: columns.group.as_ref().map(column).transpose()?,
            label: Some(column(&columns.label)?),
            texts: columns.texts.iter().map(column).collect::<Result<_, _>>()?,
            features: match columns.texts.is_empty() {
                true => feature_columns(table.path(), &table.header, columns)?,
                false => Vec::new(),
            },
        };
        let named = columns.numbers.iter().chain(&columns.dates);
        named.map(column).try_for_each(|place| place.map(|_| ()))?;
        places.check_roles(table)?;
        Ok(places)
    }

    /// Checks that no column has two roles.
    fn check_roles(&self, table: &TableFiles) -> Result<(), ImportError> {
        let mut roles: Vec<(usize, &'static str)> = Vec::new();
        roles.extend(self.label.map(|place| (place, "the label")));
        roles.extend(self.device.map(|place| (place, "the device")));
        roles.extend(self.split.map(|place| (place, "the split")));
        roles.extend(self.group.map(|place| (place, "the group of the device")));
        roles.extend(self.texts.iter().map(|&place| (place, "a text")));
        roles.extend(self.features.iter().map(|&place| (place, "a feature")));
        roles.sort_by_key(|&(place, _)| place);
        match roles.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            None => Ok(()),
            Some(pair) => {
                let column = table.header[pair[0].0].clone();
                let problem = ImportProblem::TwoRoles { column, first: pair[0].1, second: pair[1].1 };
                Err(ImportError::file(table.path(), problem))
            }
        }
    }
}

/// Returns the columns of the features: the named ones, or all except those of device, label, split
/// and index.
pub(crate) fn feature_columns(
    path: &Path,
    header: &[String],
    columns: &TableColumns,
) -> Result<Vec<usize>, ImportError> {
    let column = |name: &str| super::delimited::column(path, header, name);
    let is_other = |name: &str| {
        let ignored = columns.ignored.iter().any(|ignored| ignored.name == name);
        let roles = [&columns.device, &columns.split, &columns.group].map(Option::as_deref);
        let roles = roles.into_iter().chain([Some(columns.label.as_str())]);
        ignored || roles.into_iter().any(|role| role == Some(name))
    };
    for name in &columns.categories {
        column(name)?;
    }
    if columns.features.is_empty() {
        let first = usize::from(is_index(header, columns));
        return Ok((first..header.len()).filter(|&i| !is_other(&header[i])).collect());
    }
    let mut found = Vec::new();
    for name in &columns.features {
        match name.strip_suffix('*') {
            None => found.push(column(name)?),
            Some(prefix) => {
                let before = found.len();
                found.extend(
                    (0..header.len()).filter(|&i| header[i].starts_with(prefix) && !is_other(&header[i])),
                );
                if found.len() == before {
                    column(name)?;
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
