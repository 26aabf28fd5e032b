//! `deltafl data import`: converts common file formats into a federation folder.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use deltafl_data::import::table::{Dialect, TableFormat};
use deltafl_data::import::{self, Features, sent140};
use miette::Result;

use super::auto::{self, AutoArgs};
use super::columns::{ColumnArgs, FeatureArg, run_table};
use super::target::TargetArgs;
use crate::error::bad_input;

/// Import files: each format with its options
#[derive(clap::Subcommand, Debug)]
#[command(after_help = "Examples:
  deltafl data import auto reviews.csv --out reviews
  deltafl data import shakespeare pg100.txt.gz --out shakespeare
  deltafl data import leaf data/train data/test --out femnist --min-examples 100
  deltafl data import csv table.csv --device user --label y --out mine
  deltafl data import csv patients.csv --device clinic --label outcome --train 0.5 --out clinics
  deltafl data import csv houses.csv --device city --label price --regression --out houses")]
pub(crate) enum ImportCommand {
    Auto(AutoArgs),
    Leaf(LeafArgs),
    Csv(TableArgs),
    /// Tab-separated files with a header, without quotes
    Tsv(TableArgs),
    /// JSON lines: an object per example
    Jsonl(TableArgs),
    Parquet(ParquetArgs),
    /// Arrow files, Feather files of version 2, and Arrow streams
    Arrow(TableArgs),
    Idx(IdxArgs),
    Npz(NpzArgs),
    Emnist(EmnistArgs),
    Sent140(Sent140Args),
    Shakespeare(ShakespeareArgs),
}

/// LEAF's JSON shards, compressed or not
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Example:\n  deltafl data import leaf data/train data/test --out femnist --min-examples 100"
)]
pub(crate) struct LeafArgs {
    /// Shards, or folders of shards; a device in several files is one device
    #[arg(required = true)]
    sources: Vec<PathBuf>,
    /// Keep LEAF's split: shards in a folder `test` or named `…_test_…` are test data, the others
    /// train data; without this option all parts of a device are combined
    #[arg(long, conflicts_with_all = ["train", "validation"])]
    keep_split: bool,
    /// Storage of features
    #[arg(long, value_enum, default_value_t = FeatureArg::Auto)]
    features: FeatureArg,
    #[command(flatten)]
    target: TargetArgs,
}

/// Comma- or semicolon-separated files with a header
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Example:\n  deltafl data import csv table.csv --device user --label y --columns 'x*' --out mine"
)]
pub(crate) struct TableArgs {
    /// The files, which have the same columns; `-` is standard input
    #[arg(required = true)]
    sources: Vec<PathBuf>,
    #[command(flatten)]
    columns: ColumnArgs,
    #[command(flatten)]
    target: TargetArgs,
}

/// Parquet files, such as the federated data sets of Hugging Face
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Example:\n  deltafl data import parquet train-*.parquet --device writer_id --label character --columns image --out femnist"
)]
pub(crate) struct ParquetArgs {
    /// The files
    #[arg(required = true)]
    sources: Vec<PathBuf>,
    #[command(flatten)]
    columns: ColumnArgs,
    #[command(flatten)]
    target: TargetArgs,
}

/// IDX files with a table of devices, such as EMNIST
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Example:\n  deltafl data import idx --images train-images.gz --labels train-labels.gz --devices writers.tsv --out emnist"
)]
pub(crate) struct IdxArgs {
    /// The images
    #[arg(long, value_name = "FILE")]
    images: PathBuf,
    /// Their labels
    #[arg(long, value_name = "FILE")]
    labels: PathBuf,
    /// Device, first image and number of images, tab-separated with a header
    #[arg(long, value_name = "FILE")]
    devices: Option<PathBuf>,
    #[command(flatten)]
    target: TargetArgs,
}

/// NumPy's .npz with an array per column
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  deltafl data import npz data.npz --device user --out mine")]
pub(crate) struct NpzArgs {
    /// The file
    source: PathBuf,
    /// The array of inputs
    #[arg(long, value_name = "ARRAY", default_value = "x")]
    x: String,
    /// The array of labels
    #[arg(long, value_name = "ARRAY", default_value = "y")]
    y: String,
    /// The array of devices; without it all examples belong to one device
    #[arg(long, value_name = "ARRAY")]
    device: Option<String>,
    /// The labels are numbers to predict, not classes
    #[arg(long)]
    regression: bool,
    /// Storage of features
    #[arg(long, value_enum, default_value_t = FeatureArg::Auto)]
    features: FeatureArg,
    #[command(flatten)]
    target: TargetArgs,
}

/// EMNIST by writer: NIST's by_write and by_class, or LEAF's JSON
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  deltafl data import emnist --by-write by_write.zip --by-class by_class.zip --out emnist
  deltafl data import emnist data/train data/test --out emnist")]
pub(crate) struct EmnistArgs {
    /// LEAF's shards
    #[arg(required_unless_present = "by_write", conflicts_with = "by_write")]
    shards: Vec<PathBuf>,
    /// NIST's images by writer: the folder or the zip archive
    #[arg(long, value_name = "PATH", requires = "by_class")]
    by_write: Option<PathBuf>,
    /// NIST's images by class
    #[arg(long, value_name = "PATH", requires = "by_write")]
    by_class: Option<PathBuf>,
    #[command(flatten)]
    target: TargetArgs,
}

/// The features of a tweet.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum TweetFeatureArg {
    /// The first 20 words, for the recurrent model
    Tokens,
    /// The mean of the vectors of all words, for the linear model
    MeanVector,
}

