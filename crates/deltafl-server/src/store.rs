//! The storage of the server: SQLite (one file) or Postgres for records, a folder or S3 for params.
//!
//! A round is committed atomically. The params of every track are first written as blobs under the
//! hash of their content. Then one transaction refers to them. After a crash at any time the store
//! contains either the round or the previous one. The transaction also checks the *fence* of the
//! leader. A leader that was replaced without noticing commits nothing.
//!
//! Each call retries with increasing delays while the database is locked or unavailable.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use deltafl_data::run_folder::ChangedKey;

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
mod setups;
mod slots;
mod tokens;

pub use blobs::BlobHash;
pub use commit::{Commit, CommittedRound};
pub use devices::{EnrolledDevice, NewDevice};
pub use federations::FederationRow;
pub use lease::{Fence, Lease};
pub use losses::{KnownLosses, PublishedLosses, RoundLosses};
pub use models::ModelRow;
pub use slots::{SlotKey, StoredQuestion};

use blobs::BlobStorage;
use database::Database;
use deltafl_wire::identity::{DeviceName, FederationName};

/// The location of the store.
#[derive(Clone, Debug)]
pub struct StoreSettings {
    /// `sqlite:PATH` or `postgres://…`.
    pub database: String,
    /// A folder, or `s3://BUCKET/PREFIX` with the feature `s3`.
    pub blobs: String,
    /// The time for which a call retries.
    pub patience: Duration,
    /// The lease duration, after which an unresponsive leader is replaced.
    pub lease: Duration,
}

impl StoreSettings {
    /// Creates a configuration with a database, a blob folder and the default time limits.
    pub fn in_folder(folder: &std::path::Path) -> Self {
        Self::new(
            format!("sqlite:{}", folder.join("deltafl.sqlite").display()),
            folder.join("blobs").display().to_string(),
        )
    }

    /// The default time limits: calls retry for a minute, and a leader is replaced after six
    /// seconds of silence.
    pub fn new(database: String, blobs: String) -> Self {
        Self { database, blobs, patience: Duration::from_secs(60), lease: Duration::from_secs(6) }
    }
}

/// The reason for which a store operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The database failed permanently or for longer than the retry time.
    #[error("the database failed")]
    Database(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The blob storage failed.
    #[error("the blob storage failed")]
    BlobStorage(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A file operation failed.
    #[error("{path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The error reported by the operating system.
        source: std::io::Error,
    },
    /// The location is invalid.
    #[error("{place:?} is not a valid location for {what}")]
    Place {
        /// The content to store.
        what: &'static str,
        /// The location.
        place: String,
    },
    /// The operating system provides no randomness.
    #[error("the operating system provides no randomness")]
    Randomness,
    /// A newer version of deltafl wrote the database.
    #[error("the database has schema {found}, but this version supports {known}: use a newer deltafl")]
    Newer {
        /// The schema version of the database.
        found: i64,
        /// The schema version that this program supports.
        known: i64,
    },
    /// The federation does not exist.
    #[error("federation {federation} does not exist")]
    NoFederation {
        /// The name.
        federation: FederationName,
    },
    /// The federation trains another experiment.
    #[error("the experiment has changed since federation {federation} started")]
    Changed {
        /// The name.
        federation: FederationName,
        /// The difference.
        differences: Vec<ChangedKey>,
    },
    /// The name is already in use.
    #[error("device {name} is already enrolled")]
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
        /// The next free number.
        expected: u32,
    },
    /// The device does not exist.
    #[error("there is no device {name}")]
    NoDevice {
        /// The name.
        name: DeviceName,
    },
    /// The token is unknown, used up or expired. The response does not distinguish these cases.
    #[error("the token is not valid, used up or expired")]
    TokenRefused,
    /// Another server leads.
    #[error("another server leads federation {federation}")]
    Deposed {
        /// The federation.
        federation: FederationName,
    },
    /// The round was already committed with a different result.
    #[error("{round} rounds of seed {seed} are already committed with a different state")]
    Conflict {
        /// The seed.
        seed: u64,
        /// The number of completed rounds.
        round: u64,
    },
    /// The stored data cannot be parsed.
    #[error("the stored {what} is damaged")]
    Damaged {
        /// The damaged data.
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
        Self::BlobStorage(error.into())
    }
}

/// The storage of a server. Clones share it.
#[derive(Clone, Debug)]
pub struct Store(Arc<StoreParts>);

#[derive(Debug)]
struct StoreParts {
    database: Database,
    blobs: BlobStorage,
    settings: StoreSettings,
}

impl Store {
    /// Opens the store and migrates its schema.
    pub async fn open(settings: &StoreSettings) -> Result<Self, StoreError> {
        let store = Self(Arc::new(StoreParts {
            database: Database::connect(&settings.database)?,
            blobs: BlobStorage::new(&settings.blobs),
            settings: settings.clone(),
        }));
        retry::patiently!(store, migrations::run(&store.0.database))?;
        Ok(store)
    }

    /// Returns `true` if the database responds, for a readiness probe.
    pub async fn ping(&self) -> Result<(), StoreError> {
        self.database().ping().await
    }

    /// Returns the location.
    pub fn settings(&self) -> &StoreSettings {
        &self.0.settings
    }

    fn database(&self) -> &Database {
        &self.0.database
    }

    fn blobs(&self) -> &BlobStorage {
        &self.0.blobs
    }

    fn backoff(&self) -> retry::RetryBackoff {
        retry::RetryBackoff::new(self.0.settings.patience)
    }
}
