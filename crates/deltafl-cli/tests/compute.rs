//! `deltafl run --compute`: where devices compute, as a machine without that GPU answers.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod support;

use support::{Desk, checkpoints};

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
    let desk = Desk::with(EXPERIMENT);
    let message = desk.failure("run x.toml --out r --compute cuda:99", 2);
    assert!(message.contains("--compute cuda:99 cannot be used"), "{message}");
    assert!(!desk.path("r").exists());
}

#[test]
fn a_place_that_is_none_is_refused_with_the_places_there_are() {
    let message = Desk::with(EXPERIMENT).failure("run x.toml --compute abacus", 2);
    assert!(message.contains("auto, cpu, cuda or cuda:N"), "{message}");
}

#[test]
fn a_perceptron_trains_on_the_cpu() {
    let desk = Desk::with(EXPERIMENT);
    let output = desk.run("run x.toml --out r --quiet --compute cpu");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(checkpoints(&desk.path("r")).len(), 1);
}
