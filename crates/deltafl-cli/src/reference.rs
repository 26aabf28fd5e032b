//! `deltafl experiment` and `deltafl help experiment`: every key of an experiment file, for a terminal, as Markdown, and as a
//! JSON schema for editors. All are made of one list, which the tests hold against the types.

use std::fmt::Write as _;

use deltafl_data::experiment::keys::{Absent, Interval, Key, Kind, keys};
use miette::{IntoDiagnostic, Result};
use serde_json::{Map, Value, json};

/// Print every key of an experiment file: type, range, default, symbol, example
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Print a JSON schema, for editors that check TOML (taplo, VS Code)
    #[arg(long, conflicts_with = "markdown")]
    schema: bool,
    /// Print as Markdown
    #[arg(long)]
    markdown: bool,
}

/// The tables of a file, and what each is about.
const TABLES: [(&str, &str); 7] = [
    ("", "The run"),
    ("[data]", "The devices and their examples"),
    ("[data.source]", "A federation that is made up"),
    ("[model]", "What devices train"),
    ("[local]", "How a device trains"),
    ("[availability]", "Who is away, and who vanishes"),
    ("[[algorithm]]", "How the server combines what devices train"),
];

const INTRODUCTION: &str = "\
An experiment is a TOML file; `experiments/quickstart.toml` is a short one. `deltafl run FILE` trains it, `--set KEY=VALUE` overrides a \
key (`--set algorithm.1.theta=0.3` that of the second algorithm), and a list where one value belongs makes it a sweep \
(`deltafl sweep run FILE`). Paths are relative to the folder in which the command runs, not to that of the file. What is \
wrong is refused with its line.";

pub(crate) fn run(args: Args) -> Result<()> {
    if args.schema {
        println!("{}", serde_json::to_string_pretty(&schema()).into_diagnostic()?);
    } else if args.markdown {
        print!("{}", markdown());
    } else {
        print!("{}", plain());
    }
    Ok(())
}

/// For a terminal.
pub(crate) fn plain() -> String {
    let mut text = format!("{}\n", INTRODUCTION.replace('`', ""));
    for (table, keys) in sections() {
        let _ = writeln!(
            text,
            "\n{}",
            if table.0.is_empty() { table.1.to_owned() } else { format!("{}: {}", table.0, table.1) }
        );
        for key in keys {
            let _ = writeln!(text, "\n  {} = {}{}", written(&key), key.example, symbol(&key));
            let _ = writeln!(text, "      {}", key.about);
            let _ = writeln!(text, "      {}. Default: {}.{}", key.kind, key.absent, only(&key));
        }
    }
    text
}

/// For docs/src/reference/experiment.md.
fn markdown() -> String {
    let mut text = format!(
        "# Every key of an experiment\n\n<!-- Made by `deltafl experiment --markdown`; a test compares. -->\n\n{INTRODUCTION}\n\n\
         The same on a terminal: `deltafl help experiment`. For editors that check TOML (taplo, VS Code's Even Better TOML), \
         [experiment.schema.json](experiment.schema.json) says the same: put `#:schema` and its path on the first line of a file.\n"
    );
    for ((table, about), keys) in sections() {
        let title = if table.is_empty() { about.to_owned() } else { format!("`{table}`: {}", lower(about)) };
        let _ = writeln!(
            text,
            "\n## {title}\n\n| key | what it is | type | default | paper | example |\n|---|---|---|---|---|---|"
        );
        for key in keys {
            let default = match &key.absent {
                Absent::Value(value) => format!("`{value}`"),
                absent => absent.to_string(),
            };
            let _ = writeln!(
                text,
                "| `{}` | {}{} | {} | {default} | {} | `{} = {}` |",
                written(&key),
                key.about,
                only(&key),
                key.kind,
                key.symbol,
                key.name(),
                key.example
            );
        }
    }
    text
}

fn lower(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}

/// The tables with their keys.
fn sections() -> Vec<((&'static str, &'static str), Vec<Key>)> {
    let table_of = |key: &Key| {
        let table = key.path.replace("[]", "");
        let place = TABLES.iter().rposition(|(name, _)| {
            let name = name.trim_matches(['[', ']']);
            table.strip_prefix(name).is_some_and(|rest| name.is_empty() || rest.starts_with('.'))
        });
        place.unwrap_or(0)
    };
    let of = |i: usize| keys().into_iter().filter(|key| table_of(key) == i).collect();
    TABLES.iter().enumerate().map(|(i, table)| (*table, of(i))).collect()
}

