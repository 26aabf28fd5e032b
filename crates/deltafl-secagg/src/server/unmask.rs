//! Removal of the masks from a sum.
//!
//! ```text
//! Σ_{u survived} x_u = Σ_{u survived} y_u − Σ_{u survived} PRG(b_u)
//!                      − Σ_{v dropped} Σ_{u survived, u~v} ±PRG(s_uv)
//! ```
//!
//! The server recovers b_u of the survivors and k_v of the drop-outs from shares. It detects and
//! discards false shares ([`crate::shamir`]), and checks each secret against the device's
//! commitment before using it. k_v decrypts the deposits of v, which contain s_uv for each
//! neighbour u.

use std::collections::{BTreeMap, BTreeSet};

use zeroize::Zeroizing;

use super::outcome::{Misbehaviour, RoundFailure};
use super::slot::Slot;
use super::{RoundContext, ServerRoundEvent};
use crate::identity::DeviceId;
use crate::keys::{
    Deposit, PairSlot, Secret, deposit_commitment, mask_sign, same, seed_commitment, self_mask_key,
};
use crate::mask::{self, MaskKey, MaskSign};
use crate::message::DeviceSet;
use crate::ring::RingVector;
use crate::shamir::{Challenge, Checker, SecretShare};
use crate::transcript::Hasher;

type Shares = BTreeMap<DeviceId, BTreeMap<DeviceId, SecretShare>>;

/// Removes every mask from `sum` and returns the misbehaviour found. On failure the sum remains
/// masked.
pub(super) fn unmask(
    round: &RoundContext,
    slot: &Slot,
    survivors: &DeviceSet,
    shares: &Shares,
    sum: &mut RingVector,
) -> Result<Vec<ServerRoundEvent>, RoundFailure> {
    let mut recovery = Recovery::new(slot, shares);
    let dropped = slot.active.len() - survivors.len();
    // Allocate the full length at once: a growing vector would leave copies of keys in memory.
    let mut masks = Vec::with_capacity(survivors.len() + dropped * slot.setup.graph.degree());
    for id in slot.active.iter() {
        if survivors.contains(id) {
            masks.push(self_mask(round, slot, id, &mut recovery)?);
        } else {
            pairwise_masks(round, slot, survivors, id, &mut recovery, &mut masks)?;
        }
    }
    mask::apply(sum, round.params.suite, &masks);
    Ok(recovery.lies())
}

fn self_mask(
    round: &RoundContext,
    slot: &Slot,
    id: DeviceId,
    recovery: &mut Recovery<'_>,
) -> Result<(MaskSign, MaskKey), RoundFailure> {
    let seed = recovery.secret(id)?;
    let commitment = slot.setup.keys[&id].seed_commitment(slot.spec.slot);
    if !same(&commitment, &seed_commitment(&round.header, id, slot.spec.slot, &seed)) {
        return Err(RoundFailure::WrongSecret { device: id });
    }
    Ok((MaskSign::Minus, self_mask_key(&seed, &round.header, &slot.spec, id)))
}

/// Returns the masks that survivors share with a device that dropped out.
fn pairwise_masks(
    round: &RoundContext,
    slot: &Slot,
    survivors: &DeviceSet,
    dropped: DeviceId,
    recovery: &mut Recovery<'_>,
    masks: &mut Vec<(MaskSign, MaskKey)>,
) -> Result<(), RoundFailure> {
    let mut left = slot.setup.graph.neighbours(dropped);
    left.retain(|&id| survivors.contains(id));
    if left.is_empty() {
        return Ok(());
    }
    let number = slot.spec.slot;
    let wrong = || RoundFailure::WrongSecret { device: dropped };
    let key = Secret(*recovery.secret(dropped)?);
    let commitment = deposit_commitment(&round.header, dropped, number, &key.0);
    if !same(&slot.setup.keys[&dropped].deposit_commitment(number), &commitment) {
        return Err(wrong());
    }
    for survivor in left {
        let pair = (survivor, dropped);
        let place = PairSlot { params: &round.header, slot: number, pair };
        // Both ends committed to the same key, so a deposit that does not open is the depositor's
        // fault.
        let left = slot.setup.deposits.get(&dropped).and_then(|of| of.get(&survivor)).ok_or_else(wrong)?;
        let deposit = Deposit::for_slot(left, number).ok_or_else(wrong)?;
        let pair_key = deposit.open(&place, &key).ok_or_else(wrong)?;
        masks.push((-mask_sign(survivor, dropped), pair_key.mask_key(&round.header, &slot.spec, pair)));
    }
    Ok(())
}

