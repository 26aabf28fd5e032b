//! `deltafl run`: reproducible bits, kills and resumes, and errors for invalid input.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::{Workdir, checkpoints};

const EXPERIMENT: &str = r#"
name = "tiny"
seeds = [1, 2]
rounds = 12
cohort = 6
evaluate_every = 3

[data]
source = { kind = "glyphs", devices = 24, seed = 5 }

[model]
kind = "linear"
l2 = 1e-6

[local]
epochs = 1
batch = 10
learning_rate = 0.1

[[algorithm]]
kind = "fedavg"

[[algorithm]]
kind = "delta-fl"
theta = [0.5, 0.2]
quantile = "histogram"
"#;

fn workdir() -> Workdir {
    Workdir::with(EXPERIMENT)
}

/// Returns `rounds.jsonl` without its times.
fn rounds(run: &Path) -> Vec<String> {
    let text = fs::read_to_string(run.join("rounds.jsonl")).unwrap();
    text.lines().map(|line| line.split(",\"seconds\"").next().unwrap().to_owned()).collect()
}

#[test]
fn one_thread_and_two_end_with_the_same_checkpoints() {
    let workdir = workdir();
    for threads in [1, 2] {
        let output = workdir.run(&format!("run x.toml --out t{threads} --threads {threads} --quiet"));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    assert_eq!(checkpoints(&workdir.path("t1")).len(), 2);
    assert_eq!(checkpoints(&workdir.path("t1")), checkpoints(&workdir.path("t2")));
    assert_eq!(rounds(&workdir.path("t1")), rounds(&workdir.path("t2")));
    let summary = |run: &str| fs::read(workdir.path(run).join("summary.json")).unwrap();
    assert_eq!(summary("t1"), summary("t2"));
}

#[test]
fn real_secure_aggregation_ends_with_the_checkpoints_of_plain_sums() {
    let workdir = workdir();
    for secagg in ["plain", "real"] {
        let output =
            workdir.run(&format!("run x.toml --out {secagg} --set secagg={secagg} --set rounds=4 -q"));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    assert_eq!(checkpoints(&workdir.path("plain")), checkpoints(&workdir.path("real")));
}

#[cfg(unix)]
#[test]
fn a_run_killed_repeatedly_ends_with_the_same_bits() {
    let workdir = workdir();
    assert!(workdir.run("run x.toml --out whole -q").status.success());

    let mut kills = 0;
    for attempt in 0..200u64 {
        let resume = if workdir.path("torn/experiment.toml").exists() { "--resume" } else { "" };
        let mut child = workdir
            .command(&format!("run x.toml --out torn -q {resume}"))
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // Fixed but irregular delays, from the start until well into the run.
        let moment = Duration::from_millis(20 + attempt * 37 % 160 + attempt * 3);
        std::thread::sleep(moment);
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success());
            break;
        }
        child.kill().unwrap(); // SIGKILL
        child.wait().unwrap();
        kills += 1;
        // A line that was partially written at a power failure.
        if let Ok(mut file) = fs::File::options().append(true).open(workdir.path("torn/rounds.jsonl")) {
            file.write_all(b"{\"seed\":1,\"track\":0,\"algo").unwrap();
        }
    }
    assert!(kills > 2, "the run was too fast to be killed: {kills}");
    // On a loaded machine, no delay may have been long enough for the run to end.
    assert!(workdir.run("run x.toml --out torn -q --resume").status.success());
    assert_eq!(checkpoints(&workdir.path("whole")), checkpoints(&workdir.path("torn")));
    assert_eq!(rounds(&workdir.path("whole")), rounds(&workdir.path("torn")));
    let devices = |run: &str| fs::read_dir(workdir.path(run).join("devices")).unwrap().count();
    assert_eq!(devices("whole"), devices("torn"));
}

#[test]
fn an_existing_run_is_neither_overwritten_nor_continued_with_another_experiment() {
    let workdir = workdir();
    assert!(workdir.run("run x.toml --out r --set rounds=3 --set seeds=1 -q").status.success());
    let said = workdir.failure("run x.toml --out r --set rounds=3 --set seeds=1", 2);
    assert!(said.contains("already holds a run") && said.contains("--resume"), "{said}");
    let said = workdir.failure("run x.toml --out r --resume --set rounds=3 --set cohort=5 --set seeds=1", 2);
    assert!(said.contains("cohort: 6 → 5"), "{said}");
    let said = workdir.failure("run x.toml --out nowhere --resume", 2);
    assert!(said.contains("holds no run"), "{said}");
}

