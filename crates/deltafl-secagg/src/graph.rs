//! Who shares secrets with whom.
//!
//! The full graph (Bonawitz et al. 2017) joins every pair. The k-regular graph (Bell et al. 2020) joins each
//! device to k others: the devices stand on a ring in random order, each joined to the k/2 on either side.
//! [`parameters`] says which (k, t) hold against whom.
//!
//! The order comes from randomness that the members commit to before any is revealed. Who is a member, and
//! whose randomness counts, is settled by the list of commitments: the c+1 members with the smallest ones,
//! of whom one at least does not collude. Each of them signs the list together with its nonce. So nothing
//! that the server sees before it shows the list tells it the graph, and nothing that it does afterwards
//! leads to another: a member that falls silent keeps its place.

pub mod parameters;

use std::collections::BTreeMap;

use chacha20::ChaCha20Rng;
use rand_core::{Rng, SeedableRng};

use crate::identity::DeviceId;
use crate::message::{DeviceSet, Reveal};
use crate::transcript::{Hasher, Sha256Digest};

/// The most devices of a full graph against a server that lies. Beyond, a sparse one is cheaper by half or
/// more.
pub const FULL_UP_TO: u32 = 300;
/// The fewest members for which a sparse graph is worth its extra phase when the server is honest but
/// curious.
const CURIOUS_SPARSE_FROM: usize = 50;

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
    pub fn count_in(self, n: u32) -> usize {
        (u64::from(n) * u64::from(self.0) / 1000) as usize
    }
}

/// γ: how many devices of a cohort may collude with the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CollusionBound {
    /// A share of the cohort.
    Share(Permille),
    /// So many, however large the cohort.
    Devices(u32),
}

impl CollusionBound {
    /// c: the devices of a cohort that may collude.
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

/// How the graph of a round is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum GraphRule {
    /// Against a server that lies, the rule to use: the full graph with t > (n+c)/2 for cohorts of up to
    /// [`FULL_UP_TO`], beyond a k-regular one for which [`parameters::against_active`] finds (k, t).
    Active {
        /// γ: the devices that may collude with the server.
        gamma: CollusionBound,
        /// δ: the share of the members that may drop out of a sparse graph; with more there is no sum.
        delta: Permille,
    },
    /// Every pair of devices; `threshold` devices recover a secret. Whether that withstands a server that
    /// lies depends on the threshold.
    Full {
        /// t.
        threshold: u32,
    },
    /// Against a server that follows the protocol and looks at everything: cheaper, and open to a server that
    /// shows its devices different survivors.
    HonestButCurious {
        /// γ: the devices that may collude with the server.
        gamma: CollusionBound,
        /// δ: the share of the members that may drop out of a sparse graph; with more there is no sum.
        delta: Permille,
    },
}

/// 5 % collude, 20 % drop out, and the server lies.
impl Default for GraphRule {
    fn default() -> Self {
        Self::Active { gamma: CollusionBound::Share(Permille(50)), delta: Permille(200) }
    }
}

/// Degree, threshold and the members that must be left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    degree: usize,
    threshold: usize,
    least: usize,
    /// c.
    colluding: usize,
}

impl Shape {
    fn full(members: usize, threshold: usize, colluding: usize) -> Self {
        Self { degree: members.saturating_sub(1), threshold, least: threshold, colluding }
    }
}

impl GraphRule {
    /// Whether the members commit to the randomness of the graph before it is drawn. On the full graph there
    /// is none.
    pub fn is_committed(self, cohort: u32) -> bool {
        match self {
            Self::Full { .. } => false,
            Self::Active { gamma, delta } => {
                let (colluding, dropping) = (gamma.devices_in(cohort).max(1), delta.count_in(cohort).max(1));
                cohort > FULL_UP_TO
                    && parameters::against_active(cohort as usize, colluding, dropping).is_some()
            }
            Self::HonestButCurious { .. } => true,
        }
    }

    /// Whether members that do not reveal can be done without: only a server that does not choose among
    /// graphs may be left the choice of who counts.
    pub(crate) fn forgives_silence(self) -> bool {
        matches!(self, Self::HonestButCurious { .. })
    }

    /// The rule as it stands on the wire and in hashes: kind, threshold, colluding share, colluding devices,
    /// dropping share.
    pub(crate) fn numbers(self) -> [u32; 5] {
        let regular = |kind: u32, gamma: CollusionBound, delta: Permille| match gamma {
            CollusionBound::Share(share) => [kind, 0, share.0.into(), 0, delta.0.into()],
            CollusionBound::Devices(devices) => [kind, 0, 0, devices, delta.0.into()],
        };
        match self {
            Self::Active { gamma, delta } => regular(1, gamma, delta),
            Self::Full { threshold } => [2, threshold, 0, 0, 0],
            Self::HonestButCurious { gamma, delta } => regular(3, gamma, delta),
        }
    }

