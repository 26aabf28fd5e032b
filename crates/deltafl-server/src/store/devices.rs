//! The enrolled devices of a federation: its roster.

use std::collections::HashSet;

use deltafl_wire::identity::{DeviceName, FederationName, Fingerprint, TokenHash, from_hex, hex};
use sqlx::any::AnyRow;
use sqlx::{Any, Row as _, Transaction};

use super::retry::patiently;
use super::{Store, StoreError};

/// A device to enrol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewDevice {
    /// Its name.
    pub name: DeviceName,
    /// The number assigned to it, if any. It must be the next free number.
    pub number: Option<u32>,
    /// Its Ed25519 public key.
    pub signing_key: [u8; 32],
    /// The certificate that it presents.
    pub fingerprint: Fingerprint,
}

/// A device of the roster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnrolledDevice {
    /// Its position k, which is never reused.
    pub number: u32,
    /// Its name.
    pub name: DeviceName,
    /// Its Ed25519 public key.
    pub signing_key: [u8; 32],
    /// The certificate that it presents.
    pub fingerprint: Fingerprint,
    /// Whether it was revoked.
    pub revoked: bool,
}

impl Store {
    /// Enrols all devices or none, with consecutive numbers. Returns the first number.
    pub async fn enrol(&self, federation: &FederationName, devices: &[NewDevice]) -> Result<u32, StoreError> {
        patiently!(self, self.try_enrol(federation, devices, None))
    }

    /// Enrols a device with a token, and consumes one use of the token.
    pub async fn redeem(
        &self,
        federation: &FederationName,
        token: &TokenHash,
        device: &NewDevice,
    ) -> Result<u32, StoreError> {
        patiently!(self, self.try_enrol(federation, std::slice::from_ref(device), Some(token)))
    }

    /// Starts a new version of the roster without enrolments or revocations, because the current
    /// one is about to expire.
    pub async fn renew_roster(&self, federation: &FederationName) -> Result<(), StoreError> {
        patiently!(self, self.try_renew_roster(federation))
    }

    /// Returns the roster by number, without gaps.
    pub async fn devices(&self, federation: &FederationName) -> Result<Vec<EnrolledDevice>, StoreError> {
        patiently!(self, self.try_devices(federation))
    }

    /// Returns the number of devices that are enrolled and not revoked.
    pub async fn device_count(&self, federation: &FederationName) -> Result<u64, StoreError> {
        patiently!(self, self.try_device_count(federation))
    }

    /// Revokes a device permanently.
    pub async fn revoke(&self, federation: &FederationName, name: &DeviceName) -> Result<(), StoreError> {
        patiently!(self, self.try_revoke(federation, name))
    }

    /// Returns the revoked certificates.
    pub async fn revoked(&self, federation: &FederationName) -> Result<HashSet<Fingerprint>, StoreError> {
        let devices = self.devices(federation).await?;
        Ok(devices.into_iter().filter(|device| device.revoked).map(|device| device.fingerprint).collect())
    }

    async fn try_enrol(
        &self,
        federation: &FederationName,
        devices: &[NewDevice],
        token: Option<&TokenHash>,
    ) -> Result<u32, StoreError> {
        let mut transaction = self.database().begin().await?;
        // Locks the federation, so that numbers are assigned to one enrolment at a time.
        touch_roster(&mut transaction, federation).await?;
        let now = self.database().now(&mut transaction).await?;
        if let Some(token) = token {
            super::tokens::spend(&mut transaction, federation, token, now).await?;
        }
        let next: i64 =
            sqlx::query_scalar("SELECT COALESCE(MAX(number) + 1, 0) FROM devices WHERE federation = $1")
                .bind(federation.as_str())
                .fetch_one(&mut *transaction)
                .await?;
        let first = u32::try_from(next).map_err(|_| StoreError::Damaged { what: "roster" })?;
        for (number, device) in (first..).zip(devices) {
            insert(&mut transaction, federation, number, device, now).await?;
        }
        transaction.commit().await?;
        Ok(first)
    }

