//! The params of one track as a safetensors file: what a blob holds and what a device pulls.
//!
//! w stands there as the model's tensors, by PyTorch's names and in its layouts, so that `torch.nn.Module.load_state_dict` takes
//! the file; the rest stands as JSON beside them. Nothing in it says when it was written, so that equal params have equal
//! hashes.

use deltafl::algorithm::TrackLabel;
use deltafl::model::{ModelSpec, Tensor, flat_params, named_tensors};
use deltafl::params::Params;
use deltafl_data::{TensorFileError, read_tensors, write_tensors};
use serde::{Deserialize, Serialize};

/// What a file of params says of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelAbout {
    /// The federation that trained it.
    pub federation: String,
    /// The model, as in an experiment file.
    pub model: ModelSpec,
    /// Its tensors, in the order of w.
    pub tensors: Vec<Tensor>,
    /// How, and at which level θ.
    #[serde(flatten)]
    pub label: TrackLabel,
}

/// Why bytes are no params.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ParamsFileError {
    /// Not a whole file of tensors.
    #[error("the file is damaged or truncated")]
    Damaged(#[from] TensorFileError),
    /// Another program's file.
    #[error("the file holds no params of a federation")]
    Foreign,
}

/// The bytes of a file.
pub(super) fn write_params(about: &ModelAbout, params: &Params) -> Result<Vec<u8>, ParamsFileError> {
    let json = serde_json::to_string(about).map_err(|_| ParamsFileError::Foreign)?;
    if params.len() != about.tensors.iter().map(Tensor::len).sum::<usize>() {
        return Err(ParamsFileError::Foreign);
    }
    Ok(write_tensors(&named_tensors(&about.tensors, params.as_slice()), Some(&json))?)
}

/// The params of a file, and what it says of itself.
pub fn read_params(bytes: &[u8]) -> Result<(ModelAbout, Params), ParamsFileError> {
    let (tensors, json) = read_tensors(bytes)?;
    let json = json.ok_or(ParamsFileError::Foreign)?;
    let about: ModelAbout = serde_json::from_str(&json).map_err(|_| ParamsFileError::Foreign)?;
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
        let about = ModelAbout {
            federation: "demo".to_owned(),
            model: ModelSpec::LINEAR,
            tensors: vec![Tensor::new("fc.weight", &[1, 3])],
            label,
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
