//! Committed rounds.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use deltafl::algorithm::TrackLabel;
use deltafl::memory::AlgorithmState;
use deltafl::model::ModelSpec;
use deltafl::selection::ETA;
use deltafl::training::{State, TrackState};
use deltafl_data::run_folder::{RoundLine, checkpoint_bytes, state_of_checkpoint};
use deltafl_wire::chain;
use deltafl_wire::contract::DataContract;
use deltafl_wire::identity::{FederationName, hex};
use deltafl_wire::params_file::{ModelAbout, read_params, write_params};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use sqlx::any::AnyRow;
use sqlx::{Any, Row as _, Transaction};

use super::blobs::BlobHash;
use super::evaluations;
use super::losses::{self, PublishedLosses, RoundLosses};
use super::retry::patiently;
use super::{Lease, Store, StoreError};
use crate::hub::Phase;

/// The contents of a commit.
#[derive(Clone, Debug)]
pub struct Commit<'a> {
    /// The training state after `state.round` rounds.
    pub state: &'a State,
    /// The names of the tracks, in order.
    pub labels: &'a [TrackLabel],
    /// The model, from which a device that pulls it can build it.
    pub model: &'a ModelSpec,
    /// The records of all rounds since the previous commit.
    pub lines: &'a [RoundLine],
    /// Phases and drop-outs of the last round.
    pub timeline: &'a [Phase],
    /// Whether these params become a version that devices can pull.
    pub publish: bool,
    /// The loss distributions of these rounds, if requested.
    pub losses: &'a [RoundLosses],
    /// The data contract, which every published model contains.
    pub contract: Option<&'a DataContract>,
}

/// A committed round.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CommittedRound {
    /// t, starting at 0.
    pub round: u64,
    /// One record per track.
    pub lines: Vec<RoundLine>,
    /// Phases and drop-outs.
    pub timeline: Vec<Phase>,
    /// The distribution of the cohort's losses at w_t, per track, if requested.
    pub losses: Vec<Option<PublishedLosses>>,
    /// The time of the commit in milliseconds since 1970.
    pub committed_at: i64,
}

/// The fields of a track in a row of `models`, in addition to its params.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct TrackAbout {
    #[serde(flatten)]
    pub(super) label: TrackLabel,
    /// The numbers of its memory as bit patterns, because JSON has no infinity.
    numbers: BTreeMap<String, u64>,
    /// The blob of a checkpoint of this track alone, if its memory contains vectors.
    vectors: Option<String>,
}

impl TrackAbout {
    /// The current η.
    pub(super) fn eta(&self) -> Option<f64> {
        self.numbers.get(ETA).copied().map(f64::from_bits)
    }

    fn memory(&self) -> AlgorithmState {
        let mut memory = AlgorithmState::default();
        self.numbers.iter().for_each(|(name, &bits)| memory.set_number(name, f64::from_bits(bits)));
        memory
    }
}

/// The stored params of a track.
struct KeptTrack {
    about: TrackAbout,
    blob: BlobHash,
    bytes: i64,
}

impl Store {
    /// Commits rounds: writes the params first, then one transaction that refers to them. The
    /// commit is idempotent. A former leader is refused.
    pub async fn commit(&self, lease: &Lease, commit: &Commit<'_>) -> Result<(), StoreError> {
        let mut tracks = Vec::with_capacity(commit.state.tracks.len());
        for (i, track) in commit.state.tracks.iter().enumerate() {
            tracks.push(self.keep(lease.federation(), commit, i, track).await?);
        }
        let checkpoint =
            checkpoint_bytes(commit.state).map_err(|_| StoreError::Damaged { what: "state to commit" })?;
        let sha256 = hex(&Sha256::digest(&checkpoint));
        patiently!(self, self.try_commit(lease, commit, &tracks, &sha256))?;
        self.prune(lease.federation(), commit.state).await;
        Ok(())
    }

    /// Returns the state after the last committed round of a seed, exact to the bit.
    pub async fn state(&self, federation: &FederationName, seed: u64) -> Result<Option<State>, StoreError> {
        patiently!(self, self.try_state(federation, seed))
    }

