//! `deltafl data show`: displays a few devices, from the most typical to the least typical.

use std::path::{Path, PathBuf};

use deltafl::data::synthetic::Spec;
use deltafl::data::{Federation, FederationIndex, InputKind, Split};
use miette::Result;

use self::sheet::Sheet;
use super::synth::Options;
use crate::error::bad_input;

mod distance;
mod sample;
mod sheet;

/// Show a few devices: a sheet of their images, or samples of their texts
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  deltafl data show glyphs --out sheet.png\n  deltafl data show roles --devices 3"
)]
pub(crate) struct Args {
    /// A synthetic federation (glyphs, logistic, roles, tweets) or a federation folder
    source: String,
    /// Number of devices to show, evenly spaced from the most typical to the least typical
    #[arg(long, default_value_t = 12, value_name = "N")]
    devices: usize,
    /// Seed of a synthetic federation
    #[arg(long, value_parser = clap::value_parser!(i64).range(0..))]
    seed: Option<i64>,
    /// The PNG file of images
    #[arg(long, default_value = "sheet.png", value_name = "FILE")]
    out: PathBuf,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let federation = load_source(&args.source, args.seed)?;
    let shown = spread(&distance::distances(&federation), args.devices);
    if let InputKind::Bytes { dim } = federation.kind() {
        let sheet = Sheet::new(&federation, dim, &shown).ok_or_else(|| {
            bad_input(format!("inputs of {dim} grey levels are not images of a known size"))
        })?;
        sheet.write(&args.out)?;
        println!(
            "{}: a row per device and a column per class, the least typical device last",
            args.out.display()
        );
    }
    for (row, &(device, distance)) in shown.iter().enumerate() {
        println!("{}", heading(&federation, row, device, distance));
        sample::print(&federation, device);
    }
    Ok(())
}

/// Loads a synthetic federation by the name of its kind, or a federation folder.
///
/// A folder with the name of a kind must be written as a path: `./glyphs`.
fn load_source(source: &str, seed: Option<i64>) -> Result<Federation> {
    if Spec::KINDS.contains(&source) {
        return Ok(Options { seed, ..Options::default() }.spec(source)?.build());
    }
    deltafl_data::open(Path::new(source)).map_err(|error| {
        let kinds = Spec::KINDS.join(", ");
        bad_input(format!("cannot open the federation {source}"))
            .because(error)
            .help(format!("give a federation folder, or one of {kinds}"))
            .into()
    })
}

/// Returns `n` devices, evenly spaced from the smallest distance to the largest.
fn spread(distances: &[f64], n: usize) -> Vec<(FederationIndex, f64)> {
    let mut ranked: Vec<(FederationIndex, f64)> = distances
        .iter()
        .enumerate()
        .map(|(device, &distance)| (FederationIndex(device as u32), distance))
        .collect();
    ranked.sort_by(|a, b| a.1.total_cmp(&b.1));
    let n = n.min(ranked.len());
    let last = ranked.len().saturating_sub(1);
    (0..n).map(|i| ranked[if n > 1 { i * last / (n - 1) } else { 0 }]).collect()
}

fn heading(federation: &Federation, row: usize, device: FederationIndex, distance: f64) -> String {
    let split = match federation.split_of(device) {
        Split::Train => "train",
        Split::Test => "test",
        Split::Validation => "validation",
    };
    let (id, count) = (federation.id(device), federation.example_count(device));
    format!("{:>3}  {id:<20} {split:<10} {count:>6} examples  distance {distance:.3}", row + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_shown_from_the_most_to_the_least_typical() {
        let devices =
            |n| spread(&[3.0, 1.0, 2.0, 5.0, 4.0], n).iter().map(|shown| shown.0.0).collect::<Vec<_>>();
        assert_eq!(devices(3), [1, 0, 3]);
        assert_eq!(devices(9), [1, 2, 0, 4, 3]);
        assert_eq!(devices(1), [1]);
        assert!(devices(0).is_empty());
    }

    #[test]
    fn a_source_that_is_neither_a_kind_nor_a_folder_is_rejected() {
        let error = load_source("no-such-federation", None).unwrap_err();
        assert!(error.to_string().contains("no-such-federation"), "{error}");
    }
}
