//! The blobs that devices fetch by hash: the roster, the data contract, and the params of the
//! current question and of the last finished round.

use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use deltafl::params::Params;
use deltafl_wire::BlobId;

/// Blobs by hash. There are few, so a linear search is faster than a hash map.
#[derive(Debug, Default)]
pub(crate) struct ServedBlobs(Mutex<Shelves>);

#[derive(Debug, Default)]
struct Shelves {
    roster: Option<(blake3::Hash, Bytes)>,
    contract: Option<(blake3::Hash, Bytes)>,
    /// The params of the current question.
    params: Vec<(blake3::Hash, Bytes)>,
    /// The params after the last finished round.
    newest: Vec<(blake3::Hash, Bytes)>,
    /// The generation of the newest params.
    generation: u64,
}

impl ServedBlobs {
    /// Replaces the roster.
    pub(crate) fn keep_roster(&self, bytes: Bytes) -> BlobId {
        let id = BlobId::for_bytes(&bytes);
        self.shelves().roster = Some((id.hash, bytes));
        id
    }

    /// Stores the data contract.
    pub(crate) fn keep_contract(&self, bytes: Bytes) {
        self.shelves().contract = Some((blake3::hash(&bytes), bytes));
    }

    /// Stores exactly these parameters until the next call.
    pub(crate) fn keep_params<'p>(&self, params: impl Iterator<Item = &'p Params>) {
        let mut shelves = self.shelves();
        shelves.params = shelves.with_bytes(params);
    }

    /// Replaces the newest parameters.
    pub(crate) fn keep_newest<'p>(&self, params: impl Iterator<Item = &'p Params>) {
        let mut shelves = self.shelves();
        shelves.newest = shelves.with_bytes(params);
        shelves.generation += 1;
    }

    /// Returns the newest parameters and their generation, which increases with every update.
    pub(crate) fn newest(&self) -> (u64, Vec<BlobId>) {
        let shelves = self.shelves();
        let id = |(hash, bytes): &(blake3::Hash, Bytes)| BlobId { hash: *hash, len: bytes.len() as u64 };
        (shelves.generation, shelves.newest.iter().map(id).collect())
    }

    /// Returns the bytes with this hash.
    pub(crate) fn find(&self, hash: &blake3::Hash) -> Option<Bytes> {
        let shelves = self.shelves();
        let others = shelves.roster.iter().chain(&shelves.contract);
        let mut all = others.chain(&shelves.params).chain(&shelves.newest);
        all.find(|(known, _)| known == hash).map(|(_, bytes)| bytes.clone())
    }

    fn shelves(&self) -> MutexGuard<'_, Shelves> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shelves {
    /// Serialises parameters without duplicates. Bytes that are already stored are shared.
    fn with_bytes<'p>(&self, params: impl Iterator<Item = &'p Params>) -> Vec<(blake3::Hash, Bytes)> {
        let mut kept: Vec<(blake3::Hash, Bytes)> = Vec::new();
        for params in params {
            let hash = params.hash();
            if kept.iter().any(|(known, _)| *known == hash) {
                continue;
            }
            let shelved = self.params.iter().chain(&self.newest).find(|(known, _)| *known == hash);
            kept.push(shelved.cloned().unwrap_or_else(|| (hash, little_endian(params))));
        }
        kept
    }
}

fn little_endian(params: &Params) -> Bytes {
    let mut bytes = Vec::with_capacity(4 * params.len());
    params.as_slice().iter().for_each(|entry| bytes.extend_from_slice(&entry.to_le_bytes()));
    bytes.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_found_under_their_own_hash_for_one_round() {
        let (first, second) = (Params::from(vec![1.5, -2.0]), Params::from(vec![3.0]));
        let blobs = ServedBlobs::default();
        blobs.keep_params([&first, &first.clone()].into_iter());
        let bytes = blobs.find(&first.hash()).unwrap();
        assert_eq!(blake3::hash(&bytes), first.hash());
        blobs.keep_params([&second].into_iter());
        assert_eq!((blobs.find(&first.hash()), blobs.find(&second.hash()).unwrap().len()), (None, 4));
    }

    #[test]
    fn the_newest_parameters_are_found_whatever_is_asked_and_give_way_to_newer_ones() {
        let (first, second) = (Params::from(vec![1.5, -2.0]), Params::from(vec![3.0]));
        let blobs = ServedBlobs::default();
        blobs.keep_newest([&first, &first].into_iter());
        let (generation, newest) = blobs.newest();
        assert_eq!(
            newest,
            [BlobId { hash: first.hash(), len: 8 }],
            "a vector that two tracks share is named once"
        );
        blobs.keep_params([&second].into_iter());
        assert!(blobs.find(&first.hash()).is_some());
        blobs.keep_newest([&second].into_iter());
        assert_eq!(blobs.find(&first.hash()), None);
        assert_eq!(blobs.newest(), (generation + 1, vec![BlobId { hash: second.hash(), len: 4 }]));
    }
}
