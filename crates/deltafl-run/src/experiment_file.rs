//! Experiment files: reading, `KEY=VALUE` overrides, validation, and errors that point at the line.

use std::ops::Range;
use std::path::{Path, PathBuf};

use deltafl::model::{MODELS, ModelMismatch, find};
use deltafl::options::OptionSpec;
use deltafl_data::experiment::{Experiment, layer_span};
use toml_edit::{DocumentMut, Item, TableLike, Value};

use crate::RunError;
use crate::error::{ErrorKind, Excerpt, Explain};
use crate::sweep::axes;

/// The reason why an experiment file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExperimentFileError {
    /// The file cannot be read.
    #[error("cannot read the experiment {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the file system.
        source: std::io::Error,
    },
    /// The file contains no key.
    #[error("the experiment {path} is empty")]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The file as a whole is invalid, for example because a key is missing.
    #[error("invalid experiment file {path}: {problem}")]
    Incomplete {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// A location in the file is invalid.
    #[error("invalid experiment file")]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Its text.
        text: String,
        /// The bytes that are invalid.
        span: Range<usize>,
        /// The problem.
        problem: String,
    },
    /// An override has no `=`.
    #[error("--set {assignment}: expected key=value")]
    Assignment {
        /// The override.
        assignment: String,
    },
    /// An override is invalid, or makes the experiment invalid.
    #[error("--set {assignment}: {problem}")]
    Override {
        /// The override.
        assignment: String,
        /// The problem.
        problem: String,
    },
    /// Several overrides together make the experiment invalid.
    #[error("{path} with --set {}: {problem}", overrides.join(" --set "))]
    Overrides {
        /// The file.
        path: PathBuf,
        /// The overrides.
        overrides: Vec<String>,
        /// The problem.
        problem: String,
    },
    /// A combination of values of a sweep is invalid.
    #[error("invalid experiment file {path} with {}: {problem}", values.join(", "))]
    Combination {
        /// The file.
        path: PathBuf,
        /// The values.
        values: Vec<String>,
        /// The problem.
        problem: String,
    },
    /// The experiment contains lists for keys that take one value: it describes a sweep.
    #[error(transparent)]
    Sweep(Box<Self>),
}

impl ExperimentFileError {
    fn path(&self) -> Option<&Path> {
        match self {
            Self::Read { path, .. }
            | Self::Empty { path }
            | Self::Incomplete { path, .. }
            | Self::Invalid { path, .. }
            | Self::Overrides { path, .. }
            | Self::Combination { path, .. } => Some(path),
            Self::Assignment { .. } | Self::Override { .. } => None,
            Self::Sweep(error) => error.path(),
        }
    }
}

impl Explain for ExperimentFileError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::InvalidInput
    }

    fn help(&self) -> Option<String> {
        let help = match self {
            Self::Read { .. } => {
                "give the path of a TOML file; experiments/quickstart.toml is an example".to_owned()
            }
            Self::Empty { .. } => {
                "it needs name, rounds, cohort, [data], [model], [local] and an [[algorithm]]; \
                                   deltafl help experiment explains them"
                    .to_owned()
            }
            Self::Assignment { .. } => {
                "for example --set rounds=5 --set local.learning_rate=0.1 --set algorithm.1.theta=0.3"
                    .to_owned()
            }
            Self::Sweep(error) => {
                let file =
                    error.path().map_or_else(|| "EXPERIMENT".to_owned(), |path| path.display().to_string());
                format!("a list of values sweeps a key, with a run for each value: deltafl sweep run {file}")
            }
            _ => return None,
        };
        Some(help)
    }

    fn excerpt(&self) -> Option<Excerpt<'_>> {
        match self {
            Self::Invalid { path, text, span, problem } => {
                Some(Excerpt { path, text, span: span.clone(), problem })
            }
            Self::Sweep(error) => error.excerpt(),
            _ => None,
        }
    }
}

/// Reads an experiment file and applies overrides.
///
/// # Errors
///
/// Fails if the file cannot be read, or if the experiment or an override is invalid.
pub fn read(path: &Path, overrides: &[String]) -> Result<Experiment, ExperimentFileError> {
    parse(path, &text(path)?, overrides)
}

/// Returns the error of a layer that does not fit the data, at its place in the experiment file;
/// `None` if this is another error, or if the file does not contain the layer.
pub fn layer_error(path: &Path, overrides: &[String], error: &RunError) -> Option<ExperimentFileError> {
    let RunError::Model(ModelMismatch::Layer(error)) = error else { return None };
    let text = text(path).ok()?;
    // With overrides, the layers may be others than those of the file.
    let span = layer_span(&text, &error.path).filter(|_| read(path, overrides).is_ok())?;
    let is_other = overrides.iter().any(|assignment| assignment.trim_start().starts_with("model.layers"));
    let (path, problem) = (path.to_owned(), error.to_string());
    match is_other {
        true => Some(ExperimentFileError::Overrides { path, overrides: overrides.to_vec(), problem }),
        false => Some(ExperimentFileError::Invalid { path, text, span, problem }),
    }
}

