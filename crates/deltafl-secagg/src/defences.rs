//! Defences that a test can switch off one at a time.
//!
//! A test of an attack must succeed with its defence off and read nothing with it on. The switches
//! work only under the feature `test-util` and in the tests of this crate. In every other build all
//! defences are on. `scripts/defences` switches off one after another with the environment
//! variable `DELTAFL_WITHOUT` and checks that a test fails.

#[cfg(any(test, feature = "test-util"))]
#[path = "../test-util/switched.rs"]
mod switched;

/// A defence of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Defence {
    /// The members are at least 1 − δ of the announced cohort.
    MembersOfCohort,
    /// The threshold of a full graph follows from the announced cohort, not from the members.
    ThresholdOfCohort,
    /// More than half of the cohort signed the list of members of a drawn graph.
    ListQuorum,
    /// The number of skipped rounds is limited.
    BoundedSkips,
    /// A round is joined once.
    JoinedOnce,
    /// The owner's least number of members.
    MinMembers,
    /// The graph protects against the adversary of the policy.
    AdversaryModel,
    /// A revealed nonce matches its commitment.
    NonceCommitment,
    /// The bundle of a neighbour on a sparse graph matches the list of members.
    BundleOnList,
    /// t devices of the circle are present.
    CircleThreshold,
    /// A device that dropped out does not return.
    NoReturn,
    /// Signatures with points of small order are invalid.
    StrictSignatures,
    /// A device reveals shares after t signatures on its transcript.
    Attestations,
    /// The transcript contains the header of the round.
    TranscriptHeader,
    /// The transcript contains the members and their keys.
    TranscriptMembers,
    /// The signature on a masked input contains the previous transcript.
    MaskedChain,
    /// The secret of a pair depends on both ciphertexts.
    PairCiphertexts,
    /// The key of a box depends on its ciphertext.
    BoxCiphertext,
}

impl Defence {
    /// All defences with the names that `DELTAFL_WITHOUT` uses.
    pub const NAMES: &[(&str, Self)] = &[
        ("members-of-cohort", Self::MembersOfCohort),
        ("threshold-of-cohort", Self::ThresholdOfCohort),
        ("list-quorum", Self::ListQuorum),
        ("bounded-skips", Self::BoundedSkips),
        ("joined-once", Self::JoinedOnce),
        ("min-members", Self::MinMembers),
        ("adversary-model", Self::AdversaryModel),
        ("nonce-commitment", Self::NonceCommitment),
        ("bundle-on-list", Self::BundleOnList),
        ("circle-threshold", Self::CircleThreshold),
        ("no-return", Self::NoReturn),
        ("strict-signatures", Self::StrictSignatures),
        ("attestations", Self::Attestations),
        ("transcript-header", Self::TranscriptHeader),
        ("transcript-members", Self::TranscriptMembers),
        ("masked-chain", Self::MaskedChain),
        ("pair-ciphertexts", Self::PairCiphertexts),
        ("box-ciphertext", Self::BoxCiphertext),
    ];
}

/// A set of defences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Defences(u64);

impl Defences {
    /// Every defence.
    pub const ALL: Self = Self(u64::MAX);

    /// Returns the set without one defence. It has no effect without the feature `test-util`.
    #[must_use]
    pub fn without(self, defence: Defence) -> Self {
        if cfg!(any(test, feature = "test-util")) { Self(self.0 & !(1 << defence as u32)) } else { self }
    }

    /// Returns true if the defence is on.
    pub(crate) fn has(self, defence: Defence) -> bool {
        self.0 & (1 << defence as u32) != 0
    }
}

/// Every defence. Under the feature `test-util`, those named in `DELTAFL_WITHOUT` are off.
impl Default for Defences {
    fn default() -> Self {
        #[cfg(any(test, feature = "test-util"))]
        return switched::switched();
        #[cfg(not(any(test, feature = "test-util")))]
        Self::ALL
    }
}

/// Returns true if the defence is on in this process.
pub(crate) fn is_on(defence: Defence) -> bool {
    Defences::default().has(defence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_defence_has_a_name_of_its_own() {
        let names: std::collections::BTreeSet<&str> = Defence::NAMES.iter().map(|(name, _)| *name).collect();
        assert_eq!(names.len(), Defence::NAMES.len());
        for (place, (name, defence)) in Defence::NAMES.iter().enumerate() {
            assert_eq!(place, *defence as usize, "{name}");
            assert!(!Defences::ALL.without(*defence).has(*defence));
        }
    }
}