    /// The rule of these numbers; `None` when they are not those of a rule. No colluding devices and a
    /// colluding share of zero are the same numbers and the same rule.
    pub(crate) fn from_numbers([kind, threshold, share, devices, delta]: [u32; 5]) -> Option<Self> {
        let permille = |value: u32| Permille::new(u16::try_from(value).ok()?);
        let gamma = match (share, devices) {
            (share, 0) => CollusionBound::Share(permille(share)?),
            (0, devices) => CollusionBound::Devices(devices),
            _ => return None,
        };
        let delta = permille(delta)?;
        let rule = match kind {
            1 => Self::Active { gamma, delta },
            2 => Self::Full { threshold },
            3 => Self::HonestButCurious { gamma, delta },
            _ => return None,
        };
        // What a kind has no use for is zero, so that a rule has one form only.
        (rule.numbers() == [kind, threshold, share, devices, delta.0.into()]).then_some(rule)
    }

    /// t of the full graph that the rule gives to a whole cohort; nothing where the graph is drawn.
    pub(crate) fn full_threshold(self, cohort: u32) -> Option<usize> {
        (!self.is_committed(cohort)).then(|| self.shape(cohort, cohort as usize).threshold)
    }

    /// The members whose nonces make the graph, given everybody's commitment.
    pub(crate) fn drawers(self, cohort: u32, commitments: &BTreeMap<DeviceId, Sha256Digest>) -> DeviceSet {
        match self {
            Self::Active { gamma, .. } => {
                let mut smallest: Vec<(&Sha256Digest, DeviceId)> =
                    commitments.iter().map(|(&id, commitment)| (commitment, id)).collect();
                smallest.sort_unstable();
                smallest.truncate(gamma.devices_in(cohort).max(1) + 1);
                smallest.into_iter().map(|(_, id)| id).collect()
            }
            Self::Full { .. } | Self::HonestButCurious { .. } => commitments.keys().copied().collect(),
        }
    }

    /// The shape for `members` devices out of a cohort. A rule falls back to the full graph for few members,
    /// or where no sparse one is safe.
    fn shape(self, cohort: u32, members: usize) -> Shape {
        let n = u32::try_from(members).unwrap_or(u32::MAX);
        match self {
            Self::Full { threshold } => {
                // As many as the threshold withstands.
                let colluding = (2 * threshold as usize).saturating_sub(members + 1);
                Shape::full(members, threshold as usize, colluding)
            }
            Self::Active { gamma, delta } => {
                let sparse = |colluding, dropping| parameters::against_active(members, colluding, dropping);
                // Without commitments there is no randomness to draw a sparse graph from.
                let shape = (n > FULL_UP_TO && self.is_committed(cohort))
                    .then(|| sparse_shape(cohort, members, gamma, delta, sparse));
                let threshold = active_threshold(members, gamma.devices_in(cohort));
                shape.flatten().unwrap_or(Shape::full(members, threshold, gamma.devices_in(cohort)))
            }
            Self::HonestButCurious { gamma, delta } => {
                let sparse = |colluding, dropping| parameters::against_curious(members, colluding, dropping);
                let shape = (members >= CURIOUS_SPARSE_FROM)
                    .then(|| sparse_shape(cohort, members, gamma, delta, sparse));
                let threshold = (members / 2 + 1).max(gamma.devices_in(cohort).max(1) + 1);
                shape.flatten().unwrap_or(Shape::full(members, threshold, gamma.devices_in(cohort)))
            }
        }
    }
}

fn sparse_shape(
    cohort: u32,
    members: usize,
    gamma: CollusionBound,
    delta: Permille,
    parameters: impl Fn(usize, usize) -> Option<(usize, usize)>,
) -> Option<Shape> {
    // At least one of each: with none at all a single neighbour could recover every secret.
    let dropping = delta.count_in(u32::try_from(members).unwrap_or(u32::MAX)).max(1);
    let colluding = gamma.devices_in(cohort).max(1);
    let (degree, threshold) = parameters(colluding, dropping)?;
    Some(Shape { degree, threshold, least: members.saturating_sub(dropping), colluding })
}

/// The smallest t > (n+c)/2, which is t > (1+γ)n/2 (Bonawitz et al. 2017, section 6.2): of n holders each
/// gives one share, and the c that collude give two.
pub(crate) fn active_threshold(members: usize, colluding: usize) -> usize {
    members.saturating_add(colluding) / 2 + 1
}

/// The graph of a round.
#[derive(Debug, Clone)]
pub struct Graph {
    /// The members in ring order.
    ring: Vec<DeviceId>,
    /// Where each member stands in the ring.
    position: BTreeMap<DeviceId, usize>,
    shape: Shape,
}

