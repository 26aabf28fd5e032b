//! Secret sharing: agrees on keys with each neighbour, splits each secret among the circle, seals
//! the shares, and deposits the keys that the server needs if this device drops out.

use std::collections::BTreeMap;

use prost::bytes::{BufMut, Bytes, BytesMut};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use super::abort::Abort;
use super::joining::{Secrets, SlotSecrets};
use super::member::Member;
use super::participant::LocalDevice;
use super::slot::Idle;
use crate::field::FieldElement;
use crate::identity::DeviceId;
use crate::keys::{
    AgreementKeys, AgreementPair, AgreementParty, CIPHERTEXT_LEN, Deposit, PairKey, PairSecret, PairSlot,
    PartialAgreement, Secret,
};
use crate::message::wire::BOX_SLOT_LEN;
use crate::message::{DeviceBody, DeviceSet, KeyBundle};
use crate::shamir::{SHARE_LEN, SecretShare, split};

/// The shares of both secrets of one device in one slot. The device reveals at most one of them.
#[derive(Zeroize, ZeroizeOnDrop)]
#[cfg_attr(test, derive(Clone))]
pub(super) struct SharePair {
    pub(super) deposit_key: SecretShare,
    pub(super) seed: SecretShare,
}

/// The device's data for one slot: its seed, its key with each neighbour, and shares of the secrets
/// of its circle.
#[cfg_attr(test, derive(Clone))]
pub(super) struct SlotHoldings {
    pub(super) seed: Secret,
    pub(super) pairs: BTreeMap<DeviceId, PairKey>,
    pub(super) shares: BTreeMap<DeviceId, SharePair>,
}

impl std::fmt::Debug for SlotHoldings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SlotHoldings({} devices)", self.shares.len())
    }
}

/// The unsealed shares for one neighbour, for all slots.
type SharesForNeighbour = Zeroizing<Vec<u8>>;

/// The device has sent its shares and waits for those of its neighbours.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(super) struct Sharing {
    member: Member,
    own: AgreementParty,
    agreement: AgreementKeys,
    halves: BTreeMap<DeviceId, PartialAgreement>,
    /// One entry per slot.
    deposit_keys: Vec<Secret>,
    slots: Vec<SlotHoldings>,
    /// The deposits by neighbour, or `None` if the neighbour's box did not open.
    opened: BTreeMap<DeviceId, Option<Bytes>>,
}

impl Sharing {
    pub(super) fn new(
        me: &LocalDevice,
        member: Member,
        own: &KeyBundle,
        mut secrets: Secrets,
    ) -> Result<(Self, DeviceBody), Abort> {
        let own = AgreementParty { id: me.id(), keys: own.digest() };
        let halves = agree(&member, &mut secrets)?;
        let circle: Vec<DeviceId> = member.circle().collect();
        if circle.len() < member.threshold {
            return Err(Abort::TooFew { have: circle.len(), need: member.threshold });
        }
        // Allocate the full length at once: a growing vector would leave copies of secrets in
        // memory.
        let count = secrets.slots.len();
        let letter = || SharesForNeighbour::new(Vec::with_capacity(count * BOX_SLOT_LEN));
        let mut letters: BTreeMap<DeviceId, SharesForNeighbour> =
            halves.keys().map(|&id| (id, letter())).collect();
        let (mut deposit_keys, mut slots) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for slot in std::mem::take(&mut secrets.slots) {
            let mut shares = BTreeMap::new();
            for (id, pair) in split_slot(&circle, member.threshold, &slot, &mut secrets) {
                match letters.get_mut(&id) {
                    Some(letter) => pair.write(letter),
                    None => drop(shares.insert(id, pair)),
                }
            }
            deposit_keys.push(slot.deposit);
            slots.push(SlotHoldings { seed: slot.seed, pairs: BTreeMap::new(), shares });
        }
        let opened = BTreeMap::new();
        let sharing = Self { member, own, agreement: secrets.agreement, halves, deposit_keys, slots, opened };
        let boxes = letters.iter().map(|(&to, letter)| (to, sharing.seal(me, to, letter)));
        let body = DeviceBody::Shares(boxes.collect());
        Ok((sharing, body))
    }

    /// Returns the ciphertext for a neighbour and the sealed box with its shares.
    fn seal(&self, me: &LocalDevice, to: DeviceId, letter: &SharesForNeighbour) -> Bytes {
        let half = &self.halves[&to];
        let sealed = half.share_box(&self.pair(me, to)).seal(letter);
        let mut bytes = BytesMut::with_capacity(CIPHERTEXT_LEN + sealed.len());
        bytes.put_slice(half.ciphertext());
        bytes.put_slice(&sealed);
        bytes.freeze()
    }

