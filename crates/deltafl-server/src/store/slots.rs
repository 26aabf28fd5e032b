//! The questions of the current round and their sums, so that another server can resume the round
//! after a crash.
//!
//! The recipients are stored before a question is sent, and a sum as soon as it is known. Both are
//! deleted after the round is committed.

use std::collections::BTreeSet;

use bytes::Bytes;
use deltafl::exchange::{CohortSum, Traffic};
use deltafl_wire::identity::FederationName;
use sqlx::Row as _;
use sqlx::any::AnyRow;

use super::blobs::BlobHash;
use super::commit::signed;
use super::lease::Fence;
use super::retry::patiently;
use super::{Store, StoreError};

/// The first byte of stored sums.
const VERSION: u8 = 1;

/// A question of an uncommitted round.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredQuestion {
    /// BLAKE3 of its canonical bytes.
    pub question: blake3::Hash,
    /// S_t, by position on the roster.
    pub cohort: BTreeSet<u32>,
    /// The devices that received the question.
    pub asked: BTreeSet<u32>,
    /// A sum per query, once they are known.
    pub sums: Option<Vec<CohortSum>>,
}

/// The key of a question: seed, round and number within the round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotKey {
    /// The seed of the run.
    pub seed: u64,
    /// t.
    pub round: u64,
    /// The number of the question, starting at 0, over all cohorts of the round.
    pub number: u64,
}

impl Store {
    /// Records that a question is about to be sent. It is stored when this returns. A former leader
    /// is refused.
    pub async fn keep_asked(
        &self,
        fence: &Fence,
        key: SlotKey,
        slot: &StoredQuestion,
    ) -> Result<(), StoreError> {
        patiently!(self, self.try_keep_asked(fence, key, slot))
    }

    /// Stores the sums of a question that was asked.
    pub async fn keep_sums(&self, fence: &Fence, key: SlotKey, sums: &[CohortSum]) -> Result<(), StoreError> {
        let blob = self.put_blob(&Bytes::from(to_bytes(sums))).await?;
        patiently!(self, self.try_keep_sums(fence, key, &blob))
    }

    /// Returns the questions of an uncommitted round, in order.
    pub async fn slots(
        &self,
        federation: &FederationName,
        seed: u64,
        round: u64,
    ) -> Result<Vec<StoredQuestion>, StoreError> {
        patiently!(self, self.try_slots(federation, seed, round))
    }

    async fn try_keep_asked(
        &self,
        fence: &Fence,
        key: SlotKey,
        slot: &StoredQuestion,
    ) -> Result<(), StoreError> {
        let json = |devices: &BTreeSet<u32>| {
            serde_json::to_string(devices).map_err(|_| StoreError::Damaged { what: "question to keep" })
        };
        let mut transaction = self.database().begin().await?;
        fence.check(&mut transaction).await?;
        // The response to an earlier attempt may have been lost.
        sqlx::query(
            "INSERT INTO slots (federation, seed, round, number, question, cohort, asked) \
             VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING",
        )
        .bind(fence.federation().as_str())
        .bind(key.seed.to_string())
        .bind(signed(key.round))
        .bind(signed(key.number))
        .bind(slot.question.to_hex().to_string())
        .bind(json(&slot.cohort)?)
        .bind(json(&slot.asked)?)
        .execute(&mut *transaction)
        .await?;
        Ok(transaction.commit().await?)
    }

    async fn try_keep_sums(&self, fence: &Fence, key: SlotKey, blob: &BlobHash) -> Result<(), StoreError> {
        let mut transaction = self.database().begin().await?;
        fence.check(&mut transaction).await?;
        sqlx::query(
            "UPDATE slots SET sums = $5 WHERE federation = $1 AND seed = $2 AND round = $3 AND number = $4",
        )
        .bind(fence.federation().as_str())
        .bind(key.seed.to_string())
        .bind(signed(key.round))
        .bind(signed(key.number))
        .bind(blob.as_str())
        .execute(&mut *transaction)
        .await?;
        Ok(transaction.commit().await?)
    }

    async fn try_slots(
        &self,
        federation: &FederationName,
        seed: u64,
        round: u64,
    ) -> Result<Vec<StoredQuestion>, StoreError> {
        let rows = sqlx::query(
            "SELECT question, cohort, asked, sums FROM slots \
             WHERE federation = $1 AND seed = $2 AND round = $3 ORDER BY number",
        )
        .bind(federation.as_str())
        .bind(seed.to_string())
        .bind(signed(round))
        .fetch_all(self.database().pool())
        .await?;
        let mut slots = Vec::with_capacity(rows.len());
        for row in rows {
            slots.push(self.slot(&row).await?);
        }
        Ok(slots)
    }

