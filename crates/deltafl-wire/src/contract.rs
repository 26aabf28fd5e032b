//! The contract of the data: the shape of inputs and targets, and what is done to them before a model sees them.
//!
//! A server declares it, devices fetch it by its hash and apply it to their own examples, and every published model carries
//! it: a model that was trained on normalised features is worth nothing on others. Names of columns, categories and classes
//! are compared where both sides have them, so that a device whose table was coded otherwise stays away and says why.

use deltafl::data::{
    FeatureColumn, Federation, FederationBuilder, InputKind, InvalidSplit, TargetKind, WithinSplit,
};
use serde::{Deserialize, Serialize};

use crate::{Malformed, malformed};

/// The longest contract, in bytes: a vocabulary of words stands in it as a hash.
pub const MAX_CONTRACT: usize = 16 << 20;

/// What examples are, and what is done to them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataContract {
    /// The kind and shape of an input.
    pub inputs: InputKind,
    /// Number of classes; 0 where targets are real numbers.
    pub classes: usize,
    /// The names of the classes, in the order of their numbers; empty where they have none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub class_names: Vec<String>,
    /// The columns of the table that the features were made of, with their categories; empty where there was no table.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub columns: Vec<FeatureColumn>,
    /// How features are normalised, if they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub normalisation: Option<Normalisation>,
    /// The symbols of the alphabet, in the order of their codes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub symbols: Option<String>,
    /// BLAKE3 of the words of the vocabulary and of their vectors, in hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vocabulary: Option<String>,
    /// Which of its own examples a device trains on; on the rest it says how models serve it. All of them train where there
    /// is no split.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split: Option<WithinSplit>,
}

/// x'_j = scale_j · x_j + shift_j, a pair per feature. Of grey levels the scale holds the 1/255.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Normalisation {
    /// The factors.
    pub scale: Vec<f32>,
    /// What is added.
    pub shift: Vec<f32>,
}

/// Why the data of a device does not fit a contract.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Misfit {
    /// Inputs of another kind or shape.
    #[error("its inputs are {found:?}, and the contract asks for {expected:?}")]
    Inputs {
        /// Of the device.
        found: InputKind,
        /// Of the contract.
        expected: InputKind,
    },
    /// Another number of classes; 0 stands for real numbers.
    #[error("it has {found} classes, and the contract has {expected}")]
    Classes {
        /// Of the device.
        found: usize,
        /// Of the contract.
        expected: usize,
    },
    /// A class of another name.
    #[error("its class {class} is {found:?}, and the contract calls it {expected:?}")]
    ClassName {
        /// Its number.
        class: usize,
        /// Of the device.
        found: String,
        /// Of the contract.
        expected: String,
    },
    /// Another number of columns.
    #[error("its table has {found} columns, and the contract has {expected}")]
    Columns {
        /// Of the device.
        found: usize,
        /// Of the contract.
        expected: usize,
    },
    /// A column of another name.
    #[error("column {column} of its table is {found:?}, and the contract has {expected:?} there")]
    Column {
        /// Counted from 1.
        column: usize,
        /// Of the device.
        found: String,
        /// Of the contract.
        expected: String,
    },
    /// Other categories in a column.
    #[error("column {name:?} has the categories {found:?}, and the contract codes {expected:?}")]
    Categories {
        /// The column.
        name: String,
        /// Of the device.
        found: Vec<String>,
        /// Of the contract.
        expected: Vec<String>,
    },
    /// Another alphabet.
    #[error("its alphabet is another one than that of the contract")]
    Symbols,
    /// Another vocabulary, or other word vectors.
    #[error("its vocabulary or its word vectors are others than those of the contract")]
    Vocabulary,
    /// Constants for another number of features.
    #[error("the contract has constants for {found} features, and the data has {expected}")]
    Normalisation {
        /// Of the contract.
        found: usize,
        /// Of the data.
        expected: usize,
    },
    /// No device with enough examples.
    #[error(
        "the contract is for devices with more than {min_examples} examples, and the largest here has {largest}"
    )]
    TooFew {
        /// Of the contract.
        min_examples: u64,
        /// Of the data.
        largest: u64,
    },
    /// Shares that are none.
    #[error("the contract splits examples into shares that do not come to 1")]
    Split,
}

