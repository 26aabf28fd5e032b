//! Named parameters: the tensors of a model with the names and layouts of PyTorch.
//!
//! The round loop uses a flat vector w. Other programs need tensors, for example `fc.weight` of
//! shape `classes × inputs`. A model lists its tensors in the order of w. Most have the layout of
//! PyTorch, and the weights of the linear model are transposed.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::Model;

/// A tensor of a model: consecutive entries of w.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tensor {
    /// Its name in a state dict.
    pub name: String,
    /// Its shape in a state dict, the last axis running fastest.
    pub shape: Vec<usize>,
    /// Whether w contains the transpose of this matrix.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_transposed: bool,
}

impl Tensor {
    /// Creates a tensor with the same layout in w.
    pub fn new(name: &str, shape: &[usize]) -> Self {
        Self { name: name.to_owned(), shape: shape.to_vec(), is_transposed: false }
    }

    /// Creates a matrix whose transpose is in w.
    pub fn transposed(name: &str, shape: [usize; 2]) -> Self {
        Self { name: name.to_owned(), shape: shape.to_vec(), is_transposed: true }
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.shape.iter().fold(1, |len: usize, axis| len.saturating_mul(*axis))
    }

    /// Returns true if it has no entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A tensor with its entries.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedTensor {
    /// Its name.
    pub name: String,
    /// Its shape, the last axis running fastest.
    pub shape: Vec<usize>,
    /// Its entries.
    pub values: Vec<f32>,
}

/// The reason why tensors are not the parameters of a model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidState {
    /// A tensor is missing.
    #[error("the tensor {name} is missing")]
    Missing {
        /// Its name.
        name: String,
    },
    /// The model has no such tensor.
    #[error("the model has no tensor {name}")]
    Unknown {
        /// Its name.
        name: String,
    },
    /// A tensor has the wrong shape.
    #[error("the tensor {name} has shape {got:?} where the model has {expected:?}")]
    Shape {
        /// Its name.
        name: String,
        /// The shape in the model.
        expected: Vec<usize>,
        /// The given shape.
        got: Vec<usize>,
    },
}

/// Returns the parameters of a model by name, in PyTorch's layouts.
///
/// # Panics
/// If `params` does not have [`Model::num_params`] entries.
///
/// # Examples
/// ```
/// use deltafl::kernel::Isa;
/// use deltafl::model::{Linear, from_state_dict, state_dict};
/// let model = Linear::new(2, 3, Isa::detect());
/// let state = state_dict(&model, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
/// assert_eq!((state[0].name.as_str(), &state[0].shape[..]), ("fc.weight", &[3, 2][..]));
/// assert_eq!(state[0].values, [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
/// assert_eq!(from_state_dict(&model, &state).unwrap(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
/// ```
pub fn state_dict(model: &dyn Model, params: &[f32]) -> Vec<NamedTensor> {
    assert_eq!(params.len(), model.num_params(), "params of another model");
    named_tensors(&model.tensors(), params)
}

/// Returns the flat parameters of a model from its tensors, in any order.
pub fn from_state_dict(model: &dyn Model, state: &[NamedTensor]) -> Result<Vec<f32>, InvalidState> {
    flat_params(&model.tensors(), state)
}

/// Returns flat parameters by name: each tensor with its entries.
///
/// # Panics
/// If `params` has fewer entries than the tensors.
pub fn named_tensors(tensors: &[Tensor], params: &[f32]) -> Vec<NamedTensor> {
    let mut rest = params;
    let of_tensor = |tensor: &Tensor| {
        let (flat, after) = rest.split_at(tensor.len());
        rest = after;
        let values = match tensor.shape[..] {
            [rows, columns] if tensor.is_transposed => transposed(flat, columns, rows),
            _ => flat.to_vec(),
        };
        NamedTensor { name: tensor.name.clone(), shape: tensor.shape.clone(), values }
    };
    tensors.iter().map(of_tensor).collect()
}

/// Returns flat parameters from their tensors, in any order.
pub fn flat_params(tensors: &[Tensor], state: &[NamedTensor]) -> Result<Vec<f32>, InvalidState> {
    let mut by_name: HashMap<&str, &NamedTensor> =
        state.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
    let mut params = Vec::with_capacity(state.iter().map(|tensor| tensor.values.len()).sum());
    for tensor in tensors {
        let missing = || InvalidState::Missing { name: tensor.name.clone() };
        let given = by_name.remove(tensor.name.as_str()).ok_or_else(missing)?;
        if given.shape != tensor.shape || given.values.len() != tensor.len() {
            let (name, expected, got) = (tensor.name.clone(), tensor.shape.clone(), given.shape.clone());
            return Err(InvalidState::Shape { name, expected, got });
        }
        match tensor.shape[..] {
            [rows, columns] if tensor.is_transposed => {
                params.extend(transposed(&given.values, rows, columns));
            }
            _ => params.extend_from_slice(&given.values),
        }
    }
    match by_name.into_keys().min() {
        None => Ok(params),
        Some(name) => Err(InvalidState::Unknown { name: name.to_owned() }),
    }
}

/// Transposes a row-major matrix.
fn transposed(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    (0..columns).flat_map(|c| (0..rows).map(move |r| values[r * columns + c])).collect()
}
