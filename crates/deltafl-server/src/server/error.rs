//! Why a server ends.

use deltafl::training::InvalidPlan;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use deltafl::training::TrainingError;
use deltafl_data::run_folder::RunFolderError;
use deltafl_wire::identity::IdentityError;
use deltafl_wire::roster::RosterError;
use deltafl_wire::threat::InvalidShare;

use super::checks::Undeployable;
use crate::committer::CatchUpError;
use crate::roster_renewal::RenewalError;
use crate::serve::StartError;
use crate::store::StoreError;

/// Why a server does not start, or ends before its rounds are done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The experiment must not be deployed.
    #[error(transparent)]
    Undeployable(#[from] Undeployable),
    /// An option is out of range.
    #[error(transparent)]
    Option(#[from] InvalidShare),
    /// The plan of the rounds is invalid.
    #[error(transparent)]
    Plan(#[from] InvalidPlan),
    /// There are no certificates and no names of devices.
    #[error("a server without certificates needs the names of its devices")]
    NoDevices,
    /// HTTP without certificates, on an address that other machines reach.
    #[error(
        "{address} can be reached from other machines: without certificates HTTP is served on a loopback address only"
    )]
    InsecureHttp {
        /// The address.
        address: SocketAddr,
    },
    /// The HTTP socket cannot be opened.
    #[error("cannot listen on {address}")]
    Http {
        /// The address.
        address: SocketAddr,
        /// The error of the system.
        source: io::Error,
    },
    /// The certificates cannot be read.
    #[error("the certificates cannot be used")]
    Certificates(#[source] IdentityError),
    /// The folder of the certificates contains the keys of the authority.
    #[error("{} contains the authority's keys: an attacker who controls this machine could create devices", folder.display())]
    AuthorityHere {
        /// The folder of the authority.
        folder: PathBuf,
    },
    /// The TLS configuration is invalid.
    #[error(transparent)]
    Tls(#[from] IdentityError),
    /// The certificate names no federation.
    #[error("the server's certificate is not issued by a federation's authority")]
    NoFederation,
    /// The run folder cannot be used.
    #[error(transparent)]
    Folder(#[from] RunFolderError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// There is no valid roster.
    #[error(transparent)]
    Renewal(#[from] RenewalError),
    /// The roster of a server without certificates is invalid.
    #[error(transparent)]
    Roster(#[from] RosterError),
    /// The server cannot listen.
    #[error("the server cannot start")]
    Start(#[from] StartError),
    /// The authority has signed fewer runs than the experiment has seeds.
    #[error("the authority has signed {signed} runs, and the experiment has {seeds} seeds")]
    TooFewRuns {
        /// Signed runs.
        signed: u64,
        /// Seeds of the experiment.
        seeds: u64,
    },
    /// A round failed.
    #[error(transparent)]
    Training(#[from] TrainingError),
    /// The threads of the server cannot be started.
    #[error("the threads of the server cannot be started")]
    Runtime(#[source] io::Error),
    /// The system returned no random numbers.
    #[error("the system returned no random numbers")]
    Random(#[from] getrandom::Error),
}

impl From<CatchUpError> for ServerError {
    fn from(error: CatchUpError) -> Self {
        match error {
            CatchUpError::Store(error) => Self::Store(error),
            CatchUpError::Folder(error) => Self::Folder(error),
        }
    }
}

/// The command that signs a roster where the keys of the authority are.
pub(super) const SIGN: &str = "where they are:  deltafl certs roster --certs certs --database URL";

impl ServerError {
    /// Whether the caller has to act: an option, the experiment or a file is invalid. Otherwise
    /// something failed.
    pub fn is_invalid_input(&self) -> bool {
        match self {
            Self::Undeployable(_)
            | Self::Option(_)
            | Self::Plan(_)
            | Self::NoDevices
            | Self::InsecureHttp { .. }
            | Self::Http { .. }
            | Self::Certificates(_)
            | Self::AuthorityHere { .. }
            | Self::NoFederation
            | Self::TooFewRuns { .. }
            | Self::Start(_) => true,
            Self::Renewal(RenewalError::Store(error)) | Self::Store(error) => matches!(
                error,
                StoreError::Changed { .. }
                    | StoreError::Place { .. }
                    | StoreError::Newer { .. }
                    | StoreError::NoFederation { .. }
                    | StoreError::NoDevice { .. }
                    | StoreError::DeviceExists { .. }
                    | StoreError::Number { .. }
            ),
            Self::Renewal(error) => matches!(error, RenewalError::Unsigned | RenewalError::Expired),
            Self::Folder(error) => {
                !matches!(error, RunFolderError::Io { .. } | RunFolderError::Locked { .. })
            }
            Self::Tls(_) | Self::Roster(_) | Self::Training(_) | Self::Runtime(_) | Self::Random(_) => false,
        }
    }

    /// How to fix it, if the error has a known fix.
    pub fn help(&self) -> Option<String> {
        match self {
            Self::Undeployable(error) => Some(error.help().to_owned()),
            Self::TooFewRuns { seeds, .. } => {
                Some(format!("where the authority's keys are: deltafl certs roster --runs {seeds}"))
            }
            Self::Certificates(_) => Some("create them with deltafl certs".to_owned()),
            Self::AuthorityHere { .. } => Some(
                "move it to another machine and sign rosters there (deltafl certs roster), or allow it with \
                 --authority-here"
                    .to_owned(),
            ),
            Self::Renewal(RenewalError::Unsigned | RenewalError::Expired) => Some(SIGN.to_owned()),
            Self::Store(StoreError::Changed { differences, .. })
            | Self::Renewal(RenewalError::Store(StoreError::Changed { differences, .. })) => {
                let keys: Vec<&str> = differences.iter().map(|difference| difference.key.as_str()).collect();
                Some(format!("restore {}, or use another --database", keys.join(", ")))
            }
            _ => None,
        }
    }
}
