//! Wall-clock time and CPU time.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use miette::{IntoDiagnostic, Result, WrapErr};

/// A clock to measure with.
#[derive(Clone, Copy, Debug)]
pub(super) enum BenchClock {
    /// Wall-clock time.
    Wall,
    /// The CPU time of this thread.
    Cpu,
}

/// The file in which Linux reports the CPU time of the reading thread in nanoseconds.
const RUN_TIME: &str = "/proc/thread-self/schedstat";

impl BenchClock {
    /// Returns the requested clock, if the system supports it.
    pub(super) fn new(cpu: bool) -> Result<Self> {
        if !cpu {
            return Ok(Self::Wall);
        }
        std::fs::read(RUN_TIME)
            .into_diagnostic()
            .wrap_err("this system does not report the CPU time of a thread")?;
        Ok(Self::Cpu)
    }

    /// Returns the time since a fixed moment.
    pub(super) fn now(self) -> Duration {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        match self {
            Self::Wall => START.elapsed(),
            Self::Cpu => cpu_time().unwrap_or_default(),
        }
    }
}

fn cpu_time() -> Option<Duration> {
    let text = std::fs::read_to_string(RUN_TIME).ok()?;
    text.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}