#[test]
fn an_extended_run_has_the_bits_of_a_run_of_that_length() {
    let workdir = workdir();
    assert!(workdir.run("run x.toml --out long -q").status.success());
    // Seven rounds: the last one is evaluated because it is the last. In a longer run it is not.
    for (rounds, resume) in [(7, ""), (9, "--resume"), (12, "--resume")] {
        let said = workdir.run(&format!("run x.toml --out grown -q --set rounds={rounds} {resume}"));
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    }
    assert_eq!(checkpoints(&workdir.path("long")), checkpoints(&workdir.path("grown")));
    let mut lines = [rounds(&workdir.path("long")), rounds(&workdir.path("grown"))];
    lines.iter_mut().for_each(|lines| lines.sort());
    assert_eq!(lines[0], lines[1]);
    for file in ["experiment.toml", "summary.json"] {
        let read = |run: &str| fs::read_to_string(workdir.path(run).join(file)).unwrap();
        assert_eq!(read("long"), read("grown"), "{file}");
    }
    let evaluations = |run: &str| {
        let names = fs::read_dir(workdir.path(run).join("devices")).unwrap();
        let mut names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(evaluations("long"), evaluations("grown"));
    let said = workdir.failure("run x.toml --out grown --resume --set rounds=9", 2);
    assert!(said.contains("already done 12 rounds"), "{said}");
}

#[test]
fn a_name_that_is_not_a_valid_folder_name_is_rejected() {
    let workdir = workdir();
    for name in ["", "../evil", "a/b", "..", ".hidden"] {
        fs::write(workdir.path("named.toml"), EXPERIMENT.replace("\"tiny\"", &format!("{name:?}"))).unwrap();
        let said = workdir.failure("run named.toml", 2);
        assert!(said.contains("named.toml:2") && said.contains("a name is also that of a folder"), "{said}");
        assert!(!workdir.path("runs").exists() && !workdir.path("../evil").exists());
    }
    let said = workdir.refusal("sweep run x.toml --set name=../evil");
    assert!(said.contains("a name is also that of a folder"), "{said}");
}

#[test]
fn a_file_in_place_of_a_folder_is_reported_as_a_file() {
    let workdir = workdir();
    fs::write(workdir.path("file"), "").unwrap();
    for words in ["run x.toml --out file", "sweep run x.toml --sweep cohort=5,6 --out file"] {
        assert!(workdir.refusal(words).contains("file is a file, not a folder"), "{words}");
    }
}

#[test]
fn an_error_of_an_override_names_it_and_quotes_no_line() {
    let workdir = workdir();
    let said = workdir.refusal("run x.toml --set rounds=0");
    assert!(said.contains("--set rounds=0: invalid value") && !said.contains("x.toml:"), "{said}");
    fs::write(workdir.path("empty.toml"), "").unwrap();
    let said = workdir.refusal("run empty.toml");
    assert!(said.contains("empty.toml is empty"), "{said}");
}

#[test]
fn a_cohort_larger_than_the_federation_causes_a_warning() {
    let workdir = workdir();
    let output = workdir.run("run x.toml --set cohort=5000 --set rounds=1 --set seeds=1 --out c");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && said.contains("the cohort of 5000 is larger than the federation"),
        "{said}"
    );
    let output = workdir
        .run("run x.toml --set cohort=50 --set with_replacement=true --set rounds=1 --set seeds=1 --out d");
    assert!(
        !String::from_utf8_lossy(&output.stderr).contains("larger"),
        "with replacement there is no warning"
    );
}

