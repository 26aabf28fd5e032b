//! Imports archives of NumPy.
#![no_main]

use deltafl_data::import::{Features, npz};
use libfuzzer_sys::fuzz_target;

#[path = "on_disk.rs"]
mod on_disk;

fuzz_target!(|bytes: &[u8]| {
    let arrays = npz::Arrays { x: "x".into(), y: "y".into(), device: None };
    on_disk::import(bytes, |path, target| npz::import(path, &arrays, Features::Auto, target));
});
