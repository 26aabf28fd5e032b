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

use std::collections::BTreeMap;

use chacha20::ChaCha20Rng;
use rand_core::{Rng, SeedableRng};

use crate::defences::{Defence, Defences};
use crate::identity::DeviceId;
use crate::message::{DeviceSet, Reveal};
use crate::params::RoundParams;
use crate::transcript::{Hasher, Sha256Digest};

/// The largest full graph against an actively malicious server. For larger cohorts, a sparse graph
/// costs at most half as much.
pub const FULL_UP_TO: u32 = 300;
/// The smallest membership for which a sparse graph is worth its extra phase, if the server is
/// honest but curious.
const CURIOUS_SPARSE_FROM: usize = 50;

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

/// The rule that determines the graph of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum GraphRule {
    /// Protects against an actively malicious server. This is the recommended rule. Cohorts of up
    /// to [`FULL_UP_TO`] devices use the full graph with t > (n+c)/2. Larger cohorts use a
    /// k-regular graph with (k, t) from [`parameters::against_active`].
    Active {
        /// γ: the devices that may collude with the server.
        gamma: CollusionBound,
        /// δ: the share of the members that may drop out of a sparse graph. With more, the round
        /// fails.
        delta: Permille,
    },
    /// Connects every pair of devices. `threshold` shares recover a secret. The threshold decides
    /// whether this protects against an actively malicious server.
    Full {
        /// t: the number of shares that recover a secret.
        threshold: u32,
    },
    /// Protects only against a server that follows the protocol and inspects all messages. It is
    /// cheaper, but a server that shows different survivors to different devices breaks it.
    HonestButCurious {
        /// γ: the devices that may collude with the server.
        gamma: CollusionBound,
        /// δ: the share of the members that may drop out of a sparse graph. With more, the round
        /// fails.
        delta: Permille,
    },
}

/// Assumes an actively malicious server, 5 % colluding devices and 20 % drop-outs.
impl Default for GraphRule {
    fn default() -> Self {
        Self::Active { gamma: CollusionBound::Share(Permille(50)), delta: Permille(200) }
    }
}

/// The degree, the threshold and the smallest number of survivors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct GraphShape {
    degree: usize,
    threshold: usize,
    least: usize,
    /// c: the number of colluding devices.
    colluding: usize,
}

impl GraphShape {
    fn full(members: usize, threshold: usize, colluding: usize) -> Self {
        Self { degree: members.saturating_sub(1), threshold, least: threshold, colluding }
    }
}

impl GraphRule {
    /// Returns true if members commit to the randomness of the graph before it is drawn. The full
    /// graph needs no randomness.
    pub fn is_committed(self, cohort: u32) -> bool {
        match self {
            Self::Full { .. } => false,
            Self::Active { gamma, delta } => {
                let (colluding, dropping) = (gamma.devices_in(cohort).max(1), delta.count_in(cohort).max(1));
                let (n, graphs) = (cohort as usize, self.graphs(cohort));
                cohort > FULL_UP_TO && parameters::against_active(n, colluding, dropping, graphs).is_some()
            }
            Self::HonestButCurious { .. } => true,
        }
    }

    /// Returns true if the graph can be drawn without the members that do not reveal. This is safe
    /// only against a server that does not choose among graphs.
    pub(crate) fn forgives_silence(self) -> bool {
        matches!(self, Self::HonestButCurious { .. })
    }

    /// Returns the rule as numbers for the wire and for hashes: kind, threshold, colluding share,
    /// colluding devices, dropping share.
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

