//! The models that devices can pull: a version per published round, a level θ per track.

use deltafl::data::Split;
use deltafl::engine::SplitEvaluation;
use deltafl::experiment::TrackLabel;
use deltafl::metrics::{Figures, PERCENTILES};
use serde::{Deserialize, Serialize};
use sqlx::Row as _;

use super::blobs::BlobHash;
use super::commit::TrackAbout;
use super::retry::patiently;
use super::{Store, StoreError};
use crate::identity::FederationName;

/// How a measure is spread over devices. No value of one device is in it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// `train loss` or `test error`.
    pub measure: String,
    /// Over how many devices.
    pub devices: u64,
    /// The mean.
    pub mean: f64,
    /// Pairs of a percentile and its value.
    pub percentiles: Vec<(u8, f64)>,
}

impl Percentiles {
    /// What the paper's tables report of a track; `None` without devices.
    pub(super) fn of(evaluation: &SplitEvaluation, track: usize) -> Option<Self> {
        if evaluation.tracks.get(track).is_none_or(Vec::is_empty) {
            return None;
        }
        let figures = Figures::of_track(evaluation, track)?;
        let measure = if evaluation.split == Split::Test { "test error" } else { "train loss" };
        Some(Self {
            measure: measure.to_owned(),
            devices: evaluation.devices.len() as u64,
            mean: figures.mean,
            percentiles: PERCENTILES.into_iter().zip(figures.percentiles).collect(),
        })
    }
}

/// A version of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelRow {
    /// The seed of its run.
    pub seed: u64,
    /// Rounds behind it: its version.
    pub round: u64,
    /// How it was trained, and at which level.
    pub label: TrackLabel,
    /// η in force.
    pub eta: Option<f64>,
    /// How devices fare, where the mode allows it to be known.
    pub percentiles: Vec<Percentiles>,
    /// Its params.
    pub blob: BlobHash,
    /// Their size.
    pub bytes: u64,
}

impl Store {
    /// The published models of a federation: newest version first, then by track.
    pub async fn models(&self, federation: &FederationName) -> Result<Vec<ModelRow>, StoreError> {
        patiently!(self, self.try_models(federation))
    }

    async fn try_models(&self, federation: &FederationName) -> Result<Vec<ModelRow>, StoreError> {
        let rows = sqlx::query(
            "SELECT seed, round, about, blob, bytes FROM models \
             WHERE federation = $1 AND published = 1 ORDER BY round DESC, seed, track",
        )
        .bind(federation.as_str())
        .fetch_all(self.database().pool())
        .await?;
        let damaged = || StoreError::Damaged { what: "model" };
        rows.iter()
            .map(|row| {
                let about: TrackAbout =
                    serde_json::from_str(&row.try_get::<String, _>(2)?).map_err(|_| damaged())?;
                Ok(ModelRow {
                    seed: row.try_get::<String, _>(0)?.parse().map_err(|_| damaged())?,
                    round: row.try_get::<i64, _>(1)?.unsigned_abs(),
                    label: about.label,
                    eta: about.eta,
                    percentiles: about.percentiles,
                    blob: BlobHash::parse(&row.try_get::<String, _>(3)?).ok_or_else(damaged)?,
                    bytes: row.try_get::<i64, _>(4)?.unsigned_abs(),
                })
            })
            .collect()
    }
}