#[test]
fn rounds_that_changed_nothing_are_counted_and_their_cause_is_reported() {
    let workdir = workdir();
    // Every track trains in every round.
    let run = "run x.toml --set tracks=together --set seeds=1";
    let output = workdir.run(&format!("{run} --set local.learning_rate=1e38 --set rounds=6 --out hot"));
    let said = String::from_utf8_lossy(&output.stderr);
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("warning: FedAvg:") && said.contains("local.learning_rate = 1e38"), "{said}");
    assert!(printed.contains("rounds moved nothing: no update was finite in"), "{printed}");
    let summary: serde_json::Value =
        serde_json::from_slice(&fs::read(workdir.path("hot/summary.json")).unwrap()).unwrap();
    let idle = &summary["tracks"][0]["idle_rounds"];
    assert!(idle["rounds"] == 6 && idle["refused"].as_u64() > Some(3), "{summary}");

    let output =
        workdir.run(&format!("{run} --set availability.drop_out=1 --set rounds=4 --json --out gone"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("too few devices answered in 4; availability.drop_out is 1.0"), "{said}");
    let listed: serde_json::Value = serde_json::from_str(&workdir.printed("runs . --json")).unwrap();
    let gone = listed.as_array().unwrap().iter().find(|run| run["path"] == "./gone").unwrap();
    assert_eq!((&gone["idle_rounds"]["no_sum"], &gone["idle_rounds"]["rounds"]), (&12.into(), &12.into()));
    assert!(workdir.printed("runs .").contains("12 of 12"));

    let quiet = workdir.run(&format!("{run} --set rounds=2 --json --out fine"));
    assert!(
        quiet.stderr.is_empty(),
        "a run without idle rounds has no note: {}",
        String::from_utf8_lossy(&quiet.stderr)
    );
}

#[test]
fn errors_point_at_the_line_of_the_experiment() {
    let workdir = workdir();
    let wrong = |from: &str, to: &str| {
        assert!(EXPERIMENT.contains(from));
        fs::write(workdir.path("wrong.toml"), EXPERIMENT.replace(from, to)).unwrap();
        let said = workdir.failure("run wrong.toml --out w", 2);
        assert!(!workdir.path("w").exists(), "{said}");
        said
    };
    let said = wrong("[0.5, 0.2]", "[0.5, 1.4]");
    assert!(
        said.contains("wrong.toml:25") && said.contains("theta: expected a number in (0, 1], got 1.4"),
        "{said}"
    );
    for theta in ["0", "nan", "-0.5", "inf"] {
        assert!(wrong("[0.5, 0.2]", theta).contains("theta: expected a number in (0, 1]"), "{theta}");
    }
    let said = wrong("cohort = 6", "cohorte = 6");
    assert!(said.contains("wrong.toml:5") && said.contains("unknown field `cohorte`"), "{said}");
    let flat: String = said.split(['│', '\n']).map(str::trim).collect();
    assert!(flat.contains("`model`, `algorithm`") && !flat.contains("resolved"), "{said}");
    assert!(wrong("rounds = 12", "rounds = 0").contains("wrong.toml:4"));
    assert!(
        wrong("learning_rate = 0.1", "learning_rate = -1")
            .contains("expected a finite number above 0, got -1")
    );
    assert!(wrong("kind = \"linear\"", "kind = \"linea\"").contains("wrong.toml:12"));
    assert!(wrong("epochs = 1\n", "").contains("either epochs or steps"));
    assert!(wrong("l2 = 1e-6", "hidden = 5").contains("linear has no option hidden"));
    assert!(wrong("\"linear\"", "\"gru\"").contains("does not fit the data"));
    assert!(
        wrong("source = { kind = \"glyphs\", devices = 24, seed = 5 }", "source = \"nowhere\"")
            .contains("nowhere")
    );
    assert!(wrong("seeds = [1, 2]", "seeds = []").contains("at least one"));
}

#[test]
fn a_missing_file_and_an_invalid_argument_are_invalid_input() {
    let workdir = workdir();
    assert!(workdir.failure("run nowhere.toml", 2).contains("nowhere.toml"));
    workdir.failure("run", 2);
    workdir.failure("trian x.toml", 2);
    workdir.failure("run x.toml --kernel abacus", 2);
    for option in ["run x.toml --threads 0", "sweep run x.toml --jobs 0"] {
        assert!(workdir.failure(option, 2).contains("1 or above"), "{option}");
    }
    assert!(workdir.failure("run x.toml --set rounds", 2).contains("key=value"));
}

