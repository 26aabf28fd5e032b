//! An `[[algorithm]]` section: an algorithm of the table, its options, and its levels.

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

use super::NonNegative;
use deltafl::algorithm::Algorithm;
use deltafl::options::{InvalidOption, OptionDefault, OptionSpec, OptionValue, OptionValues};

/// An algorithm with its options. An option with levels, such as θ, may have several values; each
/// is a track.
#[derive(Clone, Debug)]
pub struct AlgorithmSection {
    algorithm: &'static Algorithm,
    /// The values of each option, in the order of the algorithm's table; empty if it is unset.
    values: Vec<Vec<OptionValue>>,
    /// λ, instead of the penalty of the model.
    pub l2: Option<NonNegative>,
}

impl PartialEq for AlgorithmSection {
    fn eq(&self, other: &Self) -> bool {
        (self.algorithm.kind, &self.values, self.l2) == (other.algorithm.kind, &other.values, other.l2)
    }
}

impl AlgorithmSection {
    /// Checks the options that are given; the others have their defaults.
    pub fn new(
        algorithm: &'static Algorithm,
        given: &[(&str, Vec<OptionValue>)],
        l2: Option<NonNegative>,
    ) -> Result<Self, InvalidOption> {
        let values = |spec: &OptionSpec| match given.iter().find(|(name, _)| *name == spec.name) {
            Some((_, values)) => values.clone(),
            None => match spec.default {
                OptionDefault::Value(default) => vec![default],
                OptionDefault::Required | OptionDefault::Unset(_) => Vec::new(),
            },
        };
        let section = Self { algorithm, values: algorithm.options.iter().map(values).collect(), l2 };
        // Checks each value and each track here, so that no error occurs in training.
        for (name, values) in given {
            for &value in values {
                let others = section.first_values().filter(|(other, _)| other != name);
                let point: Vec<(&str, OptionValue)> = others.chain([(*name, value)]).collect();
                algorithm.options_with(point)?;
            }
        }
        algorithm.options_with(section.first_values())?;
        section.points().iter().try_for_each(|options| (algorithm.build)(options).map(drop))?;
        Ok(section)
    }

    /// Returns the algorithm.
    pub fn algorithm(&self) -> &'static Algorithm {
        self.algorithm
    }

    /// Returns the values of an option; empty if the algorithm has no such option.
    pub fn values(&self, option: &str) -> &[OptionValue] {
        let at = self.algorithm.options.iter().position(|spec| spec.name == option);
        at.map_or(&[], |at| &self.values[at])
    }

    /// Returns the section with other values of an option.
    pub fn with(&self, option: &str, values: Vec<OptionValue>) -> Result<Self, InvalidOption> {
        let mut given: Vec<(&str, Vec<OptionValue>)> = self.given().collect();
        given.retain(|(name, _)| *name != option);
        given.push((option, values));
        Self::new(self.algorithm, &given, self.l2)
    }

    /// Returns the section with another λ; `None` is that of the model.
    #[must_use]
    pub fn with_l2(self, l2: Option<NonNegative>) -> Self {
        Self { l2, ..self }
    }

    /// Returns the options of each track; the last option varies fastest.
    pub fn points(&self) -> Vec<OptionValues> {
        let mut points: Vec<Vec<(&str, OptionValue)>> = vec![Vec::new()];
        let set = self.algorithm.options.iter().zip(&self.values).filter(|(_, values)| !values.is_empty());
        for (spec, values) in set {
            let with = |point: &Vec<(&'static str, OptionValue)>, &value: &OptionValue| {
                let mut point = point.clone();
                point.push((spec.name, value));
                point
            };
            points =
                points.iter().flat_map(|point| values.iter().map(move |value| with(point, value))).collect();
        }
        points.into_iter().filter_map(|point| self.algorithm.options_with(point).ok()).collect()
    }

    fn given(&self) -> impl Iterator<Item = (&'static str, Vec<OptionValue>)> {
        let set = self.algorithm.options.iter().zip(&self.values).filter(|(_, values)| !values.is_empty());
        set.map(|(spec, values)| (spec.name, values.clone()))
    }

    fn first_values(&self) -> impl Iterator<Item = (&str, OptionValue)> {
        let options = self.algorithm.options.iter().zip(&self.values);
        options.filter_map(|(spec, values)| Some((spec.name, *values.first()?)))
    }
}

impl Serialize for AlgorithmSection {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("kind", self.algorithm.kind)?;
        for (spec, values) in self.algorithm.options.iter().zip(&self.values) {
            match values.as_slice() {
                [] => {}
                [value] if !spec.levels => map.serialize_entry(spec.name, value)?,
                values => map.serialize_entry(spec.name, values)?,
            }
        }
        if let Some(l2) = self.l2 {
            map.serialize_entry("l2", &l2)?;
        }
        map.end()
    }
}
