//! Imports JSON lines with a column of text.
#![no_main]

use deltafl_data::import::{Features, table};
use libfuzzer_sys::fuzz_target;

#[path = "on_disk.rs"]
mod on_disk;

fuzz_target!(|bytes: &[u8]| {
    let columns = table::TableColumns {
        device: Some("d".into()),
        label: "y".into(),
        texts: vec!["t".into()],
        ..table::TableColumns::default()
    };
    on_disk::import(bytes, |path, target| {
        let format = table::TableFormat::JsonLines;
        table::import_files(&[path.to_owned()], format, &columns, Features::Auto, target)
    });
});
