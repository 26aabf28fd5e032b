//! The targets of server and device: messages, identities and the state of a device.
#![no_main]

#[path = "../bodies/net.rs"]
#[allow(dead_code)]
mod net;
#[path = "../bodies/selected.rs"]
mod selected;

libfuzzer_sys::fuzz_target!(init: selected::select(net::TARGETS), |data: &[u8]| selected::run(data));
