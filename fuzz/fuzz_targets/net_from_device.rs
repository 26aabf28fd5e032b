//! Decodes arbitrary bytes as a message from a device.
#![no_main]

#[path = "../bodies/net.rs"]
#[allow(dead_code)]
mod net;

libfuzzer_sys::fuzz_target!(|data: &[u8]| net::from_device(data));
