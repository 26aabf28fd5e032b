//! Default settings on tables, results by group, and broken files.

use std::fmt::Write as _;
use std::fs;

use crate::support::Workdir;

/// An experiment that gives neither a normalisation nor an intercept.
const PLAIN: &str = "name = 'x'\nrounds = 20\ncohort = 8\n[data]\nsource = 'houses'\n[model]\nkind = 'linear'\n[local]\n\
    epochs = 1\nbatch = 10\nlearning_rate = 0.1\n[[algorithm]]\nkind = 'fedavg'\n";

/// Prices of houses in eight cities of two regions: large numbers, with an offset.
fn houses() -> Workdir {
    let workdir = Workdir::with(PLAIN);
    let mut csv = "city,region,area,rooms,kind,price\n".to_owned();
    for city in 0..8 {
        for i in 0..30 {
            let (area, rooms) = (60 + (i * 37 + city * 11) % 140, 1 + (i * 7) % 5);
            let kind = ["flat", "house"][i % 2];
            let price = 250_000 + 1500 * area + 9000 * rooms + 20_000 * (i % 2);
            let region = ["north", "south"][city % 2];
            let _ = writeln!(csv, "c{city},{region},{area},{rooms},{kind},{price}");
        }
    }
    fs::write(workdir.path("houses.csv"), csv).unwrap();
    workdir
}

#[test]
fn a_table_is_standardised_and_a_linear_model_has_an_intercept_unless_the_file_says_otherwise() {
    let workdir = houses();
    workdir.printed(
        "data import csv houses.csv --device city --label price --regression --group region --out houses",
    );
    let rmse = |options: &str, out: &str| -> (f64, f64) {
        workdir.printed(&format!("run x.toml --quiet --out {out} {options}"));
        let text = fs::read(workdir.path(&format!("{out}/summary.json"))).unwrap();
        let summary: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let of = |part: &serde_json::Value| part["mean"]["mean"].as_f64().unwrap();
        let own = &summary["tracks"][0];
        (
            of(if own["test"].is_null() { &own["train"] } else { &own["test"] }),
            of(&summary["baseline"]["test"]),
        )
    };
    let (own, constant) = rmse("", "default");
    assert!(own < 0.3 * constant, "{own} against {constant}");
    let run = fs::read_to_string(workdir.path("default/experiment.toml")).unwrap();
    assert!(run.contains("intercept = true") && run.contains("normalise = \"standard\""), "{run}");
    let (without, _) = rmse("--set model.intercept=false", "without");
    assert!(without > 2.0 * constant, "the offset needs an intercept: {without}");
    let run = fs::read_to_string(workdir.path("without/experiment.toml")).unwrap();
    assert!(run.contains("intercept = false"), "{run}");
    // An extended run keeps its settings, and a changed one is refused.
    workdir.printed("run x.toml --quiet --out without --resume --set model.intercept=false --set rounds=22");
    assert!(workdir.refusal("run x.toml --out without --resume --set rounds=24").contains("model.intercept"));
    assert!(
        workdir.refusal("run x.toml --out default --resume --set data.normalise=none").contains("normalise")
    );
}

#[test]
fn results_by_group_of_devices_are_in_the_output_the_run_folder_and_the_report() {
    let workdir = houses();
    let told = workdir.printed("data import auto houses.csv --label price --group region --out houses");
    assert!(told.contains("the group of the device"), "{told}");
    let told = workdir.printed("run x.toml --quiet --out r");
    let groups = told.split("By group").nth(1).unwrap_or_else(|| panic!("{told}"));
    assert!(groups.contains("north") && groups.contains("south"), "{told}");
    let text = fs::read(workdir.path("r/groups.json")).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&text).unwrap();
    assert_eq!((&json["groups"][0]["name"], &json["groups"][0]["devices"]), (&"north".into(), &4.into()));
    workdir.printed("report r");
    let tables = fs::read_to_string(workdir.path("r/tables.md")).unwrap();
    assert!(tables.contains("| north (4) |") && tables.contains("| south (4) |"), "{tables}");
    let csv = fs::read_to_string(workdir.path("houses.csv")).unwrap();
    fs::write(workdir.path("two.csv"), csv.replacen("c0,north", "c0,south", 1)).unwrap();
    let told = workdir.refusal("data import auto two.csv --label price --group region --out two");
    assert!(
        told.contains("line 3: device \"c0\" is in the group \"south\" before, and in \"north\" here"),
        "{told}"
    );
    assert!(!workdir.path("two").exists());
}

