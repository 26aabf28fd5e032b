//! Who is in a cohort: drawn, not chosen.
//!
//! The server commits to a chain of hashes before the authority signs the roster, and the commitment stands on the
//! roster. The draw of round r opens the r-th link:
//!
//! ```text
//! v_T = secret,  v_r = H(v_(r+1)),  commitment = v_0
//! order of round r: by increasing H(salt ‖ r ‖ v_r ‖ id), over all ids of the roster
//! ```
//!
//! The salt is what the authority signed, signature and all, which nobody could foresee when the chain was made. So
//! for a roster and a round there is one order. The server cannot choose it, a device cannot foresee it, and every
//! member of a cohort can check it.
//!
//! A cohort is the first devices in that order that can be reached. Those before the last of them that are not in
//! it were left out; a device insists that they are at most a share of the drawn ([`DrawCommitment::left_out`]). If a share β
//! may be left out, the accomplices among m members are no more than those among the first m/(1−β) of the order:
//! [`chance_of_more`] is the chance that these are more than c.

use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::graph::{Permille, parameters};
use crate::identity::DeviceId;
use crate::keys::same;
use crate::message::DeviceSet;
use crate::transcript::{Hasher, Sha256Digest};

/// The last round that a chain can draw. Checking a draw takes one hash per round before it.
pub const MAX_ROUND: u64 = 1 << 17;

/// The server's secret, of which each draw opens a link.
#[derive(Zeroize, ZeroizeOnDrop)]
pub struct DrawChain([u8; 32]);

/// A link of the chain, which opens the draw of one round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrawOpening(pub Sha256Digest);

/// What a roster says about draws.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrawCommitment {
    /// What the server committed to.
    pub commitment: Sha256Digest,
    /// The digest of the roster as the authority signed it, with the signature.
    pub salt: Sha256Digest,
}

/// How many devices were drawn until the last member, and how many of them are no members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeftOut {
    /// The drawn.
    pub drawn: usize,
    /// Those of them that were left out.
    pub left_out: usize,
}

impl DrawChain {
    /// The chain of a secret: 32 bytes at random, kept for as long as the roster is in use.
    pub fn new(secret: [u8; 32]) -> Self {
        Self(secret)
    }

    /// What goes on the roster.
    pub fn commitment(&self) -> Sha256Digest {
        links(self.0, MAX_ROUND)
    }

    /// What opens the draw of a round; `None` beyond the last.
    pub fn opening(&self, round: u64) -> Option<DrawOpening> {
        (1..=MAX_ROUND).contains(&round).then(|| DrawOpening(links(self.0, MAX_ROUND - round)))
    }
}

impl std::fmt::Debug for DrawChain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Chain(..)")
    }
}

fn links(value: Sha256Digest, count: u64) -> Sha256Digest {
    (0..count).fold(value, |value, _| Hasher::new("draw-chain").digest(&value).finish())
}

impl DrawCommitment {
    /// Whether this is what the server had to open in this round.
    pub fn verifies(&self, round: u64, opening: &DrawOpening) -> bool {
        (1..=MAX_ROUND).contains(&round) && same(&links(opening.0, round), &self.commitment)
    }

    /// The devices of a roster in the order of a round.
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

    /// Who was left out of these members.
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
    /// Whether at most this share of the drawn was left out.
    pub fn is_within(&self, share: Permille) -> bool {
        self.left_out as u64 * 1000 <= self.drawn as u64 * u64::from(share.get())
    }
}

/// The first devices in an order that can be reached, m at most.
pub fn cohort(order: &[DeviceId], m: usize, reachable: impl Fn(DeviceId) -> bool) -> DeviceSet {
    order.iter().copied().filter(|&id| reachable(id)).take(m).collect()
}

/// The chance that more than c of a cohort of m are accomplices, when C of a roster of N are, and a share β of the
/// drawn may be left out: P[Hypergeometric(N, C, ⌊m/(1−β)⌋) > c].
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
        assert!(!draws.verifies(ROUND + 1, &opening), "of another round");
        assert!(!draws.verifies(ROUND - 1, &opening));
        assert!(!self::draws(3, 2).0.verifies(ROUND, &opening), "of another chain");
        let mut changed = opening;
        changed.0[0] ^= 1;
        assert!(!draws.verifies(ROUND, &changed));
        assert!(!draws.verifies(0, &DrawOpening(draws.commitment)), "the commitment opens nothing");
        assert_eq!(DrawChain::new([1; 32]).opening(0), None);
        assert_eq!(DrawChain::new([1; 32]).opening(MAX_ROUND + 1), None);
    }

    #[test]
    fn the_order_is_that_of_the_roster_and_the_round() {
        let (draws, opening) = draws(1, 2);
        let order = draws.order(ROUND, &opening, ids(50));
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, ids(50), "everybody once");
        assert_ne!(order, self::draws(1, 3).0.order(ROUND, &opening, ids(50)), "another roster");
        let next = DrawChain::new([1; 32]).opening(ROUND + 1).expect("not the last");
        assert_ne!(order, draws.order(ROUND + 1, &next, ids(50)), "another round");
        // Who joins later moves nobody else.
        let longer = draws.order(ROUND, &opening, ids(60));
        let old: Vec<DeviceId> = longer.into_iter().filter(|id| id.0 < 50).collect();
        assert_eq!(old, order);
    }

    #[test]
    fn those_passed_over_are_counted_up_to_the_last_member() {
        let (draws, opening) = draws(1, 2);
        let order = draws.order(ROUND, &opening, ids(50));
        let gone = [order[1], order[4], order[5]];
        let members = cohort(&order, 10, |id| !gone.contains(&id));
        let left_out = draws.left_out(ROUND, &opening, ids(50), &members);
        assert_eq!(left_out, LeftOut { drawn: 13, left_out: 3 });
        assert!(left_out.is_within(Permille::new(231).unwrap()));
        assert!(!left_out.is_within(Permille::new(230).unwrap()));
        // The last of all, alone.
        let picked: DeviceSet = [order[49]].into_iter().collect();
        assert_eq!(draws.left_out(ROUND, &opening, ids(50), &picked), LeftOut { drawn: 50, left_out: 49 });
        assert_eq!(draws.left_out(ROUND, &opening, ids(50), &DeviceSet::default()).drawn, 0);
    }

    /// The server picks its accomplices out of all that it may pick from, in a thousand rounds.
    #[test]
    fn a_server_that_leaves_out_what_it_may_gets_no_more_accomplices_than_the_bound_says() {
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