    /// Returns the SHA-256 of the last committed checkpoint and its number of rounds.
    pub async fn committed(
        &self,
        federation: &FederationName,
        seed: u64,
    ) -> Result<Option<(u64, String)>, StoreError> {
        patiently!(self, self.try_committed(federation, seed))
    }

    /// Returns the committed rounds of a seed, starting at a given round.
    pub async fn rounds(
        &self,
        federation: &FederationName,
        seed: u64,
        from: u64,
        limit: u32,
    ) -> Result<Vec<CommittedRound>, StoreError> {
        patiently!(self, self.try_rounds(federation, seed, from, limit))
    }

    async fn keep(
        &self,
        federation: &FederationName,
        commit: &Commit<'_>,
        index: usize,
        track: &TrackState,
    ) -> Result<KeptTrack, StoreError> {
        let damaged = || StoreError::Damaged { what: "state to commit" };
        let label = commit.labels.get(index).ok_or_else(damaged)?.clone();
        let about = ModelAbout {
            federation: federation.to_string(),
            model: commit.model.clone(),
            tensors: commit.state.tensors.to_vec(),
            label: label.clone(),
            contract: commit.contract.cloned(),
        };
        let bytes = Bytes::from(write_params(&about, &track.params).map_err(|_| damaged())?);
        Ok(KeptTrack {
            about: TrackAbout {
                label,
                numbers: track.memory.numbers().map(|(name, n)| (name.to_owned(), n.to_bits())).collect(),
                vectors: self.keep_vectors(commit.state, track).await?,
            },
            bytes: i64::try_from(bytes.len()).map_err(|_| damaged())?,
            blob: self.put_blob(&bytes).await?,
        })
    }

    /// Returns a checkpoint of one track if its memory contains vectors. Most algorithms have none.
    async fn keep_vectors(&self, state: &State, track: &TrackState) -> Result<Option<String>, StoreError> {
        if track.memory.vectors().next().is_none() {
            return Ok(None);
        }
        let tensors = Arc::clone(&state.tensors);
        let alone = State { seed: state.seed, round: state.round, tensors, tracks: vec![track.clone()] };
        let bytes = checkpoint_bytes(&alone).map_err(|_| StoreError::Damaged { what: "state to commit" })?;
        Ok(Some(self.put_blob(&Bytes::from(bytes)).await?.as_str().to_owned()))
    }

    async fn try_commit(
        &self,
        lease: &Lease,
        commit: &Commit<'_>,
        tracks: &[KeptTrack],
        sha256: &str,
    ) -> Result<(), StoreError> {
        let State { seed, round, .. } = *commit.state;
        let mut transaction = self.database().begin().await?;
        lease.check(&mut transaction).await?;
        let federation = lease.federation();
        match committed(&mut transaction, federation, seed).await? {
            // An earlier attempt succeeded, but its response was lost.
            Some((done, known)) if done == round && known == sha256 => return Ok(()),
            Some((done, _)) if done >= round => return Err(StoreError::Conflict { seed, round: done }),
            _ => {}
        }
        let now = self.database().now(&mut transaction).await?;
        insert_rounds(&mut transaction, lease, commit, now).await?;
        losses::insert(&mut transaction, federation, commit).await?;
        evaluations::insert(&mut transaction, federation, commit).await?;
        for (index, track) in (0i64..).zip(tracks) {
            insert_model(&mut transaction, federation, commit, index, track).await?;
        }
        sqlx::query(
            "INSERT INTO states (federation, seed, round, sha256) VALUES ($1, $2, $3, $4) \
             ON CONFLICT (federation, seed) DO UPDATE SET round = excluded.round, sha256 = excluded.sha256",
        )
        .bind(federation.as_str())
        .bind(seed.to_string())
        .bind(signed(round))
        .bind(sha256)
        .execute(&mut *transaction)
        .await?;
        Ok(transaction.commit().await?)
    }

