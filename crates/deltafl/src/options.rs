//! What can be set of an algorithm: names, types, ranges, defaults, checked in one place.

use std::fmt;

use crate::algorithm::Algorithm;

/// A value of an option.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// A real number.
    Real(f64),
    /// A whole number.
    Whole(u64),
    /// One of a few words.
    Word(&'static str),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Real(real) => write!(f, "{real}"),
            Self::Whole(whole) => write!(f, "{whole}"),
            Self::Word(word) => f.write_str(word),
        }
    }
}

/// An interval of real numbers, its upper end in it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// The lower end.
    pub least: f64,
    /// Whether the lower end is left out.
    pub open: bool,
    /// The upper end; infinity where there is none, and no option is infinite.
    pub most: f64,
}

impl Interval {
    /// Numbers above 0.
    pub const POSITIVE: Self = Self { least: 0.0, open: true, most: f64::INFINITY };
    /// 0 and numbers above.
    pub const NON_NEGATIVE: Self = Self { least: 0.0, open: false, most: f64::INFINITY };

    /// Whether a number lies in it.
    pub fn contains(&self, number: f64) -> bool {
        let above = if self.open { number > self.least } else { number >= self.least };
        number.is_finite() && above && number <= self.most
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.open, self.most.is_finite()) {
            (true, true) => write!(f, "in ({}, {}]", self.least, self.most),
            (false, true) => write!(f, "in [{}, {}]", self.least, self.most),
            (true, false) => write!(f, "above {}", self.least),
            (false, false) => write!(f, "{} or above", self.least),
        }
    }
}

/// The type of an option.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OptionKind {
    /// A real number.
    Real(Interval),
    /// A whole number, not below this.
    Whole(u64),
    /// One of these words.
    Word(&'static [&'static str]),
}

impl fmt::Display for OptionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Real(interval) => write!(f, "a number {interval}"),
            Self::Whole(least) => write!(f, "a whole number, {least} or above"),
            Self::Word(words) => f.write_str(&words.join(", ")),
        }
    }
}

/// An option of an algorithm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OptionSpec {
    /// Its key in an experiment file.
    pub name: &'static str,
    /// How the paper, or the algorithm's own, writes it; what it is called in the name of a track.
    pub symbol: &'static str,
    /// Its type.
    pub kind: OptionKind,
    /// Its value when the file does not say; `None` when the file must.
    pub default: Option<Value>,
    /// Whether a list of values makes a track of each; every name of a track then has it, where of other options a name
    /// has those in which tracks differ.
    pub levels: bool,
    /// What it does, in a sentence.
    pub about: &'static str,
    /// A value that shows it.
    pub example: Value,
}

impl OptionSpec {
    /// A real number as a value of this option.
    pub fn real(&self, number: f64) -> Option<Value> {
        match self.kind {
            OptionKind::Real(interval) => interval.contains(number).then_some(Value::Real(number)),
            OptionKind::Whole(least) => {
                let whole = number.fract() == 0.0 && (least as f64..=2f64.powi(53)).contains(&number);
                whole.then_some(Value::Whole(number as u64))
            }
            OptionKind::Word(_) => None,
        }
    }

    /// A word as a value of this option.
    pub fn word(&self, word: &str) -> Option<Value> {
        match self.kind {
            OptionKind::Word(words) => {
                words.iter().find(|known| **known == word).map(|word| Value::Word(word))
            }
            _ => None,
        }
    }

    /// Whether a value is of the type and in the range.
    fn admits(&self, value: Value) -> bool {
        match value {
            Value::Real(number) => matches!(self.kind, OptionKind::Real(_)) && self.real(number).is_some(),
            Value::Whole(number) => matches!(self.kind, OptionKind::Whole(least) if number >= least),
            Value::Word(word) => self.word(word).is_some(),
        }
    }
}

/// What is wrong with an option.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{option}: {reason}")]
pub struct InvalidOption {
    /// Its name.
    pub option: String,
    /// What is wrong with it.
    pub reason: String,
}

/// The options of one track: every option of the algorithm, each with a value that was checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Options(Vec<(&'static OptionSpec, Value)>);

impl Options {
    /// Options of an algorithm by name; those that are not given have their defaults.
    pub fn new<'a>(
        algorithm: &Algorithm,
        given: impl IntoIterator<Item = (&'a str, Value)>,
    ) -> Result<Self, InvalidOption> {
        let invalid = |option: &str, reason: String| InvalidOption { option: option.to_owned(), reason };
        let mut values: Vec<Option<Value>> = algorithm.options.iter().map(|spec| spec.default).collect();
        for (name, value) in given {
            let at = algorithm.options.iter().position(|spec| spec.name == name);
            let at = at.ok_or_else(|| invalid(name, format!("{} has no such option", algorithm.kind)))?;
            let spec = &algorithm.options[at];
            if !spec.admits(value) {
                return Err(invalid(name, format!("expected {}, got {value}", spec.kind)));
            }
            values[at] = Some(value);
        }
        let of_option = |(spec, value): (&'static OptionSpec, Option<Value>)| match value {
            Some(value) => Ok((spec, value)),
            None => Err(invalid(spec.name, format!("{} needs it: {}", algorithm.kind, spec.kind))),
        };
        algorithm.options.iter().zip(values).map(of_option).collect::<Result<_, _>>().map(Self)
    }

    /// Every option and its value.
    pub fn iter(&self) -> impl Iterator<Item = (&'static OptionSpec, Value)> {
        self.0.iter().copied()
    }

    /// The value of an option of the algorithm.
    ///
    /// # Panics
    /// When the algorithm has no such option: its file names them all.
    fn value(&self, name: &str) -> Value {
        let found = self.0.iter().find(|(spec, _)| spec.name == name);
        found.map(|(_, value)| *value).expect("an algorithm asks for its own options")
    }

    /// The value of a real option.
    pub fn real(&self, name: &str) -> f64 {
        match self.value(name) {
            Value::Real(number) => number,
            Value::Whole(number) => number as f64,
            Value::Word(_) => f64::NAN,
        }
    }

    /// The value of a whole option.
    pub fn whole(&self, name: &str) -> u64 {
        match self.value(name) {
            Value::Whole(number) => number,
            _ => 0,
        }
    }

    /// The value of an option of words.
    pub fn word(&self, name: &str) -> &'static str {
        match self.value(name) {
            Value::Word(word) => word,
            _ => "",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::DELTA_FL;

    #[test]
    fn what_is_not_given_has_its_default_and_what_must_be_given_is_named() {
        let options = Options::new(&DELTA_FL, [("theta", Value::Real(0.5))]).unwrap();
        assert_eq!(
            (options.real("theta"), options.whole("eta_every"), options.word("quantile")),
            (0.5, 1, "open")
        );
        assert_eq!(Options::new(&DELTA_FL, []).unwrap_err().option, "theta");
    }

    #[test]
    fn a_value_out_of_range_is_refused_with_the_range() {
        let error = Options::new(&DELTA_FL, [("theta", Value::Real(1.4))]).unwrap_err();
        assert_eq!(error.to_string(), "theta: expected a number in (0, 1], got 1.4");
        assert!(Options::new(&DELTA_FL, [("eta_every", Value::Whole(0))]).is_err());
        assert!(Options::new(&DELTA_FL, [("mu", Value::Real(0.1))]).is_err());
    }
}
