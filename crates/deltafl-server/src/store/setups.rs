//! The number of the last key set-up. Devices reject numbers that do not increase, in any
//! session.

use super::lease::Fence;
use super::retry::patiently;
use super::{Store, StoreError};

impl Store {
    /// Reserves the next `count` numbers of key set-ups for the holder of the lease. Returns the
    /// last number that an earlier reservation contains.
    pub async fn reserve_setups(&self, fence: &Fence, count: u64) -> Result<u64, StoreError> {
        patiently!(self, self.try_reserve_setups(fence, count))
    }

    async fn try_reserve_setups(&self, fence: &Fence, count: u64) -> Result<u64, StoreError> {
        let mut transaction = self.database().begin().await?;
        fence.check(&mut transaction).await?;
        let federation = fence.federation().as_str();
        let last: Option<i64> = sqlx::query_scalar("SELECT last FROM setups WHERE federation = $1")
            .bind(federation)
            .fetch_optional(&mut *transaction)
            .await?;
        let damaged = || StoreError::Damaged { what: "number of set-ups" };
        let last = u64::try_from(last.unwrap_or(0)).map_err(|_| damaged())?;
        let next = i64::try_from(last.saturating_add(count)).map_err(|_| damaged())?;
        sqlx::query(
            "INSERT INTO setups (federation, last) VALUES ($1, $2) \
             ON CONFLICT (federation) DO UPDATE SET last = excluded.last",
        )
        .bind(federation)
        .bind(next)
        .execute(&mut *transaction)
        .await?;
        transaction.commit().await?;
        Ok(last)
    }
}
