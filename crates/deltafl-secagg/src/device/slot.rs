//! One slot: mask the input, sign the transcript, reveal one share per neighbour.

use std::collections::BTreeMap;

use prost::bytes::Bytes;

use super::SlotRequest;
use super::abort::{Abort, SubmitError};
use super::member::Member;
use super::participant::LocalDevice;
use super::sharing::SlotHoldings;
use super::survivor_keys::SurvivorKeys;
use crate::defences::Defence;
use crate::identity::{DeviceId, SIGNATURE_LEN, Signed};
use crate::keys::{mask_sign, self_mask_key};
use crate::mask::{self, MaskKey, MaskSign};
use crate::message::{DeviceBody, DeviceSet, SecretKind};
use crate::params::SlotSpec;
use crate::ring::RingVector;
use crate::shamir::SecretShare;

/// Signatures by device.
type Signatures = BTreeMap<DeviceId, [u8; SIGNATURE_LEN]>;

/// The device waits for the next slot.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(super) struct Idle {
    member: Member,
    /// The devices that may still be active.
    allowed: DeviceSet,
    next: u32,
    /// The data of the remaining slots, the next slot last.
    holdings: Vec<SlotHoldings>,
}

impl Idle {
    pub(super) fn new(member: Member, mut holdings: Vec<SlotHoldings>) -> Self {
        holdings.reverse();
        Self { allowed: member.members.clone(), member, next: 0, holdings }
    }

    pub(super) fn on_open_slot(
        mut self,
        me: &LocalDevice,
        request: SlotRequest,
        active: DeviceSet,
    ) -> Result<Asked, Abort> {
        let wrong_slot = Abort::WrongSlot { expected: self.next, got: request.slot };
        let holdings = self.holdings.pop().filter(|_| request.slot == self.next).ok_or(wrong_slot)?;
        if request.len > me.policy.max_len {
            return Err(Abort::TooLong { len: request.len, limit: me.policy.max_len });
        }
        self.member.check_set(me, &active, &self.allowed)?;
        // Without shares of a device, this device has no common mask with it either.
        let here = |id: &DeviceId| active.contains(*id);
        if let Some(id) = self.member.circle().filter(here).find(|id| !holdings.shares.contains_key(id)) {
            return Err(Abort::MissingShares(id));
        }
        Ok(Asked { rest: self, holdings, request, active })
    }
}

/// A slot is open. The application has not submitted the input.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(super) struct Asked {
    rest: Idle,
    holdings: SlotHoldings,
    request: SlotRequest,
    active: DeviceSet,
}

impl Asked {
    /// Checks that the input has the requested ring and length.
    pub(super) fn check(&self, input: &RingVector) -> Result<(), SubmitError> {
        let SlotRequest { ring, len, .. } = self.request;
        if input.ring() == ring && input.len() == len as usize {
            return Ok(());
        }
        Err(SubmitError::Shape { ring, len, got_ring: input.ring(), got_len: input.len() })
    }

    /// Computes y_u = x_u + PRG(b_u) + Σ_{v active, u<v} PRG(s_uv) − Σ_{v active, v<u} PRG(s_uv).
    pub(super) fn submit(
        self,
        me: &LocalDevice,
        context: &[u8],
        mut input: RingVector,
        keys: SurvivorKeys,
    ) -> (Masked, DeviceBody) {
        let SlotRequest { slot, ring, len, .. } = self.request;
        let spec = SlotSpec::new(slot, ring, len, context);
        mask::apply(&mut input, me.params.suite, &self.masks(me, &spec));
        let signature = me.identity.sign(&self.rest.member.transcript.masked(&spec, &self.active));
        let body = DeviceBody::MaskedInput { slot, input: Bytes::from(input.to_le_bytes()), signature };
        (Masked { rest: self.rest, holdings: self.holdings, spec, active: self.active, keys }, body)
    }

    fn masks(&self, me: &LocalDevice, spec: &SlotSpec) -> Vec<(MaskSign, MaskKey)> {
        let SlotHoldings { seed, pairs, .. } = &self.holdings;
        // Allocate the full length at once: a growing vector would leave copies of keys in memory.
        let mut masks = Vec::with_capacity(1 + pairs.len());
        masks.push((MaskSign::Plus, self_mask_key(&seed.0, &me.header, spec, me.id())));
        for (&peer, pair_key) in pairs.iter().filter(|(id, _)| self.active.contains(**id)) {
            masks.push((mask_sign(me.id(), peer), pair_key.mask_key(&me.header, spec, (me.id(), peer))));
        }
        masks
    }
}

/// The masked input has been sent.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(super) struct Masked {
    rest: Idle,
    holdings: SlotHoldings,
    spec: SlotSpec,
    active: DeviceSet,
    keys: SurvivorKeys,
}

