//! Threat assumptions: the protection that servers offer and devices require.

use deltafl_secagg::device::AdversaryModel;
use deltafl_secagg::graph::{CollusionBound, GraphRule, Permille};
use serde::Deserialize;

/// The assumed behaviour of the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ServerBehaviour {
    /// The server deviates from the protocol arbitrarily.
    #[default]
    Active,
    /// The server follows the protocol and inspects everything that it receives.
    Curious,
}

/// The assumptions under which a round protects its devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreatAssumptions {
    /// The assumed behaviour of the server.
    pub adversary: ServerBehaviour,
    /// γ: the share of a cohort that may collude with the server, in thousandths.
    pub gamma: Permille,
    /// The minimum number of colluding devices to assume, for any cohort size.
    pub accomplices: u32,
}

/// An active server that colludes with 5 % of a cohort, and with at least one device.
impl Default for ThreatAssumptions {
    fn default() -> Self {
        Self {
            adversary: ServerBehaviour::Active,
            gamma: Permille::new(50).unwrap_or_default(),
            accomplices: 1,
        }
    }
}

/// [`ThreatAssumptions`] as options of a server and of a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ThreatOptions {
    /// The assumed behaviour of the server.
    pub adversary: ServerBehaviour,
    /// The share of a cohort that may collude with it.
    pub gamma: f64,
    /// Devices of a cohort that may collude with it, however small the cohort is.
    pub accomplices: u32,
}

impl Default for ThreatOptions {
    fn default() -> Self {
        let ThreatAssumptions { adversary, gamma, accomplices } = ThreatAssumptions::default();
        Self { adversary, gamma: f64::from(gamma.get()) / 1000.0, accomplices }
    }
}

impl ThreatOptions {
    /// Returns the assumptions, with γ rounded up to thousandths.
    pub fn assumptions(&self) -> Result<ThreatAssumptions, InvalidShare> {
        let gamma = permille("gamma", self.gamma, f64::ceil)?;
        Ok(ThreatAssumptions { adversary: self.adversary, gamma, accomplices: self.accomplices })
    }
}

/// A share that is out of range.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("--{option} {value} is not in 0..={most}")]
pub struct InvalidShare {
    /// The name of the option.
    pub option: &'static str,
    /// The value.
    pub value: f64,
    /// The largest that is valid.
    pub most: f64,
}

/// Converts the option `option`, a share of at most one half, to thousandths.
pub fn permille(
    option: &'static str,
    value: f64,
    round: impl Fn(f64) -> f64,
) -> Result<Permille, InvalidShare> {
    let thousandths = round(1000.0 * value);
    let share = (0.0..=500.0).contains(&thousandths).then(|| Permille::new(thousandths as u16)).flatten();
    share.ok_or(InvalidShare { option, value, most: 0.5 })
}

impl ThreatAssumptions {
    /// Returns c, the number of devices of a cohort that may collude.
    pub fn colluding(&self, cohort: u32) -> u32 {
        let share = (u64::from(cohort) * u64::from(self.gamma.get())).div_ceil(1000);
        u32::try_from(share).unwrap_or(u32::MAX).max(self.accomplices)
    }

    /// Returns the graph that a server offers to a cohort of which a share δ may drop out.
    pub fn graph(&self, cohort: u32, delta: Permille) -> GraphRule {
        let gamma = CollusionBound::Devices(self.colluding(cohort));
        match self.adversary {
            ServerBehaviour::Active => GraphRule::Active { gamma, delta },
            ServerBehaviour::Curious => GraphRule::HonestButCurious { gamma, delta },
        }
    }

    /// Returns whether this graph meets the assumptions of a device.
    pub fn accepts(&self, graph: GraphRule, cohort: u32) -> bool {
        let needed = self.colluding(cohort) as usize;
        match (self.adversary, graph) {
            (_, GraphRule::Active { gamma, .. }) => gamma.devices_in(cohort) >= needed,
            (ServerBehaviour::Active, GraphRule::Full { threshold }) => threshold >= self.threshold(cohort),
            (ServerBehaviour::Active, GraphRule::HonestButCurious { .. }) => false,
            (ServerBehaviour::Curious, GraphRule::Full { threshold }) => threshold as usize > needed,
            (ServerBehaviour::Curious, GraphRule::HonestButCurious { gamma, .. }) => {
                gamma.devices_in(cohort) >= needed
            }
            // A rule that this version does not know.
            _ => false,
        }
    }

    /// Returns the requirement that a device passes to secure aggregation.
    pub fn required(&self) -> AdversaryModel {
        let gamma = self.gamma.into();
        match self.adversary {
            ServerBehaviour::Active => AdversaryModel::Active { gamma },
            ServerBehaviour::Curious => {
                AdversaryModel::HonestButCurious { gamma, delta: Permille::new(50).unwrap_or_default() }
            }
        }
    }

    /// Returns the smallest t > (n + c)/2.
    ///
    /// A split view needs 2t shares of two kinds, and only n + c exist.
    fn threshold(&self, cohort: u32) -> u32 {
        (cohort.saturating_add(self.colluding(cohort))) / 2 + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(adversary: ServerBehaviour, gamma: u16, accomplices: u32) -> ThreatAssumptions {
        ThreatAssumptions { adversary, gamma: Permille::new(gamma).unwrap(), accomplices }
    }

    #[test]
    fn a_device_accepts_what_a_server_of_the_same_guard_offers_and_nothing_weaker() {
        let delta = Permille::new(200).unwrap();
        for cohort in [2, 3, 8, 30, 50, 100, 500, 1000] {
            for adversary in [ServerBehaviour::Active, ServerBehaviour::Curious] {
                let guard = guard(adversary, 50, 1);
                assert!(guard.accepts(guard.graph(cohort, delta), cohort), "{adversary:?} {cohort}");
            }
            let careful = guard(ServerBehaviour::Active, 50, 1);
            let curious = guard(ServerBehaviour::Curious, 50, 1).graph(cohort, delta);
            assert!(
                !careful.accepts(curious, cohort),
                "a server that may lie must not choose a sparse graph"
            );
        }
    }

    #[test]
    fn accomplices_count_however_small_the_cohort() {
        let of = |accomplices| guard(ServerBehaviour::Active, 50, accomplices);
        assert_eq!([20, 100].map(|cohort| of(3).colluding(cohort)), [3, 5]);
        let delta = Permille::new(200).unwrap();
        assert_eq!(of(3).graph(20, delta), GraphRule::Active { gamma: CollusionBound::Devices(3), delta });
        assert!(!of(4).accepts(of(1).graph(20, delta), 20));
    }

    #[test]
    fn a_full_graph_is_accepted_only_where_two_sets_of_t_shares_cannot_be_had() {
        for cohort in 2..400 {
            let guard = guard(ServerBehaviour::Active, 100, 2);
            let least = (2..=cohort + 3).find(|&t| guard.accepts(GraphRule::Full { threshold: t }, cohort));
            let least = least.unwrap();
            assert!(2 * least > cohort + guard.colluding(cohort), "{cohort}: {least}");
            assert!(2 * (least - 1) <= cohort + guard.colluding(cohort), "{cohort}: {least}");
        }
    }
}
