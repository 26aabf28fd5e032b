//! The cohort S_t of a round (Algorithm 2, line 2), and devices that are unavailable or drop out.
//!
//! Drawing m of N devices costs O(m), independent of N.

use std::collections::HashMap;
use std::f64::consts::TAU;
use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use crate::exchange::{CohortMember, Reachable, TrainIndex};
use crate::stream::{Purpose, Stream};

/// The parameters of drawing a cohort.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// m: the size of the cohort.
    pub cohort_size: usize,
    /// Whether to make m independent draws, as in the paper, instead of drawing m distinct devices.
    pub with_replacement: bool,
    /// The devices that are available, and those that drop out.
    pub availability: Availability,
}

/// Devices that are unavailable or drop out during a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Availability {
    /// The probability that a drawn device drops out before it answers.
    pub drop_out: Probability,
    /// Availability that depends on the time of day.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub diurnal: Option<Diurnal>,
}

/// A day of `period` rounds. Device k is available with a probability between `low` (at its noon)
/// and 1 (at its midnight, when it is idle and charging). Its time zone is drawn once.
/// ```text
/// P(k reachable in round t) = low + (1 − low)·(1 + cos 2π(t/period − zone_k))/2
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Diurnal {
    /// Rounds per day.
    pub period: NonZeroU32,
    /// The probability at the worst hour.
    pub low: Probability,
}

/// A number in [0, 1].
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Probability(f64);

impl Probability {
    /// Returns the number.
    pub fn get(self) -> f64 {
        self.0
    }
}

/// A number that is not a probability.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("expected a number in [0, 1], got {got}")]
pub struct InvalidProbability {
    /// The rejected number.
    pub got: f64,
}

impl TryFrom<f64> for Probability {
    type Error = InvalidProbability;

    fn try_from(number: f64) -> Result<Self, InvalidProbability> {
        if (0.0..=1.0).contains(&number) { Ok(Self(number)) } else { Err(InvalidProbability { got: number }) }
    }
}

impl From<Probability> for f64 {
    fn from(probability: Probability) -> Self {
        probability.0
    }
}

impl Diurnal {
    fn reachable(&self, seed: u64, round: u64, device: u32) -> bool {
        // The zone does not depend on the round. Round u64::MAX is never trained.
        let zone = Stream::new(seed, Purpose::Availability, u64::MAX, u64::from(device)).unit();
        let hour = round as f64 / f64::from(self.period.get()) - zone;
        let low = self.low.get();
        let probability = low + (1.0 - low) * (1.0 + (TAU * hour).cos()) / 2.0;
        Stream::new(seed, Purpose::Availability, round, u64::from(device)).unit() < probability
    }
}

/// Identifies a cohort of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draw {
    /// The seed of the run.
    pub seed: u64,
    /// t: the round.
    pub round: u64,
    /// The number of previous attempts. A round that too many devices left is repeated with another
    /// cohort.
    pub attempt: u64,
}

impl Sampling {
    /// Draws S_t: up to m of `devices` devices, or fewer if fewer are available.
    ///
    /// Devices are drawn in an order that does not depend on reachability, and unreachable ones are
    /// skipped. If all devices of a cohort are reachable, the cohort is the same as with all
    /// devices reachable.
    pub fn cohort(&self, devices: usize, draw: Draw, present: &Reachable) -> Vec<CohortMember> {
        let Draw { seed, round, attempt } = draw;
        let awake = |device: u32| match &self.availability.diurnal {
            Some(diurnal) => diurnal.reachable(seed, round, device),
            None => true,
        };
        let reachable = |&device: &u32| present.contains(TrainIndex(device)) && awake(device);
        let mut stream = Stream::new(seed, Purpose::Cohort, round, attempt);
        if self.with_replacement {
            // The number of draws is bounded: if no device is available, the cohort is empty.
            let draws = (0..100 * self.cohort_size).map(|_| stream.below(devices as u64) as u32);
            self.counted(draws.filter(reachable).take(self.cohort_size), seed, round)
        } else {
            let order = Permutation { stream, devices: devices as u64, moved: HashMap::new(), next: 0 };
            self.counted(order.filter(reachable).take(self.cohort_size), seed, round)
        }
    }

    /// Returns each drawn device once, with its number of draws, in the order of the first draw.
    fn counted(&self, draws: impl Iterator<Item = u32>, seed: u64, round: u64) -> Vec<CohortMember> {
        let mut cohort: Vec<CohortMember> = Vec::with_capacity(self.cohort_size);
        let mut position = HashMap::with_capacity(self.cohort_size);
        for device in draws {
            let at = *position.entry(device).or_insert(cohort.len());
            if at == cohort.len() {
                let dropped = self.drops(device, seed, round);
                cohort.push(CohortMember { device: TrainIndex(device), times: 0, dropped });
            }
            cohort[at].times += 1;
        }
        cohort
    }

    fn drops(&self, device: u32, seed: u64, round: u64) -> bool {
        let drop_out = self.availability.drop_out.get();
        drop_out > 0.0 && Stream::new(seed, Purpose::DropOut, round, u64::from(device)).unit() < drop_out
    }
}

