//! The computing time that a device spends per day.

use std::time::Duration;

use tokio::time::Instant;

/// One day, the period of the computing budget.
pub(super) const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The computing time used on the current day.
#[derive(Debug, Default)]
pub(crate) struct ComputeTimeBudget {
    since: Option<Instant>,
    used: Duration,
}

impl ComputeTimeBudget {
    /// Returns the time until budget is available again, or `None` if it is available now.
    pub(crate) fn wait(&mut self, budget: Duration) -> Option<Duration> {
        let age = self.since.get_or_insert_with(Instant::now).elapsed();
        if age >= DAY {
            *self = Self { since: Some(Instant::now()), used: Duration::ZERO };
        }
        (self.used >= budget).then(|| DAY.saturating_sub(age))
    }

    pub(crate) fn spend(&mut self, time: Duration) {
        self.used += time;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spent_budget_means_waiting_for_the_next_day() {
        let mut ledger = ComputeTimeBudget::default();
        let budget = Duration::from_secs(60);
        assert_eq!(ledger.wait(budget), None);
        ledger.spend(budget);
        assert!(ledger.wait(budget).is_some_and(|wait| wait > Duration::from_secs(23 * 60 * 60)));
    }
}
