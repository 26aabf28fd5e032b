//! Parameters as a safetensors file of named tensors, for `torch.nn.Module.load_state_dict`.
//!
//! ```python
//! from safetensors.torch import load_file
//! module.load_state_dict(load_file("model.safetensors"))
//! ```

use deltafl::model::{InvalidState, Model, from_state_dict, state_dict};

use crate::tensor_file::{TensorFileError, read_tensors, write_tensors};

/// The reason why bytes are not the state dict of a model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StateDictError {
    /// The bytes are not a file of tensors.
    #[error(transparent)]
    File(#[from] TensorFileError),
    /// The tensors belong to another model.
    #[error(transparent)]
    Model(#[from] InvalidState),
}

/// Returns the parameters of a model as a safetensors file of its tensors. Equal parameters give
/// equal bytes.
///
/// # Panics
/// If `params` does not have [`Model::num_params`] entries.
pub fn write_state_dict(model: &dyn Model, params: &[f32]) -> Vec<u8> {
    write_tensors(&state_dict(model, params), None)
        .expect("the names of tensors are unique and their shapes match")
}

/// Returns the flat parameters of a model from a safetensors file of its tensors.
pub fn read_state_dict(model: &dyn Model, bytes: &[u8]) -> Result<Vec<f32>, StateDictError> {
    Ok(from_state_dict(model, &read_tensors(bytes)?.0)?)
}

#[cfg(test)]
mod tests {
    use deltafl::kernel::Isa;
    use deltafl::model::{Embedding, Gru, Linear};

    use super::*;

    #[test]
    fn params_survive_the_file_and_other_models_refuse_it() {
        let model = Gru::new(4, 6, Embedding::Trained(3), 5, 6, Isa::detect());
        let params: Vec<f32> = (0..model.num_params()).map(|i| i as f32 / 7.0).collect();
        let bytes = write_state_dict(&model, &params);
        assert_eq!(read_state_dict(&model, &bytes).unwrap(), params);
        assert_eq!(write_state_dict(&model, &params), bytes);
        let other = Gru::new(4, 6, Embedding::Trained(3), 4, 6, Isa::detect());
        assert!(matches!(
            read_state_dict(&other, &bytes),
            Err(StateDictError::Model(InvalidState::Shape { .. }))
        ));
        let linear = Linear::new(2, 2, Isa::detect());
        assert!(matches!(read_state_dict(&linear, &bytes), Err(StateDictError::Model(_))));
    }

    #[test]
    fn no_cut_and_no_changed_byte_makes_the_reader_panic() {
        let model = Linear::new(3, 2, Isa::detect()).with_intercept();
        let whole = write_state_dict(&model, &[0.5; 8]);
        for len in 0..whole.len() {
            assert_eq!(
                read_state_dict(&model, &whole[..len]),
                Err(StateDictError::File(TensorFileError::Damaged))
            );
        }
        for i in 0..whole.len() {
            let mut changed = whole.clone();
            changed[i] ^= 0x55;
            let _ = read_state_dict(&model, &changed);
        }
    }
}
