//! Inspection of files: their format, and the roles and types of the columns of a table.
//!
//! The types are derived from the first rows, and the roles of the columns from their names, types and
//! numbers of different values. Options override each decision.

use std::path::{Path, PathBuf};

use deltafl::data::{IgnoredColumn, MissingRule};

use super::delimited::Dialect;
use super::error::{ImportError, ImportProblem};
use super::input::Input;
use super::rows::{LocalFile, TableFiles, TableFormat};
use super::table::TableColumns;

mod sample;

use sample::Sample;

/// Rows that are inspected.
const SAMPLE: u64 = 20_000;

/// The role or type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ColumnRole {
    /// The device of the example.
    Device,
    /// The target.
    Label,
    /// The split of the example.
    Split,
    /// A text.
    Text,
    /// The path of an image.
    Image,
    /// Numbers.
    Number,
    /// Words, each a feature.
    Category,
    /// Dates.
    Date,
    /// Values of which almost all are different.
    Identifier,
    /// The same value in every row, or none.
    Constant,
    /// Values of a type without use.
    Other,
}

impl ColumnRole {
    /// Returns its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Label => "label",
            Self::Split => "split",
            Self::Text => "text",
            Self::Image => "image",
            Self::Number => "number",
            Self::Category => "category",
            Self::Date => "date",
            Self::Identifier => "identifier",
            Self::Constant => "constant",
            Self::Other => "other",
        }
    }
}

/// A column with its role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InspectedColumn {
    /// Its name.
    pub name: String,
    /// Its role.
    pub role: ColumnRole,
    /// Whether it is used.
    pub used: bool,
    /// Details, such as the number of different values.
    pub note: String,
}

/// The result of an inspection.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// The format of the files.
    pub format: TableFormat,
    /// The columns in the order of the table.
    pub columns: Vec<InspectedColumn>,
    /// The number of inspected rows.
    pub rows: u64,
    /// The columns for the import.
    pub table: TableColumns,
    /// Whether the label is a number to predict.
    pub regression: bool,
    /// The column of image paths, if there is one.
    pub image: Option<String>,
}

/// The decisions of the caller, which override those of the inspection.
#[derive(Clone, Debug, Default)]
pub struct AutoOptions {
    /// The roles and types that are given. An empty label is not given.
    pub table: TableColumns,
    /// Whether the label is a number to predict.
    pub regression: Option<bool>,
    /// The rule for missing values; `Mean` if `None`.
    pub missing: Option<MissingRule>,
    /// Columns that are not used.
    pub ignore: Vec<String>,
}

/// Files that can be read several times: copies of standard input (`-`) and pipes, and other files as
/// they are.
#[derive(Debug)]
pub struct LocalFiles {
    /// The files to read.
    pub paths: Vec<PathBuf>,
    _copies: Vec<LocalFile>,
}

impl LocalFiles {
    /// Copies standard input and pipes to temporary files, which exist as long as the value.
    pub fn new(paths: &[PathBuf]) -> Result<Self, ImportError> {
        let is_stream =
            |path: &&PathBuf| path.as_path() == Path::new("-") || (path.exists() && !path.is_file());
        let mut local = Self { paths: Vec::new(), _copies: Vec::new() };
        for path in paths {
            if is_stream(&path) && !path.is_dir() {
                let copy = LocalFile::new(path)?;
                local.paths.push(copy.path.clone());
                local._copies.push(copy);
            } else {
                local.paths.push(path.clone());
            }
        }
        Ok(local)
    }
}

/// Returns the format of a table by its contents.
pub fn detect(path: &Path) -> Result<TableFormat, ImportError> {
    let file = LocalFile::new(path)?;
    let start = std::fs::File::open(&file.path).and_then(|mut file| {
        let mut start = Vec::new();
        std::io::Read::read_to_end(&mut std::io::Read::take(&mut file, 6), &mut start)?;
        Ok(start)
    });
    let start = start.map_err(|source| ImportError::file(&file.name, source))?;
    if start.starts_with(b"PAR1") {
        return Ok(TableFormat::Parquet);
    }
    if start == b"ARROW1" || start.starts_with(&[0xff; 4]) {
        return Ok(TableFormat::Arrow);
    }
    let mut line = Vec::new();
    let mut input = Input::open_text(&file.path, &file.name)?;
    let first = input.line(&mut line)?.unwrap_or_default().trim_ascii_start();
    Ok(match first.first() {
        Some(b'{' | b'[') => TableFormat::JsonLines,
        _ if first.contains(&b'\t') && !first.contains(&b',') && !first.contains(&b';') => {
            TableFormat::Delimited(Dialect::Tsv)
        }
        _ => TableFormat::Delimited(Dialect::Csv),
    })
}

