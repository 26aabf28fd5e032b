//! Rosters signed elsewhere, for servers without the authority's key.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use deltafl_wire::identity::{FederationName, from_hex, hex};
use deltafl_wire::roster::SignedRoster;
use sqlx::Row as _;

use super::retry::patiently;
use super::{Store, StoreError};

impl Store {
    /// Stores the roster of a version and replaces older ones. The first roster of a version is
    /// kept, because devices accept no other.
    pub async fn keep_roster(
        &self,
        federation: &FederationName,
        version: u64,
        roster: &SignedRoster,
    ) -> Result<(), StoreError> {
        patiently!(self, self.try_keep_roster(federation, version, roster))
    }

    /// Returns the version of the stored roster, or `None` before the first.
    pub async fn kept_roster_version(&self, federation: &FederationName) -> Result<Option<u64>, StoreError> {
        patiently!(self, self.try_kept_roster_version(federation))
    }

    /// Returns the stored roster, or `None` before the first.
    pub async fn kept_roster(&self, federation: &FederationName) -> Result<Option<SignedRoster>, StoreError> {
        patiently!(self, self.try_kept_roster(federation))
    }

    async fn try_kept_roster_version(&self, federation: &FederationName) -> Result<Option<u64>, StoreError> {
        let version: Option<i64> = sqlx::query_scalar("SELECT version FROM rosters WHERE federation = $1")
            .bind(federation.as_str())
            .fetch_optional(self.database().pool())
            .await?;
        Ok(version.map(i64::unsigned_abs))
    }

    async fn try_keep_roster(
        &self,
        federation: &FederationName,
        version: u64,
        roster: &SignedRoster,
    ) -> Result<(), StoreError> {
        sqlx::query(
            "INSERT INTO rosters (federation, version, bytes, signature) VALUES ($1, $2, $3, $4) \
             ON CONFLICT (federation) DO UPDATE SET version = excluded.version, bytes = excluded.bytes, \
             signature = excluded.signature WHERE rosters.version < excluded.version",
        )
        .bind(federation.as_str())
        .bind(i64::try_from(version).unwrap_or(i64::MAX))
        .bind(STANDARD.encode(&roster.bytes))
        .bind(hex(&roster.signature))
        .execute(self.database().pool())
        .await?;
        Ok(())
    }

    async fn try_kept_roster(&self, federation: &FederationName) -> Result<Option<SignedRoster>, StoreError> {
        let row = sqlx::query("SELECT bytes, signature FROM rosters WHERE federation = $1")
            .bind(federation.as_str())
            .fetch_optional(self.database().pool())
            .await?;
        let Some(row) = row else { return Ok(None) };
        let damaged = || StoreError::Damaged { what: "roster" };
        let bytes = STANDARD.decode(row.try_get::<String, _>(0)?).map_err(|_| damaged())?;
        let signature = from_hex(&row.try_get::<String, _>(1)?).ok_or_else(damaged)?;
        Ok(Some(SignedRoster { bytes: bytes.into(), signature }))
    }
}