/// The key below the table of its section.
fn written(key: &Key) -> String {
    let path = key.path.replace("[]", "");
    let section =
        TABLES.iter().rev().map(|(name, _)| name.trim_matches(['[', ']'])).find(|name| {
            !name.is_empty() && path.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'))
        });
    section.map_or(path.clone(), |section| path[section.len() + 1..].to_owned())
}

fn symbol(key: &Key) -> String {
    if key.symbol.is_empty() { String::new() } else { format!("    ({})", key.symbol) }
}

fn only(key: &Key) -> String {
    if key.only.is_empty() { String::new() } else { format!(" Of {} alone.", key.only.join(", ")) }
}

/// The schema of an experiment file (draft-07, which taplo and VS Code know).
fn schema() -> Value {
    let mut root = Node::default();
    for key in keys() {
        root.insert(&key);
    }
    let mut schema = root.schema();
    schema["$schema"] = "http://json-schema.org/draft-07/schema#".into();
    schema["title"] = "A Δ-FL experiment".into();
    // The axes of a sweep, and what a run folder adds.
    for (table, about) in [
        ("sweep", "Lists of values, a run for each combination"),
        ("resolved", "What a run folder adds; ignored"),
    ] {
        schema["properties"][table] = json!({ "type": "object", "description": about });
    }
    schema
}

/// A table of the schema.
#[derive(Default)]
struct Node {
    keys: Vec<Key>,
    below: Vec<(String, Self)>,
}

impl Node {
    fn insert(&mut self, key: &Key) {
        let mut node = self;
        for part in key.table().split('.').filter(|part| !part.is_empty()) {
            let at = match node.below.iter().position(|(name, _)| name == part) {
                Some(at) => at,
                None => {
                    node.below.push((part.to_owned(), Self::default()));
                    node.below.len() - 1
                }
            };
            node = &mut node.below[at].1;
        }
        node.keys.push(key.clone());
    }

    /// Whether a file cannot do without it.
    fn is_required(&self) -> bool {
        self.keys.iter().any(|key| key.absent == Absent::Required)
    }

    fn schema(&self) -> Value {
        let mut properties = Map::new();
        let mut required: Vec<Value> = Vec::new();
        for key in &self.keys {
            properties.insert(key.name().to_owned(), of_key(key));
            if key.absent == Absent::Required {
                required.push(key.name().into());
            }
        }
        for (name, node) in &self.below {
            let (name, below) = match name.strip_suffix("[]") {
                Some(list) => (list, json!({ "type": "array", "minItems": 1, "items": node.schema() })),
                None => (name.as_str(), node.schema()),
            };
            // `data.source` is a path, or the table.
            let alternative = properties.remove(name);
            if alternative.is_none() && node.is_required() {
                required.push(name.into());
            }
            let both =
                alternative.map(|path| json!({ "description": path["description"], "anyOf": [path, below] }));
            properties.insert(name.to_owned(), both.unwrap_or(below));
        }
        json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
    }
}

fn of_key(key: &Key) -> Value {
    let mut schema = of_kind(&key.kind);
    let paper = if key.symbol.is_empty() { String::new() } else { format!(" In the paper: {}.", key.symbol) };
    schema["description"] = format!("{}{}{paper}", key.about, only(key)).into();
    if let Absent::Value(value) = &key.absent
        && let Some(default) = as_json(value)
    {
        schema["default"] = default;
    }
    if let Some(example) = as_json(&key.example) {
        schema["examples"] = json!([example]);
    }
    schema
}

fn of_kind(kind: &Kind) -> Value {
    match kind {
        Kind::Text | Kind::PathOrTable => json!({ "type": "string" }),
        Kind::Truth => json!({ "type": "boolean" }),
        Kind::Whole(least) => json!({ "type": "integer", "minimum": least }),
        Kind::Real(Interval { least, open, most }) => {
            let mut schema = json!({ "type": "number" });
            schema[if *open { "exclusiveMinimum" } else { "minimum" }] = (*least).into();
            if most.is_finite() {
                schema["maximum"] = (*most).into();
            }
            schema
        }
        Kind::Word(words) => json!({ "type": "string", "enum": words }),
        Kind::OneOrMore(kind) => {
            let one = of_kind(kind);
            json!({ "anyOf": [one, { "type": "array", "items": one, "minItems": 1 }] })
        }
        Kind::Texts => json!({ "type": "array", "items": { "type": "string" } }),
        Kind::List(kind, count) => {
            json!({ "type": "array", "items": of_kind(kind), "minItems": count, "maxItems": count })
        }
    }
}

/// A TOML value as JSON.
fn as_json(value: &str) -> Option<Value> {
    value.parse().ok().map(|value| deltafl_run::sweep::axes::to_json(&value))
}
