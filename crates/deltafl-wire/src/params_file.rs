//! The params of one track as a safetensors file: what a blob holds and what a device pulls.
//!
//! The tensor `params` holds w; the rest stands as JSON under one metadata key. Nothing in it says when it was written, so
//! that equal params have equal hashes.

use std::collections::HashMap;

use deltafl::algorithm::TrackLabel;
use deltafl::model::ModelSpec;
use deltafl::params::Params;
use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};
use serde::{Deserialize, Serialize};

const KEY: &str = "deltafl";
const TENSOR: &str = "params";

/// What a file of params says of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelAbout {
    /// The federation that trained it.
    pub federation: String,
    /// The model, as in an experiment file.
    pub model: ModelSpec,
    /// How, and at which level θ.
    #[serde(flatten)]
    pub label: TrackLabel,
}

/// Why bytes are no params.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ParamsFileError {
    /// Not a whole safetensors file.
    #[error("the file is damaged or truncated")]
    Damaged(#[from] safetensors::SafeTensorError),
    /// Another program's file.
    #[error("the file holds no params of a federation")]
    Foreign,
}

/// The bytes of a file.
pub fn write_params(about: &ModelAbout, params: &Params) -> Result<Vec<u8>, ParamsFileError> {
    let json = serde_json::to_string(about).map_err(|_| ParamsFileError::Foreign)?;
    let bytes: Vec<u8> = params.as_slice().iter().flat_map(|entry| entry.to_le_bytes()).collect();
    let tensor = TensorView::new(Dtype::F32, vec![params.len()], &bytes)?;
    Ok(serialize([(TENSOR, tensor)], Some(HashMap::from([(KEY.to_owned(), json)])))?)
}

/// The params of a file, and what it says of itself.
pub fn read_params(bytes: &[u8]) -> Result<(ModelAbout, Params), ParamsFileError> {
    let (_, metadata) = SafeTensors::read_metadata(bytes)?;
    let json = metadata.metadata().as_ref().and_then(|map| map.get(KEY)).ok_or(ParamsFileError::Foreign)?;
    let about = serde_json::from_str(json).map_err(|_| ParamsFileError::Foreign)?;
    let tensors = SafeTensors::deserialize(bytes)?;
    let tensor = tensors.tensor(TENSOR)?;
    if tensor.dtype() != Dtype::F32 || tensor.shape().len() != 1 {
        return Err(ParamsFileError::Foreign);
    }
    let entries = tensor.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    Ok((about, entries.collect::<Vec<f32>>().into()))
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
        let about = ModelAbout { federation: "demo".to_owned(), model: ModelSpec::LINEAR, label };
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
