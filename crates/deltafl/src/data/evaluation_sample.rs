//! A fixed sample of the devices that is evaluated instead of all of them.
//!
//! Evaluating every device of a large federation can take longer than training it. The sample is
//! the same in every evaluation of every run on these devices, so that curves and tracks can be
//! compared. Its uncertainty is reported as a standard error
//! ([`metrics::standard_errors`](crate::metrics::standard_errors)).

use std::num::NonZeroUsize;

use super::{Federation, FederationIndex, Split};
use crate::stream::{Purpose, Stream};

/// The seed of the sample, independent of any run.
const SEED: u64 = 1;

impl Federation {
    /// Returns the same federation, with at most this many evaluated devices per split, or all for
    /// `None`.
    #[must_use]
    pub fn evaluating(mut self, devices: Option<NonZeroUsize>) -> Self {
        self.evaluation_sample = devices;
        self
    }

    /// Returns true if not all devices are evaluated.
    pub fn evaluates_a_sample(&self) -> bool {
        let splits = [Split::Train, Split::Test, Split::Validation];
        splits.iter().any(|&split| self.evaluated(split).len() < self.split(split).len())
    }

    /// Returns the evaluated devices of a split in their order.
    pub fn evaluated(&self, split: Split) -> Vec<FederationIndex> {
        let mut devices = self.split(split);
        let Some(most) = self.evaluation_sample.filter(|most| most.get() < devices.len()) else {
            return devices;
        };
        // The split of the devices uses the streams of rounds 0 and 1.
        Stream::new(SEED, Purpose::Split, 2, split as u64).shuffle(&mut devices);
        devices.truncate(most.get());
        devices.sort_unstable();
        devices
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{DeviceExamples, FederationBuilder, InputKind};

    fn federation(devices: u32) -> Federation {
        let mut builder = FederationBuilder::new("t", InputKind::Bytes { dim: 1 }, 1);
        for k in 0..devices {
            let split = if k % 2 == 0 { Split::Train } else { Split::Test };
            builder.push(&k.to_string(), split, DeviceExamples::Bytes(&[0]), &[0]).unwrap();
        }
        builder.build()
    }

    #[test]
    fn a_sample_is_fixed_and_of_the_split() {
        let sampled = federation(100).evaluating(NonZeroUsize::new(20));
        let test = sampled.evaluated(Split::Test);
        assert_eq!(test.len(), 20);
        assert!(test.is_sorted() && test.iter().all(|k| k.0 % 2 == 1), "{test:?}");
        assert_eq!(test, federation(100).evaluating(NonZeroUsize::new(20)).evaluated(Split::Test));
        assert_ne!(test, federation(100).split(Split::Test)[..20]);
        assert!(sampled.evaluates_a_sample());
    }

    #[test]
    fn a_sample_of_more_than_there_are_is_everyone() {
        for most in [None, NonZeroUsize::new(50), NonZeroUsize::new(500)] {
            let federation = federation(100).evaluating(most);
            assert_eq!(federation.evaluated(Split::Test), federation.split(Split::Test));
            assert!(!federation.evaluates_a_sample());
        }
    }
}
