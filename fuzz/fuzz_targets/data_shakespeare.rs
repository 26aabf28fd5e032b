//! Imports the complete works of Shakespeare.
#![no_main]

use deltafl_data::import::shakespeare;
use libfuzzer_sys::fuzz_target;

#[path = "on_disk.rs"]
mod on_disk;

fuzz_target!(|bytes: &[u8]| {
    on_disk::import(bytes, shakespeare::import);
});
