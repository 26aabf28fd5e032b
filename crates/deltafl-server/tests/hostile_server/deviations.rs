//! Random deviations of a server against real devices: their sessions, ledgers, rosters and
//! consent.
//!
//! A scripted server asks six devices over connections in memory. Most of its messages are
//! plausible. The others are dropped, delayed, repeated, replayed or altered, or they differ
//! between devices: other keys, sessions, rosters, rounds, questions, nearly equal w, active
//! devices, survivors and signatures. `reading.rs` decides what the server can compute from
//! everything that it receives.
//!
//! The ordinary test plays a few seeds. `DEVIATIONS=10000 cargo test -p deltafl-server --test
//! hostile_server deviations` plays that many.

#[path = "deviations/even_trainer.rs"]
mod even_trainer;
#[path = "deviations/liar.rs"]
mod liar;
#[path = "deviations/reading.rs"]
mod reading;
#[path = "deviations/scenario.rs"]
mod scenario;
#[path = "deviations/script.rs"]
mod script;

use std::ops::Range;
use std::time::Duration;

use deltafl_device::{Defence, Defences};
use deltafl_secagg::defences::Defence as ProtocolDefence;
use deltafl_secagg::identity::DeviceId;
use tokio::runtime::Builder;

use self::reading::Reading;
use self::scenario::Scenario;
use super::watchdog;

const DEVICES: u32 = 6;
/// The owner's least number of devices in a sum.
const MIN_COHORT: usize = 4;
/// The number of parameters: the compared entries of an answer and those before.
const PARAMS: usize = 1024;
const SLOTS: u32 = 3;
/// The seeds of the ordinary test.
const FEW_SEEDS: u64 = 24;

fn name(device: u32) -> String {
    format!("d{device}")
}

fn loss(device: DeviceId) -> f64 {
    1.0 + f64::from(device.0)
}

/// The result of some seeds.
#[derive(Debug, Default)]
struct Tally {
    /// Seeds in which a device answered.
    answered: usize,
    /// Sums that the server can compute.
    sums: usize,
    /// The seeds in which it can compute more.
    read: Vec<(u64, Vec<Reading>)>,
    /// Losses of single devices.
    losses: usize,
}

/// Plays seeds. Ends early if a reading is found and that is enough.
fn play(seeds: impl Iterator<Item = u64>, defences: Defences, first_only: bool) -> Tally {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let mut tally = Tally::default();
    for seed in seeds {
        runtime.block_on(async {
            let mut scenario = Scenario::new(seed, defences);
            scenario.play().await;
            let (readings, sums) = scenario.haul.readings(MIN_COHORT, loss);
            tally.answered += usize::from(scenario.haul.answers() > 0);
            tally.sums += sums;
            tally.losses += scenario.losses;
            if !readings.is_empty() {
                tally.read.push((seed, readings));
            }
        });
        if first_only && (tally.losses > 0 || !tally.read.is_empty()) {
            break;
        }
    }
    tally
}

/// Returns the seeds of `DEVIATIONS`: a number, or a range such as `5000..6000`.
fn requested() -> Option<Range<u64>> {
    let requested = std::env::var("DEVIATIONS").ok()?;
    let (first, end) = requested.split_once("..").unwrap_or(("0", &requested));
    Some(first.parse().unwrap()..end.parse().unwrap())
}

/// Plays seeds on all cores.
fn play_many(seeds: &Range<u64>) -> Tally {
    let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get() as u64);
    std::thread::scope(|scope| {
        let share = |of: u64| {
            let seeds = seeds.start + of..seeds.end;
            move || play(seeds.step_by(threads as usize), Defences::default(), false)
        };
        let running: Vec<_> = (0..threads).map(|of| scope.spawn(share(of))).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).fold(Tally::default(), |mut all, part| {
            all.answered += part.answered;
            all.sums += part.sums;
            all.losses += part.losses;
            all.read.extend(part.read);
            all
        })
    })
}

/// Returns the requested seeds, or a few.
fn seeds() -> Range<u64> {
    requested().unwrap_or(0..FEW_SEEDS)
}

/// Returns the time limit for so many seeds: ten minutes and a second for each.
fn time_limit(seeds: &Range<u64>) -> Duration {
    Duration::from_secs(600 + seeds.end.saturating_sub(seeds.start))
}

#[test]
fn random_deviations_read_no_device_and_no_sum_below_the_minimum() {
    let _limit = watchdog::start_with(time_limit(&seeds()));
    let seeds = seeds();
    let tally = play_many(&seeds);
    println!("seeds {seeds:?}: devices answered in {}, {} sums", tally.answered, tally.sums);
    assert!(tally.read.is_empty(), "{:?}", tally.read);
    assert_eq!(tally.losses, 0);
    // Most deviations must be plausible.
    let seeds = (seeds.end - seeds.start) as usize;
    assert!(2 * tally.answered > seeds && 3 * tally.sums > seeds, "{tally:?}");
}

#[test]
fn the_same_deviations_read_devices_without_a_defence() {
    let _limit = watchdog::start();
    let all = Defences::default();
    let without = |defence| all.without(defence);
    // Each begins shortly before a seed that reads a device.
    for (name, defences, first) in [
        ("once-per-round", without(Defence::OncePerRound), 12),
        // The ledger would refuse the second track.
        ("one-track-per-device", without(Defence::OneTrackPerDevice).without(Defence::OncePerRound), 40),
        ("attestations", all.without_protocol(ProtocolDefence::Attestations), 2),
    ] {
        let tally = play(first..1000, defences, true);
        assert!(!tally.read.is_empty(), "{name}: {tally:?}");
        println!("without {name}: {:?}", tally.read);
    }
    let tally = play(0..100, without(Defence::NoLossInPrivate), true);
    assert!(tally.losses > 0, "no-loss-in-private");
}
