//! Sweeps of a program that trains their points itself: the folder of `deltafl sweep`, and what it holds.

use std::path::{Path, PathBuf};

use deltafl_data::experiment::Experiment;

use super::Failure;
use crate::experiment_file;
use crate::sweep::folder::{Standing, SweepFolder};
use crate::sweep::listing;
use crate::sweep::points::Sweep;

/// The points of a sweep, each with its run folder.
pub struct Planned {
    /// The sweep's folder.
    pub folder: PathBuf,
    /// In the order of `deltafl sweep list`.
    pub points: Vec<PlannedPoint>,
}

/// One combination of values.
pub struct PlannedPoint {
    /// Key and value of each axis.
    pub settings: Vec<(String, serde_json::Value)>,
    /// What it trains.
    pub experiment: Experiment,
    /// Its run folder.
    pub folder: PathBuf,
    /// How far it has come.
    pub standing: PointStanding,
}

/// How far a point has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PointStanding {
    /// Nothing is there.
    Missing,
    /// Some rounds are.
    Begun,
    /// All seeds are done.
    Finished,
}

/// What is swept.
pub enum Swept<'a> {
    /// An experiment file.
    File(&'a Path),
    /// The text of one.
    Text(&'a str),
}

/// Plans a sweep and writes its description into its folder; without a folder it is `sweeps/NAME`. An axis is
/// `KEY=VALUE,VALUE…`, as for `--sweep`.
pub fn plan(
    swept: &Swept<'_>,
    overrides: &[String],
    axes: &[String],
    out: Option<&Path>,
) -> Result<Planned, Failure> {
    let sweep = match swept {
        Swept::File(path) => Sweep::new(path, &experiment_file::text(path)?, overrides, axes)?,
        Swept::Text(text) => Sweep::new(Path::new("(dict)"), text, overrides, axes)?,
    };
    let out = out.map_or_else(|| Path::new("sweeps").join(&sweep.name), Path::to_owned);
    let folder = SweepFolder::at(&out);
    folder.describe(&sweep)?;
    planned(&folder, sweep)
}

/// The sweep that a folder was made for.
pub fn open(folder: &Path) -> Result<Planned, Failure> {
    let folder = SweepFolder::at(folder);
    let sweep = folder.sweep()?;
    planned(&folder, sweep)
}

fn planned(folder: &SweepFolder, sweep: Sweep) -> Result<Planned, Failure> {
    let keys: Vec<String> = sweep.axes.iter().map(|axis| axis.key.clone()).collect();
    let mut points = Vec::with_capacity(sweep.points.len());
    for point in sweep.points {
        let standing = match folder.standing(&point)? {
            Standing::Missing => PointStanding::Missing,
            Standing::Rounds(_) => PointStanding::Begun,
            Standing::Finished => PointStanding::Finished,
        };
        points.push(PlannedPoint {
            settings: keys.iter().cloned().zip(point.typed).collect(),
            folder: folder.point(&point.address),
            experiment: point.experiment,
            standing,
        });
    }
    Ok(Planned { folder: folder.path().to_owned(), points })
}

/// The results of a sweep, as `deltafl sweep list` prints them: for people, and as JSON.
pub fn results(folder: &Path) -> Result<(String, String), Failure> {
    let folder = SweepFolder::at(folder);
    let sweep = folder.sweep()?;
    let results = listing::results(&folder, &sweep, sweep.points.iter())?;
    let json = serde_json::to_string(&results).map_err(miette::Report::from_err)?;
    Ok((listing::rendered(&sweep, &results), json))
}
