//! Any bytes as a server's message.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| deltafl_secagg::fuzzing::server_message(data));
