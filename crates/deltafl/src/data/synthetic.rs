//! Synthetic federations that need no download. Everything is derived from a seed.
//!
//! Each device draws from its own [`Stream`], keyed by the seed and its index. Therefore a
//! federation has the same bytes on any number of threads, and its first devices do not depend on
//! the number of devices.

use serde::{Deserialize, Serialize};

use super::{Federation, Split};
use crate::stream::{Purpose, Stream};

pub mod glyphs;
mod language;
pub mod logistic;
pub mod roles;
pub mod tweets;
mod weighted;

pub use glyphs::Glyphs;
pub use logistic::SyntheticLogistic;
pub use roles::Roles;
pub use tweets::Tweets;

/// A synthetic federation and its options. In TOML: `{ kind = "glyphs", devices = 400 }`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Spec {
    /// Handwriting in the classes of EMNIST.
    Glyphs(Glyphs),
    /// The synthetic(α, β) federation of logistic models.
    #[serde(rename = "logistic")]
    SyntheticLogistic(SyntheticLogistic),
    /// Characters spoken by the roles of a play.
    Roles(Roles),
    /// Short messages with a polarity.
    Tweets(Tweets),
}

impl Spec {
    /// The names of the kinds.
    pub const KINDS: [&str; 4] = ["glyphs", "logistic", "roles", "tweets"];

    /// Generates the federation.
    ///
    /// ```
    /// use deltafl::data::synthetic::Spec;
    /// let spec: Spec = toml::from_str("kind = 'glyphs'\ndevices = 3\nseed = 7").expect("a valid spec");
    /// let federation = spec.build();
    /// assert_eq!((federation.len(), federation.classes()), (3, 62));
    /// assert_eq!(federation.hash(), spec.build().hash());
    /// ```
    pub fn build(&self) -> Federation {
        match self {
            Self::Glyphs(spec) => spec.build(),
            Self::SyntheticLogistic(spec) => spec.build(),
            Self::Roles(spec) => spec.build(),
            Self::Tweets(spec) => spec.build(),
        }
    }
}

/// The reason why options of a synthetic federation are invalid.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidSyntheticOption {
    /// Not a share.
    #[error("a share must lie in [0, 1], got {got}")]
    Fraction {
        /// The number given.
        got: f64,
    },
    /// The number is not a variance.
    #[error("a variance must be finite and not negative, got {got}")]
    Variance {
        /// The rejected number.
        got: f64,
    },
    /// The counts are out of order.
    #[error("examples per device need 1 ≤ min ≤ median ≤ max, got {min}, {median}, {max}")]
    Examples {
        /// The smallest count.
        min: u32,
        /// The median count.
        median: u32,
        /// The largest count.
        max: u32,
    },
}

/// A share in [0, 1].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Fraction(f64);

impl Fraction {
    /// Nothing.
    pub const NONE: Self = Self(0.0);

    /// One half.
    pub const HALF: Self = Self(0.5);

    /// Creates a share. Returns `None` unless it is in [0, 1].
    pub const fn new(share: f64) -> Option<Self> {
        if share >= 0.0 && share <= 1.0 { Some(Self(share)) } else { None }
    }

    /// Returns the number.
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl TryFrom<f64> for Fraction {
    type Error = InvalidSyntheticOption;

    fn try_from(got: f64) -> Result<Self, InvalidSyntheticOption> {
        Self::new(got).ok_or(InvalidSyntheticOption::Fraction { got })
    }
}

impl From<Fraction> for f64 {
    fn from(share: Fraction) -> Self {
        share.0
    }
}

/// A variance: finite and not negative.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Variance(f64);

impl Variance {
    /// Creates a variance. Returns `None` unless it is finite and not negative.
    pub const fn new(variance: f64) -> Option<Self> {
        if variance >= 0.0 && variance < f64::INFINITY { Some(Self(variance)) } else { None }
    }

    /// Returns the square root.
    pub fn deviation(self) -> f64 {
        self.0.sqrt()
    }
}

impl TryFrom<f64> for Variance {
    type Error = InvalidSyntheticOption;

    fn try_from(got: f64) -> Result<Self, InvalidSyntheticOption> {
        Self::new(got).ok_or(InvalidSyntheticOption::Variance { got })
    }
}

impl From<Variance> for f64 {
    fn from(variance: Variance) -> Self {
        variance.0
    }
}

/// The number of examples per device: at least `min`, half of the devices above `median`, and a
/// long tail up to `max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "RawExamplesPerDevice", into = "RawExamplesPerDevice")]
pub struct ExamplesPerDevice {
    min: u32,
    median: u32,
    max: u32,
}

/// The serialised form of [`ExamplesPerDevice`].
#[derive(Serialize, Deserialize)]
#[serde(rename = "ExamplesPerDevice", deny_unknown_fields)]
struct RawExamplesPerDevice {
    min: u32,
    median: u32,
    max: u32,
}

impl ExamplesPerDevice {
    /// Creates the counts. Returns `None` unless 1 ≤ min ≤ median ≤ max.
    pub const fn new(min: u32, median: u32, max: u32) -> Option<Self> {
        if 1 <= min && min <= median && median <= max { Some(Self { min, median, max }) } else { None }
    }

