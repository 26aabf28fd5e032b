//! The tracks of an experiment in reports.

use deltafl::algorithm::TrackLabel;
use deltafl::options::OptionValues;
use deltafl_data::experiment::{AlgorithmSection, Experiment};

/// A track in a report.
#[derive(Clone, Debug, PartialEq)]
pub struct TrackInfo {
    /// The label, unique within the run.
    pub label: String,
    /// The kind of the algorithm.
    pub algorithm: String,
    /// θ.
    pub theta: f64,
    /// T_η.
    pub eta_every: u64,
    /// Whether η remains unchanged for T_η rounds, exactly as in the paper.
    pub eta_fixed: bool,
}

/// Returns the tracks of an experiment in its order.
pub fn tracks(experiment: &Experiment) -> Vec<TrackInfo> {
    let points = experiment.algorithm.iter().flat_map(AlgorithmSection::points);
    let info = |(label, options): (TrackLabel, OptionValues)| TrackInfo {
        eta_every: options.whole("eta_every").unwrap_or(1),
        eta_fixed: options.word("eta_rule") == Ok("fixed"),
        label: label.name,
        algorithm: label.algorithm,
        theta: label.theta.get(),
    };
    experiment.labels().into_iter().zip(points).map(info).collect()
}

/// Returns the index of FedAvg if present, or else of the track with the greatest θ. Other tracks
/// are compared with it.
pub fn baseline(tracks: &[TrackInfo]) -> usize {
    let fed_avg = tracks.iter().position(|track| track.algorithm == "fedavg");
    let greatest = || {
        let thetas = tracks.iter().enumerate();
        thetas.max_by(|a, b| a.1.theta.total_cmp(&b.1.theta).then(b.0.cmp(&a.0))).map_or(0, |(i, _)| i)
    };
    fed_avg.unwrap_or_else(greatest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn experiment(algorithms: &str) -> Experiment {
        let head = "name = 'x'\nrounds = 1\ncohort = 2\n[data]\nsource = { kind = 'glyphs', devices = 4 }\n\
                    [model]\nkind = 'linear'\n[local]\nepochs = 1\nbatch = 10\nlearning_rate = 1.0\n";
        Experiment::parse(&format!("{head}{algorithms}")).unwrap()
    }

    #[test]
    fn tracks_with_the_same_name_are_distinguished_by_their_differences() {
        let tracks = tracks(&experiment(
            "[[algorithm]]\nkind = 'fedavg'\n\
             [[algorithm]]\nkind = 'delta-fl'\ntheta = [0.5, 0.1]\n\
             [[algorithm]]\nkind = 'delta-fl'\ntheta = 0.5\neta_every = 5\n",
        ));
        let labels: Vec<&str> = tracks.iter().map(|track| track.label.as_str()).collect();
        assert_eq!(labels, ["FedAvg", "Δ-FL θ=0.5 T_η=1", "Δ-FL θ=0.1", "Δ-FL θ=0.5 T_η=5"]);
        assert_eq!(tracks.iter().map(|track| track.eta_every).collect::<Vec<_>>(), [1, 1, 1, 5]);
        assert_eq!(baseline(&tracks), 0);
    }

    #[test]
    fn without_fed_avg_the_greatest_level_is_the_baseline() {
        let tracks = tracks(&experiment("[[algorithm]]\nkind = 'delta-fl'\ntheta = [0.1, 0.8, 0.5]\n"));
        assert_eq!(baseline(&tracks), 1);
    }
}
