//! Experiment files: read, overridden by `--set`, checked, with errors that point at the line.

use std::path::Path;

use deltafl::experiment::Experiment;
use miette::LabeledSpan;
use toml_edit::{DocumentMut, Item, TableLike, Value};

use crate::error::{BadInput, bad_input};

/// Reads an experiment file and applies overrides.
pub(crate) fn read(path: &Path, overrides: &[String]) -> Result<Experiment, BadInput> {
    let text = std::fs::read_to_string(path).map_err(|e| {
        bad_input(format!("cannot read the experiment {}", path.display()))
            .because(e)
            .help("give the path of a TOML file; experiments/quickstart.toml is an example")
    })?;
    parse(path, &text, overrides)
}

/// Checks the text of an experiment file.
pub(crate) fn parse(path: &Path, text: &str, overrides: &[String]) -> Result<Experiment, BadInput> {
    let text = if overrides.is_empty() { text.to_owned() } else { overridden(path, text, overrides)? };
    let experiment: Experiment = toml::from_str(&text).map_err(|e| {
        let span = e.span().unwrap_or(0..0);
        // A span over a whole table would draw its frame around half of the file: its first line says enough.
        let end = text[span.clone()].find('\n').map_or(span.end, |line| span.start + line);
        let label = LabeledSpan::new_with_span(Some(e.message().trim().to_owned()), span.start..end);
        bad_input("invalid experiment file").at(path, &text, label)
    })?;
    experiment
        .validate()
        .map_err(|e| bad_input(format!("invalid experiment file {}", path.display())).because(e))?;
    Ok(experiment)
}

/// The text with `key=value` applied, so that a wrong value is shown where it would stand.
fn overridden(path: &Path, text: &str, overrides: &[String]) -> Result<String, BadInput> {
    let mut document: DocumentMut = text.parse().map_err(|e: toml_edit::TomlError| {
        let label = LabeledSpan::new_with_span(Some(e.message().to_owned()), e.span().unwrap_or(0..0));
        bad_input("invalid experiment file").at(path, text, label)
    })?;
    for assignment in overrides {
        let Some((key, value)) = assignment.split_once('=') else {
            return Err(bad_input(format!("--set {assignment}: expected key=value")).help(
                "for example --set rounds=5 --set local.learning_rate=0.1 --set algorithm.1.theta=0.3",
            ));
        };
        set(document.as_table_mut(), key.trim(), parsed(value.trim()))
            .map_err(|reason| bad_input(format!("--set {assignment}: {reason}")))?;
    }
    Ok(document.to_string())
}

/// A TOML value, or else a string.
fn parsed(value: &str) -> Value {
    value.parse().unwrap_or_else(|_| Value::from(value))
}

/// Sets a dotted key; a number picks an entry of a list of tables.
fn set(table: &mut dyn TableLike, key: &str, value: Value) -> Result<(), String> {
    let Some((name, rest)) = key.split_once('.') else {
        if key.is_empty() {
            return Err("the key has an empty part".to_owned());
        }
        table.insert(key, Item::Value(value));
        return Ok(());
    };
    match table.entry(name).or_insert_with(toml_edit::table) {
        Item::ArrayOfTables(tables) => {
            let count = tables.len();
            let entry = rest.split_once('.').and_then(|(index, rest)| Some((index.parse().ok()?, rest)));
            let entry = entry.and_then(|(index, rest): (usize, _)| Some((tables.get_mut(index)?, rest)));
            let (entry, rest) =
                entry.ok_or_else(|| format!("{name} needs an index below {count} and a key"))?;
            set(entry, rest, value)
        }
        item => match item.as_table_like_mut() {
            Some(table) => set(table, rest, value),
            None => Err(format!("{name} is a value: there is nothing below it")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
name = "t"
rounds = 3
cohort = 5
[data]
source = { kind = "glyphs", devices = 10 }
[model]
kind = "linear"
[local]
epochs = 1
batch = 10
learning_rate = 0.1
[[algorithm]]
kind = "fedavg"
[[algorithm]]
kind = "delta-fl"
theta = 0.5
"#;

    fn with(overrides: &[&str]) -> Result<Experiment, BadInput> {
        let overrides: Vec<String> = overrides.iter().map(|&s| s.to_owned()).collect();
        parse(Path::new("t.toml"), TEXT, &overrides)
    }

    #[test]
    fn any_key_can_be_overridden() {
        let experiment = with(&[
            "rounds=7",
            "local.learning_rate = 0.25",
            "model.l2=1e-3",
            "data.source.devices=4",
            "algorithm.1.theta=[0.9, 0.1]",
            "local.decay.factor=0.5",
            "local.decay.every=2",
        ])
        .unwrap();
        assert_eq!(experiment.rounds.get(), 7);
        assert_eq!(experiment.tracks().len(), 3);
        let expected = with(&[]).unwrap();
        let keys: Vec<String> = expected.differences(&experiment).into_iter().map(|d| d.key).collect();
        let changed = [
            "algorithm.1.theta",
            "data.source.devices",
            "local.decay.every",
            "local.decay.factor",
            "local.learning_rate",
            "model.l2",
            "rounds",
        ];
        assert_eq!(keys, changed);
    }

    #[test]
    fn a_wrong_override_is_refused() {
        for wrong in
            ["rounds", "rounds=0", "algorithm.7.theta=0.5", "name.x=1", "nonsense=1", ".=1", "algorithm.1=2"]
        {
            assert!(with(&[wrong]).is_err(), "{wrong}");
        }
    }
}
