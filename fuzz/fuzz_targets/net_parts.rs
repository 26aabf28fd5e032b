//! Any bytes as the parts of messages.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| deltafl_net::fuzzing::parts(data));
