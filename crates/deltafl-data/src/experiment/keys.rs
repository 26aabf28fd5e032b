//! Every key of an experiment file: its type, range, default, symbol in the paper and an example.
//!
//! The reference, `deltafl help experiment` and the schema for editors are generated from this
//! list. Names, types and defaults come from the types that the file is parsed into, and from the
//! tables of models and algorithms. `keys.toml` contains the descriptions and examples. `fields!`
//! destructures a value of each type, so a key that is missing here does not compile.

mod kind;

use std::fmt;
use std::num::{NonZeroU32, NonZeroUsize};

use deltafl::adversary::Adversary;
use deltafl::algorithm::ALGORITHMS;
use deltafl::cohort::{Availability, Diurnal};
use deltafl::data::synthetic::{ExamplesPerDevice, Glyphs, Roles, SyntheticLogistic, Tweets};
use deltafl::data::{GivenSplit, WithinSplit};
use deltafl::model::MODELS;
use deltafl::model::stack::{LAYERS, RESIDUAL};
use deltafl::number::{NonNegative, Positive};
use deltafl::options::{OptionDefault, OptionSpec, OptionValue};
use deltafl::terms::Clip;
use deltafl::training::Decay;
use serde::Serialize;

use super::split::DeviceSplitKeys;
use super::{DataSection, Experiment, ExperimentFile, PrivacySection};
pub use kind::KeyKind;
use kind::KeyType;

/// A key of an experiment file.
#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    /// The dotted path; `algorithm[]` is an entry of a list of tables.
    pub path: String,
    /// The values that it accepts.
    pub kind: KeyKind,
    /// Its value if the file does not contain it.
    pub default: DefaultValue,
    /// Its symbol in the paper; empty if it has none.
    pub symbol: String,
    /// Its effect, in one or two sentences.
    pub about: String,
    /// An example value, as TOML.
    pub example: String,
    /// The kinds of model, source or algorithm that have it; empty for all.
    pub only: Vec<String>,
}

/// The value of a key that a file does not contain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DefaultValue {
    /// The file, or the table that contains the key, must contain it.
    Required,
    /// This value, as TOML.
    Value(String),
    /// No single value. The text describes the behaviour.
    Described(String),
}

impl fmt::Display for DefaultValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Required => f.write_str("required"),
            Self::Value(text) | Self::Described(text) => f.write_str(text),
        }
    }
}

/// A table of an experiment file with its keys.
#[derive(Clone, Debug, PartialEq)]
pub struct KeySection {
    /// Its header, such as `[data]`; empty for the top of the file.
    pub header: String,
    /// Its subject.
    pub title: String,
    /// Its keys, in the order in which one writes them.
    pub keys: Vec<Key>,
}

/// Returns every key of an experiment file, in the order in which one writes them.
pub fn keys() -> Vec<Key> {
    sections().into_iter().flat_map(|section| section.keys).collect()
}

/// Returns the tables of an experiment file with their keys.
pub fn sections() -> Vec<KeySection> {
    let Descriptions { titles, keys: described } = Descriptions::parse(include_str!("keys.toml"));
    let mut keys: Vec<Key> = typed_keys().into_iter().map(|key| key.described(&described)).collect();
    let titles = std::iter::once((String::new(), "The run".to_owned())).chain(titles);
    let mut sections: Vec<KeySection> =
        titles.map(|(header, title)| KeySection { header, title, keys: Vec::new() }).collect();
    // From the last section, whose table may be inside the table of one before.
    for section in sections.iter_mut().rev() {
        let prefix = prefix(&section.header);
        (section.keys, keys) = keys.into_iter().partition(|key| key.path.starts_with(&prefix));
    }
    sections
}

/// The start of the paths of the keys below a header.
fn prefix(header: &str) -> String {
    let name = header.trim_matches(['[', ']']);
    match (header.starts_with("[["), name.is_empty()) {
        (true, _) => format!("{name}[]."),
        (false, false) => format!("{name}."),
        (false, true) => String::new(),
    }
}

/// The path of a key of a table.
fn below(table: &str, name: &str) -> String {
    if table.is_empty() { name.to_owned() } else { format!("{table}.{name}") }
}

