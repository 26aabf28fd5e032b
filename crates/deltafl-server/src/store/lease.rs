//! The leader of a federation.
//!
//! Several servers may share a store, and one of them leads. It renews its lease three times per
//! lease duration, by the database clock. After the lease has expired, another server takes over
//! with a greater *fence*. Later commits of the first server are refused because of its old fence.
//! No round is committed twice, however slow a clock or a network is.
//!
//! A leader that could not renew its lease because the database was unavailable stays leader if no
//! other server has taken over.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use deltafl_wire::chain;
use deltafl_wire::identity::FederationName;
use sqlx::{Any, Row as _, Transaction};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::database::SqlDialect;
use super::retry::patiently;
use super::{Store, StoreError};

/// The right to commit rounds of a federation. It is renewed in the background until it is dropped.
#[derive(Debug)]
pub struct Lease {
    federation: FederationName,
    fence: i64,
    held: watch::Receiver<bool>,
    renewal: JoinHandle<()>,
    store: Store,
    /// A file lock for SQLite, where all servers run on one machine. The kernel releases it when a
    /// server is killed, so that the next one need not wait for the lease to expire.
    _lock: Option<Arc<File>>,
}

/// The number of a leader, which the next leader exceeds. Holding one does not renew the lease.
#[derive(Clone, Debug)]
pub struct Fence {
    federation: FederationName,
    number: i64,
}

impl Store {
    /// Waits until this server leads the federation. `holder` identifies it to operators.
    pub async fn lead(&self, federation: &FederationName, holder: &str) -> Result<Lease, StoreError> {
        loop {
            if let Some(lease) = self.try_lead(federation, holder).await? {
                return Ok(lease);
            }
            tokio::time::sleep(self.settings().lease / 6).await;
        }
    }

    /// Takes the lead if no other server has it.
    pub async fn try_lead(
        &self,
        federation: &FederationName,
        holder: &str,
    ) -> Result<Option<Lease>, StoreError> {
        let lock = match self.database().dialect() {
            SqlDialect::Postgres => None,
            SqlDialect::Sqlite(path) => match lock(path, federation)? {
                Some(file) => Some(Arc::new(file)),
                None => return Ok(None),
            },
        };
        let Some(fence) = patiently!(self, self.take(federation, holder, lock.is_some()))? else {
            return Ok(None);
        };
        tracing::info!(%federation, fence, "this server leads");
        let (tell, held) = watch::channel(true);
        let renewal = tokio::spawn(renew(self.clone(), federation.clone(), fence, tell));
        let store = self.clone();
        Ok(Some(Lease { federation: federation.clone(), fence, held, renewal, store, _lock: lock }))
    }

    /// Takes the lease if it has expired, or if the kernel's lock shows that its holder no longer
    /// runs.
    async fn take(
        &self,
        federation: &FederationName,
        holder: &str,
        holder_is_gone: bool,
    ) -> Result<Option<i64>, StoreError> {
        let mut transaction = self.database().begin().await?;
        sqlx::query(
            "INSERT INTO leases (federation, holder, fence, expires_at) VALUES ($1, '', 0, 0) ON CONFLICT DO NOTHING",
        )
        .bind(federation.as_str())
        .execute(&mut *transaction)
        .await?;
        let now = self.database().now(&mut transaction).await?;
        let row = sqlx::query(
            "UPDATE leases SET holder = $2, fence = fence + 1, expires_at = $3 \
             WHERE federation = $1 AND expires_at < $4 RETURNING fence",
        )
        .bind(federation.as_str())
        .bind(holder)
        .bind(now + self.lease_ms())
        .bind(if holder_is_gone { i64::MAX } else { now })
        .fetch_optional(&mut *transaction)
        .await?;
        let fence = row.map(|row| row.try_get(0)).transpose()?;
        transaction.commit().await?;
        Ok(fence)
    }

    async fn extend(&self, federation: &FederationName, fence: i64, by: i64) -> Result<bool, StoreError> {
        let mut transaction = self.database().begin().await?;
        let now = self.database().now(&mut transaction).await?;
        let extended = sqlx::query("UPDATE leases SET expires_at = $3 WHERE federation = $1 AND fence = $2")
            .bind(federation.as_str())
            .bind(fence)
            .bind(now + by)
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
        Ok(extended.rows_affected() == 1)
    }

    fn lease_ms(&self) -> i64 {
        i64::try_from(self.settings().lease.as_millis()).unwrap_or(i64::MAX / 2)
    }
}

impl Lease {
    /// The federation.
    pub fn federation(&self) -> &FederationName {
        &self.federation
    }

    /// Returns the fence of this leader, greater than all previous ones.
    pub fn fence(&self) -> i64 {
        self.fence
    }

    /// Returns `true` if, to the knowledge of this server, no other server has taken over.
    pub fn is_held(&self) -> bool {
        *self.held.borrow()
    }

    /// Returns when another server has taken over.
    pub async fn lost(&self) {
        // An error means that the renewal has ended, which happens when the lease is lost.
        let _ = self.held.clone().wait_for(|held| !held).await;
    }

    /// Releases the lease, so that the next server can take over immediately.
    pub async fn release(self) -> Result<(), StoreError> {
        self.renewal.abort();
        self.store.extend(&self.federation, self.fence, -1).await.map(|_| ())
    }

    /// Returns the fence that authorises later writes of this leader.
    pub fn to_fence(&self) -> Fence {
        Fence { federation: self.federation.clone(), number: self.fence }
    }

    /// Fails unless this lease is valid. Blocks a takeover until the transaction ends.
    pub(super) async fn check(&self, transaction: &mut Transaction<'static, Any>) -> Result<(), StoreError> {
        self.to_fence().check(transaction).await
    }
}

impl Fence {
    /// The federation.
    pub fn federation(&self) -> &FederationName {
        &self.federation
    }

    /// Fails if another server has taken over. Blocks a takeover until the transaction ends.
    pub(super) async fn check(&self, transaction: &mut Transaction<'static, Any>) -> Result<(), StoreError> {
        let in_force = sqlx::query("UPDATE leases SET fence = fence WHERE federation = $1 AND fence = $2")
            .bind(self.federation.as_str())
            .bind(self.number)
            .execute(&mut **transaction)
            .await?;
        if in_force.rows_affected() == 1 {
            return Ok(());
        }
        Err(StoreError::Deposed { federation: self.federation.clone() })
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.renewal.abort();
    }
}

/// Renews the lease until the fence has changed.
async fn renew(store: Store, federation: FederationName, fence: i64, tell: watch::Sender<bool>) {
    let every = store.settings().lease / 3;
    loop {
        tokio::time::sleep(every.max(Duration::from_millis(10))).await;
        match store.extend(&federation, fence, store.lease_ms()).await {
            Ok(true) => {}
            Ok(false) => break,
            // The fence decides, and it cannot be read until the database is available again.
            Err(error) => tracing::warn!(error = chain(&error), "failed to renew the lease"),
        }
    }
    tracing::warn!(%federation, fence, "another server leads");
    tell.send_replace(false);
}

/// Takes the kernel's lock next to an SQLite file. Returns `None` if another server holds it.
fn lock(database: &Path, federation: &FederationName) -> Result<Option<File>, StoreError> {
    let mut name = database.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{federation}.lock"));
    let path = database.with_file_name(name);
    let io = |source| StoreError::Io { path: path.clone(), source };
    let file = File::options().create(true).truncate(false).write(true).open(&path).map_err(io)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(std::fs::TryLockError::WouldBlock) => Ok(None),
        Err(std::fs::TryLockError::Error(source)) => Err(io(source)),
    }
}
