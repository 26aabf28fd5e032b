//! `deltafl run --compute`: where devices compute, as a machine without that GPU answers.

use std::fs;

use crate::support::{Workdir, checkpoints};

const EXPERIMENT: &str = r#"
name = "tiny"
rounds = 2
cohort = 4

[data]
source = { kind = "glyphs", devices = 12, seed = 5 }

[model]
kind = "perceptron"
hidden = 5

[local]
epochs = 1
batch = 10
learning_rate = 0.1

[[algorithm]]
kind = "fedavg"
"#;

#[test]
fn a_gpu_that_is_not_there_is_refused_before_the_run_folder_is_made() {
    let workdir = Workdir::with(EXPERIMENT);
    let message = workdir.failure("run x.toml --out r --compute cuda:99", 2);
    assert!(message.contains("--compute cuda:99 cannot be used"), "{message}");
    assert!(!workdir.path("r").exists());
}

#[test]
fn a_place_that_is_none_is_refused_with_the_places_there_are() {
    let message = Workdir::with(EXPERIMENT).failure("run x.toml --compute abacus", 2);
    assert!(message.contains("auto, cpu, cuda or cuda:N"), "{message}");
}

#[test]
fn a_run_records_where_it_computes_says_it_and_goes_on_there() {
    let workdir = Workdir::with(EXPERIMENT);
    let output = workdir.run("run x.toml --out r --compute cpu");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && told.contains("devices compute on the CPU"), "{told}");
    let file = workdir.path("r/experiment.toml");
    let resolved = fs::read_to_string(&file).unwrap();
    assert!(resolved.contains("compute = \"cpu\""), "{resolved}");
    // Begun on a GPU that no machine has: here it cannot be had, elsewhere it is another one.
    fs::write(&file, resolved.replace("compute = \"cpu\"", "compute = \"Abacus 9000\"")).unwrap();
    let message = workdir.failure("run x.toml --out r --resume --set rounds=3", 2);
    assert!(message.contains("cannot be used") || message.contains("has changed"), "{message}");
    // Asked for by name, another place is a change of the experiment.
    let message = workdir.failure("run x.toml --out r --resume --set rounds=3 --compute cpu", 2);
    assert!(message.contains("resolved.compute") && message.contains("Abacus 9000"), "{message}");
}

#[test]
fn a_run_of_before_places_were_recorded_goes_on_on_the_cpu() {
    let workdir = Workdir::with(EXPERIMENT);
    assert!(workdir.run("run x.toml --out r --quiet --compute cpu").status.success());
    let file = workdir.path("r/experiment.toml");
    let resolved = fs::read_to_string(&file).unwrap();
    fs::write(&file, resolved.replace("compute = \"cpu\"\n", "")).unwrap();
    let output = workdir.run("run x.toml --out r --resume --quiet --set rounds=3");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_perceptron_trains_on_the_cpu() {
    let workdir = Workdir::with(EXPERIMENT);
    let output = workdir.run("run x.toml --out r --quiet --compute cpu");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(checkpoints(&workdir.path("r")).len(), 1);
}
