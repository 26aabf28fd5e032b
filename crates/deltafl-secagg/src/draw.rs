//! Cohorts that the server must draw instead of choosing them.
//!
//! The server commits to a hash chain before the authority signs the roster. The roster contains
//! the commitment. The draw of round r opens link r of the chain:
//!
//! ```text
//! v_T = secret,  v_r = H(v_(r+1)),  commitment = v_0
//! order of round r: by increasing H(salt ‖ r ‖ v_r ‖ id), over all ids of the roster
//! ```
//!
//! The salt is the digest of the signed roster including its signature, which is unpredictable when
//! the chain is created. Therefore each roster and round determine one order. The server cannot
//! choose it, a device cannot predict it, and every member of a cohort can verify it.
//!
//! A cohort consists of the first reachable devices in that order. Devices before the last member
//! that are not members were left out. A device limits their share ([`DrawCommitment::left_out`]).
//! If a share β may be left out, m members contain at most the accomplices among the first m/(1−β)
//! devices of the order. [`chance_of_more`] returns the probability that these are more than c.

use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::graph::{Permille, parameters};
use crate::identity::DeviceId;
use crate::keys::same;
use crate::message::DeviceSet;
use crate::transcript::{Hasher, Sha256Digest};

/// The last round that a chain can draw. Verifying a draw takes one hash per earlier round.
pub const MAX_ROUND: u64 = 1 << 17;

/// The server's secret hash chain. Each draw opens one link.
#[derive(Zeroize, ZeroizeOnDrop)]
pub struct DrawChain([u8; 32]);

/// A link of the chain, which opens the draw of one round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrawOpening(pub Sha256Digest);

/// The data on a roster from which devices verify draws.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrawCommitment {
    /// The server's commitment to its chain.
    pub commitment: Sha256Digest,
    /// The digest of the signed roster, including its signature.
    pub salt: Sha256Digest,
}

/// The number of devices drawn up to the last member, and how many of them were left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeftOut {
    /// The devices drawn up to the last member.
    pub drawn: usize,
    /// The drawn devices that are not members.
    pub left_out: usize,
}

impl DrawChain {
    /// Creates a chain from 32 secret random bytes. Keep them as long as the roster is in use.
    pub fn new(secret: [u8; 32]) -> Self {
        Self(secret)
    }

    /// Returns the commitment for the roster.
    pub fn commitment(&self) -> Sha256Digest {
        links(self.0, MAX_ROUND)
    }

    /// Returns the opening of a round's draw, or `None` if the round is out of range.
    pub fn opening(&self, round: u64) -> Option<DrawOpening> {
        (1..=MAX_ROUND).contains(&round).then(|| DrawOpening(links(self.0, MAX_ROUND - round)))
    }
}

impl std::fmt::Debug for DrawChain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DrawChain(..)")
    }
}

fn links(value: Sha256Digest, count: u64) -> Sha256Digest {
    (0..count).fold(value, |value, _| Hasher::new("draw-chain").digest(&value).finish())
}

impl DrawCommitment {
    /// Returns true if `opening` is the correct link for this round.
    pub fn verifies(&self, round: u64, opening: &DrawOpening) -> bool {
        (1..=MAX_ROUND).contains(&round) && same(&links(opening.0, round), &self.commitment)
    }

    /// Returns the devices of a roster in the order of a round.
    pub fn order(
        &self,
        round: u64,
        opening: &DrawOpening,
        devices: impl IntoIterator<Item = DeviceId>,
    ) -> Vec<DeviceId> {
        let mut keyed: Vec<(Sha256Digest, DeviceId)> =
            devices.into_iter().map(|id| (self.key(round, opening, id), id)).collect();
        keyed.sort_unstable();
        keyed.into_iter().map(|(_, id)| id).collect()
    }

    /// Counts the devices that were drawn before the last member but left out.
    pub fn left_out(
        &self,
        round: u64,
        opening: &DrawOpening,
        roster: impl IntoIterator<Item = DeviceId>,
        members: &DeviceSet,
    ) -> LeftOut {
        let last = members.iter().map(|id| self.key(round, opening, id)).max();
        let before = |id: &DeviceId| last.is_some_and(|last| self.key(round, opening, *id) <= last);
        let drawn = roster.into_iter().filter(before).count();
        LeftOut { drawn, left_out: drawn.saturating_sub(members.len()) }
    }

    fn key(&self, round: u64, opening: &DrawOpening, id: DeviceId) -> Sha256Digest {
        Hasher::new("draw").digest(&self.salt).number(round).digest(&opening.0).device(id).finish()
    }
}

impl LeftOut {
    /// Returns true if at most `share` of the drawn devices were left out.
    pub fn is_within(&self, share: Permille) -> bool {
        self.left_out as u64 * 1000 <= self.drawn as u64 * u64::from(share.get())
    }
}

