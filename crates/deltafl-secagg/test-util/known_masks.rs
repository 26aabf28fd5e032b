//! The masks that a server can compute from the shares that devices reveal to it. Only tests of
//! attacks compile this file.

use crate::identity::DeviceId;
use crate::keys::{
    Deposit, PairSlot, Secret, deposit_commitment, mask_sign, same, seed_commitment, self_mask_key,
};
use crate::mask::{self, MaskKey, MaskSign};
use crate::message::{KeyBundle, SecretKind};
use crate::params::{RoundParams, SlotSpec};
use crate::ring::RingVector;
use crate::shamir::{Interpolation, SecretShare};

/// A device in one slot of one key set-up, as a server knows it.
#[derive(Debug, Clone, Copy)]
pub struct MaskOwner<'a> {
    /// The parameters of the set-up.
    pub params: &'a RoundParams,
    /// The keys of the device in the set-up.
    pub bundle: &'a KeyBundle,
    /// The device.
    pub id: DeviceId,
    /// The slot.
    pub slot: u32,
}

impl MaskOwner<'_> {
    /// Recovers one of the two secrets of the device from shares and their holders. Returns `None`
    /// if no subset of the shares matches the commitment of the device.
    ///
    /// # Panics
    /// Panics if there are more than 16 shares.
    pub fn recover(&self, kind: SecretKind, shares: &[(DeviceId, SecretShare)]) -> Option<[u8; 32]> {
        assert!(shares.len() <= 16, "all subsets are tried");
        // All shares first: one sharing needs no search.
        (1..1u32 << shares.len()).rev().find_map(|subset| {
            let chosen = || (0..).zip(shares).filter(|(place, _)| subset >> place & 1 == 1);
            let points = chosen().map(|(_, (holder, _))| holder.point()).collect();
            let interpolation = Interpolation::new(points).ok()?;
            let secret = interpolation.recover(chosen().map(|(_, (_, share))| share)).ok()?;
            self.is_committed(kind, &secret).then_some(*secret)
        })
    }

    fn is_committed(&self, kind: SecretKind, secret: &[u8; 32]) -> bool {
        let (params, Self { id, slot, bundle, .. }) = (self.params.digest(), *self);
        match kind {
            _ if slot >= bundle.slots() => false,
            SecretKind::Seed => {
                same(&seed_commitment(&params, id, slot, secret), &bundle.seed_commitment(slot))
            }
            SecretKind::DepositKey => {
                same(&deposit_commitment(&params, id, slot, secret), &bundle.deposit_commitment(slot))
            }
        }
    }

    /// Returns the self mask of the device.
    pub fn self_mask(&self, spec: &SlotSpec, seed: &[u8; 32]) -> RingVector {
        self.expand(spec, MaskSign::Plus, self_mask_key(seed, &self.params.digest(), spec, self.id))
    }

    /// Returns the mask that the device adds for a peer, from its deposits about that peer. Returns
    /// `None` if the deposit key does not open the deposit.
    pub fn pair_mask(
        &self,
        spec: &SlotSpec,
        peer: DeviceId,
        deposits: &[u8],
        deposit_key: &[u8; 32],
    ) -> Option<RingVector> {
        let (params, pair) = (self.params.digest(), (self.id, peer));
        let place = PairSlot { params: &params, slot: self.slot, pair };
        let key = Deposit::for_slot(deposits, self.slot)?.open(&place, &Secret(*deposit_key))?;
        Some(self.expand(spec, mask_sign(self.id, peer), key.mask_key(&params, spec, pair)))
    }

    fn expand(&self, spec: &SlotSpec, sign: MaskSign, key: MaskKey) -> RingVector {
        let mut vector = RingVector::zeros(spec.ring, spec.len as usize);
        mask::apply(&mut vector, self.params.suite, &[(sign, key)]);
        vector
    }
}
