//! Every key of an experiment file: its type, its range, its default, its symbol in the paper, an example.
//!
//! The reference, `deltafl help experiment` and the schema for editors are made of this list. `tests/experiment_keys.rs` holds it against the
//! types: no key is missing, no default differs, every example is accepted, and what lies outside a range is refused.

mod data;

use std::fmt;

use deltafl::algorithm::ALGORITHMS;
use deltafl::model::MODELS;
pub use deltafl::options::Interval;
use deltafl::options::{DefaultValue, OptionKind, OptionSpec, OptionValue};

/// A key of an experiment file.
#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    /// Dotted; `algorithm[]` is an entry of a list of tables.
    pub path: String,
    /// What it may be.
    pub kind: Kind,
    /// What it is when the file does not say.
    pub absent: Absent,
    /// How the paper writes it; empty where it does not.
    pub symbol: String,
    /// What it does, in a sentence.
    pub about: String,
    /// A value, as TOML.
    pub example: String,
    /// The kinds of model, source or algorithm that have it; empty for all.
    pub only: Vec<String>,
}

/// What a key may be.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// A string.
    Text,
    /// A path, or a table of its own.
    PathOrTable,
    /// `true` or `false`.
    Truth,
    /// A whole number, not below this.
    Whole(u64),
    /// A real number.
    Real(Interval),
    /// One of these words.
    Word(Vec<String>),
    /// A value or a list of values.
    OneOrMore(Box<Self>),
    /// A list of so many values.
    List(Box<Self>, usize),
    /// A list of strings, of any length.
    Texts,
}

/// What a key is when the file does not say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Absent {
    /// The file, or the table that it stands in, must say.
    Required,
    /// This value, as TOML.
    Value(String),
    /// Something that is no value of its own, in words.
    Words(String),
}

const POSITIVE: Interval = Interval::POSITIVE;
const NON_NEGATIVE: Interval = Interval::NON_NEGATIVE;
const UNIT: Interval = Interval { least: 0.0, open: false, most: 1.0 };

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text => f.write_str("text"),
            Self::PathOrTable => f.write_str("a path, or a table"),
            Self::Truth => f.write_str("true or false"),
            Self::Whole(least) => write!(f, "whole number, {least} or above"),
            Self::Real(interval) => write!(f, "number {interval}"),
            Self::Word(words) => f.write_str(&words.join(", ")),
            Self::OneOrMore(kind) => write!(f, "{kind}; or a list of them"),
            Self::Texts => f.write_str("list of texts"),
            Self::List(kind, count) => write!(f, "{count} of: {kind}"),
        }
    }
}

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Required => f.write_str("required"),
            Self::Value(text) | Self::Words(text) => f.write_str(text),
        }
    }
}

impl Key {
    fn new(path: &str, kind: Kind, absent: Absent, about: &str, example: &str) -> Self {
        Self {
            path: path.to_owned(),
            kind,
            absent,
            symbol: String::new(),
            about: about.to_owned(),
            example: example.to_owned(),
            only: Vec::new(),
        }
    }

    fn symbol(self, symbol: &str) -> Self {
        Self { symbol: symbol.to_owned(), ..self }
    }

    fn only(self, kinds: &[&str]) -> Self {
        Self { only: kinds.iter().map(|&kind| kind.to_owned()).collect(), ..self }
    }

    /// Adds the owners of a key of the same name, whose default may differ.
    fn merge(&mut self, other: &Self) {
        if self.absent != other.absent || matches!(self.absent, Absent::Words(_)) {
            let default = |key: &Self| format!("{} {}", key.only.join(", "), key.absent);
            let first = match &self.absent {
                Absent::Value(_) => default(self),
                absent => absent.to_string(),
            };
            self.absent = words(&format!("{first}, {}", default(other)));
        }
        self.only.extend(other.only.iter().cloned());
    }

    /// The table that it stands in; empty for the top of the file.
    pub fn table(&self) -> &str {
        self.path.rsplit_once('.').map_or("", |(table, _)| table)
    }

