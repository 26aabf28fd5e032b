//! Imports a folder with one image.
#![no_main]

use deltafl_data::import::images;
use libfuzzer_sys::fuzz_target;

#[path = "on_disk.rs"]
mod on_disk;

fuzz_target!(|bytes: &[u8]| {
    on_disk::import(bytes, |path, target| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let class = folder.path().join("class");
        std::fs::create_dir(&class).expect("a new folder");
        std::fs::copy(path, class.join("1.png")).expect("a copy");
        images::import_folder(folder.path(), images::ImageOptions::default(), target)
    });
});
