//! Direct access to the columns of a federation, for code that copies them entirely, for example to
//! a GPU.

use super::{Affine, Federation, FederationIndex, InputColumn, TargetColumn};

impl Federation {
    /// Returns the inputs of all devices, contiguously. They are not checked after the federation
    /// is mapped.
    pub fn inputs(&self) -> &InputColumn {
        &self.inputs
    }

    /// Returns the targets of all examples.
    pub fn target_column(&self) -> &TargetColumn {
        &self.targets
    }

    /// Returns the position of the first example of a device: an example of the columns, or a
    /// symbol of the text.
    pub fn offset(&self, device: FederationIndex) -> u64 {
        self.devices.offset[device.place()]
    }

    /// Returns the normalisation of dense features, if any.
    pub fn affine(&self) -> Option<&Affine> {
        self.affine.as_ref()
    }
}

impl Affine {
    /// Returns the factor of each feature. For grey levels it includes 1/255.
    pub fn scale(&self) -> &[f32] {
        &self.scale
    }

    /// Returns the offset of each feature, added after the factor.
    pub fn shift(&self) -> &[f32] {
        &self.shift
    }
}