    /// Its own name.
    pub fn name(&self) -> &str {
        self.path.rsplit_once('.').map_or(self.path.as_str(), |(_, name)| name)
    }
}

fn required() -> Absent {
    Absent::Required
}

fn value(text: &str) -> Absent {
    Absent::Value(text.to_owned())
}

fn words(text: &str) -> Absent {
    Absent::Words(text.to_owned())
}

fn word(of: &[&str]) -> Kind {
    Kind::Word(of.iter().map(|&word| word.to_owned()).collect())
}

/// Every key of an experiment file, in the order in which one writes them.
pub fn keys() -> Vec<Key> {
    [
        run_keys(),
        data::data_keys(),
        data::source_keys(),
        model_keys(),
        local_keys(),
        availability_keys(),
        algorithm_keys(),
    ]
    .concat()
}

fn run_keys() -> Vec<Key> {
    use Kind::{OneOrMore, Text, Truth, Whole};
    vec![
        Key::new(
            "name",
            Text,
            required(),
            "The name of the experiment and of its run folder: no /, no leading dot.",
            "\"mine\"",
        ),
        Key::new(
            "seeds",
            OneOrMore(Whole(0).into()),
            value("[1]"),
            "A run each; everything random derives from it.",
            "[1, 2, 3]",
        ),
        Key::new("rounds", Whole(1), required(), "Rounds of each run.", "100").symbol("T"),
        Key::new("cohort", Whole(1), required(), "Devices drawn in a round.", "50").symbol("m"),
        Key::new(
            "with_replacement",
            Truth,
            value("false"),
            "Draws the cohort with replacement, as the paper writes it.",
            "true",
        ),
        Key::new(
            "evaluate_every",
            Whole(1),
            value("10"),
            "Rounds between two evaluations of every device, and between two checkpoints.",
            "20",
        ),
        Key::new(
            "weights",
            word(&["exact", "bucketed", "uniform"]),
            words("\"uniform\" where η is found in secure sums alone, \"exact\" otherwise"),
            "What a device counts with: the number of its examples, as in the paper; the nearest of 1, 4, 16, 64 and 256 to it; or 1, which tells nothing of a device.",
            "\"bucketed\"",
        )
        .symbol("α_k"),
        Key::new(
            "tracks",
            word(&["together", "in-turn", "apart"]),
            words("\"in-turn\" in a deployment and where η is found in secure sums alone, \"together\" otherwise"),
            "Which tracks train in a round. \"together\": all, with the whole cohort; in simulations only. \"in-turn\": one, with the whole cohort, so that k tracks need k times the rounds. \"apart\": all, with about m/k devices each. Schedules of learning rates and of η count the rounds of a track.",
            "\"in-turn\"",
        ),
        Key::new(
            "clip",
            Kind::Real(POSITIVE),
            words("no bound"),
            "The largest Euclidean norm of an update: a device shortens a longer one to it. On the CPU; not with an algorithm that sends more than w.",
            "1.0",
        ),
        Key::new(
            "secagg",
            word(&["plain", "real"]),
            value("\"plain\""),
            "Whether sums go through the real protocol of secure aggregation: the same bits.",
            "\"real\"",
        ),
    ]
}

/// The options of every model, from the table of models. Options of one name share a key.
fn model_keys() -> Vec<Key> {
    let kinds: Vec<&str> = MODELS.iter().map(|model| model.kind).collect();
    let about: Vec<String> = MODELS.iter().map(|model| format!("{}: {}.", model.kind, model.about)).collect();
    let mut keys = vec![
        Key::new("model.kind", word(&kinds), required(), &about.join(" "), "\"linear\""),
        Key::new("model.l2", Kind::Real(NON_NEGATIVE), value("0.0"), "The penalty (λ/2)‖w‖².", "1e-4")
            .symbol("λ"),
    ];
    for model in MODELS {
        for option in model.options {
            let key = option_key("model", model.kind, option);
            match keys.iter_mut().find(|other| other.path == key.path) {
                Some(other) => other.merge(&key),
                None => keys.push(key),
            }
        }
    }
    keys
}