/// Returns the text of an experiment file.
///
/// # Errors
///
/// Fails if the file cannot be read.
pub fn text(path: &Path) -> Result<String, ExperimentFileError> {
    std::fs::read_to_string(path)
        .map_err(|source| ExperimentFileError::Read { path: path.to_owned(), source })
}

/// Parses and validates the text of an experiment file.
///
/// # Errors
///
/// Fails if the experiment or an override is invalid, or if the text describes a sweep.
pub fn parse(path: &Path, text: &str, overrides: &[String]) -> Result<Experiment, ExperimentFileError> {
    let parsed = if overrides.is_empty() { checked(path, text) } else { overridden(path, text, overrides) };
    parsed.map_err(|error| match document(path, text, overrides) {
        // A list for a key that takes one value describes a sweep, which is another command.
        Ok(document) if !axes::of_document(&document).is_empty() => {
            ExperimentFileError::Sweep(Box::new(error))
        }
        _ => error,
    })
}

/// Parses the text of an experiment without overrides.
pub(crate) fn checked(path: &Path, text: &str) -> Result<Experiment, ExperimentFileError> {
    experiment(text).map_err(|wrong| wrong.into_error(path, text))
}

/// Parses generated experiment text. With these values it differs from the text of the file.
pub(crate) fn checked_with(
    path: &Path,
    text: &str,
    with: &[String],
) -> Result<Experiment, ExperimentFileError> {
    if with.is_empty() {
        return checked(path, text);
    }
    experiment(text).map_err(|wrong| ExperimentFileError::Combination {
        path: path.to_owned(),
        values: with.to_vec(),
        problem: wrong.message,
    })
}

/// Parses the text of an experiment with overrides. An error names the override that causes it. A
/// problem in the file itself is reported at its line in the file.
fn overridden(path: &Path, text: &str, overrides: &[String]) -> Result<Experiment, ExperimentFileError> {
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
            return Err(ExperimentFileError::Override {
                assignment: assignment.clone(),
                problem: wrong.message,
            });
        }
    }
    match experiment(text) {
        Err(own) if own.signature(text) == wrong.signature(&whole) => Err(own.into_error(path, text)),
        _ => Err(ExperimentFileError::Overrides {
            path: path.to_owned(),
            overrides: overrides.to_vec(),
            problem: wrong.message,
        }),
    }
}

/// A problem in the text of an experiment.
struct Wrong {
    message: String,
    span: Range<usize>,
}

fn experiment(text: &str) -> Result<Experiment, Wrong> {
    Experiment::parse(text).map_err(|e| {
        let span = e.span.unwrap_or(0..0);
        // A span over a whole table would mark half of the file. Its first line is sufficient.
        let end = text[span.clone()].find('\n').map_or(span.end, |line| span.start + line);
        Wrong { message: e.message, span: span.start..end }
    })
}

impl Wrong {
    /// Returns the message and the text it refers to. Two errors with the same signature are the
    /// same.
    fn signature<'a>(&'a self, text: &'a str) -> (&'a str, &'a str) {
        let start = text[..self.span.start].rfind('\n').map_or(0, |line| line + 1);
        let end = text[self.span.end..].find('\n').map_or(text.len(), |line| self.span.end + line);
        (&self.message, &text[start..end])
    }

    /// Converts it to an error, with its location in the file if it has one.
    fn into_error(self, path: &Path, text: &str) -> ExperimentFileError {
        let path = path.to_owned();
        let empty = text.parse::<DocumentMut>().is_ok_and(|document| document.is_empty());
        if empty {
            return ExperimentFileError::Empty { path };
        }
        if self.span.is_empty() && text.parse::<DocumentMut>().is_err() {
            // A syntax error may be between two characters: the rest of its line is marked.
            let start = self.span.start.min(text.len());
            let start = text[..start].trim_end().rfind('\n').map_or(0, |line| line + 1);
            let end = text[start..].find('\n').map_or(text.len(), |line| start + line);
            let (text, span) = (text.to_owned(), start..end.max(start));
            return ExperimentFileError::Invalid { path, text, span, problem: self.message };
        }
        if self.span.is_empty() {
            return ExperimentFileError::Incomplete { path, problem: self.message };
        }
        ExperimentFileError::Invalid { path, text: text.to_owned(), span: self.span, problem: self.message }
    }
}

/// Returns the file with `key=value` applied, so that an invalid value is shown at its position in
/// the file.
pub(crate) fn document(
    path: &Path,
    text: &str,
    overrides: &[String],
) -> Result<DocumentMut, ExperimentFileError> {
    let mut document: DocumentMut =
        text.parse().map_err(|e: toml_edit::TomlError| ExperimentFileError::Invalid {
            path: path.to_owned(),
            text: text.to_owned(),
            span: e.span().unwrap_or(0..0),
            problem: e.message().to_owned(),
        })?;
    for assignment in overrides {
        let Some((key, value)) = assignment.split_once('=') else {
            return Err(ExperimentFileError::Assignment { assignment: assignment.clone() });
        };
        assign(&mut document, key.trim(), value_of(value.trim()))
            .map_err(|problem| ExperimentFileError::Override { assignment: assignment.clone(), problem })?;
    }
    Ok(document)
}

