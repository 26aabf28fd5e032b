//! The Rust messages in `proto/secagg.rs` are generated from `proto/secagg.proto`.
//!
//! The generated file is checked in, so that a build needs neither protoc nor a code generator.
#![allow(missing_docs)]

use std::path::Path;

#[test]
fn generated_messages_match_the_proto_file() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto");
    let messages = protox::compile(["secagg.proto"], [&folder]).unwrap();
    let out = tempfile::tempdir().unwrap();
    // `bytes` fields are slices of the received buffer, not copies.
    prost_build::Config::new()
        .bytes(["."])
        .disable_comments(["."])
        .out_dir(out.path())
        .compile_fds(messages)
        .unwrap();
    let generated = std::fs::read_to_string(out.path().join("deltafl.secagg.v2.rs")).unwrap();
    let path = folder.join("secagg.rs");
    if std::env::var_os("UPDATE_MESSAGES").is_some() {
        std::fs::write(&path, &generated).unwrap();
    }
    let checked_in = std::fs::read_to_string(&path).unwrap();
    assert_eq!(checked_in, generated, "UPDATE_MESSAGES=1 regenerates {}", path.display());
}
