//! Decodes arbitrary bytes as the certificate of a peer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| deltafl_server::fuzzing::certificate(data));
