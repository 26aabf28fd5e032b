//! Imports IDX files. The images, the labels and the table of devices have the same bytes.
#![no_main]

use deltafl_data::import::idx;
use libfuzzer_sys::fuzz_target;

#[path = "on_disk.rs"]
mod on_disk;

fuzz_target!(|bytes: &[u8]| {
    on_disk::import(bytes, |path, target| {
        let own = |devices| idx::Files { images: path.to_owned(), labels: path.to_owned(), devices };
        idx::import(&own(Some(path.to_owned())), target).or_else(|_| idx::import(&own(None), target))
    });
});
