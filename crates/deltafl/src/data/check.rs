//! Validation of the devices of a federation.

use super::{InputKind, TargetKind};
use crate::task::Targets;

/// The inputs of one device, of the kind of the federation.
#[derive(Clone, Copy, Debug)]
pub enum DeviceExamples<'a> {
    /// Grey levels, `count × dim`.
    Bytes(&'a [u8]),
    /// Real features, `count × dim`.
    Dense(&'a [f32]),
    /// Words, `count × len`.
    Tokens(&'a [u32]),
    /// The device's text, a symbol per byte: `count + len` symbols, and no labels.
    Text(&'a [u8]),
}

/// The reason why a device cannot be added to a federation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidDevice {
    /// The device has no examples.
    #[error("device {id:?} has no examples")]
    Empty {
        /// The device.
        id: String,
    },
    /// The identity is already used.
    #[error("device {id:?} occurs twice")]
    Duplicate {
        /// The device.
        id: String,
    },
    /// The inputs do not match the labels or the kind of the federation.
    #[error("device {id:?} has {got} input values where {expected} were expected")]
    Shape {
        /// The device.
        id: String,
        /// Values expected.
        expected: usize,
        /// Values found.
        got: usize,
    },
    /// The inputs are of a different kind.
    #[error("device {id:?} has inputs of another kind than the federation")]
    Kind {
        /// The device.
        id: String,
    },
    /// A label is out of range.
    #[error("device {id:?}, example {example}: label {label} is not below the number of classes, {classes}")]
    Label {
        /// The device.
        id: String,
        /// Index of the example.
        example: usize,
        /// The label.
        label: u32,
        /// Number of classes.
        classes: usize,
    },
    /// The targets are classes and the federation has real-valued targets, or vice versa.
    #[error("device {id:?} has targets of another kind than the federation")]
    Targets {
        /// The device.
        id: String,
    },
    /// A real-valued target is not finite.
    #[error("device {id:?}, example {example}: the number to predict is not finite")]
    Value {
        /// The device.
        id: String,
        /// Index of the example.
        example: usize,
    },
    /// A token or symbol is out of range.
    #[error("device {id:?}, example {example}: token {token} is not below {vocabulary}")]
    Token {
        /// The device.
        id: String,
        /// Index of the example, or of the symbol in a text.
        example: usize,
        /// The token.
        token: u32,
        /// Size of the vocabulary or the alphabet.
        vocabulary: usize,
    },
    /// A feature is not finite.
    #[error("device {id:?}, example {example}: feature {feature} is not finite")]
    NonFinite {
        /// The device.
        id: String,
        /// Index of the example.
        example: usize,
        /// Index of the feature.
        feature: usize,
    },
}

/// The properties shared by all devices of a federation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The kind and shape of an input.
    pub kind: InputKind,
    /// The kind of target.
    pub targets: TargetKind,
}

impl Shape {
    /// Returns the number of examples, if inputs and targets match the federation.
    pub fn count(
        self,
        id: &str,
        inputs: DeviceExamples<'_>,
        targets: Targets<'_>,
    ) -> Result<usize, InvalidDevice> {
        let count = match (self.kind, inputs) {
            (InputKind::Bytes { dim }, DeviceExamples::Bytes(values)) => {
                same_len(id, targets.len() * dim, values.len())?;
                targets.len()
            }
            (InputKind::Dense { dim }, DeviceExamples::Dense(values)) => {
                same_len(id, targets.len() * dim, values.len())?;
                all_finite(id, dim, values)?;
                targets.len()
            }
            (InputKind::Tokens { len, vocabulary }, DeviceExamples::Tokens(ids)) => {
                same_len(id, targets.len() * len, ids.len())?;
                all_below(id, vocabulary, len, ids.iter().copied())?;
                targets.len()
            }
            (InputKind::Windows { len, alphabet }, DeviceExamples::Text(text)) => {
                same_len(id, 0, targets.len())?;
                all_below(id, alphabet, 1, text.iter().map(|&symbol| u32::from(symbol)))?;
                text.len().saturating_sub(len)
            }
            _ => return Err(InvalidDevice::Kind { id: id.to_owned() }),
        };
        if count == 0 {
            return Err(InvalidDevice::Empty { id: id.to_owned() });
        }
        self.targets_in_range(id, targets)?;
        Ok(count)
    }

    fn targets_in_range(self, id: &str, targets: Targets<'_>) -> Result<(), InvalidDevice> {
        match (self.targets, targets) {
            (TargetKind::Classes(classes), Targets::Classes(labels)) => labels_in_range(id, classes, labels),
            (TargetKind::Values, Targets::Values(values)) => {
                match values.iter().position(|value| !value.is_finite()) {
                    None => Ok(()),
                    Some(example) => Err(InvalidDevice::Value { id: id.to_owned(), example }),
                }
            }
            _ => Err(InvalidDevice::Targets { id: id.to_owned() }),
        }
    }
}

fn labels_in_range(id: &str, classes: usize, labels: &[u32]) -> Result<(), InvalidDevice> {
    match labels.iter().position(|&label| label as usize >= classes) {
        None => Ok(()),
        Some(example) => {
            Err(InvalidDevice::Label { id: id.to_owned(), example, label: labels[example], classes })
        }
    }
}

fn same_len(id: &str, expected: usize, got: usize) -> Result<(), InvalidDevice> {
    if expected == got { Ok(()) } else { Err(InvalidDevice::Shape { id: id.to_owned(), expected, got }) }
}

fn all_finite(id: &str, dim: usize, values: &[f32]) -> Result<(), InvalidDevice> {
    match values.iter().position(|x| !x.is_finite()) {
        None => Ok(()),
        Some(i) => Err(InvalidDevice::NonFinite { id: id.to_owned(), example: i / dim, feature: i % dim }),
    }
}

fn all_below(
    id: &str,
    vocabulary: usize,
    per_example: usize,
    mut tokens: impl Iterator<Item = u32> + Clone,
) -> Result<(), InvalidDevice> {
    let found = tokens.clone().position(|token| token as usize >= vocabulary);
    match found.and_then(|i| Some((i, tokens.nth(i)?))) {
        None => Ok(()),
        Some((i, token)) => {
            Err(InvalidDevice::Token { id: id.to_owned(), example: i / per_example, token, vocabulary })
        }
    }
}
