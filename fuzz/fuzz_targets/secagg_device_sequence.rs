//! A round whose messages to the devices are lost, repeated and changed.
#![no_main]

use deltafl_secagg::fuzzing::{Target, sequence};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    sequence(data, Target::Devices);
});
