//! What a device links, what it does not, and how large it is.
#![allow(clippy::unwrap_used)]

#[path = "../../deltafl-server/tests/field/watchdog.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared by several tests")]
mod watchdog;

use std::process::Command;

/// A database, an HTTP server, a certificate authority, an object store, charts and file formats: a
/// device needs none.
const FORBIDDEN: [&str; 8] =
    ["sqlx", "axum", "rcgen", "object_store", "plotters", "parquet", "arrow", "deltafl-data"];

#[test]
fn a_device_links_no_database_no_http_server_and_no_certificate_authority() {
    let _limit = watchdog::start();
    let tree = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--package", "deltafl-device", "--edges", "normal", "--prefix", "none"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let tree = String::from_utf8(tree.stdout).unwrap();
    let linked: Vec<&str> = tree.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(linked.contains(&"tonic") && linked.contains(&"deltafl-wire"), "{linked:?}");
    for name in FORBIDDEN {
        let found = linked.iter().find(|linked| linked.starts_with(name));
        assert_eq!(found, None, "deltafl-device links {name}");
    }
}

/// Bytes of a device that is its own program, without debug information. A build for tests
/// optimises little but what computes, and has checks of overflow: it is twice as large as a
/// release, and is bounded so that what a device links does not grow unseen.
const MOST_BYTES: u64 = if cfg!(debug_assertions) { 11_000_000 } else { 8_000_000 };

#[test]
fn a_stripped_device_has_at_most_eight_megabytes() {
    let _limit = watchdog::start();
    // Beside this program: target/PROFILE/deps and target/PROFILE/examples.
    let program = std::env::current_exe().unwrap();
    let example = program.parent().unwrap().with_file_name("examples").join("own_trainer");
    let folder = tempfile::tempdir().unwrap();
    let stripped = folder.path().join("own_trainer");
    let strip = Command::new("strip").arg("-o").arg(&stripped).arg(&example).status();
    if !example.exists() || strip.is_err() {
        eprintln!("skipped: {} is not built, or there is no strip", example.display());
        return;
    }
    assert!(strip.unwrap().success());
    let bytes = std::fs::metadata(&stripped).unwrap().len();
    assert!(bytes <= MOST_BYTES, "{bytes} bytes");
}
