//! Personal models of devices, in addition to the shared one.

/// The name of the personal model in the memory of its device.
pub const PERSONAL: &str = "personal";

/// A personal model of each device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Personal {
    /// The training of the personal models.
    pub method: PersonalMethod,
    /// Whether evaluations of the track use the personal models instead of the shared one.
    pub is_evaluated: bool,
}

/// The training of personal models. The shared model does not depend on them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PersonalMethod {
    /// In each of its rounds a device trains its v_k on f_k(v) + (λ/2)‖v − w_t‖², from the v_k of
    /// its last round, or from w_t in the first one.
    Regularised {
        /// λ.
        proximal: f32,
    },
    /// In each of its rounds a device trains its v_k within the mixture a v_k + (1 − a) w, along
    /// the local steps of w and on the same batches. The mixture is the personal model.
    Mixed {
        /// a.
        share: f32,
    },
    /// Before an evaluation a device trains v_k from the shared model.
    FineTuned,
}

impl PersonalMethod {
    /// Returns `true` if the personal model is trained on the batches of the update.
    pub(crate) fn repeats_batches(self) -> bool {
        matches!(self, Self::Mixed { .. })
    }
}
