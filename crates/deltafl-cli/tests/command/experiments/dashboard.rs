//! `--tui`: without a terminal, and on a terminal created by `script`.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::workdir::{self, Workdir};

/// The escape sequences with which the dashboard enters and leaves the alternate screen.
const TAKEN: &str = "\x1b[?1049h";
const GIVEN_BACK: &str = "\x1b[?1049l";

/// Starts the command on a separate terminal. Returns `None` and prints a message if `script` is
/// missing.
fn on_a_terminal(workdir: &Workdir, words: &str) -> Option<Child> {
    let line = format!("stty cols 130 rows 30; exec '{}' {words}", env!("CARGO_BIN_EXE_deltafl"));
    if !Path::new("/usr/bin/script").exists() {
        eprintln!("skipped: there is no `script` (apt-get install bsdutils)");
        return None;
    }
    // A dashboard that hangs fails its test instead of blocking it.
    let spawned = Command::new("timeout")
        .args(["120", "script", "-qefc", &line, "/dev/null"])
        .current_dir(workdir.path(""))
        .env("TERM", "xterm-256color")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    Some(spawned.unwrap())
}

/// Reads the output of the terminal up to a text.
fn read_until(child: &mut Child, text: &str) -> String {
    let (mut told, mut buffer) = (Vec::new(), [0; 4096]);
    let out = child.stdout.as_mut().unwrap();
    while !String::from_utf8_lossy(&told).contains(text) {
        let read = out.read(&mut buffer).unwrap();
        assert!(read > 0, "{text} never came: {}", String::from_utf8_lossy(&told));
        told.extend_from_slice(&buffer[..read]);
    }
    String::from_utf8_lossy(&told).into_owned()
}

/// Reads the remaining output and waits for this exit code.
fn rest(mut child: Child, code: i32) -> String {
    let mut told = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut told).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(code), "{}", String::from_utf8_lossy(&told));
    String::from_utf8_lossy(&told).into_owned()
}

#[test]
fn without_a_terminal_a_message_and_plain_progress_are_printed() {
    let workdir = workdir::workdir();
    let output = workdir.run("run x.toml --tui --out r");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("--tui needs a terminal") && said.contains("seed 1, round 3"), "{said}");
    assert!(!said.contains(TAKEN));
}

#[test]
fn the_terminal_is_restored_before_the_final_table_is_printed() {
    let workdir = workdir::workdir();
    let Some(child) = on_a_terminal(&workdir, "run x.toml --tui --out r") else { return };
    let told = rest(child, 0);
    let at = |text: &str| told.find(text).unwrap_or_else(|| panic!("{text}: {told:?}"));
    assert!(at(TAKEN) < at("FedAvg") && at("FedAvg") < at(GIVEN_BACK));
    assert!(at(GIVEN_BACK) < at("Test error in % after 6 rounds"));
}

#[test]
fn control_c_finishes_the_round_and_restores_the_terminal() {
    let workdir = workdir::workdir();
    let words = "run x.toml --tui --out r --set rounds=1000000 --set evaluate_every=1000000";
    let Some(mut child) = on_a_terminal(&workdir, words) else { return };
    read_until(&mut child, "updates/s");
    child.stdin.as_mut().unwrap().write_all(b"\x03").unwrap();
    let told = rest(child, 130);
    let at = |text: &str| told.find(text).unwrap_or_else(|| panic!("{text}: {told:?}"));
    assert!(at(GIVEN_BACK) < at("stopped; nothing is lost"));
    assert!(workdir.path("r/checkpoint/seed-1.safetensors").exists());
}
