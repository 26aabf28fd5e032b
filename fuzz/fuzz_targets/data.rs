//! The targets of files: importers, federation folders, experiments and checkpoints.
#![no_main]

#[path = "../bodies/data.rs"]
#[allow(dead_code)]
mod data;
#[path = "../bodies/selected.rs"]
mod selected;

libfuzzer_sys::fuzz_target!(init: selected::select(data::TARGETS), |data: &[u8]| selected::run(data));