    async fn try_state(&self, federation: &FederationName, seed: u64) -> Result<Option<State>, StoreError> {
        let Some((round, _)) = self.try_committed(federation, seed).await? else { return Ok(None) };
        let rows = sqlx::query(
            "SELECT about, blob FROM models WHERE federation = $1 AND seed = $2 AND round = $3 ORDER BY track",
        )
        .bind(federation.as_str())
        .bind(seed.to_string())
        .bind(signed(round))
        .fetch_all(self.database().pool())
        .await?;
        let damaged = || StoreError::Damaged { what: "state" };
        let (mut tensors, mut tracks) = (Vec::new(), Vec::<TrackState>::with_capacity(rows.len()));
        for row in rows {
            let about: TrackAbout =
                serde_json::from_str(&row.try_get::<String, _>(0)?).map_err(|_| damaged())?;
            let hash = BlobHash::parse(&row.try_get::<String, _>(1)?).ok_or_else(damaged)?;
            let (model, params) = read_params(&self.blob(&hash).await?).map_err(|_| damaged())?;
            tensors = model.tensors;
            // Tracks with equal params share them in memory, as they did when they were committed.
            let params = tracks.iter().find(|t| t.params == params).map_or(params, |t| t.params.clone());
            let memory = match &about.vectors {
                None => about.memory(),
                Some(hash) => {
                    let hash = BlobHash::parse(hash).ok_or_else(damaged)?;
                    let alone = state_of_checkpoint(&self.blob(&hash).await?).map_err(|_| damaged())?;
                    alone.tracks.into_iter().next().ok_or_else(damaged)?.memory
                }
            };
            tracks.push(TrackState { memory, ..TrackState::new(params) });
        }
        Ok(Some(State { seed, round, tensors: tensors.into(), tracks }))
    }

    async fn try_committed(
        &self,
        federation: &FederationName,
        seed: u64,
    ) -> Result<Option<(u64, String)>, StoreError> {
        let mut transaction = self.database().pool().begin().await?;
        committed(&mut transaction, federation, seed).await
    }

    async fn try_rounds(
        &self,
        federation: &FederationName,
        seed: u64,
        from: u64,
        limit: u32,
    ) -> Result<Vec<CommittedRound>, StoreError> {
        let rows = sqlx::query(
            "SELECT round, lines, timeline, committed_at FROM rounds \
             WHERE federation = $1 AND seed = $2 AND round >= $3 ORDER BY round LIMIT $4",
        )
        .bind(federation.as_str())
        .bind(seed.to_string())
        .bind(signed(from))
        .bind(i64::from(limit))
        .fetch_all(self.database().pool())
        .await?;
        let mut rounds = rows.iter().map(committed_round).collect::<Result<Vec<_>, _>>()?;
        let (Some(first), Some(last)) = (rounds.first(), rounds.last()) else { return Ok(rounds) };
        let span = (first.round, last.round);
        for (round, track, percentiles) in self.try_percentiles(federation, seed, span).await? {
            if let Ok(at) = rounds.binary_search_by_key(&round, |committed| committed.round)
                && let Some(known) = rounds[at].losses.get_mut(track)
            {
                *known = percentiles;
            }
        }
        Ok(rounds)
    }

    /// Deletes the questions of committed rounds and unreachable params: those that are neither
    /// published nor part of the last two states. A failure only leaves unused data behind.
    async fn prune(&self, federation: &FederationName, state: &State) {
        if let Err(error) = self.try_prune(federation, state).await {
            tracing::warn!(error = chain(&error), "failed to remove old params");
        }
    }

    async fn try_prune(&self, federation: &FederationName, state: &State) -> Result<(), StoreError> {
        self.prune_slots(federation, state.seed, state.round).await?;
        let before: Option<i64> = sqlx::query_scalar(
            "SELECT MAX(round) FROM models WHERE federation = $1 AND seed = $2 AND round < $3",
        )
        .bind(federation.as_str())
        .bind(state.seed.to_string())
        .bind(signed(state.round))
        .fetch_one(self.database().pool())
        .await?;
        let Some(before) = before else { return Ok(()) };
        let mut transaction = self.database().begin().await?;
        let rows = sqlx::query(
            "DELETE FROM models WHERE federation = $1 AND seed = $2 AND round < $3 AND published = 0 RETURNING blob, about",
        )
        .bind(federation.as_str())
        .bind(state.seed.to_string())
        .bind(before)
        .fetch_all(&mut *transaction)
        .await?;
        transaction.commit().await?;
        for row in rows {
            let blob: String = row.try_get(0)?;
            let used: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM models WHERE blob = $1")
                .bind(blob.as_str())
                .fetch_one(self.database().pool())
                .await?;
            if let Some(hash) = BlobHash::parse(&blob).filter(|_| used == 0) {
                self.delete_blob(&hash).await?;
            }
            let about: Option<TrackAbout> = serde_json::from_str(&row.try_get::<String, _>(1)?).ok();
            if let Some(vectors) = about.and_then(|about| about.vectors) {
                let used: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM models WHERE about LIKE $1")
                    .bind(format!("%{vectors}%"))
                    .fetch_one(self.database().pool())
                    .await?;
                if let Some(hash) = BlobHash::parse(&vectors).filter(|_| used == 0) {
                    self.delete_blob(&hash).await?;
                }
            }
        }
        Ok(())
    }
}

