//! The values of the grid: γ₀ around the experiment's value, c ∈ {1, 1/2, 1/4, 1/8}, λ ∈ 10⁻⁸ …
//! 10⁻³.
//!
//! The first value of each list is preferred if another is equally good: the smallest γ₀ and λ, and
//! no decay.

use deltafl::algorithm::FED_AVG;
use deltafl::data::synthetic::Fraction;
use deltafl::options::OptionValue;
use deltafl_data::Manifest;
use deltafl_data::experiment::{
    AlgorithmSection, DataSource, Experiment, NonNegative, Positive, SplitSection,
};

use super::TuneError;

/// Multiples of the experiment's γ₀: half decades.
const RATES: [f64; 5] = [0.1, 0.32, 1.0, 3.2, 10.0];
/// The values of c in the paper.
const DECAYS: [f64; 4] = [1.0, 0.5, 0.25, 0.125];
/// The values of λ in the paper.
const L2: [f64; 6] = [1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3];
/// The share of the train devices that is held out to choose λ.
const HELD_OUT: f64 = 0.5;

/// The values of a grid search.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TuneGrid {
    /// γ₀, ascending.
    pub(super) rates: Vec<f64>,
    /// c, descending. Empty if the rate does not decay, or only after the last round.
    pub(super) decays: Vec<f64>,
    /// λ, ascending. Empty if it is not tuned.
    pub(super) l2: Vec<f64>,
}

/// Values to try. An empty list selects the paper's values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GridValues {
    /// Learning rates γ₀.
    pub rates: Vec<f64>,
    /// Decays c.
    pub decays: Vec<f64>,
    /// Penalties λ.
    pub l2: Vec<f64>,
}

impl TuneGrid {
    /// Creates the grid for an experiment. Unless values are given, λ is tuned only for linear
    /// models, as in the paper.
    pub(super) fn new(experiment: &Experiment, asked: GridValues) -> Result<Self, TuneError> {
        let gamma = experiment.local().learning_rate;
        let rates =
            ascending(asked.rates).unwrap_or_else(|| RATES.map(|factor| rounded(factor * gamma)).to_vec());
        let descending = |decays: Vec<f64>| decays.into_iter().rev().collect();
        let decays = match (ascending(asked.decays).map(descending), experiment.local().decay) {
            (None, None) => Vec::new(),
            (None, Some(decay)) if decay.every.get() >= experiment.rounds() => Vec::new(),
            (decays, Some(_)) => decays.unwrap_or_else(|| DECAYS.to_vec()),
            (Some(_), None) => {
                return Err(TuneError::NoDecay);
            }
        };
        let linear = matches!(experiment.model().spec().name(), "linear" | "logistic");
        let l2 = ascending(asked.l2).unwrap_or_else(|| if linear { L2.to_vec() } else { Vec::new() });
        if !l2.is_empty() && split(experiment).is_none() {
            return Err(TuneError::NoSplit);
        }
        for (option, values, valid) in [
            ("rates", &rates, (|x| Positive::try_from(x).is_ok()) as fn(f64) -> bool),
            ("decays", &decays, |x| x > 0.0 && x <= 1.0),
            ("l2", &l2, |x| NonNegative::try_from(x).is_ok()),
        ] {
            if let Some(&value) = values.iter().find(|&&value| !valid(value)) {
                return Err(TuneError::OutOfRange { option, value });
            }
        }
        Ok(Self { rates, decays, l2 })
    }
}

/// Returns the experiment whose γ₀ and c are swept: FedAvg alone, evaluated at its end.
pub(super) fn for_rate(experiment: &Experiment) -> Experiment {
    let given = experiment.algorithms().iter().find(|section| section.algorithm().kind == FED_AVG.kind);
    let section = given.cloned().unwrap_or_else(|| fed_avg(experiment));
    let tuned = suffixed(experiment, "-rate").evaluated_at_the_end();
    tuned.with_algorithms(vec![section]).expect("FedAvg sends only w")
}

/// Returns the experiment with a longer name.
fn suffixed(experiment: &Experiment, suffix: &str) -> Experiment {
    let name = format!("{}{suffix}", experiment.name());
    experiment.clone().with_name(&name).expect("a name with a suffix is valid")
}

