//! Inspects a table of any format and imports it.
#![no_main]

use deltafl_data::import::{Features, ImportTarget, auto, table};
use libfuzzer_sys::fuzz_target;

#[path = "on_disk.rs"]
mod on_disk;

fuzz_target!(|bytes: &[u8]| {
    on_disk::import(bytes, |path, target| {
        let paths = [path.to_owned()];
        let found = auto::inspect(&paths, &auto::AutoOptions::default())?;
        let target = ImportTarget { regression: found.regression, ..target.clone() };
        table::import_files(&paths, found.format, &found.table, Features::Auto, &target)
    });
});
