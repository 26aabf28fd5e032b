//! Imports JSON files of LEAF.
#![no_main]

use deltafl_data::import::{Features, leaf};
use libfuzzer_sys::fuzz_target;

#[path = "on_disk.rs"]
mod on_disk;

fuzz_target!(|bytes: &[u8]| {
    on_disk::import(bytes, |path, target| leaf::import(&[path.to_owned()], Features::Auto, target));
});
