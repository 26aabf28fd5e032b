//! Waiting for the devices of a round that has already started.

use std::collections::BTreeSet;
use std::time::Duration;

use deltafl::exchange::{ExchangeError, Reachable};
use tokio::time::Instant;

use super::NetworkExchange;
use crate::hub::Hub;

/// The interval at which a waiting server checks whether it must stop.
pub(super) const GLANCE: Duration = Duration::from_millis(200);

/// The interval at which the round loop logs that it waits for devices.
const LOG_EVERY: Duration = Duration::from_secs(30);

/// Logs the number of connected, ready and required devices while the round loop waits.
pub(super) struct WaitingLog {
    wanted: usize,
    next: Instant,
}

impl WaitingLog {
    pub(super) fn new(wanted: usize) -> Self {
        Self { wanted, next: Instant::now() + LOG_EVERY / 3 }
    }

    /// Writes a log entry if the last one is old enough.
    pub(super) fn note(&mut self, hub: &Hub) {
        if Instant::now() < self.next {
            return;
        }
        self.next = Instant::now() + LOG_EVERY;
        let (connected, ready) = hub.presence();
        let sessions = hub.sessions().summary();
        tracing::info!(connected, ready, wanted = self.wanted, sessions, "waiting for devices");
    }
}

impl NetworkExchange {
    /// Waits for the cohort of a previous server's round. Returns `true` if enough of its devices
    /// are ready to resume. Missing devices count as dropped out.
    pub(super) fn comes_back(&mut self, cohort: &BTreeSet<u32>) -> Result<bool, ExchangeError> {
        // If cohorts are drawn, each key set-up has its own draw.
        if self.opening(self.setups + 1).is_some() {
            return Ok(false);
        }
        let there = |ready: &[bool]| cohort.iter().filter(|&&place| is_ready(ready, place)).count();
        let ready = self.wait_until(cohort.len(), |ready| there(ready) == cohort.len())?;
        Ok(there(&ready) >= self.rules.quorum)
    }

    /// Waits for devices that this round has not asked, and gives up the round if there are too
    /// few.
    pub(super) fn others(&mut self) -> Result<Reachable, ExchangeError> {
        let known = self.link.hub.known();
        let fresh: Vec<bool> = (0..)
            .zip(known.roster.entries())
            .map(|(place, entry)| !entry.revoked && !self.round_in_progress.has_asked(place))
            .collect();
        let both = |ready: &[bool]| -> Vec<bool> {
            ready.iter().zip(&fresh).map(|(&ready, &fresh)| ready && fresh).collect()
        };
        let enrolled = count(&fresh);
        let wanted = self.rules.present.max(self.rules.cohort).min(enrolled);
        let mut ready = Vec::new();
        if enrolled >= self.rules.quorum {
            ready = both(&self.wait_until(wanted, |ready| count(&both(ready)) >= wanted)?);
        }
        if count(&ready) < self.rules.quorum {
            tracing::warn!(enrolled, ready = count(&ready), "too few devices were not asked in this round");
            self.give_up();
            return Ok(Reachable::Everyone);
        }
        Ok(Reachable::Some(self.drawn(ready)))
    }

    /// Waits until `enough` holds for the ready devices, at most for [`Rules::come_back`]. Returns
    /// the devices that are ready then. `wanted` is the number of devices for the log.
    fn wait_until(
        &mut self,
        wanted: usize,
        enough: impl Fn(&[bool]) -> bool,
    ) -> Result<Vec<bool>, ExchangeError> {
        let (deadline, mut log) = (Instant::now() + self.rules.come_back, WaitingLog::new(wanted));
        loop {
            self.check_stop()?;
            let now = Instant::now();
            if self.link.wait_until(&enough, deadline.min(now + GLANCE)) || now >= deadline {
                return Ok(self.link.hub.ready());
            }
            log.note(&self.link.hub);
        }
    }
}

fn is_ready(ready: &[bool], place: u32) -> bool {
    ready.get(place as usize).copied().unwrap_or(false)
}

fn count(devices: &[bool]) -> usize {
    devices.iter().filter(|&&device| device).count()
}
