//! Reports of metrics without percentages, of runs without evaluations, and of rounds that changed
//! nothing.

use std::fmt::Write as _;
use std::fs;
use std::num::NonZeroU64;

use deltafl_data::run_folder::{self, RunFolder};
use serde_json::json;

use super::browser::Browser;
use super::run_folders;
use crate::support::Workdir;

const REGRESSION: &str = r#"
name = "houses"
seeds = 1
rounds = 6
cohort = 8
evaluate_every = 2
[data]
source = "houses"
normalise = "standard"
split = { train = 0.5, seed = 1 }
[model]
kind = "linear"
intercept = true
[local]
epochs = 2
batch = 5
learning_rate = 0.1
[[algorithm]]
kind = "fedavg"
[[algorithm]]
kind = "delta-fl"
theta = 0.5
"#;

/// Creates towns with house prices: one with equal prices, one with a price that is 1000 times too
/// high, and one with markup in its name.
fn houses() -> Workdir {
    let workdir = Workdir::with(REGRESSION);
    let mut csv = "\u{feff}town,area,kind,price\r\n".to_owned();
    for town in 0..24 {
        let name = if town == 3 { "</script>".to_owned() } else { format!("town {town}") };
        for house in 0..9 {
            let area = 40 + (house * 37 + town * 11) % 120;
            let price = match town {
                5 => 250_000,
                7 if house == 0 => 900_000_000,
                _ => 90_000 + (1500 + 100 * town) * area + 1000 * ((house * 7 + town) % 11),
            };
            let kind = ["flat", "house", "villa"][(house % 3) as usize];
            let _ = write!(csv, "\"{name}\",{area},{kind},{price}\r\n");
        }
    }
    fs::write(workdir.path("houses.csv"), csv).unwrap();
    workdir.printed("data import csv houses.csv --device town --label price --regression --out houses");
    workdir
}

