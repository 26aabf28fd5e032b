//! The `[model]` section.

use deltafl::model::{LINEAR, ModelSpec};
use deltafl::options::OptionValue;
use serde::ser::{Serialize, SerializeMap, Serializer};

use super::NonNegative;

/// The model that devices train, and its penalty.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSection {
    pub(super) spec: ModelSpec,
    pub(super) l2: NonNegative,
    /// The description of the caller's trainer, for the kind `external`. It distinguishes runs.
    pub(super) external: Option<toml::Table>,
}

impl ModelSection {
    /// Returns the model with its options.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// Returns λ of (λ/2)‖w‖².
    pub fn l2(&self) -> f64 {
        self.l2.get()
    }
}

/// The linear model without a penalty.
impl Default for ModelSection {
    fn default() -> Self {
        Self { spec: LINEAR.spec(), l2: NonNegative::default(), external: None }
    }
}

impl ModelSection {
    /// The section without switches that are off, for a content address: it depends neither on
    /// whether a file gives such a switch nor on the value that a file without it has.
    pub(super) fn canonical(&self) -> Self {
        let given = self.spec.given().iter().filter(|(_, value)| *value != OptionValue::Truth(false));
        let given = given.map(|(option, value)| (option.name, *value));
        let spec = self.spec.definition().spec_with(given).expect("the values were checked before");
        Self { spec: spec.with_layers(self.spec.layers().to_vec()), ..self.clone() }
    }
}

/// Contains the options that the file gives, and no defaults.
impl Serialize for ModelSection {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("kind", self.spec.name())?;
        map.serialize_entry("l2", &self.l2)?;
        for (option, value) in self.spec.given() {
            map.serialize_entry(option.name, value)?;
        }
        if !self.spec.layers().is_empty() {
            map.serialize_entry("layers", self.spec.layers())?;
        }
        if let Some(external) = &self.external {
            map.serialize_entry("external", external)?;
        }
        map.end()
    }
}
