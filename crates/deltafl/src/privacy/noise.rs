//! The noise of a query: its parameters, its cost and its place in an answer.
//!
//! A device answers a noisy query in three steps. It computes integers whose norm is bounded, it
//! adds a discrete Gaussian to every entry, and it sends the result inside a sum. A device that
//! does not contribute, for example because it is not in the tail, sends noise around zero.
//!
//! All entries of a noisy sum fit into 32 bits with a sign, so that secure aggregation sums them in
//! Z_2³².

use deltafl_secagg::noise::{DiscreteGaussian, MAX_VARIANCE};

use super::excess::{Excess, FINE_LEVEL, NoiseLevels};
use super::{Rho, Sensitivity, update};
use crate::question::{Ask, MAX_MEMBERS};
use crate::stream::{BulkWords, Stream};
use crate::superquantile::private::QuantileQuery;
use crate::terms::Clip;

/// The largest number of units of a count or of a clipped update.
const MAX_UNITS: u32 = 1 << 24;
/// The smallest variance that calibration selects, so that its rounding costs little.
const FINE_VARIANCE: f64 = 64.0;
/// The standard deviations of the sum that must fit into the ring.
const DEVIATIONS: f64 = 12.0;

/// The noise of a query. It is part of the bytes that devices sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Noise {
    /// σ² of the noise that each device adds to each entry, in units; 0 if the server adds the
    /// noise. With `excess`, this is the sum of all parts.
    pub variance: u32,
    /// The units of one device in a count, or of the longest update. A multiple of 8.
    pub units: u32,
    /// The number of devices whose noise the sum contains for certain, without accomplices of the
    /// server.
    pub honest: u32,
    /// C, the maximum norm of an update; `None` for counts.
    pub clip: Option<Clip>,
    /// The removal of noise after the survivors are known; `None` if all noise stays.
    pub excess: Option<Excess>,
}

/// A budget for which no noise exists: the sum would need more bits, or more noise than one device
/// can add.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error(
    "the noise of this budget does not fit: each device would need a standard deviation of {deviation:.0} units"
)]
pub struct NoiseTooLarge {
    /// The standard deviation of one device's noise.
    pub deviation: f64,
}

impl Noise {
    /// Returns the noise with which the sum of a query over at most `members` devices costs at most
    /// `rho`. `honest` devices share it. `clip` must be present for an update.
    ///
    /// # Errors
    ///
    /// The noise of one device would exceed the largest supported variance.
    pub fn calibrated(
        ask: &Ask,
        params: usize,
        clip: Option<Clip>,
        rho: Rho,
        honest: u32,
        members: u32,
    ) -> Result<Self, NoiseTooLarge> {
        Self::calibrated_with(ask, params, clip, rho, honest, members, None)
    }

    /// Returns the noise of [`calibrated`](Self::calibrated), with the removal of excess noise.
    pub(super) fn calibrated_with(
        ask: &Ask,
        params: usize,
        clip: Option<Clip>,
        rho: Rho,
        honest: u32,
        members: u32,
        excess: Option<Excess>,
    ) -> Result<Self, NoiseTooLarge> {
        let with = |units: u32| Self { variance: 1, units, honest, clip, excess };
        let fine = match excess {
            // The first level is lower than the variance.
            Some(Excess { accomplices, most }) => {
                FINE_LEVEL * f64::from(most.saturating_sub(accomplices)) / f64::from(honest.max(1))
            }
            None => FINE_VARIANCE,
        };
        let needed = |units: u32| with(units).sensitivity(ask, params).variance(rho, honest.into());
        let mut units = match ask {
            Ask::Update { .. } => update::fine_units(params),
            Ask::Quantile(_) | Ask::Evaluation(_) => 8,
        };
        while needed(units) < fine && units < MAX_UNITS {
            units *= 2;
        }
        let fits = |units: u32| {
            let variance = needed(units).ceil();
            variance <= f64::from(MAX_VARIANCE)
                && Self { variance: variance as u32, ..with(units) }.fits(ask, params, members)
        };
        while units > 8 && !fits(units) {
            units /= 2;
        }
        if !fits(units) {
            return Err(NoiseTooLarge { deviation: needed(units).sqrt() });
        }
        Ok(Self { variance: needed(units).ceil() as u32, ..with(units) })
    }

