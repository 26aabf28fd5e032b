//! Decodes arbitrary bytes as the parts of messages.
#![no_main]

#[path = "../bodies/net.rs"]
#[allow(dead_code)]
mod net;

libfuzzer_sys::fuzz_target!(|data: &[u8]| net::parts(data));
