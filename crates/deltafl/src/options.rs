//! Options of algorithms and models: names, types, ranges and defaults, checked in one place.
//!
//! An algorithm or a model lists its options as [`OptionSpec`]s. The experiment file, its schema,
//! the reference and the Python classes read these lists. [`OptionValues`] are the checked values
//! of one algorithm or model.

use std::fmt;

use serde::ser::{Serialize, Serializer};
use serde::{Deserialize, Deserializer};

use crate::model::stack::Layer;

/// The value of an option.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OptionValue {
    /// A real number.
    Real(f64),
    /// A whole number.
    Whole(u64),
    /// One of several words.
    Word(&'static str),
    /// `true` or `false`.
    Truth(bool),
    /// Two whole numbers.
    WholePair([u64; 2]),
}

/// As TOML writes it, except that a whole real number has no decimal point.
impl fmt::Display for OptionValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Real(real) => write!(f, "{real}"),
            Self::Whole(whole) => write!(f, "{whole}"),
            Self::Word(word) => f.write_str(word),
            Self::Truth(truth) => write!(f, "{truth}"),
            Self::WholePair([first, second]) => write!(f, "[{first}, {second}]"),
        }
    }
}

impl Serialize for OptionValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Real(real) => serializer.serialize_f64(*real),
            Self::Whole(whole) => serializer.serialize_u64(*whole),
            Self::Word(word) => serializer.serialize_str(word),
            Self::Truth(truth) => serializer.serialize_bool(*truth),
            Self::WholePair(pair) => pair.serialize(serializer),
        }
    }
}

/// A value as a file contains it, before it is checked against an [`OptionSpec`].
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum RawValue {
    /// `true` or `false`.
    Truth(bool),
    /// A number.
    Number(f64),
    /// A string.
    Text(String),
    /// A list of numbers.
    Numbers(Vec<f64>),
}

impl fmt::Display for RawValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truth(truth) => write!(f, "{truth}"),
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) => write!(f, "{text:?}"),
            Self::Numbers(numbers) => write!(f, "{numbers:?}"),
        }
    }
}

/// An interval of real numbers that includes its upper end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// The lower end.
    pub least: f64,
    /// Whether the lower end is excluded.
    pub open: bool,
    /// The upper end; infinity for an unbounded interval. An infinite number is never a value.
    pub most: f64,
}

impl Interval {
    /// Numbers above 0.
    pub const POSITIVE: Self = Self { least: 0.0, open: true, most: f64::INFINITY };
    /// 0 and numbers above.
    pub const NON_NEGATIVE: Self = Self { least: 0.0, open: false, most: f64::INFINITY };
    /// Factors by which a value decays: from 0 to below 1.
    pub const DECAY: Self = Self { least: 0.0, open: false, most: 1.0 - f64::EPSILON };
    /// Numbers from 0 to 1.
    pub const UNIT: Self = Self { least: 0.0, open: false, most: 1.0 };

    /// Whether the interval contains a number.
    pub fn contains(&self, number: f64) -> bool {
        let above = if self.open { number > self.least } else { number >= self.least };
        number.is_finite() && above && number <= self.most
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The largest numbers below a whole number mean that it is excluded.
        let is_excluded = self.most.fract() > 1.0 - 2.0 * f64::EPSILON;
        let (most, end) = if is_excluded { (self.most.ceil(), ')') } else { (self.most, ']') };
        match (self.open, self.most.is_finite()) {
            (true, true) => write!(f, "in ({}, {most}{end}", self.least),
            (false, true) => write!(f, "in [{}, {most}{end}", self.least),
            (true, false) => write!(f, "above {}", self.least),
            (false, false) => write!(f, "{} or above", self.least),
        }
    }
}

/// The type and the range of an option.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OptionKind {
    /// A real number.
    Real(Interval),
    /// A whole number with its lower bound.
    Whole(u64),
    /// One of these words.
    Word(&'static [&'static str]),
    /// `true` or `false`.
    Truth,
    /// Two whole numbers with their lower bound.
    WholePair(u64),
}

