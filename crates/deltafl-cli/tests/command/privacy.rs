//! `deltafl privacy` and `deltafl device status`.

use crate::report::browser::Browser;
use crate::support::Workdir;

const PRIVATE: &str = r#"
name = "private"
rounds = 4
cohort = 8
evaluate_every = 4

[data]
source = { kind = "glyphs", devices = 60, examples = { min = 4, median = 6, max = 9 } }

[model]
kind = "linear"

[local]
epochs = 1
batch = 10
learning_rate = 0.1

[privacy]
epsilon = 10
clip = 0.5
rounds_between = 2
remove_excess = true

[[algorithm]]
kind = "delta-fl"
theta = 0.5
quantile = "tree"
"#;

#[test]
fn the_cost_of_an_experiment_and_the_noise_of_a_budget_are_printed() {
    let workdir = Workdir::with(PRIVATE);
    let printed = workdir.printed("privacy x.toml --devices 30 --epsilon 3");
    assert!(printed.contains("A device answers in at most 2 of 4 rounds"), "{printed}");
    assert!(printed.contains("correlated over rounds"), "{printed}");
    assert!(printed.contains("10.000") && printed.contains("3.000"), "{printed}");
    let rows: serde_json::Value =
        serde_json::from_str(&workdir.printed("privacy x.toml --epsilon 3 --json")).unwrap();
    let of = |row: usize, name: &str| rows[row][name].as_f64().unwrap();
    assert!(of(1, "noise_update") > 2.0 * of(0, "noise_update"), "{rows}");
    assert!((0.5..1.0).contains(&of(0, "correlated_noise")), "{rows}");
    let refused = workdir.failure("privacy x.toml --set privacy.epsilon=-1", 2);
    assert!(refused.contains("epsilon"), "{refused}");
}

#[test]
fn a_sweep_over_epsilon_is_drawn_and_one_epsilon_is_refused() {
    let workdir = Workdir::with(PRIVATE);
    workdir.printed("sweep run x.toml --sweep privacy.epsilon=3,300 --out swept");
    workdir.printed("privacy x.toml --sweep swept --chart error.svg");
    let svg = std::fs::read_to_string(workdir.path("error.svg")).unwrap();
    assert!(svg.contains("<svg") && svg.contains("ε of a device") && svg.contains("θ=0.5"), "{svg}");
    workdir.printed("run x.toml --out one");
    let refused = workdir.run("privacy x.toml --sweep one --chart other.svg");
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && text.contains("do not differ in ε"), "{text}");
    assert!(!workdir.path("other.svg").exists());
}

#[test]
fn the_page_of_a_report_draws_epsilon() {
    let workdir = Workdir::with(PRIVATE);
    workdir.printed("run x.toml --out noisy");
    workdir.printed("report noisy");
    let Some(mut browser) = Browser::open(&workdir.path("noisy/report.html")) else { return };
    browser.settle();
    browser.value("document.getElementById('privacy').scrollIntoView()");
    browser.settle();
    let drawn = "new Promise((done) => { const look = () => document.querySelectorAll('#epsilon .scatterlayer .js-line').length === 2 \
         ? done(true) : requestAnimationFrame(look); look(); })";
    assert_eq!(browser.value(drawn), true);
    let lead = browser.text("#privacy-lead");
    let rounds = std::fs::read_to_string(workdir.path("noisy/rounds.jsonl")).unwrap();
    let last: serde_json::Value = serde_json::from_str(rounds.lines().last().unwrap()).unwrap();
    let epsilon = last["privacy"]["epsilon_server"].as_f64().unwrap();
    assert!(lead.contains(&format!("{epsilon:.1} against the server")), "{lead} {epsilon}");
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[cfg(feature = "net")]
#[test]
fn the_status_of_a_device_without_answers_is_empty_and_no_folder_is_refused() {
    let workdir = Workdir::with(PRIVATE);
    std::fs::create_dir(workdir.path("state")).unwrap();
    assert_eq!(workdir.printed("device status state").trim(), "no answers");
    let refused = workdir.run("device status nowhere");
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("not the state of a device"));
}
