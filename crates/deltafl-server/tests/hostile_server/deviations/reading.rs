//! Decides which sums of answers a server can compute from everything that it has received.
//!
//! A masked answer is the answer plus one self mask plus or minus one mask per pair. The server
//! knows a mask if it can recover the secret behind it from shares. Let Y be the received vectors
//! and K the known masks. The server reads a combination of answers exactly if the same combination
//! of Y, minus a combination of K, contains no mask. The masks are pseudorandom, and the entries of
//! the answers that are compared here are even. So the combination is readable if and only if its
//! lowest bits are zero in every entry, up to a probability of 2^(rows − entries). Gaussian
//! elimination over the lowest bits finds all of them.
//!
//! Every readable combination must be a sum over at least the minimum of devices, and the update of
//! a device in a round may be in one of them only. Two histograms of one search may share a device:
//! the page on lying servers describes what this reveals.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use deltafl::question::{Ask, Question};
use deltafl::selection::DeviceFacts;
use deltafl_secagg::identity::DeviceId;
use deltafl_secagg::known_masks::MaskOwner;
use deltafl_secagg::message::{DeviceBody, DeviceMessage, KeyBundle, SecretKind};
use deltafl_secagg::params::{RoundId, RoundParams, SlotSpec};
use deltafl_secagg::ring::{Ring, RingVector};
use deltafl_secagg::shamir::SecretShare;

/// The first entry that is compared. The entries before it contain counts of losses.
const FIRST: usize = 64;
/// The number of entries that are compared.
pub(super) const ENTRIES: usize = 960;

/// The lowest bits of the compared entries.
type Bits = [u64; ENTRIES / 64];

/// A masked answer.
struct MaskedAnswer {
    device: DeviceId,
    round: RoundId,
    slot: u32,
    spec: SlotSpec,
    /// The question that the device answered.
    question: Question,
    bits: Bits,
}

/// A secret: the number and the session of the round, the slot, the owner, and whether it is the
/// seed.
type ShareKey = (u64, [u8; 16], u32, DeviceId, bool);

/// Everything that a server has received.
#[derive(Default)]
pub(super) struct Haul {
    /// The parameters of all invitations.
    pub(super) invitations: Vec<RoundParams>,
    bundles: Vec<(RoundId, DeviceId, KeyBundle)>,
    deposits: Vec<(RoundId, DeviceId, BTreeMap<DeviceId, Bytes>)>,
    answers: Vec<MaskedAnswer>,
    /// Shares with their holders.
    shares: BTreeMap<ShareKey, Vec<(DeviceId, SecretShare)>>,
}

/// A combination of answers that the server must not be able to compute.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// A sum over too few devices.
    Few(BTreeSet<DeviceId>),
    /// Two sums that contain the update of one device.
    Twice(DeviceId),
}

impl Haul {
    /// Adds a message of a device. `question` is the question that the device answers, if the
    /// message is an answer.
    pub(super) fn take(&mut self, from: DeviceId, message: &DeviceMessage, question: Option<Question>) {
        let round = message.round;
        match &message.body {
            DeviceBody::Advertise(bundle) => self.bundles.push((round, from, bundle.clone())),
            DeviceBody::Confirm { deposits, .. } => self.deposits.push((round, from, deposits.clone())),
            DeviceBody::MaskedInput { slot, input, .. } => {
                let question = question.expect("a device answers questions");
                let len = input.len() / 8;
                let context = question.digest();
                let spec = SlotSpec::new(*slot, Ring::Z64, len as u32, context.as_bytes());
                let mut vector = RingVector::zeros(Ring::Z64, len);
                assert!(vector.add_le_bytes(input));
                let bits = lowest(&vector);
                self.answers.push(MaskedAnswer { device: from, round, slot: *slot, spec, question, bits });
            }
            DeviceBody::Unmask { slot, shares, .. } => {
                for (&owner, (kind, share)) in shares {
                    let key = (round.round, round.session, *slot, owner, *kind == SecretKind::Seed);
                    let held = self.shares.entry(key).or_default();
                    if !held
                        .iter()
                        .any(|(holder, known)| *holder == from && known.to_bytes() == share.to_bytes())
                    {
                        held.push((from, share.clone()));
                    }
                }
            }
            _ => {}
        }
    }

    /// Returns the number of answers.
    pub(super) fn answers(&self) -> usize {
        self.answers.len()
    }

    /// Returns the lowest bits of all masks that the server knows and that occur in an answer.
    fn known_masks(&self) -> Vec<Bits> {
        let mut known = Vec::new();
        for (&(number, session, slot, id, is_seed), shares) in &self.shares {
            let round = RoundId { session, round: number };
            let kind = if is_seed { SecretKind::Seed } else { SecretKind::DepositKey };
            let owners = self.bundles.iter().filter(|(of, owner, _)| (*of, *owner) == (round, id));
            for (_, _, bundle) in owners {
                for params in self.invitations.iter().filter(|params| params.id == round) {
                    let owner = MaskOwner { params, bundle, id, slot };
                    let Some(secret) = owner.recover(kind, shares) else { continue };
                    let in_slot = |answer: &&MaskedAnswer| answer.round == round && answer.slot == slot;
                    for answer in self.answers.iter().filter(in_slot) {
                        if is_seed && answer.device == id {
                            known.push(lowest(&owner.self_mask(&answer.spec, &secret)));
                        } else if !is_seed {
                            // The masks of both ends, under the question of either.
                            let deposits =
                                self.deposits.iter().filter(|(of, by, _)| (*of, *by) == (round, id));
                            let peers = deposits.flat_map(|(_, _, deposits)| deposits);
                            let of_pair = |peer: DeviceId| answer.device == id || answer.device == peer;
                            for (&peer, deposit) in peers.filter(|(peer, _)| of_pair(**peer)) {
                                let mask = owner.pair_mask(&answer.spec, peer, deposit, &secret);
                                known.extend(mask.as_ref().map(lowest));
                            }
                        }
                    }
                }
            }
        }
        known.sort_unstable();
        known.dedup();
        known
    }

