//! A model of the table with values for its options.

use serde::de::Error as _;
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::stack::{self, Layer, Stack};
use super::{MODELS, Model, ModelDefinition, ModelMismatch, ModelRequest, STACK, find};
use crate::data::Federation;
use crate::kernel::Isa;
use crate::options::{InvalidOption, OptionSpec, OptionValue, OptionValues, RawTable};

/// A model of [`MODELS`] with values for its options. The data determines the remaining sizes.
///
/// Its serialised form is a table such as `{"kind":"gru","hidden":128,"embedding":0}`, which
/// contains every value except switches that are off and options that are unset.
#[derive(Clone, Debug)]
pub struct ModelSpec {
    definition: &'static ModelDefinition,
    /// The values that were given, in the order of the options.
    given: Vec<(&'static OptionSpec, OptionValue)>,
    /// The layers of a stack.
    layers: Vec<Layer>,
}

/// Two specs are equal if they build the same model: an option with its default value equals an
/// option that is not given.
impl PartialEq for ModelSpec {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name() && self.options() == other.options() && self.layers == other.layers
    }
}

impl ModelDefinition {
    /// Returns the model with the default of every option.
    ///
    /// ```
    /// use deltafl::model::LSTM;
    ///
    /// assert_eq!(LSTM.spec().options().whole("hidden")?, 50);
    /// # Ok::<(), deltafl::options::InvalidOption>(())
    /// ```
    pub const fn spec(&'static self) -> ModelSpec {
        ModelSpec { definition: self, given: Vec::new(), layers: Vec::new() }
    }

    /// Returns the values that an experiment file has for options that it does not give, if they
    /// differ from the defaults.
    pub fn usual(&'static self) -> impl Iterator<Item = (&'static str, OptionValue)> {
        self.options.iter().filter_map(|option| Some((option.name, option.usual?)))
    }

    /// Returns the model with these values; options that are not given have their defaults.
    ///
    /// ```
    /// use deltafl::model::LINEAR;
    /// use deltafl::options::OptionValue;
    ///
    /// let spec = LINEAR.spec_with([("intercept", OptionValue::Truth(true))])?;
    /// assert_eq!(serde_json::to_string(&spec)?, r#"{"kind":"linear","intercept":true}"#);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The model has no option of this name, or a value has the wrong type or range.
    pub fn spec_with<'a>(
        &'static self,
        given: impl IntoIterator<Item = (&'a str, OptionValue)>,
    ) -> Result<ModelSpec, InvalidOption> {
        let given: Vec<(&str, OptionValue)> = given.into_iter().collect();
        OptionValues::new(self.kind, self.options, given.iter().copied())?;
        let value = |spec: &'static OptionSpec| {
            let last = given.iter().rev().find(|(name, _)| *name == spec.name);
            last.map(|(_, value)| (spec, *value))
        };
        let given = self.options.iter().filter_map(value).collect();
        Ok(ModelSpec { definition: self, given, layers: Vec::new() })
    }
}

impl ModelSpec {
    /// The linear model of the paper, without an intercept.
    pub const LINEAR: Self = super::LINEAR.spec();

    /// The logistic model of the paper, without an intercept.
    pub const LOGISTIC: Self = super::LOGISTIC.spec();