/// Returns a FedAvg section for an experiment without one.
fn fed_avg(experiment: &Experiment) -> AlgorithmSection {
    let l2 = experiment.algorithms().first().and_then(|section| section.l2);
    AlgorithmSection::new(&FED_AVG, &[], l2).expect("FedAvg without options is valid")
}

/// Returns the split of the experiment, or the one with which its federation was imported.
fn split(experiment: &Experiment) -> Option<SplitSection> {
    let stored = || match &experiment.data().source {
        DataSource::Folder(folder) => Manifest::read(folder).ok()?.split.map(SplitSection::Devices),
        DataSource::Synthetic(_) | DataSource::Memory(_) => None,
    };
    experiment.data().split.clone().or_else(stored)
}

/// Returns the experiment whose λ is swept: all tracks, on half of the train devices.
pub(super) fn for_l2(experiment: &Experiment) -> Experiment {
    let sections = experiment.algorithms().iter().map(|section| section.clone().with_l2(None)).collect();
    let mut split = split(experiment);
    match &mut split {
        Some(SplitSection::Devices(split)) => split.validation = HELD_OUT,
        Some(SplitSection::Within(split)) => {
            let half = Fraction::new(HELD_OUT * split.train.get()).unwrap_or(Fraction::HALF);
            (split.train, split.validation) = (half, half);
        }
        Some(SplitSection::Given(_)) | None => {}
    }
    let tuned = suffixed(experiment, "-l2").evaluated_at_the_end().with_split(split);
    tuned.with_algorithms(sections).expect("the algorithms belong to the experiment")
}

/// Returns the experiment with a λ per track, in the order of its tracks. Levels with the same λ
/// share a section.
pub(super) fn with_l2(experiment: Experiment, l2: &[f64]) -> Experiment {
    let mut chosen = l2.iter().filter_map(|&l2| NonNegative::try_from(l2).ok());
    let mut sections: Vec<AlgorithmSection> = Vec::new();
    for section in experiment.algorithms() {
        let levels = section.algorithm().options.iter();
        let levels = levels.filter(|spec| spec.levels && !section.values(spec.name).is_empty());
        let levels: Vec<&str> = levels.map(|spec| spec.name).collect();
        let Some((&last, others)) = levels.split_last() else {
            sections.push(section.clone().with_l2(chosen.next()));
            continue;
        };
        let with = |section: &AlgorithmSection, name: &str, values| {
            section.with(name, values).expect("the levels belong to this section")
        };
        // The tracks of a section are the product of its levels, of which the last varies fastest.
        let mut parts = vec![section.clone()];
        for name in others {
            let of_part = |part: &AlgorithmSection| -> Vec<AlgorithmSection> {
                part.values(name).iter().map(|&value| with(part, name, vec![value])).collect()
            };
            parts = parts.iter().flat_map(of_part).collect();
        }
        for part in parts {
            let mut by_l2: Vec<(Option<NonNegative>, Vec<OptionValue>)> = Vec::new();
            for &level in part.values(last) {
                let l2 = chosen.next();
                match by_l2.iter_mut().find(|(known, _)| *known == l2) {
                    Some((_, values)) => values.push(level),
                    None => by_l2.push((l2, vec![level])),
                }
            }
            sections.extend(by_l2.into_iter().map(|(l2, values)| with(&part, last, values).with_l2(l2)));
        }
    }
    experiment.with_algorithms(sections).expect("the algorithms belong to the experiment")
}

/// Sorts the values and removes duplicates. Returns `None` for an empty list.
fn ascending(mut values: Vec<f64>) -> Option<Vec<f64>> {
    values.sort_by(f64::total_cmp);
    values.dedup_by(|a, b| a.total_cmp(b).is_eq());
    (!values.is_empty()).then_some(values)
}

