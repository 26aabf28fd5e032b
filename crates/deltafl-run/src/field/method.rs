//! The methods of a field and the values that the tuning of each tries.

use std::fmt;
use std::str::FromStr;

use deltafl::algorithm::{AGNOSTIC_GROUPS, ALGORITHMS, Algorithm, find};
use deltafl::data::synthetic::Spec;
use deltafl::options::{OptionDefault, OptionValue, RawValue};
use deltafl_data::experiment::{AlgorithmSection, DataSource, Experiment, Positive, SplitSection};

use super::FieldError;

/// The number of candidates of every method.
pub const CANDIDATES: usize = 9;

/// A method of a field: an algorithm, with options that are not tuned. Parsed from `KIND` or
/// `KIND:OPTION=VALUE:…`.
#[derive(Clone, Debug)]
pub struct FieldMethod {
    algorithm: &'static Algorithm,
    fixed: Vec<(&'static str, OptionValue)>,
}

/// The values that the tuning of a method tries.
#[derive(Clone, Debug, PartialEq)]
pub struct MethodGrid {
    /// The learning rates, in ascending order.
    pub rates: Vec<f64>,
    /// The options and their values.
    pub options: Vec<(&'static str, Vec<f64>)>,
}

/// A candidate: a learning rate and a value for every tuned option.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// γ.
    pub rate: f64,
    /// The tuned options.
    pub options: Vec<(&'static str, f64)>,
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "γ={}", self.rate)?;
        self.options.iter().try_for_each(|(name, value)| write!(f, " {name}={value}"))
    }
}

impl FieldMethod {
    /// Returns all methods for an experiment. Personal models need train examples of test devices,
    /// so they take part only if the examples of each device are split. Methods for groups take
    /// part if devices declare groups.
    pub fn all(experiment: &Experiment) -> Vec<Self> {
        let within = matches!(experiment.data().split, Some(SplitSection::Within(_)));
        let groups = match &experiment.data().source {
            DataSource::Synthetic(spec) => matches!(spec, Spec::Glyphs(_)),
            DataSource::Folder(path) => deltafl_data::has_groups(path),
            DataSource::Memory(_) => false,
        };
        let methods = ALGORITHMS.iter().map(|&algorithm| Self { algorithm, fixed: Vec::new() });
        let fits = |method: &Self| {
            (within || !method.is_personal()) && (groups || method.algorithm.kind != AGNOSTIC_GROUPS.kind)
        };
        methods.filter(fits).collect()
    }

    /// Returns the algorithm.
    pub fn algorithm(&self) -> &'static Algorithm {
        self.algorithm
    }

    /// Returns whether the method trains a model for each device.
    fn is_personal(&self) -> bool {
        let example = |option: &deltafl::options::OptionSpec| (option.name, option.example);
        let options = self.algorithm.options_with(self.algorithm.options.iter().map(example));
        options
            .is_ok_and(|options| (self.algorithm.build)(&options).is_ok_and(|parts| parts.personal.is_some()))
    }

    /// Returns its name in the table: the title, with the options that are not tuned.
    pub fn name(&self) -> String {
        let fixed = self.fixed.iter().map(|(name, value)| {
            let spec = self.algorithm.options.iter().find(|spec| spec.name == *name);
            let symbol = spec.map_or(*name, |spec| if spec.symbol.is_empty() { name } else { spec.symbol });
            format!(" {symbol}={value}")
        });
        format!("{}{}", self.algorithm.title, fixed.collect::<String>())
    }

    /// Returns the values that are tried around the learning rate of the experiment. Methods with
    /// more option values try fewer rates, so that all methods have [`CANDIDATES`] candidates.
    pub fn grid(&self, experiment: &Experiment) -> MethodGrid {
        let is_fixed = |name: &str| self.fixed.iter().any(|(fixed, _)| *fixed == name);
        let tuned =
            self.algorithm.options.iter().filter(|spec| !spec.grid.is_empty() && !is_fixed(spec.name));
        let options: Vec<(&str, Vec<f64>)> = tuned.map(|spec| (spec.name, spec.grid.to_vec())).collect();
        let combinations: usize = options.iter().map(|(_, values)| values.len()).product();
        let rates = (CANDIDATES / combinations.max(1)).max(1);
        // Three rates are half a decade apart, and nine rates a quarter.
        let distance = if rates > 3 { 0.25 } else { 0.5 };
        let gamma = experiment.local().learning_rate;
        let rate = |i: usize| {
            let exponent = distance * (i as f64 - (rates as f64 - 1.0) / 2.0);
            rounded(gamma * 10f64.powf(exponent))
        };
        MethodGrid { rates: (0..rates).map(rate).collect(), options }
    }

    /// Returns the experiment with a candidate of this method as its only algorithm.
    ///
    /// # Errors
    ///
    /// Fails if the fixed options are invalid or the algorithm does not fit the experiment.
    pub(super) fn experiment(
        &self,
        base: &Experiment,
        candidate: &Candidate,
    ) -> Result<Experiment, FieldError> {
        let problem = |problem: String| FieldError::Method { method: self.name(), problem };
        let fixed = self.fixed.iter().map(|(name, value)| (*name, vec![*value]));
        let tuned = candidate.options.iter().map(|(name, value)| (*name, vec![OptionValue::Real(*value)]));
        let given: Vec<(&str, Vec<OptionValue>)> = fixed.chain(tuned).collect();
        let section = AlgorithmSection::new(self.algorithm, &given, None)
            .map_err(|error| problem(error.to_string()))?;
        let rate = Positive::try_from(candidate.rate).map_err(|error| problem(error.to_string()))?;
        let experiment = base.clone().with_learning_rate(rate, base.local().decay);
        experiment.with_algorithms(vec![section]).map_err(|error| problem(error.message))
    }
}

