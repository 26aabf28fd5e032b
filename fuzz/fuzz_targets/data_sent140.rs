//! Imports tweets and word vectors. The bytes before the first NUL are the tweets, the rest the
//! vectors.
#![no_main]

use deltafl_data::import::sent140;
use libfuzzer_sys::fuzz_target;

#[path = "on_disk.rs"]
mod on_disk;

fuzz_target!(|bytes: &[u8]| {
    let cut = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    on_disk::import(&bytes[..cut], |path, target| {
        let vectors = path.with_file_name("vectors");
        std::fs::write(&vectors, bytes.get(cut + 1..).unwrap_or_default()).expect("a temporary file");
        let features = sent140::TweetFeatures::Tokens;
        let options = sent140::TweetOptions { vectors, features, lowercase: true, columns: None };
        sent140::import(&[path.to_owned()], &options, target)
    });
});
