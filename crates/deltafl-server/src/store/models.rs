//! The models that devices can pull: one version per published round, one level θ per track.

use deltafl::algorithm::TrackLabel;
use deltafl::evaluation::CohortEvaluation;
use deltafl_wire::identity::FederationName;
use sqlx::Row as _;

use super::blobs::BlobHash;
use super::commit::TrackAbout;
use super::evaluations;
use super::losses::{self, KnownLosses};
use super::retry::patiently;
use super::{Store, StoreError};

/// A version of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelRow {
    /// The seed of its run.
    pub seed: u64,
    /// The number of completed rounds, which is its version.
    pub round: u64,
    /// The training and its level.
    pub label: TrackLabel,
    /// The current η.
    pub eta: Option<f64>,
    /// The loss distribution at these params, or at the latest earlier params with a known one.
    pub losses: Option<KnownLosses>,
    /// The evaluation of a cohort on held-out examples, at these params or at the latest earlier
    /// ones.
    pub held_out: Option<CohortEvaluation>,
    /// Its params.
    pub blob: BlobHash,
    /// Their size.
    pub bytes: u64,
}

impl Store {
    /// Returns the published models of a federation: newest version first, then by track.
    pub async fn models(&self, federation: &FederationName) -> Result<Vec<ModelRow>, StoreError> {
        patiently!(self, self.try_models(federation))
    }

    async fn try_models(&self, federation: &FederationName) -> Result<Vec<ModelRow>, StoreError> {
        let rows = sqlx::query(
            "SELECT m.seed, m.round, m.about, m.blob, m.bytes, l.round, l.distribution, e.evaluation \
             FROM models m LEFT JOIN losses l \
             ON l.federation = m.federation AND l.seed = m.seed AND l.track = m.track AND l.round = \
             (SELECT MAX(b.round) FROM losses b WHERE b.federation = m.federation AND b.seed = m.seed \
             AND b.track = m.track AND b.round <= m.round) \
             LEFT JOIN evaluations e \
             ON e.federation = m.federation AND e.seed = m.seed AND e.track = m.track AND e.version = \
             (SELECT MAX(b.version) FROM evaluations b WHERE b.federation = m.federation AND b.seed = m.seed \
             AND b.track = m.track AND b.version <= m.round) \
             WHERE m.federation = $1 AND m.published = 1 ORDER BY m.round DESC, m.seed, m.track",
        )
        .bind(federation.as_str())
        .fetch_all(self.database().pool())
        .await?;
        let damaged = || StoreError::Damaged { what: "model" };
        rows.iter()
            .map(|row| {
                let about: TrackAbout =
                    serde_json::from_str(&row.try_get::<String, _>(2)?).map_err(|_| damaged())?;
                let measured: Option<i64> = row.try_get(5)?;
                let distribution: Option<String> = row.try_get(6)?;
                let losses = match measured.zip(distribution) {
                    Some((version, text)) => Some(KnownLosses {
                        version: version.unsigned_abs(),
                        distribution: losses::parse(&text)?,
                    }),
                    None => None,
                };
                let held_out: Option<String> = row.try_get(7)?;
                Ok(ModelRow {
                    seed: row.try_get::<String, _>(0)?.parse().map_err(|_| damaged())?,
                    round: row.try_get::<i64, _>(1)?.unsigned_abs(),
                    eta: about.eta(),
                    label: about.label,
                    losses,
                    held_out: held_out.map(|text| evaluations::parse(&text)).transpose()?,
                    blob: BlobHash::parse(&row.try_get::<String, _>(3)?).ok_or_else(damaged)?,
                    bytes: row.try_get::<i64, _>(4)?.unsigned_abs(),
                })
            })
            .collect()
    }
}
