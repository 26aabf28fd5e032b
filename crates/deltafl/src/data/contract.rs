//! The data contract: the shape of inputs and targets, and their preprocessing.
//!
//! The server declares the contract. Devices fetch it by its hash and apply it to their examples.
//! Every published model contains it, because a model needs the preprocessing of its training data.
//! Columns, categories, classes and words are matched by name if both sides have names. An unknown
//! category has the place that the column reserves for such values, and an unknown word is skipped.
//! A device with an unknown class does not take part, and logs the reason.

use serde::{Deserialize, Serialize};

use super::{
    FeatureColumn, Federation, FederationBuilder, InputKind, InvalidSplit, TableCoding, TargetKind,
    WithinSplit,
};

mod coding;

/// The maximum size of a contract, in bytes. A vocabulary with frozen vectors is represented by its
/// hash.
pub const MAX_CONTRACT: usize = 16 << 20;

/// The shape of examples and their preprocessing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataContract {
    /// The kind and shape of an input.
    pub inputs: InputKind,
    /// The number of classes, or 0 if targets are real numbers.
    pub classes: usize,
    /// The names of the classes, by number. Empty if the classes have no names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub class_names: Vec<String>,
    /// The table columns from which the features were computed, with their categories. Empty if the
    /// data did not come from a table.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub columns: Vec<FeatureColumn>,
    /// The conversion of the table or images of origin, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<TableCoding>,
    /// The normalisation of the features, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub normalisation: Option<Normalisation>,
    /// The symbols of the alphabet, in the order of their codes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub symbols: Option<String>,
    /// The BLAKE3 hash of the vocabulary's words and vectors, in hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vocabulary: Option<String>,
    /// The words of the vocabulary if they have no frozen vectors. Word 0 is empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub words: Vec<String>,
    /// The split of a device's examples into training and held-out examples. Without a split, all
    /// examples are used for training.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split: Option<WithinSplit>,
}

/// x'_j = scale_j · x_j + shift_j, one pair per feature. For grey levels, the scale includes 1/255.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Normalisation {
    /// The factors.
    pub scale: Vec<f32>,
    /// The offsets.
    pub shift: Vec<f32>,
}

/// The reason a device's data does not match a contract.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ContractMismatch {
    /// The inputs have a different kind or shape.
    #[error("the inputs are {found:?}, but the contract requires {expected:?}")]
    Inputs {
        /// The value of the device.
        found: InputKind,
        /// The value of the contract.
        expected: InputKind,
    },
    /// The number of classes differs; 0 denotes real-valued targets.
    #[error("the data has {found} classes, but the contract has {expected}")]
    Classes {
        /// The value of the device.
        found: usize,
        /// The value of the contract.
        expected: usize,
    },
    /// The name of a class differs.
    #[error("class {class} is {found:?}, but the contract has {expected:?}")]
    ClassName {
        /// The number of the class.
        class: usize,
        /// The value of the device.
        found: String,
        /// The value of the contract.
        expected: String,
    },
    /// The table lacks a column.
    #[error("there is no column {name:?}, which the contract requires; the columns are {}", found.join(", "))]
    Column {
        /// The name of the column.
        name: String,
        /// The columns of the device.
        found: Vec<String>,
    },
    /// A column contains words instead of numbers.
    #[error("column {name:?} contains words, but the contract has numbers")]
    Words {
        /// The name of the column.
        name: String,
    },
    /// A column contains numbers instead of words.
    #[error("column {name:?} contains numbers, but the contract has words")]
    Numbers {
        /// The name of the column.
        name: String,
    },
    /// The contract does not contain a class.
    #[error("class {name:?} is not in the contract: {expected:?}")]
    Class {
        /// The value of the device.
        name: String,
        /// The value of the contract.
        expected: Vec<String>,
    },
    /// The encoded examples exceed the memory limit of a device.
    #[error("encoded by the contract, the examples have {values} numbers; the limit is {most}")]
    TooWide {
        /// The number of examples times the number of features of the contract.
        values: u64,
        /// The limit.
        most: u64,
    },
    /// The examples violate an invariant of the importers.
    #[error("the examples are damaged: `deltafl data info DIR --verify` reports where")]
    Invalid,
    /// The alphabets differ.
    #[error("the alphabet differs from the alphabet of the contract")]
    Symbols,
    /// The vocabularies or word vectors differ.
    #[error("the vocabulary or word vectors differ from those of the contract")]
    Vocabulary,
    /// The number of normalisation constants differs from the number of features.
    #[error("the contract has constants for {found} features, but the data has {expected}")]
    Normalisation {
        /// The value of the contract.
        found: usize,
        /// The value of the data.
        expected: usize,
    },
    /// No device has enough examples.
    #[error(
        "the contract requires more than {min_examples} examples per device, but the largest has {largest}"
    )]
    TooFew {
        /// The value of the contract.
        min_examples: u64,
        /// The value of the data.
        largest: u64,
    },
    /// The shares of the split do not sum to 1.
    #[error("the shares of the contract's split do not sum to 1")]
    Split,
}

