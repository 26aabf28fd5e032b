//! One slot: add masked inputs as they arrive, collect attestations of the survivors, remove the
//! masks.

use std::collections::{BTreeMap, BTreeSet};

use prost::bytes::Bytes;

use super::outcome::{PhaseName, RefusedMessage, RoundFailure};
use super::setup::{KeySetup, expected};
use super::unmask::unmask;
use super::{Phase, PhaseTransition, RoundContext, ServerRoundEvent, SlotSum};
use crate::identity::{DeviceId, SIGNATURE_LEN};
use crate::message::{DeviceSet, REVEALED_LEN, SecretKind, ServerBody};
use crate::params::SlotSpec;
use crate::ring::RingVector;
use crate::shamir::SecretShare;

/// Waits for the application to open the next slot.
#[derive(Debug, Clone)]
pub(super) struct Idle {
    setup: KeySetup,
    next: u32,
    active: DeviceSet,
}

impl Idle {
    pub(super) fn new(setup: KeySetup, next: u32, active: DeviceSet) -> Self {
        Self { setup, next, active }
    }

    pub(super) fn next_slot(&self) -> u32 {
        self.next
    }

    pub(super) fn ready(&self) -> ServerRoundEvent {
        ServerRoundEvent::Ready { slot: self.next, active: self.active.clone() }
    }

    pub(super) fn open(self, round: &RoundContext, spec: SlotSpec) -> Result<PhaseTransition, RoundFailure> {
        let need = self.setup.graph.least().max(round.min_members);
        round.enough(PhaseName::MaskedInput(spec.slot), self.active.len(), need)?;
        let SlotSpec { slot, ring, len, .. } = spec;
        let open = ServerBody::OpenSlot { slot, ring, len, active: self.active.clone() };
        let slot = Slot { setup: self.setup, spec, active: self.active.clone() };
        let sum = RingVector::zeros(ring, len as usize);
        let collecting = Collecting { slot, sum, received: BTreeMap::new() };
        let messages = vec![(self.active, open)];
        Ok(PhaseTransition { phase: Phase::Collecting(collecting), messages, events: Vec::new() })
    }
}

/// The server's data about an open slot.
#[derive(Debug, Clone)]
pub(super) struct Slot {
    pub(super) setup: KeySetup,
    pub(super) spec: SlotSpec,
    pub(super) active: DeviceSet,
}

impl Slot {
    fn check(&self, got: u32) -> Result<(), RefusedMessage> {
        match self.spec.slot {
            expected if expected != got => Err(RefusedMessage::WrongSlot { expected, got }),
            _ => Ok(()),
        }
    }
}

/// Waits for masked inputs. Each input is added on arrival, so memory for one vector suffices.
#[derive(Debug, Clone)]
pub(super) struct Collecting {
    slot: Slot,
    sum: RingVector,
    /// The input signatures by device.
    received: BTreeMap<DeviceId, [u8; SIGNATURE_LEN]>,
}

impl Collecting {
    pub(super) fn take(
        &mut self,
        round: &RoundContext,
        from: DeviceId,
        slot: u32,
        input: &Bytes,
        signature: [u8; SIGNATURE_LEN],
    ) -> Result<(), RefusedMessage> {
        self.slot.check(slot)?;
        expected(from, self.slot.active.contains(from), self.received.contains_key(&from))?;
        let signed = self.slot.setup.transcript.masked(&self.slot.spec, &self.slot.active);
        if !round.roster.verifies(from, &signed, &signature) {
            return Err(RefusedMessage::BadSignature(from));
        }
        if !self.sum.add_le_bytes(input) {
            return Err(RefusedMessage::Shape(from));
        }
        self.received.insert(from, signature);
        Ok(())
    }

    pub(super) fn input_len(&self) -> usize {
        self.slot.spec.input_len()
    }

    pub(super) fn is_complete(&self) -> bool {
        self.received.len() == self.slot.active.len()
    }

    pub(super) fn finish(self, round: &RoundContext) -> Result<PhaseTransition, RoundFailure> {
        let Self { mut slot, sum, received } = self;
        let survivors: DeviceSet = received.keys().copied().collect();
        let need = slot.setup.graph.least().max(round.min_members);
        round.enough(PhaseName::MaskedInput(slot.spec.slot), survivors.len(), need)?;
        slot.setup.transcript = slot.setup.transcript.with_slot(&slot.spec, &slot.active, &survivors);
        let body = ServerBody::Survivors { slot: slot.spec.slot, survivors: survivors.clone() };
        let messages = vec![(survivors.clone(), body)];
        let attesting = Attesting { slot, sum, survivors, masked: received, signatures: BTreeMap::new() };
        Ok(PhaseTransition { phase: Phase::Attesting(attesting), messages, events: Vec::new() })
    }
}

/// Waits for signatures on the transcript.
#[derive(Debug, Clone)]
pub(super) struct Attesting {
    slot: Slot,
    sum: RingVector,
    survivors: DeviceSet,
    /// The signatures that the survivors sent with their inputs.
    masked: BTreeMap<DeviceId, [u8; SIGNATURE_LEN]>,
    signatures: BTreeMap<DeviceId, [u8; SIGNATURE_LEN]>,
}

