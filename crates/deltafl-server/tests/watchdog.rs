//! Every test of a deployed federation has a time limit, and a test that exceeds it ends with the
//! states of all sessions.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "field/fleet.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared by several tests")]
mod fleet;
#[path = "field/watchdog.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared by several tests")]
mod watchdog;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use fleet::{TestFederation, options};

/// The files with tests of a deployed federation.
fn sources() -> Vec<PathBuf> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned();
    let commands = ["federation", "deploy", "operations"];
    let mut files: Vec<PathBuf> =
        commands.map(|name| crates.join(format!("deltafl-cli/tests/command/{name}.rs"))).into();
    let mut folders = ["deltafl-server", "deltafl-device", "deltafl-c"]
        .map(|name| crates.join(name).join("tests"))
        .to_vec();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files
}

/// The names of the tests of a file whose first line does not start a time limit.
fn unlimited(source: &str) -> Vec<String> {
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let is_test = |line: &str| line == "#[test]" || line.starts_with("#[tokio::test");
    let tests = (0..lines.len()).filter(|&i| is_test(lines[i]));
    let function = |i: usize| (i..lines.len()).find(|&j| lines[j].contains("fn ")).unwrap();
    let unlimited =
        tests.map(function).filter(|&j| !lines[j + 1].starts_with("let _limit = watchdog::start"));
    unlimited.map(|j| lines[j].to_owned()).collect()
}

#[test]
fn every_test_of_a_deployed_federation_has_a_time_limit() {
    let _limit = watchdog::start();
    assert_eq!(unlimited("#[test]\nfn a() {\n    work();\n}"), ["fn a() {"]);
    let files = sources();
    assert!(files.len() > 20, "{files:?}");
    for file in files {
        let source = std::fs::read_to_string(&file).unwrap();
        assert_eq!(unlimited(&source), Vec::<String>::new(), "{}", file.display());
    }
}

#[tokio::test]
#[ignore = "the other test starts it as a process of its own"]
async fn play_a_test_that_waits_for_ever() {
    let _limit = watchdog::start();
    let test = TestFederation::new(
        r#"
        name = "waits"
        rounds = 1
        cohort = 4
        data = { source = { kind = "glyphs", devices = 6, seed = 3, train = 1.0 } }
        model = { kind = "linear" }
        local = { steps = 1, batch = 10, learning_rate = 0.1 }
        algorithm = [{ kind = "fedavg" }]
    "#,
    );
    let host = test.host().await;
    let _swarm = test.swarm_of(&test.devices()[..4], host.address(), &options());
    while host.presence() != (4, 4) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let _short = watchdog::start_with(Duration::from_secs(1));
    // A panic would wait for this thread.
    tokio::task::spawn_blocking(|| std::thread::sleep(Duration::from_secs(3600)));
    std::future::pending::<()>().await;
}

#[test]
fn a_test_that_exceeds_its_limit_ends_its_process_with_the_states_of_all_sessions() {
    let _limit = watchdog::start();
    let ended = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "play_a_test_that_waits_for_ever", "--ignored"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(101), "{said}");
    assert!(
        said.contains("not done after 1 s") && said.contains("4 of 6 devices connected: 4 ready"),
        "{said}"
    );
}
