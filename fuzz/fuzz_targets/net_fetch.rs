//! Decodes arbitrary bytes as a request for a blob and as a chunk of a blob.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| deltafl_server::fuzzing::fetch(data));
