//! Who shares secrets with whom.
//!
//! The full graph (Bonawitz et al. 2017) joins every pair: right for small cohorts, and the one that the
//! guarantees against an active server are proved for. The k-regular graph (Bell et al. 2020) joins each
//! device to k others, with k growing like log n: the devices stand on a ring in random order, each joined to
//! the k/2 on either side. The order comes from randomness that every member commits to before any is
//! revealed.

pub mod parameters;

use std::collections::BTreeMap;

use chacha20::ChaCha20Rng;
use rand_core::{Rng, SeedableRng};

use crate::identity::DeviceId;
use crate::transcript::{Digest, Hasher};

/// The fewest members for which a sparse graph is worth its extra phase.
const SPARSE_FROM: usize = 50;

/// A share of the cohort in thousandths, at most one half.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Permille(u16);

impl Permille {
    /// This many thousandths; `None` above 500, where no guarantee is left.
    pub fn new(thousandths: u16) -> Option<Self> {
        (thousandths <= 500).then_some(Self(thousandths))
    }

    /// The thousandths.
    pub fn get(self) -> u16 {
        self.0
    }

    /// The largest whole number of devices within this share of `n`.
    pub fn of(self, n: u32) -> usize {
        (u64::from(n) * u64::from(self.0) / 1000) as usize
    }
}

/// How the graph of a round is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GraphRule {
    /// Every pair of devices; `threshold` devices recover a secret.
    Full {
        /// t.
        threshold: u32,
    },
    /// k neighbours each, with (k, t) computed for the members that turn up.
    Regular {
        /// γ: the share of the cohort that may collude with the server.
        gamma: Permille,
        /// δ: the share of the cohort that may drop out.
        delta: Permille,
    },
}

impl GraphRule {
    /// The full graph against an active server: the smallest t > (1+γ)n/2 (Bonawitz et al. 2017, section
    /// 6.2).
    pub fn active(cohort: u32, gamma: Permille) -> Self {
        Self::Full { threshold: active_threshold(cohort, gamma) }
    }

    /// (degree, threshold) for `members` devices out of a cohort.
    ///
    /// A regular rule falls back to the full graph for few members, or where no sparse one is safe, with the
    /// smallest majority that colluding devices cannot form.
    fn shape(self, cohort: u32, members: usize) -> (usize, usize) {
        let full = members.saturating_sub(1);
        match self {
            Self::Full { threshold } => (full, threshold as usize),
            Self::Regular { gamma, delta } => {
                // At least one of each: with none at all a single neighbour could recover every secret.
                let (colluding, dropping) = (gamma.of(cohort).max(1), delta.of(cohort).max(1));
                (members >= SPARSE_FROM)
                    .then(|| parameters::degree_and_threshold(members, colluding, dropping))
                    .flatten()
                    .unwrap_or((full, (members / 2 + 1).max(colluding + 1)))
            }
        }
    }
}

/// The smallest t > (1+γ)n/2.
pub(crate) fn active_threshold(cohort: u32, gamma: Permille) -> u32 {
    let twice = u64::from(cohort) * (1000 + u64::from(gamma.get()));
    u32::try_from(twice / 2000 + 1).unwrap_or(u32::MAX)
}

/// The graph of a round.
#[derive(Debug, Clone)]
pub struct Graph {
    /// The members in ring order.
    ring: Vec<DeviceId>,
    /// Where each member stands in the ring.
    position: BTreeMap<DeviceId, usize>,
    degree: usize,
    threshold: usize,
}

impl Graph {
    /// The graph over `members` (sorted) that the rule and the joint randomness give.
    pub(crate) fn new(rule: GraphRule, cohort: u32, members: &[DeviceId], seed: &Digest) -> Self {
        let (degree, threshold) = rule.shape(cohort, members.len());
        let mut ring = members.to_vec();
        shuffle(&mut ring, seed);
        let position = ring.iter().enumerate().map(|(place, &id)| (id, place)).collect();
        Self { ring, position, degree, threshold }
    }

    /// t: the shares that recover a secret, the signatures that make a set of survivors count.
    pub fn threshold(&self) -> usize {
        self.threshold
    }

    /// k: the neighbours of each device.
    pub fn degree(&self) -> usize {
        self.degree
    }

