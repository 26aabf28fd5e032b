//! Arbitrary bytes as a server's message.
#![no_main]

#[path = "../bodies/secagg.rs"]
#[allow(dead_code)]
mod secagg;

libfuzzer_sys::fuzz_target!(|data: &[u8]| secagg::server_message(data));
