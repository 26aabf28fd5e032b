//! Experiment files: read, overridden by `--set`, checked, with errors that point at the line.

use std::ops::Range;
use std::path::Path;

use deltafl_data::experiment::Experiment;
use miette::LabeledSpan;
use toml_edit::{DocumentMut, Item, TableLike, Value};

use crate::error::{BadInput, bad_input};
use crate::sweep::axes;

/// Reads an experiment file and applies overrides.
pub(crate) fn read(path: &Path, overrides: &[String]) -> Result<Experiment, BadInput> {
    parse(path, &text(path)?, overrides)
}

/// The text of an experiment file.
pub(crate) fn text(path: &Path) -> Result<String, BadInput> {
    std::fs::read_to_string(path).map_err(|e| {
        bad_input(format!("cannot read the experiment {}", path.display()))
            .because(e)
            .help("give the path of a TOML file; experiments/quickstart.toml is an example")
    })
}

/// Checks the text of an experiment file.
pub(crate) fn parse(path: &Path, text: &str, overrides: &[String]) -> Result<Experiment, BadInput> {
    let parsed = if overrides.is_empty() { checked(path, text) } else { overridden(path, text, overrides) };
    parsed.map_err(|error| match document(path, text, overrides) {
        // A list where one value belongs asks for a sweep, which is another command.
        Ok(document) if !axes::of_document(&document).is_empty() => error.help(format!(
            "a list of values sweeps a key, a run for each: deltafl sweep run {}",
            path.display()
        )),
        _ => error,
    })
}

/// Checks the text of an experiment, without overrides.
pub(crate) fn checked(path: &Path, text: &str) -> Result<Experiment, BadInput> {
    experiment(text).map_err(|wrong| wrong.shown(path, text))
}

/// Checks the text of an experiment that was put together: with these, it is not that of the file.
pub(crate) fn checked_with(path: &Path, text: &str, with: &[String]) -> Result<Experiment, BadInput> {
    if with.is_empty() {
        return checked(path, text);
    }
    experiment(text).map_err(|wrong| {
        let with = with.join(", ");
        bad_input(format!("invalid experiment file {} with {with}: {}", path.display(), wrong.message))
    })
}

/// Checks the text of an experiment with overrides. An error is that of the override which causes it; what is wrong in the
/// file itself is shown there, and never in a line that the file does not hold.
fn overridden(path: &Path, text: &str, overrides: &[String]) -> Result<Experiment, BadInput> {
    let with = |overrides: &[String]| document(path, text, overrides).map(|document| document.to_string());
    let whole = with(overrides)?;
    let wrong = match experiment(&whole) {
        Ok(experiment) => return Ok(experiment),
        Err(wrong) => wrong,
    };
    for (i, assignment) in overrides.iter().enumerate() {
        let others = [&overrides[..i], &overrides[i + 1..]].concat();
        let rest = with(&others)?;
        let same = |other: Wrong| other.signature(&rest) == wrong.signature(&whole);
        if !experiment(&rest).is_err_and(same) {
            return Err(bad_input(format!("--set {assignment}: {}", wrong.message)));
        }
    }
    match experiment(text) {
        Err(own) if own.signature(text) == wrong.signature(&whole) => Err(own.shown(path, text)),
        _ => Err(bad_input(format!(
            "{} with --set {}: {}",
            path.display(),
            overrides.join(" --set "),
            wrong.message
        ))),
    }
}

/// What is wrong with the text of an experiment.
struct Wrong {
    message: String,
    span: Range<usize>,
}

fn experiment(text: &str) -> Result<Experiment, Wrong> {
    Experiment::parse(text).map_err(|e| {
        let span = e.span.unwrap_or(0..0);
        // A span over a whole table would draw its frame around half of the file: its first line says enough.
        let end = text[span.clone()].find('\n').map_or(span.end, |line| span.start + line);
        Wrong { message: e.message, span: span.start..end }
    })
}

