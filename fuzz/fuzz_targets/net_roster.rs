//! Any bytes as a roster.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| deltafl_net::fuzzing::roster(data));
