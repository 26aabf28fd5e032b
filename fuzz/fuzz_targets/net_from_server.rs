//! Decodes arbitrary bytes as a message from a server.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| deltafl_server::fuzzing::from_server(data));
