//! Keys that a device reveals depending on the number of survivors.

use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::message::REVEALED_LEN;

/// Keys of the application, of which a device reveals at most one with its shares: the first whose
/// number of survivors is reached.
///
/// The survivors are those that the device attested. Devices with another list of survivors do not
/// accept its signature, and a survivor without an input leaves its masks in the sum. A server can
/// therefore not pretend that more devices survived and still read the sum.
#[derive(Clone, Default, Zeroize, ZeroizeOnDrop)]
pub struct SurvivorKeys(Vec<(u64, [u8; REVEALED_LEN])>);

impl SurvivorKeys {
    /// Creates keys, each with the fewest survivors for which it is revealed. The first key whose
    /// number is reached is revealed.
    pub fn new(keys: Vec<(u64, [u8; REVEALED_LEN])>) -> Self {
        Self(keys)
    }

    pub(super) fn for_survivors(&self, survivors: usize) -> Option<[u8; REVEALED_LEN]> {
        self.0.iter().find(|(fewest, _)| survivors as u64 >= *fewest).map(|(_, key)| *key)
    }
}

/// Omits the keys.
impl std::fmt::Debug for SurvivorKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SurvivorKeys({})", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_key_whose_survivors_are_reached_is_revealed() {
        let keys = SurvivorKeys::new(vec![(9, [1; 32]), (7, [2; 32]), (5, [3; 32])]);
        let revealed =
            [4, 5, 6, 7, 8, 9, 20].map(|survivors| keys.for_survivors(survivors).map(|key| key[0]));
        assert_eq!(revealed, [None, Some(3), Some(3), Some(2), Some(2), Some(1), Some(1)]);
        assert_eq!(SurvivorKeys::default().for_survivors(100), None);
        assert_eq!(format!("{keys:?}"), "SurvivorKeys(3)");
    }
}
