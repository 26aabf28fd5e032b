//! Defences that a test can switch off one at a time.
//!
//! The switches work only under the feature `test-util`. In every other build all defences are on.
//! `scripts/defences` switches off one after another and checks that a test fails.

use deltafl_secagg::defences as protocol;

/// A defence of a device, in addition to those of secure aggregation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Defence {
    /// The device answers each round of a run once, at one w.
    OncePerRound,
    /// The device refuses three kinds of questions: several tracks share it, the weights reveal its
    /// size, or the authority did not sign the run.
    OneTrackPerDevice,
    /// If tracks divide a cohort, the server does not find out the track of a device before its
    /// update.
    SecretTrack,
    /// The numbers of rounds increase across the sessions of an authority.
    OneRoundCounter,
    /// The owner limits the number of answers.
    AnswerBudget,
    /// The owner requires a least batch, steps and examples behind an answer.
    ExamplesBehindAnswer,
    /// The authority signed the roster.
    RosterSignature,
    /// The entry on the roster contains the device's own name and key.
    OwnRosterEntry,
    /// The joined round is on disk before the first message of the round.
    JoinedOnDisk,
    /// A device in private mode answers no question for its loss.
    NoLossInPrivate,
    /// A roster names its predecessor, which the device has accepted.
    RosterLog,
    /// A device outside of the tail trains like the others, so that the time of its answer does not
    /// reveal its membership.
    EqualWork,
    /// A device declines beyond its owner's limit on ε.
    PrivacyLimit,
}

impl Defence {
    /// All defences with the names that `DELTAFL_WITHOUT` uses.
    pub const NAMES: &[(&str, Self)] = &[
        ("once-per-round", Self::OncePerRound),
        ("one-track-per-device", Self::OneTrackPerDevice),
        ("secret-track", Self::SecretTrack),
        ("one-round-counter", Self::OneRoundCounter),
        ("answer-budget", Self::AnswerBudget),
        ("examples-behind-answer", Self::ExamplesBehindAnswer),
        ("roster-signature", Self::RosterSignature),
        ("own-roster-entry", Self::OwnRosterEntry),
        ("joined-on-disk", Self::JoinedOnDisk),
        ("no-loss-in-private", Self::NoLossInPrivate),
        ("roster-log", Self::RosterLog),
        ("equal-work", Self::EqualWork),
        ("privacy-limit", Self::PrivacyLimit),
    ];
}

/// The defences of a device that are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Defences {
    own: u64,
    protocol: protocol::Defences,
}

impl Defences {
    /// Returns the set without one defence. It has no effect without the feature `test-util`.
    #[must_use]
    pub fn without(self, defence: Defence) -> Self {
        match cfg!(any(test, feature = "test-util")) {
            true => Self { own: self.own & !(1 << defence as u32), ..self },
            false => self,
        }
    }

    /// Returns the set without one defence of secure aggregation. It has no effect without the
    /// feature `test-util`.
    #[must_use]
    pub fn without_protocol(self, defence: protocol::Defence) -> Self {
        Self { protocol: self.protocol.without(defence), ..self }
    }

    /// Returns true if the defence is on.
    pub(crate) fn has(self, defence: Defence) -> bool {
        self.own & (1 << defence as u32) != 0
    }

    /// Returns the defences of secure aggregation.
    pub(crate) fn protocol(self) -> protocol::Defences {
        self.protocol
    }
}

/// Every defence. Under the feature `test-util`, those named in `DELTAFL_WITHOUT` are off.
impl Default for Defences {
    fn default() -> Self {
        let all = Self { own: u64::MAX, protocol: protocol::Defences::default() };
        if !cfg!(any(test, feature = "test-util")) {
            return all;
        }
        let names = std::env::var("DELTAFL_WITHOUT").unwrap_or_default();
        let off = Defence::NAMES.iter().filter(|(name, _)| names.split(',').any(|off| off == *name));
        off.fold(all, |all, (_, defence)| all.without(*defence))
    }
}
