//! The reference of all keys on the terminal, in the docs, and for editors.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::workdir;

fn docs(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/reference").join(name)
}

/// Checks that a file in the docs equals the output of the command. `UPDATE_DOCS=1` writes the
/// file.
fn is_up_to_date(name: &str, printed: &str) {
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(docs(name), printed).unwrap();
    }
    let there = fs::read_to_string(docs(name)).unwrap_or_default();
    assert!(
        there == printed,
        "docs/src/reference/{name} differs from the output of the command: UPDATE_DOCS=1 updates it"
    );
}

#[test]
fn the_reference_in_the_docs_equals_the_output_of_the_command() {
    let workdir = workdir::workdir();
    is_up_to_date("experiment.md", &workdir.printed("experiment --markdown"));
    is_up_to_date("experiment.schema.json", &workdir.printed("experiment --schema"));
    let help = workdir.printed("help experiment");
    for key in ["rounds = 100", "learning_rate = 0.1", "decay.factor = 0.5", "theta = 0.5"] {
        assert!(help.contains(key), "{key}: {help}");
    }
}

/// Returns the paths of a file that violate a schema, by the rules used in ours.
fn refused(schema: &Value, value: &Value, path: &str) -> Vec<String> {
    if let Some(any) = schema["anyOf"].as_array() {
        let all: Vec<Vec<String>> = any.iter().map(|schema| refused(schema, value, path)).collect();
        return all.into_iter().min_by_key(Vec::len).unwrap();
    }
    let number = value.as_f64();
    let bad = match schema["type"].as_str().unwrap() {
        "string" => value
            .as_str()
            .is_none_or(|text| schema["enum"].as_array().is_some_and(|words| !words.contains(&text.into()))),
        "boolean" => !value.is_boolean(),
        "integer" => value.as_i64().is_none_or(|n| schema["minimum"].as_i64().is_some_and(|least| n < least)),
        "number" => number.is_none_or(|n| {
            schema["minimum"].as_f64().is_some_and(|least| n < least)
                || schema["exclusiveMinimum"].as_f64().is_some_and(|least| n <= least)
                || schema["maximum"].as_f64().is_some_and(|most| n > most)
        }),
        "array" => {
            let Some(values) = value.as_array() else { return vec![path.to_owned()] };
            return values.iter().flat_map(|value| refused(&schema["items"], value, path)).collect();
        }
        "object" => {
            let Some(table) = value.as_object() else { return vec![path.to_owned()] };
            let mut found = Vec::new();
            for required in schema["required"].as_array().into_iter().flatten() {
                if !table.contains_key(required.as_str().unwrap()) {
                    found.push(format!("{path}.{}", required.as_str().unwrap()));
                }
            }
            for (key, value) in table {
                let below = format!("{path}.{key}");
                match schema["properties"].get(key) {
                    Some(schema) => found.extend(refused(schema, value, &below)),
                    None if schema["additionalProperties"] == false => found.push(below),
                    None => {}
                }
            }
            return found;
        }
        other => panic!("unexpected type: {other}"),
    };
    if bad { vec![path.to_owned()] } else { Vec::new() }
}

#[test]
fn the_schema_accepts_all_shipped_experiments_and_rejects_what_the_command_rejects() {
    let workdir = workdir::workdir();
    let schema: Value = serde_json::from_str(&workdir.printed("experiment --schema")).unwrap();
    let experiments = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments");
    let mut files = vec![workdir.path("x.toml"), experiments.join("quickstart.toml")];
    files.extend(fs::read_dir(experiments.join("paper")).unwrap().map(|entry| entry.unwrap().path()));
    for file in files {
        let value: Value = toml::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        assert_eq!(refused(&schema, &value, ""), Vec::<String>::new(), "{}", file.display());
    }
    // The experiment of a run folder contains every default.
    workdir.printed("run x.toml --set rounds=1 --out r -q");
    let written: Value =
        toml::from_str(&fs::read_to_string(workdir.path("r/experiment.toml")).unwrap()).unwrap();
    assert_eq!(refused(&schema, &written, ""), Vec::<String>::new());

    let x: Value = toml::from_str(&fs::read_to_string(workdir.path("x.toml")).unwrap()).unwrap();
    for (pointer, wrong) in [
        ("/rounds", 0.into()),
        ("/cohort", "many".into()),
        ("/local/learning_rate", 0.into()),
        ("/algorithm/1/theta", serde_json::json!([0.5, 1.4])),
        ("/model/kind", "linea".into()),
        ("/data/source", 3.into()),
    ] {
        let mut changed = x.clone();
        *changed.pointer_mut(pointer).unwrap() = wrong;
        assert_eq!(refused(&schema, &changed, "").len(), 1, "{pointer}");
    }
    let mut unknown = x;
    unknown["local"]["leanring_rate"] = 0.1.into();
    assert_eq!(refused(&schema, &unknown, ""), [".local.leanring_rate"]);
}