#[test]
fn results_by_group_of_a_personal_track_are_those_of_its_personal_models() {
    let workdir = houses();
    workdir.printed("data import auto houses.csv --label price --group region --out houses");
    let personal = "--set algorithm.0.kind=ditto --set data.split={within={train=0.8}}";
    workdir.printed(&format!("run x.toml --quiet --out r {personal}"));
    let text = fs::read(workdir.path("r/groups.json")).unwrap();
    let groups: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let text = fs::read(workdir.path("r/summary.json")).unwrap();
    let summary: serde_json::Value = serde_json::from_slice(&text).unwrap();
    // Both groups have four devices.
    let of_group = |g: usize| groups["groups"][g]["values"][0]["mean"].as_f64().unwrap();
    let mean = summary["tracks"][0]["test"]["mean"]["mean"].as_f64().unwrap();
    assert!(((of_group(0) + of_group(1)) / 2.0 / mean - 1.0).abs() < 1e-9, "{groups} {mean}");
}

#[test]
fn a_broken_file_of_any_format_is_an_error_with_its_place_and_writes_nothing() {
    let workdir = Workdir::with("");
    let cases: [(&str, &[u8], &str); 9] = [
        ("short.csv", b"user,x,label\na,1,0\na,2\n", "short.csv, line 3: fields: expected 3, found 2"),
        ("latin.csv", b"user,x,label\na,caf\xe9,0\n", "latin.csv, line 2: not valid UTF-8"),
        ("word.tsv", b"user\tx\tlabel\na\t1\t0\na\tone\t1\n", "word.tsv, line 3: \"one\" is not a number"),
        (
            "cut.jsonl",
            b"{\"user\": \"a\", \"x\": 1, \"label\": 0}\n{\"user\": \n",
            "cut.jsonl, line 2: not a JSON object",
        ),
        ("cut.parquet", b"PAR1\0\0\0\0", "cut.parquet: not a Parquet file that can be read"),
        ("cut.arrow", b"ARROW1\0\0\xff\xff\xff\xff", "cut.arrow: not an Arrow file that can be read"),
        ("stream.arrow", b"\xff\xff\xff\xff\x10\0\0\0", "stream.arrow: not an Arrow file that can be read"),
        ("zip.csv", b"PK\x03\x04 nothing", "zip.csv: not a zip archive that can be read"),
        ("empty.csv", b"user,x,label\n", "empty.csv: holds no examples"),
    ];
    for (name, bytes, expected) in cases {
        fs::write(workdir.path(name), bytes).unwrap();
        let told = workdir.refusal(&format!("data import auto {name} --number x --out out"));
        assert!(told.contains(expected), "{expected}: {told}");
        assert!(!workdir.path("out").exists(), "{name}");
    }
}

#[test]
fn lists_and_a_missing_device_column_are_named() {
    let workdir = Workdir::with("");
    let rows: String = (0..30)
        .map(|i| format!("{{\"a\": {i}.5, \"tags\": [1, 2], \"label\": \"{}\"}}\n", ["x", "y"][i % 2]))
        .collect();
    fs::write(workdir.path("t.jsonl"), rows).unwrap();
    let told = workdir.printed("data import auto t.jsonl --out t");
    assert!(told.contains("tags   other       not used: lists"), "{told}");
    assert!(told.contains("no column looks like a device"), "{told}");
}
