//! Noise that is removed after the survivors of a sum are known.
//!
//! The noise of a sum must suffice for the smallest number of survivors. If more devices survive,
//! the sum has more noise than it needs. With removal, the noise of a device has several
//! independent parts with the variances v₀, v₁ − v₀, v₂ − v₁, …, up to the variance for the fewest
//! survivors. If s devices survive and c of them may help the server, parts 0 to ℓ stay:
//!
//! ```text
//! v_ℓ·(s − c) ≥ variance·honest,      the smallest such ℓ
//! ```
//!
//! Part i ≥ 1 is drawn from a key k_i, and k_{i+1} is a hash of k_i. After the devices have
//! attested the survivors, each of them reveals k_{ℓ+1}, and the server subtracts the parts after
//! ℓ. Part 0 is drawn from the private random numbers of the device, which it never reveals. The
//! levels grow by about a sixteenth, so that the remaining variance is within 7 % of the smallest
//! one that suffices.
//!
//! The noise of a device that disappears before it reveals its key stays in the sum.

use std::ops::RangeInclusive;

use deltafl_secagg::noise::{DiscreteGaussian, MIN_VARIANCE};

use super::Noise;
use super::noise::add_samples;
use crate::question::{MAX_MEMBERS, Query};
use crate::stream::Stream;

/// The reciprocal of the growth of the levels.
const GROWTH: u32 = 16;
/// The smallest v₀ at which steps of [`MIN_VARIANCE`] are not larger than the growth.
pub(super) const FINE_LEVEL: f64 = (GROWTH * MIN_VARIANCE) as f64;

/// The numbers that determine the parts of a noise, and the parts that stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Excess {
    /// c: the largest number of survivors that help the server.
    pub accomplices: u32,
    /// The largest number of survivors.
    pub most: u32,
}

impl Excess {
    /// Returns `true` if the numbers are in range for a noise of this many honest devices.
    pub(super) fn fits(&self, honest: u32) -> bool {
        self.most <= MAX_MEMBERS && self.accomplices.saturating_add(honest) <= self.most
    }
}

/// The levels v₀ < v₁ < … of a noise. Without removal there is one level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NoiseLevels {
    variances: Vec<u32>,
    /// variance·honest.
    needed: u64,
    accomplices: u64,
}

impl NoiseLevels {
    pub(crate) fn new(noise: &Noise) -> Self {
        let needed = u64::from(noise.variance) * u64::from(noise.honest);
        let Some(Excess { accomplices, most }) = noise.excess else {
            return Self { variances: vec![noise.variance], needed, accomplices: 0 };
        };
        let honest = u64::from(most.saturating_sub(accomplices).max(1));
        let least = u64::from(MIN_VARIANCE);
        let mut level = (needed.div_ceil(honest).max(least) as u32).min(noise.variance);
        let mut variances = Vec::new();
        while noise.variance - level >= MIN_VARIANCE {
            variances.push(level);
            level += (level / GROWTH).max(MIN_VARIANCE);
            // The last part also has a variance of at least the minimum.
            if level > noise.variance.saturating_sub(MIN_VARIANCE) {
                break;
            }
        }
        variances.push(noise.variance);
        Self { variances, needed, accomplices: accomplices.into() }
    }

    /// Returns the number of parts that can be removed.
    pub(crate) fn removable(&self) -> u32 {
        self.variances.len() as u32 - 1
    }

    /// Returns the fewest survivors for which the parts up to a level suffice.
    pub(crate) fn fewest(&self, level: u32) -> u64 {
        self.accomplices + self.needed.div_ceil(self.variance(level).into())
    }

    /// Returns ℓ: the last part that stays if this many devices survive.
    pub(crate) fn kept(&self, survivors: u64) -> u32 {
        (0..self.removable()).find(|&level| self.fewest(level) <= survivors).unwrap_or(self.removable())
    }

    /// Returns v_ℓ.
    pub(crate) fn variance(&self, level: u32) -> u32 {
        self.variances[level as usize]
    }

    /// Returns the variance of one part.
    fn part(&self, part: u32) -> u32 {
        self.variance(part) - part.checked_sub(1).map_or(0, |below| self.variance(below))
    }

