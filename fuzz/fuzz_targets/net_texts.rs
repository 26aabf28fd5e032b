//! Decodes arbitrary bytes as a token, a name or PEM.
#![no_main]

#[path = "../bodies/net.rs"]
#[allow(dead_code)]
mod net;

libfuzzer_sys::fuzz_target!(|data: &[u8]| net::texts(data));
