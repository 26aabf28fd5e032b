//! The work of each rank and its balance: the table at the end of a job.

use std::fmt;
use std::time::Duration;

use deltafl::exchange::WorkDone;

use crate::world::World;

/// The work of all ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Throughput {
    /// The work by rank.
    pub ranks: Vec<RankThroughput>,
}

/// The work of one rank.
#[derive(Clone, Debug, PartialEq)]
pub struct RankThroughput {
    /// The host of the rank.
    pub host: String,
    /// The number of local updates of devices.
    pub updates: u64,
    /// The number of examples evaluated or trained on.
    pub examples: u64,
    /// The seconds spent computing.
    pub busy: f64,
    /// The seconds spent in collectives, including waiting for other ranks.
    pub waited: f64,
}

impl Throughput {
    /// Returns how much longer the busiest rank computed than the mean, relative to the mean. A
    /// better distribution could save this share of the computing time.
    pub fn imbalance(&self) -> f64 {
        let busy = || self.ranks.iter().map(|rank| rank.busy);
        let mean = busy().sum::<f64>() / self.ranks.len() as f64;
        if mean > 0.0 { busy().fold(0.0, f64::max) / mean - 1.0 } else { 0.0 }
    }
}

impl fmt::Display for Throughput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widest = self.ranks.iter().map(|rank| rank.host.len()).max().unwrap_or(0).max(4);
        writeln!(f, "rank  {:widest$}  updates    examples    busy s  waited s  examples/s", "host")?;
        for (rank, did) in self.ranks.iter().enumerate() {
            let speed = if did.busy > 0.0 { did.examples as f64 / did.busy } else { 0.0 };
            let RankThroughput { host, updates, examples, busy, waited } = did;
            writeln!(
                f,
                "{rank:4}  {host:widest$}  {updates:7}  {examples:10}  {busy:8.2}  {waited:8.2}  {speed:10.0}"
            )?;
        }
        writeln!(f, "imbalance {:.1} % (busiest rank over the mean)", 100.0 * self.imbalance())
    }
}

/// Collects the work of each rank on rank 0.
pub(crate) fn gather(
    world: &World,
    work_done: WorkDone,
    busy: Duration,
    waited: Duration,
) -> Option<Throughput> {
    let words =
        [work_done.updates, work_done.examples, busy.as_secs_f64().to_bits(), waited.as_secs_f64().to_bits()];
    let mine: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let all = world.gather_bytes(&mine);
    world.is_root().then(|| {
        let rank = |(rank, bytes): (usize, &Vec<u8>)| {
            let mut words = bytes.chunks_exact(8).map(|word| {
                u64::from_le_bytes(word.try_into().expect("a chunk of eight bytes has eight bytes"))
            });
            let mut word = || words.next().unwrap_or_default();
            RankThroughput {
                host: world.host(rank).to_owned(),
                updates: word(),
                examples: word(),
                busy: f64::from_bits(word()),
                waited: f64::from_bits(word()),
            }
        };
        Throughput { ranks: all.iter().enumerate().map(rank).collect() }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(busy: f64) -> RankThroughput {
        RankThroughput { host: "node7".to_owned(), updates: 12, examples: 3000, busy, waited: 0.5 }
    }

    #[test]
    fn the_imbalance_is_the_busiest_rank_over_the_mean() {
        let throughput = Throughput { ranks: vec![rank(1.0), rank(2.0), rank(3.0)] };
        assert!((throughput.imbalance() - 0.5).abs() < 1e-12);
        assert!(Throughput { ranks: vec![rank(0.0)] }.imbalance().abs() < 1e-12);
    }

    #[test]
    fn the_table_has_a_line_per_rank_and_the_imbalance() {
        let table = Throughput { ranks: vec![rank(1.0), rank(3.0)] }.to_string();
        assert_eq!(
            table,
            "rank  host   updates    examples    busy s  waited s  examples/s\n   \
             0  node7       12        3000      1.00      0.50        3000\n   \
             1  node7       12        3000      3.00      0.50        1000\n\
             imbalance 50.0 % (busiest rank over the mean)\n"
        );
    }
}
