//! `deltafl sweep`: lists of values, shards, kills and merges.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use super::workdir::{self, Checkpoints, checkpoints, runs};

const AXES: &str = "--sweep local.learning_rate=0.1,0.3 --sweep local.batch=5,10,20";

/// Returns every point of a sweep with its checkpoints.
fn bits(sweep: &Path) -> BTreeMap<String, Checkpoints> {
    runs(sweep).into_iter().map(|run| (run.clone(), checkpoints(&sweep.join(run)))).collect()
}

#[test]
fn every_combination_is_a_run_named_after_its_experiment() {
    let workdir = workdir::workdir();
    let printed = workdir.printed(&format!("sweep run x.toml {AXES} --out s -q"));
    assert!(printed.contains("6 of 6 points finished"), "{printed}");
    assert_eq!(runs(&workdir.path("s")).len(), 6);
    // A point equals the run of the corresponding `deltafl run`.
    workdir.printed("run x.toml --set local.learning_rate=0.3 --set local.batch=5 --out alone -q");
    let alone = checkpoints(&workdir.path("alone"));
    let same = bits(&workdir.path("s")).into_iter().filter(|(_, checkpoints)| *checkpoints == alone).count();
    assert_eq!(same, 1);

    let csv = workdir.printed("sweep list s --csv");
    assert_eq!(csv.lines().count(), 1 + 6 * 3, "a row per point and track: {csv}");
    assert!(csv.starts_with("local.learning_rate,local.batch,folder,finished,algorithm,theta"), "{csv}");
    let json: serde_json::Value = serde_json::from_str(&workdir.printed("sweep list s --json")).unwrap();
    assert_eq!(json[5]["settings"], serde_json::json!({ "local.learning_rate": 0.3, "local.batch": 20 }));
    assert!(json[5]["tracks"][2]["test"]["p90"]["mean"].is_f64());
}

#[test]
fn lists_in_the_file_a_table_and_arguments_define_the_same_sweep() {
    let workdir = workdir::workdir();
    let text = fs::read_to_string(workdir.path("x.toml")).unwrap();
    fs::write(workdir.path("lists.toml"), text.replace("learning_rate = 0.1", "learning_rate = [0.1, 0.3]"))
        .unwrap();
    fs::write(workdir.path("table.toml"), format!("{text}\n[sweep]\n\"local.learning_rate\" = [0.1, 0.3]\n"))
        .unwrap();
    for (file, argument) in [("lists", ""), ("table", ""), ("x", "--sweep local.learning_rate=0.1,0.3")] {
        workdir.printed(&format!("sweep run {file}.toml {argument} --set rounds=2 --out {file} -q"));
    }
    assert_eq!(runs(&workdir.path("lists")).len(), 2);
    assert_eq!(bits(&workdir.path("lists")), bits(&workdir.path("table")));
    assert_eq!(bits(&workdir.path("lists")), bits(&workdir.path("x")));
    // A run accepts no lists for single values, and the message names the sweep command.
    for file in ["lists", "table"] {
        let said = workdir.refusal(&format!("run {file}.toml"));
        assert!(said.contains("deltafl sweep run"), "{said}");
    }
}

#[test]
fn the_seeds_of_the_split_are_several_splits_of_the_devices() {
    let workdir = workdir::workdir();
    let splits = "--set data.split.seeds=[1,2,3] --set rounds=2 --set seeds=[1,2]";
    let printed = workdir.printed(&format!("sweep run x.toml {splits} --out s -q"));
    assert!(printed.contains("3 of 3 points finished"), "{printed}");
    assert!(printed.contains("6 runs on splits 1, 2, 3 of the devices"), "{printed}");
    assert!(printed.contains("θ=0.5 − FedAvg in the 90th percentile of the error %: "), "{printed}");
    let json: serde_json::Value =
        serde_json::from_str(&workdir.printed("sweep list s --splits --json")).unwrap();
    let difference = &json[0]["tracks"][1]["differences"]["p90"];
    assert_eq!(difference["of_splits"].as_array().unwrap().len(), 3, "{json}");
    assert!(workdir.refusal("run x.toml --set data.split.seeds=[1,2]").contains("deltafl sweep run"));
}

