//! Any bytes as a device's message.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| deltafl_secagg::fuzzing::device_message(data));
