//! What the tracks of an experiment are called, so that no two of a run are called the same.

use deltafl_data::experiment::{AlgorithmKind, AlgorithmSection, Experiment};

/// A track, as a report speaks of it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TrackInfo {
    /// Unique within the run.
    pub(crate) label: String,
    pub(crate) algorithm: String,
    pub(crate) theta: f64,
    /// T_η.
    pub(crate) eta_every: u64,
}

/// The tracks of an experiment, in its order.
pub(crate) fn tracks(experiment: &Experiment) -> Vec<TrackInfo> {
    let sections = experiment.algorithm.iter().flat_map(|section| {
        let tracks = match (section.kind, &section.theta) {
            (_, Some(theta)) => theta.iter().len(),
            (AlgorithmKind::DeltaFl, None) => 0,
            (_, None) => 1,
        };
        std::iter::repeat_n(section, tracks)
    });
    let labels: Vec<_> = experiment.tracks().into_iter().map(|track| track.label).collect();
    let named: Vec<(String, Vec<(&str, String)>)> =
        labels.iter().zip(sections.clone()).map(|(label, s)| (label.to_string(), settings(s))).collect();
    let infos = labels.iter().zip(sections).enumerate();
    infos
        .map(|(i, (label, section))| TrackInfo {
            label: unique_label(&named, i),
            algorithm: label.algorithm.clone(),
            theta: label.theta.get(),
            eta_every: section.eta_every.get(),
        })
        .collect()
}

/// FedAvg where there is one, else the track of the greatest θ: what the others are held against.
pub(crate) fn baseline(tracks: &[TrackInfo]) -> usize {
    let fed_avg = tracks.iter().position(|track| track.algorithm == "fedavg");
    let greatest = || {
        let thetas = tracks.iter().enumerate();
        thetas.max_by(|a, b| a.1.theta.total_cmp(&b.1.theta).then(b.0.cmp(&a.0))).map_or(0, |(i, _)| i)
    };
    fed_avg.unwrap_or_else(greatest)
}

/// What may tell two tracks of one name apart.
fn settings(section: &AlgorithmSection) -> Vec<(&'static str, String)> {
    let quantile = toml::Value::try_from(section.quantile).map_or_else(|_| String::new(), |v| v.to_string());
    let l2 = section.l2.map_or_else(|| "the model's".to_owned(), |l2| l2.get().to_string());
    vec![
        ("T_η", section.eta_every.to_string()),
        ("quantile", quantile.trim_matches('"').to_owned()),
        ("ν", section.nu.get().to_string()),
        ("λ", l2),
    ]
}

/// The name, and the settings in which it differs from its namesakes.
fn unique_label(named: &[(String, Vec<(&str, String)>)], i: usize) -> String {
    let (name, settings) = &named[i];
    let namesakes: Vec<_> = named.iter().filter(|(other, _)| other == name).collect();
    let mut label = name.clone();
    for (s, (key, value)) in settings.iter().enumerate() {
        if namesakes.iter().any(|(_, others)| others[s].1 != *value) {
            label.push_str(&format!(" {key}={value}"));
        }
    }
    let twins = namesakes.iter().filter(|(_, others)| others == settings).count();
    if twins > 1 { format!("{label} #{}", i + 1) } else { label }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn experiment(algorithms: &str) -> Experiment {
        let head = "name = 'x'\nrounds = 1\ncohort = 2\n[data]\nsource = { kind = 'glyphs', devices = 4 }\n\
                    [model]\nkind = 'linear'\n[local]\nepochs = 1\nbatch = 10\nlearning_rate = 1.0\n";
        toml::from_str(&format!("{head}{algorithms}")).unwrap()
    }

    #[test]
    fn tracks_of_one_name_are_told_apart_by_what_differs() {
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
