//! Decodes arbitrary bytes as a message from a device.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| deltafl_server::fuzzing::from_device(data));
