//! Parameters by name: the tensors of a model, as PyTorch calls and keeps them.
//!
//! A flat vector w is what the round loop moves. Whoever takes a model elsewhere wants tensors: `fc.weight` of shape
//! `classes × inputs`. A model lists its tensors in the order of w; most lie there as PyTorch keeps them, and the weights of
//! the linear model lie transposed.

use std::collections::HashMap;

use super::Model;

/// A tensor of a model: consecutive entries of w.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Its name in a state dict.
    pub name: &'static str,
    /// Its shape there, the last axis running fastest.
    pub shape: Vec<usize>,
    /// Whether w holds the transpose of this matrix.
    pub is_transposed: bool,
}

impl Tensor {
    /// A tensor that lies in w as it is.
    pub fn new(name: &'static str, shape: &[usize]) -> Self {
        Self { name, shape: shape.to_vec(), is_transposed: false }
    }

    /// A matrix whose transpose lies in w.
    pub fn transposed(name: &'static str, shape: [usize; 2]) -> Self {
        Self { name, shape: shape.to_vec(), is_transposed: true }
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether it has no entries.
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

/// Why tensors are not the parameters of a model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidState {
    /// A tensor is not there.
    #[error("the tensor {name} is missing")]
    Missing {
        /// Its name.
        name: &'static str,
    },
    /// A tensor that the model does not have.
    #[error("the model has no tensor {name}")]
    Unknown {
        /// Its name.
        name: String,
    },
    /// A tensor of another shape.
    #[error("the tensor {name} has shape {got:?} where the model has {expected:?}")]
    Shape {
        /// Its name.
        name: &'static str,
        /// As the model has it.
        expected: Vec<usize>,
        /// As it is.
        got: Vec<usize>,
    },
}

/// The parameters of a model by name, in PyTorch's layouts.
///
/// # Panics
/// When `params` has not [`Model::num_params`] entries.
///
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
    let mut rest = params;
    let of_tensor = |tensor: Tensor| {
        let (flat, after) = rest.split_at(tensor.len());
        rest = after;
        let values = match tensor.shape[..] {
            [rows, columns] if tensor.is_transposed => transposed(flat, columns, rows),
            _ => flat.to_vec(),
        };
        NamedTensor { name: tensor.name.to_owned(), shape: tensor.shape, values }
    };
    model.tensors().into_iter().map(of_tensor).collect()
}

/// The flat parameters of a model from its tensors, which may come in any order.
pub fn from_state_dict(model: &dyn Model, state: &[NamedTensor]) -> Result<Vec<f32>, InvalidState> {
    let mut by_name: HashMap<&str, &NamedTensor> =
        state.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
    let mut params = Vec::with_capacity(model.num_params());
    for tensor in model.tensors() {
        let given = by_name.remove(tensor.name).ok_or(InvalidState::Missing { name: tensor.name })?;
        if given.shape != tensor.shape || given.values.len() != tensor.len() {
            let got = given.shape.clone();
            return Err(InvalidState::Shape { name: tensor.name, expected: tensor.shape, got });
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

/// The transpose of a matrix kept row by row.
fn transposed(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    (0..columns).flat_map(|c| (0..rows).map(move |r| values[r * columns + c])).collect()
}
