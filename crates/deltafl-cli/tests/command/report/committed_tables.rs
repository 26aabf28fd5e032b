//! `scripts/tables` and `scripts/evidence-figures`: the tables and figures of
//! docs/src/measurements/reproducing.md match the committed results.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::{TrainedRun, text, trained_run};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Runs `scripts/tables`.
fn tables(args: &[&str]) -> Option<Output> {
    script("tables", args)
}

/// Runs a script. Returns `None` and prints a message if there is no Python.
fn script(name: &str, args: &[&str]) -> Option<Output> {
    let python = std::env::var("DELTAFL_PYTHON").unwrap_or_else(|_| "python3".into());
    let script = root().join("scripts").join(name);
    let run =
        Command::new(&python).arg(&script).args(args).env("DELTAFL", env!("CARGO_BIN_EXE_deltafl")).output();
    if run.is_err() {
        eprintln!("skipped: there is no {python}");
    }
    run.ok()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn the_tables_on_reproducing_match_the_committed_results() {
    let Some(output) = tables(&["check"]) else { return };
    assert!(output.status.success(), "{}", said(&output));
}

#[test]
fn the_figures_of_the_evidence_match_the_committed_results() {
    let docs = root().join("docs/src/measurements");
    let copy = tempfile::tempdir().unwrap();
    fs::create_dir(copy.path().join("results")).unwrap();
    for entry in fs::read_dir(docs.join("results")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            fs::copy(&path, copy.path().join("results").join(path.file_name().unwrap())).unwrap();
        }
    }
    let Some(output) = script("evidence-figures", &["--docs", text(copy.path())]) else { return };
    assert!(output.status.success(), "{}", said(&output));
    let drawn: Vec<PathBuf> =
        fs::read_dir(copy.path().join("gallery")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(drawn.len() >= 9, "{drawn:?}");
    for path in drawn {
        let name = path.file_name().unwrap();
        let committed = fs::read_to_string(docs.join("gallery").join(name)).unwrap();
        assert!(fs::read_to_string(&path).unwrap() == committed, "{name:?}: run scripts/evidence-figures");
    }
}

#[test]
fn a_table_is_written_from_results_and_a_changed_digit_is_detected() {
    let TrainedRun { path, summary, .. } = trained_run();
    let docs = tempfile::tempdir().unwrap();
    let page = docs.path().join("reproducing.md");
    let block = "<!-- tables: results/glyphs-linear.json averaged=8 curve=4,20 -->\n<!-- end of tables -->\n";
    fs::write(&page, format!("# Reproducing\n\n{block}after\n")).unwrap();
    let docs = text(docs.path());
    let Some(made) = tables(&["results", text(path), "--docs", docs]) else { return };
    assert!(made.status.success(), "{}", said(&made));
    assert!(!tables(&["check", "--docs", docs]).unwrap().status.success(), "the block is still empty");
    assert!(tables(&["update", "--docs", docs]).unwrap().status.success());
    assert!(tables(&["check", "--docs", docs]).unwrap().status.success());

    let written = fs::read_to_string(&page).unwrap();
    let p90 = summary.tracks[2].test.unwrap().p90;
    let cell = format!("{:.2} ± {:.2}", 100.0 * p90.mean, 100.0 * p90.std.unwrap());
    assert!(written.contains("| FedAvg | θ = 0.8 | θ = 0.5 | θ = 0.1 |"), "{written}");
    assert!(written.contains(&cell) && written.ends_with("<!-- end of tables -->\nafter\n"), "{written}");
    assert!(written.contains("Averaged over the 4 evaluations from round 8 to 20"), "{written}");

    fs::write(&page, written.replacen(&cell, "12.34 ± 0.01", 1)).unwrap();
    let refused = tables(&["check", "--docs", docs]).unwrap();
    assert!(!refused.status.success() && said(&refused).contains("12.34 ± 0.01"), "{}", said(&refused));
}
