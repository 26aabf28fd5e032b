//! Imports NIST's archives. Both archives have the same bytes.
#![no_main]

use deltafl_data::import::emnist;
use libfuzzer_sys::fuzz_target;

#[path = "on_disk.rs"]
mod on_disk;

fuzz_target!(|bytes: &[u8]| {
    on_disk::import(bytes, |path, target| emnist::import(path, path, target));
});
