//! Share keys: each device's secrets, split among its circle and sealed for each neighbour.

use std::collections::BTreeMap;

use prost::bytes::Bytes;
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use super::abort::Abort;
use super::enrolment::Me;
use super::joining::{Secrets, SlotSecrets};
use super::member::Member;
use super::slot::Idle;
use crate::field::Element;
use crate::identity::DeviceId;
use crate::keys::SharedSecret;
use crate::message::wire::BOX_SLOT_LEN;
use crate::message::{DeviceBody, DeviceSet, KeyBundle};
use crate::shamir::{SHARE_LEN, Share, split};

/// The shares of both secrets of one device in one slot. At most one of them ever leaves this device.
#[derive(Zeroize, ZeroizeOnDrop)]
#[cfg_attr(test, derive(Clone))]
pub(super) struct SharePair {
    pub(super) mask_key: Share,
    pub(super) seed: Share,
}

/// What a device holds for one slot: its own secrets, and shares of those of its circle.
#[cfg_attr(test, derive(Clone))]
pub(super) struct SlotHoldings {
    pub(super) secrets: SlotSecrets,
    pub(super) shares: BTreeMap<DeviceId, SharePair>,
}

impl std::fmt::Debug for SlotHoldings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SlotHoldings({} devices)", self.shares.len())
    }
}

/// The shares for one neighbour, slot after slot, before they are sealed.
type Letter = Zeroizing<Vec<u8>>;

/// The device's shares are out; those of the neighbours are not in yet.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(super) struct Sharing {
    member: Member,
    pairs: BTreeMap<DeviceId, SharedSecret>,
    slots: Vec<SlotHoldings>,
}

impl Sharing {
    pub(super) fn new(me: &Me, member: Member, mut secrets: Secrets) -> Result<(Self, DeviceBody), Abort> {
        let pairs = agree(&member, &secrets)?;
        let circle: Vec<DeviceId> = member.circle().collect();
        if circle.len() < member.threshold {
            return Err(Abort::TooFew { have: circle.len(), need: member.threshold });
        }
        // Of their full length from the start: a vector that grows leaves copies of its contents behind.
        let letter = || Letter::new(Vec::with_capacity(secrets.slots.len() * BOX_SLOT_LEN));
        let mut letters: BTreeMap<DeviceId, Letter> = pairs.keys().map(|&id| (id, letter())).collect();
        let mut slots = Vec::with_capacity(secrets.slots.len());
        for slot in std::mem::take(&mut secrets.slots) {
            let mut own = BTreeMap::new();
            for (id, pair) in split_slot(&circle, member.threshold, &slot, &mut secrets) {
                match letters.get_mut(&id) {
                    Some(letter) => pair.write(letter),
                    None => drop(own.insert(id, pair)),
                }
            }
            slots.push(SlotHoldings { secrets: slot, shares: own });
        }
        let seal = |to: DeviceId, letter: &Letter| pairs[&to].share_box(&me.header, me.id(), to).seal(letter);
        let boxes = letters.iter().map(|(&to, letter)| (to, Bytes::from(seal(to, letter))));
        let body = DeviceBody::Shares(boxes.collect());
        Ok((Self { member, pairs, slots }, body))
    }

    /// Opens the boxes of the neighbours that got this far, and says whose did not open. A device without a
    /// share of a liar's secrets goes on: it is the liar that has to leave.
    pub(super) fn on_shares(
        mut self,
        me: &Me,
        boxes: &BTreeMap<DeviceId, Bytes>,
    ) -> Result<(Idle, DeviceBody), Abort> {
        let mut complaints = Vec::new();
        for (&from, sealed) in boxes {
            let pair = self.pairs.get(&from).ok_or(Abort::UnknownDevice(from))?;
            let letter = pair.share_box(&me.header, from, me.id()).open(sealed);
            let Some(shares) = letter.and_then(|letter| self.read(&letter)) else {
                complaints.push(from);
                continue;
            };
            for (slot, pair) in self.slots.iter_mut().zip(shares) {
                slot.shares.insert(from, pair);
            }
        }
        let (have, need) = (boxes.len() + 1 - complaints.len(), self.member.threshold);
        if have < need {
            return Err(Abort::TooFew { have, need });
        }
        let complaints: DeviceSet = complaints.into_iter().collect();
        Ok((Idle::new(self.member, complaints.clone(), self.slots), DeviceBody::Confirm(complaints)))
    }

    /// The shares in a letter, slot after slot; `None` when it does not hold them.
    fn read(&self, letter: &Letter) -> Option<Vec<SharePair>> {
        if letter.len() != self.slots.len() * BOX_SLOT_LEN {
            return None;
        }
        // Of its full length from the start, as a letter is.
        let mut shares = Vec::with_capacity(self.slots.len());
        for bytes in letter.chunks_exact(BOX_SLOT_LEN) {
            shares.push(SharePair::read(bytes)?);
        }
        Some(shares)
    }

    /// The number of neighbours.
    pub(super) fn degree(&self) -> usize {
        self.member.neighbours.len()
    }
}

/// The secret shared with each neighbour, for the boxes.
fn agree(member: &Member, secrets: &Secrets) -> Result<BTreeMap<DeviceId, SharedSecret>, Abort> {
    let agree = |(&id, bundle): (&DeviceId, &KeyBundle)| {
        let shared = secrets.encryption.agree(&bundle.encryption_key());
        shared.map(|shared| (id, shared)).map_err(|_| Abort::BadKey(id))
    };
    member.neighbours.iter().map(agree).collect()
}

fn split_slot(
    circle: &[DeviceId],
    threshold: usize,
    slot: &SlotSecrets,
    secrets: &mut Secrets,
) -> Vec<(DeviceId, SharePair)> {
    let points: Vec<Element> = circle.iter().map(|id| id.point()).collect();
    let mut split = |secret: &[u8; 32]| {
        split(secret, &points, threshold, &mut secrets.stream).expect("the circle has t distinct points")
    };
    let (mask_keys, seeds) = (split(slot.mask.secret()), split(&slot.seed.0));
    let pairs = mask_keys.into_iter().zip(seeds).map(|(mask_key, seed)| SharePair { mask_key, seed });
    circle.iter().copied().zip(pairs).collect()
}

impl SharePair {
    fn write(&self, letter: &mut Letter) {
        letter.extend_from_slice(&self.mask_key.to_bytes());
        letter.extend_from_slice(&self.seed.to_bytes());
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let (mask_key, seed) = bytes.split_at_checked(SHARE_LEN)?;
        let share = |bytes: &[u8]| Share::from_bytes(bytes.try_into().ok()?);
        Some(Self { mask_key: share(mask_key)?, seed: share(seed)? })
    }
}
