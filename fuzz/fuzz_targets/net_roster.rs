//! Decodes arbitrary bytes as a roster.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| deltafl_server::fuzzing::roster(data));
