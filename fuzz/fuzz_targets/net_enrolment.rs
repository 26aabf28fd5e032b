//! Decodes arbitrary bytes as an enrolment request and as its response.
#![no_main]

#[path = "../bodies/net.rs"]
#[allow(dead_code)]
mod net;

libfuzzer_sys::fuzz_target!(|data: &[u8]| net::enrolment(data));
