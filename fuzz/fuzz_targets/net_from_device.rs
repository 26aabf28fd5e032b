//! Any bytes as what a device says.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| deltafl_net::fuzzing::from_device(data));
