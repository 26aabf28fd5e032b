//! The columns of a federation as they lie in memory, for who copies them whole: to a GPU, say.

use super::{Affine, Federation, FederationIndex, InputColumn, TargetColumn};

impl Federation {
    /// The inputs of all devices, one after the other. Nothing in them has been checked since the federation was mapped.
    pub fn inputs(&self) -> &InputColumn {
        &self.inputs
    }

    /// What is to be predicted of all examples.
    pub fn target_column(&self) -> &TargetColumn {
        &self.targets
    }

    /// Where the examples of a device begin: an example of the columns, or a symbol of the text.
    pub fn offset(&self, device: FederationIndex) -> u64 {
        self.devices.offset[device.place()]
    }

    /// How dense features are normalised, if they are.
    pub fn affine(&self) -> Option<&Affine> {
        self.affine.as_ref()
    }
}

impl Affine {
    /// The factor of each feature; of grey levels it holds the 1/255.
    pub fn scale(&self) -> &[f32] {
        &self.scale
    }

    /// What is added to each feature behind the factor.
    pub fn shift(&self) -> &[f32] {
        &self.shift
    }
}
