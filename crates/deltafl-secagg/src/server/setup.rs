//! Key set-up: collect keys, determine the graph, forward sealed shares.

use std::collections::{BTreeMap, BTreeSet};

use prost::bytes::Bytes;

use super::confirm::{Confirming, Deposits};
use super::outcome::{PhaseName, RefusedMessage, RoundFailure};
use super::{Phase, PhaseTransition, RoundContext};
use crate::graph::{self, Graph};
use crate::identity::DeviceId;
use crate::keys::{nonce_commitment, same};
use crate::message::wire::box_len;
use crate::message::{DeviceSet, KeyBundle, Reveal, ServerBody};
use crate::transcript::{RoundTranscript, Sha256Digest};

/// Waits for the keys of the cohort.
#[derive(Debug, Clone)]
pub(super) struct Advertising {
    invited: DeviceSet,
    keys: BTreeMap<DeviceId, KeyBundle>,
}

impl Advertising {
    pub(super) fn new(invited: DeviceSet) -> Self {
        Self { invited, keys: BTreeMap::new() }
    }

    pub(super) fn take(
        &mut self,
        round: &RoundContext,
        from: DeviceId,
        bundle: KeyBundle,
    ) -> Result<(), RefusedMessage> {
        expected(from, self.invited.contains(from), self.keys.contains_key(&from))?;
        if bundle.slots() != round.params.slots {
            return Err(RefusedMessage::Shape(from));
        }
        if !bundle.verifies(&round.roster, &round.header, from) {
            return Err(RefusedMessage::BadSignature(from));
        }
        // Neighbours could neither seal boxes for this device nor mask with it, so it is left out.
        if !bundle.has_sound_keys() {
            return Err(RefusedMessage::BadKey(from));
        }
        self.keys.insert(from, bundle);
        Ok(())
    }

    pub(super) fn is_complete(&self) -> bool {
        self.keys.len() == self.invited.len()
    }

    pub(super) fn finish(self, round: &RoundContext) -> Result<PhaseTransition, RoundFailure> {
        let members: DeviceSet = self.keys.keys().copied().collect();
        round.enough(PhaseName::Advertise, members.len(), round.least())?;
        if round.params.graph.is_committed(round.params.cohort) {
            let revealing = Revealing::new(round, self.keys);
            let messages = vec![(members, ServerBody::Commitments(revealing.commitments.clone()))];
            return Ok(PhaseTransition { phase: Phase::Revealing(revealing), messages, events: Vec::new() });
        }
        let graph = round.graph(&members, &[0; 32]);
        round.enough(PhaseName::Advertise, members.len(), graph.threshold())?;
        let messages = vec![(members, ServerBody::Keys(self.keys.clone()))];
        let transcript = RoundTranscript::new(&round.header, &self.keys);
        let setup = KeySetup { keys: self.keys, graph, transcript, deposits: BTreeMap::new() };
        Ok(PhaseTransition { phase: Phase::Sharing(Sharing::new(setup)), messages, events: Vec::new() })
    }
}

/// Waits for the nonces of the graph.
#[derive(Debug, Clone)]
pub(super) struct Revealing {
    keys: BTreeMap<DeviceId, KeyBundle>,
    commitments: BTreeMap<DeviceId, Sha256Digest>,
    list: Sha256Digest,
    reveals: BTreeMap<DeviceId, Reveal>,
}

impl Revealing {
    fn new(round: &RoundContext, keys: BTreeMap<DeviceId, KeyBundle>) -> Self {
        let commitments = keys.iter().map(|(&id, bundle)| (id, bundle.nonce_commitment())).collect();
        let list = graph::member_list(&round.header, &commitments);
        Self { keys, commitments, list, reveals: BTreeMap::new() }
    }

    pub(super) fn take(
        &mut self,
        round: &RoundContext,
        from: DeviceId,
        reveal: Reveal,
    ) -> Result<(), RefusedMessage> {
        let commitment = self.commitments.get(&from).ok_or(RefusedMessage::UnknownDevice(from))?;
        expected(from, true, self.reveals.contains_key(&from))?;
        if !same(commitment, &nonce_commitment(&round.header, from, reveal.nonce())) {
            return Err(RefusedMessage::BadCommitment(from));
        }
        if !reveal.verifies(&round.roster, &self.list, from) {
            return Err(RefusedMessage::BadSignature(from));
        }
        self.reveals.insert(from, reveal);
        Ok(())
    }

    pub(super) fn is_complete(&self) -> bool {
        self.reveals.len() == self.keys.len()
    }

    /// The members that determine the graph must have revealed. Other members that have not keep
    /// their position.
    pub(super) fn finish(mut self, round: &RoundContext) -> Result<PhaseTransition, RoundFailure> {
        let rule = round.params.graph;
        let drawers = rule.drawers(round.params.cohort, &self.commitments);
        if rule.forgives_silence() {
            self.keys.retain(|id, _| self.reveals.contains_key(id));
            self.commitments.retain(|id, _| self.reveals.contains_key(id));
        } else if let Some(device) = drawers.iter().find(|id| !self.reveals.contains_key(id)) {
            return Err(RoundFailure::Withheld { device });
        }
        let quorum = rule.list_quorum(round.params.cohort);
        round.enough(PhaseName::Reveal, self.reveals.len(), quorum)?;
        // Devices need the nonces of the drawers, and signatures of a quorum on the list.
        let mut others = quorum.saturating_sub(drawers.len());
        self.reveals.retain(|&id, _| {
            let kept = drawers.contains(id) || others > 0;
            others -= usize::from(kept && !drawers.contains(id));
            kept
        });
        let members: DeviceSet = self.keys.keys().copied().collect();
        round.enough(PhaseName::Reveal, members.len(), round.least())?;
        let seed = graph::seed(&self.list, &drawers, &self.reveals);
        let graph = round.graph(&members, &seed);
        round.enough(PhaseName::Reveal, members.len(), graph.threshold())?;
        let keys_for = |id: DeviceId| {
            let neighbours = graph.neighbours(id).into_iter();
            neighbours.map(|peer| (peer, self.keys[&peer].clone())).collect()
        };
        let keys = members.iter().map(|id| (DeviceSet::from_iter([id]), ServerBody::Keys(keys_for(id))));
        let transcript = RoundTranscript::new(&seed, &self.commitments);
        let messages =
            [(members.clone(), ServerBody::Reveals(self.reveals))].into_iter().chain(keys).collect();
        let setup = KeySetup { keys: self.keys, graph, transcript, deposits: BTreeMap::new() };
        Ok(PhaseTransition { phase: Phase::Sharing(Sharing::new(setup)), messages, events: Vec::new() })
    }
}

