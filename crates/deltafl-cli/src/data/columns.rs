//! The options that describe the columns of a table.

use std::path::PathBuf;

use clap::ValueEnum;
use deltafl::data::{DataContract, MissingRule, TextUnit};
use deltafl_data::import::table::{self, Decimal, LikeOptions, TableColumns, TextOptions};
use deltafl_data::import::{Features, ImportTarget, auto};
use miette::Result;

use super::info::column_lines;
use super::target::TargetArgs;
use crate::error::{bad_input, explained};

/// Most columns that an import lists.
const LISTED: usize = 20;

/// The storage of features.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum FeatureArg {
    /// One byte each if all are multiples of 1/255 in [0, 1], real numbers otherwise and in the
    /// columns of tables
    Auto,
    /// Real numbers
    Dense,
    /// Integers 0–255, one byte each; the model receives value / 255
    GreyLevels,
}

impl From<FeatureArg> for Features {
    fn from(arg: FeatureArg) -> Self {
        match arg {
            FeatureArg::Auto => Self::Auto,
            FeatureArg::Dense => Self::Dense,
            FeatureArg::GreyLevels => Self::GreyLevels,
        }
    }
}

/// The treatment of missing values.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum MissingArg {
    /// Leave out rows with a missing value
    Drop,
    /// A number becomes the mean of its column, a word becomes a separate category
    Mean,
    /// As mean, and a further feature is 1 where a number is missing
    Category,
    /// A missing value is an error
    Error,
}

impl From<MissingArg> for MissingRule {
    fn from(arg: MissingArg) -> Self {
        match arg {
            MissingArg::Drop => Self::Drop,
            MissingArg::Mean => Self::Mean,
            MissingArg::Category => Self::Category,
            MissingArg::Error => Self::Error,
        }
    }
}

/// The units of texts.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum UnitArg {
    /// Words
    Words,
    /// Characters
    Characters,
}

/// The columns of a table.
#[derive(clap::Args, Debug)]
pub(super) struct ColumnArgs {
    /// The column of the device; without it all examples belong to one device (see `deltafl data
    /// partition`)
    #[arg(long, value_name = "COLUMN")]
    pub(super) device: Option<String>,
    /// The column of the label: integers, or words, which become class names
    #[arg(long, value_name = "COLUMN", required_unless_present = "like")]
    pub(super) label: Option<String>,
    /// The label is a number to predict, not a class
    #[arg(long)]
    pub(super) regression: bool,
    #[command(flatten)]
    pub(super) types: TypeArgs,
}

/// The types of columns.
#[derive(clap::Args, Debug)]
pub(super) struct TypeArgs {
    /// The column of the split, with the values `train`, `test` or `validation`
    #[arg(long, value_name = "COLUMN", conflicts_with_all = ["train", "validation"])]
    split: Option<String>,
    /// The column of the group of the device, for results by group
    #[arg(long, value_name = "COLUMN")]
    group: Option<String>,
    /// Feature columns that contain words although they begin with a number, separated by commas
    #[arg(long = "category", value_name = "COLUMNS", value_delimiter = ',')]
    categories: Vec<String>,
    /// Feature columns that contain numbers
    #[arg(long = "number", value_name = "COLUMNS", value_delimiter = ',')]
    numbers: Vec<String>,
    /// Columns of text: the examples are these texts, as words of a vocabulary
    #[arg(long = "text", value_name = "COLUMNS", value_delimiter = ',')]
    texts: Vec<String>,
    /// Columns of dates, which become days since 1970-01-01; other dates are not used
    #[arg(long = "date", value_name = "COLUMNS", value_delimiter = ',')]
    dates: Vec<String>,
    /// The feature columns: names or `prefix*`, separated by commas [default: all others, without
    /// an unnamed first one]; a column of words becomes one feature per word, in alphabetical order
    #[arg(long, value_name = "COLUMNS", value_delimiter = ',')]
    columns: Vec<String>,
    /// Columns that are not used
    #[arg(long = "ignore", value_name = "COLUMNS", value_delimiter = ',')]
    ignored: Vec<String>,
    /// The treatment of missing values [default: error; mean with `auto`]
    #[arg(long, value_enum)]
    missing: Option<MissingArg>,
    /// The decimal character of numbers, `.` or `,` [default: commas are recognised in files with
    /// semicolons]
    #[arg(long, value_name = "CHARACTER", value_parser = decimal)]
    decimal: Option<Decimal>,
    /// The units of texts
    #[arg(long, value_enum, default_value_t = UnitArg::Words)]
    unit: UnitArg,
    /// A tokenizer.json of Hugging Face, whose tokens are the units of texts; needs a build with
    /// `--features tokenizers`
    #[arg(long, value_name = "FILE", conflicts_with_all = ["unit", "keep_case"])]
    tokenizer: Option<PathBuf>,
    /// The largest vocabulary of texts; the most frequent words of the train devices are kept
    #[arg(long, value_name = "N", default_value_t = TextOptions::default().vocabulary)]
    vocabulary: usize,
    /// Words per text; longer texts are cut [default: those of the longest text, at most 200]
    #[arg(long, value_name = "N")]
    text_length: Option<usize>,
    /// Keep the case of letters in texts
    #[arg(long)]
    keep_case: bool,
    /// Frozen word vectors in GloVe's text format [default: vectors are trained]
    #[arg(long, value_name = "FILE")]
    vectors: Option<PathBuf>,
    /// Storage of features
    #[arg(long, value_enum, default_value_t = FeatureArg::Auto)]
    features: FeatureArg,
    /// Apply the coding of an earlier import: that of a run, a federation or a contract file
    #[arg(long, value_name = "PATH")]
    like: Option<PathBuf>,
}

