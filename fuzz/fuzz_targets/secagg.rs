//! The targets of secure aggregation.
#![no_main]

#[path = "../bodies/secagg.rs"]
#[allow(dead_code)]
mod secagg;
#[path = "../bodies/selected.rs"]
mod selected;

libfuzzer_sys::fuzz_target!(init: selected::select(secagg::TARGETS), |data: &[u8]| selected::run(data));