    /// Returns the smallest total variance of the honest devices over all numbers of survivors, if
    /// at least `honest` of them are honest and `colluding` are not.
    pub(crate) fn guaranteed(&self, honest: u64, colluding: u64) -> u64 {
        let total = |level: u32, honest: u64| u64::from(self.variance(level)) * honest;
        let kept = self.kept(honest + colluding);
        let fewer = (0..kept).map(|level| total(level, self.fewest(level).saturating_sub(colluding)));
        fewer.fold(total(kept, honest), u64::min)
    }
}

/// Returns the last part that stays in the sum of a question over this many devices. It is the same
/// for all queries, because a device reveals one key.
pub(crate) fn last_kept<P>(queries: &[Query<P>], survivors: u64) -> u32 {
    let noises = queries.iter().filter_map(|query| query.noise.as_ref());
    noises.map(|noise| NoiseLevels::new(noise).kept(survivors)).max().unwrap_or(0)
}

/// Returns `true` if noise can be removed from the sum of a question.
pub(crate) fn is_removable<P>(queries: &[Query<P>]) -> bool {
    queries.iter().any(|query| query.noise.is_some_and(|noise| noise.excess.is_some()))
}

/// The key of a removable part and, by hashes, of all later parts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ExcessKey {
    key: [u8; 32],
    /// i of k_i, starting at 1.
    part: u32,
}

impl ExcessKey {
    /// Creates k₁ of a device for one question.
    pub(crate) fn first(mut stream: Stream) -> Self {
        let mut key = [0; 32];
        key.chunks_exact_mut(8).for_each(|part| part.copy_from_slice(&stream.next_u64().to_le_bytes()));
        Self { key, part: 1 }
    }

    /// Creates the key that a device reveals for a question with these queries if this many devices
    /// survive.
    pub fn revealed<P>(queries: &[Query<P>], survivors: u64, key: [u8; 32]) -> Self {
        Self { key, part: last_kept(queries, survivors) + 1 }
    }

    /// Returns k_i for a later part.
    pub(crate) fn later(self, part: u32) -> Self {
        (self.part..part).fold(self, |key, _| key.next())
    }

    /// Returns the bytes of the key.
    pub(crate) fn bytes(self) -> [u8; 32] {
        self.key
    }

    fn next(self) -> Self {
        let key = blake3::derive_key("deltafl key of the next part of a noise v1", &self.key);
        Self { key, part: self.part + 1 }
    }

    /// Returns the random numbers of the part for one query of a question.
    fn stream(self, query: u32) -> Stream {
        let mut hasher = blake3::Hasher::new_derive_key("deltafl part of the noise of a device v1");
        hasher.update(&self.key).update(&query.to_le_bytes());
        Stream::from_key(*hasher.finalize().as_bytes())
    }
}

/// Omits the key.
impl std::fmt::Debug for ExcessKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ExcessKey(part {})", self.part)
    }
}

/// The direction in which parts are applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Add,
    Subtract,
}

impl Noise {
    /// Adds the parts 1 to `last` of a device's noise to its answer to a query.
    pub(crate) fn add_parts(&self, first: ExcessKey, last: u32, query: u32, answer: &mut [u64]) {
        self.apply(first, 1..=last, query, Direction::Add, answer);
    }

    /// Adds all removable parts of a device's noise to its answer to a query.
    pub(crate) fn add_all_parts(&self, first: ExcessKey, query: u32, answer: &mut [u64]) {
        self.add_parts(first, NoiseLevels::new(self).removable(), query, answer);
    }

    /// Subtracts the parts of a revealed key from the sum of a query. `query` is the number of the
    /// query in its round.
    pub fn subtract_parts(&self, revealed: ExcessKey, query: u32, sum: &mut [u64]) {
        let parts = revealed.part..=NoiseLevels::new(self).removable();
        self.apply(revealed, parts, query, Direction::Subtract, sum);
    }

    /// Returns the distribution and the random numbers of each part for one query.
    pub(crate) fn parts(
        &self,
        key: ExcessKey,
        parts: RangeInclusive<u32>,
        query: u32,
    ) -> impl Iterator<Item = (Option<DiscreteGaussian>, Stream)> {
        let (levels, mut key) = (NoiseLevels::new(self), key.later(*parts.start()));
        parts.map(move |part| {
            let stream = key.stream(query);
            key = key.next();
            (DiscreteGaussian::new(levels.part(part)).ok(), stream)
        })
    }

