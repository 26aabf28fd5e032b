//! Any bytes as the certificate that somebody shows.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| deltafl_server::fuzzing::certificate(data));
