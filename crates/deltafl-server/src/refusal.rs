//! What the server refuses, counted by reason.

use std::sync::atomic::{AtomicU64, Ordering};

/// Why a connection or a message was turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Refusal {
    /// No certificate, an expired one, or another federation's: the TLS handshake failed.
    Handshake,
    /// The connection did not say who it is in time.
    Silent,
    /// A name that is not on the roster.
    Unknown,
    /// A device whose certificate was withdrawn.
    Revoked,
    /// A device that claims the name of another.
    Impostor,
    /// More connections than a device has reason to open.
    Crowding,
    /// More connections at once than the server takes.
    Full,
    /// A message that is not of the protocol, or says nothing that makes sense.
    Malformed,
    /// A message longer than any that the present round calls for.
    TooLong,
    /// A message of an earlier phase or round: a straggler, or a replay.
    Late,
    /// A message that secure aggregation refused, or a lie that it found.
    Dishonest,
    /// Two devices of a cohort of which one lies, and nothing tells which.
    Disputed,
    /// A device that does not read what it is sent, or stops in the middle of a message.
    Stalled,
    /// A sum that no honest devices make: it was thrown away, and its round begun anew.
    Implausible,
    /// A device that was connected and became neither ready nor declined within the time limit.
    NotReady,
    /// A connection or a session that began while the server was shutting down.
    Closing,
}

impl Refusal {
    /// Every reason.
    pub const ALL: [Self; 16] = [
        Self::Handshake,
        Self::Silent,
        Self::Unknown,
        Self::Revoked,
        Self::Impostor,
        Self::Crowding,
        Self::Full,
        Self::Malformed,
        Self::TooLong,
        Self::Late,
        Self::Dishonest,
        Self::Disputed,
        Self::Stalled,
        Self::Implausible,
        Self::NotReady,
        Self::Closing,
    ];

    /// Its name in metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Handshake => "handshake",
            Self::Silent => "silent",
            Self::Unknown => "unknown",
            Self::Revoked => "revoked",
            Self::Impostor => "impostor",
            Self::Crowding => "crowding",
            Self::Full => "full",
            Self::Malformed => "malformed",
            Self::TooLong => "too_long",
            Self::Late => "late",
            Self::Dishonest => "dishonest",
            Self::Disputed => "disputed",
            Self::Stalled => "stalled",
            Self::Implausible => "implausible",
            Self::NotReady => "not_ready",
            Self::Closing => "closing",
        }
    }
}

/// How often each was refused since the server started.
#[derive(Debug, Default)]
pub struct Refusals([AtomicU64; Refusal::ALL.len()]);

impl Refusals {
    /// Counts one more.
    pub fn count(&self, refusal: Refusal) {
        self.0[refusal as usize].fetch_add(1, Ordering::Relaxed);
        tracing::debug!(reason = refusal.name(), "refused");
    }

    /// How often this was refused.
    pub fn of(&self, refusal: Refusal) -> u64 {
        self.0[refusal as usize].load(Ordering::Relaxed)
    }
}