/// Returns the first m reachable devices of an order.
pub fn cohort(order: &[DeviceId], m: usize, reachable: impl Fn(DeviceId) -> bool) -> DeviceSet {
    order.iter().copied().filter(|&id| reachable(id)).take(m).collect()
}

/// Returns the probability that a cohort of m contains more than c accomplices, if C of N roster
/// devices are accomplices and a share β of the drawn devices may be left out: P[Hypergeometric(N,
/// C, ⌊m/(1−β)⌋) > c].
pub fn chance_of_more(roster: usize, accomplices: usize, m: usize, share: Permille, c: usize) -> f64 {
    let drawn = (m * 1000 / (1000 - usize::from(share.get()))).min(roster);
    parameters::tails(roster, accomplices, drawn).get(c + 1).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND: u64 = 7;

    fn draws(secret: u8, salt: u8) -> (DrawCommitment, DrawOpening) {
        let chain = DrawChain::new([secret; 32]);
        let opening = chain.opening(ROUND).expect("not the last");
        (DrawCommitment { commitment: chain.commitment(), salt: [salt; 32] }, opening)
    }

    fn ids(n: u32) -> Vec<DeviceId> {
        (0..n).map(DeviceId).collect()
    }

    #[test]
    fn a_round_has_one_opening() {
        let (draws, opening) = draws(1, 2);
        assert!(draws.verifies(ROUND, &opening));
        assert!(!draws.verifies(ROUND + 1, &opening), "a different round");
        assert!(!draws.verifies(ROUND - 1, &opening));
        assert!(!self::draws(3, 2).0.verifies(ROUND, &opening), "a different chain");
        let mut changed = opening;
        changed.0[0] ^= 1;
        assert!(!draws.verifies(ROUND, &changed));
        assert!(!draws.verifies(0, &DrawOpening(draws.commitment)), "the commitment is not an opening");
        assert_eq!(DrawChain::new([1; 32]).opening(0), None);
        assert_eq!(DrawChain::new([1; 32]).opening(MAX_ROUND + 1), None);
    }

    #[test]
    fn the_order_depends_on_the_roster_and_the_round() {
        let (draws, opening) = draws(1, 2);
        let order = draws.order(ROUND, &opening, ids(50));
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, ids(50), "every device once");
        assert_ne!(order, self::draws(1, 3).0.order(ROUND, &opening, ids(50)), "a different roster");
        let next = DrawChain::new([1; 32]).opening(ROUND + 1).expect("not the last");
        assert_ne!(order, draws.order(ROUND + 1, &next, ids(50)), "a different round");
        // New devices do not change the relative order of the others.
        let longer = draws.order(ROUND, &opening, ids(60));
        let old: Vec<DeviceId> = longer.into_iter().filter(|id| id.0 < 50).collect();
        assert_eq!(old, order);
    }

    #[test]
    fn left_out_devices_are_counted_up_to_the_last_member() {
        let (draws, opening) = draws(1, 2);
        let order = draws.order(ROUND, &opening, ids(50));
        let gone = [order[1], order[4], order[5]];
        let members = cohort(&order, 10, |id| !gone.contains(&id));
        let left_out = draws.left_out(ROUND, &opening, ids(50), &members);
        assert_eq!(left_out, LeftOut { drawn: 13, left_out: 3 });
        assert!(left_out.is_within(Permille::new(231).unwrap()));
        assert!(!left_out.is_within(Permille::new(230).unwrap()));
        // A cohort of only the last device.
        let picked: DeviceSet = [order[49]].into_iter().collect();
        assert_eq!(draws.left_out(ROUND, &opening, ids(50), &picked), LeftOut { drawn: 50, left_out: 49 });
        assert_eq!(draws.left_out(ROUND, &opening, ids(50), &DeviceSet::default()).drawn, 0);
    }

    /// In each of 1,000 rounds the server selects as many accomplices as it may.
    #[test]
    fn leaving_out_devices_gains_no_more_accomplices_than_the_bound() {
        let (n, accomplices, m, half) = (1000, 50, 30, Permille::new(500).unwrap());
        let chain = DrawChain::new([4; 32]);
        let draws = DrawCommitment { commitment: chain.commitment(), salt: [5; 32] };
        let secret = |round| DrawOpening(Hasher::new("test").number(round).finish());
        let rounds = 1000;
        let more = (0..rounds).filter(|&round| {
            let order = draws.order(round, &secret(round), ids(n));
            let among = order[..2 * m].iter().filter(|id| id.0 < accomplices).count();
            among > 6
        });
        let seen = more.count() as f64 / rounds as f64;
        let bound = chance_of_more(n as usize, accomplices as usize, m, half, 6);
        assert!((bound - seen).abs() < 0.02, "{bound} {seen}");
        assert!(bound < 0.04);
    }
}
