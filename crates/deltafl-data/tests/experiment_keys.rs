//! The list of every key of an experiment, held against the types: nothing is missing, and nothing is said that is not so.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::BTreeSet;

use deltafl_data::experiment::Experiment;
use deltafl_data::experiment::keys::{DefaultValue, Key, KeyKind, keys};

/// An experiment that a value can be put into, for each kind that has the key.
const BASE: &str = "name = 'x'\nrounds = 4\ncohort = 3\n[data]\nsource = 'd'\n[model]\nkind = 'linear'\n\
    [local]\nepochs = 1\nbatch = 10\nlearning_rate = 0.1\n[[algorithm]]\nkind = 'fedavg'\n";

/// The experiment with a key of a table set, and what else that table then needs.
fn with(key: &Key, value: &str) -> Result<Experiment, String> {
    let mut file: toml::Table = toml::from_str(BASE).unwrap();
    if key.path.starts_with("data.source.") {
        let kind = key.only.first().map_or("glyphs", String::as_str);
        file["data"]["source"] = parsed(&format!("{{ kind = '{kind}' }}"));
    }
    if key.table() == "model" {
        file["model"]["kind"] = key.only.first().map_or("linear", String::as_str).into();
    }
    if key.table() == "model.layers[]" {
        let kind = match key.name() {
            "kind" => value.trim_matches('"'),
            _ => key.only.first().map_or("relu", String::as_str),
        };
        file["model"]["kind"] = "stack".into();
        let layer = with_required("model.layers[]", kind);
        file["model"].as_table_mut().unwrap().insert("layers".to_owned(), vec![layer].into());
    }
    let algorithm = match (key.path.as_str(), key.table()) {
        ("algorithm[].kind", _) => value.trim_matches('"'),
        (_, "algorithm[]") => key.only.first().map_or("fedavg", String::as_str),
        _ => "fedavg",
    };
    file["algorithm"][0] = with_required("algorithm[]", algorithm);
    if key.path == "local.steps" {
        file["local"].as_table_mut().unwrap().remove("epochs");
    }
    let mut table = &mut file;
    for part in key.table().split('.').filter(|part| !part.is_empty()) {
        let below = match part.strip_suffix("[]") {
            Some(list) => &mut table[list][0],
            None => table.entry(part).or_insert_with(|| toml::Table::new().into()),
        };
        table = below.as_table_mut().unwrap();
    }
    // Tables of which all keys are given together.
    for (of, name, filler) in [
        ("local.decay", "factor", "0.5"),
        ("local.decay", "every", "2"),
        ("availability.diurnal", "period", "24"),
        ("availability.diurnal", "low", "0.5"),
        ("data.source.examples", "min", "20"),
        ("data.source.examples", "median", "30"),
        ("data.source.examples", "max", "60"),
        ("privacy", "clip", "0.5"),
        ("privacy", if key.name() == "noise" { "noise" } else { "epsilon" }, "1.5"),
    ] {
        if key.table() == of {
            table.insert(name.to_owned(), parsed(filler));
        }
    }
    table.insert(key.name().to_owned(), parsed(value));
    let text = toml::to_string(&file).unwrap();
    Experiment::parse(&text).map_err(|e| e.to_string())
}

/// A section of an algorithm or a layer with the options that it requires.
fn with_required(table: &str, kind: &str) -> toml::Value {
    let required = keys().into_iter().filter(|key| {
        let is_option = key.table() == table && key.only.iter().any(|owner| owner == kind);
        is_option && !matches!(key.default, DefaultValue::Value(_))
    });
    let options = required.map(|key| format!(", {} = {}", key.name(), key.example));
    parsed(&format!("{{ kind = '{kind}'{} }}", options.collect::<String>()))
}

fn parsed(value: &str) -> toml::Value {
    toml::from_str::<toml::Table>(&format!("x = {value}")).unwrap()["x"].clone()
}

#[test]
fn every_example_is_accepted() {
    for key in keys() {
        with(&key, &key.example).unwrap_or_else(|e| panic!("{} = {}: {e}", key.path, key.example));
    }
}