/// Parses a TOML value, or returns the text as a string.
pub(crate) fn value_of(text: &str) -> Value {
    text.parse().unwrap_or_else(|_| Value::from(text))
}

/// Sets a dotted key. Another kind of model loses the options that belong to other kinds only.
pub(crate) fn assign(document: &mut DocumentMut, key: &str, value: Value) -> Result<(), String> {
    let kind = value.as_str().filter(|_| key == "model.kind").and_then(find);
    set(document.as_table_mut(), key, value)?;
    if let (Some(kind), Some(section)) = (kind, document.get_mut("model").and_then(Item::as_table_like_mut)) {
        let has = |options: &[OptionSpec], name: &str| options.iter().any(|option| option.name == name);
        let names: Vec<String> = section.iter().map(|(name, _)| name.to_owned()).collect();
        let is_foreign =
            |name: &&String| !has(kind.options, name) && MODELS.iter().any(|model| has(model.options, name));
        for name in names.iter().filter(is_foreign) {
            section.remove(name);
        }
    }
    Ok(())
}

/// Sets a dotted key. A number selects an entry of a list of tables.
fn set(table: &mut dyn TableLike, key: &str, value: Value) -> Result<(), String> {
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
                None => Err(format!("{name} is a value: it has no keys")),
            };
        }
    };
    let entry = rest.split_once('.').and_then(|(index, rest)| Some((index.parse::<usize>().ok()?, rest)));
    let entry = entry.and_then(|(index, rest)| Some((entry_mut(item, index)?, rest)));
    let (entry, rest) = entry.ok_or_else(|| format!("{name} needs an index below {count} and a key"))?;
    set(entry, rest, value)
}

/// Returns an entry of a list of tables, in either TOML syntax.
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

    fn with(overrides: &[&str]) -> Result<Experiment, ExperimentFileError> {
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
    fn an_error_names_its_override_and_quotes_only_lines_of_the_file() {
        let said = |text: &str, overrides: &[&str]| {
            let overrides: Vec<String> = overrides.iter().map(|&s| s.to_owned()).collect();
            let error = parse(Path::new("t.toml"), text, &overrides).unwrap_err();
            let place = error.excerpt().map_or_else(String::new, |excerpt| {
                let (line, column) = excerpt.line_and_column();
                format!("{}:{line}:{column}: {}", excerpt.path.display(), excerpt.problem)
            });
            format!("{error} {place} {}", error.help().unwrap_or_default())
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
        // A problem in the file is reported at its line in the file.
        let refused = said(&TEXT.replace("cohort = 5", "cohort = 0"), &["name=u", "local.decay.every=2"]);
        assert!(refused.contains("t.toml:4:10") && !refused.contains("--set"), "{refused}");
        let empty = said("# nothing\n", &[]);
        assert!(empty.contains("t.toml is empty") && empty.contains("[[algorithm]]"), "{empty}");
        let lacking = said("name = 't'\n", &[]);
        assert!(lacking.contains("missing field"), "{lacking}");
    }

    #[test]
    fn a_syntax_error_has_a_line_and_messages_name_no_types() {
        let broken = parse(Path::new("x.toml"), "name = \nrounds = 3\n", &[]).unwrap_err();
        let ExperimentFileError::Invalid { text, span, .. } = &broken else { panic!("{broken:?}") };
        assert_eq!(&text[span.clone()], "name = ");
        let said = |overrides: &[&str]| with(overrides).unwrap_err().to_string();
        assert!(said(&["round=5"]).ends_with("did you mean `rounds`?"), "{}", said(&["round=5"]));
        assert!(!said(&["round=5"]).contains("resolved"));
        assert!(
            said(&["cohort=0"]).ends_with("expected a whole number of at least 1"),
            "{}",
            said(&["cohort=0"])
        );
        assert!(
            said(&["local.decay=1"]).contains("expected a table such as { factor"),
            "{}",
            said(&["local.decay=1"])
        );
    }

    #[test]
    fn another_kind_of_model_loses_the_options_of_the_first() {
        let text = TEXT.replace("kind = \"linear\"", "kind = \"linear\"\nintercept = false\nl2 = 0.5");
        let overrides = ["model.kind=perceptron".to_owned(), "model.hidden=7".to_owned()];
        let experiment = parse(Path::new("t.toml"), &text, &overrides).unwrap();
        assert_eq!(experiment.model().spec().options().whole("hidden"), Ok(7));
        assert!((experiment.model().l2() - 0.5).abs() < 1e-12);
        let same = parse(Path::new("t.toml"), &text, &["model.kind=logistic".to_owned()]).unwrap();
        assert_eq!(same.model().spec().options().truth("intercept"), Ok(false));
    }

    #[test]
    fn an_invalid_override_is_rejected() {
        for wrong in
            ["rounds", "rounds=0", "algorithm.7.theta=0.5", "name.x=1", "nonsense=1", ".=1", "algorithm.1=2"]
        {
            assert!(with(&[wrong]).is_err(), "{wrong}");
        }
    }
}