    /// Returns the entry of the table.
    pub fn definition(&self) -> &'static ModelDefinition {
        self.definition
    }

    /// Returns its name in an experiment file.
    pub fn name(&self) -> &'static str {
        self.definition.kind
    }

    /// Returns the values that were given, in the order of the options.
    pub fn given(&self) -> &[(&'static OptionSpec, OptionValue)] {
        &self.given
    }

    /// Returns the values of all options.
    pub fn options(&self) -> OptionValues {
        let given = self.given.iter().map(|(spec, value)| (spec.name, *value));
        OptionValues::new(self.name(), self.definition.options, given)
            .expect("given values are checked, and no option of a model is required")
    }

    /// Returns the layers that were given; empty unless the model is a stack.
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// Returns the same stack with these layers.
    ///
    /// # Panics
    /// If the model is not [`STACK`].
    #[must_use]
    pub fn with_layers(self, layers: Vec<Layer>) -> Self {
        assert!(std::ptr::eq(self.definition, &STACK) || layers.is_empty(), "only a stack has layers");
        Self { layers, ..self }
    }

    /// Returns the layers and shapes of the model for this data; `None` if the model is no stack.
    ///
    /// # Errors
    /// The data does not suit the model.
    pub fn stack(&self, federation: &Federation) -> Result<Option<Stack>, ModelMismatch> {
        stack::of_request(&self.request(&self.options(), federation, Isa::Reference))
    }

    fn request<'a>(
        &'a self,
        options: &'a OptionValues,
        federation: &'a Federation,
        isa: Isa,
    ) -> ModelRequest<'a> {
        ModelRequest { model: self.name(), options, layers: &self.layers, federation, isa }
    }

    /// Builds the model for this data, with kernels for this instruction set.
    ///
    /// # Errors
    /// The data does not suit the model, or this CPU does not have the instruction set.
    pub fn build(&self, federation: &Federation, isa: Isa) -> Result<Box<dyn Model>, ModelMismatch> {
        let isa = isa.require()?;
        (self.definition.build)(&self.request(&self.options(), federation, isa))
    }
}

impl Serialize for ModelSpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("kind", self.name())?;
        for (spec, value) in self.options().iter() {
            match value {
                None | Some(OptionValue::Truth(false)) => {}
                // A model computes in single precision.
                Some(OptionValue::Real(real)) => map.serialize_entry(spec.name, &(real as f32))?,
                Some(value) => map.serialize_entry(spec.name, &value)?,
            }
        }
        if !self.layers.is_empty() {
            map.serialize_entry("layers", &self.layers)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for ModelSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let table = RawTable::deserialize(deserializer)?;
        let kind = table.kind.ok_or_else(|| D::Error::missing_field("kind"))?;
        let definition = find(&kind).ok_or_else(|| {
            let known: Vec<&str> = MODELS.iter().map(|model| model.kind).collect();
            D::Error::custom(format_args!("unknown model {kind:?}: expected one of {}", known.join(", ")))
        })?;
        let checked = |(name, raw): &(String, crate::options::RawValue)| {
            let spec = definition.options.iter().find(|spec| spec.name == name.as_str());
            let spec = spec.ok_or_else(|| format!("model {kind} has no option {name}"))?;
            let value = spec.check(raw);
            let value = value.ok_or_else(|| format!("{name}: expected {}, got {raw}", spec.kind))?;
            Ok((spec.name, value))
        };
        let given = table.options.iter().map(checked).collect::<Result<Vec<_>, String>>();
        if !table.layers.is_empty() && !std::ptr::eq(definition, &STACK) {
            return Err(D::Error::custom(format_args!("model {kind} has no layers")));
        }
        let spec = definition.spec_with(given.map_err(D::Error::custom)?).map_err(D::Error::custom)?;
        Ok(spec.with_layers(table.layers))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(json: &str) -> Result<ModelSpec, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    #[test]
    fn the_serialised_form_contains_the_defaults_and_is_read_back() {
        for model in MODELS {
            let json = serde_json::to_string(&model.spec()).unwrap();
            assert_eq!(parsed(&json).unwrap(), model.spec(), "{json}");
            let examples = model.options.iter().map(|option| (option.name, option.example));
            let spec = model.spec_with(examples).unwrap();
            assert_eq!(parsed(&serde_json::to_string(&spec).unwrap()).unwrap(), spec);
        }
        let json = r#"{"hidden":64,"kind":"gru"}"#;
        assert_eq!(parsed(json).unwrap().options().whole("embedding"), Ok(0));
    }

    #[test]
    fn unknown_models_and_wrong_options_are_refused() {
        for (json, reason) in [
            (r#"{"kind":"linea"}"#, "unknown model \"linea\": expected one of linear"),
            (r#"{"kind":"linear","hidden":3}"#, "model linear has no option hidden"),
            (r#"{"kind":"lstm","hidden":0}"#, "hidden: expected a whole number, 1 or above, got 0"),
            (r#"{"kind":"conv-net","channels":[1,2,3]}"#, "channels: expected two whole numbers"),
            (r#"{"hidden":3}"#, "missing field `kind`"),
        ] {
            let error = parsed(json).unwrap_err();
            assert!(error.starts_with(reason), "{json}: {error}");
        }
    }
}