    fn pair<'a>(&self, me: &'a LocalDevice, peer: DeviceId) -> AgreementPair<'a> {
        let keys = self.member.neighbours[&peer].digest();
        AgreementPair { params: &me.header, own: self.own, peer: AgreementParty { id: peer, keys } }
    }

    /// Opens some of the boxes. Each such message must contain new boxes, so there are at most as
    /// many messages as neighbours.
    pub(super) fn on_early_shares(
        mut self,
        me: &LocalDevice,
        boxes: &BTreeMap<DeviceId, Bytes>,
    ) -> Result<Self, Abort> {
        if boxes.is_empty() {
            return Err(Abort::Unexpected);
        }
        self.open_all(me, boxes)?;
        Ok(self)
    }

    /// Opens the remaining boxes, reports the boxes that did not open, and deposits the keys shared
    /// with the other neighbours. A device that lacks a share of a misbehaving neighbour reports it
    /// and stays. The server must leave one of the two out before any device masks.
    pub(super) fn on_shares(
        mut self,
        me: &LocalDevice,
        boxes: &BTreeMap<DeviceId, Bytes>,
    ) -> Result<(Idle, DeviceBody), Abort> {
        self.open_all(me, boxes)?;
        let (mut complaints, mut deposits) = (Vec::new(), BTreeMap::new());
        for (from, opened) in self.opened {
            match opened {
                Some(deposit) => drop(deposits.insert(from, deposit)),
                None => complaints.push(from),
            }
        }
        let (have, need) = (deposits.len() + 1, self.member.threshold);
        if have < need {
            return Err(Abort::TooFew { have, need });
        }
        let complaints: DeviceSet = complaints.into_iter().collect();
        Ok((Idle::new(self.member, self.slots), DeviceBody::Confirm { complaints, deposits }))
    }

    /// Opens boxes of neighbours whose boxes have not arrived before.
    fn open_all(&mut self, me: &LocalDevice, boxes: &BTreeMap<DeviceId, Bytes>) -> Result<(), Abort> {
        for (&from, sealed) in boxes {
            if !self.halves.contains_key(&from) {
                return Err(Abort::UnknownDevice(from));
            }
            if self.opened.contains_key(&from) {
                return Err(Abort::Unexpected);
            }
            let opened = self.open(me, from, sealed);
            let deposit = opened.map(|(secret, shares)| self.hold(me, from, &secret, shares));
            self.opened.insert(from, deposit);
        }
        Ok(())
    }

    /// Returns the pair's secret and the shares in the neighbour's box, or `None` if it does not
    /// open.
    fn open(&self, me: &LocalDevice, from: DeviceId, sealed: &[u8]) -> Option<(PairSecret, Vec<SharePair>)> {
        let (ciphertext, sealed) = sealed.split_first_chunk::<CIPHERTEXT_LEN>()?;
        let whole = self.agreement.finish(&self.pair(me, from), self.halves.get(&from)?, ciphertext);
        let letter = whole.share_box.open(sealed)?;
        Some((whole.secret, self.read(&letter)?))
    }

    /// Stores the contents of a neighbour's box. Returns the deposits for the server, one per slot.
    fn hold(
        &mut self,
        me: &LocalDevice,
        from: DeviceId,
        secret: &PairSecret,
        shares: Vec<SharePair>,
    ) -> Bytes {
        let mut deposits = BytesMut::with_capacity(self.slots.len() * Deposit::LEN);
        let slots = self.slots.iter_mut().zip(&self.deposit_keys).zip(shares);
        for (slot, ((holdings, key), pair)) in (0u32..).zip(slots) {
            let place = PairSlot { params: &me.header, slot, pair: (me.id(), from) };
            let pair_key = secret.in_slot(&place);
            deposits.put_slice(&pair_key.deposit(&place, key).to_bytes());
            holdings.pairs.insert(from, pair_key);
            holdings.shares.insert(from, pair);
        }
        deposits.freeze()
    }

    /// Decodes the shares of all slots, or returns `None` if they are malformed.
    fn read(&self, letter: &SharesForNeighbour) -> Option<Vec<SharePair>> {
        if letter.len() != self.slots.len() * BOX_SLOT_LEN {
            return None;
        }
        // Allocate the full length at once, for the same reason as above.
        let mut shares = Vec::with_capacity(self.slots.len());
        for bytes in letter.chunks_exact(BOX_SLOT_LEN) {
            shares.push(SharePair::read(bytes)?);
        }
        Some(shares)
    }

    /// Returns the number of neighbours.
    pub(super) fn degree(&self) -> usize {
        self.member.neighbours.len()
    }
}

/// Starts the key agreement with each neighbour.
fn agree(member: &Member, secrets: &mut Secrets) -> Result<BTreeMap<DeviceId, PartialAgreement>, Abort> {
    let Secrets { agreement, stream, .. } = secrets;
    let mut begin = |(&id, bundle): (&DeviceId, &KeyBundle)| {
        let half = agreement.begin(bundle.agreement_key(), stream);
        half.map(|half| (id, half)).map_err(|_| Abort::BadKey(id))
    };
    member.neighbours.iter().map(&mut begin).collect()
}

fn split_slot(
    circle: &[DeviceId],
    threshold: usize,
    slot: &SlotSecrets,
    secrets: &mut Secrets,
) -> Vec<(DeviceId, SharePair)> {
    let points: Vec<FieldElement> = circle.iter().map(|id| id.point()).collect();
    let mut split = |secret: &[u8; 32]| {
        split(secret, &points, threshold, &mut secrets.stream)
            .expect("the circle has at least t distinct points")
    };
    let (deposit_keys, seeds) = (split(&slot.deposit.0), split(&slot.seed.0));
    let pairs = deposit_keys.into_iter().zip(seeds);
    let pairs = pairs.map(|(deposit_key, seed)| SharePair { deposit_key, seed });
    circle.iter().copied().zip(pairs).collect()
}

impl SharePair {
    fn write(&self, letter: &mut SharesForNeighbour) {
        letter.extend_from_slice(&self.deposit_key.to_bytes());
        letter.extend_from_slice(&self.seed.to_bytes());
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let (deposit_key, seed) = bytes.split_at_checked(SHARE_LEN)?;
        let share = |bytes: &[u8]| SecretShare::from_bytes(bytes.try_into().ok()?);
        Some(Self { deposit_key: share(deposit_key)?, seed: share(seed)? })
    }
}