/// Values that lie outside what a kind says.
fn outside(kind: &KeyKind) -> Vec<String> {
    match kind {
        KeyKind::Text => vec!["3".to_owned()],
        KeyKind::PathOrTable | KeyKind::Truth => vec!["3".to_owned(), "[]".to_owned()],
        KeyKind::Whole(0) => vec!["-1".to_owned(), "0.5".to_owned()],
        KeyKind::Whole(least) => vec![(least - 1).to_string(), "0.5".to_owned()],
        KeyKind::Real(interval) => {
            let below = if interval.open { interval.least } else { interval.least - 0.5 };
            let above = interval.most.is_finite().then_some(interval.most + 0.5);
            let numbers = [Some(below), above, Some(f64::NAN)];
            numbers.into_iter().flatten().map(|number| toml::Value::from(number).to_string()).collect()
        }
        KeyKind::Word(_) => vec!["\"nonsense\"".to_owned(), "3".to_owned()],
        KeyKind::OneOrMore(kind) => {
            outside(kind).into_iter().flat_map(|v| [format!("[{v}]"), v]).chain(["[]".to_owned()]).collect()
        }
        KeyKind::Texts | KeyKind::Layers => vec!["3".to_owned(), "[3]".to_owned()],
        KeyKind::List(kind, count) => {
            let inside = vec!["1".to_owned(); count + 1].join(",");
            outside(kind).into_iter().map(|v| format!("[{v},{v}]")).chain([format!("[{inside}]")]).collect()
        }
    }
}

#[test]
fn what_lies_outside_the_range_is_refused() {
    for key in keys() {
        for wrong in outside(&key.kind) {
            assert!(with(&key, &wrong).is_err(), "{} = {wrong}", key.path);
        }
    }
}

#[test]
fn every_word_is_accepted() {
    for key in keys() {
        let KeyKind::Word(words) = &key.kind else { continue };
        for word in words {
            with(&key, &format!("{word:?}")).unwrap_or_else(|e| panic!("{} = {word}: {e}", key.path));
        }
    }
}

#[test]
fn the_defaults_are_those_of_the_types() {
    for key in keys() {
        let DefaultValue::Value(default) = &key.default else { continue };
        let given = with(&key, default).unwrap_or_else(|e| panic!("{} = {default}: {e}", key.path));
        // The same without the key: set to something else, it would be another experiment.
        let mut absent = key.clone();
        absent.path = format!("{}{}", key.table(), if key.table().is_empty() { "name" } else { "" });
        let base = if key.table().is_empty() { with(&absent, "'x'").unwrap() } else { without(&key) };
        // The address of a model depends on whether an option is given, so its values are compared.
        if key.table().starts_with("model") {
            assert_eq!(given.model(), base.model(), "{} = {default}", key.path);
        } else {
            assert_eq!(given.address(), base.address(), "{} = {default}", key.path);
        }
    }
}

/// The experiment in which the table of a key is there, and the key is not.
fn without(key: &Key) -> Experiment {
    let experiment = with(key, &key.example).unwrap();
    let mut file: toml::Table = toml::from_str(&experiment.to_toml()).unwrap();
    // Where nobody sets them, weights follow from how the tail is found.
    file.remove("weights");
    file.remove("tracks");
    let mut table = &mut file;
    for part in key.table().split('.') {
        let below = match part.strip_suffix("[]") {
            Some(list) => &mut table[list][0],
            None => &mut table[part],
        };
        table = below.as_table_mut().unwrap();
    }
    table.remove(key.name());
    Experiment::parse(&toml::to_string(&file).unwrap()).unwrap()
}

#[test]
fn no_key_of_the_types_is_missing() {
    let mut tables: BTreeSet<(String, Vec<String>)> = BTreeSet::new();
    for key in keys() {
        tables.insert((key.table().to_owned(), key.only.clone()));
    }
    for (table, only) in tables {
        let unknown = Key {
            path: join(&table, "nonsense"),
            kind: KeyKind::Text,
            default: DefaultValue::Required,
            symbol: String::new(),
            about: String::new(),
            example: String::new(),
            only,
        };
        let error = with(&unknown, "1").expect_err("an unknown key is refused");
        // "unknown field `nonsense`, expected one of `a`, `b`": the fields, as the type has them.
        let fields: BTreeSet<&str> =
            error.split_once("expected").unwrap().1.split('`').skip(1).step_by(2).collect();
        for field in fields.into_iter().filter(|field| *field != "resolved") {
            let path = join(&table, field);
            let below = format!("{path}.");
            let listed = keys().iter().any(|key| {
                key.path == path || key.path.starts_with(&below) || key.path.starts_with(&format!("{path}[]"))
            });
            assert!(listed, "{path} is not in the list");
        }
    }
}

fn join(table: &str, name: &str) -> String {
    if table.is_empty() { name.to_owned() } else { format!("{table}.{name}") }
}
