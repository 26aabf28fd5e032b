//! The configuration of a server, with its defaults.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use deltafl::kernel::Isa;
use deltafl_wire::threat::{InvalidShare, ServerBehaviour, ThreatAssumptions, ThreatOptions};
use serde::Deserialize;

use crate::Deadlines;
use crate::exchange::{Permille, Rules};
use crate::serve::Limits;

/// The configuration of a server. The fields have the names of the flags of `deltafl serve`.
///
/// Every combination is a value; [`Server::new`](super::Server::new) rejects shares that are out of
/// range.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServerConfig {
    /// The run folder; `runs/NAME` if `None`.
    pub out: Option<PathBuf>,
    /// The address at which devices connect.
    pub listen: SocketAddr,
    /// The folder that `deltafl certs` filled: the server's certificate, and the authority unless
    /// it is kept elsewhere. Without certificates the server listens on a loopback address only,
    /// for demonstrations.
    pub certs: Option<PathBuf>,
    /// Whether the authority's keys may be in the folder of the certificates.
    pub authority_here: bool,
    /// The database, `sqlite:PATH` or `postgres://…`; SQLite in the run folder if `None`.
    pub database: Option<String>,
    /// The store of the params of every round, a folder or `s3://BUCKET/PREFIX`; in the run folder
    /// if `None`.
    pub blobs: Option<String>,
    /// The address of the live page, the models and enrolment, over HTTP; off if `None`.
    pub http: Option<SocketAddr>,
    /// Whether to serve the models after the last round, until it is stopped.
    pub stay: bool,
    /// Whether to draw cohorts so that devices can check it. Lasts for the federation.
    pub drawn_cohorts: bool,
    /// Whether models are public, instead of restricted to devices.
    pub public_models: bool,
    /// Whether the experiment may ask devices for their losses one by one.
    pub open: bool,
    /// Whether to train levels θ although fewer than ten devices of a cohort are between two of
    /// them.
    pub allow_close_levels: bool,
    /// The instruction set that the run folder records; the best of this machine if `None`.
    pub kernel: Option<Isa>,
    /// Devices that must be connected before a round begins; a cohort if `None`.
    pub wait_for: Option<usize>,
    /// Devices invited beyond the cohort, as a share of it; the first that join take part.
    pub over_select: f64,
    /// The share of a cohort that must answer for its sum to count.
    pub quorum: f64,
    /// The share of a cohort that may vanish in the middle of a sum: keys are shared so that the
    /// others can finish it.
    pub drop_out: f64,
    /// Cohorts with which a round is tried. If all of them fail, the round changes nothing.
    pub attempts: u32,
    /// The longest step that a round may take, as the norm of the change of the params; unbounded
    /// if `None`.
    pub max_step: Option<f64>,
    /// Whether to ask for no histogram of losses that training does not need.
    pub no_survey: bool,
    /// Whether not to ask cohorts about the error on the examples that devices hold out.
    pub no_evaluation: bool,
    /// The assumed behaviour of the server, against which rounds protect their devices.
    pub adversary: ServerBehaviour,
    /// The share of a cohort that may collude with the server.
    pub gamma: f64,
    /// Devices of a cohort that may collude with the server, however small the cohort is.
    pub accomplices: u32,
    /// Seconds for each step of the key set-up.
    pub setup_deadline: u64,
    /// Seconds to fetch params, train and answer.
    pub answer_deadline: u64,
    /// Seconds for each of the last two steps of a sum: the consistency check and the unmasking.
    pub unmask_deadline: u64,
    /// Seconds that a server which continues a round of another one waits for its devices to come
    /// back.
    pub come_back_deadline: u64,
    /// Kilobytes per second at which a device must send its answer.
    pub min_rate: u32,
    /// Megabytes per second for devices that connect without the newest params. With 0 they fetch
    /// params only when they are asked something.
    pub newest_rate: u64,
}

impl Default for ServerConfig {
    fn default() -> Self {
        let ThreatOptions { adversary, gamma, accomplices } = ThreatOptions::default();
        Self {
            out: None,
            listen: SocketAddr::from(([127, 0, 0, 1], 7700)),
            certs: None,
            authority_here: false,
            database: None,
            blobs: None,
            http: None,
            stay: false,
            drawn_cohorts: false,
            public_models: false,
            open: false,
            allow_close_levels: false,
            kernel: None,
            wait_for: None,
            over_select: 0.0,
            quorum: 0.5,
            drop_out: 0.2,
            attempts: 5,
            max_step: None,
            no_survey: false,
            no_evaluation: false,
            adversary,
            gamma,
            accomplices,
            setup_deadline: 30,
            answer_deadline: 600,
            unmask_deadline: 30,
            come_back_deadline: 150,
            min_rate: 64,
            newest_rate: 100,
        }
    }
}

/// Where the server may lie, more than half of those invited must stay (docs/threat-model.md).
const MOST_OVER_SELECTED: f64 = 0.5;

impl ServerConfig {
    /// Bounds on the memory and bandwidth that devices can make the server use.
    pub(super) fn limits(&self) -> Limits {
        Limits {
            min_rate: 1000 * self.min_rate,
            newest_rate: 1_000_000 * self.newest_rate,
            ..Limits::default()
        }
    }

    /// The threat that rounds protect against.
    fn guard(&self) -> Result<ThreatAssumptions, InvalidShare> {
        let (adversary, gamma, accomplices) = (self.adversary, self.gamma, self.accomplices);
        ThreatOptions { adversary, gamma, accomplices }.assumptions()
    }

    /// Returns the rules for `devices` devices, and the number of devices that a round invites.
    pub(super) fn rules(&self, planned: usize, devices: usize) -> Result<(Rules, usize), InvalidShare> {
        let share = |option: &'static str, value: f64, most: f64| {
            let valid = (0.0..=most).contains(&value);
            valid.then_some(value).ok_or(InvalidShare { option, value, most })
        };
        let cohort = planned.min(devices);
        let extra = share("over-select", self.over_select, MOST_OVER_SELECTED)? * cohort as f64;
        let invited = planned + extra.ceil() as usize;
        let quorum = (share("quorum", self.quorum, 1.0)? * cohort as f64).ceil() as usize;
        let max_step = self.max_step.map(|most| share("max-step", most, f64::INFINITY)).transpose()?;
        let dropping = (1000.0 * share("drop-out", self.drop_out, 0.5)?) as u16;
        let rules = Rules {
            present: self.wait_for.unwrap_or(cohort).min(devices),
            quorum: quorum.max(2),
            dropping: Permille::new(dropping).unwrap_or_default(),
            deadlines: Deadlines {
                setup: Duration::from_secs(self.setup_deadline),
                input: Duration::from_secs(self.answer_deadline),
                unmask: Duration::from_secs(self.unmask_deadline),
            },
            max_step,
            attempts: self.attempts.max(1),
            come_back: Duration::from_secs(self.come_back_deadline),
            guard: self.guard()?,
            ..Rules::new(cohort, devices)
        };
        Ok((rules, invited))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_on_the_step_that_bounds_nothing_is_rejected() {
        let rules =
            |most: f64| ServerConfig { max_step: Some(most), ..ServerConfig::default() }.rules(10, 10);
        assert_eq!(rules(2.5).unwrap().0.max_step, Some(2.5));
        for most in [f64::NAN, -1.0] {
            assert_eq!(rules(most).err().map(|error| error.option), Some("max-step"));
        }
    }
}
