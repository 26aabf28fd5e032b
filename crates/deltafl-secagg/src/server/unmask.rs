//! Taking the masks off a sum.
//!
//! ```text
//! Σ_{u survived} x_u = Σ_{u survived} y_u − Σ_{u survived} PRG(b_u) − Σ_{v dropped} Σ_{u survived, u~v} ±PRG(s_uv)
//! ```
//!
//! b_u of the survivors and s_v of the devices that dropped out are recovered from shares, and each is
//! checked against what its device committed to before it is used.

use std::collections::BTreeMap;

use zeroize::Zeroizing;

use super::Round;
use super::slot::Slot;
use super::verdict::Verdict;
use crate::identity::DeviceId;
use crate::keys::{KeyPair, mask_sign, same, seed_commitment, self_mask_key};
use crate::mask::{self, MaskKey, Sign};
use crate::message::DeviceSet;
use crate::ring::RingVector;
use crate::shamir::{Interpolation, Share};

type Shares = BTreeMap<DeviceId, BTreeMap<DeviceId, Share>>;

/// Takes every mask off `sum`; on a verdict the sum is still masked.
pub(super) fn unmask(
    round: &Round,
    slot: &Slot,
    survivors: &DeviceSet,
    shares: &Shares,
    sum: &mut RingVector,
) -> Result<(), Verdict> {
    let mut recovery = Recovery { shares, threshold: slot.setup.graph.threshold(), last: None };
    let mut masks = Vec::new();
    for id in slot.active.iter() {
        if survivors.contains(id) {
            masks.push(self_mask(round, slot, id, &mut recovery)?);
        } else {
            pairwise_masks(round, slot, survivors, id, &mut recovery, &mut masks)?;
        }
    }
    mask::apply(sum, round.params.suite, &masks);
    Ok(())
}

fn self_mask(
    round: &Round,
    slot: &Slot,
    id: DeviceId,
    recovery: &mut Recovery<'_>,
) -> Result<(Sign, MaskKey), Verdict> {
    let seed = recovery.secret(id)?;
    let commitment = slot.setup.keys[&id].seed_commitment(slot.spec.slot);
    if !same(&commitment, &seed_commitment(&round.header, id, slot.spec.slot, &seed)) {
        return Err(Verdict::WrongSecret { device: id });
    }
    Ok((Sign::Minus, self_mask_key(&seed, &round.header, &slot.spec, id)))
}

/// The masks that survivors share with a device that dropped out.
fn pairwise_masks(
    round: &Round,
    slot: &Slot,
    survivors: &DeviceSet,
    dropped: DeviceId,
    recovery: &mut Recovery<'_>,
    masks: &mut Vec<(Sign, MaskKey)>,
) -> Result<(), Verdict> {
    let mut left = slot.setup.graph.neighbours(dropped);
    left.retain(|&id| survivors.contains(id));
    if left.is_empty() {
        return Ok(());
    }
    let number = slot.spec.slot;
    let pair = KeyPair::from_secret(&*recovery.secret(dropped)?);
    if !same(&slot.setup.keys[&dropped].mask_key(number), &pair.public()) {
        return Err(Verdict::WrongSecret { device: dropped });
    }
    for survivor in left {
        let public = slot.setup.keys[&survivor].mask_key(number);
        let shared = pair.agree(&public).map_err(|_| Verdict::BadKey { device: survivor })?;
        let key = shared.mask_key(&round.header, &slot.spec, survivor, dropped);
        masks.push((-mask_sign(survivor, dropped), key));
    }
    Ok(())
}

/// Recovers secrets one after another. On a full graph the same devices answer for everybody, so the weights
/// of the last interpolation serve the next.
struct Recovery<'a> {
    shares: &'a Shares,
    threshold: usize,
    last: Option<(Vec<DeviceId>, Interpolation)>,
}

impl Recovery<'_> {
    fn secret(&mut self, device: DeviceId) -> Result<Zeroizing<[u8; 32]>, Verdict> {
        let none = BTreeMap::new();
        let held = self.shares.get(&device).unwrap_or(&none);
        if held.len() < self.threshold {
            return Err(Verdict::TooFewShares { device, have: held.len(), need: self.threshold });
        }
        let from: Vec<DeviceId> = held.keys().copied().take(self.threshold).collect();
        if self.last.as_ref().is_none_or(|(last, _)| *last != from) {
            let points = from.iter().map(|id| id.point()).collect();
            let weights = Interpolation::new(points).expect("ids are distinct, so their points are too");
            self.last = Some((from, weights));
        }
        let (_, weights) = self.last.as_ref().expect("set above");
        weights.recover(held.values()).map_err(|_| Verdict::WrongSecret { device })
    }
}
