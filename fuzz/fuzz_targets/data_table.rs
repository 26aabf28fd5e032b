//! Imports CSV files with a header.
#![no_main]

use deltafl_data::import::{Features, table};
use libfuzzer_sys::fuzz_target;

#[path = "on_disk.rs"]
mod on_disk;

fuzz_target!(|bytes: &[u8]| {
    let columns = table::Columns {
        device: Some("d".into()),
        label: "y".into(),
        features: Vec::new(),
        ..table::Columns::default()
    };
    on_disk::import(bytes, |path, target| {
        table::import(path, table::Dialect::Csv, &columns, Features::Auto, target)
    });
});
