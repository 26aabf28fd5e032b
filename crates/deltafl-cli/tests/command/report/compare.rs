//! Tests of `deltafl compare`.

use serde_json::Value;

use super::{deltafl, printed, run_folders, text, trained_run};

fn compared(args: &[&str]) -> Value {
    serde_json::from_str(&printed(&[&["compare"], args, &["--json", "--resamples", "200"]].concat())).unwrap()
}

#[test]
fn a_comparison_of_tracks_agrees_with_the_summary() {
    let run = trained_run();
    let operand = |track: &str| format!("{}:{track}", text(&run.path));
    let answer = compared(&[&operand("fedavg"), &operand("0.5")]);
    let test = &answer[0];
    assert_eq!((&test["measure"], &test["after"]["track"]), (&"test error".into(), &"Δ-FL θ=0.5".into()));
    let [before, after] = [0, 2].map(|track: usize| run.summary.tracks[track].test.unwrap().p90.mean);
    assert!((test["p90"]["change"].as_f64().unwrap() - (after - before)).abs() < 1e-12, "{test}");
    let interval = &test["mean"]["interval"];
    let change = test["mean"]["change"].as_f64().unwrap();
    assert!(interval[0].as_f64().unwrap() <= change && change <= interval[1].as_f64().unwrap(), "{test}");
    assert_eq!(test["devices"].as_array().unwrap().len(), 20);
    assert_eq!(answer[1]["measure"], "train loss");
    assert_eq!(answer, compared(&[&operand("fedavg"), &operand("0.5")]), "it is seeded");
}

#[test]
fn a_single_run_is_compared_with_its_baseline() {
    let path = text(&trained_run().path);
    let answer = compared(&[path]);
    let after: Vec<&str> =
        answer.as_array().unwrap().iter().step_by(2).map(|c| c["after"]["track"].as_str().unwrap()).collect();
    assert_eq!(after, ["Δ-FL θ=0.8", "Δ-FL θ=0.5", "Δ-FL θ=0.1"]);
    let told = printed(&["compare", path, "--resamples", "50"]);
    assert!(told.contains("glyphs-linear: FedAvg → Δ-FL θ=0.8\ntest error of 20 devices"), "{told}");
}

#[test]
fn a_run_compared_with_itself_does_not_change() {
    let path = text(&trained_run().path);
    let answer = compared(&[path, path]);
    assert_eq!(answer.as_array().unwrap().len(), 8);
    for comparison in answer.as_array().unwrap() {
        assert_eq!(comparison["mean"]["interval"], serde_json::json!([0.0, 0.0]));
        assert_eq!(comparison["unpaired"], 0);
    }
}

#[test]
fn devices_of_only_one_side_are_counted_and_omitted() {
    let folder = tempfile::tempdir().unwrap();
    let [few, many] = [10, 14].map(|devices| {
        let run = folder.path().join(devices.to_string());
        run_folders::made_up(&run, devices, 2);
        run
    });
    let answer = compared(&[text(&few), text(&many)]);
    assert_eq!((&answer[0]["unpaired"], answer[0]["devices"].as_array().unwrap().len()), (&2.into(), 5));
}

#[test]
fn an_unknown_track_is_rejected_with_a_list_of_tracks() {
    let output = deltafl(&["compare", &format!("{}:0.3", text(&trained_run().path))]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    assert!(error.contains("no track 0.3") && error.contains("θ=0.8"), "{error}");
}

#[test]
fn runs_with_the_same_name_are_distinguished_and_different_lengths_reported() {
    let folder = tempfile::tempdir().unwrap();
    let [short, long] = [2, 4].map(|evaluations| {
        let run = folder.path().join(format!("run-{evaluations}"));
        run_folders::made_up(&run, 10, evaluations);
        run
    });
    let told = printed(&["compare", text(&short), text(&long), "--resamples", "50"]);
    assert!(told.contains("made-up rounds=10 FedAvg → made-up rounds=30 FedAvg"), "{told}");
    assert!(told.contains("the runs are of different length: 10 rounds before, 30 after"), "{told}");
    let out = folder.path().join("report");
    printed(&["report", text(&short), text(&long), "--out", text(&out)]);
    let tables = std::fs::read_to_string(out.join("tables.md")).unwrap();
    assert!(
        tables.contains("| made-up rounds=10: FedAvg |") && tables.contains("| made-up rounds=30: FedAvg |"),
        "{tables}"
    );
    let page = std::fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.contains("<title>made-up rounds=10, made-up rounds=30"), "the menu and the title name both");
    let same = folder.path().join("same");
    run_folders::made_up(&same, 10, 2);
    let told = printed(&["compare", text(&short), text(&same), "--resamples", "50"]);
    assert!(told.contains("run-2 FedAvg → same FedAvg") && !told.contains("different length"), "{told}");
}