/// Sentiment140: its CSV, a table with a header, or LEAF's JSON
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  deltafl data import sent140 training.csv --vectors glove.6B.50d.txt --out sent140
  deltafl data import sent140 tweets.tsv --device addressee --vectors glove.txt.gz --features mean-vector --out tweets")]
pub(crate) struct Sent140Args {
    /// The files
    #[arg(required = true)]
    sources: Vec<PathBuf>,
    /// Word vectors in GloVe's text format
    #[arg(long, value_name = "FILE")]
    vectors: PathBuf,
    /// The features of a tweet
    #[arg(long, value_enum, default_value_t = TweetFeatureArg::Tokens)]
    features: TweetFeatureArg,
    /// Look up words with their original capitalisation, as the authors' released code did
    #[arg(long)]
    keep_case: bool,
    /// For a table with a header: the column of the device
    #[arg(long, value_name = "COLUMN")]
    device: Option<String>,
    /// For a table with a header: the column of the polarity
    #[arg(long, value_name = "COLUMN", default_value = "label")]
    label: String,
    /// For a table with a header: the column of the text
    #[arg(long, value_name = "COLUMN", default_value = "text")]
    text: String,
    #[command(flatten)]
    target: TargetArgs,
}

/// The roles of Shakespeare's plays, from Project Gutenberg's text of 1994
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Example:\n  deltafl data import shakespeare pg100.txt.gz --out shakespeare --train 0.5"
)]
pub(crate) struct ShakespeareArgs {
    /// The text
    source: PathBuf,
    #[command(flatten)]
    target: TargetArgs,
}

/// The paper keeps devices with more examples than this.
pub(crate) const EMNIST_MIN_EXAMPLES: u64 = 100;
pub(crate) const SENT140_MIN_EXAMPLES: u64 = 50;
pub(crate) const SHAKESPEARE_MIN_EXAMPLES: u64 = 100;

pub(crate) fn run(command: ImportCommand) -> Result<()> {
    match command {
        ImportCommand::Leaf(args) => {
            let target = import::ImportTarget { keep_split: args.keep_split, ..args.target.target(0) };
            args.target.report(import::leaf::import(&args.sources, args.features.into(), &target))
        }
        ImportCommand::Auto(args) => auto::run(&args),
        ImportCommand::Csv(args) => args.run(TableFormat::Delimited(Dialect::Csv)),
        ImportCommand::Tsv(args) => args.run(TableFormat::Delimited(Dialect::Tsv)),
        ImportCommand::Jsonl(args) => args.run(TableFormat::JsonLines),
        ImportCommand::Arrow(args) => args.run(TableFormat::Arrow),
        ImportCommand::Parquet(args) => {
            run_table(&args.sources, TableFormat::Parquet, &args.columns, &args.target)
        }
        ImportCommand::Idx(args) => {
            let files =
                import::idx::IdxFiles { images: args.images, labels: args.labels, devices: args.devices };
            args.target.report(import::idx::import(&files, &args.target.target(0)))
        }
        ImportCommand::Npz(args) => {
            let arrays = import::npz::NpzArrays { x: args.x, y: args.y, device: args.device };
            let target = import::ImportTarget { regression: args.regression, ..args.target.target(0) };
            args.target.report(import::npz::import(&args.source, &arrays, args.features.into(), &target))
        }
        ImportCommand::Emnist(args) => run_emnist(&args),
        ImportCommand::Sent140(args) => run_sent140(args),
        ImportCommand::Shakespeare(args) => {
            let target = args.target.target(SHAKESPEARE_MIN_EXAMPLES);
            args.target.report(import::shakespeare::import(&args.source, &target))
        }
    }
}

impl TableArgs {
    fn run(&self, format: TableFormat) -> Result<()> {
        run_table(&self.sources, format, &self.columns, &self.target)
    }
}

fn run_emnist(args: &EmnistArgs) -> Result<()> {
    let mut target = args.target.target(EMNIST_MIN_EXAMPLES);
    target.name.get_or_insert_with(|| "emnist".to_owned());
    target.classes.get_or_insert(import::emnist::CLASSES);
    args.target.report(match (&args.by_write, &args.by_class) {
        (Some(by_write), Some(by_class)) => import::emnist::import(by_write, by_class, &target),
        _ => import::leaf::import(&args.shards, Features::Auto, &target),
    })
}

fn run_sent140(args: Sent140Args) -> Result<()> {
    if args.device.is_none() && args.sources.iter().any(|path| has_extension(path, "tsv")) {
        let error = bad_input("a table of tweets needs the name of its device column");
        return Err(error.help("for example: --device addressee").into());
    }
    let columns = args.device.map(|device| sent140::TweetColumns {
        device,
        label: args.label.clone(),
        text: args.text.clone(),
    });
    let options = sent140::TweetOptions {
        vectors: args.vectors,
        features: match args.features {
            TweetFeatureArg::Tokens => sent140::TweetFeatures::Tokens,
            TweetFeatureArg::MeanVector => sent140::TweetFeatures::MeanVector,
        },
        lowercase: !args.keep_case,
        columns,
    };
    let target = args.target.target(SENT140_MIN_EXAMPLES);
    args.target.report(sent140::import(&args.sources, &options, &target))
}

/// Returns whether the file name has this extension, before an optional `.gz`.
fn has_extension(path: &Path, extension: &str) -> bool {
    let stem =
        if path.extension().is_some_and(|end| end == "gz") { path.with_extension("") } else { path.into() };
    stem.extension().is_some_and(|end| end == extension)
}
