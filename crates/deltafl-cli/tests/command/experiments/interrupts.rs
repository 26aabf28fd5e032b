//! Ctrl-C: exit code 130, and the point at which the command stopped, for people and for programs.
#![cfg(unix)]

use std::fs;
use std::process::{Output, Stdio};
use std::time::Duration;

use super::workdir;
use crate::support::{ctrl_c, interrupted, wait_for};

/// Returns the point at which a command reports that it was stopped.
fn place(output: &Output) -> serde_json::Value {
    assert_eq!(output.status.code(), Some(130), "{}", String::from_utf8_lossy(&output.stderr));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(json["resume"].as_str().unwrap().starts_with("deltafl "), "{json}");
    json["interrupted"].clone()
}

#[test]
fn an_interrupted_run_reports_where_it_stopped_and_exits_with_130() {
    let workdir = workdir::workdir();
    let output = interrupted(
        &workdir,
        "run x.toml --set rounds=1000000 --json --out r",
        "r/checkpoint/seed-1.safetensors",
    );
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{said}");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let place = &json["interrupted"];
    assert_eq!(
        (&place["folder"], &place["seed"], &place["rounds_planned"]),
        (&"r".into(), &1.into(), &1_000_000.into())
    );
    assert!(place["rounds"].as_u64().unwrap() >= 3, "{json}");
    let resume = json["resume"].as_str().unwrap();
    assert_eq!(resume, "deltafl run x.toml --out r --set rounds=1000000 --resume");
    // The reported state exists.
    let lines = fs::read_to_string(workdir.path("r/rounds.jsonl")).unwrap().lines().count();
    assert_eq!(lines as u64, 3 * place["rounds"].as_u64().unwrap());

    // People receive a message on standard error. Standard output is empty, so that a script cannot
    // misread it as a result.
    let output = interrupted(
        &workdir,
        "run x.toml --set rounds=1000000 --quiet --out q",
        "q/checkpoint/seed-1.safetensors",
    );
    assert_eq!((output.status.code(), output.stdout.len()), (Some(130), 0));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--resume"));
}

#[test]
fn interrupted_sweeps_and_searches_exit_with_130() {
    let workdir = workdir::workdir();
    let sweep = "sweep run x.toml --sweep local.batch=5,10 --set rounds=1000000 --jobs 1 --json --out s";
    let tune =
        "tune x.toml --rates 0.1,0.3 --set rounds=1000000 --set data.split.train=0.5 --jobs 1 --json --out t";
    for (words, folder) in [(sweep, "s"), (tune, "t/rate")] {
        let mut child = workdir.command(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        wait_for(&workdir.path(folder).join("sweep.toml"), &mut child);
        let begun = || {
            fs::read_dir(workdir.path(folder))
                .unwrap()
                .any(|entry| entry.unwrap().path().join("rounds.jsonl").exists())
        };
        while !begun() {
            assert!(child.try_wait().unwrap().is_none(), "{words} ended by itself");
            std::thread::sleep(Duration::from_millis(5));
        }
        ctrl_c(&child);
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130), "{}", String::from_utf8_lossy(&output.stderr));
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(json["interrupted"]["folder"], folder);
        assert_eq!(json["interrupted"]["points_finished"], 0);
        assert_eq!(json["interrupted"]["points_planned"], 2);
    }
}

#[test]
fn an_interrupted_demo_exits_with_130_and_the_same_command_continues_it() {
    let workdir = workdir::workdir();
    let words = "demo --json --out d";
    let place = place(&interrupted(&workdir, words, "d/checkpoint/seed-1.safetensors"));
    assert_eq!((&place["folder"], &place["seeds_planned"]), (&"d".into(), &serde_json::json!([1, 2, 3])));
    let done =
        place["rounds"].as_u64().unwrap() + 40 * place["seeds_finished"].as_array().unwrap().len() as u64;
    assert!((1..120).contains(&done), "{place}");

    // For people, standard output is empty, and standard error contains the command to continue.
    let output = interrupted(&workdir, "demo --quiet --out p", "p/checkpoint/seed-1.safetensors");
    assert_eq!((output.status.code(), output.stdout.len()), (Some(130), 0));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("deltafl demo --quiet --out p"), "{said}");
}

#[test]
fn an_interrupted_pair_of_the_paper_exits_with_130_and_is_named() {
    let workdir = workdir::workdir();
    workdir.printed("data synth glyphs --devices 24 --examples 20,30,60 --out data/emnist");
    let words = "paper emnist-linear --seeds 1 --set cohort=6 --set data.split.min_examples=0 --set rounds=1000000 \
                 --set evaluate_every=2 --json --out p";
    let place = place(&interrupted(&workdir, words, "p/emnist-linear/checkpoint/seed-1.safetensors"));
    assert_eq!((&place["pair"], &place["folder"]), (&"emnist-linear".into(), &"p/emnist-linear".into()));
    assert!(place["rounds"].as_u64().unwrap() > 0 && place["rounds_planned"] == 1_000_000, "{place}");
    assert!(!workdir.path("p/paper.md").exists(), "no table of an unfinished pair");
}
