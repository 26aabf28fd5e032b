//! Every key of an experiment file: its type, its range, its default, its symbol in the paper, an example.
//!
//! The reference, `deltafl help experiment` and the schema for editors are made of this list. `tests/experiment_keys.rs` holds it against the
//! types: no key is missing, no default differs, every example is accepted, and what lies outside a range is refused.

mod data;

use std::fmt;

pub use deltafl::algorithm::Interval;
use deltafl::algorithm::{ALGORITHMS, Algorithm, OptionKind, OptionSpec, Value};

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

fn model_keys() -> Vec<Key> {
    use Kind::{List, Real, Truth, Whole};
    vec![
        Key::new(
            "model.kind",
            word(&["linear", "logistic", "conv-net", "lstm", "gru", "perceptron", "external"]),
            required(),
            "Softmax regression (linear regression where the targets are real numbers), binary logistic regression, the network of EMNIST, the LSTM over word vectors, the GRU over symbols, a perceptron with one hidden layer, or a model that a program brings (in Python, a trainer).",
            "\"linear\"",
        ),
        Key::new("model.l2", Real(NON_NEGATIVE), value("0.0"), "The penalty (λ/2)‖w‖².", "1e-4").symbol("λ"),
        Key::new(
            "model.channels",
            List(Whole(1).into(), 2),
            words("[32, 64]"),
            "Channels of the two convolutions.",
            "[8, 16]",
        )
        .only(&["conv-net"]),
        Key::new(
            "model.intercept",
            Truth,
            value("false"),
            "Whether there is an intercept, which is penalised as the other parameters are; the paper's models have none.",
            "true",
        )
        .only(&["linear", "logistic"]),
        Key::new(
            "model.huber",
            Real(POSITIVE),
            words("the squared loss"),
            "Where the targets are real numbers: the width of the Huber loss.",
            "0.5",
        )
        .symbol("δ")
        .only(&["linear"]),
        Key::new("model.hidden", Whole(1), words("lstm 50, gru 128, perceptron 100"), "Units of the recurrent or hidden layer.", "64")
            .only(&["lstm", "gru", "perceptron"]),
        Key::new(
            "model.embedding",
            Whole(0),
            words("0"),
            "Entries of the trained embedding of a symbol; 0 is one-hot input.",
            "8",
        )
        .only(&["gru"]),
    ]
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
        keys.extend(algorithm.options.iter().map(|spec| option_key(algorithm, spec)));
    }
    let about = "The penalty of these tracks, instead of the model's.";
    let l2 = Key::new("algorithm[].l2", Kind::Real(NON_NEGATIVE), words("that of the model"), about, "1e-3");
    keys.push(l2.symbol("λ"));
    keys
}

fn option_key(algorithm: &Algorithm, spec: &OptionSpec) -> Key {
    let kind = match spec.kind {
        OptionKind::Real(interval) => Kind::Real(interval),
        OptionKind::Whole(least) => Kind::Whole(least),
        OptionKind::Word(of) => word(of),
    };
    let (kind, about) = match spec.levels {
        true => (Kind::OneOrMore(kind.into()), format!("{}; a track each", spec.about)),
        false => (kind, spec.about.to_owned()),
    };
    let absent = spec
        .default
        .map_or_else(|| words(&format!("required by {}", algorithm.kind)), |v| value(&toml_of(v)));
    let path = format!("algorithm[].{}", spec.name);
    Key::new(&path, kind, absent, &format!("{about}."), &toml_of(spec.example))
        .symbol(spec.symbol)
        .only(&[algorithm.kind])
}

/// A value as TOML.
fn toml_of(value: Value) -> String {
    match value {
        Value::Real(real) => toml::Value::from(real).to_string(),
        Value::Whole(whole) => whole.to_string(),
        Value::Word(word) => format!("{word:?}"),
    }
}
