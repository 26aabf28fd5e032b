//! Rules for rounds with devices that connect and disconnect.

use std::time::Duration;

use deltafl_secagg::graph::Permille;
use deltafl_wire::threat::ThreatAssumptions;

use crate::round::Deadlines;

/// Rules for rounds with devices that connect and disconnect.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// m: the number of devices that a round needs. More may be drawn, and the invitation closes
    /// when this many have joined.
    pub cohort: usize,
    /// The number of devices that must be ready before a round begins.
    pub present: usize,
    /// The minimum number of devices in a sum.
    pub quorum: usize,
    /// The adversary against which rounds protect their devices.
    pub guard: ThreatAssumptions,
    /// δ, the fraction of devices that may drop out, in thousandths.
    pub dropping: Permille,
    /// The time limits for devices.
    pub deadlines: Deadlines,
    /// The maximum delay between two attempts at a round.
    pub pause: Duration,
    /// The number of cohorts that a round tries before it is given up. Devices answer nothing
    /// twice, so no cohort succeeds once most devices have answered. A round that is given up
    /// changes no parameters, and the next round asks again.
    pub attempts: u32,
    /// The time for which a resumed round waits for its cohort to reconnect. A restarted round
    /// waits as long for devices that it has not asked.
    pub come_back: Duration,
    /// The maximum norm ‖Δ‖ of a round's step, unlimited if `None`.
    pub max_step: Option<f64>,
}

impl Rules {
    /// Returns the rules for cohorts of m out of `devices` devices. Half of a cohort suffices for a
    /// sum, and 5 % may collude with a malicious server.
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

    /// Returns δ of a round with this many invited devices. Devices require that 1 − δ of the
    /// invited devices are members. An invitation that closes early therefore counts the devices
    /// that it does not wait for as drop-outs.
    pub(crate) fn dropping_of(&self, invited: u32) -> Permille {
        let awaited = (self.cohort as f64 / f64::from(invited.max(1))).min(1.0);
        let staying = awaited * (1.0 - f64::from(self.dropping.get()) / 1000.0);
        let dropping = (1000.0 * (1.0 - staying)).ceil().clamp(f64::from(self.dropping.get()), 500.0);
        Permille::new(dropping as u16).unwrap_or(self.dropping)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invitation_that_closes_early_leaves_its_other_devices_out() {
        let rules = Rules::new(100, 1000);
        for (invited, delta) in [(100, 200), (80, 200), (125, 360), (150, 467), (300, 500)] {
            assert_eq!(rules.dropping_of(invited).get(), delta, "{invited}");
        }
    }
}
