//! A device's view of the round after it knows its neighbours.

use std::collections::BTreeMap;

use super::abort::Abort;
use super::participant::LocalDevice;
use crate::defences::Defence;
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
    /// The neighbours and their keys, excluding this device.
    pub(super) neighbours: BTreeMap<DeviceId, KeyBundle>,
    /// t: the threshold.
    pub(super) threshold: usize,
    /// The smallest number of members in a sum.
    least: usize,
    /// The transcript of this device.
    pub(super) transcript: RoundTranscript,
}

impl Member {
    /// Creates the view. `keys` must contain at least the keys of the neighbours.
    pub(super) fn new(
        id: DeviceId,
        graph: &Graph,
        members: DeviceSet,
        keys: BTreeMap<DeviceId, KeyBundle>,
        transcript: RoundTranscript,
    ) -> Self {
        Self { id, members, neighbours: keys, threshold: graph.threshold(), least: graph.least(), transcript }
    }

    /// Returns true if every pair of members is connected.
    pub(super) fn is_full(&self) -> bool {
        self.neighbours.len() + 1 == self.members.len()
    }

    /// Returns the device and its neighbours in increasing order: the holders of shares of its
    /// secrets.
    pub(super) fn circle(&self) -> impl Iterator<Item = DeviceId> + '_ {
        let below = self.neighbours.range(..self.id).map(|(&id, _)| id);
        let above = self.neighbours.range(self.id..).map(|(&id, _)| id);
        below.chain([self.id]).chain(above)
    }

    /// Checks a set of devices that the server announces, given the previous set `allowed`: no
    /// device returns, this device is included, at most a share δ is missing, and its circle is
    /// large enough.
    pub(super) fn check_set(
        &self,
        me: &LocalDevice,
        set: &DeviceSet,
        allowed: &DeviceSet,
    ) -> Result<(), Abort> {
        let defences = me.policy.defences;
        if let Some(id) = set.first_outside(allowed)
            && (defences.has(Defence::NoReturn) || !self.members.contains(id))
        {
            let known = self.members.contains(id);
            return Err(if known { Abort::Returned(id) } else { Abort::UnknownDevice(id) });
        }
        if !set.contains(me.id()) {
            return Err(Abort::LeftOut);
        }
        let of_owner = if defences.has(Defence::MinMembers) { me.policy.min_members } else { 0 };
        let (have, need) = (set.len(), of_owner.max(self.least));
        if have < need {
            return Err(Abort::TooFew { have, need });
        }
        let have = self.circle().filter(|&id| set.contains(id)).count();
        if have < self.threshold && defences.has(Defence::CircleThreshold) {
            return Err(Abort::TooFew { have, need: self.threshold });
        }
        Ok(())
    }
}
