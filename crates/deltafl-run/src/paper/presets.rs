//! The five dataset–model pairs: their embedded experiments and the results reported in the paper.

use std::num::NonZeroU64;
use std::path::Path;

use deltafl::metrics::OverSeeds;
use deltafl_data::experiment::Experiment;

use crate::experiment_file::{self, ExperimentFileError};
use crate::sweep::SweepError;
use crate::sweep::points::Sweep;

/// A data set and a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pair {
    /// EMNIST, softmax regression.
    EmnistLinear,
    /// EMNIST, convolutional network.
    EmnistConvnet,
    /// Sent140, logistic regression on mean word vectors.
    Sent140Linear,
    /// Sent140, LSTM over words.
    Sent140Lstm,
    /// Shakespeare, GRU over characters.
    ShakespeareGru,
}

/// The paper's experiment with a pair.
#[derive(Debug)]
pub struct Preset {
    /// The name of the experiment.
    pub name: &'static str,
    /// The data set and the model, in a few words.
    pub about: &'static str,
    /// The experiment, a TOML file.
    pub text: &'static str,
    /// The folder of the federation, as imported and as created by `data fetch`.
    pub folders: [&'static str; 2],
    /// The arguments that import the data, without `--out`.
    pub import: &'static str,
    /// The name for `data fetch`, which is also the folder to fetch into.
    pub fetch: &'static str,
    /// Devices in the paper, train and test.
    pub devices: usize,
    /// Mean of the test error in %: FedAvg, θ = 0.8, 0.5, 0.1.
    mean: [(f64, f64); 4],
    /// 90th percentile, in the same order.
    p90: [(f64, f64); 4],
}

/// The results of a track reported in the paper: mean and 90th percentile of the test error, as
/// fractions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reported {
    /// The mean over devices.
    pub mean: OverSeeds,
    /// The 90th percentile over devices.
    pub p90: OverSeeds,
}

impl Pair {
    /// Every pair.
    pub const ALL: [Self; 5] = [
        Self::EmnistLinear,
        Self::EmnistConvnet,
        Self::Sent140Linear,
        Self::Sent140Lstm,
        Self::ShakespeareGru,
    ];

    /// Returns the paper's experiment with this pair.
    pub fn preset(self) -> &'static Preset {
        match self {
            Self::EmnistLinear => &EMNIST_LINEAR,
            Self::EmnistConvnet => &EMNIST_CONVNET,
            Self::Sent140Linear => &SENT140_LINEAR,
            Self::Sent140Lstm => &SENT140_LSTM,
            Self::ShakespeareGru => &SHAKESPEARE_GRU,
        }
    }
}

impl Preset {
    /// Returns the experiment of the paper.
    pub fn experiment(&self) -> Experiment {
        experiment_file::checked(Path::new(self.name), self.text)
            .expect("a test parses every embedded experiment")
    }

    /// Returns the experiment with the data of a folder, seeds 1 to `seeds`, and overrides
    /// `KEY=VALUE`.
    ///
    /// # Errors
    ///
    /// Fails if an override is invalid.
    pub fn experiment_with(
        &self,
        federation: &Path,
        seeds: NonZeroU64,
        overrides: &[String],
    ) -> Result<Experiment, ExperimentFileError> {
        let all = [format!("seeds=[{}]", listed(seeds).join(",")), source_of(federation)];
        let all: Vec<String> = all.into_iter().chain(overrides.iter().cloned()).collect();
        experiment_file::parse(Path::new(&format!("{}.toml", self.name)), self.text, &all)
    }

    /// Returns the experiment on splits 1 to `splits` of the devices: a run for each split and
    /// seed. Seeds vary slowest, so that an interrupted sweep covers every split first.
    ///
    /// # Errors
    ///
    /// Fails if an override is invalid.
    pub fn sweep_over_splits(
        &self,
        federation: &Path,
        seeds: NonZeroU64,
        splits: NonZeroU64,
        overrides: &[String],
    ) -> Result<Sweep, SweepError> {
        let seeds: Vec<String> = listed(seeds).into_iter().map(|seed| format!("[{seed}]")).collect();
        let axes =
            [format!("seeds={}", seeds.join(",")), format!("data.split.seed={}", listed(splits).join(","))];
        let all: Vec<String> = [source_of(federation)].into_iter().chain(overrides.iter().cloned()).collect();
        Sweep::new(Path::new(&format!("{}.toml", self.name)), self.text, &all, &axes)
    }

    /// Returns the results of a track reported in the paper, or `None` if the paper does not
    /// contain the track.
    pub fn reported(&self, algorithm: &str, theta: f64) -> Option<Reported> {
        let levels: [(&str, f64); 4] =
            [("fedavg", 1.0), ("delta-fl", 0.8), ("delta-fl", 0.5), ("delta-fl", 0.1)];
        let i = levels.iter().position(|&(a, t)| a == algorithm && t.total_cmp(&theta).is_eq())?;
        let fraction = |(mean, std): (f64, f64)| OverSeeds { mean: mean / 100.0, std: Some(std / 100.0) };
        Some(Reported { mean: fraction(self.mean[i]), p90: fraction(self.p90[i]) })
    }
}

