//! The refusals of the server, counted by reason.

use std::sync::atomic::{AtomicU64, Ordering};

/// The reason for which a connection or a message was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Refusal {
    /// The TLS handshake failed: the certificate is missing, expired or of another federation.
    Handshake,
    /// The connection did not send its Hello in time.
    Silent,
    /// The name is not on the roster.
    Unknown,
    /// The certificate of the device was revoked.
    Revoked,
    /// The device claims the name of another.
    Impostor,
    /// The device opens too many connections.
    Crowding,
    /// The server has too many connections.
    Full,
    /// The message is not part of the protocol or is invalid.
    Malformed,
    /// The message is longer than the current round allows.
    TooLong,
    /// The message belongs to an earlier phase or round. It is late or replayed.
    Late,
    /// Secure aggregation refused the message or detected an invalid one.
    Dishonest,
    /// One of two devices of a cohort is malicious, and the server cannot determine which.
    Disputed,
    /// The device does not read its messages, or stops in the middle of a message.
    Stalled,
    /// The sum is impossible for honest devices. It was discarded, and its round restarted.
    Implausible,
    /// The connected device neither became ready nor declined within the time limit.
    NotReady,
    /// The connection or session began while the server was shutting down.
    Closing,
}

impl Refusal {
    /// All reasons.
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

    /// The name in metrics and logs.
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

/// The number of refusals for each reason since the server started.
#[derive(Debug, Default)]
pub struct Refusals([AtomicU64; Refusal::ALL.len()]);

impl Refusals {
    /// Counts one refusal.
    pub fn count(&self, refusal: Refusal) {
        self.0[refusal as usize].fetch_add(1, Ordering::Relaxed);
        tracing::debug!(reason = refusal.name(), "refused");
    }

    /// Returns the number of refusals for this reason.
    pub fn number_of(&self, refusal: Refusal) -> u64 {
        self.0[refusal as usize].load(Ordering::Relaxed)
    }
}