impl fmt::Display for OptionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Real(interval) => write!(f, "a number {interval}"),
            Self::Whole(least) => write!(f, "a whole number, {least} or above"),
            Self::Word(words) => f.write_str(&words.join(", ")),
            Self::Truth => f.write_str("true or false"),
            Self::WholePair(least) => write!(f, "two whole numbers, {least} or above"),
        }
    }
}

/// The value of an option that is not given.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OptionDefault {
    /// The option must be given.
    Required,
    /// This value.
    Value(OptionValue),
    /// No value. The text describes the behaviour then.
    Unset(&'static str),
}

/// An option of an algorithm or a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OptionSpec {
    /// Its key in an experiment file.
    pub name: &'static str,
    /// Its symbol in the literature, which names of tracks use; empty if there is none.
    pub symbol: &'static str,
    /// Its type and range.
    pub kind: OptionKind,
    /// Its value if it is not given.
    pub default: OptionDefault,
    /// Its value in an experiment file that does not give it, if this is not `default`. A
    /// serialised model means `default`.
    pub usual: Option<OptionValue>,
    /// Whether a list of values creates one track for each of them. Names of tracks always contain
    /// such an option. They contain other options only if tracks differ in them.
    pub levels: bool,
    /// Its effect, in one sentence without a full stop.
    pub about: &'static str,
    /// An example value for the reference.
    pub example: OptionValue,
    /// The values that a comparison of algorithms tries (`deltafl field`); empty for the default
    /// alone.
    pub grid: &'static [f64],
}

impl OptionSpec {
    /// An option without a symbol that does not create levels.
    pub const fn new(
        name: &'static str,
        kind: OptionKind,
        default: OptionDefault,
        about: &'static str,
        example: OptionValue,
    ) -> Self {
        Self { name, symbol: "", kind, default, usual: None, levels: false, about, example, grid: &[] }
    }

    /// A real number with a symbol and a default, which is also the example.
    pub const fn real(
        name: &'static str,
        symbol: &'static str,
        interval: Interval,
        default: f64,
        about: &'static str,
    ) -> Self {
        let value = OptionValue::Real(default);
        let option = Self::new(name, OptionKind::Real(interval), OptionDefault::Value(value), about, value);
        option.with_symbol(symbol)
    }

    /// The same option without a default: it must be given.
    pub const fn required(self) -> Self {
        Self { default: OptionDefault::Required, ..self }
    }

    /// The same option with another value in experiment files that do not give it.
    pub const fn usually(self, value: OptionValue) -> Self {
        Self { usual: Some(value), ..self }
    }

    /// Returns its value in an experiment file that does not give it.
    pub fn file_default(&self) -> OptionDefault {
        self.usual.map_or(self.default, OptionDefault::Value)
    }

    /// The same option with levels: a list of values creates one track for each of them.
    pub const fn with_levels(self) -> Self {
        Self { levels: true, ..self }
    }

    /// The same option with a symbol.
    pub const fn with_symbol(self, symbol: &'static str) -> Self {
        Self { symbol, ..self }
    }

    /// The same option with values that a comparison of algorithms tries.
    pub const fn with_grid(self, grid: &'static [f64]) -> Self {
        Self { grid, ..self }
    }

    /// Checks a value of a file; `None` if its type or range is wrong.
    pub fn check(&self, raw: &RawValue) -> Option<OptionValue> {
        match (self.kind, raw) {
            (OptionKind::Real(interval), RawValue::Number(number)) => {
                interval.contains(*number).then_some(OptionValue::Real(*number))
            }
            (OptionKind::Whole(least), RawValue::Number(number)) => {
                whole(*number, least).map(OptionValue::Whole)
            }
            (OptionKind::WholePair(least), RawValue::Numbers(numbers)) => match numbers[..] {
                [first, second] => {
                    Some(OptionValue::WholePair([whole(first, least)?, whole(second, least)?]))
                }
                _ => None,
            },
            (OptionKind::Word(words), RawValue::Text(text)) => {
                words.iter().find(|word| **word == text).map(|word| OptionValue::Word(word))
            }
            (OptionKind::Truth, RawValue::Truth(truth)) => Some(OptionValue::Truth(*truth)),
            _ => None,
        }
    }

