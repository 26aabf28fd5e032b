//! The graph that determines which devices share secrets with each other.
//!
//! The full graph (Bonawitz et al. 2017) connects every pair. The k-regular graph (Bell et al.
//! 2020) arranges the devices on a ring in random order and connects each device to the k/2 devices
//! on either side. [`parameters`] computes (k, t) for a given adversary.
//!
//! The order is derived from nonces that members commit to before any nonce is revealed. The list
//! of commitments fixes the members and the nonces that count: those of the c+1 members with the
//! smallest commitments. At least one of these members does not collude. Each of them signs the
//! list together with its nonce. Therefore the server cannot predict the graph before it shows the
//! list, and cannot change it afterwards: a member that stops answering keeps its position.

pub mod parameters;
mod rule;

use std::collections::BTreeMap;

use chacha20::ChaCha20Rng;
use rand_core::{Rng, SeedableRng};

use self::rule::GraphShape;
pub(crate) use self::rule::active_threshold;
pub use self::rule::{FULL_UP_TO, GraphRule};
use crate::defences::{Defence, Defences};
use crate::identity::DeviceId;
use crate::message::{DeviceSet, Reveal};
use crate::params::RoundParams;
use crate::transcript::{Hasher, Sha256Digest};

/// A share in thousandths, at most one half.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Permille(u16);

impl Permille {
    /// Creates a share of `thousandths`. Returns `None` above 500, where the protocol guarantees
    /// nothing.
    pub fn new(thousandths: u16) -> Option<Self> {
        (thousandths <= 500).then_some(Self(thousandths))
    }

    /// Returns the thousandths.
    pub fn get(self) -> u16 {
        self.0
    }

    /// Returns the largest whole number of devices within this share of `n`.
    pub fn count_in(self, n: u32) -> usize {
        (u64::from(n) * u64::from(self.0) / 1000) as usize
    }
}

/// γ: the bound on the number of devices that collude with the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CollusionBound {
    /// A share of the cohort.
    Share(Permille),
    /// A number of devices, independent of the cohort.
    Devices(u32),
}

impl CollusionBound {
    /// Returns c, the number of devices of a cohort that may collude.
    pub fn devices_in(self, cohort: u32) -> usize {
        match self {
            Self::Share(share) => share.count_in(cohort),
            Self::Devices(devices) => devices as usize,
        }
    }
}

impl From<Permille> for CollusionBound {
    fn from(share: Permille) -> Self {
        Self::Share(share)
    }
}

/// The graph of a round.
#[derive(Debug, Clone)]
pub struct Graph {
    /// The members in ring order.
    ring: Vec<DeviceId>,
    /// The position of each member in the ring.
    position: BTreeMap<DeviceId, usize>,
    shape: GraphShape,
}

impl Graph {
    /// Creates the graph over `members` (sorted) from the rule and the joint randomness.
    pub(crate) fn new(rule: GraphRule, cohort: u32, members: &[DeviceId], seed: &Sha256Digest) -> Self {
        let shape = rule.shape(cohort, members.len());
        let mut ring = members.to_vec();
        shuffle(&mut ring, seed);
        let position = ring.iter().enumerate().map(|(place, &id)| (id, place)).collect();
        Self { ring, position, shape }
    }

    /// Creates the graph over `members` from the parameters of a round.
    pub(crate) fn for_params(
        params: &RoundParams,
        members: &DeviceSet,
        seed: &Sha256Digest,
        defences: Defences,
    ) -> Self {
        let cohort = match defences.has(Defence::ThresholdOfCohort) {
            true => params.cohort,
            false => u32::try_from(members.len()).unwrap_or(u32::MAX),
        };
        Self::new(params.graph, cohort, members.as_slice(), seed)
    }

    /// Returns t: the shares that recover a secret, and the signatures that confirm a set of
    /// survivors.
    pub fn threshold(&self) -> usize {
        self.shape.threshold
    }

    /// Returns the smallest number of members in a sum: 1 − δ of them on a sparse graph, t on a
    /// full graph.
    pub fn least(&self) -> usize {
        self.shape.least
    }

    /// Returns the largest number of misbehaving devices that the rule assumes, at least one.
    pub(crate) fn liars(&self) -> usize {
        self.shape.colluding.max(1)
    }

    /// Returns the members in ring order.
    pub fn ring(&self) -> &[DeviceId] {
        &self.ring
    }

    /// Returns true if the graph connects every pair.
    pub fn is_full(&self) -> bool {
        self.shape.degree + 1 >= self.ring.len()
    }

    /// Returns k, the number of neighbours of each device.
    pub fn degree(&self) -> usize {
        self.shape.degree
    }

    /// Returns true if the device is a member.
    pub fn contains(&self, id: DeviceId) -> bool {
        self.position.contains_key(&id)
    }

