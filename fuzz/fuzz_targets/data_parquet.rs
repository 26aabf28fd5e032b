//! Imports Parquet files.
#![no_main]

use deltafl_data::import::{Features, parquet, table};
use libfuzzer_sys::fuzz_target;

#[path = "on_disk.rs"]
mod on_disk;

fuzz_target!(|bytes: &[u8]| {
    let columns =
        table::Columns { device: None, label: "y".into(), features: Vec::new(), ..table::Columns::default() };
    on_disk::import(bytes, |path, target| {
        parquet::import(&[path.to_owned()], &columns, Features::Auto, target)
    });
});
