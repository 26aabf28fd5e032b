//! Who leads a federation.
//!
//! Several servers may share a store; one of them leads. It renews its lease three times within the lease's length, by the
//! database's clock. Another takes over when the lease has run out, under a greater *fence*, and whatever the first one still
//! tries to commit is refused for its old fence: however slow its clock or its network, no round is committed twice.
//!
//! A leader that could not renew, because the database was gone, leads on if nobody has taken over meanwhile.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use deltafl_wire::identity::FederationName;
use sqlx::{Any, Row as _, Transaction};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::database::Dialect;
use super::retry::patiently;
use super::{Store, StoreError};

/// The right to commit rounds of a federation. Renewed in the background until it is dropped.
#[derive(Debug)]
pub struct Lease {
    federation: FederationName,
    fence: i64,
    held: watch::Receiver<bool>,
    renewal: JoinHandle<()>,
    store: Store,
    /// On SQLite, where all servers are on one machine: the kernel lets go of it when a server is killed, so that the next
    /// one need not wait for the lease to run out.
    _lock: Option<Arc<File>>,
}

/// Which leader of a federation writes: a number that the next leader exceeds. Holding one does not keep the lease.
#[derive(Clone, Debug)]
pub struct Fence {
    federation: FederationName,
    number: i64,
}

impl Store {
    /// Waits until this server leads the federation. `holder` names it to people who look.
    pub async fn lead(&self, federation: &FederationName, holder: &str) -> Result<Lease, StoreError> {
        loop {
            if let Some(lease) = self.try_lead(federation, holder).await? {
                return Ok(lease);
            }
            tokio::time::sleep(self.settings().lease / 6).await;
        }
    }

    /// Leads the federation if nobody else does.
    pub async fn try_lead(
        &self,
        federation: &FederationName,
        holder: &str,
    ) -> Result<Option<Lease>, StoreError> {
        let lock = match self.database().dialect() {
            Dialect::Postgres => None,
            Dialect::Sqlite(path) => match lock(path, federation)? {
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

    /// Takes the lease if it has run out, or in any case where the kernel's lock shows that its holder is gone.
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

    /// Which leader this is: greater than all before.
    pub fn fence(&self) -> i64 {
        self.fence
    }

    /// Whether nobody has taken over, as far as this server knows.
    pub fn is_held(&self) -> bool {
        *self.held.borrow()
    }

    /// Returns when another server has taken over.
    pub async fn lost(&self) {
        // An error means that the renewal has ended, which it does when the lease is lost.
        let _ = self.held.clone().wait_for(|held| !held).await;
    }

    /// Lets the next server take over at once.
    pub async fn release(self) -> Result<(), StoreError> {
        self.renewal.abort();
        self.store.extend(&self.federation, self.fence, -1).await.map(|_| ())
    }

    /// What later writes of this leader are checked against, for as long as they come.
    pub fn to_fence(&self) -> Fence {
        Fence { federation: self.federation.clone(), number: self.fence }
    }

    /// Refuses unless this lease is in force; holds a takeover off until the transaction ends.
    pub(super) async fn check(&self, transaction: &mut Transaction<'static, Any>) -> Result<(), StoreError> {
        self.to_fence().check(transaction).await
    }
}

impl Fence {
    /// The federation.
    pub fn federation(&self) -> &FederationName {
        &self.federation
    }

    /// Refuses if another server has taken over; holds a takeover off until the transaction ends.
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

/// Renews until the fence has moved on.
async fn renew(store: Store, federation: FederationName, fence: i64, tell: watch::Sender<bool>) {
    let every = store.settings().lease / 3;
    loop {
        tokio::time::sleep(every.max(Duration::from_millis(10))).await;
        match store.extend(&federation, fence, store.lease_ms()).await {
            Ok(true) => {}
            Ok(false) => break,
            // The fence decides; until the database is back there is nobody to ask.
            Err(error) => tracing::warn!(%error, "the lease could not be renewed"),
        }
    }
    tracing::warn!(%federation, fence, "another server leads");
    tell.send_replace(false);
}

/// The kernel's lock beside an SQLite file; `None` when another server holds it.
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
