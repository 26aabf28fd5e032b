//! `[data.split]`: who trains, who tests, who is held out.
//!
//! ```toml
//! split = { train = 0.5, validation = 0.1, seed = 1, min_examples = 0 }      # by device
//! split = { within = { train = 0.8, validation = 0.1, seed = 1 } }         # the examples of each device
//! split = { given = { train = ["anna", "boris"], test = ["clara"] } }      # as a list says
//! ```

use deltafl::data::synthetic::Fraction;
use deltafl::data::{DeviceSplit, Federation, GivenSplit, InvalidSplit, WithinSplit};
use serde::{Deserialize, Serialize};

/// How a federation is split anew.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "RawSplit", into = "RawSplit")]
pub enum SplitSection {
    /// Devices: some train, the others are never seen in training.
    Devices(DeviceSplit),
    /// The examples of each device.
    Within(WithinSplit),
    /// Devices, as a list says.
    Given(GivenSplit),
}

/// The section as it is written.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSplit {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    train: Option<Fraction>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    validation: Option<Fraction>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    seed: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    min_examples: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sample: Option<Fraction>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    within: Option<WithinSplit>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    given: Option<GivenSplit>,
}

/// Why a section cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidSplitSection {
    /// More than one way to split.
    #[error(
        "a split is by device (train, validation, seed, min_examples, sample), or `within` each device, or `given`: one of them alone"
    )]
    Several,
    /// More examples than there are.
    #[error("the shares `train` and `validation` come to more than 1")]
    Shares,
}

impl TryFrom<RawSplit> for SplitSection {
    type Error = InvalidSplitSection;

    fn try_from(raw: RawSplit) -> Result<Self, InvalidSplitSection> {
        let RawSplit { train, validation, seed, min_examples, sample, within, given } = raw;
        let by_device = train.is_some()
            || validation.is_some()
            || seed.is_some()
            || min_examples.is_some()
            || sample.is_some();
        match (within, given) {
            (None, None) => {
                let default = DeviceSplit::default();
                Ok(Self::Devices(DeviceSplit {
                    train: train.map_or(default.train, Fraction::get),
                    validation: validation.map_or(default.validation, Fraction::get),
                    seed: seed.unwrap_or(default.seed),
                    min_examples: min_examples.unwrap_or(default.min_examples),
                    sample: sample.map_or(default.sample, Fraction::get),
                }))
            }
            (Some(within), None) if !by_device => {
                let shares = within.train.get() + within.validation.get();
                if shares > 1.0 { Err(InvalidSplitSection::Shares) } else { Ok(Self::Within(within)) }
            }
            (None, Some(given)) if !by_device => Ok(Self::Given(given)),
            _ => Err(InvalidSplitSection::Several),
        }
    }
}

impl From<SplitSection> for RawSplit {
    fn from(section: SplitSection) -> Self {
        match section {
            SplitSection::Devices(split) => Self {
                train: Fraction::new(split.train),
                validation: Fraction::new(split.validation),
                seed: Some(split.seed),
                min_examples: Some(split.min_examples),
                // Everyone is not written: the address is that of a split without a sample.
                sample: Fraction::new(split.sample).filter(|sample| sample.get() < 1.0),
                ..Self::default()
            },
            SplitSection::Within(within) => Self { within: Some(within), ..Self::default() },
            SplitSection::Given(given) => Self { given: Some(given), ..Self::default() },
        }
    }
}

impl SplitSection {
    /// The federation, split so.
    pub fn apply(&self, federation: Federation) -> Result<Federation, InvalidSplit> {
        match self {
            Self::Devices(split) => federation.split_devices(split),
            Self::Within(split) => federation.split_within(split),
            Self::Given(split) => federation.split_given(split),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<SplitSection, String> {
        toml::from_str(text).map_err(|error| error.message().to_owned())
    }

    #[test]
    fn each_form_survives_being_written_out() {
        for text in [
            "train = 0.25",
            "sample = 0.5",
            "[within]\ntrain = 0.5",
            "[given]\ntrain = ['a']\ntest = ['b']",
            "",
        ] {
            let section = read(text).unwrap();
            assert_eq!(read(&toml::to_string(&section).unwrap()).unwrap(), section, "{text}");
        }
    }

    #[test]
    fn forms_do_not_mix_and_shares_are_shares() {
        assert!(read("train = 0.5\n[within]\ntrain = 0.5").unwrap_err().contains("one of them alone"));
        assert!(read("train = 1.5").unwrap_err().contains("a share must lie in [0, 1], got 1.5"));
        assert!(read("[within]\ntrain = 0.9\nvalidation = 0.2").unwrap_err().contains("more than 1"));
        assert!(read("[within]\ntest = 0.9").unwrap_err().contains("unknown field `test`"));
    }
}