#[test]
fn an_empty_federation_is_rejected() {
    let workdir = workdir();
    let said = workdir.failure("run x.toml --set data.split.train=0 --out e", 2);
    assert!(said.contains("no train devices"), "{said}");
    let said = workdir.failure("run x.toml --set data.split.min_examples=100000 --out e", 2);
    assert!(said.contains("no device has more than 100000"), "{said}");
}

#[test]
fn a_damaged_checkpoint_is_named_in_the_error() {
    let workdir = workdir();
    assert!(workdir.run("run x.toml --out r --set rounds=3 --set seeds=1 -q").status.success());
    let checkpoint = workdir.path("r/checkpoint/seed-1.safetensors");
    let bytes = fs::read(&checkpoint).unwrap();
    fs::write(&checkpoint, &bytes[..bytes.len() / 2]).unwrap();
    let said = workdir.failure("run x.toml --out r --resume --set rounds=3 --set seeds=1", 2);
    assert!(said.contains("seed-1.safetensors") && said.contains("truncated"), "{said}");
}

#[cfg(unix)]
#[test]
fn a_full_disk_ends_the_run_with_a_message_and_no_half_written_file() {
    let workdir = workdir();
    // A limit on the file size simulates a full disk: writes beyond it fail.
    let limited =
        format!("trap '' XFSZ; ulimit -f 60; exec {} run x.toml --out r -q", env!("CARGO_BIN_EXE_deltafl"));
    let output = Command::new("bash").args(["-c", &limited]).current_dir(workdir.path("")).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("could not record the run"), "{said}");
    let mut folders = vec![workdir.path("r")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            assert!(path.extension().is_none_or(|extension| extension != "part"), "{}", path.display());
            if path.is_dir() {
                folders.push(path);
            }
        }
    }
    // With free space again, the run continues.
    assert!(workdir.run("run x.toml --out r --resume -q").status.success());
    assert!(workdir.path("r/summary.json").exists());
}

#[test]
fn json_and_completions_are_machine_readable() {
    let workdir = workdir();
    let output = workdir.run("run x.toml --set rounds=2 --set seeds=1 --json --out j");
    let text = String::from_utf8(output.stdout).unwrap();
    for part in ["\"tracks\"", "\"test\"", "\"train_loss\"", "\"p90\"", "\"dataset\": \"glyphs\""] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(output.stderr.is_empty());
    let script = workdir.run("completions bash");
    assert!(String::from_utf8(script.stdout).unwrap().contains("deltafl"));
}

#[cfg(unix)]
#[test]
fn a_closed_pipe_causes_no_panic() {
    let workdir = workdir();
    let piped = format!("{} completions bash 2> said | true", env!("CARGO_BIN_EXE_deltafl"));
    assert!(
        Command::new("bash").args(["-c", &piped]).current_dir(workdir.path("")).status().unwrap().success()
    );
    assert_eq!(fs::read_to_string(workdir.path("said")).unwrap(), "");
}

#[test]
fn bench_reports_the_results_of_every_model() {
    let workdir = workdir();
    let figures = |words: &str| -> serde_json::Value {
        let output = workdir.run(words);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let steps = figures("bench --seconds 0.01 --json");
    let rounds = figures("bench --rounds 1 --cohort 2 --threads 2 --json");
    assert!(steps["peak_gflops"].as_f64() > Some(0.0), "{steps}");
    let models = ["emnist-linear", "emnist-convnet", "sent140-linear", "sent140-lstm", "shakespeare-gru"];
    for (i, model) in models.into_iter().enumerate() {
        let (step, round) = (&steps["models"][i], &rounds["rounds"][i]);
        assert_eq!((&step["model"], &round["model"]), (&model.into(), &model.into()));
        for key in ["batch", "train_examples_per_s", "eval_examples_per_s", "train_gflops"] {
            assert!(step[key].as_f64() > Some(0.0), "{key}: {step}");
        }
        for key in ["examples", "seconds", "seconds_one_thread", "speedup"] {
            assert!(round[key].as_f64() > Some(0.0), "{key}: {round}");
        }
    }
    assert_eq!(workdir.run("bench --model perceptron").status.code(), Some(2));
}
