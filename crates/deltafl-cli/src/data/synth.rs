//! `deltafl data synth`: writes a synthetic federation to a folder.

use std::num::NonZeroU32;
use std::path::PathBuf;

use deltafl::data::synthetic::Spec;
use deltafl_data::{Manifest, SaveError};
use miette::{Report, Result};

use crate::error::bad_input;

/// Write a synthetic federation to a folder
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  deltafl data synth glyphs --devices 1000 --out glyphs\n  \
                        deltafl data synth logistic --alpha 0.5 --beta 0.5 --out synthetic-0.5-0.5")]
pub(crate) struct Args {
    /// The kind of federation
    #[arg(value_parser = Spec::KINDS)]
    kind: String,
    #[command(flatten)]
    options: Options,
    /// The federation folder to write
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Print the manifest as JSON
    #[arg(long)]
    json: bool,
}

/// The options of a synthetic federation. Missing ones have the defaults of its kind.
#[derive(clap::Args, Debug, Default)]
pub(crate) struct Options {
    /// Seed of all random draws
    #[arg(long, value_parser = clap::value_parser!(i64).range(0..))]
    pub(crate) seed: Option<i64>,
    /// Number of devices
    #[arg(long, value_name = "N")]
    pub(crate) devices: Option<NonZeroU32>,
    /// Share of train devices; the others are test devices
    #[arg(long, value_name = "SHARE")]
    pub(crate) train: Option<f64>,
    /// Share of atypical devices (glyphs, roles, tweets)
    #[arg(long, value_name = "SHARE")]
    pub(crate) odd: Option<f64>,
    /// Variance of the models' means (logistic)
    #[arg(long, value_name = "VARIANCE")]
    pub(crate) alpha: Option<f64>,
    /// Variance of the inputs' means (logistic)
    #[arg(long, value_name = "VARIANCE")]
    pub(crate) beta: Option<f64>,
    /// Examples per device: minimum, median and maximum
    #[arg(long, value_name = "MIN,MEDIAN,MAX", value_parser = three_numbers)]
    pub(crate) examples: Option<[u32; 3]>,
    /// The former name of `--examples`, kept for its error message.
    #[arg(long = "points", hide = true, value_parser = renamed)]
    pub(crate) _points: Option<String>,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let federation = args.options.spec(&args.kind)?.build();
    let manifest = deltafl_data::save(&federation, &args.out).map_err(save_error)?;
    if args.json {
        println!(
            "{}",
            serde_json::to_string_pretty(&manifest).expect("a manifest contains only plain values")
        );
    } else {
        let Manifest { name, devices, examples, classes, .. } = manifest;
        println!("{}: {name}, {devices} devices, {examples} examples, {classes} classes", args.out.display());
    }
    Ok(())
}

/// Classifies the error: an existing folder is invalid input, a full disk is not.
fn save_error(error: SaveError) -> Report {
    match error {
        SaveError::Exists { .. } => bad_input(error.to_string()).into(),
        _ => Report::from_err(error),
    }
}

impl Options {
    /// Returns the federation of this kind, validated like the `source` of an experiment file.
    pub(crate) fn spec(&self, kind: &str) -> Result<Spec> {
        let mut table = toml::Table::new();
        let mut set = |key: &str, value: Option<toml::Value>| {
            if let Some(value) = value {
                table.insert(key.to_owned(), value);
            }
        };
        set("kind", Some(kind.into()));
        set("seed", self.seed.map(Into::into));
        set("devices", self.devices.map(|devices| devices.get().into()));
        set("train", self.train.map(Into::into));
        set("odd", self.odd.map(Into::into));
        set("alpha", self.alpha.map(Into::into));
        set("beta", self.beta.map(Into::into));
        set("examples", self.examples.map(examples_table));
        table.try_into().map_err(|error: toml::de::Error| {
            bad_input(format!("invalid options for {kind}: {}", error.message())).into()
        })
    }
}

fn renamed(_: &str) -> Result<String, String> {
    Err("it is called --examples now".to_owned())
}

/// Parses three comma-separated numbers.
fn three_numbers(text: &str) -> Result<[u32; 3], String> {
    let numbers: Result<Vec<u32>, _> = text.split(',').map(|number| number.trim().parse()).collect();
    let numbers = numbers.map_err(|error| error.to_string())?;
    <[u32; 3]>::try_from(numbers).map_err(|_| "three numbers are needed: MIN,MEDIAN,MAX".to_owned())
}

fn examples_table([min, median, max]: [u32; 3]) -> toml::Value {
    let entries = [("min", min), ("median", median), ("max", max)];
    toml::Value::Table(entries.map(|(key, n)| (key.to_owned(), n.into())).into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_of_another_kind_is_rejected_by_name() {
        let options = Options { alpha: Some(0.5), ..Options::default() };
        assert!(options.spec("logistic").is_ok());
        let error = options.spec("glyphs").unwrap_err().to_string();
        assert!(error.contains("unknown field `alpha`"), "{error}");
    }

    #[test]
    fn a_share_above_one_is_rejected() {
        let error = Options { odd: Some(1.5), ..Options::default() }.spec("glyphs").unwrap_err().to_string();
        assert!(error.contains("a share must lie in [0, 1], got 1.5"), "{error}");
    }

    #[test]
    fn examples_are_three_numbers() {
        assert_eq!(three_numbers("5, 9,20"), Ok([5, 9, 20]));
        assert!(three_numbers("5,9").unwrap_err().contains("three numbers"));
        assert!(three_numbers("5,x,9").is_err());
    }
}