    /// Draws n = min + (median − min)·exp(σz) with z ~ N(0, 1), limited to max.
    fn draw(self, sigma: f64, stream: &mut Stream) -> u32 {
        let above = f64::from(self.median - self.min) * (sigma * stream.normal()).exp();
        self.min.saturating_add(above.round() as u32).min(self.max)
    }
}

impl TryFrom<RawExamplesPerDevice> for ExamplesPerDevice {
    type Error = InvalidSyntheticOption;

    fn try_from(
        RawExamplesPerDevice { min, median, max }: RawExamplesPerDevice,
    ) -> Result<Self, InvalidSyntheticOption> {
        Self::new(min, median, max).ok_or(InvalidSyntheticOption::Examples { min, median, max })
    }
}

impl From<ExamplesPerDevice> for RawExamplesPerDevice {
    fn from(ExamplesPerDevice { min, median, max }: ExamplesPerDevice) -> Self {
        Self { min, median, max }
    }
}

/// The rank of a device among the odd ones, who come at even distances; `None` for the many.
fn odd_rank(odd: Fraction, device: u32) -> Option<usize> {
    let odd_before = |devices: u32| (f64::from(devices) * odd.get()).floor() as usize;
    let rank = odd_before(device);
    (rank < odd_before(device + 1)).then_some(rank)
}

/// The split of each device: of every kind of device a random `train` share trains and the others
/// test, so that both halves hold the same population.
fn assign_splits<K: Ord>(seed: u64, kinds: &[K], train: Fraction) -> Vec<Split> {
    let mut order: Vec<usize> = (0..kinds.len()).collect();
    Stream::new(seed, Purpose::Split, 0, 0).shuffle(&mut order);
    order.sort_by_key(|&device| &kinds[device]);
    let trained_before = |rank: usize| (train.get() * rank as f64).round() as usize;
    let mut splits = vec![Split::Test; kinds.len()];
    for (rank, device) in order.into_iter().enumerate() {
        if trained_before(rank) < trained_before(rank + 1) {
            splits[device] = Split::Train;
        }
    }
    splits
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        toml::from_str::<Spec>(text).unwrap_err().to_string()
    }

    #[test]
    fn options_that_make_no_sense_are_refused() {
        assert!(refusal("kind = 'glyphs'\nodd = 1.4").contains("a share must lie in [0, 1], got 1.4"));
        assert!(refusal("kind = 'glyphs'\ntrain = nan").contains("got NaN"));
        assert!(
            refusal("kind = 'glyphs'\nexamples = { min = 9, median = 5, max = 20 }").contains("got 9, 5, 20")
        );
        assert!(refusal("kind = 'glyphs'\ndevices = 0").contains("nonzero"));
        assert!(refusal("kind = 'glyphs'\nwriters = 3").contains("unknown field `writers`"));
        assert!(refusal("kind = 'logistic'\nalpha = -1.0").contains("not negative, got -1"));
        assert!(refusal("kind = 'runes'").contains("unknown variant `runes`"));
    }

    #[test]
    fn a_spec_survives_being_written_out() {
        let spec: Spec = toml::from_str("kind = 'glyphs'\nseed = 9\nodd = 0.25").unwrap();
        assert_eq!(toml::from_str::<Spec>(&toml::to_string(&spec).unwrap()).unwrap(), spec);
    }

    #[test]
    fn counts_have_the_figures_they_were_asked_for() {
        let examples = ExamplesPerDevice::new(101, 179, 447).unwrap();
        let mut stream = Stream::new(1, Purpose::Synthesis, 0, 0);
        let mut counts: Vec<u32> = (0..2001).map(|_| examples.draw(0.7, &mut stream)).collect();
        counts.sort_unstable();
        assert!((101..110).contains(&counts[0]) && counts[2000] == 447, "{} {}", counts[0], counts[2000]);
        assert!(counts[1000].abs_diff(179) < 6, "{}", counts[1000]);
    }

    #[test]
    fn the_odd_devices_have_their_share() {
        let ranks = |odd| (0..50).filter_map(|device| odd_rank(odd, device)).collect::<Vec<_>>();
        assert_eq!(ranks(Fraction::new(0.2).unwrap()), (0..10).collect::<Vec<_>>());
        assert_eq!(ranks(Fraction::new(1.0).unwrap()).len(), 50);
        assert!(ranks(Fraction::new(0.0).unwrap()).is_empty());
    }

    #[test]
    fn every_kind_is_known_by_its_name_and_can_be_built_in_small() {
        for kind in Spec::KINDS {
            let spec: Spec = toml::from_str(&format!("kind = '{kind}'\ndevices = 6")).unwrap();
            let federation = spec.build();
            assert_eq!((federation.len(), federation.name()), (6, kind));
            assert_eq!(federation.split(Split::Train).len(), 3);
        }
    }

    #[test]
    fn the_split_follows_the_seed_and_the_share() {
        let trained = |splits: &[Split]| splits.iter().filter(|&&split| split == Split::Train).count();
        let kinds: Vec<u32> = (0..40).map(|device| u32::from(device % 5 == 0)).collect();
        let splits = assign_splits(1, &kinds, Fraction::HALF);
        assert_eq!(trained(&splits), 20);
        let odd: Vec<Split> = splits.iter().step_by(5).copied().collect();
        assert_eq!(trained(&odd), 4);
        assert_ne!(splits, assign_splits(2, &kinds, Fraction::HALF));
        assert_eq!(trained(&assign_splits(1, &kinds, Fraction::new(1.0).unwrap())), 40);
    }
}
