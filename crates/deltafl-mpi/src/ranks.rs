//! The peers of a rank: collective operations, and the time spent in them.
//!
//! The element types of send and receive buffers are explicit, because nothing else ensures that
//! they match.

use std::time::{Duration, Instant};

use deltafl::exchange::{ExchangeError, Peers};
use deltafl::model::Score;
use mpi::collective::SystemOperation;
use mpi::datatype::PartitionMut;
use mpi::request::scope;
use mpi::traits::CommunicatorCollectives;

use crate::world::World;

/// The largest number of entries of one collective. MPI counts them in an `i32`.
pub(crate) const MOST: usize = 1 << 30;

/// The number of words of a score.
const WORDS: usize = 1 + Score::SUMS;

/// Encodes a score as words, bit by bit.
fn words_of(score: &Score) -> [u64; WORDS] {
    let mut words = [score.loss.to_bits(); WORDS];
    words[1..].iter_mut().zip(score.sums).for_each(|(word, sum)| *word = sum.to_bits());
    words
}

fn score_of(words: &[u64; WORDS]) -> Score {
    Score { loss: f64::from_bits(words[0]), sums: std::array::from_fn(|i| f64::from_bits(words[1 + i])) }
}

/// The collective operations of the ranks, and the time spent in them.
pub struct Ranks<'a> {
    world: &'a World,
    busy: Duration,
    waited: Duration,
}

/// There are more scores than one gather can transfer.
#[derive(Debug, thiserror::Error)]
#[error(
    "{blocks} blocks of examples exceed the size of one gather: evaluate fewer devices or tracks at once"
)]
struct TooManyScores {
    blocks: usize,
}

impl<'a> Ranks<'a> {
    pub(crate) fn new(world: &'a World) -> Self {
        Self { world, busy: Duration::ZERO, waited: Duration::ZERO }
    }

    /// Time spent on computing the devices of this rank.
    pub(crate) fn busy(&self) -> Duration {
        self.busy
    }

    /// Returns the time spent in collectives, including waiting for other ranks.
    pub(crate) fn waited(&self) -> Duration {
        self.waited
    }
}

impl Peers for Ranks<'_> {
    fn rank(&self) -> usize {
        self.world.rank()
    }

    fn size(&self) -> usize {
        self.world.size()
    }

    fn compute<T>(&mut self, part: impl FnOnce() -> T) -> T {
        let since = Instant::now();
        let done = part();
        self.busy += since.elapsed();
        done
    }

    fn gather(&mut self, part: Vec<Score>, lengths: &[usize]) -> Result<Vec<Score>, ExchangeError> {
        if self.size() == 1 {
            return Ok(part);
        }
        let blocks = lengths.iter().sum::<usize>();
        if WORDS * blocks > MOST {
            let source = Box::new(TooManyScores { blocks });
            return Err(ExchangeError::Transport { context: "could not gather the losses", source });
        }
        let since = Instant::now();
        let words: Vec<u64> = part.iter().flat_map(words_of).collect();
        let mut all = vec![0u64; WORDS * blocks];
        let counts: Vec<i32> = lengths.iter().map(|&len| (WORDS * len) as i32).collect();
        let starts: Vec<i32> =
            counts.iter().scan(0, |end, &count| Some(std::mem::replace(end, *end + count))).collect();
        let mut parts = PartitionMut::new(&mut all[..], counts, starts);
        self.world.communicator().all_gather_varcount_into(&words[..], &mut parts);
        self.waited += since.elapsed();
        Ok(all.as_chunks().0.iter().map(score_of).collect())
    }

    fn sum(
        &mut self,
        values: Vec<u64>,
        meanwhile: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<u64>, ExchangeError> {
        if self.size() == 1 {
            return Ok(values);
        }
        let since = Instant::now();
        let communicator = self.world.communicator();
        let mut sum = vec![0u64; values.len()];
        for (values, sum) in values.chunks(MOST).zip(sum.chunks_mut(MOST)) {
            all_reduce(communicator, values, sum, meanwhile);
        }
        self.waited += since.elapsed();
        Ok(sum)
    }
}

/// Adds up over all ranks, and calls `meanwhile` during the transfer. MPI makes progress only
/// during its calls, so the reduction is polled after each piece.
pub(crate) fn all_reduce(
    communicator: &impl CommunicatorCollectives,
    values: &[u64],
    sum: &mut [u64],
    meanwhile: &mut dyn FnMut() -> bool,
) {
    scope(|scope| {
        let operation = SystemOperation::sum();
        let mut reduction = communicator.immediate_all_reduce_into(scope, values, sum, operation);
        while meanwhile() {
            match reduction.test() {
                Ok(_) => return,
                Err(unfinished) => reduction = unfinished,
            }
        }
        reduction.wait_without_status();
    });
}