/// The keys of a table whose values have the type `$type`, with the defaults of `$value`. All
/// fields are listed: the keys, and the fields that are tables themselves.
macro_rules! fields {
    ($table:literal, $type:ident = $value:expr, [$($field:ident),*], tables [$($below:ident),*]) => {{
        let $type { $($field,)* $($below: _,)* } = &$value;
        vec![$(Key::with_default(below($table, stringify!($field)), $field)),*]
    }};
}

/// All keys without their descriptions.
fn typed_keys() -> Vec<Key> {
    let base = "name = 'x'\nrounds = 1\ncohort = 1\ndata.source = 'd'\nmodel.kind = 'linear'\n\
                local = { epochs = 1, batch = 1, learning_rate = 1 }\nalgorithm = [{ kind = 'fedavg' }]";
    let Experiment(base) = Experiment::parse(base).expect("the smallest experiment is valid");
    let decay: Decay = toml::from_str("factor = 1\nevery = 1").expect("the values are in range");
    let diurnal: Diurnal = toml::from_str("period = 1\nlow = 1").expect("the values are in range");
    let run = fields!(
        "",
        ExperimentFile = base,
        [name, seeds, rounds, cohort, with_replacement, evaluate_every, weights, tracks, clip, secagg],
        tables [data, model, local, availability, privacy, adversary, algorithm, resolved]
    );
    let run = run.into_iter().map(|key| key.required_if(&["name", "rounds", "cohort"]));
    let data = fields!("data", DataSection = base.data, [source, normalise, evaluate_sample], tables[split]);
    let data = data.into_iter().map(|key| key.required_if(&["data.source"]));
    let split = fields!(
        "data.split",
        DeviceSplitKeys = DeviceSplitKeys::default_split(),
        [train, validation, seed, min_examples, sample],
        tables [within, given]
    );
    let within = fields!(
        "data.split.within", WithinSplit = WithinSplit::default(),
        [train, validation, seed, min_examples], tables []
    );
    let given = fields!(
        "data.split.given", GivenSplit = GivenSplit::default(), [train, test, validation], tables []
    );
    let local = [
        Key::required::<NonZeroU32>("local.epochs"),
        Key::required::<NonZeroU32>("local.steps"),
        Key::required::<NonZeroUsize>("local.batch"),
        Key::required::<Positive>("local.learning_rate"),
    ];
    let decay = fields!("local.decay", Decay = decay, [factor, every], tables []);
    let availability =
        fields!("availability", Availability = Availability::default(), [drop_out], tables[diurnal]);
    let diurnal = fields!("availability.diurnal", Diurnal = diurnal, [period, low], tables []);
    let adversary = fields!(
        "adversary", Adversary = Adversary::default(),
        [share, scale, flip_sign, flip_labels, loss, seed], tables []
    );
    let one = Positive::try_from(1.0).expect("1 is positive");
    let privacy = PrivacySection::new(one, Clip::try_from(1.0).expect("1 is positive"));
    let privacy = fields!(
        "privacy", PrivacySection = privacy,
        [epsilon, noise, delta, clip, adaptive, mechanism, rounds_between, survivors, accomplices, quantile,
         evaluation, remove_excess], tables []
    );
    let mut keys: Vec<Key> = run.chain(data).collect();
    keys.extend([split, within, given].concat());
    keys.extend(source_keys());
    keys.extend(model_keys());
    keys.extend(layer_keys());
    keys.extend(local);
    keys.extend([decay, availability, diurnal, privacy, adversary].concat());
    keys.extend(algorithm_keys());
    keys
}

fn source_keys() -> Vec<Key> {
    let examples = |examples: &ExamplesPerDevice| {
        let values = toml::Table::try_from(examples).unwrap_or_default();
        let key = |name: &str| {
            let key = Key::required::<NonZeroU32>(&format!("data.source.examples.{name}"));
            Key { default: DefaultValue::Value(values[name].to_string()), ..key }
        };
        ["min", "median", "max"].map(key).to_vec()
    };
    macro_rules! kind {
        ($type:ident, [$($field:ident),*]) => {{
            let value = $type::default();
            let keys = fields!("data.source", $type = value, [$($field),*], tables [examples]);
            [keys, examples(&value.examples)].concat()
        }};
    }
    let kinds = vec![
        ("glyphs", kind!(Glyphs, [devices, seed, train, odd])),
        ("logistic", kind!(SyntheticLogistic, [devices, seed, train, alpha, beta])),
        ("roles", kind!(Roles, [devices, seed, train, odd])),
        ("tweets", kind!(Tweets, [devices, seed, train, odd])),
    ];
    [vec![Key::kind("data.source", kinds.iter().map(|(kind, _)| *kind))], merged(kinds)].concat()
}

