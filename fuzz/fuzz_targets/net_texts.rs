//! Decodes arbitrary bytes as a token, a name or PEM.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| deltafl_server::fuzzing::texts(data));
