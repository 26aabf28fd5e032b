//! The memories of devices after a sum, sent from the process that computed them to all others.

use super::{ExchangeError, Peers};
use crate::memory::AlgorithmState;

/// The memory of a cohort member after its answer to a query.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct MemoryUpdate {
    pub(super) query: usize,
    pub(super) member: usize,
    pub(super) memory: AlgorithmState,
}

/// Returns the number of memory updates of this process, which is sent as one more word of a sum.
pub(super) fn word(mine: &[MemoryUpdate]) -> u64 {
    mine.len() as u64
}

/// Returns the memory updates of all processes, in the order of queries and members. Either all
/// processes call it or none.
pub(super) fn meet(
    peers: &mut impl Peers,
    mut mine: Vec<MemoryUpdate>,
) -> Result<Vec<MemoryUpdate>, ExchangeError> {
    if peers.size() > 1 {
        let words = to_words(&mine);
        let mut lengths = vec![0; peers.size()];
        lengths[peers.rank()] = words.len() as u64;
        let lengths = peers.sum(lengths, &mut || false)?;
        let start = lengths[..peers.rank()].iter().sum::<u64>() as usize;
        let mut all = vec![0; lengths.iter().sum::<u64>() as usize];
        all[start..start + words.len()].copy_from_slice(&words);
        let all = peers.sum(all, &mut || false)?;
        mine = from_words(&all).ok_or_else(|| ExchangeError::Transport {
            context: "failed to exchange the memories of devices",
            source: "malformed words".into(),
        })?;
    }
    mine.sort_unstable_by_key(|memory_updates| (memory_updates.query, memory_updates.member));
    Ok(mine)
}

fn to_words(memory_updates: &[MemoryUpdate]) -> Vec<u64> {
    let mut words = Vec::new();
    for MemoryUpdate { query, member, memory } in memory_updates {
        let mut bytes = memory.to_bytes();
        words.extend([*query as u64, *member as u64, bytes.len() as u64]);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        words.extend(bytes.as_chunks().0.iter().map(|&bytes| u64::from_le_bytes(bytes)));
    }
    words
}

fn from_words(mut words: &[u64]) -> Option<Vec<MemoryUpdate>> {
    let mut all = Vec::new();
    while let [query, member, len, rest @ ..] = words {
        let len = usize::try_from(*len).ok()?;
        let (memory, behind) = rest.split_at_checked(len.div_ceil(8))?;
        let bytes: Vec<u8> = memory.iter().flat_map(|word| word.to_le_bytes()).take(len).collect();
        let memory = AlgorithmState::from_bytes(&bytes).ok()?;
        all.push(MemoryUpdate { query: *query as usize, member: *member as usize, memory });
        words = behind;
    }
    words.is_empty().then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memories_survive_as_words() {
        let memory_updates = |query, member, entries: Vec<f32>| {
            let mut memory = AlgorithmState::default();
            memory.set_vector("control", entries.into());
            MemoryUpdate { query, member, memory }
        };
        let all = vec![memory_updates(0, 3, vec![1.0, -0.0, f32::NAN]), memory_updates(1, 2, vec![2.5])];
        let words = to_words(&all);
        assert_eq!(from_words(&words), Some(all));
        assert_eq!(from_words(&words[1..]), None);
        assert_eq!(from_words(&words[..words.len() - 1]), None);
        assert_eq!(from_words(&[]), Some(Vec::new()));
    }
}
