//! The schema, version by version. A version is never changed once it is out; the next one changes what it left.

use super::StoreError;
use super::database::{Database, Dialect};

const MIGRATIONS: [&str; 6] = [
    include_str!("../../migrations/0001_first.sql"),
    include_str!("../../migrations/0002_losses.sql"),
    include_str!("../../migrations/0003_rosters.sql"),
    include_str!("../../migrations/0004_draws.sql"),
    include_str!("../../migrations/0005_slots.sql"),
    include_str!("../../migrations/0006_evaluations.sql"),
];

/// Brings the schema up to date, in one transaction: servers that start together wait for each other.
pub(super) async fn run(database: &Database) -> Result<(), StoreError> {
    let known = MIGRATIONS.len() as i64;
    let mut transaction = database.begin().await?;
    if *database.dialect() == Dialect::Postgres {
        // "deltafl" in ASCII: any number does that nobody else locks.
        sqlx::raw_sql("SELECT pg_advisory_xact_lock(28258973459900012)").execute(&mut *transaction).await?;
    }
    sqlx::raw_sql("CREATE TABLE IF NOT EXISTS schema_version (version BIGINT PRIMARY KEY)")
        .execute(&mut *transaction)
        .await?;
    let found: i64 = sqlx::query_scalar("SELECT COALESCE(MAX(version), 0) FROM schema_version")
        .fetch_one(&mut *transaction)
        .await?;
    if found > known {
        return Err(StoreError::Newer { found, known });
    }
    for (version, &sql) in (1i64..).zip(&MIGRATIONS).filter(|(version, _)| *version > found) {
        sqlx::raw_sql(sql).execute(&mut *transaction).await?;
        sqlx::query("INSERT INTO schema_version (version) VALUES ($1)")
            .bind(version)
            .execute(&mut *transaction)
            .await?;
    }
    Ok(transaction.commit().await?)
}
