//! The federations of a store and their experiments.

use deltafl_data::experiment::Experiment;
use deltafl_wire::identity::FederationName;
use sqlx::Row as _;

use super::retry::patiently;
use super::{Store, StoreError};

/// A federation.
#[derive(Clone, Debug, PartialEq)]
pub struct FederationRow {
    /// Its name.
    pub name: FederationName,
    /// Its experiment, once it has started.
    pub experiment: Option<Experiment>,
}

impl Store {
    /// Creates a federation if it does not exist.
    pub async fn create_federation(&self, name: &FederationName) -> Result<(), StoreError> {
        patiently!(self, self.try_create_federation(name))
    }

    /// Sets the experiment of a federation. Afterwards only its number of rounds can grow.
    pub async fn set_experiment(
        &self,
        name: &FederationName,
        experiment: &Experiment,
    ) -> Result<(), StoreError> {
        let known = self.federation(name).await?.experiment;
        if let Some(known) = known {
            let differences = known.differences(experiment);
            if differences.is_empty() {
                return Ok(());
            }
            let is_longer = experiment.rounds() > known.rounds();
            if !is_longer || differences.iter().any(|difference| difference.key != "rounds") {
                return Err(StoreError::Changed { federation: name.clone(), differences });
            }
            // First, so that a crash in between does not leave them behind.
            patiently!(self, self.prune_final_evaluation(name, known.rounds()))?;
        }
        patiently!(self, self.try_set_experiment(name, experiment))
    }

    /// Returns a federation by name.
    pub async fn federation(&self, name: &FederationName) -> Result<FederationRow, StoreError> {
        let found = self.federations().await?.into_iter().find(|row| row.name == *name);
        found.ok_or_else(|| StoreError::NoFederation { federation: name.clone() })
    }

    /// Returns all federations by name.
    pub async fn federations(&self) -> Result<Vec<FederationRow>, StoreError> {
        patiently!(self, self.try_federations())
    }

    /// Returns the version of the roster, which increases with each enrolment and each revocation.
    pub async fn roster_version(&self, name: &FederationName) -> Result<u64, StoreError> {
        patiently!(self, self.try_roster_version(name))
    }

    async fn try_create_federation(&self, name: &FederationName) -> Result<(), StoreError> {
        let mut transaction = self.database().begin().await?;
        let now = self.database().now(&mut transaction).await?;
        sqlx::query(
            "INSERT INTO federations (name, roster_version, created_at) VALUES ($1, 0, $2) ON CONFLICT DO NOTHING",
        )
        .bind(name.as_str())
        .bind(now)
        .execute(&mut *transaction)
        .await?;
        Ok(transaction.commit().await?)
    }

    async fn try_set_experiment(
        &self,
        name: &FederationName,
        experiment: &Experiment,
    ) -> Result<(), StoreError> {
        sqlx::query("UPDATE federations SET experiment = $2 WHERE name = $1")
            .bind(name.as_str())
            .bind(experiment.to_toml())
            .execute(self.database().pool())
            .await?;
        Ok(())
    }

    async fn try_federations(&self) -> Result<Vec<FederationRow>, StoreError> {
        let rows = sqlx::query("SELECT name, experiment FROM federations ORDER BY name")
            .fetch_all(self.database().pool())
            .await?;
        let damaged = || StoreError::Damaged { what: "federation" };
        rows.iter()
            .map(|row| {
                let name = row.try_get::<String, _>(0)?.try_into().map_err(|_| damaged())?;
                let text: Option<String> = row.try_get(1)?;
                let experiment =
                    text.map(|text| Experiment::parse(&text).map_err(|_| damaged())).transpose()?;
                Ok(FederationRow { name, experiment })
            })
            .collect()
    }

    async fn try_roster_version(&self, name: &FederationName) -> Result<u64, StoreError> {
        let version: Option<i64> =
            sqlx::query_scalar("SELECT roster_version FROM federations WHERE name = $1")
                .bind(name.as_str())
                .fetch_optional(self.database().pool())
                .await?;
        let version = version.ok_or_else(|| StoreError::NoFederation { federation: name.clone() })?;
        u64::try_from(version).map_err(|_| StoreError::Damaged { what: "version of the roster" })
    }
}