/// The error of bytes that are not a consistent contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a contract of the data, or one that contradicts itself")]
pub struct InvalidContract;

impl DataContract {
    /// Returns the contract that a federation satisfies, with its normalisation and without a
    /// split.
    pub fn from_federation(federation: &Federation) -> Self {
        let normalisation = federation
            .affine()
            .map(|affine| Normalisation { scale: affine.scale().to_vec(), shift: affine.shift().to_vec() });
        Self {
            inputs: federation.kind(),
            classes: federation.classes(),
            class_names: federation.class_names().to_vec(),
            columns: federation.feature_columns().to_vec(),
            table: federation.coding().cloned(),
            normalisation,
            words: match (federation.words(), federation.vectors()) {
                (Some(words), None) => words.iter().map(str::to_owned).collect(),
                _ => Vec::new(),
            },
            symbols: federation.symbols().map(str::to_owned),
            vocabulary: vocabulary(federation),
            split: None,
        }
    }

    /// Encodes the contract as JSON, with keys in the order of the fields.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("text and finite numbers are JSON")
    }

    /// Decodes a contract and checks its consistency.
    ///
    /// # Errors
    /// Fails if the bytes are malformed or the contract is inconsistent.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, InvalidContract> {
        let contract: Self = serde_json::from_slice(bytes).map_err(|_| InvalidContract)?;
        let sound = contract.normalisation.as_ref().is_none_or(|Normalisation { scale, shift }| {
            let finite = scale.iter().chain(shift).all(|x| x.is_finite());
            finite && scale.len() == shift.len() && Some(scale.len()) == features(contract.inputs)
        });
        let shares = contract.split.is_none_or(|split| split.train.get() + split.validation.get() <= 1.0);
        if sound && shares && contract.is_consistent() { Ok(contract) } else { Err(InvalidContract) }
    }

    /// Whether the words, the columns and the image have the sizes of the inputs.
    fn is_consistent(&self) -> bool {
        let words = match self.inputs {
            InputKind::Tokens { vocabulary, .. } => self.words.is_empty() || self.words.len() == vocabulary,
            _ => self.words.is_empty(),
        };
        let fills = self.columns.iter().filter_map(|column| column.fill);
        let image = self.table.as_ref().and_then(|table| table.image);
        let image = image.is_none_or(|image| Some(image.features()) == features(self.inputs));
        words && image && fills.into_iter().all(f32::is_finite)
    }

    /// Returns the BLAKE3 hash of the encoded contract.
    pub fn hash(&self) -> blake3::Hash {
        blake3::hash(&self.to_bytes())
    }

    /// Returns an empty federation of this shape, for building a model.
    pub fn shape(&self) -> Federation {
        let targets = if self.classes == 0 { TargetKind::Values } else { TargetKind::Classes(self.classes) };
        let mut builder = FederationBuilder::with_target("contract", self.inputs, targets);
        builder.class_names(self.class_names.clone()).feature_columns(self.columns.clone());
        if let Some(table) = &self.table {
            builder.coding(table.clone());
        }
        if !self.words.is_empty() {
            builder.words(self.words.clone());
        }
        if let Some(symbols) = &self.symbols {
            builder.symbols(symbols);
        }
        builder.build()
    }

    /// Applies the contract to a federation.
    ///
    /// Categories and classes get the contract's numbers, examples are split, and features are
    /// normalised by the contract's constants. Data that is already split keeps its split.
    ///
    /// # Errors
    /// Fails if the data does not match the contract.
    pub fn fit(&self, federation: Federation) -> Result<Federation, ContractMismatch> {
        let federation = coding::coded(self, federation)?;
        self.check(&federation)?;
        let federation = match &self.split {
            Some(split) if federation.held_out().iter().all(Option::is_none) => {
                federation.split_within(split).map_err(|invalid| match invalid {
                    InvalidSplit::NoDevices { min_examples, largest } => {
                        ContractMismatch::TooFew { min_examples, largest }
                    }
                    _ => ContractMismatch::Split,
                })?
            }
            _ => federation,
        };
        let Some(Normalisation { scale, shift }) = &self.normalisation else { return Ok(federation) };
        let expected = features(federation.kind()).unwrap_or(0);
        let found = scale.len();
        let fitted = federation.normalised_by(scale.clone(), shift.clone());
        fitted.ok_or(ContractMismatch::Normalisation { found, expected })
    }

    fn check(&self, data: &Federation) -> Result<(), ContractMismatch> {
        if data.kind() != self.inputs {
            return Err(ContractMismatch::Inputs { found: data.kind(), expected: self.inputs });
        }
        if data.classes() != self.classes {
            return Err(ContractMismatch::Classes { found: data.classes(), expected: self.classes });
        }
        for (class, (found, expected)) in data.class_names().iter().zip(&self.class_names).enumerate() {
            if found != expected {
                let (found, expected) = (found.clone(), expected.clone());
                return Err(ContractMismatch::ClassName { class, found, expected });
            }
        }
        if self.symbols.is_some() && data.symbols().is_some() && self.symbols.as_deref() != data.symbols() {
            return Err(ContractMismatch::Symbols);
        }
        let vocabulary = vocabulary(data);
        let differs = self.vocabulary.is_some() && vocabulary.is_some() && self.vocabulary != vocabulary;
        if differs { Err(ContractMismatch::Vocabulary) } else { Ok(()) }
    }
}

