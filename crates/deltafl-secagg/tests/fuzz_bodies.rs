//! The bodies of the fuzz targets over a small seeded corpus, for machines without a fuzzer.
#![allow(missing_docs)]

#[path = "../../../fuzz/bodies/secagg.rs"]
mod fuzz_bodies;
#[path = "../../../fuzz/bodies/units.rs"]
mod units;

use chacha20::ChaCha20Rng;
use rand_core::{Rng, SeedableRng};

use self::fuzz_bodies::{Recipient, TARGETS, device_message, messages, sequence, server_message};

/// Random scripts in which one byte of `rarity` does something other than delivery.
fn scripts(seed: u64, count: usize, rarity: u32) -> Vec<Vec<u8>> {
    let mut rng = ChaCha20Rng::seed_from_u64(seed);
    let mut order = || match rng.next_u32() {
        draw if draw % rarity == 0 => (draw >> 16) as u8,
        _ => 8,
    };
    (0..count).map(|_| (0..150).map(|_| order()).collect()).collect()
}

#[test]
fn random_bytes_do_not_break_the_decoders() {
    let mut rng = ChaCha20Rng::seed_from_u64(1);
    for len in 0..400 {
        let mut bytes = vec![0; len];
        rng.fill_bytes(&mut bytes);
        device_message(&bytes);
        server_message(&bytes);
    }
}

#[test]
fn a_script_that_only_delivers_ends_with_a_sum_per_slot() {
    assert_eq!(sequence(&[8; 100], Recipient::Devices), 2);
}

#[test]
fn a_script_that_loses_a_device_and_waits_still_ends_with_a_sum_per_slot() {
    // The first answer is lost. The deadline passes, and the other three devices continue.
    let script = [&[0, 8, 8, 8, u8::MAX][..], &[8; 100]].concat();
    assert_eq!(sequence(&script, Recipient::Devices), 2);
}

#[test]
fn lost_repeated_and_changed_messages_do_not_break_the_devices() {
    for script in scripts(2, 30, 12).iter().chain(&scripts(3, 15, 3)) {
        sequence(script, Recipient::Devices);
    }
}

#[test]
fn lost_repeated_and_changed_messages_do_not_break_the_server() {
    for script in scripts(4, 30, 12).iter().chain(&scripts(5, 15, 3)) {
        sequence(script, Recipient::Server);
    }
}

#[test]
fn the_corpus_of_the_fuzzer_breaks_neither_decoders_nor_rounds() {
    let scripts = [scripts(6, 4, 12), scripts(7, 4, 3)].concat();
    for (target, body) in TARGETS {
        let seeds = match *target {
            "secagg_device_message" => messages(Recipient::Server),
            "secagg_server_message" => messages(Recipient::Devices),
            _ => scripts.clone(),
        };
        units::units(target, &seeds).iter().for_each(|unit| body(unit));
    }
}
