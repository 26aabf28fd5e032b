//! What a device links, and what it does not.
#![allow(clippy::unwrap_used)]

use std::process::Command;

/// A database, an HTTP server, a certificate authority, an object store, charts and file formats: a device needs none.
const FORBIDDEN: [&str; 8] =
    ["sqlx", "axum", "rcgen", "object_store", "plotters", "parquet", "arrow", "deltafl-data"];

#[test]
fn a_device_links_no_database_no_http_server_and_no_certificate_authority() {
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