fn decimal(text: &str) -> Result<Decimal, String> {
    match text {
        "." => Ok(Decimal::Point),
        "," => Ok(Decimal::Comma),
        other => Err(format!("{other:?} is neither `.` nor `,`")),
    }
}

impl TypeArgs {
    /// Returns the columns without device and label.
    fn columns(&self) -> TableColumns {
        let ignored = |name: &String| deltafl::data::IgnoredColumn {
            name: name.clone(),
            reason: "--ignore".to_owned(),
        };
        TableColumns {
            features: self.columns.clone(),
            categories: self.categories.clone(),
            numbers: self.numbers.clone(),
            texts: self.texts.clone(),
            dates: self.dates.clone(),
            ignored: self.ignored.iter().map(ignored).collect(),
            split: self.split.clone(),
            group: self.group.clone(),
            missing: self.missing.map(MissingRule::from).unwrap_or_default(),
            decimal: self.decimal,
            text: TextOptions {
                unit: match self.unit {
                    UnitArg::Words => TextUnit::Words,
                    UnitArg::Characters => TextUnit::Characters,
                },
                keep_case: self.keep_case,
                vocabulary: self.vocabulary,
                length: self.text_length,
                vectors: self.vectors.clone(),
                tokenizer: self.tokenizer.clone(),
            },
            ..TableColumns::default()
        }
    }

    /// Returns the storage of features.
    pub(super) fn features(&self) -> Features {
        self.features.into()
    }

    /// Returns the contract of an earlier import, if one is to be followed.
    pub(super) fn contract(&self) -> Result<Option<DataContract>> {
        self.like.as_deref().map(deltafl_run::contract::read).transpose().map_err(explained)
    }

    /// Returns the decisions for an inspection.
    pub(super) fn auto(
        &self,
        device: Option<String>,
        label: Option<String>,
        regression: Option<bool>,
    ) -> auto::AutoOptions {
        let columns = TableColumns { ignored: Vec::new(), ..self.columns() };
        auto::AutoOptions {
            table: TableColumns { device, label: label.unwrap_or_default(), ..columns },
            regression,
            missing: self.missing.map(MissingRule::from),
            ignore: self.ignored.clone(),
        }
    }

    /// Returns the overrides of an import that follows a contract.
    pub(super) fn like(&self, device: Option<String>, label: Option<String>) -> LikeOptions {
        LikeOptions { device, label, decimal: self.decimal, ..LikeOptions::default() }
    }
}

impl ColumnArgs {
    /// Returns the columns of the table.
    pub(super) fn columns(&self) -> TableColumns {
        TableColumns {
            device: self.device.clone(),
            label: self.label.clone().unwrap_or_default(),
            ..self.types.columns()
        }
    }

    pub(super) fn target(&self, target: &TargetArgs) -> ImportTarget {
        ImportTarget { regression: self.regression, ..target.target(0) }
    }
}

/// Imports the files of a table, by an earlier coding if one is named.
pub(super) fn run_table(
    sources: &[PathBuf],
    format: table::TableFormat,
    args: &ColumnArgs,
    target: &TargetArgs,
) -> Result<()> {
    let out = args.target(target);
    if let Some(contract) = args.types.contract()? {
        let options = args.types.like(args.device.clone(), args.label.clone());
        return target.report(table::import_like(sources, format, &contract, &options, &out));
    }
    let (columns, features) = (args.columns(), args.types.features());
    let imported = match format {
        table::TableFormat::Parquet => {
            deltafl_data::import::parquet::import(sources, &columns, features, &out)
        }
        format => table::import_files(sources, format, &columns, features, &out),
    };
    target.report(imported)?;
    if !target.json {
        let federation = deltafl_data::open(&out.out).map_err(|error| bad_input(error.to_string()))?;
        print!("  columns\n{}", column_lines(&federation, LISTED));
    }
    Ok(())
}

/// Parses a size such as `28x28`.
pub(super) fn size(text: &str) -> Result<(usize, usize), String> {
    let parts = text.split_once(['x', '×']).and_then(|(w, h)| Some((w.parse().ok()?, h.parse().ok()?)));
    let invalid = || format!("{text:?} is no size such as 28x28");
    parts
        .filter(|&(w, h): &(usize, usize)| (1..=4096).contains(&w) && (1..=4096).contains(&h))
        .ok_or_else(invalid)
}

/// Creates the error of options that do not fit together.
pub(super) fn misuse(message: &str) -> miette::Report {
    bad_input(message).into()
}