/// Returns the numbers 1 to `count`.
fn listed(count: NonZeroU64) -> Vec<String> {
    (1..=count.get()).map(|number| number.to_string()).collect()
}

/// Returns the override of the data source.
fn source_of(federation: &Path) -> String {
    format!("data.source={}", toml_edit::Value::from(federation.display().to_string()))
}

const IMPORT_EMNIST: &str = "emnist --by-write by_write.zip --by-class by_class.zip";

const EMNIST_LINEAR: Preset = Preset {
    name: "emnist-linear",
    about: "EMNIST, softmax regression",
    text: include_str!("../../../../experiments/paper/emnist-linear.toml"),
    folders: ["emnist", "emnist/federation"],
    import: IMPORT_EMNIST,
    fetch: "emnist",
    devices: 1730,
    mean: [(34.38, 0.38), (34.49, 0.26), (35.02, 0.20), (38.33, 0.48)],
    p90: [(49.66, 0.67), (49.10, 0.24), (48.44, 0.38), (50.34, 0.95)],
};

const EMNIST_CONVNET: Preset = Preset {
    name: "emnist-convnet",
    about: "EMNIST, convolutional network",
    text: include_str!("../../../../experiments/paper/emnist-convnet.toml"),
    folders: ["emnist", "emnist/federation"],
    import: IMPORT_EMNIST,
    fetch: "emnist",
    devices: 1730,
    mean: [(16.64, 0.50), (16.08, 0.40), (15.49, 0.30), (16.37, 1.03)],
    p90: [(28.46, 1.07), (26.23, 1.15), (23.69, 0.94), (25.46, 2.77)],
};

const SENT140_LINEAR: Preset = Preset {
    name: "sent140-linear",
    about: "Sent140, logistic regression on mean word vectors",
    text: include_str!("../../../../experiments/paper/sent140-linear.toml"),
    folders: ["sent140-mean", "sent140/mean-vector"],
    import: "sent140 training.1600000.processed.noemoticon.csv --vectors glove.6B.50d.txt --features mean-vector",
    fetch: "sent140",
    devices: 877,
    mean: [(34.75, 0.31), (34.41, 0.22), (35.29, 0.25), (37.79, 0.89)],
    p90: [(46.83, 0.54), (46.44, 0.38), (46.64, 0.41), (51.39, 1.07)],
};

const SENT140_LSTM: Preset = Preset {
    name: "sent140-lstm",
    about: "Sent140, LSTM over words",
    text: include_str!("../../../../experiments/paper/sent140-lstm.toml"),
    folders: ["sent140", "sent140/tokens"],
    import: "sent140 training.1600000.processed.noemoticon.csv --vectors glove.6B.50d.txt --features tokens",
    fetch: "sent140",
    devices: 877,
    mean: [(30.16, 0.44), (30.31, 0.33), (33.59, 2.44), (51.98, 11.81)],
    p90: [(49.67, 3.95), (46.46, 4.39), (50.48, 8.24), (86.45, 10.95)],
};

const SHAKESPEARE_GRU: Preset = Preset {
    name: "shakespeare-gru",
    about: "Shakespeare, GRU over characters",
    text: include_str!("../../../../experiments/paper/shakespeare-gru.toml"),
    folders: ["shakespeare", "shakespeare/federation"],
    import: "shakespeare pg100.txt.gz",
    fetch: "shakespeare",
    devices: 1089,
    mean: [(42.90, 0.04), (42.93, 0.05), (43.13, 0.05), (44.18, 0.12)],
    p90: [(46.45, 0.11), (46.33, 0.10), (46.32, 0.13), (47.17, 0.14)],
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_is_an_experiment_of_the_paper() {
        for pair in Pair::ALL {
            let preset = pair.preset();
            let experiment = experiment_file::checked(Path::new(preset.name), preset.text).unwrap();
            assert_eq!(experiment.name(), preset.name);
            assert_eq!(experiment.seeds(), [1, 2, 3, 4, 5]);
            for label in experiment.labels() {
                let theta = label.theta.get();
                assert!(preset.reported(&label.algorithm, theta).is_some(), "{} {theta}", preset.name);
            }
            assert_eq!(experiment.labels().len(), 4);
        }
    }

    #[test]
    fn every_alternative_in_a_comment_is_a_valid_override() {
        for pair in Pair::ALL {
            let preset = pair.preset();
            let path = Path::new(preset.name);
            let paper = experiment_file::checked(path, preset.text).unwrap();
            let alternatives: Vec<&str> = preset
                .text
                .split("--set ")
                .skip(1)
                .filter_map(|rest| rest.split_whitespace().next())
                .collect();
            assert!(!alternatives.is_empty(), "{}", preset.name);
            for alternative in alternatives {
                let other = experiment_file::parse(path, preset.text, &[alternative.to_owned()]).unwrap();
                assert_eq!(paper.differences(&other).len(), 1, "{}: {alternative}", preset.name);
            }
        }
    }

    #[test]
    fn a_level_not_in_the_paper_has_no_reported_results() {
        let preset = Pair::EmnistConvnet.preset();
        assert!(preset.reported("delta-fl", 0.3).is_none());
        let reported = preset.reported("delta-fl", 0.5).unwrap();
        assert!((reported.p90.mean - 0.2369).abs() < 1e-12, "{reported:?}");
    }
}