#[test]
fn keys_that_are_lists_are_swept_by_lists_of_lists() {
    let workdir = workdir::workdir();
    let swept = "--sweep seeds=1,[1,2] --sweep algorithm.1.theta=[0.5],[0.5,0.1]";
    let csv_of = |out: &str| workdir.printed(&format!("sweep list {out} --csv"));
    workdir.printed(&format!("sweep run x.toml {swept} --set rounds=1 --out s -q"));
    // FedAvg with one level and with two, for one seed and for two.
    assert_eq!(csv_of("s").lines().count(), 1 + 2 + 3 + 2 + 3);
}

#[test]
fn swept_seeds_are_averaged_and_one_seed_has_no_deviation() {
    let workdir = workdir::workdir();
    workdir.printed("sweep run x.toml --sweep local.batch=20,5 --sweep seeds=1,2 --set rounds=2 --out s -q");
    let csv = workdir.printed("sweep list s --csv");
    let mut columns: Vec<&str> = csv.lines().next().unwrap().split(',').collect();
    let count = columns.len();
    columns.sort_unstable();
    columns.dedup();
    assert_eq!(columns.len(), count, "column names are unique: {csv}");
    let batches: Vec<&str> =
        csv.lines().skip(1).step_by(6).map(|row| row.split(',').next().unwrap()).collect();
    assert_eq!(batches, ["20", "5"], "in the order of the axes");

    let json = |words: &str| -> serde_json::Value { serde_json::from_str(&workdir.printed(words)).unwrap() };
    let points = json("sweep list s --json");
    assert!(points[0]["tracks"][0]["test"]["mean"]["std"].is_null(), "{points}");
    let averages = json("sweep list s --json --average");
    assert_eq!(averages.as_array().unwrap().len(), 2);
    assert_eq!(averages[0]["settings"], serde_json::json!({ "local.batch": 20 }));
    let mean = |point: &serde_json::Value| point["tracks"][1]["test"]["p90"]["mean"].as_f64().unwrap();
    let expected = (mean(&points[0]) + mean(&points[1])) / 2.0;
    assert!((mean(&averages[0]) - expected).abs() < 1e-12, "{averages}");
    assert_eq!(averages[0]["tracks"][1]["seeds"], 2);
    // The average over two points equals the result of one point with both seeds.
    workdir.printed("run x.toml --set local.batch=20 --set rounds=2 --out both -q");
    let both: serde_json::Value =
        serde_json::from_slice(&fs::read(workdir.path("both/summary.json")).unwrap()).unwrap();
    assert_eq!(averages[0]["tracks"][1]["test"], both["tracks"][1]["test"]);
    assert!(workdir.printed("sweep list s").contains("Averages over seeds"));
}

#[test]
fn a_folder_of_another_sweep_or_with_other_files_is_rejected() {
    let workdir = workdir::workdir();
    workdir.printed("sweep run x.toml --sweep local.batch=5,10 --set rounds=1 --out s -q");
    let before = fs::read(workdir.path("s/sweep.toml")).unwrap();
    let said = workdir.refusal("sweep run x.toml --sweep local.batch=5,20 --set rounds=1 --out s");
    assert!(said.contains("holds another sweep: 1 of its 2 points"), "{said}");
    assert_eq!(fs::read(workdir.path("s/sweep.toml")).unwrap(), before);
    fs::create_dir(workdir.path("mine")).unwrap();
    fs::write(workdir.path("mine/letter.txt"), "dear").unwrap();
    assert!(workdir.refusal("sweep run x.toml --sweep cohort=5,6 --out mine").contains("not by a sweep"));
    assert!(!workdir.path("mine/sweep.toml").exists());

    // An unrelated run in the folder of a sweep is not merged with its points.
    workdir.printed("sweep run x.toml --sweep local.batch=20 --set rounds=1 --out other -q");
    let stray = &runs(&workdir.path("other"))[0];
    fs::rename(workdir.path("other").join(stray), workdir.path("s").join(stray)).unwrap();
    let printed = workdir.printed("sweep merge s --into all");
    assert!(printed.contains("2 points taken") && printed.contains("1 runs left out"), "{printed}");
    assert_eq!(runs(&workdir.path("all")).len(), 2);
}

