//! Decodes arbitrary bytes as a question.
#![no_main]

#[path = "../bodies/net.rs"]
#[allow(dead_code)]
mod net;

libfuzzer_sys::fuzz_target!(|data: &[u8]| net::question(data));