    /// Returns `true` if the values are in range and a sum over `members` devices fits into 32
    /// bits.
    pub fn fits(&self, ask: &Ask, params: usize, members: u32) -> bool {
        let in_range = self.variance <= MAX_VARIANCE
            && (8..=MAX_UNITS).contains(&self.units)
            && self.units.is_multiple_of(8)
            && (1..=MAX_MEMBERS).contains(&self.honest)
            && self.excess.is_none_or(|excess| excess.fits(self.honest))
            && matches!(ask, Ask::Update { .. }) == self.clip.is_some();
        let members = f64::from(members);
        let noise = DEVIATIONS * (members * f64::from(self.variance)).sqrt();
        in_range && members * self.largest(ask, params) + noise < f64::from(1_u32 << 31)
    }

    /// Returns the largest entry of an answer before noise.
    fn largest(&self, ask: &Ask, params: usize) -> f64 {
        match ask {
            Ask::Update { .. } => update::rounded_norm(self.units, update::padded(params)),
            Ask::Quantile(_) | Ask::Evaluation(_) => f64::from(self.units),
        }
    }

    /// Returns the length of an answer for params with this many entries.
    pub fn answer_len(&self, ask: &Ask, params: usize) -> usize {
        match ask {
            Ask::Update { .. } => update::answer_len(params),
            ask => ask.answer_len(params),
        }
    }

    /// Returns the influence of one device on the sum of a query.
    pub fn sensitivity(&self, ask: &Ask, params: usize) -> Sensitivity {
        let (entries, units) = (self.answer_len(ask, params) as u64, f64::from(self.units));
        let counted = |places: f64| Sensitivity { entries, l2: units * places.sqrt(), l1: units * places };
        match ask {
            Ask::Quantile(QuantileQuery::Tree(tree)) => counted(f64::from(tree.height() + 1)),
            Ask::Quantile(_) => counted(1.0),
            Ask::Evaluation(measures) => counted(measures.len() as f64),
            Ask::Update { .. } => update::sensitivity(self.units, params),
        }
    }

    /// Returns the cost of the sum if at least `honest` devices add their noise and `colluding`
    /// others may subtract theirs. It is unbounded for queries to which noise does not apply.
    pub fn rho(&self, ask: &Ask, params: usize, honest: u64, colluding: u64) -> Rho {
        let total = NoiseLevels::new(self).guaranteed(honest, colluding);
        self.rho_of_total(ask, params, total, honest)
    }

    /// Returns the cost of the sum over `survivors` devices, of which `colluding` may subtract
    /// their noise. Excess noise is removed.
    pub(super) fn rho_after(&self, ask: &Ask, params: usize, survivors: u64, colluding: u64) -> Rho {
        let honest = survivors.saturating_sub(colluding);
        self.rho_of_total(ask, params, u64::from(self.kept_variance(survivors)) * honest, honest)
    }

    /// The sum of the honest devices' noise has this variance.
    fn rho_of_total(&self, ask: &Ask, params: usize, total: u64, honest: u64) -> Rho {
        match ask {
            Ask::Quantile(QuantileQuery::Histogram(_) | QuantileQuery::MeanStep { .. }) => Rho::UNBOUNDED,
            ask => self.sensitivity(ask, params).rho_of_total(total as f64, honest),
        }
    }

    /// Returns σ² of the noise of one device that stays in a sum over `survivors` devices.
    pub(crate) fn kept_variance(&self, survivors: u64) -> u32 {
        let levels = NoiseLevels::new(self);
        levels.variance(levels.kept(survivors))
    }

    /// Adds the noise of one device to its answer, without the parts that can be removed. A device
    /// with variance 0 adds none.
    pub(crate) fn add_to(&self, answer: &mut [u64], stream: &mut Stream) {
        if let Ok(noise) = DiscreteGaussian::new(NoiseLevels::new(self).variance(0)) {
            add_samples(&noise, answer, stream);
        }
    }

    /// Adds an exact answer of counts to a noisy sum, in units.
    pub(crate) fn add_counts(&self, counts: &[u64], sum: &mut [u64]) {
        for (sum, count) in sum.iter_mut().zip(counts) {
            *sum = sum.wrapping_add(count.wrapping_mul(self.units.into()));
        }
    }

    /// Decodes a sum of counts.
    pub(crate) fn counts(&self, sum: &[u64]) -> Vec<f64> {
        sum.iter().map(|&entry| signed(entry) / f64::from(self.units)).collect()
    }