fn model_keys() -> Vec<Key> {
    let about: Vec<String> =
        MODELS.iter().map(|model| format!("`{}`: {}.", model.kind, model.about)).collect();
    let kind = Key { about: about.join(" "), ..Key::kind("model", MODELS.iter().map(|model| model.kind)) };
    let owners = MODELS.iter().map(|model| (model.kind, options("model", model.options)));
    let l2 = Key::with_default("model.l2".to_owned(), &NonNegative::default());
    [vec![kind, l2], merged(owners.collect())].concat()
}

fn layer_keys() -> Vec<Key> {
    const TABLE: &str = "model.layers[]";
    let about: Vec<String> =
        LAYERS.iter().map(|layer| format!("`{}`: {}.", layer.kind, layer.about)).collect();
    let kind = Key { about: about.join(" "), ..Key::kind(TABLE, LAYERS.iter().map(|layer| layer.kind)) };
    let owners = LAYERS.iter().map(|layer| (layer.kind, options(TABLE, layer.options)));
    let layers = Key::new(&format!("{TABLE}.layers"), KeyKind::Layers, DefaultValue::Required);
    let layers = Key { only: vec![RESIDUAL.to_owned()], ..layers };
    [vec![kind], merged(owners.collect()), vec![layers]].concat()
}

fn algorithm_keys() -> Vec<Key> {
    let kind = Key::kind("algorithm[]", ALGORITHMS.iter().map(|algorithm| algorithm.kind));
    let owners =
        ALGORITHMS.iter().map(|algorithm| (algorithm.kind, options("algorithm[]", algorithm.options)));
    let l2 = Key::required::<NonNegative>("algorithm[].l2");
    [vec![kind], merged(owners.collect()), vec![l2]].concat()
}

fn options(table: &str, options: &[OptionSpec]) -> Vec<Key> {
    options.iter().map(|option| Key::of_option(table, option)).collect()
}

impl Key {
    fn new(path: &str, kind: KeyKind, default: DefaultValue) -> Self {
        let [symbol, about, example] = [const { String::new() }; 3];
        Self { path: path.to_owned(), kind, default, symbol, about, example, only: Vec::new() }
    }

    fn required<T: KeyType>(path: &str) -> Self {
        Self::new(path, T::kind(), DefaultValue::Required)
    }

    fn with_default<T: KeyType + Serialize>(path: String, default: &T) -> Self {
        // TOML has no value for `None`.
        let default = toml::Value::try_from(default).map_or(String::new(), |value| value.to_string());
        Self::new(&path, T::kind(), DefaultValue::Value(default))
    }

    /// The key `kind` of a table.
    fn kind<'a>(table: &str, kinds: impl Iterator<Item = &'a str>) -> Self {
        Self::new(&format!("{table}.kind"), KeyKind::words(kinds), DefaultValue::Required)
    }

    fn of_option(table: &str, option: &OptionSpec) -> Self {
        let kind = KeyKind::from(option.kind);
        let mut letters = option.about.chars();
        let about: String = letters.next().into_iter().flat_map(char::to_uppercase).chain(letters).collect();
        let (kind, about) = match option.levels {
            true => (KeyKind::OneOrMore(kind.into()), format!("{about}; each value is a track.")),
            false => (kind, format!("{about}.")),
        };
        let default = match option.file_default() {
            OptionDefault::Required => DefaultValue::Described("required".to_owned()),
            OptionDefault::Value(default) => DefaultValue::Value(toml_text(default)),
            OptionDefault::Unset(meaning) => DefaultValue::Described(meaning.to_owned()),
        };
        let key = Self::new(&format!("{table}.{}", option.name), kind, default);
        Self { about, symbol: option.symbol.to_owned(), example: toml_text(option.example), ..key }
    }

    fn required_if(self, paths: &[&str]) -> Self {
        if paths.contains(&&*self.path) { Self { default: DefaultValue::Required, ..self } } else { self }
    }

    /// The key with its description; a key of a table of options may have one already.
    fn described(mut self, described: &[Description]) -> Self {
        if let Some(found) = described.iter().find(|found| found.path == self.path) {
            let Description { about, symbol, example, default, .. } = found.clone();
            self.default = default.map_or(self.default, DefaultValue::Described);
            self.about.push_str(&about);
            (self.symbol, self.example) = (symbol, example);
        }
        self
    }

    /// Returns the table that contains it; empty for the top of the file.
    pub fn table(&self) -> &str {
        self.path.rsplit_once('.').map_or("", |(table, _)| table)
    }

    /// Returns its own name.
    pub fn name(&self) -> &str {
        self.path.rsplit_once('.').map_or(self.path.as_str(), |(_, name)| name)
    }
}