/// Inspects a table and decides the role of each column.
pub fn inspect(paths: &[PathBuf], options: &AutoOptions) -> Result<Inspection, ImportError> {
    let first = paths.first().map_or(Path::new("."), PathBuf::as_path);
    let format = detect(first)?;
    let table = TableFiles::open(paths, format, options.table.decimal)?;
    let mut columns: Vec<Sample> = table.header.iter().map(|name| Sample::new(name)).collect();
    let (mut rows, mut count) = (table.rows()?, 0);
    while count < SAMPLE && rows.next()? {
        for (i, column) in columns.iter_mut().enumerate() {
            column.add(&rows.cell(i)?, table.decimal);
        }
        count += 1;
    }
    if count == 0 {
        return Err(ImportError::file(table.path(), ImportProblem::Nothing("no examples")));
    }
    let given = &options.table;
    for name in given.texts.iter().chain(&given.categories).chain(&given.numbers).chain(&given.dates) {
        table.column(name)?;
    }
    for name in options.ignore.iter().chain(&given.device).chain(&given.split).chain(&given.group) {
        table.column(name)?;
    }
    let roles = Roles::choose(&columns, options);
    let Some(label) = roles.label.map(|i| &columns[i]) else {
        let problem = match given.label.is_empty() {
            true => ImportProblem::NoLabel { columns: table.header.clone() },
            false => ImportProblem::NoColumn { name: given.label.clone(), columns: table.header.clone() },
        };
        return Err(ImportError::file(table.path(), problem));
    };
    let regression = options.regression.unwrap_or_else(|| label.is_quantity());
    let class_words = !regression && label.kind() == ColumnRole::Number && !label.is_dense();
    Ok(finish(format, &columns, &roles, options, count, regression, class_words))
}

fn finish(
    format: TableFormat,
    columns: &[Sample],
    roles: &Roles,
    options: &AutoOptions,
    rows: u64,
    regression: bool,
    class_words: bool,
) -> Inspection {
    let given = &options.table;
    let mut table = TableColumns {
        device: roles.device.map(|i| columns[i].name.clone()),
        split: roles.split.map(|i| columns[i].name.clone()),
        label: roles.label.map(|i| columns[i].name.clone()).unwrap_or_default(),
        missing: options.missing.unwrap_or(MissingRule::Mean),
        class_words,
        group_rare: true,
        categories: Vec::new(),
        numbers: Vec::new(),
        texts: Vec::new(),
        ..given.clone()
    };
    let role_of = |i: usize| roles.role(i, &columns[i], given);
    let wanted = |i: usize| given.features.is_empty() || given.features.contains(&columns[i].name);
    let has_text =
        (0..columns.len()).any(|i| role_of(i) == ColumnRole::Text && wanted(i) && !roles.ignored[i]);
    let mut image = None;
    let mut inspected = Vec::new();
    for (i, column) in columns.iter().enumerate() {
        let (role, name) = (role_of(i), column.name.clone());
        let reason = match role {
            ColumnRole::Device | ColumnRole::Label | ColumnRole::Split => None,
            _ if given.group.as_ref() == Some(&name) => Some("the group of the device"),
            _ if roles.ignored[i] => Some("--ignore"),
            _ if !wanted(i) => Some("not among --columns"),
            ColumnRole::Identifier => Some("almost all values are different"),
            ColumnRole::Constant | ColumnRole::Other => Some(column.unused()),
            ColumnRole::Date if !given.dates.contains(&name) && !given.features.contains(&name) => {
                Some("dates, unless --date names them")
            }
            ColumnRole::Text | ColumnRole::Image => None,
            _ if has_text => Some("beside the text"),
            _ => None,
        };
        match (role, reason) {
            (_, Some(_)) if given.group.as_ref() == Some(&name) => {}
            (_, Some(reason)) => {
                table.ignored.push(IgnoredColumn { name: name.clone(), reason: reason.to_owned() });
            }
            (ColumnRole::Text, None) => table.texts.push(name.clone()),
            (ColumnRole::Image, None) => image = Some(name.clone()),
            (ColumnRole::Category, None) => table.categories.push(name.clone()),
            (ColumnRole::Number, None) => table.numbers.push(name.clone()),
            _ => {}
        }
        let mut note = column.note(role, reason, regression);
        if role == ColumnRole::Label && given.label.is_empty() && !column.is_named_label() {
            note.push_str(", a guess: --label names another column");
        }
        if given.group.as_ref() == Some(&name) {
            note = note.replace("not used: the", "the");
        }
        inspected.push(InspectedColumn { name, role, used: reason.is_none(), note });
    }
    table.features.retain(|name| !table.ignored.iter().any(|ignored| ignored.name == *name));
    Inspection { format, columns: inspected, rows, table, regression, image }
}