#[test]
fn the_report_of_a_sweep_shows_its_points_in_order() {
    let workdir = workdir::workdir();
    workdir.printed("sweep run x.toml --sweep local.batch=20,5,10 --set rounds=1 --out s -q");
    workdir.printed("report s");
    let markdown = fs::read_to_string(workdir.path("s/tables.md")).unwrap();
    let order: Vec<&str> = markdown
        .lines()
        .filter_map(|line| line.split_once("local.batch=")?.1.split_once(": FedAvg"))
        .map(|(batch, _)| batch)
        .collect();
    assert_eq!(order[..3], ["20", "5", "10"], "{markdown}");
    let figures = fs::read_dir(workdir.path("s/figures")).unwrap().count();
    assert_eq!(figures, 4, "one chart for the error and one for the loss, as SVG and PNG");

    // The expansion of s/* by a shell: points by their addresses, and all other entries.
    let mut all: Vec<String> = fs::read_dir(workdir.path("s"))
        .unwrap()
        .map(|entry| format!("s/{}", entry.unwrap().file_name().into_string().unwrap()))
        .filter(|path| !path.contains("/."))
        .collect();
    all.sort();
    workdir.printed(&format!("report {} --out both", all.join(" ")));
    assert_eq!(fs::read_to_string(workdir.path("both/tables.md")).unwrap(), markdown);
}

#[test]
fn shards_of_several_machines_merge_into_the_whole_sweep() {
    let workdir = workdir::workdir();
    workdir.printed(&format!("sweep run x.toml {AXES} --out whole -q"));
    let mut seen = BTreeSet::new();
    for shard in 1..=3 {
        workdir.printed(&format!("sweep run x.toml {AXES} --shard {shard}/3 --out part-{shard} -q"));
        for run in runs(&workdir.path(&format!("part-{shard}"))) {
            assert!(seen.insert(run), "two shards share a point");
        }
    }
    let printed = workdir.printed("sweep merge part-1 part-2 --into all");
    assert!(printed.contains("4 points taken, 0 known") && printed.contains("4 of 6 points"), "{printed}");
    let printed = workdir.printed("sweep merge part-2 part-3 --into all");
    assert!(printed.contains("2 points taken, 2 known") && printed.contains("6 of 6 points"), "{printed}");
    assert_eq!(bits(&workdir.path("all")), bits(&workdir.path("whole")));

    let said = workdir.refusal("sweep run x.toml --shard 4/3");
    assert!(said.contains("1 ≤ i ≤ n"), "{said}");
}

#[test]
fn folders_of_different_sweeps_or_data_are_not_merged() {
    let workdir = workdir::workdir();
    workdir.printed("sweep run x.toml --sweep local.batch=5,10 --set rounds=1 --out a -q");
    workdir.printed("sweep run x.toml --sweep local.batch=5,20 --set rounds=1 --out b -q");
    let said = workdir.refusal("sweep merge a b --into c");
    assert!(said.contains("different sweeps"), "{said}");
    assert!(workdir.refusal("sweep merge a nowhere --into c").contains("holds no sweep"));

    workdir.printed("sweep run x.toml --sweep local.batch=5,10 --set rounds=1 --shard 1/2 --out d -q");
    let point = workdir.path("d").join(&runs(&workdir.path("d"))[0]).join("experiment.toml");
    let text = fs::read_to_string(&point).unwrap();
    let at = text.find("data_hash = \"").unwrap() + 13;
    fs::write(&point, format!("{}other{}", &text[..at], &text[at + 5..])).unwrap();
    let said = workdir.refusal("sweep merge a d --into c");
    assert!(said.contains("different data") && !workdir.path("c").exists(), "{said}");

    let lock = fs::File::open(point.with_file_name(".lock")).unwrap();
    lock.lock().unwrap();
    assert!(workdir.refusal("sweep merge a d --into c").contains("a process is training in"));
    drop(lock);

    fs::write(&point, text.replace("rounds = 1", "rounds = 2")).unwrap();
    let said = workdir.refusal("sweep merge d --into c");
    assert!(said.contains("named after"), "{said}");
}