/// Recovers secrets one after another. On a full graph the same devices answer for every owner, so
/// the computation for their points is reused.
struct Recovery<'a> {
    shares: &'a Shares,
    threshold: usize,
    /// c, at least one.
    most: usize,
    challenge: Challenge,
    last: Option<(Vec<DeviceId>, Checker)>,
    /// Owner and holder of each false share.
    wrong: BTreeSet<(DeviceId, DeviceId)>,
    /// Holders of more false shares than owners can have dealt.
    liars: BTreeSet<DeviceId>,
}

impl<'a> Recovery<'a> {
    fn new(slot: &Slot, shares: &'a Shares) -> Self {
        let mut hasher = Hasher::new("decoding").digest(slot.setup.transcript.digest());
        for (&owner, held) in shares {
            hasher = hasher.device(owner).number(held.len() as u64);
            hasher =
                held.iter().fold(hasher, |hasher, (&id, share)| hasher.device(id).part(&share.to_bytes()));
        }
        let (threshold, most) = (slot.setup.graph.threshold(), slot.setup.graph.liars());
        Self::with(shares, threshold, most, Challenge::new(&hasher.finish()))
    }

    fn with(shares: &'a Shares, threshold: usize, most: usize, challenge: Challenge) -> Self {
        let (wrong, liars) = (BTreeSet::new(), BTreeSet::new());
        Self { shares, threshold, most, challenge, last: None, wrong, liars }
    }

    fn secret(&mut self, device: DeviceId) -> Result<Zeroizing<[u8; 32]>, RoundFailure> {
        let none = BTreeMap::new();
        let all = self.shares.get(&device).unwrap_or(&none);
        let held = || all.iter().filter(|(id, _)| !self.liars.contains(id));
        let from: Vec<DeviceId> = held().map(|(&id, _)| id).collect();
        if from.len() < self.threshold {
            return Err(RoundFailure::TooFewShares { device, have: from.len(), need: self.threshold });
        }
        if self.last.as_ref().is_none_or(|(last, _)| *last != from) {
            let points = from.iter().map(|id| id.point()).collect();
            let checker = Checker::new(points, self.threshold, self.challenge)
                .expect("ids are distinct, so their points are too");
            self.last = Some((from.clone(), checker));
        }
        let (_, checker) = self.last.as_ref().expect("set above");
        let wrong_secret = RoundFailure::WrongSecret { device };
        let errors = checker.errors(held().map(|(_, share)| share)).ok_or(wrong_secret.clone())?;
        if errors.is_empty() {
            return checker.first().recover(held().map(|(_, share)| share)).map_err(|_| wrong_secret);
        }
        let (good, weights) =
            checker.without(&errors).expect("fewer than half of the spare shares are false");
        let secret = weights.recover(good.iter().map(|&i| &all[&from[i]])).map_err(|_| wrong_secret);
        errors.iter().for_each(|&i| self.blame(device, from[i]));
        secret
    }

    /// Records a false share. A holder with more false shares than c owners can have dealt
    /// misbehaved, and its shares are ignored.
    fn blame(&mut self, owner: DeviceId, holder: DeviceId) {
        self.wrong.insert((owner, holder));
        if self.wrong.iter().filter(|(_, of)| *of == holder).count() > self.most {
            self.liars.insert(holder);
        }
    }

