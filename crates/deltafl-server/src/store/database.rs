//! The differences between the two databases, which share their SQL.

use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::Duration;

use sqlx::any::{AnyConnectOptions, AnyPoolOptions};
use sqlx::{Any, AnyPool, Connection as _, Executor as _, Transaction};

use super::StoreError;

/// The time limit for obtaining a connection, before a retry.
const ACQUIRE: Duration = Duration::from_secs(3);

/// A pool of connections.
#[derive(Debug)]
pub(super) struct Database {
    pool: AnyPool,
    dialect: SqlDialect,
}

/// Database-specific settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SqlDialect {
    /// The SQLite file.
    Sqlite(PathBuf),
    Postgres,
}

impl Database {
    /// Creates a pool that connects on first use.
    pub(super) fn connect(url: &str) -> Result<Self, StoreError> {
        static DRIVERS: Once = Once::new();
        DRIVERS.call_once(sqlx::any::install_default_drivers);
        let refused = || StoreError::Place { what: "a database", place: url.to_owned() };
        let (dialect, url) = match url.strip_prefix("sqlite:") {
            Some(path) if !path.is_empty() && !path.contains([':', '?']) => {
                make_folder_of(Path::new(path))?;
                (SqlDialect::Sqlite(path.into()), format!("sqlite:{path}?mode=rwc"))
            }
            None if url.starts_with("postgres://") || url.starts_with("postgresql://") => {
                (SqlDialect::Postgres, url.to_owned())
            }
            _ => return Err(refused()),
        };
        let options: AnyConnectOptions = url.parse().map_err(|_| refused())?;
        let sqlite = dialect != SqlDialect::Postgres;
        let pool = AnyPoolOptions::new()
            .max_connections(4)
            .acquire_timeout(ACQUIRE)
            .after_connect(move |connection, _| {
                Box::pin(async move {
                    if sqlite {
                        // A commit is on disk when it returns, and readers never wait for a writer.
                        connection.execute("PRAGMA journal_mode = WAL").await?;
                        connection.execute("PRAGMA synchronous = FULL").await?;
                        connection.execute("PRAGMA busy_timeout = 2000").await?;
                        connection.execute("PRAGMA foreign_keys = ON").await?;
                    }
                    Ok(())
                })
            })
            // SQLite ends a transaction when the disk is full, but the connection does not notice
            // and cannot begin another.
            .before_acquire(|connection, _| {
                let sound = !connection.is_in_transaction();
                Box::pin(async move { Ok(sound) })
            })
            .connect_lazy_with(options);
        Ok(Self { pool, dialect })
    }

    pub(super) fn pool(&self) -> &AnyPool {
        &self.pool
    }

    pub(super) fn dialect(&self) -> &SqlDialect {
        &self.dialect
    }

    /// Begins a write transaction. SQLite takes its write lock immediately, because a transaction
    /// that reads first might not get it later.
    pub(super) async fn begin(&self) -> Result<Transaction<'static, Any>, StoreError> {
        Ok(match self.dialect {
            SqlDialect::Sqlite(_) => self.pool.begin_with("BEGIN IMMEDIATE").await?,
            SqlDialect::Postgres => self.pool.begin().await?,
        })
    }

    /// Returns the milliseconds since 1970 of the database clock, which all servers share.
    pub(super) async fn now(&self, transaction: &mut Transaction<'static, Any>) -> Result<i64, StoreError> {
        let sql = match self.dialect {
            SqlDialect::Sqlite(_) => "SELECT CAST(unixepoch('subsec') * 1000 AS BIGINT)",
            SqlDialect::Postgres => "SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)",
        };
        Ok(sqlx::query_scalar(sql).fetch_one(&mut **transaction).await?)
    }

    pub(super) async fn ping(&self) -> Result<(), StoreError> {
        sqlx::query("SELECT 1").execute(&self.pool).await?;
        Ok(())
    }
}

fn make_folder_of(path: &Path) -> Result<(), StoreError> {
    let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) else { return Ok(()) };
    std::fs::create_dir_all(folder).map_err(|source| StoreError::Io { path: folder.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_connection_whose_transaction_ended_behind_its_back_is_not_used_again() {
        let folder = tempfile::tempdir().unwrap();
        let database = Database::connect(&format!("sqlite:{}/x.sqlite", folder.path().display())).unwrap();
        for _ in 0..8 {
            let mut transaction = database.begin().await.unwrap();
            // Same behaviour as SQLite with a full disk.
            transaction.execute("ROLLBACK").await.unwrap();
        }
    }
}