    /// Returns the standard deviation of a count in a sum over this many devices, in devices.
    pub fn deviation(&self, devices: u64) -> f64 {
        (f64::from(self.kept_variance(devices)) * devices as f64).sqrt() / f64::from(self.units)
    }
}

/// Adds a sample to each entry.
pub(super) fn add_samples(noise: &DiscreteGaussian, entries: &mut [u64], stream: &mut Stream) {
    let mut words = BulkWords::new(stream);
    let mut buffer = [0; BulkWords::BATCH];
    for entries in entries.chunks_mut(BulkWords::BATCH) {
        let words = words.next(entries.len(), &mut buffer);
        noise.add_words(entries, words, &mut || stream.next_u64());
    }
}

/// Returns an entry of a sum modulo 2³² as a number with a sign.
pub(crate) fn signed(entry: u64) -> f64 {
    f64::from(entry as u32 as i32)
}

/// Returns the non-negative counts closest to noisy ones, with about the same total: each count is
/// lowered by a common amount and cut off at zero.
pub(crate) fn projected(noisy: &[f64]) -> Vec<u64> {
    let total = noisy.iter().sum::<f64>().max(0.0);
    let mut sorted = noisy.to_vec();
    sorted.sort_unstable_by(|a, b| b.total_cmp(a));
    let (mut sum, mut lowered) = (0.0, 0.0);
    for (i, count) in sorted.iter().enumerate() {
        sum += count;
        let by = (sum - total) / (i + 1) as f64;
        if *count <= by {
            break;
        }
        lowered = by;
    }
    // Rounding carries the remainder along, so that the total stays.
    let mut remainder = 0.0;
    let rounded = |count: &f64| {
        let exact = (count - lowered).max(0.0) + remainder;
        let whole = exact.round().max(0.0);
        remainder = exact - whole;
        whole as u64
    };
    noisy.iter().map(rounded).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluation::Measure;
    use crate::selection::Weighting;
    use crate::superquantile::private::TreeBins;
    use crate::task::Task;
    use crate::trainer::{LocalPlan, Work};

    fn asks() -> [Ask; 3] {
        let plan = LocalPlan {
            work: Work::Epochs(1),
            batch: 10,
            learning_rate: 0.1,
            l2: 0.0,
            proximal: 0.0,
            correction: None,
        };
        [
            Ask::Quantile(QuantileQuery::Tree(TreeBins::new(0.0, 8.0, 8).unwrap())),
            Ask::Evaluation(Measure::of_task(Task::Classes)),
            Ask::Update { weighting: Weighting::everyone(), plan },
        ]
    }

    #[test]
    fn calibrated_noise_spends_its_budget_and_no_more() {
        for ask in asks() {
            let clip = matches!(ask, Ask::Update { .. }).then(|| Clip::try_from(0.3).unwrap());
            for multiplier in [0.3, 1.0, 10.0, 60.0] {
                let rho = Rho::from_noise_multiplier(multiplier);
                let noise = Noise::calibrated(&ask, 115_646, clip, rho, 137, 500).unwrap();
                let spent = noise.rho(&ask, 115_646, 137, 25);
                assert!(spent <= rho && spent.get() > 0.97 * rho.get(), "{ask:?} {multiplier}: {spent:?}");
                assert!(noise.fits(&ask, 115_646, 500), "{noise:?}");
                assert!(noise.rho(&ask, 115_646, 138, 25) < spent, "more devices, more noise");
            }
        }
        let rho = Rho::from_noise_multiplier(1e9);
        assert!(Noise::calibrated(&asks()[0], 10, None, rho, 1, 10).is_err());
    }

    #[test]
    fn projected_counts_keep_the_total() {
        assert_eq!(projected(&[10.0, 0.0, 3.0]), [10, 0, 3]);
        let noisy: Vec<f64> = (0..100).map(|i| if i == 7 { 50.0 } else { f64::from(i % 5) - 2.0 }).collect();
        let counts = projected(&noisy);
        let total = noisy.iter().sum::<f64>();
        assert!((counts.iter().sum::<u64>() as f64 - total).abs() <= 1.0);
        assert!(counts[7] > 40, "{counts:?}");
        assert_eq!(projected(&[-3.0, -1.0]), [0, 0]);
    }
}
