//! Distinct names for runs that are displayed together.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use deltafl_data::experiment::Experiment;

/// The maximum number of keys in a name. Beyond it, the folder name is clearer.
const KEYS: usize = 3;

/// Returns a name per run: the name of its experiment. If several runs share it, the settings that
/// differ are added. If that is not sufficient, the folder name or its path is used.
pub fn distinct(runs: &[(&Path, &Experiment)]) -> Vec<String> {
    let own: Vec<&str> = runs.iter().map(|(_, experiment)| experiment.name.as_str()).collect();
    let mut names: Vec<String> = own.iter().map(|&name| name.to_owned()).collect();
    let shared: BTreeSet<&str> = own.iter().copied().filter(|name| count(&own, name) > 1).collect();
    for name in shared {
        let places: Vec<usize> = (0..runs.len()).filter(|&i| own[i] == name).collect();
        let namesakes: Vec<&Experiment> = places.iter().map(|&i| runs[i].1).collect();
        for (&i, settings) in places.iter().zip(settings(&namesakes)) {
            names[i] = format!("{name} {settings}").trim_end().to_owned();
        }
    }
    let folder = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    for replace in [folder, |path: &Path| Some(path.display().to_string())] {
        let before = names.clone();
        for (i, (path, _)) in runs.iter().enumerate().filter(|(i, _)| count(&before, &before[*i]) > 1) {
            names[i] = replace(path).unwrap_or_else(|| before[i].clone());
        }
    }
    names
}

fn count<T: PartialEq>(names: &[T], name: &T) -> usize {
    names.iter().filter(|other| *other == name).count()
}

/// Returns the keys in which experiments differ, with the values of each. Empty if there are none
/// or too many.
fn settings(experiments: &[&Experiment]) -> Vec<String> {
    let first = experiments[0];
    // The values of the first experiment, and the differing values of each other experiment.
    let mut base: BTreeMap<String, Option<String>> = BTreeMap::new();
    let mut values: Vec<BTreeMap<String, Option<String>>> = Vec::new();
    for experiment in experiments {
        let differences = first.differences(experiment).into_iter();
        let mut own = BTreeMap::new();
        for difference in differences.filter(|d| d.key != "name" && !d.key.starts_with("resolved.")) {
            base.insert(difference.key.clone(), difference.before);
            own.insert(difference.key, difference.now);
        }
        values.push(own);
    }
    if base.len() > KEYS {
        return vec![String::new(); experiments.len()];
    }
    let last = |key: &str| key.rsplit('.').next().unwrap_or_default().to_owned();
    let short = |key: &str| {
        let shared = base.keys().filter(|other| last(other) == last(key)).count() > 1;
        if shared { key.to_owned() } else { last(key) }
    };
    let shown = |own: &BTreeMap<String, Option<String>>| {
        let parts = base.iter().map(|(key, before)| match own.get(key).unwrap_or(before) {
            Some(value) => format!("{}={}", short(key), value.trim_matches('"')),
            None => format!("without {}", short(key)),
        });
        parts.collect::<Vec<_>>().join(" ")
    };
    values.iter().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn experiment(name: &str, rounds: u64, batch: u64) -> Experiment {
        Experiment::parse(&format!(
            "name = '{name}'\nrounds = {rounds}\ncohort = 2\n[data]\nsource = 'd'\n[model]\nkind = 'linear'\n\
             [local]\nepochs = 1\nbatch = {batch}\nlearning_rate = 1.0\n[[algorithm]]\nkind = 'fedavg'\n"
        ))
        .unwrap()
    }

    fn names(runs: &[(&str, Experiment)]) -> Vec<String> {
        let runs: Vec<_> = runs.iter().map(|(path, experiment)| (Path::new(path), experiment)).collect();
        distinct(&runs)
    }

    #[test]
    fn runs_with_the_same_name_are_distinguished_by_their_settings() {
        let runs = [
            ("runs/a", experiment("q", 5, 10)),
            ("runs/b", experiment("q", 9, 10)),
            ("runs/c", experiment("other", 5, 10)),
            ("runs/d", experiment("q", 9, 32)),
        ];
        assert_eq!(
            names(&runs),
            ["q batch=10 rounds=5", "q batch=10 rounds=9", "other", "q batch=32 rounds=9"]
        );
    }

    #[test]
    fn runs_of_the_same_experiment_are_named_by_folder_or_path() {
        let same = |path| (path, experiment("q", 5, 10));
        assert_eq!(names(&[same("runs/a"), same("runs/b")]), ["a", "b"]);
        assert_eq!(names(&[same("x/a"), same("y/a"), same("y/b")]), ["x/a", "y/a", "b"]);
        assert_eq!(names(&[same("runs/a")]), ["q"]);
    }
}
