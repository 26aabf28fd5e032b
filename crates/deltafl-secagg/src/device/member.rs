//! What a device knows once it knows its neighbours.

use std::collections::BTreeMap;

use super::abort::Abort;
use super::participant::LocalDevice;
use crate::graph::Graph;
use crate::identity::DeviceId;
use crate::message::{DeviceSet, KeyBundle};
use crate::transcript::RoundTranscript;

/// A member's view of the round.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(super) struct Member {
    id: DeviceId,
    /// All members of the round.
    pub(super) members: DeviceSet,
    /// The neighbours and their keys, without this device.
    pub(super) neighbours: BTreeMap<DeviceId, KeyBundle>,
    /// t.
    pub(super) threshold: usize,
    /// The fewest members that a sum may have.
    least: usize,
    /// What this device was shown so far.
    pub(super) transcript: RoundTranscript,
}

impl Member {
    /// `keys` hold at least those of the neighbours.
    pub(super) fn new(
        id: DeviceId,
        graph: &Graph,
        members: DeviceSet,
        keys: BTreeMap<DeviceId, KeyBundle>,
        transcript: RoundTranscript,
    ) -> Self {
        Self { id, members, neighbours: keys, threshold: graph.threshold(), least: graph.least(), transcript }
    }

    /// Whether every pair of members is joined.
    pub(super) fn is_full(&self) -> bool {
        self.neighbours.len() + 1 == self.members.len()
    }

    /// The neighbours and this device, in increasing order: the holders of shares of its secrets.
    pub(super) fn circle(&self) -> impl Iterator<Item = DeviceId> + '_ {
        let below = self.neighbours.range(..self.id).map(|(&id, _)| id);
        let above = self.neighbours.range(self.id..).map(|(&id, _)| id);
        below.chain([self.id]).chain(above)
    }

    /// Whether the server may say that the devices in `set` are there, when those in `allowed` were before:
    /// nobody returns, this device is among them, no more than a share δ is missing, and enough are left in
    /// its circle.
    pub(super) fn check_set(
        &self,
        me: &LocalDevice,
        set: &DeviceSet,
        allowed: &DeviceSet,
    ) -> Result<(), Abort> {
        if let Some(id) = set.first_outside(allowed) {
            let known = self.members.contains(id);
            return Err(if known { Abort::Returned(id) } else { Abort::UnknownDevice(id) });
        }
        if !set.contains(me.id()) {
            return Err(Abort::LeftOut);
        }
        let (have, need) = (set.len(), me.policy.min_members.max(self.least));
        if have < need {
            return Err(Abort::TooFew { have, need });
        }
        let have = self.circle().filter(|&id| set.contains(id)).count();
        if have < self.threshold {
            return Err(Abort::TooFew { have, need: self.threshold });
        }
        Ok(())
    }
}