/// The indices of the columns with roles.
struct Roles {
    device: Option<usize>,
    label: Option<usize>,
    split: Option<usize>,
    ignored: Vec<bool>,
}

const DEVICES: [&str; 51] = [
    "device",
    "user",
    "client",
    "author",
    "writer",
    "critic",
    "reviewer",
    "customer",
    "patient",
    "clinic",
    "hospital",
    "site",
    "city",
    "speaker",
    "subject",
    "player",
    "account",
    "owner",
    "station",
    "sensor",
    "machine",
    "node",
    "participant",
    "worker",
    "member",
    "person",
    "phone",
    "username",
    "userid",
    "addressee",
    "store",
    "shop",
    "branch",
    "school",
    "student",
    "institution",
    "bank",
    "center",
    "centre",
    "household",
    "vehicle",
    "driver",
    "agency",
    "agent",
    "seller",
    "vendor",
    "farm",
    "ward",
    "doctor",
    "practice",
    "dev",
];
const SPLITS: [&str; 6] = ["split", "fold", "set", "subset", "part", "partition"];

impl Roles {
    fn choose(columns: &[Sample], options: &AutoOptions) -> Self {
        let given = &options.table;
        let place = |name: &str| columns.iter().position(|column| column.name == name);
        let is_ignored = |column: &Sample| {
            options.ignore.contains(&column.name) || given.group.as_ref() == Some(&column.name)
        };
        let ignored: Vec<bool> = columns.iter().map(is_ignored).collect();
        let feature = |i: usize| {
            let name = &columns[i].name;
            [&given.texts, &given.categories, &given.numbers, &given.dates, &given.features]
                .iter()
                .any(|list| list.contains(name))
        };
        let is_free = |i: usize| !ignored[i] && !feature(i);
        let split = given.split.as_deref().and_then(place).or_else(|| {
            (0..columns.len()).find(|&i| is_free(i) && columns[i].has_word(&SPLITS) && columns[i].is_split())
        });
        let explicit_label = place(&given.label).filter(|_| !given.label.is_empty());
        let device = given.device.as_deref().and_then(place).or_else(|| {
            let fits = |&i: &usize| {
                is_free(i) && Some(i) != explicit_label && Some(i) != split && columns[i].can_be_device()
            };
            (0..columns.len()).filter(fits).find(|&i| columns[i].has_word(&DEVICES))
        });
        let label = match given.label.is_empty() {
            false => explicit_label,
            true => {
                let fits = |&i: &usize| {
                    is_free(i) && Some(i) != device && Some(i) != split && columns[i].can_be_label()
                };
                let score = |&i: &usize| (columns[i].label_score(), i);
                (0..columns.len()).filter(fits).max_by_key(score)
            }
        };
        Self { device, label, split, ignored }
    }

    /// Returns the role of a column: as given, as chosen, or by its type.
    fn role(&self, i: usize, column: &Sample, given: &TableColumns) -> ColumnRole {
        if self.device == Some(i) {
            ColumnRole::Device
        } else if self.label == Some(i) {
            ColumnRole::Label
        } else if self.split == Some(i) {
            ColumnRole::Split
        } else if given.texts.contains(&column.name) {
            ColumnRole::Text
        } else if given.categories.contains(&column.name) {
            ColumnRole::Category
        } else if given.numbers.contains(&column.name) {
            ColumnRole::Number
        } else if given.dates.contains(&column.name) {
            ColumnRole::Date
        } else {
            column.kind()
        }
    }
}
