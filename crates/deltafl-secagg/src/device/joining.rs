//! The first phases: advertise keys and, on a sparse graph, commit and reveal.

use std::collections::BTreeMap;

use chacha20::ChaCha20Rng;
use rand_core::{CryptoRng, Rng, SeedableRng};

use super::abort::Abort;
use super::member::Member;
use super::participant::LocalDevice;
use super::sharing::Sharing;
use crate::defences::Defence;
use crate::graph::{self, Graph};
use crate::identity::DeviceId;
use crate::keys::{AgreementKeys, Secret, deposit_commitment, nonce_commitment, same, seed_commitment};
use crate::message::{DeviceBody, DeviceSet, KeyBundle, Reveal};
use crate::transcript::{RoundTranscript, Sha256Digest};

/// The device's secrets of a round.
pub(super) struct Secrets {
    /// The key pairs for key agreement with neighbours.
    pub(super) agreement: AgreementKeys,
    /// One pair of secrets per slot.
    pub(super) slots: Vec<SlotSecrets>,
    /// The generator for encapsulation and for the coefficients of the secret sharing.
    pub(super) stream: ChaCha20Rng,
    /// The device's contribution to the graph's randomness.
    nonce: [u8; 32],
}

/// The two secrets of a slot. The server learns at most one of them.
#[cfg_attr(test, derive(Clone))]
pub(super) struct SlotSecrets {
    /// k_u: the key under which the keys of the pairwise masks are deposited with the server.
    pub(super) deposit: Secret,
    /// b_u: the seed of the device's self mask.
    pub(super) seed: Secret,
}

impl Secrets {
    fn draw(slots: u32, rng: &mut impl CryptoRng) -> Self {
        let mut root = zeroize::Zeroizing::new([0; 32]);
        rng.fill_bytes(&mut *root);
        let mut stream = ChaCha20Rng::from_seed(*root);
        let agreement = AgreementKeys::generate(&mut stream);
        let mut nonce = [0; 32];
        stream.fill_bytes(&mut nonce);
        let slots = (0..slots).map(|_| SlotSecrets::draw(&mut stream)).collect();
        Self { agreement, slots, stream, nonce }
    }

    fn bundle(&self, me: &LocalDevice) -> KeyBundle {
        let slots = (0u32..).zip(&self.slots).map(|(slot, secrets)| {
            let deposit = deposit_commitment(&me.header, me.id(), slot, &secrets.deposit.0);
            (deposit, seed_commitment(&me.header, me.id(), slot, &secrets.seed.0))
        });
        let commitment = nonce_commitment(&me.header, me.id(), &self.nonce);
        KeyBundle::sign(&me.identity, &me.header, &self.agreement.public(), &commitment, slots)
    }
}

#[cfg(test)]
impl Clone for Secrets {
    fn clone(&self) -> Self {
        let mut stream = ChaCha20Rng::from_seed(self.stream.get_seed());
        stream.set_word_pos(self.stream.get_word_pos());
        Self { agreement: self.agreement.clone(), slots: self.slots.clone(), stream, nonce: self.nonce }
    }
}

impl SlotSecrets {
    fn draw(stream: &mut ChaCha20Rng) -> Self {
        let (mut deposit, mut seed) = (Secret([0; 32]), Secret([0; 32]));
        stream.fill_bytes(&mut deposit.0);
        stream.fill_bytes(&mut seed.0);
        Self { deposit, seed }
    }
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secrets(..)")
    }
}

/// Keys are advertised. The members are unknown.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(super) struct Joined {
    secrets: Secrets,
    bundle: KeyBundle,
}

impl Joined {
    pub(super) fn new(me: &LocalDevice, rng: &mut impl CryptoRng) -> (Self, DeviceBody) {
        let secrets = Secrets::draw(me.params.slots, rng);
        let bundle = secrets.bundle(me);
        (Self { secrets, bundle: bundle.clone() }, DeviceBody::Advertise(bundle))
    }

    /// On a full graph, the keys of all members determine everything else.
    pub(super) fn on_keys(
        self,
        me: &LocalDevice,
        mut keys: BTreeMap<DeviceId, KeyBundle>,
    ) -> Result<(Sharing, DeviceBody), Abort> {
        if me.is_committed() {
            return Err(Abort::Unexpected);
        }
        let members: DeviceSet = keys.keys().copied().collect();
        check_members(me, &members)?;
        let transcript = RoundTranscript::new(&me.header, &keys);
        if keys.remove(&me.id()).as_ref() != Some(&self.bundle) {
            return Err(Abort::OwnKeys);
        }
        check_bundles(me, &keys)?;
        let graph = me.graph(&members, &[0; 32]);
        let member = Member::new(me.id(), &graph, members, keys, transcript);
        Sharing::new(me, member, &self.bundle, self.secrets)
    }

    /// On a drawn graph, all members commit before any member reveals.
    pub(super) fn on_commitments(
        self,
        me: &LocalDevice,
        commitments: BTreeMap<DeviceId, Sha256Digest>,
    ) -> Result<(Revealed, DeviceBody), Abort> {
        if !me.is_committed() {
            return Err(Abort::Unexpected);
        }
        check_members(me, &commitments.keys().copied().collect())?;
        if commitments.get(&me.id()) != Some(&self.bundle.nonce_commitment()) {
            return Err(Abort::OwnKeys);
        }
        let list = graph::member_list(&me.header, &commitments);
        let reveal = Reveal::sign(&me.identity, &list, &self.secrets.nonce);
        let Self { secrets, bundle } = self;
        Ok((Revealed { secrets, bundle, commitments, list }, DeviceBody::Reveal(reveal)))
    }
}

