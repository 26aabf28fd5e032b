//! The secret from which a federation draws its cohorts.

use deltafl_secagg::draw::DrawChain;
use deltafl_wire::identity::{FederationName, from_hex, hex};
use zeroize::Zeroizing;

use super::retry::patiently;
use super::{Store, StoreError};

impl Store {
    /// Starts to draw cohorts with a chain that all servers of the federation share. The next
    /// roster that the authority signs contains the commitment.
    pub async fn begin_draws(&self, federation: &FederationName) -> Result<(), StoreError> {
        if self.chain(federation).await?.is_some() {
            return Ok(());
        }
        let mut secret = Zeroizing::new([0; 32]);
        getrandom::fill(&mut *secret).map_err(|_| StoreError::Randomness)?;
        patiently!(self, self.try_keep_chain(federation, &secret))?;
        self.renew_roster(federation).await
    }

    /// Returns the chain of a federation, or `None` if its servers choose the cohorts.
    pub async fn chain(&self, federation: &FederationName) -> Result<Option<DrawChain>, StoreError> {
        patiently!(self, self.try_chain(federation))
    }

    async fn try_keep_chain(&self, federation: &FederationName, secret: &[u8; 32]) -> Result<(), StoreError> {
        sqlx::query("INSERT INTO draws (federation, secret) VALUES ($1, $2) ON CONFLICT DO NOTHING")
            .bind(federation.as_str())
            .bind(hex(secret))
            .execute(self.database().pool())
            .await?;
        Ok(())
    }

    async fn try_chain(&self, federation: &FederationName) -> Result<Option<DrawChain>, StoreError> {
        let secret: Option<String> = sqlx::query_scalar("SELECT secret FROM draws WHERE federation = $1")
            .bind(federation.as_str())
            .fetch_optional(self.database().pool())
            .await?;
        let damaged = || StoreError::Damaged { what: "secret of the draws" };
        secret.map(|secret| from_hex(&secret).map(DrawChain::new).ok_or_else(damaged)).transpose()
    }
}
