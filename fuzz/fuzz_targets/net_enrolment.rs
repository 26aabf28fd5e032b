//! Decodes arbitrary bytes as an enrolment request and as its response.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| deltafl_server::fuzzing::enrolment(data));