impl DataContract {
    /// The contract that a federation meets, normalised as it is. How examples are split it does not say.
    pub fn of(federation: &Federation) -> Self {
        let normalisation = federation
            .affine()
            .map(|affine| Normalisation { scale: affine.scale().to_vec(), shift: affine.shift().to_vec() });
        Self {
            inputs: federation.kind(),
            classes: federation.classes(),
            class_names: federation.class_names().to_vec(),
            columns: federation.feature_columns().to_vec(),
            normalisation,
            symbols: federation.symbols().map(str::to_owned),
            vocabulary: vocabulary(federation),
            split: None,
        }
    }

    /// The contract as it travels: JSON, its keys in the order of the fields.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("text and finite numbers are JSON")
    }

    /// The contract of these bytes, sound in itself.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Malformed> {
        let contract: Self = serde_json::from_slice(bytes).map_err(|_| malformed("contract"))?;
        let sound = contract.normalisation.as_ref().is_none_or(|Normalisation { scale, shift }| {
            let finite = scale.iter().chain(shift).all(|x| x.is_finite());
            finite && scale.len() == shift.len() && Some(scale.len()) == features(contract.inputs)
        });
        let shares = contract.split.is_none_or(|split| split.train.get() + split.validation.get() <= 1.0);
        if sound && shares { Ok(contract) } else { Err(malformed("contract")) }
    }

    /// BLAKE3 of the contract as it travels.
    pub fn hash(&self) -> blake3::Hash {
        blake3::hash(&self.to_bytes())
    }

    /// A federation without devices of this shape, for which a model can be built.
    pub fn shape(&self) -> Federation {
        let targets = if self.classes == 0 { TargetKind::Values } else { TargetKind::Classes(self.classes) };
        let mut builder = FederationBuilder::with_target("contract", self.inputs, targets);
        builder.class_names(self.class_names.clone());
        if let Some(symbols) = &self.symbols {
            builder.symbols(symbols);
        }
        builder.build()
    }

    /// The same data as the contract has it: checked, split, and normalised by its constants. Data whose owner has split it
    /// already stays as it is.
    pub fn fit(&self, federation: Federation) -> Result<Federation, Misfit> {
        self.check(&federation)?;
        let federation = match &self.split {
            Some(split) if federation.held_out().iter().all(Option::is_none) => {
                federation.split_within(split).map_err(|invalid| match invalid {
                    InvalidSplit::NoDevices { min_examples, largest } => {
                        Misfit::TooFew { min_examples, largest }
                    }
                    _ => Misfit::Split,
                })?
            }
            _ => federation,
        };
        let Some(Normalisation { scale, shift }) = &self.normalisation else { return Ok(federation) };
        let expected = features(federation.kind()).unwrap_or(0);
        let found = scale.len();
        let fitted = federation.normalised_by(scale.clone(), shift.clone());
        fitted.ok_or(Misfit::Normalisation { found, expected })
    }

    fn check(&self, data: &Federation) -> Result<(), Misfit> {
        if data.kind() != self.inputs {
            return Err(Misfit::Inputs { found: data.kind(), expected: self.inputs });
        }
        if data.classes() != self.classes {
            return Err(Misfit::Classes { found: data.classes(), expected: self.classes });
        }
        for (class, (found, expected)) in data.class_names().iter().zip(&self.class_names).enumerate() {
            if found != expected {
                let (found, expected) = (found.clone(), expected.clone());
                return Err(Misfit::ClassName { class, found, expected });
            }
        }
        self.check_columns(data.feature_columns())?;
        if self.symbols.is_some() && data.symbols().is_some() && self.symbols.as_deref() != data.symbols() {
            return Err(Misfit::Symbols);
        }
        let vocabulary = vocabulary(data);
        let differs = self.vocabulary.is_some() && vocabulary.is_some() && self.vocabulary != vocabulary;
        if differs { Err(Misfit::Vocabulary) } else { Ok(()) }
    }

    fn check_columns(&self, columns: &[FeatureColumn]) -> Result<(), Misfit> {
        if columns.is_empty() || self.columns.is_empty() {
            return Ok(());
        }
        if columns.len() != self.columns.len() {
            return Err(Misfit::Columns { found: columns.len(), expected: self.columns.len() });
        }
        for (column, (found, expected)) in (1..).zip(columns.iter().zip(&self.columns)) {
            if found.name != expected.name {
                let (found, expected) = (found.name.clone(), expected.name.clone());
                return Err(Misfit::Column { column, found, expected });
            }
            if found.categories != expected.categories {
                let (found_, expected) = (found.categories.clone(), expected.categories.clone());
                return Err(Misfit::Categories { name: found.name.clone(), found: found_, expected });
            }
        }
        Ok(())
    }
}

