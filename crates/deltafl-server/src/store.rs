//! What the server remembers: SQLite (one file) or Postgres for facts, a folder or S3 for params.
//!
//! A round is committed atomically: the params of every track go to the blobs first, under the hash of their content, and
//! one transaction then names them. A server that is killed at any moment finds either the round or the one before it.
//! The transaction also checks the *fence* of the leader: one that has been deposed without knowing it commits nothing.
//!
//! Each call is patient: while the database is locked or gone, it tries again with growing pauses.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use deltafl_data::run_folder::Difference;

mod blobs;
mod commit;
mod database;
mod devices;
mod draws;
mod evaluations;
mod federations;
mod lease;
mod losses;
mod migrations;
mod models;
mod retry;
mod rosters;
mod slots;
mod tokens;

pub use blobs::BlobHash;
pub use commit::{Commit, CommittedRound};
pub use devices::{EnrolledDevice, NewDevice};
pub use federations::FederationRow;
pub use lease::{Fence, Lease};
pub use losses::{KnownLosses, LossPercentiles, RoundLosses};
pub use models::ModelRow;
pub use slots::{Slot, SlotKey};

use blobs::Blobs;
use database::Database;
use deltafl_wire::identity::{DeviceName, FederationName};

/// Where the store lies.
#[derive(Clone, Debug)]
pub struct StoreSettings {
    /// `sqlite:PATH` or `postgres://…`.
    pub database: String,
    /// A folder, or `s3://BUCKET/PREFIX` with the feature `s3`.
    pub blobs: String,
    /// How long a call tries again before it gives up.
    pub patience: Duration,
    /// How long a leader that is not heard of still leads.
    pub lease: Duration,
}

impl StoreSettings {
    /// A database and a folder of blobs side by side, with the default patience.
    pub fn in_folder(folder: &std::path::Path) -> Self {
        Self::new(
            format!("sqlite:{}", folder.join("deltafl.sqlite").display()),
            folder.join("blobs").display().to_string(),
        )
    }

    /// The default patience: a minute, and a leader is replaced after six seconds of silence.
    pub fn new(database: String, blobs: String) -> Self {
        Self { database, blobs, patience: Duration::from_secs(60), lease: Duration::from_secs(6) }
    }
}

/// Why the store cannot do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The database failed for longer than the patience lasts, or for a reason that no patience helps.
    #[error("the database failed")]
    Database(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The blobs failed.
    #[error("the blobs failed")]
    Blobs(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A file failed.
    #[error("{path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A place that is none.
    #[error("{place:?} is no place for {what}")]
    Place {
        /// What was to be kept there.
        what: &'static str,
        /// The place.
        place: String,
    },
    /// The system gave no randomness.
    #[error("the system gave no randomness")]
    Randomness,
    /// A database that a newer version of us has written.
    #[error("the database has schema {found}, and this version knows {known}: use a newer deltafl")]
    Newer {
        /// Its version.
        found: i64,
        /// Ours.
        known: i64,
    },
    /// No such federation.
    #[error("there is no federation {federation}")]
    NoFederation {
        /// The name.
        federation: FederationName,
    },
    /// The federation trains another experiment.
    #[error("the experiment has changed since federation {federation} started")]
    Changed {
        /// The name.
        federation: FederationName,
        /// What differs.
        differences: Vec<Difference>,
    },
    /// The name is taken.
    #[error("device {name} is enrolled already")]
    DeviceExists {
        /// The name.
        name: DeviceName,
    },
    /// The number is not the next.
    #[error("device {name} has number {got} where {expected} is next")]
    Number {
        /// The device.
        name: DeviceName,
        /// Its number.
        got: u32,
        /// The next free one.
        expected: u32,
    },
    /// No such device.
    #[error("there is no device {name}")]
    NoDevice {
        /// The name.
        name: DeviceName,
    },
    /// The token is unknown, used up or expired; which, the one who shows it is not told.
    #[error("the token is not valid, used up or expired")]
    TokenRefused,
    /// Another server leads.
    #[error("another server leads federation {federation}")]
    Deposed {
        /// The federation.
        federation: FederationName,
    },
    /// The round has been committed with another outcome.
    #[error("{round} rounds of seed {seed} are committed already, with another state")]
    Conflict {
        /// The seed.
        seed: u64,
        /// Rounds done.
        round: u64,
    },
    /// What was stored cannot be read back.
    #[error("the stored {what} is damaged")]
    Damaged {
        /// What.
        what: &'static str,
    },
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error.into())
    }
}

impl From<object_store::Error> for StoreError {
    fn from(error: object_store::Error) -> Self {
        Self::Blobs(error.into())
    }
}

/// The memory of a server. Clones share it.
#[derive(Clone, Debug)]
pub struct Store(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    database: Database,
    blobs: Blobs,
    settings: StoreSettings,
}

impl Store {
    /// Opens the store, and brings its schema up to date.
    pub async fn open(settings: &StoreSettings) -> Result<Self, StoreError> {
        let store = Self(Arc::new(Shared {
            database: Database::connect(&settings.database)?,
            blobs: Blobs::new(&settings.blobs),
            settings: settings.clone(),
        }));
        retry::patiently!(store, migrations::run(&store.0.database))?;
        Ok(store)
    }

    /// Whether the database answers now: what a readiness probe asks.
    pub async fn ping(&self) -> Result<(), StoreError> {
        self.database().ping().await
    }

    /// Where it lies.
    pub fn settings(&self) -> &StoreSettings {
        &self.0.settings
    }

    fn database(&self) -> &Database {
        &self.0.database
    }

    fn blobs(&self) -> &Blobs {
        &self.0.blobs
    }

    fn backoff(&self) -> retry::Backoff {
        retry::Backoff::new(self.0.settings.patience)
    }
}
