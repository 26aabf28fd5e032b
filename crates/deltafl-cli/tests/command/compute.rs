//! `deltafl run --compute`: the choice of the backend on a machine without the requested GPU.

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
fn a_missing_gpu_is_rejected_before_the_run_folder_is_created() {
    let workdir = Workdir::with(EXPERIMENT);
    let message = workdir.failure("run x.toml --out r --compute cuda:99", 2);
    assert!(message.contains("--compute cuda:99 cannot be used"), "{message}");
    assert!(!workdir.path("r").exists());
}

#[test]
fn an_unknown_backend_is_rejected_with_a_list_of_backends() {
    let message = Workdir::with(EXPERIMENT).failure("run x.toml --compute abacus", 2);
    assert!(message.contains("auto, cpu, cuda or cuda:N"), "{message}");
}

#[test]
fn a_run_records_and_reports_its_backend_and_resumes_on_it() {
    let workdir = Workdir::with(EXPERIMENT);
    let output = workdir.run("run x.toml --out r --compute cpu");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && told.contains("devices compute on the CPU"), "{told}");
    let file = workdir.path("r/experiment.toml");
    let resolved = fs::read_to_string(&file).unwrap();
    assert!(resolved.contains("compute = \"cpu\""), "{resolved}");
    // The GPU of the run does not exist: the run fails here, or reports a change on a machine with
    // a GPU.
    fs::write(&file, resolved.replace("compute = \"cpu\"", "compute = \"Abacus 9000\"")).unwrap();
    let message = workdir.failure("run x.toml --out r --resume --set rounds=3", 2);
    assert!(message.contains("cannot be used") || message.contains("has changed"), "{message}");
    // Another backend by name is a change of the experiment.
    let message = workdir.failure("run x.toml --out r --resume --set rounds=3 --compute cpu", 2);
    assert!(message.contains("resolved.compute") && message.contains("Abacus 9000"), "{message}");
}

#[test]
fn a_run_without_a_recorded_backend_resumes_on_the_cpu() {
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
