//! Tests of `deltafl runs`.

use std::fs;

use serde_json::Value;

use super::{deltafl, printed, run_folders, text};

#[test]
fn runs_are_listed_with_their_results_and_damaged_ones_with_their_problem() {
    let folder = tempfile::tempdir().unwrap();
    let summary = run_folders::made_up(&folder.path().join("a/deep/run"), 20, 3);
    let broken = folder.path().join("broken");
    fs::create_dir_all(broken.join("devices")).unwrap();
    fs::write(broken.join("experiment.toml"), "name = 3\n").unwrap();

    let listed: Value = serde_json::from_str(&printed(&["runs", text(folder.path()), "--json"])).unwrap();
    assert_eq!(listed.as_array().unwrap().len(), 2);
    let run = &listed[0];
    assert_eq!((&run["name"], &run["rounds"], &run["seeds"]), (&"made-up".into(), &20.into(), &1.into()));
    let p90 = |track: usize| summary.tracks[track].test.unwrap().p90.mean;
    assert_eq!(run["baseline"]["p90"].as_f64().unwrap().to_bits(), p90(0).to_bits());
    let best = (1..5).map(p90).fold(f64::INFINITY, f64::min);
    assert_eq!(run["best"]["p90"].as_f64().unwrap().to_bits(), best.to_bits());
    assert!(listed[1]["problem"].as_str().unwrap().contains("line 1"), "{}", listed[1]);

    let table = printed(&["runs", text(folder.path())]);
    assert_eq!(table.lines().count(), 3, "{table}");
    assert!(
        table.contains(&format!("FedAvg {:.2}", 100.0 * summary.tracks[0].test.unwrap().mean.mean)),
        "{table}"
    );
}

#[test]
fn a_folder_without_runs_lists_none_and_a_missing_folder_is_named() {
    let folder = tempfile::tempdir().unwrap();
    assert!(printed(&["runs", text(folder.path())]).contains("no run"));
    let missing = deltafl(&["runs", text(&folder.path().join("nowhere"))]);
    assert!(!missing.status.success());
    assert!(String::from_utf8_lossy(&missing.stderr).contains("nowhere"));
}