/// Rounds to two significant digits for readability.
fn rounded(value: f64) -> f64 {
    format!("{value:.1e}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn experiment(more: &str) -> Experiment {
        let text = format!(
            "name = 't'\nrounds = 9\ncohort = 2\n[data]\nsource = 'd'\nsplit = {{}}\n[model]\nkind = 'linear'\n\
             [local]\nepochs = 1\nbatch = 1\nlearning_rate = 0.32\n{more}[[algorithm]]\nkind = 'delta-fl'\ntheta = [0.8, 0.5, 0.1]\nl2 = 1\n"
        );
        Experiment::parse(&text).unwrap()
    }

    fn nothing() -> GridValues {
        GridValues::default()
    }

    #[test]
    fn the_grid_of_a_linear_model_has_no_decay_and_that_of_a_network_no_penalty() {
        let linear = TuneGrid::new(&experiment(""), nothing()).unwrap();
        assert_eq!(linear.rates, [0.032, 0.1, 0.32, 1.0, 3.2]);
        assert_eq!((linear.decays.len(), linear.l2.len()), (0, 6));
        let network = experiment("decay = { factor = 0.5, every = 4 }\n").to_toml();
        let network = Experiment::parse(
            &network.replace("\"linear\"", "\"conv-net\"").replace("intercept = true\n", ""),
        )
        .unwrap();
        let network = TuneGrid::new(&network, nothing()).unwrap();
        assert_eq!((network.decays.as_slice(), network.l2.len()), (DECAYS.as_slice(), 0));
        let late = TuneGrid::new(&experiment("decay = { factor = 0.5, every = 9 }\n"), nothing()).unwrap();
        assert!(late.decays.is_empty(), "a decay after the last round has no effect");
    }

    #[test]
    fn values_out_of_range_are_rejected() {
        let refused = |asked: GridValues| TuneGrid::new(&experiment(""), asked).is_err();
        assert!(refused(GridValues { rates: vec![0.0], ..nothing() }));
        assert!(refused(GridValues { decays: vec![0.5], ..nothing() }), "a rate without decay");
        assert!(refused(GridValues { l2: vec![-1.0], ..nothing() }));
        let unsplit = experiment("").with_split(None);
        assert!(TuneGrid::new(&unsplit, nothing()).is_err());
    }

    #[test]
    fn levels_with_the_same_penalty_share_a_section() {
        let tuned = with_l2(experiment(""), &[1e-6, 1e-4, 1e-6]);
        let sections: Vec<(Vec<OptionValue>, f64)> =
            tuned.algorithms().iter().map(|s| (s.values("theta").to_vec(), s.l2.unwrap().get())).collect();
        let levels =
            |values: &[f64]| values.iter().map(|&value| OptionValue::Real(value)).collect::<Vec<_>>();
        assert_eq!(sections, [(levels(&[0.8, 0.1]), 1e-6), (levels(&[0.5]), 1e-4)]);
    }

    #[test]
    fn every_track_of_a_section_with_two_lists_has_its_own_penalty() {
        let head = experiment("").to_toml();
        let (head, _) = head.split_once("[[algorithm]]").unwrap();
        let algorithms = "[[algorithm]]\nkind = 'delta-fl+ditto'\ntheta = [0.9, 0.5]\nevaluate = ['personal', 'shared']\n\
                          [[algorithm]]\nkind = 'fedavg'\n";
        let experiment = Experiment::parse(&format!("{head}{algorithms}")).unwrap();
        let penalties = [1e-2, 1e-3, 1e-4, 1e-4, 1e-6];
        let names = |experiment: &Experiment| -> Vec<String> {
            experiment.labels().iter().map(ToString::to_string).collect()
        };
        let tuned = with_l2(experiment.clone(), &penalties);
        let of_section = |section: &AlgorithmSection| {
            std::iter::repeat_n(section.l2.unwrap().get(), section.points().len())
        };
        let found: Vec<f64> = tuned.algorithms().iter().flat_map(of_section).collect();
        assert_eq!((names(&tuned), found), (names(&experiment), penalties.to_vec()));
    }

    #[test]
    fn fed_avg_is_added_if_it_is_missing() {
        let rate = for_rate(&experiment(""));
        assert_eq!(rate.labels().len(), 1);
        assert_eq!(Experiment::parse(&rate.to_toml()), Ok(rate));
    }
}
