//! The rule that determines the graph of a round: its degree, its threshold and its survivors.

use std::collections::BTreeMap;

use super::{CollusionBound, Permille, parameters};
use crate::identity::DeviceId;
use crate::message::DeviceSet;
use crate::transcript::Sha256Digest;

/// The largest full graph against an actively malicious server. For larger cohorts, a sparse graph
/// costs at most half as much.
pub const FULL_UP_TO: u32 = 300;

/// The smallest membership for which a sparse graph is worth its extra phase, if the server is
/// honest but curious.
const CURIOUS_SPARSE_FROM: usize = 50;

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
pub(super) struct GraphShape {
    pub(super) degree: usize,
    pub(super) threshold: usize,
    pub(super) least: usize,
    /// c: the number of colluding devices.
    pub(super) colluding: usize,
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

    /// Returns the smallest number of honest devices in a sum over `members` devices, if
    /// `colluding` of them collude: t − c on the full graph, and (n − c)/2 − d on a sparse one
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
    pub(super) fn shape(self, cohort: u32, members: usize) -> GraphShape {
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
