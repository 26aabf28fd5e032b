//! The bodies of the fuzz targets over the corpus of the fuzzer, for machines without a fuzzer.
#![allow(missing_docs)]

#[path = "../../../fuzz/bodies/data.rs"]
mod data;
#[path = "../../../fuzz/bodies/units.rs"]
mod units;

#[test]
fn the_corpus_of_the_fuzzer_does_not_break_the_readers() {
    for (target, body) in data::TARGETS {
        units::units(target, &[]).iter().for_each(|unit| body(unit));
    }
}