    fn apply(
        &self,
        key: ExcessKey,
        parts: RangeInclusive<u32>,
        query: u32,
        direction: Direction,
        entries: &mut [u64],
    ) {
        let mut samples = vec![0; entries.len()];
        for (gaussian, mut stream) in self.parts(key, parts, query) {
            if let Some(gaussian) = gaussian {
                add_samples(&gaussian, &mut samples, &mut stream);
            }
        }
        for (entry, sample) in entries.iter_mut().zip(samples) {
            *entry = match direction {
                Direction::Add => entry.wrapping_add(sample),
                Direction::Subtract => entry.wrapping_sub(sample),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::question::Ask;
    use crate::stream::Purpose;

    /// The noise of a cohort of 1,000 on the full graph with 50 accomplices.
    fn noise(variance: u32) -> Noise {
        let excess = Some(Excess { accomplices: 50, most: 1000 });
        Noise { variance, units: 64, honest: 476, clip: None, excess }
    }

    #[test]
    fn the_kept_variance_suffices_and_is_within_a_tenth_of_the_smallest() {
        for variance in [600, 1000, 4096, 100_000, 1 << 24] {
            let noise = noise(variance);
            let levels = NoiseLevels::new(&noise);
            let needed = f64::from(variance) * 476.0;
            assert!((8..30).contains(&levels.removable()), "{levels:?}");
            assert!((0..=levels.removable()).all(|part| levels.part(part) >= MIN_VARIANCE), "{levels:?}");
            for survivors in 526..=1000_u64 {
                let kept = f64::from(levels.variance(levels.kept(survivors)));
                let ideal = needed / (survivors - 50) as f64;
                assert!(kept >= ideal && kept < 1.1 * ideal, "{variance} {survivors}: {kept} {ideal}");
            }
            // Fewer survivors than agreed keep everything.
            assert_eq!(levels.kept(100), levels.removable());
        }
    }

    #[test]
    fn a_device_with_other_assumptions_computes_the_smallest_total() {
        let noise = noise(4096);
        let levels = NoiseLevels::new(&noise);
        for (honest, colluding) in [(476, 50), (400, 50), (476, 0), (300, 226), (900, 100)] {
            let total =
                |survivors: u64| u64::from(levels.variance(levels.kept(survivors))) * (survivors - colluding);
            let least = (honest + colluding..=1000).map(total).min().unwrap();
            assert_eq!(levels.guaranteed(honest, colluding), least, "{honest} {colluding}");
        }
        // With the assumptions of the question, the total is the calibrated one.
        assert!(levels.guaranteed(476, 50) >= 4096 * 476);
    }

    #[test]
    fn little_noise_and_equal_numbers_have_one_level() {
        let equal = Some(Excess { accomplices: 50, most: 526 });
        for noise in
            [noise(20), Noise { excess: equal, ..noise(4096) }, Noise { excess: None, ..noise(4096) }]
        {
            let levels = NoiseLevels::new(&noise);
            assert_eq!((levels.removable(), levels.kept(1000)), (0, 0), "{levels:?}");
            assert_eq!(levels.variance(0), noise.variance);
        }
    }

    #[test]
    fn a_revealed_key_removes_the_later_parts_and_no_other() {
        let noise = noise(4096);
        let levels = NoiseLevels::new(&noise);
        let query = Query { noise: Some(noise), ..Query::new((), Ask::Evaluation(Vec::new())) };
        let first = ExcessKey::first(Stream::new(1, Purpose::ExcessNoise, 0, 0));
        for survivors in [526, 700, 1000] {
            let kept = levels.kept(survivors);
            let (mut answer, mut expected) = (vec![7; 600], vec![7; 600]);
            noise.add_all_parts(first, 5, &mut answer);
            noise.add_parts(first, kept, 5, &mut expected);
            assert!(kept == 0 || expected.iter().any(|&entry| entry != 7));
            let key = first.later(kept + 1).bytes();
            let revealed = ExcessKey::revealed(std::slice::from_ref(&query), survivors, key);
            noise.subtract_parts(revealed, 5, &mut answer);
            assert_eq!(answer, expected, "{survivors}");
        }
        assert_eq!(levels.kept(526), levels.removable(), "nothing is removed from the fewest");
        assert_eq!(format!("{first:?}"), "ExcessKey(part 1)");
    }
}