    async fn try_renew_roster(&self, federation: &FederationName) -> Result<(), StoreError> {
        let mut transaction = self.database().begin().await?;
        touch_roster(&mut transaction, federation).await?;
        Ok(transaction.commit().await?)
    }

    async fn try_devices(&self, federation: &FederationName) -> Result<Vec<EnrolledDevice>, StoreError> {
        let rows = sqlx::query(
            "SELECT number, name, signing_key, fingerprint, revoked_at FROM devices WHERE federation = $1 ORDER BY number",
        )
        .bind(federation.as_str())
        .fetch_all(self.database().pool())
        .await?;
        rows.iter().map(device).collect()
    }

    async fn try_device_count(&self, federation: &FederationName) -> Result<u64, StoreError> {
        let count: i64 =
            sqlx::query_scalar("SELECT COUNT(*) FROM devices WHERE federation = $1 AND revoked_at IS NULL")
                .bind(federation.as_str())
                .fetch_one(self.database().pool())
                .await?;
        Ok(count.unsigned_abs())
    }

    async fn try_revoke(&self, federation: &FederationName, name: &DeviceName) -> Result<(), StoreError> {
        let mut transaction = self.database().begin().await?;
        touch_roster(&mut transaction, federation).await?;
        let now = self.database().now(&mut transaction).await?;
        let changed = sqlx::query(
            "UPDATE devices SET revoked_at = COALESCE(revoked_at, $3) WHERE federation = $1 AND name = $2",
        )
        .bind(federation.as_str())
        .bind(name.as_str())
        .bind(now)
        .execute(&mut *transaction)
        .await?;
        if changed.rows_affected() == 0 {
            return Err(StoreError::NoDevice { name: name.clone() });
        }
        Ok(transaction.commit().await?)
    }
}

async fn touch_roster(
    transaction: &mut Transaction<'static, Any>,
    federation: &FederationName,
) -> Result<(), StoreError> {
    let touched = sqlx::query("UPDATE federations SET roster_version = roster_version + 1 WHERE name = $1")
        .bind(federation.as_str())
        .execute(&mut **transaction)
        .await?;
    if touched.rows_affected() == 0 {
        return Err(StoreError::NoFederation { federation: federation.clone() });
    }
    Ok(())
}

async fn insert(
    transaction: &mut Transaction<'static, Any>,
    federation: &FederationName,
    number: u32,
    device: &NewDevice,
    now: i64,
) -> Result<(), StoreError> {
    if let Some(got) = device.number.filter(|&got| got != number) {
        return Err(StoreError::Number { name: device.name.clone(), got, expected: number });
    }
    let inserted = sqlx::query(
        "INSERT INTO devices (federation, number, name, signing_key, fingerprint, enrolled_at) \
         VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING",
    )
    .bind(federation.as_str())
    .bind(i64::from(number))
    .bind(device.name.as_str())
    .bind(hex(&device.signing_key))
    .bind(device.fingerprint.to_string())
    .bind(now)
    .execute(&mut **transaction)
    .await?;
    if inserted.rows_affected() == 0 {
        return Err(StoreError::DeviceExists { name: device.name.clone() });
    }
    Ok(())
}

fn device(row: &AnyRow) -> Result<EnrolledDevice, StoreError> {
    let damaged = || StoreError::Damaged { what: "device" };
    Ok(EnrolledDevice {
        number: row.try_get::<i64, _>(0)?.try_into().map_err(|_| damaged())?,
        name: row.try_get::<String, _>(1)?.try_into().map_err(|_| damaged())?,
        signing_key: from_hex(&row.try_get::<String, _>(2)?).ok_or_else(damaged)?,
        fingerprint: row.try_get::<String, _>(3)?.parse().map_err(|_| damaged())?,
        revoked: row.try_get::<Option<i64>, _>(4)?.is_some(),
    })
}
