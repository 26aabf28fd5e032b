//! Recomputes the tables with numpy from the Parquet files alone.

use std::fs;
use std::path::Path;
use std::process::Command;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;

use super::{printed, text, trained_run};

/// Runs `scripts/recompute` on a folder. Returns `None` and prints a message if numpy or pyarrow is
/// missing.
fn recompute(run: &Path) -> Option<(bool, String)> {
    recompute_with(&[text(run)])
}

fn recompute_with(args: &[&str]) -> Option<(bool, String)> {
    let program = std::env::var("DELTAFL_PYTHON").unwrap_or_else(|_| "python3".into());
    let python = |args: &[&str]| Command::new(&program).args(args).output();
    if !python(&["-c", "import numpy, pyarrow"]).is_ok_and(|output| output.status.success()) {
        eprintln!(
            "skipped: python3 has no numpy or no pyarrow (pip install numpy pyarrow, or set DELTAFL_PYTHON)"
        );
        return None;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/recompute");
    let output = python(&[&[text(&script)], args].concat()).unwrap();
    Some((output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned()))
}

#[test]
fn numpy_recomputes_every_number_of_the_summary_from_the_parquet_files() {
    let Some((agrees, told)) = recompute(&trained_run().path) else { return };
    assert!(agrees, "{told}");
    // Four tracks with seven values of two measures and the objective, each with mean and
    // deviation.
    assert!(told.starts_with(&format!("{} numbers", 4 * (2 * 7 + 1) * 2)), "{told}");
}

#[test]
fn a_summary_with_a_different_value_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let run = &trained_run().path;
    fs::create_dir(folder.path().join("devices")).unwrap();
    for entry in fs::read_dir(run.join("devices")).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, folder.path().join("devices").join(path.file_name().unwrap())).unwrap();
    }
    let mut summary: serde_json::Value =
        serde_json::from_slice(&fs::read(run.join("summary.json")).unwrap()).unwrap();
    summary["tracks"][2]["objective"]["mean"] = 1.0.into();
    fs::write(folder.path().join("summary.json"), summary.to_string()).unwrap();
    let Some((agrees, told)) = recompute(folder.path()) else { return };
    assert!(!agrees && told.contains("track 2/objective/mean"), "{told}");
}

#[test]
fn numpy_recomputes_every_eta_from_the_cohorts_and_the_losses() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    super::run_folders::trained(&run);
    printed(&["export", text(&run), "--format", "cohorts"]);
    let cohorts = run.join("export/cohorts/cohorts.csv");
    let rows: Vec<csv::StringRecord> =
        csv::Reader::from_path(&cohorts).unwrap().records().map(Result::unwrap).collect();
    assert_eq!(rows.len(), 2 * 20 * 10, "two seeds, twenty rounds, ten devices");
    let Some((agrees, told)) = recompute(&run) else { return };
    // Rounds 0, 4, 8, 12 and 16 begin with evaluated params, for three levels of Δ-FL and two
    // seeds.
    assert!(agrees && told.contains(&format!("{} thresholds", 5 * 3 * 2)), "{told}");

    // Another cohort has another η.
    let text_of = fs::read_to_string(&cohorts).unwrap();
    let header = text_of.lines().next().unwrap();
    let mut shifted: Vec<&str> = text_of.lines().skip(1).collect();
    shifted.rotate_left(10);
    let moved: String = text_of
        .lines()
        .skip(1)
        .zip(&shifted)
        .map(|(own, other)| {
            let (own, other): (Vec<&str>, Vec<&str>) = (own.split(',').collect(), other.split(',').collect());
            [own[0], own[1], other[2], other[3], other[4], other[5]].join(",") + "\n"
        })
        .collect();
    fs::write(&cohorts, format!("{header}\n{moved}")).unwrap();
    let (agrees, told) = recompute(&run).unwrap();
    assert!(!agrees && told.contains("in rounds.jsonl"), "{told}");
}

#[test]
fn numpy_recomputes_every_statistic_of_the_evidence_and_detects_a_changed_digit() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/measurements");
    let Some((agrees, told)) = recompute_with(&["--evidence", text(&docs)]) else { return };
    assert!(agrees, "{told}");

    let folder = tempfile::tempdir().unwrap();
    let (devices, setting) = (folder.path().join("results/devices"), "sent140-linear-exact");
    fs::create_dir_all(&devices).unwrap();
    let file = format!("{setting}.npz");
    fs::copy(docs.join("results/devices").join(&file), devices.join(&file)).unwrap();
    let packed = fs::File::open(docs.join("results/evidence.json.gz")).unwrap();
    let mut evidence: serde_json::Value = serde_json::from_reader(GzDecoder::new(packed)).unwrap();
    evidence["contrasts"] = serde_json::json!({});
    evidence["holm"] = serde_json::json!({});
    let path = folder.path().join("results/evidence.json.gz");
    let check = |evidence: &serde_json::Value| {
        let mut packed = GzEncoder::new(fs::File::create(&path).unwrap(), Compression::fast());
        serde_json::to_writer(&mut packed, evidence).unwrap();
        packed.finish().unwrap();
        recompute_with(&["--evidence", text(folder.path())]).unwrap()
    };
    let (agrees, told) = check(&evidence);
    assert!(agrees, "{told}");
    let p90 = &mut evidence["settings"][setting]["{}"]["differences"]["Δ-FL θ=0.5"]["avg_p90"]["mean"];
    *p90 = (p90.as_f64().unwrap() + 1e-6).into();
    let (agrees, told) = check(&evidence);
    assert!(!agrees && told.contains("avg_p90 mean: recomputed"), "{told}");
}
