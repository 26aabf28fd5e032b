//! Time on the wall, or on the CPU.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use miette::{IntoDiagnostic, Result, WrapErr};

/// A clock to measure with.
#[derive(Clone, Copy, Debug)]
pub(super) enum Clock {
    /// The time on the wall.
    Wall,
    /// The time that this thread has run on a CPU.
    Cpu,
}

/// Where Linux tells how many nanoseconds the reading thread has run.
const RUN_TIME: &str = "/proc/thread-self/schedstat";

impl Clock {
    /// The clock asked for, when this system has it.
    pub(super) fn new(cpu: bool) -> Result<Self> {
        if !cpu {
            return Ok(Self::Wall);
        }
        std::fs::read(RUN_TIME)
            .into_diagnostic()
            .wrap_err("this system does not tell the CPU time of a thread")?;
        Ok(Self::Cpu)
    }

    /// Time since some moment that stays the same.
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
