//! The values that a run adds to its experiment.

use deltafl::data::{Federation, Normalise, Split};
use deltafl::kernel::Isa;
use serde::{Deserialize, Serialize};

/// The values that a run folder adds to its experiment, which distinguish runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resolved {
    /// The version of Δ-FL.
    pub version: String,
    /// BLAKE3 of the data.
    pub data_hash: String,
    /// The instruction set of the kernels: bits may differ between two sets.
    pub kernel: Isa,
    /// The processor of the devices; the CPU for a run that does not record it.
    #[serde(default)]
    pub compute: BackendName,
    /// The number of parameters.
    pub params: usize,
    /// The normalisation of the data; `None` in the folders of earlier versions, whose files give
    /// it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub normalise: Option<Normalise>,
    /// The devices of each split, if a sample of them is evaluated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub population: Option<Population>,
}

/// The processor of the devices: bits may differ between two.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum BackendName {
    /// The CPU, with the instruction set [`Resolved::kernel`].
    #[default]
    Cpu,
    /// A GPU of this name.
    Gpu(String),
}

impl From<String> for BackendName {
    fn from(text: String) -> Self {
        if text == "cpu" { Self::Cpu } else { Self::Gpu(text) }
    }
}

impl From<BackendName> for String {
    fn from(place: BackendName) -> Self {
        match place {
            BackendName::Cpu => "cpu".to_owned(),
            BackendName::Gpu(name) => name,
        }
    }
}

/// The number of devices of each split, of which a sample is evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Population {
    /// Train devices.
    pub train: usize,
    /// Test devices.
    pub test: usize,
    /// Train devices held out for validation.
    pub validation: usize,
}

impl Population {
    /// Returns the numbers if the federation evaluates a sample; `None` if it evaluates every
    /// device.
    pub fn if_sampled(federation: &Federation) -> Option<Self> {
        let count = |split| federation.split(split).len();
        federation.evaluates_a_sample().then(|| Self {
            train: count(Split::Train),
            test: count(Split::Test),
            validation: count(Split::Validation),
        })
    }

    /// Returns the number of devices of a split.
    pub fn devices(&self, split: Split) -> usize {
        match split {
            Split::Train => self.train,
            Split::Test => self.test,
            Split::Validation => self.validation,
        }
    }
}