/// The nonce is revealed. The graph is unknown.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(super) struct Revealed {
    secrets: Secrets,
    bundle: KeyBundle,
    commitments: BTreeMap<DeviceId, Sha256Digest>,
    list: Sha256Digest,
}

impl Revealed {
    /// Computes the graph from the list of members and the nonces of those that determine it. More
    /// than half of the cohort must have signed the list.
    pub(super) fn on_reveals(
        mut self,
        me: &LocalDevice,
        reveals: &BTreeMap<DeviceId, Reveal>,
    ) -> Result<Placed, Abort> {
        let rule = me.params.graph;
        let drawers = rule.drawers(me.params.cohort, &self.commitments);
        if let Some(silent) = drawers.iter().find(|id| !reveals.contains_key(id))
            && !rule.forgives_silence()
        {
            return Err(Abort::Withheld(silent));
        }
        for (&id, reveal) in reveals {
            let commitment = self.commitments.get(&id).ok_or(Abort::UnknownDevice(id))?;
            let is_checked = me.policy.defences.has(Defence::NonceCommitment);
            if is_checked && !same(commitment, &nonce_commitment(&me.header, id, reveal.nonce())) {
                return Err(Abort::BadCommitment(id));
            }
        }
        let (have, need) = (reveals.len(), rule.list_quorum(me.params.cohort));
        if have < need && me.policy.defences.has(Defence::ListQuorum) {
            return Err(Abort::TooFew { have, need });
        }
        me.check_signatures(reveals.iter().map(|(&id, reveal)| reveal.signed(&self.list, id)))?;
        if rule.forgives_silence() {
            self.commitments.retain(|id, _| reveals.contains_key(id));
        }
        let members: DeviceSet = self.commitments.keys().copied().collect();
        check_members(me, &members)?;
        let seed = graph::seed(&self.list, &drawers, reveals);
        let graph = me.graph(&members, &seed);
        let transcript = RoundTranscript::new(&seed, &self.commitments);
        let Self { secrets, bundle, commitments, .. } = self;
        Ok(Placed { secrets, bundle, commitments, members, graph, transcript })
    }
}

impl Revealed {
    /// Returns the number of nonces that an honest server sends.
    pub(super) fn nonces(&self, me: &LocalDevice) -> usize {
        let (rule, cohort) = (me.params.graph, me.params.cohort);
        rule.drawers(cohort, &self.commitments).len().max(rule.list_quorum(cohort))
    }
}

/// The neighbours are known. Their keys are unknown.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(super) struct Placed {
    secrets: Secrets,
    bundle: KeyBundle,
    commitments: BTreeMap<DeviceId, Sha256Digest>,
    members: DeviceSet,
    graph: Graph,
    transcript: RoundTranscript,
}

impl Placed {
    /// Returns the number of neighbours.
    pub(super) fn degree(&self) -> usize {
        self.graph.degree()
    }

    pub(super) fn on_keys(
        self,
        me: &LocalDevice,
        keys: BTreeMap<DeviceId, KeyBundle>,
    ) -> Result<(Sharing, DeviceBody), Abort> {
        let neighbours: DeviceSet = self.graph.neighbours(me.id()).into_iter().collect();
        if let Some(missing) = neighbours.iter().find(|id| !keys.contains_key(id)) {
            return Err(Abort::MissingKeys(missing));
        }
        for (&id, bundle) in &keys {
            if !neighbours.contains(id) {
                return Err(Abort::UnknownDevice(id));
            }
            let listed = self.commitments.get(&id) == Some(&bundle.nonce_commitment());
            if !listed && me.policy.defences.has(Defence::BundleOnList) {
                return Err(Abort::BadCommitment(id));
            }
        }
        check_bundles(me, &keys)?;
        let member = Member::new(me.id(), &self.graph, self.members, keys, self.transcript);
        Sharing::new(me, member, &self.bundle, self.secrets)
    }
}

/// Checks the members of the round: on the roster, enough of the announced cohort, not too many,
/// including this device.
fn check_members(me: &LocalDevice, members: &DeviceSet) -> Result<(), Abort> {
    let (have, cohort) = (members.len(), me.params.cohort as usize);
    if have > cohort {
        return Err(Abort::TooMany { have, cohort });
    }
    let of_cohort = match me.policy.defences.has(Defence::MembersOfCohort) {
        true => me.params.graph.min_members(me.params.cohort),
        false => 0,
    };
    let of_owner = if me.policy.defences.has(Defence::MinMembers) { me.policy.min_members } else { 0 };
    let need = of_owner.max(of_cohort);
    if have < need {
        return Err(Abort::TooFew { have, need });
    }
    if let Some(stranger) = members.iter().find(|&id| !me.roster.contains(id)) {
        return Err(Abort::UnknownDevice(stranger));
    }
    if !members.contains(me.id()) {
        return Err(Abort::LeftOut);
    }
    check_draw(me, members)
}

/// Checks that at most the allowed share of drawn devices was left out.
fn check_draw(me: &LocalDevice, members: &DeviceSet) -> Result<(), Abort> {
    match (me.policy.max_left_out, me.left_out(members)) {
        (None, _) => Ok(()),
        (Some(share), Some(left_out)) if left_out.is_within(share) => Ok(()),
        (Some(_), left_out) => Err(Abort::NotDrawn(left_out)),
    }
}

fn check_bundles(me: &LocalDevice, keys: &BTreeMap<DeviceId, KeyBundle>) -> Result<(), Abort> {
    if let Some((&id, _)) = keys.iter().find(|(_, bundle)| bundle.slots() != me.params.slots) {
        return Err(Abort::BadSignature(id));
    }
    me.check_signatures(keys.iter().map(|(&id, bundle)| bundle.signed(&me.header, id)))
}
