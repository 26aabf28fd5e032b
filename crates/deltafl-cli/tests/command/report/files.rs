//! The files of a report.

use std::fs;
use std::path::{Path, PathBuf};

use super::browser::Browser;
use super::{TrainedRun, deltafl, printed, run_folders, text, trained_run};

fn files_below(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(files_below(&path));
        } else {
            files.push((path.clone(), fs::read(&path).unwrap()));
        }
    }
    files.sort();
    files
}

#[test]
fn two_reports_of_one_run_are_identical_to_the_byte() {
    let run = &trained_run().path;
    let folder = tempfile::tempdir().unwrap();
    printed(&["report", text(run), "--out", text(folder.path())]);
    let second = files_below(folder.path());
    assert!(second.len() > 20, "{}", second.len());
    for (path, bytes) in second {
        let first = run.join(path.strip_prefix(folder.path()).unwrap());
        assert!(fs::read(&first).unwrap() == bytes, "{}", first.display());
    }
}

#[test]
fn the_tables_agree_with_the_summary() {
    let TrainedRun { path: run, summary, .. } = trained_run();
    let markdown = fs::read_to_string(run.join("tables.md")).unwrap();
    let latex = fs::read_to_string(run.join("tables.tex")).unwrap();
    for track in &summary.tracks {
        let error = track.test.unwrap();
        let (mean, std) = (100.0 * error.p90.mean, 100.0 * error.p90.std.unwrap());
        assert!(markdown.contains(&format!("{mean:.2} ± {std:.2}")), "{markdown}");
        assert!(latex.contains(&format!("{mean:.2}")), "{latex}");
    }
    let mut csv = csv::Reader::from_path(run.join("tables.csv")).unwrap();
    let rows: Vec<csv::StringRecord> = csv.records().map(Result::unwrap).collect();
    // Seven values and six of the dispersion of each measure, and the objective.
    assert_eq!(rows.len(), summary.tracks.len() * (2 * 13 + 1));
    let row = rows
        .iter()
        .find(|row| &row[6] == "Δ-FL θ=0.5" && &row[7] == "train_loss" && &row[8] == "mean")
        .unwrap();
    let loss = summary.tracks[2].train_loss.unwrap();
    assert_eq!(row[9].parse::<f64>().unwrap().to_bits(), loss.mean.mean.to_bits());
    for track in &summary.tracks {
        let objective = track.objective.unwrap();
        assert!(
            markdown.contains(&format!("{:.3} ± {:.3} |\n", objective.mean, objective.std.unwrap())),
            "{markdown}"
        );
    }
}

#[test]
fn a_fixed_eta_is_drawn_separately_from_a_monitored_one() {
    let folder = tempfile::tempdir().unwrap();
    let (run, out) = (folder.path().join("run"), folder.path().join("report"));
    let track = |settings| format!("[[algorithm]]\nkind = 'delta-fl'\ntheta = 0.5\n{settings}\n");
    let algorithms =
        ["eta_every = 1", "eta_every = 5", "eta_every = 5\neta_rule = 'fixed'"].map(track).concat();
    run_folders::trained_as(&run, "rules", &format!("[[algorithm]]\nkind = 'fedavg'\n{algorithms}"));
    fs::create_dir(&out).unwrap();
    printed(&["report", text(&run), "--out", text(&out)]);
    let figure = fs::read_to_string(out.join("figures/eta-every-test-error.svg")).unwrap();
    for curve in ["θ=0.5, mean", "θ=0.5, fixed, mean"] {
        assert!(figure.contains(curve), "{curve}");
    }
}

#[test]
fn runs_that_differ_in_the_rounds_between_updates_of_eta_have_a_figure_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let [one, five] = [1, 5].map(|every| {
        let run = folder.path().join(format!("every-{every}"));
        let algorithms = format!("[[algorithm]]\nkind = 'fedavg'\n[[algorithm]]\nkind = 'delta-fl'\ntheta = 0.5\neta_every = {every}\n");
        run_folders::trained_as(&run, &format!("every-{every}"), &algorithms);
        run
    });
    let out = folder.path().join("report");
    fs::create_dir(&out).unwrap();
    printed(&["report", text(&one), text(&five), "--out", text(&out)]);
    assert!(out.join("figures/eta-every-test-error.svg").exists());
    assert!(out.join("figures/eta-every-test-error.png").exists());
    if let Some(mut browser) = Browser::open(&out.join("report.html")) {
        assert_eq!(browser.value("document.getElementById('eta').hidden"), false);
        assert!(browser.text(".headline:not([hidden]) .meta").starts_with("every-1"));
        browser.value("document.getElementById('run').value = 1; document.getElementById('run').dispatchEvent(new Event('change'))");
        browser.settle();
        assert!(browser.text(".headline:not([hidden]) .meta").starts_with("every-5"));
        assert_eq!(browser.complaints, Vec::<String>::new());
    }
    let refused = deltafl(&["report", text(&one), text(&five)]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--out"));
}

#[test]
fn a_folder_without_a_run_is_named_in_the_error() {
    let folder = tempfile::tempdir().unwrap();
    let output = deltafl(&["report", text(folder.path())]);
    assert!(!output.status.success());
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("holds no run"), "{error}");
}
