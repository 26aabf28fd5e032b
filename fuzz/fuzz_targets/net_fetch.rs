//! Any bytes as a request for a blob, and as a piece of one.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| deltafl_server::fuzzing::fetch(data));