impl Masked {
    /// Signs the transcript up to these survivors, once.
    pub(super) fn on_survivors(
        mut self,
        me: &LocalDevice,
        slot: u32,
        survivors: DeviceSet,
    ) -> Result<(Attested, DeviceBody), Abort> {
        check_slot(&self.spec, slot)?;
        self.rest.member.check_set(me, &survivors, &self.active)?;
        let member = &mut self.rest.member;
        let masked = member.transcript.masked(&self.spec, &self.active);
        member.transcript = member.transcript.with_slot(&self.spec, &self.active, &survivors);
        let signature = me.identity.sign(&member.transcript.attestation());
        let Self { rest, holdings, spec, active, keys } = self;
        let attested = Attested { rest, holdings, spec, active, survivors, masked, keys };
        Ok((attested, DeviceBody::Attest { slot, signature }))
    }
}

#[cfg(test)]
impl Masked {
    /// Returns the shares that a colluding device leaks: both shares of a device of its circle.
    pub(super) fn spill(&self, owner: DeviceId) -> Option<(SecretShare, SecretShare)> {
        let pair = self.holdings.shares.get(&owner)?;
        Some((pair.deposit_key.clone(), pair.seed.clone()))
    }
}

/// The signature has been sent. The device waits for its neighbours' signatures.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(super) struct Attested {
    rest: Idle,
    holdings: SlotHoldings,
    spec: SlotSpec,
    active: DeviceSet,
    survivors: DeviceSet,
    /// Returns the message that every device with the same view signed with its input.
    masked: Vec<u8>,
    keys: SurvivorKeys,
}

impl Attested {
    /// Returns the size of the circle: the device and its neighbours.
    pub(super) fn circle_len(&self) -> usize {
        self.rest.member.neighbours.len() + 1
    }

    /// Given t signatures on this device's transcript, reveals one share per device of its circle.
    pub(super) fn on_attestations(
        mut self,
        me: &LocalDevice,
        slot: u32,
        signatures: &Signatures,
        masked: &Signatures,
    ) -> Result<(Idle, DeviceBody), Abort> {
        check_slot(&self.spec, slot)?;
        self.check_signatures(me, signatures)?;
        self.check_masked(me, signatures, masked)?;
        let shares = self.shares();
        let revealed = self.keys.for_survivors(self.survivors.len());
        self.rest.allowed = self.survivors;
        self.rest.next += 1;
        Ok((self.rest, DeviceBody::Unmask { slot, shares, revealed }))
    }

    /// On a sparse graph, the device reveals shares of a neighbour's seed only if that neighbour
    /// masked with the same active devices. Otherwise the server could claim to both sides of a cut
    /// that the other side dropped out, and open each side with the help of the other. An
    /// attestation proves the same view. For the remaining neighbours, the signature sent with the
    /// input is verified.
    fn check_masked(
        &self,
        me: &LocalDevice,
        attested: &Signatures,
        masked: &Signatures,
    ) -> Result<(), Abort> {
        let member = &self.rest.member;
        let neighbours = if member.is_full() { None } else { Some(member.neighbours.keys()) };
        let silent = |id: &&DeviceId| self.survivors.contains(**id) && !attested.contains_key(id);
        let signed = |&id: &DeviceId| {
            let signature = masked.get(&id).ok_or(Abort::BadSignature(id))?;
            Ok(Signed { by: id, message: (&*self.masked).into(), signature })
        };
        let signed = neighbours.into_iter().flatten().filter(silent).map(signed);
        me.check_signatures(signed.collect::<Result<Vec<_>, Abort>>()?)
    }

    fn check_signatures(&self, me: &LocalDevice, signatures: &Signatures) -> Result<(), Abort> {
        let (have, need) = (signatures.len(), self.rest.member.threshold);
        if have < need && me.policy.defences.has(Defence::Attestations) {
            return Err(Abort::TooFew { have, need });
        }
        let message = self.rest.member.transcript.attestation();
        for &id in signatures.keys() {
            let near = id == me.id() || self.rest.member.neighbours.contains_key(&id);
            if !near || !self.survivors.contains(id) {
                return Err(Abort::UnknownDevice(id));
            }
        }
        let signed = signatures.iter();
        me.check_signatures(signed.map(|(&by, signature)| Signed {
            by,
            message: (&*message).into(),
            signature,
        }))
    }

    /// Reveals the seed share of a survivor or the deposit-key share of a drop-out. The other share
    /// is wiped with the slot, so that it can never be revealed.
    fn shares(&mut self) -> BTreeMap<DeviceId, (SecretKind, SecretShare)> {
        let held = std::mem::take(&mut self.holdings.shares);
        let active = held.into_iter().filter(|(id, _)| self.active.contains(*id));
        let chosen = active.map(|(id, pair)| {
            let survived = self.survivors.contains(id);
            let share = if survived {
                (SecretKind::Seed, pair.seed.clone())
            } else {
                (SecretKind::DepositKey, pair.deposit_key.clone())
            };
            (id, share)
        });
        chosen.collect()
    }
}

fn check_slot(spec: &SlotSpec, got: u32) -> Result<(), Abort> {
    if got == spec.slot { Ok(()) } else { Err(Abort::WrongSlot { expected: spec.slot, got }) }
}
