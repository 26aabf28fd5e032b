//! A round whose messages to the server are lost, repeated and changed.
#![no_main]

#[path = "../bodies/secagg.rs"]
#[allow(dead_code)]
mod secagg;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    secagg::sequence(data, secagg::Recipient::Server);
});
