//! Enrolment tokens, stored as hashes only.

use std::time::Duration;

use deltafl_wire::identity::{FederationName, TokenHash};
use sqlx::{Any, Transaction};

use super::retry::patiently;
use super::{Store, StoreError};

impl Store {
    /// Allows `uses` devices to enrol with the token within `lifetime`.
    pub async fn add_token(
        &self,
        federation: &FederationName,
        token: &TokenHash,
        uses: u32,
        lifetime: Duration,
    ) -> Result<(), StoreError> {
        patiently!(self, self.try_add_token(federation, token, uses, lifetime))
    }

    async fn try_add_token(
        &self,
        federation: &FederationName,
        token: &TokenHash,
        uses: u32,
        lifetime: Duration,
    ) -> Result<(), StoreError> {
        let mut transaction = self.database().begin().await?;
        let now = self.database().now(&mut transaction).await?;
        sqlx::query("DELETE FROM tokens WHERE expires_at <= $1 OR uses_left <= 0")
            .bind(now)
            .execute(&mut *transaction)
            .await?;
        let lifetime = i64::try_from(lifetime.as_millis()).unwrap_or(i64::MAX);
        sqlx::query("INSERT INTO tokens (hash, federation, uses_left, expires_at) VALUES ($1, $2, $3, $4)")
            .bind(token.0.as_str())
            .bind(federation.as_str())
            .bind(i64::from(uses))
            .bind(now.saturating_add(lifetime))
            .execute(&mut *transaction)
            .await?;
        Ok(transaction.commit().await?)
    }
}

/// Consumes one use of a token.
pub(super) async fn spend(
    transaction: &mut Transaction<'static, Any>,
    federation: &FederationName,
    token: &TokenHash,
    now: i64,
) -> Result<(), StoreError> {
    let spent = sqlx::query(
        "UPDATE tokens SET uses_left = uses_left - 1 \
         WHERE hash = $1 AND federation = $2 AND uses_left > 0 AND expires_at > $3",
    )
    .bind(token.0.as_str())
    .bind(federation.as_str())
    .bind(now)
    .execute(&mut **transaction)
    .await?;
    if spent.rows_affected() == 1 { Ok(()) } else { Err(StoreError::TokenRefused) }
}
