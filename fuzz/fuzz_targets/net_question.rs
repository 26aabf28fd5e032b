//! Decodes arbitrary bytes as a question.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| deltafl_server::fuzzing::question(data));