    /// Returns the findings: misbehaving devices, and the two candidates for each remaining false
    /// share.
    fn lies(&self) -> Vec<ServerRoundEvent> {
        let mut dealt: BTreeMap<DeviceId, usize> = BTreeMap::new();
        for (owner, _) in self.wrong.iter().filter(|(_, holder)| !self.liars.contains(holder)) {
            *dealt.entry(*owner).or_default() += 1;
        }
        let dealers: BTreeSet<DeviceId> =
            dealt.into_iter().filter(|(_, count)| *count > self.most).map(|(owner, _)| owner).collect();
        let caught = |misbehaviour: Misbehaviour| {
            move |&device: &DeviceId| ServerRoundEvent::Caught { device, misbehaviour }
        };
        let disputed = self.wrong.iter().filter(|(owner, holder)| {
            !self.liars.contains(holder) && !self.liars.contains(owner) && !dealers.contains(owner)
        });
        self.liars
            .iter()
            .map(caught(Misbehaviour::FalseShares))
            .chain(dealers.iter().map(caught(Misbehaviour::DealtShares)))
            .chain(disputed.map(|&(owner, holder)| ServerRoundEvent::Disputed { owner, holder }))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::FieldElement;
    use crate::shamir::split;
    use chacha20::ChaCha20Rng;
    use rand_core::SeedableRng;

    const N: u32 = 12;
    const THRESHOLD: usize = 6;

    /// Returns the shares of every device's secret, which is its id in every byte. Shares for which
    /// `wrong` returns true, by owner and holder, belong to a different secret.
    fn shares(wrong: impl Fn(u32, u32) -> bool) -> Shares {
        let mut rng = ChaCha20Rng::seed_from_u64(1);
        let points: Vec<FieldElement> = (0..N).map(|i| DeviceId(i).point()).collect();
        let mut dealt = |secret: u8| split(&[secret; 32], &points, THRESHOLD, &mut rng).unwrap();
        let mut of = |owner: u32| {
            let (right, other) = (dealt(owner as u8), dealt(99));
            let held = (0..N).zip(right.into_iter().zip(other));
            held.map(|(i, (right, other))| (DeviceId(i), if wrong(owner, i) { other } else { right }))
                .collect()
        };
        (0..N).map(|owner| (DeviceId(owner), of(owner))).collect()
    }

    fn recover(shares: &Shares) -> Result<Vec<ServerRoundEvent>, RoundFailure> {
        let mut recovery = Recovery::with(shares, THRESHOLD, 1, Challenge::new(&[3; 32]));
        for owner in 0..N {
            assert_eq!(*recovery.secret(DeviceId(owner))?, [owner as u8; 32]);
        }
        Ok(recovery.lies())
    }

    fn caught(device: u32, misbehaviour: Misbehaviour) -> ServerRoundEvent {
        ServerRoundEvent::Caught { device: DeviceId(device), misbehaviour }
    }

    #[test]
    fn false_holders_and_false_dealers_are_distinguished() {
        assert_eq!(recover(&shares(|_, _| false)), Ok(vec![]));
        assert_eq!(recover(&shares(|_, holder| holder == 4)), Ok(vec![caught(4, Misbehaviour::FalseShares)]));
        let dealer = shares(|owner, holder| owner == 7 && holder < 3);
        assert_eq!(recover(&dealer), Ok(vec![caught(7, Misbehaviour::DealtShares)]));
        let both = shares(|owner, holder| holder == 4 || owner == 7 && (1..3).contains(&holder));
        assert_eq!(
            recover(&both),
            Ok(vec![caught(4, Misbehaviour::FalseShares), caught(7, Misbehaviour::DealtShares)])
        );
        let single = shares(|owner, holder| owner == 7 && holder == 0);
        let disputed = ServerRoundEvent::Disputed { owner: DeviceId(7), holder: DeviceId(0) };
        assert_eq!(recover(&single), Ok(vec![disputed]));
    }

    #[test]
    fn a_dealer_whose_shares_encode_no_secret_is_named_in_the_failure() {
        let halves = shares(|owner, holder| owner == 7 && holder % 2 == 0);
        assert_eq!(recover(&halves), Err(RoundFailure::WrongSecret { device: DeviceId(7) }));
    }
}