/// Returns the number of features that can be normalised: `None` for words and symbols.
fn features(inputs: InputKind) -> Option<usize> {
    match inputs {
        InputKind::Bytes { dim } | InputKind::Dense { dim } => Some(dim),
        InputKind::Tokens { .. } | InputKind::Windows { .. } => None,
    }
}

/// Returns the BLAKE3 hash of the words and their vectors.
fn vocabulary(federation: &Federation) -> Option<String> {
    let mut hasher = blake3::Hasher::new();
    if let Some(words) = federation.words() {
        for word in words.iter() {
            hasher.update(word.as_bytes()).update(b"\0");
        }
    }
    if let Some(vectors) = federation.vectors() {
        for entry in vectors.values.iter() {
            hasher.update(&entry.to_le_bytes());
        }
    }
    let known = federation.words().is_some() || federation.vectors().is_some();
    known.then(|| hasher.finalize().to_hex().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{DeviceExamples, FederationIndex, Normalise, Split};

    fn table(values: &[f32], classes: &[&str]) -> Federation {
        let mut builder = FederationBuilder::new("t", InputKind::Dense { dim: 2 }, classes.len());
        builder.class_names(classes.iter().map(|&name| name.to_owned()).collect());
        let labels = vec![0u32; values.len() / 2];
        builder.push("a", Split::Train, DeviceExamples::Dense(values), labels.as_slice()).unwrap();
        builder.build()
    }

    #[test]
    fn a_contract_is_read_as_it_was_written_and_its_constants_keep_their_bits() {
        let whole = table(&[0.1, 7.0, 0.3, -1.0], &["no", "yes"]).normalised(Normalise::MeanRatio);
        let contract = DataContract::from_federation(&whole);
        let read = DataContract::from_bytes(&contract.to_bytes()).unwrap();
        assert_eq!((&read, read.hash()), (&contract, contract.hash()));
        let fitted = read.fit(table(&[0.2, 5.0], &["no", "yes"])).unwrap();
        assert_eq!(fitted.affine(), whole.affine());
        assert_eq!((read.shape().kind(), read.shape().classes()), (whole.kind(), 2));
    }

    #[test]
    fn data_that_does_not_fit_says_where() {
        let mut contract = DataContract::from_federation(&table(&[0.1, 7.0], &["no", "yes"]));
        let said = |contract: &DataContract, data| contract.fit(data).unwrap_err().to_string();
        let other = said(&contract, table(&[0.1, 7.0], &["no", "yes", "maybe"]));
        assert!(other.starts_with(r#"class "maybe" is not in the contract"#), "{other}");
        let numbered = FederationBuilder::new("t", InputKind::Dense { dim: 2 }, 3).build();
        assert_eq!(said(&contract, numbered), "the data has 3 classes, but the contract has 2");
        contract.inputs = InputKind::Dense { dim: 3 };
        assert!(said(&contract, table(&[0.1, 7.0], &["no", "yes"])).contains("Dense { dim: 3 }"));
    }

    #[test]
    fn a_device_holds_out_what_the_simulation_holds_out() {
        let whole = table(&[0.0; 20], &["no", "yes"]);
        let split = WithinSplit::default();
        let mut contract = DataContract::from_federation(&whole);
        contract.split = Some(split);
        let read = DataContract::from_bytes(&contract.to_bytes()).unwrap();
        let fitted = read.fit(whole.clone()).unwrap();
        assert_eq!(fitted.hash(), whole.split_within(&split).unwrap().hash());
        let [trains, held_out] = [0, 1].map(FederationIndex);
        assert_eq!(fitted.held_out(), [Some(held_out), None]);
        assert_eq!((fitted.example_count(trains), fitted.example_count(held_out)), (9, 1));
        let again = read.fit(fitted.clone()).unwrap();
        assert_eq!(again.hash(), fitted.hash(), "what its owner split stays");
        contract.split = Some(WithinSplit { min_examples: 10, ..split });
        let refused = contract.fit(table(&[0.0; 20], &["no", "yes"])).unwrap_err();
        assert_eq!(refused, ContractMismatch::TooFew { min_examples: 10, largest: 10 });
        contract.split = Some(WithinSplit { validation: split.train, ..split });
        assert!(DataContract::from_bytes(&contract.to_bytes()).is_err());
    }

    #[test]
    fn constants_that_are_none_are_refused() {
        let mut contract = DataContract::from_federation(&table(&[0.1, 7.0], &["no", "yes"]));
        contract.normalisation = Some(Normalisation { scale: vec![1.0], shift: vec![0.0, 0.0] });
        assert!(DataContract::from_bytes(&contract.to_bytes()).is_err());
        assert!(DataContract::from_bytes(b"{}").is_err());
    }
}