impl Wrong {
    /// The message, and what it is about: two errors with one signature are the same.
    fn signature<'a>(&'a self, text: &'a str) -> (&'a str, &'a str) {
        let start = text[..self.span.start].rfind('\n').map_or(0, |line| line + 1);
        let end = text[self.span.end..].find('\n').map_or(text.len(), |line| self.span.end + line);
        (&self.message, &text[start..end])
    }

    /// For people: at its line, where it has one.
    fn shown(self, path: &Path, text: &str) -> BadInput {
        let empty = text.parse::<DocumentMut>().is_ok_and(|document| document.is_empty());
        if empty {
            return bad_input(format!("the experiment {} is empty", path.display())).help(
                "it needs name, rounds, cohort, [data], [model], [local] and an [[algorithm]]; deltafl help experiment explains them",
            );
        }
        if self.span.is_empty() {
            return bad_input(format!("invalid experiment file {}", path.display())).because(self.message);
        }
        let label = LabeledSpan::new_with_span(Some(self.message), self.span);
        bad_input("invalid experiment file").at(path, text, label)
    }
}

/// The file with `key=value` applied, so that a wrong value is shown where it would stand.
pub(crate) fn document(path: &Path, text: &str, overrides: &[String]) -> Result<DocumentMut, BadInput> {
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
        set(document.as_table_mut(), key.trim(), value_of(value.trim()))
            .map_err(|reason| bad_input(format!("--set {assignment}: {reason}")))?;
    }
    Ok(document)
}

/// A TOML value, or else a string.
pub(crate) fn value_of(text: &str) -> Value {
    text.parse().unwrap_or_else(|_| Value::from(text))
}

/// Sets a dotted key; a number picks an entry of a list of tables.
pub(crate) fn set(table: &mut dyn TableLike, key: &str, value: Value) -> Result<(), String> {
    let Some((name, rest)) = key.split_once('.') else {
        if key.is_empty() {
            return Err("the key has an empty part".to_owned());
        }
        table.insert(key, Item::Value(value));
        return Ok(());
    };
    let item = table.entry(name).or_insert_with(toml_edit::table);
    let count = match item {
        Item::ArrayOfTables(tables) => tables.len(),
        Item::Value(Value::Array(values)) => values.len(),
        item => {
            return match item.as_table_like_mut() {
                Some(table) => set(table, rest, value),
                None => Err(format!("{name} is a value: there is nothing below it")),
            };
        }
    };
    let entry = rest.split_once('.').and_then(|(index, rest)| Some((index.parse::<usize>().ok()?, rest)));
    let entry = entry.and_then(|(index, rest)| Some((entry_mut(item, index)?, rest)));
    let (entry, rest) = entry.ok_or_else(|| format!("{name} needs an index below {count} and a key"))?;
    set(entry, rest, value)
}

/// An entry of a list of tables, in either spelling of TOML.
fn entry_mut(item: &mut Item, index: usize) -> Option<&mut dyn TableLike> {
    match item {
        Item::ArrayOfTables(tables) => tables.get_mut(index).map(|table| table as &mut dyn TableLike),
        Item::Value(Value::Array(values)) => {
            values.get_mut(index)?.as_inline_table_mut().map(|table| table as &mut dyn TableLike)
        }
        _ => None,
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
        assert_eq!(experiment.rounds(), 7);
        assert_eq!(experiment.labels().len(), 3);
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
    fn an_error_names_the_override_that_causes_it_and_quotes_no_line_that_is_not_there() {
        let said = |text: &str, overrides: &[&str]| {
            let overrides: Vec<String> = overrides.iter().map(|&s| s.to_owned()).collect();
            let report = miette::Report::from(parse(Path::new("t.toml"), text, &overrides).unwrap_err());
            format!("{report:?}").split_whitespace().filter(|word| *word != "│").collect::<Vec<_>>().join(" ")
        };
        let refused = said(TEXT, &["name=u", "rounds=0"]);
        assert!(
            refused.contains("--set rounds=0: invalid value") && !refused.contains("t.toml"),
            "{refused}"
        );
        let refused = said(TEXT, &["rounds=0", "cohort=0"]);
        assert!(refused.contains("--set cohort=0: invalid value"), "the first in the alphabet: {refused}");
        let refused = said(TEXT, &["nonsense.deep=1"]);
        assert!(refused.contains("--set nonsense.deep=1: unknown field"), "{refused}");
        // What is wrong in the file is shown there, on the line that it has there.
        let refused = said(&TEXT.replace("cohort = 5", "cohort = 0"), &["name=u", "local.decay.every=2"]);
        assert!(refused.contains("t.toml:4:10") && !refused.contains("--set"), "{refused}");
        let empty = said("# nothing\n", &[]);
        assert!(empty.contains("t.toml is empty") && empty.contains("[[algorithm]]"), "{empty}");
        let lacking = said("name = 't'\n", &[]);
        assert!(lacking.contains("missing field"), "{lacking}");
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