impl Graph {
    /// The graph over `members` (sorted) that the rule and the joint randomness give.
    pub(crate) fn new(rule: GraphRule, cohort: u32, members: &[DeviceId], seed: &Sha256Digest) -> Self {
        let shape = rule.shape(cohort, members.len());
        let mut ring = members.to_vec();
        shuffle(&mut ring, seed);
        let position = ring.iter().enumerate().map(|(place, &id)| (id, place)).collect();
        Self { ring, position, shape }
    }

    /// t: the shares that recover a secret, the signatures that make a set of survivors count.
    pub fn threshold(&self) -> usize {
        self.shape.threshold
    }

    /// The fewest members that a sum may have: all but a share δ on a sparse graph, t on a full one.
    pub fn least(&self) -> usize {
        self.shape.least
    }

    /// The most devices that lie, as far as the rule foresees, and at least one.
    pub(crate) fn liars(&self) -> usize {
        self.shape.colluding.max(1)
    }

    /// The members in the order in which they stand on the ring.
    pub fn ring(&self) -> &[DeviceId] {
        &self.ring
    }

    /// Whether every pair is joined.
    pub fn is_full(&self) -> bool {
        self.shape.degree + 1 >= self.ring.len()
    }

    /// k: the neighbours of each device.
    pub fn degree(&self) -> usize {
        self.shape.degree
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

/// The digest of the members and their commitments, which every reveal signs.
pub(crate) fn member_list(
    header: &Sha256Digest,
    commitments: &BTreeMap<DeviceId, Sha256Digest>,
) -> Sha256Digest {
    let hasher = Hasher::new("members").digest(header).number(commitments.len() as u64);
    commitments.iter().fold(hasher, |hasher, (&id, commitment)| hasher.device(id).digest(commitment)).finish()
}

/// The seed of the graph: the list of members and the nonces that count, so that nobody chose it alone.
pub(crate) fn seed(list: &Sha256Digest, reveals: &BTreeMap<DeviceId, Reveal>) -> Sha256Digest {
    let hasher = Hasher::new("graph").digest(list).number(reveals.len() as u64);
    reveals.iter().fold(hasher, |hasher, (&id, reveal)| hasher.device(id).part(reveal.nonce())).finish()
}

/// Fisher and Yates, with unbiased draws from a ChaCha20 stream.
fn shuffle(ids: &mut [DeviceId], seed: &Sha256Digest) {
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
        GraphRule::HonestButCurious { gamma: share.into(), delta: share }
    }

    fn active(gamma: CollusionBound) -> GraphRule {
        GraphRule::Active { gamma, delta: Permille::new(200).unwrap() }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn being_neighbours_is_mutual_and_regular(n in 2u32..400, seed: [u8; 32], lies: bool) {
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
        // (100 + 0)/2 = 50, (99 + ⌊99/3⌋)/2 = 65.5 (333‰ of 99 are 32), (10 + 2)/2 = 6.
        assert_eq!(active_threshold(100, 0), 51);
        assert_eq!(active_threshold(99, 32), 66);
        assert_eq!(active_threshold(10, 2), 7);
    }

    #[test]
    fn against_a_server_that_lies_the_graph_is_full_up_to_three_hundred_and_sparse_beyond() {
        let shape = |gamma, n: u32| active(gamma).shape(n, n as usize);
        let share = CollusionBound::Share(Permille::new(50).unwrap());
        assert_eq!(shape(share, 300), Shape { degree: 299, threshold: 158, least: 158, colluding: 15 });
        assert!(!active(share).is_committed(300));
        assert_eq!(shape(share, 1000), Shape { degree: 204, threshold: 131, least: 800, colluding: 50 });
        assert!(active(share).is_committed(1000));
        // A number of accomplices in place of a share.
        assert_eq!(shape(CollusionBound::Devices(50), 1000), shape(share, 1000));
        assert_eq!(
            shape(CollusionBound::Devices(10), 100),
            Shape { degree: 99, threshold: 56, least: 56, colluding: 10 }
        );
        // Nearly half of a cohort: only the full graph holds.
        assert!(!active(CollusionBound::Devices(290)).is_committed(600));
    }

    #[test]
    fn one_more_member_than_may_collude_draws_the_graph() {
        let commitments = ids(1000).into_iter().map(|id| (id, [(id.0 * 7) as u8; 32])).collect();
        let drawers = active(CollusionBound::Devices(20)).drawers(1000, &commitments);
        assert_eq!(drawers.len(), 21);
        let largest = drawers.iter().map(|id| commitments[&id]).max().unwrap();
        let smaller = commitments.values().filter(|commitment| **commitment < largest).count();
        assert!(smaller < 21, "the smallest commitments draw");
    }

    #[test]
    fn strangers_have_no_neighbours() {
        let graph = Graph::new(five_percent(), 8, &ids(8), &[1; 32]);
        assert!(graph.neighbours(DeviceId(1)).is_empty());
    }
}