#[cfg(unix)]
#[test]
fn a_sweep_killed_repeatedly_ends_with_the_same_bits_and_trains_no_point_twice() {
    let workdir = workdir::workdir();
    let sweep = format!("sweep run x.toml {AXES} --set rounds=40 -q --out");
    workdir.printed(&format!("{sweep} whole"));
    let summaries = || -> Vec<(String, SystemTime)> {
        let finished = |run: &String| {
            let summary = workdir.path("torn").join(run).join("summary.json");
            Some((run.clone(), fs::metadata(summary).ok()?.modified().unwrap()))
        };
        if workdir.path("torn").exists() {
            runs(&workdir.path("torn")).iter().filter_map(finished).collect()
        } else {
            Vec::new()
        }
    };
    let (mut kills, mut finished) = (0, Vec::new());
    for attempt in 0..200u64 {
        let mut child = workdir.command(&format!("{sweep} torn")).stdout(Stdio::null()).spawn().unwrap();
        // Fixed but irregular delays that increase, so that the sweep eventually ends.
        std::thread::sleep(Duration::from_millis(20 + attempt * 37 % 160 + attempt * 25));
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success());
            break;
        }
        child.kill().unwrap(); // SIGKILL
        child.wait().unwrap();
        kills += 1;
        let now = summaries();
        assert!(finished.iter().all(|summary| now.contains(summary)), "a finished point was written again");
        finished = now;
    }
    assert!(kills > 2, "the sweep was too fast to be killed: {kills}");
    assert!(finished.iter().all(|summary| summaries().contains(summary)));
    assert_eq!(bits(&workdir.path("whole")), bits(&workdir.path("torn")));
}

#[test]
fn two_processes_on_one_folder_train_each_point_once() {
    let workdir = workdir::workdir();
    let sweep = format!("sweep run x.toml {AXES} --out");
    let start = || {
        workdir.command(&format!("{sweep} s")).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    for mut child in [start(), start()] {
        assert!(child.wait().unwrap().success());
    }
    // A point skipped by one process because the other trained it is now finished.
    assert!(workdir.printed("sweep list s").contains("6 of 6 points finished"));
    workdir.printed(&format!("{sweep} alone -q"));
    assert_eq!(bits(&workdir.path("s")), bits(&workdir.path("alone")));
}

#[test]
fn an_extended_sweep_trains_only_its_new_points() {
    let workdir = workdir::workdir();
    workdir.printed("sweep run x.toml --sweep local.batch=5,10 --set rounds=2 --out s -q");
    let output =
        workdir.run("sweep run x.toml --sweep local.batch=5,10,20 --sweep cohort=6 --set rounds=2 --out s");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(said.matches("of 3 points").count(), 1, "{said}");
    assert_eq!(runs(&workdir.path("s")).len(), 3);
}

#[test]
fn a_failed_point_does_not_affect_the_others() {
    let workdir = workdir::workdir();
    let output = workdir.run("sweep run x.toml --sweep model.kind=linear,gru --set rounds=1 --out s -q");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("model.kind=gru failed") && said.contains("does not fit"), "{said}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 of 2 points finished"));
    // An invalid value is rejected before any training.
    let said = workdir.refusal("sweep run x.toml --sweep cohort=6,0 --out t");
    assert!(said.contains("x.toml with cohort=0: invalid value") && !workdir.path("t").exists(), "{said}");
}

#[cfg(unix)]
#[test]
fn the_tasks_of_the_slurm_script_train_the_whole_sweep() {
    use std::os::unix::fs::PermissionsExt;
    let workdir = workdir::workdir();
    let printed = workdir.printed(&format!("sweep slurm x.toml {AXES} --set rounds=2 --tasks 2 --out s"));
    assert!(printed.contains("sbatch s/sweep.slurm"), "{printed}");
    // A replacement for `srun` that runs its arguments after its only option.
    fs::create_dir(workdir.path("bin")).unwrap();
    let shim = |name: &str, text: String| {
        let path = workdir.path("bin").join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    };
    shim("srun", "#!/bin/sh\nshift\nexec \"$@\"\n".to_owned());
    shim("deltafl", format!("#!/bin/sh\nexec '{}' \"$@\"\n", env!("CARGO_BIN_EXE_deltafl")));
    let path = format!("{}:{}", workdir.path("bin").display(), std::env::var("PATH").unwrap());
    for task in ["1", "2"] {
        let output = Command::new("bash")
            .arg("s/sweep.slurm")
            .current_dir(workdir.path(""))
            .env("PATH", &path)
            .env("SLURM_ARRAY_TASK_ID", task)
            .env("SLURM_CPUS_PER_TASK", "1")
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    assert!(workdir.printed("sweep list s").contains("6 of 6 points finished"));
}