/// A value as TOML.
fn toml_text(value: OptionValue) -> String {
    match value {
        OptionValue::Real(real) => toml::Value::from(real).to_string(),
        OptionValue::Word(word) => format!("{word:?}"),
        value => value.to_string(),
    }
}

/// The content of `keys.toml`.
#[derive(Default)]
struct Descriptions {
    /// Headers of tables with their titles.
    titles: Vec<(String, String)>,
    keys: Vec<Description>,
}

#[derive(Clone, Default)]
struct Description {
    path: String,
    about: String,
    symbol: String,
    default: Option<String>,
    example: String,
}

impl Descriptions {
    fn parse(text: &str) -> Self {
        let (mut all, mut table, mut next) = (Self::default(), String::new(), Description::default());
        for line in text.lines() {
            if let Some(symbol) = line.strip_prefix("# Symbol: ") {
                symbol.clone_into(&mut next.symbol);
            } else if let Some(default) = line.strip_prefix("# Default: ") {
                next.default = Some(default.to_owned());
            } else if let Some(about) = line.strip_prefix("# ") {
                let separator = if next.about.is_empty() { "" } else { " " };
                next.about.push_str(&format!("{separator}{about}"));
            } else {
                let Description { about, .. } = &next;
                if line.starts_with('[') && !about.is_empty() {
                    all.titles.push((line.to_owned(), about.clone()));
                }
                if line.starts_with('[') {
                    table = prefix(line);
                } else if let Some((key, example)) = line.split_once(" = ") {
                    let (path, example) = (format!("{table}{key}"), example.to_owned());
                    all.keys.push(Description { path, example, ..next });
                }
                next = Description::default();
            }
        }
        all
    }
}

/// Joins the keys of several owners by their paths. A key that not all owners have lists its
/// owners, and a default that differs lists the default of each.
fn merged(owners: Vec<(&str, Vec<Key>)>) -> Vec<Key> {
    let count = owners.len();
    let mut groups: Vec<(Key, Vec<(&str, DefaultValue)>)> = Vec::new();
    for (owner, key) in owners.into_iter().flat_map(|(owner, keys)| keys.into_iter().map(move |k| (owner, k)))
    {
        let default = (owner, key.default.clone());
        match groups.iter_mut().find(|(first, _)| first.path == key.path) {
            Some((_, defaults)) => defaults.push(default),
            None => groups.push((key, vec![default])),
        }
    }
    let join = |(mut key, defaults): (Key, Vec<(&str, DefaultValue)>)| {
        if defaults.len() < count {
            key.only = defaults.iter().map(|(owner, _)| (*owner).to_owned()).collect();
        }
        if defaults.iter().any(|(_, default)| *default != key.default) {
            let each = defaults.iter().map(|(owner, default)| format!("{owner} {default}"));
            key.default = DefaultValue::Described(each.collect::<Vec<_>>().join(", "));
        }
        key
    };
    groups.into_iter().map(join).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_a_description_and_every_description_a_key() {
        let keys = keys();
        for key in &keys {
            assert!(!key.about.is_empty() && !key.example.is_empty(), "{} is not described", key.path);
            assert_ne!(key.default, DefaultValue::Value(String::new()), "{} has no default", key.path);
        }
        for Description { path, .. } in Descriptions::parse(include_str!("keys.toml")).keys {
            assert!(keys.iter().any(|key| key.path == path), "there is no key {path}");
        }
    }
}
