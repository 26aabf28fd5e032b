//! Named tensors in a safetensors file, with an optional text.
//!
//! Equal content must give equal bytes, but the format keeps no order of its metadata. Therefore
//! there is a single key, whose value is the text.

use std::collections::HashMap;

use deltafl::model::NamedTensor;
use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};

/// The metadata key.
const KEY: &str = "deltafl";

/// The reason why bytes are not a file of tensors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorFileError {
    /// The bytes are not a complete safetensors file.
    #[error("not a safetensors file, or damaged")]
    Damaged,
    /// A tensor does not contain `f32`.
    #[error("the tensor {name} does not contain f32")]
    Type {
        /// Its name.
        name: String,
    },
    /// Two tensors have the same name, or the number of entries does not match the shape.
    #[error("the tensors cannot be written: two have one name, or one is not of its shape")]
    Inconsistent,
}

/// Returns the bytes of a file of tensors. Equal content gives equal bytes.
pub fn write_tensors(tensors: &[NamedTensor], text: Option<&str>) -> Result<Vec<u8>, TensorFileError> {
    // Entry by entry, not byte by byte: without optimisation, as in tests, this saves many seconds.
    let bytes = |tensor: &NamedTensor| {
        let mut bytes = vec![0; 4 * tensor.values.len()];
        bytes
            .as_chunks_mut()
            .0
            .iter_mut()
            .zip(&tensor.values)
            .for_each(|(to, entry)| *to = entry.to_le_bytes());
        bytes
    };
    let bytes: Vec<Vec<u8>> = tensors.iter().map(bytes).collect();
    let mut views = Vec::with_capacity(tensors.len());
    for (i, (tensor, bytes)) in tensors.iter().zip(&bytes).enumerate() {
        if tensors[..i].iter().any(|earlier| earlier.name == tensor.name) {
            return Err(TensorFileError::Inconsistent);
        }
        let view = TensorView::new(Dtype::F32, tensor.shape.clone(), bytes);
        views.push((tensor.name.clone(), view.map_err(|_| TensorFileError::Inconsistent)?));
    }
    let metadata = text.map(|text| HashMap::from([(KEY.to_owned(), text.to_owned())]));
    serialize(views, metadata).map_err(|_| TensorFileError::Inconsistent)
}

/// Returns the tensors of a file, in no particular order, and the text.
pub fn read_tensors(bytes: &[u8]) -> Result<(Vec<NamedTensor>, Option<String>), TensorFileError> {
    let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(|_| TensorFileError::Damaged)?;
    let text = metadata.metadata().as_ref().and_then(|map| map.get(KEY)).cloned();
    let file = SafeTensors::deserialize(bytes).map_err(|_| TensorFileError::Damaged)?;
    let tensor = |(name, view): (String, TensorView<'_>)| {
        if view.dtype() != Dtype::F32 {
            return Err(TensorFileError::Type { name });
        }
        let entries = view.data().as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes));
        Ok(NamedTensor { shape: view.shape().to_vec(), values: entries.collect(), name })
    };
    Ok((file.tensors().into_iter().map(tensor).collect::<Result<_, _>>()?, text))
}
