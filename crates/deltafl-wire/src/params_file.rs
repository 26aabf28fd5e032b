//! The params of one track as a safetensors file.
//!
//! The file contains the model's tensors with PyTorch's names and layouts, so that
//! `torch.nn.Module.load_state_dict` accepts it. Metadata is stored as JSON. The file contains no
//! timestamp, so equal params have equal hashes.

use std::collections::HashMap;

use deltafl::algorithm::TrackLabel;
use deltafl::model::{ModelSpec, NamedTensor, Tensor, flat_params, named_tensors};
use deltafl::params::Params;
use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};
use serde::{Deserialize, Serialize};

use crate::contract::DataContract;

const KEY: &str = "deltafl";

/// The metadata of a params file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelAbout {
    /// The name of the federation that trained the model.
    pub federation: String,
    /// The model, as in an experiment file.
    pub model: ModelSpec,
    /// The tensors, in the order of w.
    pub tensors: Vec<Tensor>,
    /// The algorithm and the level θ.
    #[serde(flatten)]
    pub label: TrackLabel,
    /// The preprocessing of the examples, in training and in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contract: Option<DataContract>,
}

/// The reason a params file cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ParamsFileError {
    /// The file is not a complete safetensors file.
    #[error("the file is damaged or truncated")]
    Damaged,
    /// The file was written by another program.
    #[error("the file contains no params of a federation")]
    Foreign,
}

/// Encodes params and their metadata.
///
/// # Errors
/// Fails if the params do not match the tensors of `about`.
pub fn write_params(about: &ModelAbout, params: &Params) -> Result<Vec<u8>, ParamsFileError> {
    let json = serde_json::to_string(about).map_err(|_| ParamsFileError::Foreign)?;
    if params.len() != about.tensors.iter().map(Tensor::len).sum::<usize>() {
        return Err(ParamsFileError::Foreign);
    }
    let tensors = named_tensors(&about.tensors, params.as_slice());
    let bytes = |tensor: &NamedTensor| -> Vec<u8> {
        tensor.values.iter().flat_map(|entry| entry.to_le_bytes()).collect()
    };
    let bytes: Vec<Vec<u8>> = tensors.iter().map(bytes).collect();
    let mut views = Vec::with_capacity(tensors.len());
    for (tensor, bytes) in tensors.iter().zip(&bytes) {
        let view = TensorView::new(Dtype::F32, tensor.shape.clone(), bytes);
        views.push((tensor.name.as_str(), view.map_err(|_| ParamsFileError::Foreign)?));
    }
    let metadata = HashMap::from([(KEY.to_owned(), json)]);
    serialize(views, Some(metadata)).map_err(|_| ParamsFileError::Foreign)
}

/// Decodes params and their metadata.
///
/// # Errors
/// Fails if the file is damaged or was written by another program.
pub fn read_params(bytes: &[u8]) -> Result<(ModelAbout, Params), ParamsFileError> {
    let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(|_| ParamsFileError::Damaged)?;
    let json = metadata.metadata().as_ref().and_then(|map| map.get(KEY)).ok_or(ParamsFileError::Foreign)?;
    let about: ModelAbout = serde_json::from_str(json).map_err(|_| ParamsFileError::Foreign)?;
    let file = SafeTensors::deserialize(bytes).map_err(|_| ParamsFileError::Damaged)?;
    let tensor = |(name, view): (String, TensorView<'_>)| {
        let entries = view.data().as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes));
        let whole = NamedTensor { shape: view.shape().to_vec(), values: entries.collect(), name };
        (view.dtype() == Dtype::F32).then_some(whole)
    };
    let tensors: Option<Vec<NamedTensor>> = file.tensors().into_iter().map(tensor).collect();
    let tensors = tensors.ok_or(ParamsFileError::Foreign)?;
    let params = flat_params(&about.tensors, &tensors).map_err(|_| ParamsFileError::Foreign)?;
    Ok((about, params.into()))
}

#[cfg(test)]
mod tests {
    use deltafl::superquantile::Conformity;

    use super::*;

    #[test]
    fn params_survive_to_the_bit_and_damage_is_an_error() {
        let label = TrackLabel {
            name: "Δ-FL".to_owned(),
            algorithm: "delta-fl".to_owned(),
            theta: Conformity::try_from(0.1).unwrap(),
        };
        let contract =
            DataContract::from_bytes(br#"{"inputs":{"kind":"dense","dim":1},"classes":2}"#).unwrap();
        let about = ModelAbout {
            federation: "demo".to_owned(),
            model: ModelSpec::LINEAR,
            tensors: vec![Tensor::new("fc.weight", &[1, 3])],
            label,
            contract: Some(contract),
        };
        let params = Params::from(vec![1.5, -0.0, f32::MIN_POSITIVE / 2.0]);
        let bytes = write_params(&about, &params).unwrap();
        assert_eq!(bytes, write_params(&about, &params).unwrap());
        let (read, entries) = read_params(&bytes).unwrap();
        assert_eq!((read, entries.hash()), (about, params.hash()));
        for cut in 0..bytes.len() {
            assert!(read_params(&bytes[..cut]).is_err(), "{cut}");
        }
    }
}
