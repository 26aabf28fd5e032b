//! Imports Arrow files and streams.
#![no_main]

use deltafl::data::MissingRule;
use deltafl_data::import::table::{self, TableColumns, TableFormat};
use deltafl_data::import::Features;
use libfuzzer_sys::fuzz_target;

#[path = "on_disk.rs"]
mod on_disk;

fuzz_target!(|bytes: &[u8]| {
    let columns = TableColumns { label: "y".into(), missing: MissingRule::Mean, ..TableColumns::default() };
    on_disk::import(bytes, |path, target| {
        table::import_files(&[path.to_owned()], TableFormat::Arrow, &columns, Features::Auto, target)
    });
});
