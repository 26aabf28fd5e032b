//! The end of the key set-up: complaints about boxes, and the devices' deposits.

use std::collections::{BTreeMap, BTreeSet};

use prost::bytes::Bytes;

use super::outcome::{Misbehaviour, PhaseName, RefusedMessage, RoundFailure};
use super::setup::{KeySetup, expected};
use super::slot::Idle;
use super::{Phase, PhaseTransition, RoundContext, ServerRoundEvent};
use crate::identity::DeviceId;
use crate::keys::Deposit;
use crate::message::DeviceSet;
use crate::message::wire::deposit_len;

/// Deposits by the depositing device, then by the neighbour.
pub(super) type Deposits = BTreeMap<DeviceId, BTreeMap<DeviceId, Bytes>>;

/// Waits for complaints and deposits.
#[derive(Debug, Clone)]
pub(super) struct Confirming {
    setup: KeySetup,
    sharers: DeviceSet,
    /// Complaints by the complaining device.
    complaints: BTreeMap<DeviceId, DeviceSet>,
}

impl Confirming {
    pub(super) fn new(setup: KeySetup, sharers: DeviceSet) -> Self {
        Self { setup, sharers, complaints: BTreeMap::new() }
    }

    pub(super) fn take(
        &mut self,
        round: &RoundContext,
        from: DeviceId,
        complaints: DeviceSet,
        deposits: BTreeMap<DeviceId, Bytes>,
    ) -> Result<(), RefusedMessage> {
        expected(from, self.sharers.contains(from), self.complaints.contains_key(&from))?;
        // Each neighbour that sealed a box gets either a complaint or deposits.
        let sealed = self.setup.graph.neighbours(from).into_iter().filter(|&id| self.sharers.contains(id));
        let (accused, opened): (Vec<_>, Vec<_>) = sealed.partition(|&id| complaints.contains(id));
        let whole = deposits.values().all(|left| left.len() == deposit_len(round.params.slots));
        if !whole || accused.len() != complaints.len() || !deposits.keys().copied().eq(opened) {
            return Err(RefusedMessage::Shape(from));
        }
        self.complaints.insert(from, complaints);
        self.setup.deposits.insert(from, deposits);
        Ok(())
    }

    pub(super) fn is_complete(&self) -> bool {
        self.complaints.len() == self.sharers.len()
    }

    pub(super) fn degree(&self) -> usize {
        self.setup.graph.degree()
    }

    /// With at most c misbehaving devices, a device in more than c disputes misbehaved and is left
    /// out. In any other dispute one of two devices misbehaved. Both are left out, because the
    /// masks between them could not be removed. Every dispute involves a misbehaving device, so at
    /// most c honest devices are lost.
    pub(super) fn finish(mut self, round: &RoundContext) -> Result<PhaseTransition, RoundFailure> {
        let disputes = self.disputes();
        let caught = liars(&disputes, self.setup.graph.liars());
        let mut events: Vec<ServerRoundEvent> = caught
            .iter()
            .map(|(&device, &misbehaviour)| ServerRoundEvent::Caught { device, misbehaviour })
            .collect();
        let mut out: BTreeSet<DeviceId> = caught.keys().copied().collect();
        for &Dispute { owner, holder, .. } in &disputes {
            if !out.contains(&owner) && !out.contains(&holder) {
                out.extend([owner, holder]);
                events.push(ServerRoundEvent::Disputed { owner, holder });
            }
        }
        let here: DeviceSet = self.complaints.keys().copied().filter(|id| !out.contains(id)).collect();
        let need = self.setup.graph.least().max(round.min_members);
        round.enough(PhaseName::Confirm, here.len(), need)?;
        self.setup.deposits.retain(|&id, _| here.contains(id));
        let idle = Idle::new(self.setup, 0, here);
        events.push(idle.ready());
        Ok(PhaseTransition { phase: Phase::Idle(idle), messages: Vec::new(), events })
    }

    /// Returns the pairs in which one device misbehaved, each pair once.
    fn disputes(&self) -> Vec<Dispute> {
        let mut disputes = Vec::new();
        for (&holder, deposits) in &self.setup.deposits {
            for owner in self.complaints[&holder].iter() {
                let back = self.complaints.get(&owner).is_some_and(|accused| accused.contains(holder));
                if self.complaints.contains_key(&owner) && (owner < holder || !back) {
                    disputes.push(Dispute { owner, holder, sealed: true });
                }
            }
            for (&owner, left) in deposits.range(..holder) {
                let theirs = self.setup.deposits.get(&owner).and_then(|of| of.get(&holder));
                if theirs.is_some_and(|theirs| !agree(left, theirs)) {
                    disputes.push(Dispute { owner, holder, sealed: false });
                }
            }
        }
        disputes
    }
}

/// Two devices of which one misbehaved.
#[derive(Debug, Clone, Copy)]
struct Dispute {
    owner: DeviceId,
    holder: DeviceId,
    /// True if a box of the owner did not open, false if the deposits of the two devices disagree.
    sealed: bool,
}

/// Returns true if two devices committed to the same key in every slot.
fn agree(ours: &[u8], theirs: &[u8]) -> bool {
    let commitment = |left: &[u8], slot| Deposit::for_slot(left, slot).map(|deposit| deposit.commitment);
    let slots = (ours.len() / Deposit::LEN) as u32;
    (0..slots).all(|slot| commitment(ours, slot) == commitment(theirs, slot))
}

/// Returns the devices in more than `most` disputes, with the most frequent kind of dispute.
fn liars(disputes: &[Dispute], most: usize) -> BTreeMap<DeviceId, Misbehaviour> {
    let mut counts: BTreeMap<DeviceId, BTreeMap<Misbehaviour, usize>> = BTreeMap::new();
    for dispute in disputes {
        let (owners, holders) = if dispute.sealed {
            (Misbehaviour::SealedBoxes, Misbehaviour::Accusations)
        } else {
            (Misbehaviour::Deposits, Misbehaviour::Deposits)
        };
        for (device, misbehaviour) in [(dispute.owner, owners), (dispute.holder, holders)] {
            *counts.entry(device).or_default().entry(misbehaviour).or_default() += 1;
        }
    }
    let caught = counts.into_iter().filter(|(_, lies)| lies.values().sum::<usize>() > most);
    caught.filter_map(|(id, lies)| Some((id, lies.into_iter().max_by_key(|(_, count)| *count)?.0))).collect()
}