/// The server's data after the graph is determined.
#[derive(Debug, Clone)]
pub(super) struct KeySetup {
    pub(super) keys: BTreeMap<DeviceId, KeyBundle>,
    pub(super) graph: Graph,
    pub(super) transcript: RoundTranscript,
    /// The deposits of each device about each neighbour.
    pub(super) deposits: Deposits,
}

impl KeySetup {
    /// Returns a device and its neighbours.
    pub(super) fn circle(&self, id: DeviceId) -> DeviceSet {
        self.graph.neighbours(id).into_iter().chain([id]).collect()
    }
}

/// The size in bytes up to which all boxes are forwarded together. Larger sets are forwarded in
/// four parts: the boxes of a cohort of 500 devices take 114 MB.
const WAITING: usize = 4 << 20;

/// Waits for sealed shares.
#[derive(Debug, Clone)]
pub(super) struct Sharing {
    setup: KeySetup,
    /// The devices whose boxes have arrived.
    sharers: BTreeSet<DeviceId>,
    /// The boxes that have not been forwarded, by sender, then by recipient.
    boxes: BTreeMap<DeviceId, BTreeMap<DeviceId, Bytes>>,
}

impl Sharing {
    fn new(setup: KeySetup) -> Self {
        Self { setup, sharers: BTreeSet::new(), boxes: BTreeMap::new() }
    }

    pub(super) fn take(
        &mut self,
        round: &RoundContext,
        from: DeviceId,
        boxes: BTreeMap<DeviceId, Bytes>,
    ) -> Result<(), RefusedMessage> {
        expected(from, self.setup.graph.contains(from), self.sharers.contains(&from))?;
        let len = box_len(round.params.slots);
        let whole = boxes.values().all(|sealed| sealed.len() == len);
        if !whole || !boxes.keys().copied().eq(self.setup.graph.neighbours(from)) {
            return Err(RefusedMessage::Shape(from));
        }
        self.sharers.insert(from);
        self.boxes.insert(from, boxes);
        Ok(())
    }

    pub(super) fn is_complete(&self) -> bool {
        self.sharers.len() == self.setup.keys.len()
    }

    /// Returns the boxes to forward before all have arrived. They go to all members: a member that
    /// has not shared yet receives them after the keys and opens them later.
    pub(super) fn forward(&mut self, round: &RoundContext) -> Vec<(DeviceSet, ServerBody)> {
        let members = self.setup.keys.len();
        let each = self.degree() * box_len(round.params.slots);
        if self.boxes.len() * each < WAITING.max(members * each / 4) {
            return Vec::new();
        }
        let boxes = std::mem::take(&mut self.boxes);
        let some = |&to: &DeviceId| (to, boxes_for(&self.setup.graph, &boxes, to));
        let recipients = self.setup.keys.keys().map(some).filter(|(_, boxes)| !boxes.is_empty());
        recipients.map(|(to, boxes)| (DeviceSet::from_iter([to]), ServerBody::EarlyShares(boxes))).collect()
    }

    pub(super) fn finish(self, round: &RoundContext) -> Result<PhaseTransition, RoundFailure> {
        let Self { setup, sharers, boxes } = self;
        let sharers: DeviceSet = sharers.into_iter().collect();
        let need = setup.graph.least().max(round.min_members);
        round.enough(PhaseName::Share, sharers.len(), need)?;
        let rest = |to: DeviceId| ServerBody::Shares(boxes_for(&setup.graph, &boxes, to));
        let messages = sharers.iter().map(|to| (DeviceSet::from_iter([to]), rest(to))).collect();
        let confirming = Confirming::new(setup, sharers);
        Ok(PhaseTransition { phase: Phase::Confirming(confirming), messages, events: Vec::new() })
    }

    pub(super) fn degree(&self) -> usize {
        self.setup.graph.degree()
    }
}

/// Returns the boxes for one device, by sender.
fn boxes_for(
    graph: &Graph,
    boxes: &BTreeMap<DeviceId, BTreeMap<DeviceId, Bytes>>,
    to: DeviceId,
) -> BTreeMap<DeviceId, Bytes> {
    let from = graph.neighbours(to).into_iter();
    from.filter_map(|from| Some((from, boxes.get(&from)?.get(&to)?.clone()))).collect()
}

/// Checks that an answer of this device is expected.
pub(super) fn expected(from: DeviceId, here: bool, answered: bool) -> Result<(), RefusedMessage> {
    match (here, answered) {
        (false, _) => Err(RefusedMessage::UnknownDevice(from)),
        (true, true) => Err(RefusedMessage::Duplicate(from)),
        (true, false) => Ok(()),
    }
}
