//! Evaluations on held-out examples by version, for the model cards.

use deltafl::evaluation::CohortEvaluation;
use deltafl_wire::identity::FederationName;
use sqlx::{Any, Transaction};

use super::commit::signed;
use super::{Commit, StoreError};

/// Stores the evaluations of some rounds. If a version is evaluated twice, the first evaluation is
/// kept. This happens if a finished run is extended.
pub(super) async fn insert(
    transaction: &mut Transaction<'static, Any>,
    federation: &FederationName,
    commit: &Commit<'_>,
) -> Result<(), StoreError> {
    for record in commit.lines.iter().map(|line| &line.record) {
        for told in &record.evaluations {
            let text = serde_json::to_string(told);
            sqlx::query(
                "INSERT INTO evaluations (federation, seed, track, version, evaluation) VALUES ($1, $2, $3, $4, $5) \
                 ON CONFLICT (federation, seed, track, version) DO NOTHING",
            )
            .bind(federation.as_str())
            .bind(record.seed.to_string())
            .bind(signed(record.track as u64))
            .bind(signed(told.version))
            .bind(text.map_err(|_| StoreError::Damaged { what: "evaluation to commit" })?)
            .execute(&mut **transaction)
            .await?;
        }
    }
    Ok(())
}

pub(super) fn parse(text: &str) -> Result<CohortEvaluation, StoreError> {
    serde_json::from_str(text).map_err(|_| StoreError::Damaged { what: "evaluation" })
}