impl MethodGrid {
    /// Returns every combination. The last option varies fastest.
    pub fn candidates(&self) -> Vec<Candidate> {
        let first = |&rate: &f64| Candidate { rate, options: Vec::new() };
        let mut candidates: Vec<Candidate> = self.rates.iter().map(first).collect();
        for (name, values) in &self.options {
            let with = |candidate: &Candidate, &value: &f64| {
                let mut candidate = candidate.clone();
                candidate.options.push((name, value));
                candidate
            };
            let all = candidates.iter().flat_map(|known| values.iter().map(move |value| with(known, value)));
            candidates = all.collect();
        }
        candidates
    }
}

impl FromStr for FieldMethod {
    type Err = FieldError;

    fn from_str(text: &str) -> Result<Self, FieldError> {
        let mut parts = text.split(':');
        let kind = parts.next().unwrap_or_default().trim();
        let algorithm = find(kind).ok_or_else(|| FieldError::UnknownMethod { kind: kind.to_owned() })?;
        let mut method = Self { algorithm, fixed: Vec::new() };
        for part in parts {
            let problem = |problem: String| FieldError::Method { method: text.to_owned(), problem };
            let Some((name, value)) = part.split_once('=') else {
                return Err(problem(format!("expected OPTION=VALUE instead of {part:?}")));
            };
            let spec = algorithm.options.iter().find(|spec| spec.name == name.trim());
            let spec = spec.ok_or_else(|| problem(format!("there is no option {:?}", name.trim())))?;
            let value = value.trim();
            let raw = match (value.parse::<f64>(), value.parse::<bool>()) {
                (Ok(number), _) => RawValue::Number(number),
                (_, Ok(truth)) => RawValue::Truth(truth),
                _ => RawValue::Text(value.to_owned()),
            };
            let value = spec.check(&raw).ok_or_else(|| problem(format!("{} is {}", spec.name, spec.kind)))?;
            method.fixed.push((spec.name, value));
        }
        let is_set = |spec: &deltafl::options::OptionSpec| {
            !spec.grid.is_empty() || method.fixed.iter().any(|(name, _)| *name == spec.name)
        };
        let missing =
            |spec: &&deltafl::options::OptionSpec| spec.default == OptionDefault::Required && !is_set(spec);
        match algorithm.options.iter().find(missing) {
            Some(spec) => Err(FieldError::Method {
                method: text.to_owned(),
                problem: format!("give {0}, for example {kind}:{0}={1}", spec.name, spec.example),
            }),
            None => Ok(method),
        }
    }
}

/// Rounds to two significant digits for readability.
fn rounded(value: f64) -> f64 {
    format!("{value:.1e}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::base;

    fn glyphs() -> Experiment {
        base::experiment("glyphs", None, &[]).unwrap()
    }

    #[test]
    fn every_method_has_the_same_number_of_distinct_candidates_that_can_be_trained() {
        let experiment = glyphs();
        let methods = FieldMethod::all(&experiment);
        assert!(methods.len() > 20, "{}", methods.len());
        for method in methods {
            let candidates = method.grid(&experiment).candidates();
            let mut addresses: Vec<String> = candidates
                .iter()
                .map(|candidate| method.experiment(&experiment, candidate).unwrap().address())
                .collect();
            addresses.sort_unstable();
            addresses.dedup();
            assert_eq!(addresses.len(), CANDIDATES, "{}", method.name());
        }
    }

    #[test]
    fn fixed_options_are_not_tuned() {
        let method: FieldMethod = "delta-fl:theta=0.5:quantile=histogram".parse().unwrap();
        assert_eq!(method.name(), "Δ-FL θ=0.5 quantile=histogram");
        let grid = method.grid(&glyphs());
        assert_eq!((grid.rates.len(), grid.options.len()), (9, 0));
        assert_eq!((grid.rates[0], grid.rates[4], grid.rates[8]), (0.1, 1.0, 10.0));
        for wrong in ["fedsgd", "delta-fl:theta=2", "delta-fl:tilt=1", "term:tilt"] {
            assert!(wrong.parse::<FieldMethod>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn personal_models_take_part_if_the_examples_of_devices_are_split() {
        let has_ditto = |experiment: &Experiment| {
            FieldMethod::all(experiment).iter().any(|method| method.algorithm.kind == "ditto")
        };
        assert!(!has_ditto(&glyphs()));
        let within = ["data.split={ within = { train = 0.8 } }".to_owned()];
        assert!(has_ditto(&base::experiment("glyphs", None, &within).unwrap()));
    }
}
