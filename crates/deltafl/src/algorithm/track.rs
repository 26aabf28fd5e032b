//! One model of a run: its parts and its name.

use serde::{Deserialize, Serialize};

use super::{Algorithm, AlgorithmParts, FED_AVG, Tail};
use crate::aggregation::Aggregation;
use crate::options::{InvalidOption, OptionValues};
use crate::selection::Selection;
use crate::server_step::ServerStep;
use crate::superquantile::Conformity;
use crate::trainer::{Correction, Personal};

/// One model of a run.
pub struct Track {
    /// The label of the track.
    pub label: TrackLabel,
    /// The selection of devices and their weights.
    pub selection: Box<dyn Selection>,
    /// The personal models of devices.
    pub personal: Option<Personal>,
    /// The aggregation of the updates of individual devices; `None` for their sum.
    pub aggregation: Option<Box<dyn Aggregation>>,
    /// The server step, which computes w_{t+1} from the sum.
    pub server: Box<dyn ServerStep>,
    /// λ of (λ/2)‖w‖².
    pub l2: f32,
    /// μ of (μ/2)‖w − w_t‖².
    pub proximal: f32,
    /// The correction of the local steps.
    pub correction: Option<&'static Correction>,
}

/// The label of a track in every table, file and page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrackLabel {
    /// Its name, unique in its run. See [`track_names`].
    pub name: String,
    /// The kind of its algorithm.
    pub algorithm: String,
    /// θ, the mass of the devices that it keeps, or 1 if every device counts.
    pub theta: Conformity,
}

impl std::fmt::Display for TrackLabel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}

impl Track {
    /// A track of these parts.
    pub fn new(name: &str, algorithm: &Algorithm, parts: AlgorithmParts, l2: f32) -> Self {
        let AlgorithmParts { selection, proximal, correction, personal, aggregation, server, theta } = parts;
        let label = TrackLabel { name: name.to_owned(), algorithm: algorithm.kind.to_owned(), theta };
        Self { label, selection, personal, aggregation, server, l2, proximal, correction }
    }

    /// A track of an algorithm with these options.
    pub fn from_options(
        algorithm: &Algorithm,
        options: &OptionValues,
        l2: f32,
    ) -> Result<Self, InvalidOption> {
        let name = track_names(&[(algorithm.title, options, l2)]).remove(0);
        Ok(Self::new(&name, algorithm, (algorithm.build)(options)?, l2))
    }

    /// Returns `true` if its devices compute more than an update: personal models.
    pub fn needs_cpu(&self) -> bool {
        self.personal.is_some()
    }

    /// Creates FedAvg without a penalty.
    pub fn fed_avg() -> Self {
        Self::new(FED_AVG.title, &FED_AVG, AlgorithmParts::default(), 0.0)
    }
}

/// Creates Δ-FL with this tail and no penalty.
impl From<Tail> for Track {
    fn from(tail: Tail) -> Self {
        let name = format!("{} θ={}", super::DELTA_FL.title, tail.theta);
        Self::new(&name, &super::DELTA_FL, tail.into_parts(), 0.0)
    }
}

/// Returns the names of the tracks of a run: the title of the algorithm with its levels. If several
/// names are equal, the differing options are appended: "Δ-FL θ=0.5 T_η=20". Identical tracks are
/// numbered.
pub fn track_names(tracks: &[(&str, &OptionValues, f32)]) -> Vec<String> {
    let levels: Vec<String> = tracks.iter().map(|(title, options, _)| with_levels(title, options)).collect();
    let name = |i: usize| {
        let namesakes: Vec<_> =
            (0..tracks.len()).filter(|&j| levels[j] == levels[i]).map(|j| tracks[j]).collect();
        with_differences(&levels[i], tracks[i], &namesakes)
    };
    let named: Vec<String> = (0..tracks.len()).map(name).collect();
    let unique = |i: usize| {
        let namesakes = |names: &[String]| names.iter().filter(|other| **other == named[i]).count();
        match namesakes(&named) {
            1 => named[i].clone(),
            _ => format!("{} #{}", named[i], namesakes(&named[..=i])),
        }
    };
    (0..tracks.len()).map(unique).collect()
}

fn with_levels(title: &str, options: &OptionValues) -> String {
    let levels = options.iter().filter(|(spec, _)| spec.levels);
    let values = levels.filter_map(|(spec, value)| value.map(|value| (spec, value)));
    values.fold(title.to_owned(), |name, (spec, value)| format!("{name} {}={value}", spec.symbol))
}

fn with_differences(
    name: &str,
    (_, options, l2): (&str, &OptionValues, f32),
    namesakes: &[(&str, &OptionValues, f32)],
) -> String {
    let mut name = name.to_owned();
    for (place, (spec, value)) in options.iter().enumerate().filter(|(_, (spec, _))| !spec.levels) {
        if namesakes.iter().any(|(_, other, _)| other.iter().nth(place).is_none_or(|(_, at)| at != value)) {
            let value = value.map_or_else(|| "unset".to_owned(), |value| value.to_string());
            name.push_str(&format!(" {}={value}", spec.symbol));
        }
    }
    if namesakes.iter().any(|(_, _, other)| other.to_bits() != l2.to_bits()) {
        name.push_str(&format!(" λ={l2}"));
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::DELTA_FL;
    use crate::options::OptionValue;

    fn options(theta: f64, eta_every: u64) -> OptionValues {
        let given = [("theta", OptionValue::Real(theta)), ("eta_every", OptionValue::Whole(eta_every))];
        DELTA_FL.options_with(given).unwrap()
    }

    fn names(tracks: &[(&Algorithm, OptionValues, f32)]) -> Vec<String> {
        track_names(&tracks.iter().map(|(a, o, l2)| (a.title, o, *l2)).collect::<Vec<_>>())
    }

    #[test]
    fn a_name_has_its_level_and_what_its_namesakes_differ_in() {
        let none = FED_AVG.options_with([]).unwrap();
        let plain =
            [(&FED_AVG, none, 0.0), (&DELTA_FL, options(0.5, 1), 0.0), (&DELTA_FL, options(0.1, 1), 0.0)];
        assert_eq!(names(&plain), ["FedAvg", "Δ-FL θ=0.5", "Δ-FL θ=0.1"]);
        let by_eta = [1, 5, 20, 100].map(|every| (&DELTA_FL, options(0.5, every), 0.0));
        let expected = ["Δ-FL θ=0.5 T_η=1", "Δ-FL θ=0.5 T_η=5", "Δ-FL θ=0.5 T_η=20", "Δ-FL θ=0.5 T_η=100"];
        assert_eq!(names(&by_eta), expected);
        let by_penalty = [0.0, 1e-4].map(|l2| (&DELTA_FL, options(0.5, 1), l2));
        assert_eq!(names(&by_penalty), ["Δ-FL θ=0.5 λ=0", "Δ-FL θ=0.5 λ=0.0001"]);
    }

    #[test]
    fn equal_tracks_are_numbered() {
        let twice = [0.0, 0.0].map(|l2| (&DELTA_FL, options(0.5, 1), l2));
        assert_eq!(names(&twice), ["Δ-FL θ=0.5 #1", "Δ-FL θ=0.5 #2"]);
    }
}