    /// Parses the numbers of a rule. Returns `None` if they are invalid. Zero colluding devices and
    /// a colluding share of zero have the same encoding and are the same rule.
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
        // Unused numbers must be zero, so that each rule has one encoding.
        (rule.numbers() == [kind, threshold, share, devices, delta.0.into()]).then_some(rule)
    }

    /// Returns the smallest number of members of a round with this announced cohort. Against a
    /// malicious server it is 1 − δ of the cohort. Otherwise the threshold decides.
    pub fn min_members(self, cohort: u32) -> usize {
        match self {
            Self::Active { delta, .. } => cohort as usize - delta.count_in(cohort),
            Self::Full { threshold } => threshold as usize,
            Self::HonestButCurious { .. } => 0,
        }
    }

    /// Returns G, the number of graphs that a malicious server can see in one set-up.
    ///
    /// Each list of members needs the nonce of the smallest honest commitment on it, and a device
    /// reveals its nonce for one list. The smallest honest commitments of two lists therefore
    /// belong to two devices. A list without the j smallest lacks j members, and at most
    /// cohort − [`Self::min_members`] may be missing.
    pub fn graphs(self, cohort: u32) -> usize {
        (cohort as usize).saturating_sub(self.min_members(cohort)) + 1
    }

    /// Returns the number of signatures on a list of members that a device requires. Two lists with
    /// so many signatures have more signers in common than devices collude. Therefore the devices
    /// of one set-up accept one list. Returns 0 if the server is assumed to follow the protocol.
    pub(crate) fn list_quorum(self, cohort: u32) -> usize {
        match self {
            Self::Active { gamma, .. } => active_threshold(cohort as usize, gamma.devices_in(cohort)),
            Self::Full { .. } | Self::HonestButCurious { .. } => 0,
        }
    }

    /// Returns t of the full graph over a whole cohort, or `None` if the graph is drawn.
    pub(crate) fn full_threshold(self, cohort: u32) -> Option<usize> {
        (!self.is_committed(cohort)).then(|| self.shape(cohort, cohort as usize).threshold)
    }

    /// Returns the smallest number of honest devices in a sum over `members` devices, if `colluding`
    /// of them collude: t − c on the full graph, and (n − c)/2 − d on a sparse one
    /// ([`parameters`]).
    pub fn honest_in_sum(self, cohort: u32, members: usize, colluding: usize) -> usize {
        let shape = self.shape(cohort, members);
        if shape.degree + 1 >= members {
            return shape.least.min(members).saturating_sub(colluding);
        }
        let dropping = members.saturating_sub(shape.least);
        (members.saturating_sub(colluding) / 2).saturating_sub(dropping)
    }

    /// Returns the members whose nonces determine the graph, given all commitments.
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

    /// Returns the shape for `members` devices of a cohort. Falls back to the full graph for few
    /// members, and if no sparse graph is safe.
    fn shape(self, cohort: u32, members: usize) -> GraphShape {
        let n = u32::try_from(members).unwrap_or(u32::MAX);
        match self {
            Self::Full { threshold } => {
                // The number of colluding devices that the threshold tolerates.
                let colluding = (2 * threshold as usize).saturating_sub(members + 1);
                GraphShape::full(members, threshold as usize, colluding)
            }
            Self::Active { gamma, delta } => {
                let graphs = self.graphs(cohort);
                let sparse =
                    |colluding, dropping| parameters::against_active(members, colluding, dropping, graphs);
                // A sparse graph needs the randomness from commitments.
                let shape = (n > FULL_UP_TO && self.is_committed(cohort))
                    .then(|| sparse_shape(cohort, members, gamma, delta, sparse));
                // From the cohort and not from the members: two lists of members cannot both have t
                // signers.
                let threshold = active_threshold(cohort as usize, gamma.devices_in(cohort));
                shape.flatten().unwrap_or(GraphShape::full(members, threshold, gamma.devices_in(cohort)))
            }
            Self::HonestButCurious { gamma, delta } => {
                let sparse = |colluding, dropping| parameters::against_curious(members, colluding, dropping);
                let shape = (members >= CURIOUS_SPARSE_FROM)
                    .then(|| sparse_shape(cohort, members, gamma, delta, sparse));
                let threshold = (members / 2 + 1).max(gamma.devices_in(cohort).max(1) + 1);
                shape.flatten().unwrap_or(GraphShape::full(members, threshold, gamma.devices_in(cohort)))
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
) -> Option<GraphShape> {
    // At least one of each. With zero, a single neighbour could recover every secret.
    let dropping = delta.count_in(u32::try_from(members).unwrap_or(u32::MAX)).max(1);
    let colluding = gamma.devices_in(cohort).max(1);
    let (degree, threshold) = parameters(colluding, dropping)?;
    Some(GraphShape { degree, threshold, least: members.saturating_sub(dropping), colluding })
}

/// Returns the smallest t > (n+c)/2, that is, t > (1+γ)n/2 (Bonawitz et al. 2017, section 6.2).
/// Each of n holders provides one share, and the c colluding ones provide two.
pub(crate) fn active_threshold(members: usize, colluding: usize) -> usize {
    members.saturating_add(colluding) / 2 + 1
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
