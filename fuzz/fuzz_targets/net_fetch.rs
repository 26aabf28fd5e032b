//! Decodes arbitrary bytes as a request for a blob and as a chunk of a blob.
#![no_main]

#[path = "../bodies/net.rs"]
#[allow(dead_code)]
mod net;

libfuzzer_sys::fuzz_target!(|data: &[u8]| net::fetch(data));
