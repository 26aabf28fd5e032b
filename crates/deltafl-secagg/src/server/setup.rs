//! Key set-up: advertise keys, settle the graph, carry sealed shares.

use std::collections::BTreeMap;

use prost::bytes::Bytes;

use super::slot::Idle;
use super::verdict::{PhaseName, RefusedMessage, Verdict};
use super::{Phase, Round, Step};
use crate::graph::{self, Graph, GraphRule};
use crate::identity::DeviceId;
use crate::keys::{ShareBox, nonce_commitment, same};
use crate::message::wire::BOX_SLOT_LEN;
use crate::message::{DeviceSet, KeyBundle, ServerBody};
use crate::transcript::Transcript;

/// Waiting for the keys of the cohort.
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
        round: &Round,
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
        self.keys.insert(from, bundle);
        Ok(())
    }

    pub(super) fn is_complete(&self) -> bool {
        self.keys.len() == self.invited.len()
    }

    pub(super) fn finish(self, round: &Round) -> Result<Step, Verdict> {
        let members: DeviceSet = self.keys.keys().copied().collect();
        round.enough(PhaseName::Advertise, members.len(), round.least())?;
        if let GraphRule::Regular { .. } = round.params.graph {
            let commitments = self.keys.iter().map(|(&id, bundle)| (id, bundle.nonce_commitment())).collect();
            return Ok(Step {
                phase: Phase::Revealing(Revealing { keys: self.keys, nonces: BTreeMap::new() }),
                messages: vec![(members, ServerBody::Commitments(commitments))],
                events: Vec::new(),
            });
        }
        let graph = Graph::new(round.params.graph, round.params.cohort, members.as_slice(), &[0; 32]);
        let messages = vec![(members, ServerBody::Keys(self.keys.clone()))];
        let transcript = Transcript::new(&round.header, &self.keys);
        let setup = Setup { keys: self.keys, graph, transcript };
        Ok(Step { phase: Phase::Sharing(Sharing::new(setup)), messages, events: Vec::new() })
    }
}

/// Waiting for the parts of the graph's randomness.
#[derive(Debug, Clone)]
pub(super) struct Revealing {
    keys: BTreeMap<DeviceId, KeyBundle>,
    nonces: BTreeMap<DeviceId, [u8; 32]>,
}

impl Revealing {
    pub(super) fn take(
        &mut self,
        round: &Round,
        from: DeviceId,
        nonce: [u8; 32],
    ) -> Result<(), RefusedMessage> {
        let bundle = self.keys.get(&from).ok_or(RefusedMessage::UnknownDevice(from))?;
        expected(from, true, self.nonces.contains_key(&from))?;
        if !same(&bundle.nonce_commitment(), &nonce_commitment(&round.header, from, &nonce)) {
            return Err(RefusedMessage::BadCommitment(from));
        }
        self.nonces.insert(from, nonce);
        Ok(())
    }

    pub(super) fn is_complete(&self) -> bool {
        self.nonces.len() == self.keys.len()
    }

    pub(super) fn finish(mut self, round: &Round) -> Result<Step, Verdict> {
        self.keys.retain(|id, _| self.nonces.contains_key(id));
        let members: DeviceSet = self.keys.keys().copied().collect();
        round.enough(PhaseName::Reveal, members.len(), round.least())?;
        let seed = graph::seed(&round.header, &self.nonces);
        let graph = Graph::new(round.params.graph, round.params.cohort, members.as_slice(), &seed);
        round.enough(PhaseName::Reveal, members.len(), graph.threshold())?;
        let keys_for = |id: DeviceId| {
            let neighbours = graph.neighbours(id).into_iter();
            neighbours.map(|peer| (peer, self.keys[&peer].clone())).collect()
        };
        let keys = members.iter().map(|id| (DeviceSet::from_iter([id]), ServerBody::Keys(keys_for(id))));
        let transcript = Transcript::new(&round.header, &self.nonces);
        let messages =
            [(members.clone(), ServerBody::Reveals(self.nonces))].into_iter().chain(keys).collect();
        let setup = Setup { keys: self.keys, graph, transcript };
        Ok(Step { phase: Phase::Sharing(Sharing::new(setup)), messages, events: Vec::new() })
    }
}

/// What the server knows once the graph is settled.
#[derive(Debug, Clone)]
pub(super) struct Setup {
    pub(super) keys: BTreeMap<DeviceId, KeyBundle>,
    pub(super) graph: Graph,
    pub(super) transcript: Transcript,
}

impl Setup {
    /// The neighbours of a device and itself.
    pub(super) fn circle(&self, id: DeviceId) -> DeviceSet {
        self.graph.neighbours(id).into_iter().chain([id]).collect()
    }
}

/// Waiting for sealed shares.
#[derive(Debug, Clone)]
pub(super) struct Sharing {
    setup: Setup,
    /// By sender, then by recipient.
    boxes: BTreeMap<DeviceId, BTreeMap<DeviceId, Bytes>>,
}

impl Sharing {
    fn new(setup: Setup) -> Self {
        Self { setup, boxes: BTreeMap::new() }
    }

    pub(super) fn take(
        &mut self,
        round: &Round,
        from: DeviceId,
        boxes: BTreeMap<DeviceId, Bytes>,
    ) -> Result<(), RefusedMessage> {
        expected(from, self.setup.graph.contains(from), self.boxes.contains_key(&from))?;
        let len = round.params.slots as usize * BOX_SLOT_LEN + ShareBox::OVERHEAD;
        let whole = boxes.values().all(|sealed| sealed.len() == len);
        if !whole || !boxes.keys().copied().eq(self.setup.graph.neighbours(from)) {
            return Err(RefusedMessage::Shape(from));
        }
        self.boxes.insert(from, boxes);
        Ok(())
    }

    pub(super) fn is_complete(&self) -> bool {
        self.boxes.len() == self.setup.keys.len()
    }

    pub(super) fn finish(self, round: &Round) -> Result<Step, Verdict> {
        let sharers: DeviceSet = self.boxes.keys().copied().collect();
        let need = self.setup.graph.threshold().max(round.min_members);
        round.enough(PhaseName::Share, sharers.len(), need)?;
        let boxes_for = |to: DeviceId| {
            let from = self.setup.graph.neighbours(to).into_iter();
            from.filter_map(|from| Some((from, self.boxes.get(&from)?.get(&to)?.clone()))).collect()
        };
        let messages = sharers
            .iter()
            .map(|to| (DeviceSet::from_iter([to]), ServerBody::Shares(boxes_for(to))))
            .collect();
        let idle = Idle::new(self.setup, 0, sharers);
        let events = vec![idle.ready()];
        Ok(Step { phase: Phase::Idle(idle), messages, events })
    }
}

/// Whether an answer of this device is due.
pub(super) fn expected(from: DeviceId, here: bool, answered: bool) -> Result<(), RefusedMessage> {
    match (here, answered) {
        (false, _) => Err(RefusedMessage::UnknownDevice(from)),
        (true, true) => Err(RefusedMessage::Duplicate(from)),
        (true, false) => Ok(()),
    }
}
