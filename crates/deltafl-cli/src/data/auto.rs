//! `deltafl data import auto`: inspects files, prints the decisions, and imports.

use std::path::{Path, PathBuf};

use deltafl_data::import::images::{self, Colour, ImageOptions};
use deltafl_data::import::{ImportTarget, auto, table};
use miette::Result;

use super::columns::{TypeArgs, misuse, size};
use super::target::{TargetArgs, import_error};

/// Inspect a table or a folder of images, print the type of each column, and import it
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Each decision can be changed: --device, --label, --split, --text, --category, --number, --date and --ignore \
name columns, --regression and --classes-of-numbers choose the task, --missing the treatment of missing values. A folder contains \
images as DEVICE/CLASS/*.png or CLASS/*.png. CSV, TSV, JSON lines, Parquet, Arrow and Feather are recognised by their contents.\n\nExamples:
  deltafl data import auto reviews.csv --out reviews
  deltafl data import auto photos --size 32x32 --out photos.fed"
)]
pub(crate) struct AutoArgs {
    /// The files of a table, a folder of images, or `-` for standard input
    #[arg(required = true)]
    sources: Vec<PathBuf>,
    /// The column of the device [default: by its name]
    #[arg(long, value_name = "COLUMN")]
    device: Option<String>,
    /// The column of the label [default: by its name, or the last that fits]
    #[arg(long, value_name = "COLUMN")]
    label: Option<String>,
    /// The label is a number to predict
    #[arg(long, conflicts_with = "classes_of_numbers")]
    regression: bool,
    /// The label is a class although it is a number
    #[arg(long)]
    classes_of_numbers: bool,
    #[command(flatten)]
    types: TypeArgs,
    /// The size of images; others are resized [default: the most frequent size]
    #[arg(long, value_name = "WIDTHxHEIGHT", value_parser = size)]
    size: Option<(usize, usize)>,
    /// Convert coloured images to grey [default: red, green and blue are kept]
    #[arg(long)]
    grey: bool,
    #[command(flatten)]
    target: TargetArgs,
}

pub(super) fn run(args: &AutoArgs) -> Result<()> {
    let image_options =
        ImageOptions { size: args.size, colour: if args.grey { Colour::Grey } else { Colour::Auto } };
    if let [folder] = &args.sources[..]
        && folder.is_dir()
    {
        let target = args.target.target(0);
        let imported = match args.types.contract()? {
            Some(contract) => images::import_folder_like(folder, &contract, &target),
            None => images::import_folder(folder, image_options, &target),
        };
        return args.target.report(imported);
    }
    let sources = auto::LocalFiles::new(&args.sources).map_err(import_error)?;
    if let Some(contract) = args.types.contract()? {
        let first = sources.paths.first().map_or(Path::new("-"), PathBuf::as_path);
        let format = auto::detect(first).map_err(import_error)?;
        let options = args.types.like(args.device.clone(), args.label.clone());
        let target = args.target.target(0);
        return args.target.report(table::import_like(&sources.paths, format, &contract, &options, &target));
    }
    let task = match (args.regression, args.classes_of_numbers) {
        (true, _) => Some(true),
        (_, true) => Some(false),
        _ => None,
    };
    let options = args.types.auto(args.device.clone(), args.label.clone(), task);
    let inspection = auto::inspect(&sources.paths, &options).map_err(import_error)?;
    if !args.target.json {
        print!("{}", rendered(&inspection));
    }
    let target = ImportTarget { regression: inspection.regression, ..args.target.target(0) };
    if let Some(image) = &inspection.image {
        let [path] = &sources.paths[..] else { return Err(misuse("a table of images is one file")) };
        let (format, columns) = (inspection.format, &inspection.table);
        return args.target.report(images::import_table(
            path,
            format,
            columns,
            image,
            image_options,
            &target,
        ));
    }
    let (columns, features) = (&inspection.table, args.types.features());
    let imported = match inspection.format {
        table::TableFormat::Parquet => {
            deltafl_data::import::parquet::import(&sources.paths, columns, features, &target)
        }
        format => table::import_files(&sources.paths, format, columns, features, &target),
    };
    args.target.report(imported)
}

/// Renders the columns with their types.
fn rendered(inspection: &auto::Inspection) -> String {
    use std::fmt::Write as _;
    let width = inspection.columns.iter().map(|column| column.name.chars().count()).max().unwrap_or(0);
    let mut out = format!("{} columns, by the first {} rows:\n", inspection.columns.len(), inspection.rows);
    for column in &inspection.columns {
        let name = format!("{:width$}", column.name);
        let line = format!("  {name}  {:<10}  {}", column.role.name(), column.note);
        writeln!(out, "{}", line.trim_end()).expect("a string takes any text");
    }
    if inspection.table.device.is_none() {
        let note = "no column looks like a device, so all rows are one: name it with --device, or divide the rows with \
                    deltafl data partition";
        writeln!(out, "  {note}").expect("a string takes any text");
    }
    let missing = inspection.table.missing.name();
    writeln!(out, "  missing values: {missing} (--missing); other choices: --device, --label, --group, --text, --category, --number, --date, --ignore")
        .expect("a string takes any text");
    out
}
