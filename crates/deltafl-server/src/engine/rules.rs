//! How rounds are run with devices that come and go.

use std::time::Duration;

use deltafl_secagg::graph::Permille;
use deltafl_wire::threat::ThreatAssumptions;

use crate::round::Deadlines;

/// How rounds are run with devices that come and go.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// m: the devices that are enough for a round. More may be drawn, and the invitation closes when so many have come.
    pub cohort: usize,
    /// Devices that must be there before a round begins.
    pub present: usize,
    /// The fewest devices in a sum.
    pub quorum: usize,
    /// Against whom rounds protect their devices.
    pub guard: ThreatAssumptions,
    /// δ, the share that may drop out, in thousandths.
    pub dropping: Permille,
    /// How long devices may take.
    pub deadlines: Deadlines,
    /// The longest wait between two attempts when a round came to nothing.
    pub pause: Duration,
    /// Cohorts with which a round is begun before it is given up: devices answer nothing twice, so that where most have
    /// answered no cohort comes to a sum. A round that is given up moves nothing, and the next one asks anew.
    pub attempts: u32,
    /// How long a round waits for the devices of its cohort to come back to a server that goes on with it, and for devices that
    /// it has not asked when it is begun anew.
    pub come_back: Duration,
    /// The longest step ‖Δ‖ that a round may take; `None` sets no bound.
    pub max_step: Option<f64>,
}

impl Rules {
    /// The rules for cohorts of m of so many devices: half of a cohort makes a sum, 5 % may collude with a server that lies.
    pub fn new(cohort: usize, devices: usize) -> Self {
        let cohort = cohort.min(devices);
        Self {
            cohort,
            present: cohort,
            quorum: cohort.div_ceil(2).max(2),
            guard: ThreatAssumptions::default(),
            dropping: Permille::new(200).expect("at most one half"),
            deadlines: Deadlines::default(),
            pause: Duration::from_secs(1),
            attempts: 5,
            come_back: Duration::from_secs(150),
            max_step: None,
        }
    }
}
