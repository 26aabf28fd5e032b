//! The schema by version. A released version never changes. A later version modifies its tables
//! instead.

use super::StoreError;
use super::database::{Database, SqlDialect};

const MIGRATIONS: [&str; 7] = [
    include_str!("../../migrations/0001_first.sql"),
    include_str!("../../migrations/0002_losses.sql"),
    include_str!("../../migrations/0003_rosters.sql"),
    include_str!("../../migrations/0004_draws.sql"),
    include_str!("../../migrations/0005_slots.sql"),
    include_str!("../../migrations/0006_evaluations.sql"),
    include_str!("../../migrations/0007_setups.sql"),
];

/// Migrates the schema in one transaction. Servers that start at the same time wait for each other.
pub(super) async fn run(database: &Database) -> Result<(), StoreError> {
    let known = MIGRATIONS.len() as i64;
    let mut transaction = database.begin().await?;
    if *database.dialect() == SqlDialect::Postgres {
        // "deltafl" in ASCII. Any number that no other program locks is suitable.
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
