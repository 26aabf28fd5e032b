//! One slot: mask the input, sign what was shown, give one share per neighbour away.

use std::collections::BTreeMap;

use prost::bytes::Bytes;

use super::SlotRequest;
use super::abort::{Abort, SubmitError};
use super::enrolment::Me;
use super::member::Member;
use super::sharing::SlotHoldings;
use crate::identity::{DeviceId, SIGNATURE_LEN};
use crate::keys::{mask_sign, self_mask_key};
use crate::mask::{self, MaskKey, Sign};
use crate::message::{DeviceBody, DeviceSet, SecretKind};
use crate::params::SlotSpec;
use crate::ring::RingVector;
use crate::shamir::Share;

/// Between slots.
#[derive(Debug)]
pub(super) struct Idle {
    member: Member,
    /// The devices that may still be there.
    allowed: DeviceSet,
    next: u32,
    /// The holdings of the slots to come, the next one last.
    holdings: Vec<SlotHoldings>,
}

impl Idle {
    pub(super) fn new(member: Member, mut holdings: Vec<SlotHoldings>) -> Self {
        holdings.reverse();
        Self { allowed: member.members.clone(), member, next: 0, holdings }
    }

    pub(super) fn on_open_slot(
        mut self,
        me: &Me,
        request: SlotRequest,
        active: DeviceSet,
    ) -> Result<Asked, Abort> {
        let wrong_slot = Abort::WrongSlot { expected: self.next, got: request.slot };
        let holdings = self.holdings.pop().filter(|_| request.slot == self.next).ok_or(wrong_slot)?;
        if request.len > me.policy.max_len {
            return Err(Abort::TooLong { len: request.len, limit: me.policy.max_len });
        }
        self.member.check_set(me, &active, &self.allowed)?;
        let here = |id: &DeviceId| active.contains(*id);
        if let Some(id) = self.member.circle().filter(here).find(|id| !holdings.shares.contains_key(id)) {
            return Err(Abort::MissingShares(id));
        }
        Ok(Asked { rest: self, holdings, request, active })
    }
}

/// A slot is open; the program has not handed in the input yet.
#[derive(Debug)]
pub(super) struct Asked {
    rest: Idle,
    holdings: SlotHoldings,
    request: SlotRequest,
    active: DeviceSet,
}

impl Asked {
    /// Whether the input has the shape that was asked for.
    pub(super) fn check(&self, input: &RingVector) -> Result<(), SubmitError> {
        let SlotRequest { ring, len, .. } = self.request;
        if input.ring() == ring && input.len() == len as usize {
            return Ok(());
        }
        Err(SubmitError::Shape { ring, len, got_ring: input.ring(), got_len: input.len() })
    }

    /// y_u = x_u + PRG(b_u) + Σ_{v active, u<v} PRG(s_uv) − Σ_{v active, v<u} PRG(s_uv)
    pub(super) fn submit(
        self,
        me: &Me,
        context: &[u8],
        mut input: RingVector,
    ) -> Result<(Masked, DeviceBody), Abort> {
        let SlotRequest { slot, ring, len, .. } = self.request;
        let spec = SlotSpec::new(slot, ring, len, context);
        mask::apply(&mut input, me.params.suite, &self.masks(me, &spec)?);
        let body = DeviceBody::MaskedInput { slot, input: Bytes::from(input.to_le_bytes()) };
        Ok((Masked { rest: self.rest, holdings: self.holdings, spec, active: self.active }, body))
    }

    fn masks(&self, me: &Me, spec: &SlotSpec) -> Result<Vec<(Sign, MaskKey)>, Abort> {
        let secrets = &self.holdings.secrets;
        let mut masks = vec![(Sign::Plus, self_mask_key(&secrets.seed.0, &me.header, spec, me.id()))];
        for (&peer, bundle) in self.rest.member.neighbours.iter().filter(|(id, _)| self.active.contains(**id))
        {
            let shared = secrets.mask.agree(&bundle.mask_key(spec.slot)).map_err(|_| Abort::BadKey(peer))?;
            masks.push((mask_sign(me.id(), peer), shared.mask_key(&me.header, spec, me.id(), peer)));
        }
        Ok(masks)
    }
}

/// The masked input is out.
#[derive(Debug)]
pub(super) struct Masked {
    rest: Idle,
    holdings: SlotHoldings,
    spec: SlotSpec,
    active: DeviceSet,
}

impl Masked {
    /// Signs the transcript up to these survivors, once.
    pub(super) fn on_survivors(
        mut self,
        me: &Me,
        slot: u32,
        survivors: DeviceSet,
    ) -> Result<(Attested, DeviceBody), Abort> {
        check_slot(&self.spec, slot)?;
        self.rest.member.check_set(me, &survivors, &self.active)?;
        let member = &mut self.rest.member;
        member.transcript = member.transcript.with_slot(&self.spec, &self.active, &survivors);
        let signature = me.identity.sign(&member.transcript.attestation());
        let Self { rest, holdings, spec, active } = self;
        Ok((Attested { rest, holdings, spec, active, survivors }, DeviceBody::Attest { slot, signature }))
    }
}

/// The signature is out; those of the neighbours are not in yet.
#[derive(Debug)]
pub(super) struct Attested {
    rest: Idle,
    holdings: SlotHoldings,
    spec: SlotSpec,
    active: DeviceSet,
    survivors: DeviceSet,
}

impl Attested {
    /// With t signatures on what this device saw, gives away one share per device of its circle.
    pub(super) fn on_attestations(
        mut self,
        me: &Me,
        slot: u32,
        signatures: &BTreeMap<DeviceId, [u8; SIGNATURE_LEN]>,
    ) -> Result<(Idle, DeviceBody), Abort> {
        check_slot(&self.spec, slot)?;
        self.check_signatures(me, signatures)?;
        let shares = self.shares();
        self.rest.allowed = self.survivors;
        self.rest.next += 1;
        Ok((self.rest, DeviceBody::Unmask { slot, shares }))
    }

    fn check_signatures(
        &self,
        me: &Me,
        signatures: &BTreeMap<DeviceId, [u8; SIGNATURE_LEN]>,
    ) -> Result<(), Abort> {
        let (have, need) = (signatures.len(), self.rest.member.threshold);
        if have < need {
            return Err(Abort::TooFew { have, need });
        }
        let message = self.rest.member.transcript.attestation();
        for (&id, signature) in signatures {
            let near = id == me.id() || self.rest.member.neighbours.contains_key(&id);
            if !near || !self.survivors.contains(id) {
                return Err(Abort::UnknownDevice(id));
            }
            if !me.roster.verifies(id, &message, signature) {
                return Err(Abort::BadSignature(id));
            }
        }
        Ok(())
    }

    /// The seed's share of a survivor, the mask key's of a device that dropped out; the other one is wiped
    /// with the rest of the slot, so that it can never be given away.
    fn shares(&mut self) -> BTreeMap<DeviceId, (SecretKind, Share)> {
        let held = std::mem::take(&mut self.holdings.shares);
        let active = held.into_iter().filter(|(id, _)| self.active.contains(*id));
        let chosen = active.map(|(id, pair)| {
            let survived = self.survivors.contains(id);
            let share = if survived {
                (SecretKind::Seed, pair.seed.clone())
            } else {
                (SecretKind::MaskKey, pair.mask_key.clone())
            };
            (id, share)
        });
        chosen.collect()
    }
}

fn check_slot(spec: &SlotSpec, got: u32) -> Result<(), Abort> {
    if got == spec.slot { Ok(()) } else { Err(Abort::WrongSlot { expected: spec.slot, got }) }
}