    /// Returns the readable combinations of answers, in reduced form: a basis of all of them in
    /// which each has an answer that no other has.
    fn combinations(&self) -> Vec<u128> {
        assert!(self.answers.len() <= 128, "one bit per answer");
        let known = self.known_masks();
        assert!(known.len() + self.answers.len() + 200 < ENTRIES, "{} masks", known.len());
        let mut basis: Vec<(Bits, u128)> = Vec::new();
        let mut combinations = Vec::new();
        let answers = self.answers.iter().enumerate().map(|(i, answer)| (answer.bits, 1 << i));
        for (mut bits, mut combined) in known.into_iter().map(|bits| (bits, 0)).chain(answers) {
            for (pivot, with) in &basis {
                if leads(&bits, pivot) {
                    bits.iter_mut().zip(pivot).for_each(|(bit, other)| *bit ^= other);
                    combined ^= with;
                }
            }
            if bits == [0; ENTRIES / 64] {
                combinations.push(combined);
            } else {
                basis.push((bits, combined));
            }
        }
        reduced(combinations)
    }

    /// Returns the combinations that the server must not be able to compute, and the number of sums
    /// that it can.
    pub(super) fn readings(&self, minimum: usize, loss: impl Fn(DeviceId) -> f64) -> (Vec<Reading>, usize) {
        let combinations = self.combinations();
        let mut readings = Vec::new();
        // Updates by device and round. Those of nearly equal w and of several runs count as one.
        let mut updates: Vec<(DeviceId, u64)> = Vec::new();
        let mut sums: Vec<u128> = Vec::new();
        for combination in &combinations {
            let of = || self.answers.iter().enumerate().filter(|(i, _)| combination >> i & 1 == 1);
            let devices: BTreeSet<DeviceId> = of().map(|(_, answer)| answer.device).collect();
            if devices.len() < minimum {
                readings.push(Reading::Few(devices));
            }
            // Each query of a question is a sum of its own.
            let queries = of().map(|(_, answer)| answer.question.queries.len()).max().unwrap_or(0);
            for place in 0..queries {
                let mut sum = 0;
                for (_, MaskedAnswer { device, question, .. }) in of() {
                    let Some(query) = question.queries.get(place) else { continue };
                    let Ask::Update { weighting, .. } = &query.ask else { continue };
                    // A device outside of the tail adds zeros.
                    if weighting.share(&DeviceFacts { loss: loss(*device), steps: 1, examples: 1, group: 0 })
                        <= 0.0
                    {
                        continue;
                    }
                    let update = (*device, question.key.round);
                    let known = updates.iter().position(|other| *other == update);
                    sum ^= 1
                        << known.unwrap_or_else(|| {
                            updates.push(update);
                            updates.len() - 1
                        });
                }
                sums.push(sum);
            }
        }
        let sums = reduced(sums);
        for (i, (device, _)) in updates.iter().enumerate() {
            if sums.iter().filter(|sum| *sum >> i & 1 == 1).count() > 1 {
                readings.push(Reading::Twice(*device));
            }
        }
        (readings, combinations.len())
    }
}

/// Returns the lowest bits of the compared entries.
fn lowest(vector: &RingVector) -> Bits {
    let RingVector::Z64(entries) = vector else { panic!("answers are in Z64") };
    let mut bits = [0; ENTRIES / 64];
    for (i, entry) in entries[FIRST..FIRST + ENTRIES].iter().enumerate() {
        bits[i / 64] |= (entry & 1) << (i % 64);
    }
    bits
}

/// Returns true if the first set bit of `pivot` is set in `bits`.
fn leads(bits: &Bits, pivot: &Bits) -> bool {
    let word = pivot.iter().position(|word| *word != 0).expect("no row of the basis is zero");
    bits[word] & (1 << pivot[word].trailing_zeros()) != 0
}

/// Returns the reduced row echelon form without zero rows.
fn reduced(rows: Vec<u128>) -> Vec<u128> {
    let mut basis: Vec<u128> = Vec::new();
    for mut row in rows {
        for with in &basis {
            if row & lead(*with) != 0 {
                row ^= with;
            }
        }
        if row != 0 {
            basis.iter_mut().filter(|with| **with & lead(row) != 0).for_each(|with| *with ^= row);
            basis.push(row);
        }
    }
    basis
}

fn lead(row: u128) -> u128 {
    1 << row.trailing_zeros()
}
