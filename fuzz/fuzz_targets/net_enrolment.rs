//! Any bytes as what a new device posts, and as what it is answered.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| deltafl_server::fuzzing::enrolment(data));