impl Attesting {
    pub(super) fn take(
        &mut self,
        round: &RoundContext,
        from: DeviceId,
        slot: u32,
        signature: [u8; SIGNATURE_LEN],
    ) -> Result<(), RefusedMessage> {
        self.slot.check(slot)?;
        expected(from, self.survivors.contains(from), self.signatures.contains_key(&from))?;
        if !round.roster.verifies(from, &self.slot.setup.transcript.attestation(), &signature) {
            return Err(RefusedMessage::BadSignature(from));
        }
        self.signatures.insert(from, signature);
        Ok(())
    }

    pub(super) fn is_complete(&self) -> bool {
        self.signatures.len() == self.survivors.len()
    }

    pub(super) fn finish(self, round: &RoundContext) -> Result<PhaseTransition, RoundFailure> {
        let Self { slot, sum, survivors, masked, signatures } = self;
        let signers: DeviceSet = signatures.keys().copied().collect();
        let need = slot.setup.graph.threshold();
        round.enough(PhaseName::Consistency(slot.spec.slot), signers.len(), need)?;
        let messages = attestations(&slot, &signers, signatures, masked);
        let (shares, answered, revealed) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
        let unmasking = Unmasking { slot, sum, survivors, signers, shares, answered, revealed };
        Ok(PhaseTransition { phase: Phase::Unmasking(unmasking), messages, events: Vec::new() })
    }
}

/// Returns the signatures that each signer must verify. On a full graph: t attestations in one
/// message for all. On a sparse graph: those of its circle, and the input signatures of survivors
/// in it that did not attest.
fn attestations(
    slot: &Slot,
    signers: &DeviceSet,
    signatures: BTreeMap<DeviceId, [u8; SIGNATURE_LEN]>,
    mut masked: BTreeMap<DeviceId, [u8; SIGNATURE_LEN]>,
) -> Vec<(DeviceSet, ServerBody)> {
    let number = slot.spec.slot;
    if slot.setup.graph.is_full() {
        let signatures = signatures.into_iter().take(slot.setup.graph.threshold()).collect();
        let body = ServerBody::Attestations { slot: number, signatures, masked: BTreeMap::new() };
        return vec![(signers.clone(), body)];
    }
    masked.retain(|id, _| !signatures.contains_key(id));
    let near = |id: DeviceId| {
        let circle = slot.setup.circle(id);
        let of = |all: &BTreeMap<DeviceId, [u8; SIGNATURE_LEN]>| {
            circle.iter().filter_map(|id| Some((id, *all.get(&id)?))).collect()
        };
        let body =
            ServerBody::Attestations { slot: number, signatures: of(&signatures), masked: of(&masked) };
        (DeviceSet::from_iter([id]), body)
    };
    signers.iter().map(near).collect()
}

/// Waits for shares.
#[derive(Debug, Clone)]
pub(super) struct Unmasking {
    slot: Slot,
    sum: RingVector,
    survivors: DeviceSet,
    signers: DeviceSet,
    /// The shares by owner of the secret, then by holder in increasing order.
    shares: BTreeMap<DeviceId, BTreeMap<DeviceId, SecretShare>>,
    answered: BTreeSet<DeviceId>,
    /// The keys that devices revealed.
    revealed: BTreeMap<DeviceId, [u8; REVEALED_LEN]>,
}

impl Unmasking {
    pub(super) fn take(
        &mut self,
        from: DeviceId,
        slot: u32,
        shares: BTreeMap<DeviceId, (SecretKind, SecretShare)>,
        revealed: Option<[u8; REVEALED_LEN]>,
    ) -> Result<(), RefusedMessage> {
        self.slot.check(slot)?;
        expected(from, self.signers.contains(from), self.answered.contains(&from))?;
        let circle = self.slot.setup.circle(from);
        let due = circle.iter().filter(|&id| self.slot.active.contains(id)).map(|id| (id, self.kind(id)));
        if !due.eq(shares.iter().map(|(&id, &(kind, _))| (id, kind))) {
            return Err(RefusedMessage::Shape(from));
        }
        for (owner, (_, share)) in shares {
            self.shares.entry(owner).or_default().insert(from, share);
        }
        self.answered.insert(from);
        self.revealed.extend(revealed.map(|key| (from, key)));
        Ok(())
    }

    /// Returns the kind of secret that the server may learn of an active device.
    fn kind(&self, id: DeviceId) -> SecretKind {
        if self.survivors.contains(id) { SecretKind::Seed } else { SecretKind::DepositKey }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.answered.len() == self.signers.len()
    }

    pub(super) fn degree(&self) -> usize {
        self.slot.setup.graph.degree()
    }

    pub(super) fn finish(self, round: &RoundContext) -> Result<PhaseTransition, RoundFailure> {
        let Self { slot, mut sum, survivors, shares, answered, revealed, .. } = self;
        let number = slot.spec.slot;
        round.enough(PhaseName::Unmask(number), answered.len(), slot.setup.graph.threshold())?;
        let mut events = unmask(round, &slot, &survivors, &shares, &mut sum)?;
        events.push(ServerRoundEvent::Sum(SlotSum { slot: number, sum, survivors, revealed }));
        if number + 1 == round.params.slots {
            return Ok(PhaseTransition { phase: Phase::Over, messages: Vec::new(), events });
        }
        let idle = Idle::new(slot.setup, number + 1, answered.into_iter().collect());
        events.push(idle.ready());
        Ok(PhaseTransition { phase: Phase::Idle(idle), messages: Vec::new(), events })
    }
}