fn local_keys() -> Vec<Key> {
    use Kind::{Real, Whole};
    vec![
        Key::new(
            "local.epochs",
            Whole(1),
            words("steps"),
            "Passes of a device over its examples in a round; either this or steps.",
            "1",
        ),
        Key::new("local.steps", Whole(1), words("epochs"), "Steps of a device in a round.", "10")
            .symbol("n_local"),
        Key::new("local.batch", Whole(1), required(), "Examples of a step.", "10"),
        Key::new(
            "local.learning_rate",
            Real(POSITIVE),
            required(),
            "The learning rate of the first round.",
            "0.1",
        )
        .symbol("γ₀"),
        Key::new(
            "local.decay.factor",
            Real(POSITIVE),
            words("no decay"),
            "The rate is multiplied by this; needs every.",
            "0.5",
        )
        .symbol("c"),
        Key::new(
            "local.decay.every",
            Whole(1),
            words("no decay"),
            "Rounds between two such steps; needs factor.",
            "200",
        )
        .symbol("t₀"),
    ]
}

fn availability_keys() -> Vec<Key> {
    use Kind::{Real, Whole};
    vec![
        Key::new(
            "availability.drop_out",
            Real(UNIT),
            value("0.0"),
            "The probability that a device which was drawn vanishes before it answers.",
            "0.1",
        ),
        Key::new(
            "availability.diurnal.period",
            Whole(1),
            words("no day"),
            "Rounds of a day in which devices come and go; needs low.",
            "24",
        ),
        Key::new(
            "availability.diurnal.low",
            Real(UNIT),
            words("no day"),
            "The probability that a device can be reached at its worst hour; needs period.",
            "0.3",
        ),
    ]
}

/// The options of every algorithm, from the table of algorithms.
fn algorithm_keys() -> Vec<Key> {
    let kinds: Vec<&str> = ALGORITHMS.iter().map(|algorithm| algorithm.kind).collect();
    let about = "How the server combines what devices train. Every [[algorithm]] is a track, or one for each of its levels.";
    let mut keys = vec![Key::new("algorithm[].kind", word(&kinds), required(), about, "\"delta-fl\"")];
    for algorithm in ALGORITHMS {
        keys.extend(algorithm.options.iter().map(|spec| option_key("algorithm[]", algorithm.kind, spec)));
    }
    let about = "The penalty of these tracks, instead of the model's.";
    let l2 = Key::new("algorithm[].l2", Kind::Real(NON_NEGATIVE), words("that of the model"), about, "1e-3");
    keys.push(l2.symbol("λ"));
    keys
}

fn option_key(table: &str, owner: &str, spec: &OptionSpec) -> Key {
    let kind = match spec.kind {
        OptionKind::Real(interval) => Kind::Real(interval),
        OptionKind::Whole(least) => Kind::Whole(least),
        OptionKind::Word(of) => word(of),
        OptionKind::Truth => Kind::Truth,
        OptionKind::WholePair(least) => Kind::List(Kind::Whole(least).into(), 2),
    };
    let mut letters = spec.about.chars();
    let about: String = letters.next().into_iter().flat_map(char::to_uppercase).chain(letters).collect();
    let (kind, about) = match spec.levels {
        true => (Kind::OneOrMore(kind.into()), format!("{about}; a track each")),
        false => (kind, about),
    };
    let absent = match spec.default {
        DefaultValue::Required => words(&format!("required by {owner}")),
        DefaultValue::Value(default) => value(&toml_of(default)),
        DefaultValue::Unset(meaning) => words(meaning),
    };
    let path = format!("{table}.{}", spec.name);
    Key::new(&path, kind, absent, &format!("{about}."), &toml_of(spec.example))
        .symbol(spec.symbol)
        .only(&[owner])
}

/// A value as TOML.
fn toml_of(value: OptionValue) -> String {
    match value {
        OptionValue::Real(real) => toml::Value::from(real).to_string(),
        OptionValue::Word(word) => format!("{word:?}"),
        value => value.to_string(),
    }
}
