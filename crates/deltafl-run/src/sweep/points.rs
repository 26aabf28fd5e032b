//! The points of a sweep: one experiment for every combination of the values of its axes.

use std::path::Path;
use std::str::FromStr;

use deltafl_data::experiment::Experiment;
use toml_edit::{Array, DocumentMut, Item, Table, Value};

use super::SweepError;
use super::axes::{self, SweepAxis};
use crate::experiment_file;

/// The key whose points repeat the same experiment.
pub(crate) const SEEDS: &str = "seeds";

/// An experiment and the keys in which its points differ.
pub struct Sweep {
    /// The name of the experiment.
    pub name: String,
    /// The keys that are swept.
    pub axes: Vec<SweepAxis>,
    /// All points. The last axis varies fastest.
    pub points: Vec<SweepPoint>,
    /// The text of a file that describes the sweep.
    pub text: String,
}

/// One combination of values.
#[derive(Clone, Debug)]
pub struct SweepPoint {
    /// A value per axis, as text.
    pub values: Vec<String>,
    /// The same values as JSON.
    pub typed: Vec<serde_json::Value>,
    /// The experiment with these values.
    pub experiment: Experiment,
    /// The name of its run folder, which depends only on the experiment.
    pub address: String,
}

impl Sweep {
    /// Reads a file and applies `--set` and `--sweep`.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be read, or if the experiment or an axis is invalid.
    pub fn read(path: &Path, overrides: &[String], swept: &[String]) -> Result<Self, SweepError> {
        Self::new(path, &experiment_file::text(path)?, overrides, swept)
    }

    /// Creates a sweep from the text of a file.
    ///
    /// # Errors
    ///
    /// Fails if the experiment or an axis is invalid, or if two points are the same experiment.
    pub fn new(path: &Path, text: &str, overrides: &[String], swept: &[String]) -> Result<Self, SweepError> {
        let mut document = experiment_file::document(path, text, overrides)?;
        let mut axes = axes::of_document(&document);
        for argument in swept {
            let axis = axes::of_argument(argument)?;
            axes.retain(|known| known.key != axis.key);
            axes.push(axis);
        }
        axes::remove_from(&mut document);
        check(&axes, overrides)?;
        let name = document.get("name").and_then(Item::as_str).unwrap_or_default().to_owned();
        let points = points(path, &document, &axes, overrides)?;
        Ok(Self { name, points, text: described(document, &axes)?, axes })
    }
}

fn check(axes: &[SweepAxis], overrides: &[String]) -> Result<(), SweepError> {
    for (i, axis) in axes.iter().enumerate() {
        if axis.values.is_empty() {
            return Err(SweepError::EmptyAxis { key: axis.key.clone() });
        }
        if axes[..i].iter().any(|other| other.key == axis.key) {
            return Err(SweepError::Twice { key: axis.key.clone() });
        }
        let set =
            |assignment: &&String| assignment.split('=').next().map(str::trim) == Some(axis.key.as_str());
        if let Some(assignment) = overrides.iter().find(set).filter(|_| axis.values.len() > 1) {
            let (assignment, key) = (assignment.clone(), axis.key.clone());
            return Err(SweepError::SetAndSwept { assignment, key });
        }
    }
    Ok(())
}

fn points(
    path: &Path,
    document: &DocumentMut,
    axes: &[SweepAxis],
    overrides: &[String],
) -> Result<Vec<SweepPoint>, SweepError> {
    let mut points: Vec<SweepPoint> = Vec::new();
    for values in combinations(axes) {
        let mut document = document.clone();
        assign(&mut document, axes.iter().zip(&values).map(|(axis, &value)| (axis, value)))?;
        let set = overrides.iter().map(|assignment| format!("--set {assignment}"));
        let swept =
            axes.iter().zip(&values).map(|(axis, value)| format!("{}={}", axis.key, axes::formatted(value)));
        let with: Vec<String> = set.chain(swept).collect();
        let experiment = experiment_file::checked_with(path, &document.to_string(), &with)?;
        let typed = values.iter().map(|value| axes::to_json(value)).collect();
        let values: Vec<String> = values.into_iter().map(axes::formatted).collect();
        let mut name = experiment.name().to_owned();
        for (axis, value) in axes.iter().zip(&values).filter(|(axis, _)| axis.key != "name") {
            // The name is also a folder name, and a value may be a path.
            let value = value.replace(['/', '\\'], "_");
            name.push_str(&format!(" {}={}", axis.key, value.trim_end()));
        }
        let experiment = experiment.with_name(&name).map_err(|source| SweepError::Name { name, source })?;
        let address = experiment.address();
        if let Some(twin) = points.iter().find(|point| point.address == address) {
            return Err(SweepError::SamePoint { first: twin.values.clone(), second: values });
        }
        points.push(SweepPoint { values, typed, experiment, address });
    }
    Ok(points)
}

/// Returns every choice of one value per axis. The last axis varies fastest.
fn combinations(axes: &[SweepAxis]) -> Vec<Vec<&Value>> {
    let mut chosen: Vec<Vec<&Value>> = vec![Vec::new()];
    for axis in axes {
        let with = |start: &[_], value| [start, &[value]].concat();
        chosen = chosen.iter().flat_map(|start| axis.values.iter().map(|value| with(start, value))).collect();
    }
    chosen
}