    /// Whether a value has the type and is in the range.
    fn admits(&self, value: OptionValue) -> bool {
        match (self.kind, value) {
            (OptionKind::Real(interval), OptionValue::Real(number)) => interval.contains(number),
            (OptionKind::Whole(least), OptionValue::Whole(number)) => number >= least,
            (OptionKind::WholePair(least), OptionValue::WholePair(pair)) => pair.iter().all(|n| *n >= least),
            (OptionKind::Word(words), OptionValue::Word(word)) => words.contains(&word),
            (OptionKind::Truth, OptionValue::Truth(_)) => true,
            _ => false,
        }
    }
}

/// A whole number that a file may write as a real one.
fn whole(number: f64, least: u64) -> Option<u64> {
    let valid = number.fract() == 0.0 && (least as f64..=2f64.powi(53)).contains(&number);
    valid.then_some(number as u64)
}

/// An error in an option.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{option}: {reason}")]
pub struct InvalidOption {
    /// The name of the option.
    pub option: String,
    /// The error.
    pub reason: String,
}

impl InvalidOption {
    /// An error in the option of this name.
    pub fn new(option: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { option: option.into(), reason: reason.into() }
    }
}

/// The options of one algorithm or model, each with a checked value.
#[derive(Clone, Debug, PartialEq)]
pub struct OptionValues(Vec<(&'static OptionSpec, Option<OptionValue>)>);

impl OptionValues {
    /// Checks the values that are given for the options of `owner` and adds the defaults of the
    /// others.
    ///
    /// # Errors
    /// The owner has no option of this name, a value has the wrong type or range, or a required
    /// option is missing.
    pub fn new<'a>(
        owner: &str,
        specs: &'static [OptionSpec],
        given: impl IntoIterator<Item = (&'a str, OptionValue)>,
    ) -> Result<Self, InvalidOption> {
        let mut values: Vec<Option<OptionValue>> = vec![None; specs.len()];
        for (name, value) in given {
            let at = specs.iter().position(|spec| spec.name == name);
            let at = at.ok_or_else(|| InvalidOption::new(name, format!("{owner} has no such option")))?;
            if !specs[at].admits(value) {
                let reason = format!("expected {}, got {value}", specs[at].kind);
                return Err(InvalidOption::new(name, reason));
            }
            values[at] = Some(value);
        }
        let with_default =
            |(spec, value): (&'static OptionSpec, Option<OptionValue>)| match (value, spec.default) {
                (None, OptionDefault::Required) => {
                    Err(InvalidOption::new(spec.name, format!("{owner} needs it: {}", spec.kind)))
                }
                (None, OptionDefault::Value(default)) => Ok((spec, Some(default))),
                (value, _) => Ok((spec, value)),
            };
        specs.iter().zip(values).map(with_default).collect::<Result<_, _>>().map(Self)
    }

    /// Returns every option with its value, in the order of the specs. An optional option may be
    /// unset.
    pub fn iter(&self) -> impl Iterator<Item = (&'static OptionSpec, Option<OptionValue>)> {
        self.0.iter().copied()
    }

    /// Returns the value of an option; `None` if it is unset.
    ///
    /// # Errors
    /// There is no option of this name.
    pub fn get(&self, name: &str) -> Result<Option<OptionValue>, InvalidOption> {
        let found = self.0.iter().find(|(spec, _)| spec.name == name);
        found.map(|(_, value)| *value).ok_or_else(|| InvalidOption::new(name, "there is no such option"))
    }

    fn typed<T>(
        &self,
        name: &str,
        expected: &str,
        cast: fn(OptionValue) -> Option<T>,
    ) -> Result<T, InvalidOption> {
        let value = self.get(name)?.ok_or_else(|| InvalidOption::new(name, "it is not set"))?;
        cast(value).ok_or_else(|| InvalidOption::new(name, format!("{value} is not {expected}")))
    }

    /// Returns the value of a real option.
    ///
    /// # Errors
    /// There is no such option, it is unset, or it has another type. The other accessors fail
    /// likewise.
    pub fn real(&self, name: &str) -> Result<f64, InvalidOption> {
        self.typed(name, "a real number", |value| match value {
            OptionValue::Real(number) => Some(number),
            _ => None,
        })
    }

    /// Returns the value of a real option; `None` if it is unset.
    pub fn optional_real(&self, name: &str) -> Result<Option<f64>, InvalidOption> {
        self.get(name)?.map(|_| self.real(name)).transpose()
    }

    /// Returns the value of a whole option.
    pub fn whole(&self, name: &str) -> Result<u64, InvalidOption> {
        self.typed(name, "a whole number", |value| match value {
            OptionValue::Whole(number) => Some(number),
            _ => None,
        })
    }

    /// Returns the value of an option of words.
    pub fn word(&self, name: &str) -> Result<&'static str, InvalidOption> {
        self.typed(name, "a word", |value| match value {
            OptionValue::Word(word) => Some(word),
            _ => None,
        })
    }

    /// Returns the value of a switch.
    pub fn truth(&self, name: &str) -> Result<bool, InvalidOption> {
        self.typed(name, "true or false", |value| match value {
            OptionValue::Truth(truth) => Some(truth),
            _ => None,
        })
    }

    /// Returns the value of a pair of whole numbers.
    pub fn whole_pair(&self, name: &str) -> Result<[u64; 2], InvalidOption> {
        self.typed(name, "a pair of whole numbers", |value| match value {
            OptionValue::WholePair(pair) => Some(pair),
            _ => None,
        })
    }
}

/// Reads a table of unchecked values in its order. `kind` may be anywhere in it.
#[derive(Debug)]
pub(crate) struct RawTable {
    /// The value of `kind`, if there is one.
    pub(crate) kind: Option<String>,
    /// The layers of a stack or of a residual.
    pub(crate) layers: Vec<Layer>,
    /// The other keys and their values.
    pub(crate) options: Vec<(String, RawValue)>,
}

impl<'de> Deserialize<'de> for RawTable {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = RawTable;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table with a kind and options")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<RawTable, A::Error> {
                let mut table = RawTable { kind: None, layers: Vec::new(), options: Vec::new() };
                while let Some(key) = map.next_key::<String>()? {
                    match key.as_str() {
                        "kind" => table.kind = Some(map.next_value()?),
                        "layers" => table.layers = map.next_value()?,
                        _ => table.options.push((key, map.next_value()?)),
                    }
                }
                Ok(table)
            }
        }
        deserializer.deserialize_map(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::DELTA_FL;

    #[test]
    fn what_is_not_given_has_its_default_and_what_must_be_given_is_named() {
        let options = DELTA_FL.options_with([("theta", OptionValue::Real(0.5))]).unwrap();
        let got = (options.real("theta"), options.whole("eta_every"), options.word("quantile"));
        assert_eq!(got, (Ok(0.5), Ok(1), Ok("open")));
        assert_eq!(DELTA_FL.options_with([]).unwrap_err().option, "theta");
    }

    #[test]
    fn a_value_out_of_range_is_refused_with_the_range() {
        let error = DELTA_FL.options_with([("theta", OptionValue::Real(1.4))]).unwrap_err();
        assert_eq!(error.to_string(), "theta: expected a number in (0, 1], got 1.4");
        assert!(DELTA_FL.options_with([("eta_every", OptionValue::Whole(0))]).is_err());
        assert!(DELTA_FL.options_with([("mu", OptionValue::Real(0.1))]).is_err());
    }

    #[test]
    fn an_accessor_of_another_type_or_name_fails() {
        let options = DELTA_FL.options_with([("theta", OptionValue::Real(0.5))]).unwrap();
        assert_eq!(options.real("quantile").unwrap_err().reason, "open is not a real number");
        assert_eq!(options.whole("theta").unwrap_err().reason, "0.5 is not a whole number");
        assert_eq!(options.word("eta_every").unwrap_err().reason, "1 is not a word");
        assert_eq!(options.truth("mu").unwrap_err().reason, "there is no such option");
    }
}