/// Parses a row of `rounds`, which does not contain the losses.
fn committed_round(row: &AnyRow) -> Result<CommittedRound, StoreError> {
    let damaged = |_| StoreError::Damaged { what: "round" };
    let lines: Vec<RoundLine> = serde_json::from_str(&row.try_get::<String, _>(1)?).map_err(damaged)?;
    let timeline: Option<String> = row.try_get(2)?;
    Ok(CommittedRound {
        round: row.try_get::<i64, _>(0)?.unsigned_abs(),
        losses: vec![None; lines.len()],
        lines,
        timeline: timeline
            .map(|t| serde_json::from_str(&t))
            .transpose()
            .map_err(damaged)?
            .unwrap_or_default(),
        committed_at: row.try_get(3)?,
    })
}

async fn committed(
    transaction: &mut Transaction<'static, Any>,
    federation: &FederationName,
    seed: u64,
) -> Result<Option<(u64, String)>, StoreError> {
    let row = sqlx::query("SELECT round, sha256 FROM states WHERE federation = $1 AND seed = $2")
        .bind(federation.as_str())
        .bind(seed.to_string())
        .fetch_optional(&mut **transaction)
        .await?;
    row.map(|row| Ok((row.try_get::<i64, _>(0)?.unsigned_abs(), row.try_get(1)?))).transpose()
}

async fn insert_rounds(
    transaction: &mut Transaction<'static, Any>,
    lease: &Lease,
    commit: &Commit<'_>,
    now: i64,
) -> Result<(), StoreError> {
    let mut rounds: BTreeMap<u64, Vec<&RoundLine>> = BTreeMap::new();
    for line in commit.lines {
        rounds.entry(line.record.round).or_default().push(line);
    }
    let last = rounds.keys().next_back().copied();
    let unwritable = |_| StoreError::Damaged { what: "record to commit" };
    for (round, lines) in rounds {
        let timeline = if Some(round) == last { commit.timeline } else { &[] };
        sqlx::query(
            "INSERT INTO rounds (federation, seed, round, lines, timeline, fence, committed_at) \
             VALUES ($1, $2, $3, $4, $5, $6, $7)",
        )
        .bind(lease.federation().as_str())
        .bind(commit.state.seed.to_string())
        .bind(signed(round))
        .bind(serde_json::to_string(&lines).map_err(unwritable)?)
        .bind(serde_json::to_string(timeline).map_err(unwritable)?)
        .bind(lease.fence())
        .bind(now)
        .execute(&mut **transaction)
        .await?;
    }
    Ok(())
}

async fn insert_model(
    transaction: &mut Transaction<'static, Any>,
    federation: &FederationName,
    commit: &Commit<'_>,
    index: i64,
    track: &KeptTrack,
) -> Result<(), StoreError> {
    let about =
        serde_json::to_string(&track.about).map_err(|_| StoreError::Damaged { what: "state to commit" })?;
    sqlx::query(
        "INSERT INTO models (federation, seed, round, track, about, blob, bytes, published) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
    )
    .bind(federation.as_str())
    .bind(commit.state.seed.to_string())
    .bind(signed(commit.state.round))
    .bind(index)
    .bind(about)
    .bind(track.blob.as_str())
    .bind(track.bytes)
    .bind(i64::from(commit.publish))
    .execute(&mut **transaction)
    .await?;
    Ok(())
}

/// Converts a round to a database integer. A larger number matches no row.
pub(super) fn signed(round: u64) -> i64 {
    i64::try_from(round).unwrap_or(i64::MAX)
}