fn assign<'a>(
    document: &mut DocumentMut,
    values: impl Iterator<Item = (&'a SweepAxis, &'a Value)>,
) -> Result<(), SweepError> {
    for (axis, value) in values {
        experiment_file::assign(document, &axis.key, value.clone())
            .map_err(|problem| SweepError::Key { key: axis.key.clone(), problem })?;
    }
    Ok(())
}

/// Returns the experiment at its first point, with all axes in the table `[sweep]`. Parsing it
/// results in the same sweep.
fn described(mut document: DocumentMut, axes: &[SweepAxis]) -> Result<String, SweepError> {
    assign(&mut document, axes.iter().filter_map(|axis| Some((axis, axis.values.first()?))))?;
    let mut table = Table::new();
    for axis in axes {
        table.insert(&axis.key, Item::Value(Value::Array(axis.values.iter().cloned().collect::<Array>())));
    }
    document.insert(axes::TABLE, Item::Table(table));
    Ok(document.to_string())
}

/// `i/n`: the points trained by the i-th of n machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// The index, counted from 1.
    index: usize,
    count: usize,
}

impl Shard {
    /// Everything.
    pub const WHOLE: Self = Self { index: 1, count: 1 };

    /// Creates the share with an index counted from 1. Returns `None` unless 1 ≤ index ≤ count.
    pub fn new(index: usize, count: usize) -> Option<Self> {
        (1..=count).contains(&index).then_some(Self { index, count })
    }

    /// Returns its points. They are assigned round-robin, so that neighbours of similar cost are
    /// distributed.
    pub fn select<'a, T>(&self, points: &'a [T]) -> impl Iterator<Item = &'a T> + use<'a, T> {
        points.iter().skip(self.index - 1).step_by(self.count)
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split_once('/').and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
        let shard = numbers.and_then(|(index, count)| Self::new(index, count));
        shard.ok_or_else(|| "expected i/n with 1 ≤ i ≤ n, for example 2/8".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "name = 't'\nrounds = [3, 5]\ncohort = 5\n[data]\nsource = { kind = 'glyphs', devices = 10 }\n\
        [model]\nkind = 'linear'\n[local]\nepochs = 1\nbatch = 10\nlearning_rate = 0.1\n[[algorithm]]\nkind = 'fedavg'\n\
        [sweep]\n'model.l2' = [0, 1e-3, 1e-2]\n";

    fn sweep(overrides: &[&str], swept: &[&str]) -> Result<Sweep, SweepError> {
        let owned = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
        Sweep::new(Path::new("t.toml"), TEXT, &owned(overrides), &owned(swept))
    }

    #[test]
    fn points_are_all_combinations_with_the_last_axis_varying_fastest() {
        let sweep = sweep(&[], &["local.batch=10,32"]).unwrap();
        assert_eq!(sweep.points.len(), 12);
        assert_eq!(sweep.points[1].values, ["3", "0", "32"]);
        assert_eq!(sweep.points[1].experiment.local().batch, 32);
        assert_eq!(sweep.points[11].experiment.rounds(), 5);
        assert_eq!(sweep.points[1].experiment.name(), "t rounds=3 model.l2=0 local.batch=32");
    }

    #[test]
    fn parsing_the_description_gives_the_same_sweep() {
        let sweep = sweep(&["cohort=4"], &["seeds=[1, 2],[3]"]).unwrap();
        let again = Sweep::new(Path::new("sweep.toml"), &sweep.text, &[], &[]).unwrap();
        let addresses = |sweep: &Sweep| sweep.points.iter().map(|p| p.address.clone()).collect::<Vec<_>>();
        assert_eq!(addresses(&sweep), addresses(&again));
        assert_eq!(again.text, sweep.text);
    }

    #[test]
    fn ambiguous_sweeps_are_rejected() {
        assert!(sweep(&["model.l2=1"], &[]).is_err(), "a key that is set and swept");
        assert!(sweep(&[], &["model.l2=1,1.0"]).is_err(), "the same experiment twice");
        assert!(sweep(&[], &["cohort.x=1,2"]).is_err(), "a key below a value");
        assert!(sweep(&[], &["cohort=0,2"]).is_err(), "an invalid value");
        assert!(sweep(&["rounds=4"], &[]).is_ok(), "--set replaces a list in the file");
    }

    #[test]
    fn shards_are_disjoint_and_complete() {
        let points: Vec<usize> = (0..11).collect();
        for count in 1..14 {
            let shards = (1..=count).map(|i| format!("{i}/{count}").parse::<Shard>().unwrap());
            let mut all: Vec<usize> =
                shards.flat_map(|shard| shard.select(&points).copied().collect::<Vec<_>>()).collect();
            all.sort_unstable();
            assert_eq!(all, points, "{count} shards");
        }
        for wrong in ["0/3", "4/3", "1/0", "1", "a/b", "-1/3", "1/3/5"] {
            assert!(wrong.parse::<Shard>().is_err(), "{wrong}");
        }
    }
}