    /// Whether the device is a member.
    pub fn contains(&self, id: DeviceId) -> bool {
        self.position.contains_key(&id)
    }

    /// The neighbours of a member in increasing order, without itself; none for a stranger.
    pub fn neighbours(&self, id: DeviceId) -> Vec<DeviceId> {
        let Some(&place) = self.position.get(&id) else {
            return Vec::new();
        };
        let n = self.ring.len();
        let mut neighbours: Vec<DeviceId> = if self.degree + 1 >= n {
            (1..n).map(|step| self.ring[(place + step) % n]).collect()
        } else {
            (1..=self.degree / 2)
                .flat_map(|step| [self.ring[(place + step) % n], self.ring[(place + n - step) % n]])
                .collect()
        };
        neighbours.sort_unstable();
        neighbours
    }
}

/// The seed of the graph: all revealed nonces together, so that no member chose it alone.
pub(crate) fn seed(header: &Digest, reveals: &BTreeMap<DeviceId, [u8; 32]>) -> Digest {
    let hasher = Hasher::new("graph").digest(header).number(reveals.len() as u64);
    reveals.iter().fold(hasher, |hasher, (&id, nonce)| hasher.device(id).part(nonce)).finish()
}

/// Fisher and Yates, with unbiased draws from a ChaCha20 stream.
fn shuffle(ids: &mut [DeviceId], seed: &Digest) {
    let mut stream = ChaCha20Rng::from_seed(*seed);
    for last in (1..ids.len()).rev() {
        ids.swap(last, below(&mut stream, last as u64 + 1) as usize);
    }
}

/// A uniform number below `limit`: draws from the incomplete last block of the range are thrown away.
fn below(stream: &mut impl Rng, limit: u64) -> u64 {
    let whole = u64::MAX - u64::MAX % limit;
    loop {
        let draw = stream.next_u64();
        if draw < whole {
            return draw % limit;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ids(n: u32) -> Vec<DeviceId> {
        (0..n).map(|i| DeviceId(3 * i)).collect()
    }

    fn five_percent() -> GraphRule {
        let share = Permille::new(50).unwrap();
        GraphRule::Regular { gamma: share, delta: share }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn being_neighbours_is_mutual_and_regular(n in 2u32..150, seed: [u8; 32]) {
            let members = ids(n);
            let graph = Graph::new(five_percent(), n, &members, &seed);
            for &id in &members {
                let neighbours = graph.neighbours(id);
                prop_assert_eq!(neighbours.len(), graph.degree());
                prop_assert!(!neighbours.contains(&id));
                prop_assert!(neighbours.is_sorted_by(|a, b| a < b));
                for &other in &neighbours {
                    prop_assert!(graph.neighbours(other).contains(&id));
                }
            }
        }
    }

    #[test]
    fn the_seed_moves_the_neighbours() {
        let members = ids(100);
        let a = Graph::new(five_percent(), 100, &members, &[1; 32]);
        let b = Graph::new(five_percent(), 100, &members, &[2; 32]);
        assert_eq!((a.degree(), a.threshold()), (12, 6));
        assert_ne!(a.neighbours(DeviceId(0)), b.neighbours(DeviceId(0)));
    }

    #[test]
    fn a_small_cohort_gets_the_full_graph() {
        let members = ids(8);
        let graph = Graph::new(five_percent(), 8, &members, &[1; 32]);
        assert_eq!(graph.neighbours(DeviceId(0)), members[1..]);
        assert_eq!(graph.threshold(), 5);
    }

    #[test]
    fn the_threshold_against_an_active_server_exceeds_half_of_one_plus_gamma() {
        // (1 + 0)·100/2 = 50, (1 + 1/3)·99/2 ≈ 66 (333‰: 65.98), (1 + 0.2)·10/2 = 6.
        let threshold = |cohort, gamma| active_threshold(cohort, Permille::new(gamma).unwrap());
        assert_eq!(threshold(100, 0), 51);
        assert_eq!(threshold(99, 333), 66);
        assert_eq!(threshold(10, 200), 7);
    }

    #[test]
    fn strangers_have_no_neighbours() {
        let graph = Graph::new(five_percent(), 8, &ids(8), &[1; 32]);
        assert!(graph.neighbours(DeviceId(1)).is_empty());
    }
}
