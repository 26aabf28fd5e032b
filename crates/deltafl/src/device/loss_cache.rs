//! The losses of the current round.

/// F_k(w) in the current round, so that no device computes a loss twice.
///
/// `P` names the params: the params themselves, or their [`ParamsId`](crate::params::ParamsId) to
/// keep no copy of them. `L` is the loss of one device, or the losses of a cohort in its order.
#[derive(Clone, Debug)]
pub struct LossCache<P, L> {
    /// Seed and round.
    round: Option<(u64, u64)>,
    by_params: Vec<(P, L)>,
}

impl<P, L> Default for LossCache<P, L> {
    fn default() -> Self {
        Self { round: None, by_params: Vec::new() }
    }
}

impl<P: PartialEq, L> LossCache<P, L> {
    /// Removes the losses of earlier rounds.
    pub(crate) fn begin_round(&mut self, seed: u64, round: u64) {
        if self.round != Some((seed, round)) {
            *self = Self { round: Some((seed, round)), by_params: Vec::new() };
        }
    }

    /// Returns the loss at these params if it is known.
    pub(crate) fn get(&self, params: &P) -> Option<&L> {
        self.by_params.iter().find(|(known, _)| known == params).map(|(_, loss)| loss)
    }

    /// Stores the loss at these params.
    pub(crate) fn insert(&mut self, params: P, loss: L) {
        self.by_params.push((params, loss));
    }

    /// Returns whether no loss of the current round is known.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_params.is_empty()
    }
}
