//! The options of an algorithm or a model, read by its table of options.

use std::ops::Range;

use deltafl::model::stack::RESIDUAL;
use deltafl::options::{InvalidOption, OptionSpec, OptionValue, RawValue};
use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeValue, ValueDeserializer};

use super::InvalidExperiment;
use crate::experiment::NonNegative;

/// The name and the options of an algorithm or a model.
pub(super) type Entry = (&'static str, &'static [OptionSpec]);

/// A table whose `kind` determines which options it may contain.
pub(super) struct OptionTable {
    /// The index of its kind in the list of known entries.
    pub(super) entry: usize,
    pub(super) span: Range<usize>,
    pub(super) l2: Option<NonNegative>,
    /// The options with their places and values. Only an option with levels has several values.
    pub(super) given: Vec<(&'static OptionSpec, Range<usize>, Vec<OptionValue>)>,
}

impl OptionTable {
    /// Reads a table; `what` names it in messages. `extra` contains `l2` if the table may contain
    /// it.
    pub(super) fn read(
        section: Spanned<DeValue<'_>>,
        what: &str,
        known: &[Entry],
        extra: &[&'static str],
    ) -> Result<Self, InvalidExperiment> {
        let span = section.span();
        let kinds = || known.iter().map(|(kind, _)| *kind).collect::<Vec<_>>().join(", ");
        let DeValue::Table(mut table) = section.into_inner() else {
            let message = format!("expected a table such as {{ kind = {:?} }}", known[0].0);
            return Err(InvalidExperiment::new(message, span));
        };
        let Some(kind) = table.remove("kind") else {
            let message = format!("{what} needs its kind: {}", kinds());
            return Err(InvalidExperiment::new(message, span));
        };
        let entry = known.iter().position(|(name, _)| kind.get_ref().as_str() == Some(name));
        let entry = entry.ok_or_else(|| {
            let message = format!("unknown {what}: expected one of {}", kinds());
            InvalidExperiment::new(message, kind.span())
        })?;
        let l2 = extra.contains(&"l2").then(|| table.remove("l2")).flatten();
        let l2 = l2.map(|l2| NonNegative::deserialize(ValueDeserializer::from(l2)));
        let l2 = l2.transpose()?;
        let mut given = Vec::new();
        for (key, value) in table {
            let option = known[entry].1.iter().find(|option| option.name == key.get_ref().as_ref());
            let foreign = || InvalidExperiment::new(foreign(key.get_ref(), entry, known, extra), key.span());
            let option = option.ok_or_else(foreign)?;
            let place = value.span();
            given.push((option, place, values(option, value)?));
        }
        Ok(Self { entry, span, l2, given })
    }

    /// Adds the place in the file to an error.
    pub(super) fn locate(&self, error: InvalidOption) -> InvalidExperiment {
        let option = self.given.iter().find(|(option, ..)| option.name == error.option);
        let place = option.map_or(&self.span, |(_, place, _)| place);
        InvalidExperiment::new(error.to_string(), place.clone())
    }
}

/// The message for an option that belongs to other kinds, or to none.
fn foreign(key: &str, entry: usize, known: &[Entry], extra: &[&'static str]) -> String {
    let (kind, options) = known[entry];
    let names = ["kind"].into_iter().chain(options.iter().map(|option| option.name));
    let names =
        names.chain(if kind == RESIDUAL { Some("layers") } else { None }).chain(extra.iter().copied());
    let expected: Vec<String> = names.map(|name| format!("`{name}`")).collect();
    let owners = known.iter().filter(|(_, options)| options.iter().any(|option| option.name == key));
    let owners: Vec<&str> = owners.map(|(kind, _)| *kind).collect();
    let hint = match owners.is_empty() {
        true => String::new(),
        false => format!(", which is an option of {}", owners.join(", ")),
    };
    format!("{kind} has no option {key}{hint}; expected one of {}", expected.join(", "))
}

/// The values of an option: a list is allowed if it creates levels.
fn values(option: &OptionSpec, value: Spanned<DeValue<'_>>) -> Result<Vec<OptionValue>, InvalidExperiment> {
    let span = value.span();
    match value.into_inner() {
        DeValue::Array(values) if option.levels && !values.is_empty() => {
            values.into_iter().map(|value| one_value(option, value.span(), value.get_ref())).collect()
        }
        value => Ok(vec![one_value(option, span, &value)?]),
    }
}

fn one_value(
    option: &OptionSpec,
    span: Range<usize>,
    value: &DeValue<'_>,
) -> Result<OptionValue, InvalidExperiment> {
    let message = || format!("{}: expected {}, got {}", option.name, option.kind, written(value));
    raw(value).and_then(|raw| option.check(&raw)).ok_or_else(|| InvalidExperiment::new(message(), span))
}

/// A value that an option can have; `None` for tables, dates and other lists.
fn raw(value: &DeValue<'_>) -> Option<RawValue> {
    let number = |value: &DeValue<'_>| match value {
        DeValue::Float(real) => real.as_str().parse().ok(),
        DeValue::Integer(whole) => {
            i64::from_str_radix(whole.as_str(), whole.radix()).ok().map(|number| number as f64)
        }
        _ => None,
    };
    match value {
        DeValue::Boolean(truth) => Some(RawValue::Truth(*truth)),
        DeValue::String(text) => Some(RawValue::Text(text.to_string())),
        DeValue::Array(values) => {
            values.iter().map(|value| number(value.get_ref())).collect::<Option<_>>().map(RawValue::Numbers)
        }
        value => number(value).map(RawValue::Number),
    }
}

/// A value as the file writes it, for messages.
fn written(value: &DeValue<'_>) -> String {
    match value {
        DeValue::Float(real) => real.as_str().to_owned(),
        DeValue::Integer(whole) => whole.as_str().to_owned(),
        value => raw(value).map_or_else(|| value.type_str().to_owned(), |raw| raw.to_string()),
    }
}
