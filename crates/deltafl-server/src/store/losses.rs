//! Loss distributions by round, for the model cards and the live page.

use deltafl::superquantile::{Bounds, LossDistribution};
use deltafl_wire::card::FEWEST_SHOWN;
use deltafl_wire::identity::FederationName;
use serde::{Deserialize, Serialize};
use sqlx::{Any, Row as _, Transaction};

use super::commit::signed;
use super::{Commit, Store, StoreError};

/// The losses of a cohort at the params of a version.
#[derive(Clone, Debug, PartialEq)]
pub struct KnownLosses {
    /// The number of rounds that led to these params.
    pub version: u64,
    /// The distribution of the losses.
    pub distribution: LossDistribution,
}

/// The losses of the cohort of a round, for a commit.
#[derive(Clone, Debug, PartialEq)]
pub struct RoundLosses {
    /// t, starting at 0: the losses are those at w_t.
    pub round: u64,
    /// Per track, if requested.
    pub tracks: Vec<Option<LossDistribution>>,
}

/// The publishable losses of a cohort: percentiles, without bins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PublishedLosses {
    /// The number of devices.
    pub devices: u64,
    /// Each percentile with its lower and upper bound.
    pub percentiles: Vec<(u8, Bounds)>,
}

impl PublishedLosses {
    /// Returns the percentiles of a distribution, or `None` if it covers too few devices for
    /// publication.
    pub fn from_distribution(distribution: &LossDistribution) -> Option<Self> {
        let devices = distribution.devices();
        (devices >= FEWEST_SHOWN).then(|| Self { devices, percentiles: distribution.percentiles() })
    }
}

pub(super) async fn insert(
    transaction: &mut Transaction<'static, Any>,
    federation: &FederationName,
    commit: &Commit<'_>,
) -> Result<(), StoreError> {
    for losses in commit.losses {
        for (track, distribution) in (0i64..).zip(&losses.tracks) {
            let Some(distribution) = distribution else { continue };
            let text = serde_json::to_string(distribution);
            sqlx::query(
                "INSERT INTO losses (federation, seed, track, round, distribution) VALUES ($1, $2, $3, $4, $5)",
            )
            .bind(federation.as_str())
            .bind(commit.state.seed.to_string())
            .bind(track)
            .bind(signed(losses.round))
            .bind(text.map_err(|_| StoreError::Damaged { what: "losses to commit" })?)
            .execute(&mut **transaction)
            .await?;
        }
    }
    Ok(())
}

pub(super) fn parse(text: &str) -> Result<LossDistribution, StoreError> {
    serde_json::from_str(text).map_err(|_| StoreError::Damaged { what: "losses" })
}

impl Store {
    /// Returns the percentiles of some rounds: round, track and percentiles.
    pub(super) async fn try_percentiles(
        &self,
        federation: &FederationName,
        seed: u64,
        (first, last): (u64, u64),
    ) -> Result<Vec<(u64, usize, Option<PublishedLosses>)>, StoreError> {
        let rows = sqlx::query(
            "SELECT round, track, distribution FROM losses \
             WHERE federation = $1 AND seed = $2 AND round >= $3 AND round <= $4",
        )
        .bind(federation.as_str())
        .bind(seed.to_string())
        .bind(signed(first))
        .bind(signed(last))
        .fetch_all(self.database().pool())
        .await?;
        rows.iter()
            .map(|row| {
                let distribution = parse(&row.try_get::<String, _>(2)?)?;
                let track = usize::try_from(row.try_get::<i64, _>(1)?)
                    .map_err(|_| StoreError::Damaged { what: "losses" })?;
                Ok((
                    row.try_get::<i64, _>(0)?.unsigned_abs(),
                    track,
                    PublishedLosses::from_distribution(&distribution),
                ))
            })
            .collect()
    }
}
