//! The reasons for which a device refuses.

use deltafl_wire::proto;

/// The reason for which a device does not participate for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The device is in use.
    Busy,
    /// The device is not charging.
    Battery,
    /// The owner's agreement does not allow it.
    Policy,
    /// The device cannot do the work.
    Unable,
    /// The device has answered this before.
    Answered,
}

impl Reason {
    pub(crate) fn to_wire(self) -> proto::Decline {
        use proto::decline::Reason as Wire;
        let reason = match self {
            Self::Busy => Wire::Busy,
            Self::Battery => Wire::Battery,
            Self::Policy => Wire::Policy,
            Self::Unable => Wire::Unable,
            Self::Answered => Wire::Answered,
        };
        proto::Decline { reason: reason.into() }
    }
}

/// The reason for which a device does not participate in an experiment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotAllowed {
    /// The experiment is not on the device's list.
    #[error("experiment {0} is not on this device's list")]
    Experiment(String),
    /// The model is not on the device's list.
    #[error("model {0} is not on this device's list")]
    Model(String),
    /// The server asks for individual losses.
    #[error("the server trains in open mode, to which this device's owner did not agree")]
    Open,
    /// The data contract differs from the contract for which the device prepared its examples.
    #[error(
        "the server has another contract of the data than the one that this device prepared its examples for"
    )]
    OtherContract,
    /// The model of the server differs from the model of the device.
    #[error("the server trains {theirs} parameters, this device's model has {ours}")]
    OtherModel {
        /// The number of parameters of the server's model.
        theirs: u64,
        /// The number of parameters of the device's model.
        ours: u64,
    },
}

/// The reason for which a device refuses the work of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TooMuch {
    #[error(
        "a question of {passes} passes over the examples, more than the {most} that this device's owner allows"
    )]
    Passes { passes: u64, most: u64 },
    #[error("steps on batches of {batch} examples, more than {most}")]
    Batch { batch: u64, most: u64 },
    #[error(
        "a question that weighs devices by their examples, to which this device's owner did not agree: \
             weights = \"uniform\" or \"bucketed\" tells nothing or little of a device"
    )]
    Weights,
    #[error(
        "a question that weighs devices by classes of their sizes, to which this device's owner did not agree"
    )]
    Bucketed,
    #[error(
        "an update on batches of {batch} examples, fewer than the {least} that this device's owner requires"
    )]
    SmallBatch { batch: u64, least: u64 },
    #[error("an update of {steps} steps, fewer than the {least} that this device's owner requires")]
    FewSteps { steps: u64, least: u64 },
    #[error("an answer from {examples} examples, fewer than the {least} that this device's owner requires")]
    FewExamples { examples: u64, least: u64 },
    #[error("a question in which several tracks share this device, unlike tracks = \"in-turn\" or \"apart\"")]
    Together,
    #[error("a question that asks track {0} the same thing twice, or at several params")]
    Twice(u32),
    #[error("a question for updates of {asked} of {tracks} tracks among which the cohort is divided")]
    SomeTracks { asked: u64, tracks: u64 },
    #[error("a question for updates with different work for the tracks among which the cohort is divided")]
    UnequalWork,
    #[error("a question of run {run}, where the authority has signed {runs}")]
    UnsignedRun { run: u64, runs: u64 },
    #[error("a question for {members} devices that {active} devices answer")]
    Members { members: u64, active: u64 },
    #[error(
        "a question that divides {members} devices among {tracks} tracks: fewer than {least} would hide each other"
    )]
    Divided { members: u64, tracks: u64, least: u64 },
}
