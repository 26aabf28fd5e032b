//! An `[[algorithm]]` section: an algorithm of the table, its options, and its levels.

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

use super::{ExternalSection, NonNegative};
use deltafl::algorithm::{Algorithm, Requires};
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
    /// The parts that the caller's program replaces, if any.
    external: Option<ExternalSection>,
}

impl PartialEq for AlgorithmSection {
    fn eq(&self, other: &Self) -> bool {
        (self.algorithm.kind, &self.values, self.l2, &self.external)
            == (other.algorithm.kind, &other.values, other.l2, &other.external)
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
        let section =
            Self { algorithm, values: algorithm.options.iter().map(values).collect(), l2, external: None };
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

    /// Returns the section with parts that the caller's program replaces.
    #[must_use]
    pub(super) fn replaced_by(self, external: Option<ExternalSection>) -> Self {
        Self { external, ..self }
    }

    /// Returns the algorithm. An external section replaces parts of it.
    pub fn algorithm(&self) -> &'static Algorithm {
        self.algorithm
    }

    /// Returns the parts that the caller's program replaces.
    pub fn external(&self) -> Option<&ExternalSection> {
        self.external.as_ref()
    }

    /// Returns the name of the algorithm in tables.
    pub fn title(&self) -> &str {
        self.external.as_ref().map_or(self.algorithm.title, |external| &external.name)
    }

    /// Returns the kind of the algorithm in labels.
    pub fn kind(&self) -> &'static str {
        if self.external.is_some() { "external" } else { self.algorithm.kind }
    }

    /// Returns the answers that the server of the algorithm needs.
    pub fn requires(&self) -> Requires {
        let base = self.algorithm.requires;
        self.external.as_ref().map_or(base, |external| external.requires(base))
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
        Ok(Self::new(self.algorithm, &given, self.l2)?.replaced_by(self.external.clone()))
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
        if let Some(external) = &self.external {
            map.serialize_entry("external", external)?;
        }
        map.end()
    }
}
