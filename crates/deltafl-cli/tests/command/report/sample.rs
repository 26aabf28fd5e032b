//! Evaluation of a sample of the devices.

use std::fs;
use std::path::Path;

use deltafl_data::run_folder::Summary;

use super::{printed, text};

pub(crate) const EXPERIMENT: &str = "name = 'sampled'\nseeds = [1, 2]\nrounds = 4\ncohort = 5\nevaluate_every = 2\n\
    [data]\nsource = { kind = 'glyphs', devices = 40, seed = 3 }\nsplit = { train = 0.5, seed = 1 }\n\
    [model]\nkind = 'linear'\n[local]\nepochs = 1\nbatch = 10\nlearning_rate = 0.1\n\
    [[algorithm]]\nkind = 'fedavg'\n[[algorithm]]\nkind = 'delta-fl'\ntheta = 0.5\n";

fn trained(folder: &Path, sample: &[&str]) -> Summary {
    let file = folder.join("experiment.toml");
    fs::write(&file, EXPERIMENT).unwrap();
    let out = folder.join(if sample.is_empty() { "all" } else { "sampled" });
    let args = [&["run", text(&file), "--quiet", "--out", text(&out)][..], sample].concat();
    printed(&args);
    serde_json::from_slice(&fs::read(out.join("summary.json")).unwrap()).unwrap()
}

#[test]
fn a_sample_is_evaluated_with_its_standard_error_and_changes_no_bit_of_training() {
    let folder = tempfile::tempdir().unwrap();
    let all = trained(folder.path(), &[]);
    let sampled = trained(folder.path(), &["--set", "data.evaluate_sample=8"]);
    assert_eq!(all.tracks[1].test_sample, None);
    let (error, figures) = (sampled.tracks[1].test_sample.unwrap(), sampled.tracks[1].test.unwrap());
    assert_eq!((error.devices, error.of), (8, 20));
    assert!(error.mean > 0.0 && error.mean < 0.2, "{error:?}");
    let away = (figures.mean.mean - all.tracks[1].test.unwrap().mean.mean).abs();
    assert!(away > 0.0 && away < 4.0 * error.mean, "{away} {error:?}");
    let state = |run: &str| fs::read(folder.path().join(run).join("checkpoint/seed-1.safetensors")).unwrap();
    assert!(state("all") == state("sampled"));

    let run = folder.path().join("sampled");
    printed(&["report", text(&run)]);
    let tables = fs::read_to_string(run.join("tables.md")).unwrap();
    assert!(tables.contains("a sample of 8 of 20 devices, standard error of the mean up to"), "{tables}");
}