/// A uniform permutation of `0..devices`, one element at a time: Fisher–Yates on a sparse array.
struct Permutation {
    stream: Stream,
    devices: u64,
    moved: HashMap<u64, u64>,
    next: u64,
}

impl Iterator for Permutation {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        if self.next == self.devices {
            return None;
        }
        let i = self.next;
        let j = i + self.stream.below(self.devices - i);
        let at_i = self.moved.remove(&i).unwrap_or(i);
        let drawn = if i == j { at_i } else { self.moved.insert(j, at_i).unwrap_or(j) };
        self.next += 1;
        Some(drawn as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cohort(sampling: Sampling, devices: usize, seed: u64, round: u64) -> Vec<CohortMember> {
        sampling.cohort(devices, Draw { seed, round, attempt: 0 }, &Reachable::Everyone)
    }

    fn sampling(cohort_size: usize) -> Sampling {
        Sampling { cohort_size, with_replacement: false, availability: Availability::default() }
    }

    #[test]
    fn without_replacement_devices_are_distinct_and_at_most_all() {
        for (m, n) in [(5, 100), (100, 100), (200, 50)] {
            let mut devices: Vec<u32> = cohort(sampling(m), n, 1, 2).iter().map(|d| d.device.0).collect();
            devices.sort_unstable();
            devices.dedup();
            assert_eq!(devices.len(), m.min(n));
            assert!(devices.iter().all(|&k| (k as usize) < n));
        }
    }

    #[test]
    fn every_device_is_drawn_equally_often() {
        let mut counts = vec![0u32; 20];
        for round in 0..20_000 {
            for drawn in cohort(sampling(5), 20, 7, round) {
                counts[drawn.device.place()] += 1;
            }
        }
        assert!(counts.iter().all(|&c| (4_700..5_300).contains(&c)), "{counts:?}");
    }

    #[test]
    fn with_replacement_draws_are_counted() {
        let cohort = cohort(Sampling { with_replacement: true, ..sampling(50) }, 10, 1, 1);
        assert_eq!(cohort.iter().map(|d| d.times).sum::<u32>(), 50);
        assert!(cohort.len() <= 10);
    }

    #[test]
    fn a_tenth_of_the_devices_drops_out() {
        let availability = Availability { drop_out: Probability(0.1), diurnal: None };
        let sampling = Sampling { availability, ..sampling(100) };
        let dropped: usize =
            (0..100).map(|t| cohort(sampling, 1000, 1, t).iter().filter(|d| d.dropped).count()).sum();
        assert!((900..1100).contains(&dropped), "{dropped}");
    }

    #[test]
    fn at_noon_fewer_devices_can_be_reached() {
        let diurnal = Diurnal { period: NonZeroU32::new(24).unwrap(), low: Probability(0.2) };
        let reached = |round| (0..4000).filter(|&k| diurnal.reachable(1, round, k)).count();
        let zone = |k: u32| Stream::new(1, Purpose::Availability, u64::MAX, u64::from(k)).unit();
        let at_midnight = (0..4000).filter(|&k| zone(k) < 0.05 && diurnal.reachable(1, 0, k)).count();
        let at_noon =
            (0..4000).filter(|&k| (zone(k) - 0.5).abs() < 0.025 && diurnal.reachable(1, 0, k)).count();
        assert!(at_noon * 3 < at_midnight, "{at_noon} {at_midnight}");
        assert!((2_000..2_800).contains(&reached(3)), "{}", reached(3));
    }

    #[test]
    fn absent_devices_are_passed_over_and_move_nobody_else() {
        let draw = Draw { seed: 1, round: 4, attempt: 0 };
        let everyone = sampling(30).cohort(40, draw, &Reachable::Everyone);
        let absent: Vec<TrainIndex> = everyone.iter().step_by(7).map(|drawn| drawn.device).collect();
        let present = Reachable::Some((0..40).map(|k| !absent.contains(&TrainIndex(k))).collect());
        let staying: Vec<CohortMember> =
            everyone.into_iter().filter(|d| !absent.contains(&d.device)).collect();
        let cohort = sampling(30).cohort(40, draw, &present);
        assert_eq!((&cohort[..staying.len()], cohort.len()), (&staying[..], 30));
    }

    #[test]
    fn another_attempt_draws_another_cohort() {
        let of = |attempt| sampling(5).cohort(100, Draw { seed: 1, round: 2, attempt }, &Reachable::Everyone);
        assert_ne!(of(0), of(1));
    }

    #[test]
    fn nobody_reachable_is_an_empty_cohort() {
        let diurnal = Diurnal { period: NonZeroU32::MIN, low: Probability(0.0) };
        let availability = Availability { diurnal: Some(diurnal), ..Availability::default() };
        for with_replacement in [false, true] {
            let sampling = Sampling { cohort_size: 5, with_replacement, availability };
            assert!(cohort(sampling, 20, 1, 0).len() <= 5);
        }
    }
}