    /// Returns the neighbours of a member in increasing order, or an empty vector for a non-member.
    pub fn neighbours(&self, id: DeviceId) -> Vec<DeviceId> {
        let Some(&place) = self.position.get(&id) else {
            return Vec::new();
        };
        let n = self.ring.len();
        let mut neighbours: Vec<DeviceId> = if self.is_full() {
            (1..n).map(|step| self.ring[(place + step) % n]).collect()
        } else {
            (1..=self.shape.degree / 2)
                .flat_map(|step| [self.ring[(place + step) % n], self.ring[(place + n - step) % n]])
                .collect()
        };
        neighbours.sort_unstable();
        neighbours
    }
}

/// Returns the digest of the members and their commitments, which every reveal signs.
pub(crate) fn member_list(
    header: &Sha256Digest,
    commitments: &BTreeMap<DeviceId, Sha256Digest>,
) -> Sha256Digest {
    let hasher = Hasher::new("members").digest(header).number(commitments.len() as u64);
    commitments.iter().fold(hasher, |hasher, (&id, commitment)| hasher.device(id).digest(commitment)).finish()
}

/// Returns the seed of the graph, derived from the list of members and the nonces of the drawers.
pub(crate) fn seed(
    list: &Sha256Digest,
    drawers: &DeviceSet,
    reveals: &BTreeMap<DeviceId, Reveal>,
) -> Sha256Digest {
    let nonces: Vec<(DeviceId, &Reveal)> =
        drawers.iter().filter_map(|id| Some((id, reveals.get(&id)?))).collect();
    let hasher = Hasher::new("graph").digest(list).number(nonces.len() as u64);
    nonces.iter().fold(hasher, |hasher, (id, reveal)| hasher.device(*id).part(reveal.nonce())).finish()
}

/// Shuffles by Fisher–Yates with unbiased numbers from a ChaCha20 stream.
fn shuffle(ids: &mut [DeviceId], seed: &Sha256Digest) {
    let mut stream = ChaCha20Rng::from_seed(*seed);
    for last in (1..ids.len()).rev() {
        ids.swap(last, below(&mut stream, last as u64 + 1) as usize);
    }
}

/// Draws a uniform number below `limit` by rejection sampling.
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
        GraphRule::HonestButCurious { gamma: share.into(), delta: share }
    }

    fn active(gamma: CollusionBound) -> GraphRule {
        GraphRule::Active { gamma, delta: Permille::new(200).unwrap() }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn neighbourhood_is_symmetric_and_regular(n in 2u32..400, seed: [u8; 32], lies: bool) {
            let members = ids(n);
            let rule = if lies { GraphRule::default() } else { five_percent() };
            let graph = Graph::new(rule, n, &members, &seed);
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
    fn the_seed_changes_the_neighbours() {
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
        // (100 + 0)/2 = 50, (99 + ⌊99/3⌋)/2 = 65.5 (333‰ of 99 are 32), (10 + 2)/2 = 6.
        assert_eq!(active_threshold(100, 0), 51);
        assert_eq!(active_threshold(99, 32), 66);
        assert_eq!(active_threshold(10, 2), 7);
    }

    #[test]
    fn against_an_active_server_the_graph_is_full_up_to_300_and_sparse_beyond() {
        let shape = |gamma, n: u32| active(gamma).shape(n, n as usize);
        let share = CollusionBound::Share(Permille::new(50).unwrap());
        assert_eq!(shape(share, 300), GraphShape { degree: 299, threshold: 158, least: 158, colluding: 15 });
        assert!(!active(share).is_committed(300));
        assert_eq!(shape(share, 1000), GraphShape { degree: 212, threshold: 137, least: 800, colluding: 50 });
        assert!(active(share).is_committed(1000));
        // A number of accomplices instead of a share.
        assert_eq!(shape(CollusionBound::Devices(50), 1000), shape(share, 1000));
        assert_eq!(
            shape(CollusionBound::Devices(10), 100),
            GraphShape { degree: 99, threshold: 56, least: 56, colluding: 10 }
        );
        // If nearly half of a cohort colludes, only the full graph is safe.
        assert!(!active(CollusionBound::Devices(290)).is_committed(600));
    }

    #[test]
    fn one_more_member_than_may_collude_determines_the_graph() {
        let commitments = ids(1000).into_iter().map(|id| (id, [(id.0 * 7) as u8; 32])).collect();
        let drawers = active(CollusionBound::Devices(20)).drawers(1000, &commitments);
        assert_eq!(drawers.len(), 21);
        let largest = drawers.iter().map(|id| commitments[&id]).max().unwrap();
        let smaller = commitments.values().filter(|commitment| **commitment < largest).count();
        assert!(smaller < 21, "the smallest commitments count");
    }

    #[test]
    fn non_members_have_no_neighbours() {
        let graph = Graph::new(five_percent(), 8, &ids(8), &[1; 32]);
        assert!(graph.neighbours(DeviceId(1)).is_empty());
    }
}
