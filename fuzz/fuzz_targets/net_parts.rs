//! Decodes arbitrary bytes as the parts of messages.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| deltafl_server::fuzzing::parts(data));