#[test]
fn a_regression_is_reported_with_its_metrics_and_directions() {
    let workdir = houses();
    workdir.printed("run x.toml --quiet --out r");
    workdir.printed("report r");
    let tables = fs::read_to_string(workdir.path("r/tables.md")).unwrap();
    assert!(tables.contains("**RMSE over the test devices, every device alike"), "{tables}");
    assert!(tables.contains("**Loss (squared loss) over the train devices"), "{tables}");
    // The tail of a metric that is better high is its low end.
    assert!(
        tables.contains("**R² over the test devices") && tables.contains("| 20th | 10th | 5th |"),
        "{tables}"
    );
    assert!(!tables.contains('%') && !tables.contains('±'), "no share, and one seed: {tables}");
    for figure in ["test-rmse-p90", "test-r-squared-p10", "test-r-squared-histogram", "train-loss-mean"] {
        assert!(workdir.path(&format!("r/figures/{figure}.svg")).exists(), "{figure}");
    }
    let csv = fs::read_to_string(workdir.path("r/tables.csv")).unwrap();
    assert!(csv.contains(",test_r_squared,p10,") && csv.contains(",test_mae,p90,"), "{csv}");

    let Some(mut browser) = Browser::open(&workdir.path("r/report.html")) else { return };
    let measures = browser.value("[...document.querySelectorAll('#measure input')].map((i) => i.value)");
    assert_eq!(measures, json!(["test_rmse", "test_mae", "test_r_squared", "train_loss"]));
    assert!(browser.text("h1").contains("RMSE"), "{}", browser.text("h1"));
    // For R², devices with a gain have a higher value. At the baseline there are no gains.
    browser.value("document.getElementById('theta').value = 1; document.getElementById('theta').dispatchEvent(new Event('input'))");
    browser.value("document.querySelector('#measure input[value=test_r_squared]').click()");
    browser.settle();
    assert!(browser.text("#percentiles").contains("10th"), "{}", browser.text("#percentiles"));
    let gained = "document.getElementById('scatter').data.filter((t) => t.name.startsWith('gained')).every((t) => t.y.every((d) => d > 0))";
    assert_eq!(browser.value(gained), true);
    let told = "(() => { const [a, b] = ['baseline-5', 'track-5'].map((f) => Number(document.querySelector(`[data-figure=${f}]`).textContent)); \
         const cell = document.querySelector('[data-figure=track-5]').nextSibling; return [b > a, cell.className]; })()";
    let told = browser.value(told);
    assert_eq!(told[1], if told[0] == true { "gain" } else { "loss" }, "higher is better");
    // A long name of a device takes no room from the chart beside it.
    let long = "(() => { const chart = document.getElementById('scatter'), before = chart.clientWidth; \
         document.querySelector('#found .id').textContent = 'x'.repeat(300); return chart.clientWidth > 0.9 * before; })()";
    assert_eq!(browser.value(long), true);
    super::page::keep("regression", &browser.picture());
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn comparisons_and_searches_use_the_metric_of_the_task() {
    let workdir = houses();
    let tuned = workdir.printed("tune x.toml --rates 0.05,0.1 --l2 1e-6,1e-3 -q --out t");
    assert!(tuned.contains("90th percentile of the RMSE over held-out train devices"), "{tuned}");
    assert!(!tuned.contains('%'), "{tuned}");
    workdir.printed("run x.toml --quiet --out r");
    let told = workdir.printed("compare r --resamples 50");
    assert!(told.contains("test RMSE of") && told.contains("train loss of"), "{told}");
    // Different losses are not comparable, and other examples are reported.
    workdir.printed("run x.toml --quiet --set model.huber=1000 --out huber");
    let told = workdir.printed("compare r huber --resamples 50");
    assert!(told.contains("test RMSE of") && !told.contains("train loss of"), "{told}");
    let classes = workdir.path("classes");
    run_folders::made_up(&classes, 10, 2);
    let error = workdir.refusal("compare r classes");
    assert!(error.contains("different metrics: RMSE and error"), "{error}");
    for train in ["0.5", "0.7"] {
        let split = format!("--set data.split={{within={{train={train}}}}}");
        workdir.printed(&format!("run x.toml --quiet {split} --out {train}"));
    }
    let told = workdir.printed("compare 0.5 0.7 --resamples 50");
    assert!(told.contains("24 devices have other numbers of examples in the two"), "{told}");
}

#[test]
fn a_gini_coefficient_has_its_own_digits_beside_large_and_small_targets() {
    let workdir = houses();
    workdir.printed("run x.toml --quiet --out r");
    workdir.printed("report r --no-figures");
    let is_gini =
        |cell: &str| cell.len() == 5 && cell.parse().is_ok_and(|gini: f64| 0.0 < gini && gini < 1.0);
    let tables = fs::read_to_string(workdir.path("r/tables.md")).unwrap();
    let dispersion = tables.split("Dispersion of the test RMSE").nth(1).unwrap();
    let row = dispersion.lines().find(|line| line.starts_with("| FedAvg |")).unwrap();
    assert!(is_gini(row.split('|').nth(4).unwrap().trim().trim_matches('*')), "{row}");
    let told = workdir.printed("compare r --resamples 50");
    let gini = told.lines().find(|line| line.starts_with("  Gini")).unwrap();
    assert!(gini.split_whitespace().skip(1).take(2).all(is_gini), "{told}");

    let small = fs::read_to_string(workdir.path("houses.csv")).unwrap().replace("900000000", "90000");
    let scaled = |line: &str| match line.rsplit_once(',').map(|(row, price)| (row, price.parse::<f64>())) {
        Some((row, Ok(price))) => format!("{row},{:e}\n", 1e-8 * price),
        _ => format!("{line}\n"),
    };
    fs::write(workdir.path("small.csv"), small.lines().map(scaled).collect::<String>()).unwrap();
    workdir.printed("data import csv small.csv --device town --label price --regression --out small");
    let splits = "--set data.source=small --set rounds=2 --sweep data.split.seed=1,2";
    let told = workdir.printed(&format!("sweep run x.toml {splits} --out s -q"));
    let figures = told.lines().filter(|line| line.contains("FedAvg") && !line.contains("Gini"));
    let zeros = |cell: &&str| cell.starts_with("0.0") && cell.chars().all(|c| c == '0' || c == '.');
    for line in figures {
        assert_eq!(line.split_whitespace().find(zeros), None, "{told}");
    }
}

#[test]
fn the_exported_table_of_evaluations_names_the_metric_of_the_task() {
    let workdir = houses();
    workdir.printed("run x.toml --quiet --out r");
    workdir.printed("export r --format csv --out e");
    let rows = fs::read_to_string(workdir.path("e/evaluations.csv")).unwrap();
    assert!(
        rows.contains(",test,rmse,") && rows.contains(",train,loss,") && !rows.contains("error"),
        "{rows}"
    );
}

#[test]
fn one_seed_has_no_standard_deviation() {
    let workdir = Workdir::with(&super::sample::EXPERIMENT.replace("[1, 2]", "[1]"));
    let summary = workdir.printed("run x.toml --json --out r");
    let summary: serde_json::Value = serde_json::from_str(&summary).unwrap();
    for track in summary["tracks"].as_array().unwrap() {
        assert!(track["test"]["p90"]["mean"].is_number() && track["test"]["p90"]["std"].is_null(), "{track}");
        assert!(
            track["train_loss"]["mean"]["std"].is_null() && track["objective"]["std"].is_null(),
            "{track}"
        );
    }
    workdir.printed("report r --no-figures");
    let mut csv = csv::Reader::from_path(workdir.path("r/tables.csv")).unwrap();
    let at = csv.headers().unwrap().iter().position(|name| name == "std").unwrap();
    assert!(csv.records().all(|row| row.unwrap()[at].is_empty()));
    assert!(!fs::read_to_string(workdir.path("r/tables.md")).unwrap().contains('±'));
}

#[test]
fn the_error_for_a_run_without_evaluations_explains_the_reason_and_the_fix() {
    let workdir = Workdir::with(super::sample::EXPERIMENT);
    // The folder of a server contains rounds and no evaluation.
    workdir.printed("run x.toml --quiet --out served");
    fs::remove_dir_all(workdir.path("served/devices")).unwrap();
    fs::create_dir(workdir.path("served/devices")).unwrap();
    fs::remove_file(workdir.path("served/summary.json")).unwrap();
    for words in ["report served", "compare served"] {
        let said = workdir.refusal(words);
        assert!(said.contains("served holds no evaluation, though 4 rounds were trained"), "{said}");
        assert!(said.contains("do not report their losses and errors"), "{said}");
        assert!(said.contains("deltafl evaluate served --data DIR"), "{said}");
    }
    let listed = workdir.printed("runs .");
    let row = listed.lines().find(|line| line.starts_with("./served")).unwrap();
    assert!(row.contains("  4  ") && row.contains("no device was evaluated"), "{listed}");
    workdir.printed("data synth glyphs --devices 40 --seed 3 --out others");
    assert!(workdir.printed("evaluate served --data others").contains("Test error in %"));

    let experiment = deltafl_data::experiment::Experiment::parse(super::sample::EXPERIMENT).unwrap();
    RunFolder::create(&workdir.path("fresh"), &experiment).unwrap();
    assert!(workdir.refusal("report fresh").contains("fresh holds no evaluation yet"));
}

#[test]
fn the_page_shows_how_many_rounds_changed_nothing_and_why() {
    let workdir = Workdir::with(super::sample::EXPERIMENT);
    workdir.printed("run x.toml --quiet --set local.learning_rate=1e38 --set seeds=1 --out hot");
    workdir.printed("report hot --no-figures");
    let page = fs::read_to_string(workdir.path("hot/report.html")).unwrap();
    let caveat = "of 4 rounds moved nothing: no update was finite in";
    assert!(page.contains(caveat) && page.contains("local.learning_rate = 1e38 is probably too large"));
    let tables = fs::read_to_string(workdir.path("hot/tables.md")).unwrap();
    let listed =
        tables.lines().find(|line| line.starts_with("- FedAvg: ")).unwrap_or_else(|| panic!("{tables}"));
    assert!(listed.contains(caveat), "{listed}");

    // A device serves one track: a track that no device of a small cohort draws has no empty tail.
    let apart = "--set algorithm.1.quantile=histogram --set tracks=apart --set cohort=2 --set rounds=12 --set seeds=1";
    let told = workdir.printed(&format!("run x.toml --quiet {apart} --out apart"));
    assert!(told.contains("rounds moved nothing: no device trained the track in"), "{told}");
    assert!(!told.contains("the tail was empty"), "{told}");

    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("fine");
    run_folders::made_up(&run, 10, 2);
    super::printed(&["report", super::text(&run), "--no-figures"]);
    assert!(!run.join("figures").exists());
    let page = fs::read_to_string(run.join("report.html")).unwrap();
    assert!(!page.contains("moved nothing"), "a run without idle rounds has no note");
}

#[test]
fn equal_levels_are_reported_as_equal() {
    let workdir = Workdir::with(super::sample::EXPERIMENT);
    workdir.printed("run x.toml --quiet --set seeds=1 --set algorithm.1.theta=1.0 --out same");
    workdir.printed("report same --no-figures");
    let page = fs::read_to_string(workdir.path("same/report.html")).unwrap();
    assert!(page.contains("Δ-FL θ=1 and FedAvg have the same 90th percentile of the"), "{page}");
    assert!(!page.contains("is closest"));
}

#[test]
fn a_federation_without_test_devices_is_reported_by_its_train_devices() {
    let workdir = Workdir::with(super::sample::EXPERIMENT);
    let table = workdir.printed("run x.toml --quiet --set data.split.train=1.0 --out r");
    assert!(table.contains("no test devices"), "{table}");
    workdir.printed("report r --no-figures");
    let tables = fs::read_to_string(workdir.path("r/tables.md")).unwrap();
    assert!(tables.contains("**Error in % over the train devices, every device alike"), "{tables}");
    let page = fs::read_to_string(workdir.path("r/report.html")).unwrap();
    assert!(page.contains("The federation has no test devices: these are the devices that trained."));
}

/// Creates clinics whose patients are ill or well depending on their pulse. A few have a third
/// outcome with markup in its name.
fn clinics() -> Workdir {
    let experiment = REGRESSION.replace("houses", "clinics");
    let workdir = Workdir::with(&experiment);
    let mut csv = "clinic,sex,pulse,outcome\n".to_owned();
    for clinic in 0..20 {
        for patient in 0..12 {
            let outcome = ["ill", "well", "well", "un<b>sure"][(patient + clinic) % 4];
            let pulse = match outcome {
                "ill" => 95,
                "well" => 65,
                _ => 80,
            } + (patient * 7 + clinic) % 9;
            let _ = writeln!(csv, "c{clinic},{},{pulse},{outcome}", ["M", "F"][patient % 2]);
        }
    }
    fs::write(workdir.path("clinics.csv"), csv).unwrap();
    workdir.printed("data import csv clinics.csv --device clinic --label outcome --out clinics");
    workdir
}

#[test]
fn class_names_appear_in_tables_figures_and_the_page() {
    let workdir = clinics();
    let table = workdir.printed("run x.toml --quiet --out r");
    let rows: Vec<&str> = table.split("By class").nth(1).unwrap().lines().map(str::trim_start).collect();
    for (class, examples) in [("ill", "30"), ("un<b>sure", "30"), ("well", "60")] {
        let row =
            rows.iter().find(|row| row.starts_with(class)).unwrap_or_else(|| panic!("{class}: {table}"));
        assert_eq!(row.split_whitespace().nth(1), Some(examples), "{row}");
    }
    // Half of the clinics are test devices. The mean of the class errors weighted by examples is
    // the error over all of them.
    let classes: serde_json::Value =
        serde_json::from_slice(&fs::read(workdir.path("r/classes.json")).unwrap()).unwrap();
    let classes_of = |key: &str| {
        classes["classes"].as_array().unwrap().iter().map(|class| class[key].clone()).collect::<Vec<_>>()
    };
    let weighted: f64 = classes_of("examples")
        .iter()
        .zip(classes_of("errors"))
        .map(|(examples, errors)| examples.as_f64().unwrap() * errors[0]["mean"].as_f64().unwrap())
        .sum();
    let summary: serde_json::Value =
        serde_json::from_slice(&fs::read(workdir.path("r/summary.json")).unwrap()).unwrap();
    let mean = summary["tracks"][0]["test"]["mean"]["mean"].as_f64().unwrap();
    assert!((weighted / 120.0 - mean).abs() < 1e-9, "every clinic has as many patients: {weighted} {mean}");

    workdir.printed("report r");
    let tables = fs::read_to_string(workdir.path("r/tables.md")).unwrap();
    assert!(tables.contains("| ill (30) |") && tables.contains("| well (60) |"), "{tables}");
    assert!(fs::read_to_string(workdir.path("r/figures/classes.svg")).unwrap().contains("well"));
    assert!(workdir.printed("evaluate r --data clinics").contains("By class"));
    let Some(mut browser) = Browser::open(&workdir.path("r/report.html")) else { return };
    assert_eq!(browser.value("document.getElementById('classes').hidden"), false);
    let ticks = "[...document.querySelectorAll('#by-class .xtick')].map((tick) => tick.textContent).filter((text) => text)";
    assert_eq!(browser.value(ticks), json!(["ill", "un<b>sure", "well"]));
    assert!(browser.text("#tables").contains("un<b>sure (30)"));
    super::page::keep("classes", &browser.picture());
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn a_run_with_personal_models_has_no_results_by_class() {
    let workdir = clinics();
    let personal = "--set algorithm.0.kind=ditto --set data.split={within={train=0.8}}";
    let table = workdir.printed(&format!("run x.toml --quiet --out r {personal}"));
    assert!(!table.contains("By class") && !workdir.path("r/classes.json").exists(), "{table}");
    let shared = "--set algorithm.0.evaluate=shared";
    let table = workdir.printed(&format!("run x.toml --quiet --out shared {personal} {shared}"));
    assert!(table.contains("By class") && workdir.path("shared/classes.json").exists(), "{table}");
}

#[test]
fn results_by_class_do_not_outlive_the_last_round_of_which_they_are() {
    let workdir = clinics();
    workdir.printed("run x.toml --quiet --out r");
    let run = workdir.path("r");
    let experiment = run_folder::read_experiment(&run).unwrap();
    assert!(run.join("classes.json").exists());
    let longer = experiment.with_rounds(NonZeroU64::new(60).unwrap());
    drop(RunFolder::resume(&run, &longer).unwrap());
    assert!(!run.join("classes.json").exists());
}
