//! `deltafl field`: many algorithms on one federation.

use std::fs;

use serde_json::Value;

use super::workdir::{Workdir, runs};
use crate::report::browser::Browser;

const FIELD: &str = "field synthetic(1,1) --algorithms fedavg,delta-fl:theta=0.5,term --splits 2 --out f -q \
     --set rounds=6 --set cohort=4 --set evaluate_every=3 --set data.source.devices=20 \
     --set data.source.examples={min=10,median=15,max=30}";

/// Returns the mean and the 90th percentile of the error over the test devices in the final runs of
/// a method, recomputed from their summaries.
fn recomputed(workdir: &Workdir, method: &str) -> [f64; 2] {
    let mut figures = Vec::new();
    for run in runs(&workdir.path("f/points")) {
        let folder = workdir.path("f/points").join(run);
        let experiment = fs::read_to_string(folder.join("experiment.toml")).unwrap();
        if experiment.contains(&format!("name = \"{method} split ")) {
            let summary = fs::read(folder.join("summary.json")).unwrap();
            let summary: Value = serde_json::from_slice(&summary).unwrap();
            let test = &summary["tracks"][0]["test"];
            figures.push(["mean", "p90"].map(|figure| test[figure]["mean"].as_f64().unwrap()));
        }
    }
    assert_eq!(figures.len(), 2, "{method}: one run per split");
    [0, 1].map(|i| (figures[0][i] + figures[1][i]) / 2.0)
}

#[test]
fn a_field_tunes_trains_and_compares_and_trains_nothing_twice() {
    let workdir = Workdir::with("");
    let shard = workdir.run(&format!("{FIELD} --shard 1/2"));
    let said = String::from_utf8_lossy(&shard.stderr);
    assert!(shard.status.success() && said.contains("not trained yet: Δ-FL θ=0.5"), "{said}");
    assert_eq!(runs(&workdir.path("f/points")).len(), 2 * 14, "two of three methods");
    assert!(!workdir.path("f/field.json").exists());

    let results: Value = serde_json::from_str(&workdir.printed(&format!("{FIELD} --json"))).unwrap();
    let methods = results["methods"].as_array().unwrap();
    assert_eq!((results["splits"].as_u64(), methods.len()), (Some(2), 3));
    for method in methods {
        let name = method["name"].as_str().unwrap();
        let expected = recomputed(&workdir, name);
        for (figure, expected) in ["mean", "p90"].iter().zip(expected) {
            let value = method[figure]["value"].as_f64().unwrap();
            assert!((value - expected).abs() < 1e-12, "{name} {figure}: {value} {expected}");
            let bound = |i: usize| method[figure]["interval"][i].as_f64().unwrap();
            assert!(bound(0) <= value && value <= bound(1), "{name} {figure}");
        }
        assert_eq!(method["change"].is_null(), name == "FedAvg");
    }
    assert!(methods.iter().any(|method| method["on_front"] == true));

    // Every method has nine candidates, of which three and then one go on, on the same splits.
    let trained = runs(&workdir.path("f/points"));
    assert_eq!(trained.len(), 3 * (9 + 3 + 2));
    let table = workdir.printed(FIELD);
    assert!(table.contains("TERM") && table.contains("p90 − FedAvg"), "{table}");
    assert_eq!(runs(&workdir.path("f/points")), trained, "a second call trains nothing");
    for file in ["field.md", "field.csv", "field.svg", "field.png", "field.toml"] {
        assert!(workdir.path("f").join(file).is_file(), "{file}");
    }

    let Some(mut browser) = Browser::open(&workdir.path("f/report.html")) else { return };
    let choose = |id: &str, method: &str| {
        format!(
            "(() => {{ const box = document.getElementById('{id}'); \
             box.value = [...box.options].find((option) => option.text === '{method}').value; \
             box.dispatchEvent(new Event('change')); }})()"
        )
    };
    browser.value(&choose("method", "FedAvg"));
    browser.value(&choose("against", "TERM"));
    browser.settle();
    assert_eq!(browser.text("#percentiles-baseline"), "TERM");
    assert_eq!(browser.text("#percentiles-track"), "FedAvg");
    let lead = browser.text("#gains-lead");
    assert!(lead.contains("gained") && lead.contains("of TERM"), "{lead}");
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn methods_and_federations_that_do_not_exist_are_refused() {
    let workdir = Workdir::with("");
    assert!(workdir.refusal("field runes").contains("neither a federation folder"));
    assert!(workdir.refusal("field glyphs --algorithms fedsgd").contains("there is no algorithm"));
    assert!(workdir.refusal("field glyphs --algorithms fedavg,fedavg").contains("given twice"));
    let said = workdir.refusal("field glyphs --algorithms median --set secagg=real");
    assert!(said.contains("median does not work with secagg"), "{said}");
}

#[test]
fn a_split_by_lists_of_devices_is_one_split() {
    let workdir = Workdir::with(
        "name = 'x'\nrounds = 6\ncohort = 4\nevaluate_every = 6\n[data]\nsource = 'd'\n\
         split = { given = { train = ['d0', 'd1', 'd2', 'd3'], validation = ['d4', 'd5'], test = ['d6', 'd7'] } }\n\
         [model]\nkind = 'linear'\n[local]\nepochs = 1\nbatch = 10\nlearning_rate = 0.1\n[[algorithm]]\nkind = 'fedavg'\n",
    );
    let row = |i: usize| format!("d{},{},{}\n", i % 8, (i * 37) % 11, if i * 13 % 5 < 2 { "a" } else { "b" });
    let rows: String = (0..80).map(row).collect();
    fs::write(workdir.path("d.csv"), format!("device,x,label\n{rows}")).unwrap();
    workdir.printed("data import csv d.csv --device device --label label --out d");
    let results = workdir.printed("field x.toml --algorithms fedavg --splits 3 --out f -q --json");
    let results: Value = serde_json::from_str(&results).unwrap();
    assert_eq!((&results["splits"], runs(&workdir.path("f/points")).len()), (&1.into(), 9 + 3 + 1));
}