/// Features that can be normalised; none where inputs are words or symbols.
fn features(inputs: InputKind) -> Option<usize> {
    match inputs {
        InputKind::Bytes { dim } | InputKind::Dense { dim } => Some(dim),
        InputKind::Tokens { .. } | InputKind::Windows { .. } => None,
    }
}

/// BLAKE3 of the words and of their vectors.
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
    use deltafl::data::{DeviceExamples, FederationIndex, Normalise, Split};

    use super::*;

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
        let contract = DataContract::of(&whole);
        let read = DataContract::from_bytes(&contract.to_bytes()).unwrap();
        assert_eq!((&read, read.hash()), (&contract, contract.hash()));
        let fitted = read.fit(table(&[0.2, 5.0], &["no", "yes"])).unwrap();
        assert_eq!(fitted.affine(), whole.affine());
        assert_eq!((read.shape().kind(), read.shape().classes()), (whole.kind(), 2));
    }

    #[test]
    fn data_that_does_not_fit_says_where() {
        let mut contract = DataContract::of(&table(&[0.1, 7.0], &["no", "yes"]));
        let said = |contract: &DataContract, data| contract.fit(data).unwrap_err().to_string();
        let other = said(&contract, table(&[0.1, 7.0], &["yes", "no"]));
        assert_eq!(other, r#"its class 0 is "yes", and the contract calls it "no""#);
        let other = said(&contract, table(&[0.1, 7.0], &["no", "yes", "maybe"]));
        assert_eq!(other, "it has 3 classes, and the contract has 2");
        contract.inputs = InputKind::Dense { dim: 3 };
        assert!(said(&contract, table(&[0.1, 7.0], &["no", "yes"])).contains("Dense { dim: 3 }"));
    }

    #[test]
    fn columns_and_categories_are_compared_by_name() {
        let column = |name: &str, categories: &[&str]| FeatureColumn {
            name: name.to_owned(),
            categories: categories.iter().map(|&text| text.to_owned()).collect(),
        };
        let mut contract = DataContract::of(&table(&[0.1, 7.0], &["no", "yes"]));
        contract.columns = vec![column("age", &[]), column("city", &["Oslo", "Rome"])];
        let said = |columns: &[FeatureColumn]| contract.check_columns(columns).unwrap_err().to_string();
        assert_eq!(contract.check_columns(&contract.columns), Ok(()));
        let swapped = said(&[column("weight", &[]), column("city", &["Oslo", "Rome"])]);
        assert_eq!(swapped, r#"column 1 of its table is "weight", and the contract has "age" there"#);
        let other = said(&[column("age", &[]), column("city", &["Rome", "Oslo"])]);
        assert!(other.starts_with(r#"column "city" has the categories ["Rome", "Oslo"]"#), "{other}");
    }

    #[test]
    fn a_device_holds_out_what_the_simulation_holds_out() {
        let whole = table(&[0.0; 20], &["no", "yes"]);
        let split = WithinSplit::default();
        let mut contract = DataContract::of(&whole);
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
        assert_eq!(refused, Misfit::TooFew { min_examples: 10, largest: 10 });
        contract.split = Some(WithinSplit { validation: split.train, ..split });
        assert!(DataContract::from_bytes(&contract.to_bytes()).is_err());
    }

    #[test]
    fn constants_that_are_none_are_refused() {
        let mut contract = DataContract::of(&table(&[0.1, 7.0], &["no", "yes"]));
        contract.normalisation = Some(Normalisation { scale: vec![1.0], shift: vec![0.0, 0.0] });
        assert!(DataContract::from_bytes(&contract.to_bytes()).is_err());
        assert!(DataContract::from_bytes(b"{}").is_err());
    }
}