    async fn slot(&self, row: &AnyRow) -> Result<StoredQuestion, StoreError> {
        let damaged = || StoreError::Damaged { what: "question of a round" };
        let devices = |text: String| serde_json::from_str(&text).map_err(|_| damaged());
        let sums = match row.try_get::<Option<String>, _>(3)? {
            Some(hash) => {
                let hash = BlobHash::parse(&hash).ok_or_else(damaged)?;
                Some(from_bytes(&self.blob(&hash).await?).ok_or_else(damaged)?)
            }
            None => None,
        };
        Ok(StoredQuestion {
            question: blake3::Hash::from_hex(row.try_get::<String, _>(0)?).map_err(|_| damaged())?,
            cohort: devices(row.try_get(1)?)?,
            asked: devices(row.try_get(2)?)?,
            sums,
        })
    }

    /// Deletes the questions of committed rounds.
    pub(super) async fn prune_slots(
        &self,
        federation: &FederationName,
        seed: u64,
        rounds: u64,
    ) -> Result<(), StoreError> {
        let rows = sqlx::query(
            "DELETE FROM slots WHERE federation = $1 AND seed = $2 AND round < $3 RETURNING sums",
        )
        .bind(federation.as_str())
        .bind(seed.to_string())
        .bind(signed(rounds))
        .fetch_all(self.database().pool())
        .await?;
        self.delete_sums_of(rows).await
    }

    /// Deletes the questions about the final params of a run of this many rounds, which have the
    /// number of the round that would follow. They are not questions of that round if the run is
    /// extended.
    pub(super) async fn prune_final_evaluation(
        &self,
        federation: &FederationName,
        rounds: u64,
    ) -> Result<(), StoreError> {
        let rows = sqlx::query("DELETE FROM slots WHERE federation = $1 AND round >= $2 RETURNING sums")
            .bind(federation.as_str())
            .bind(signed(rounds))
            .fetch_all(self.database().pool())
            .await?;
        self.delete_sums_of(rows).await
    }

    async fn delete_sums_of(&self, slots: Vec<AnyRow>) -> Result<(), StoreError> {
        for row in slots {
            let blob: Option<String> = row.try_get(0)?;
            if let Some(hash) = blob.as_deref().and_then(BlobHash::parse) {
                self.delete_sums(&hash).await?;
            }
        }
        Ok(())
    }

    /// Deletes the blob of sums unless another round refers to it.
    async fn delete_sums(&self, hash: &BlobHash) -> Result<(), StoreError> {
        let used: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM slots WHERE sums = $1")
            .bind(hash.as_str())
            .fetch_one(self.database().pool())
            .await?;
        if used == 0 { self.delete_blob(hash).await } else { Ok(()) }
    }
}

/// A version, then for each sum: answered, the four numbers of its traffic, how many values, the
/// values; little-endian.
fn to_bytes(sums: &[CohortSum]) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    for sum in sums {
        let Traffic { sums, messages, bytes_up, bytes_down } = sum.traffic;
        let header = [sum.answered, sums, messages, bytes_up, bytes_down, sum.values.len() as u64];
        bytes.extend(header.iter().chain(&sum.values).flat_map(|number| number.to_le_bytes()));
    }
    bytes
}

fn from_bytes(bytes: &[u8]) -> Option<Vec<CohortSum>> {
    let (&VERSION, mut rest) = bytes.split_first()? else { return None };
    let mut sums = Vec::new();
    while !rest.is_empty() {
        let mut number = || {
            let (number, behind) = rest.split_first_chunk::<8>()?;
            rest = behind;
            Some(u64::from_le_bytes(*number))
        };
        let answered = number()?;
        let traffic =
            Traffic { sums: number()?, messages: number()?, bytes_up: number()?, bytes_down: number()? };
        let len = usize::try_from(number()?).ok()?;
        let values = rest.get(..len.checked_mul(8)?)?;
        rest = &rest[values.len()..];
        let values =
            values.chunks_exact(8).filter_map(|value| Some(u64::from_le_bytes(value.try_into().ok()?)));
        sums.push(CohortSum { values: values.collect(), answered, traffic, remembered: Vec::new() });
    }
    Some(sums)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_come_back_and_cut_or_longer_bytes_do_not() {
        let traffic = Traffic { sums: 1, messages: 20, bytes_up: 300, bytes_down: 4000 };
        let sum = |values: Vec<u64>| CohortSum { values, answered: 9, traffic, remembered: Vec::new() };
        let sums = vec![sum(vec![1, u64::MAX, 3]), sum(vec![]), sum(vec![7])];
        let bytes = to_bytes(&sums);
        assert_eq!(from_bytes(&bytes), Some(sums));
        assert!((1..48).all(|cut| from_bytes(&bytes[..bytes.len() - cut]).is_none()));
        assert_eq!(from_bytes(&[&bytes[..], &[0]].concat()), None);
        assert_eq!(from_bytes(&[]), None);
        let mut longer = bytes;
        longer[41..49].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(from_bytes(&longer), None, "a length beyond the bytes");
    }
}
