//! Sums by real secure aggregation.
//!
//! Every sum uses the protocol of the deployed server: keys, shares, masks, consistency check and
//! unmasking, with encoded messages. The sums are the same integers as without masks. The time
//! differs, and messages and bytes are counted instead of estimated. If too many devices of a
//! cohort drop out, its sum fails, and the round starts again with another cohort.

use std::collections::HashMap;

use deltafl_secagg::graph::{GraphRule, Permille};
use deltafl_secagg::identity::DeviceId;
use deltafl_secagg::params::RoundId;
use deltafl_secagg::server::PhaseName;
use deltafl_secagg::simulate::{DropOut, SimulatedRound, SimulationConfig, SimulationError};
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::SeedableRng;

use super::{CohortMember, CohortSum, ExchangeError, Fleet, Peers, Round, Traffic, TrainIndex};
use crate::compute::Compute;
use crate::memory::AlgorithmState;
use crate::question::{Ask, Query, encode};
use crate::stream::{Purpose, Stream};

/// The number of sums under one key set-up: two histograms, one more if the range moves, and the
/// update.
pub const SLOTS: u32 = 4;

/// Adds the answers of a fleet up by the protocol. Every peer runs the same protocol on the same
/// inputs.
pub(super) struct MaskedSums {
    /// δ for which the graph is laid out, in thousandths.
    drop_out: u16,
    setup: Option<RoundKeys>,
}

/// The keys of the current round.
struct RoundKeys {
    round: (u64, u64),
    /// The number of key set-ups in the current round.
    generation: u64,
    cohort: Vec<CohortMember>,
    protocol: SimulatedRound,
    counted: Traffic,
    slots_left: u32,
}

impl MaskedSums {
    /// Sums over devices that drop out with this probability.
    pub(super) fn new(drop_out: f64) -> Self {
        // A margin above the mean, so that a bad round of a usual cohort still finishes.
        let thousandths = (1000.0 * (1.5 * drop_out + 0.1)).min(450.0) as u16;
        Self { drop_out: thousandths, setup: None }
    }

    /// For each query, the sum of the answers over the cohort.
    pub(super) fn sum<C: Compute, P: Peers>(
        &mut self,
        fleet: &mut Fleet<'_, C, P>,
        round: &Round<'_>,
        queries: &[Query],
    ) -> Result<Vec<CohortSum>, ExchangeError> {
        let mut failed = None;
        let slot = self.slot(fleet, round, queries, &mut failed);
        if let Some(error) = failed {
            return Err(error);
        }
        let MaskedSlot { sum, traffic, mut remembered } = slot.map_err(|error| match error {
            SimulationError::Failed(failure) => ExchangeError::NoSum { source: failure.into() },
            error => ExchangeError::Transport { context: "secure aggregation failed", source: error.into() },
        })?;
        let mut rest = sum.as_slice();
        let mut sums = Vec::with_capacity(queries.len());
        for (q, query) in queries.iter().enumerate() {
            let (values, behind) = rest.split_at(query.answer_len());
            rest = behind;
            // One slot carries the sums of all tracks: its cost is shared out evenly.
            let mut traffic = traffic.part(q as u64, queries.len() as u64);
            traffic.bytes_down += params_down(round, query);
            let remembered = std::mem::take(&mut remembered[q]);
            sums.push(CohortSum {
                values: values.to_vec(),
                answered: round.answering(),
                traffic,
                remembered,
            });
        }
        Ok(sums)
    }

    /// Returns a protocol with a free slot, for the current cohort or newly set up.
    fn ready(&mut self, round: &Round<'_>) -> Result<RoundKeys, SimulationError> {
        let key = (round.seed, round.index);
        let generation = match self.setup.take() {
            // A restarted round has another cohort, which needs its own keys.
            Some(setup) if setup.round == key && setup.cohort == round.cohort => {
                if setup.slots_left > 0 {
                    return Ok(setup);
                }
                setup.generation + 1
            }
            _ => 0,
        };
        let mut stream = Stream::new(round.seed, Purpose::SecureAggregation, round.index, generation);
        let mut seed = [0; 32];
        seed.chunks_exact_mut(8).for_each(|bytes| bytes.copy_from_slice(&stream.next_u64().to_le_bytes()));
        let (devices, drops) = members(round, generation, &mut stream);
        let config = SimulationConfig {
            id: RoundId { session: [0; 16], round: round.index },
            graph: GraphRule::HonestButCurious { gamma: share(50).into(), delta: share(self.drop_out) },
            slots: SLOTS,
            ..SimulationConfig::default()
        };
        let protocol = SimulatedRound::new(&config, &devices, &drops, &mut ChaCha20Rng::from_seed(seed))?;
        Ok(RoundKeys {
            round: key,
            generation,
            cohort: round.cohort.to_vec(),
            protocol,
            counted: Traffic::default(),
            slots_left: SLOTS,
        })
    }

    /// One slot of the protocol: the answers to all queries, one behind the other.
    fn slot<C: Compute, P: Peers>(
        &mut self,
        fleet: &mut Fleet<'_, C, P>,
        round: &Round<'_>,
        queries: &[Query],
        failed: &mut Option<ExchangeError>,
    ) -> Result<MaskedSlot, SimulationError> {
        let mut setup = self.ready(round)?;
        setup.slots_left -= 1;
        let len: usize = queries.iter().map(Query::answer_len).sum();
        let position: HashMap<u32, usize> =
            round.cohort.iter().enumerate().map(|(i, drawn)| (drawn.device.0, i)).collect();
        let mut remembered = vec![Vec::new(); queries.len()];
        let ready = HashMap::new();
        let mut answers = MaskedInputs { fleet, round, queries, ready, remembered: &mut remembered, failed };
        let signed = blake3::hash(&encode(&round.key(), queries));
        let mut input = |DeviceId(device)| answers.input(position[&device]);
        let (len, signed) = (len as u32, signed.as_bytes());
        // Noisy sums fit into 32 bits.
        let sum: Vec<u64> = if queries.iter().all(|query| query.noise.is_some()) {
            let short = |device| input(device).into_iter().map(|entry| entry as u32).collect();
            setup.protocol.sum::<u32>(len, signed, short)?.sum.into_iter().map(u64::from).collect()
        } else {
            setup.protocol.sum(len, signed, input)?.sum
        };
        let traffic = setup.new_traffic();
        self.setup = Some(setup);
        Ok(MaskedSlot { sum, traffic, remembered })
    }
}

/// Returns the whole cohort and the protocol step at which each dropped device disappears, before
/// it submits an input. In a second set-up of the same round these devices are already absent.
fn members(round: &Round<'_>, generation: u64, stream: &mut Stream) -> (Vec<DeviceId>, Vec<DropOut>) {
    let present = round.cohort.iter().filter(|drawn| generation == 0 || !drawn.dropped);
    let devices = present.map(|drawn| DeviceId(drawn.device.0)).collect();
    let vanishing = round.cohort.iter().filter(|drawn| generation == 0 && drawn.dropped);
    let drops = vanishing.map(|drawn| {
        let phases = [PhaseName::Advertise, PhaseName::Reveal, PhaseName::Share, PhaseName::MaskedInput(0)];
        DropOut { device: DeviceId(drawn.device.0), before: phases[stream.below(4) as usize] }
    });
    (devices, drops.collect())
}

/// The result of a slot of the protocol.
struct MaskedSlot {
    sum: Vec<u64>,
    traffic: Traffic,
    /// Per query.
    remembered: Vec<Vec<(TrainIndex, AlgorithmState)>>,
}

impl RoundKeys {
    /// Returns the traffic of the protocol since the last call.
    fn new_traffic(&mut self) -> Traffic {
        let total = self.protocol.traffic().total();
        let now = Traffic {
            sums: self.counted.sums + 1,
            messages: total.messages_sent + total.messages_received,
            bytes_up: total.bytes_sent,
            bytes_down: total.bytes_received,
        };
        let before = std::mem::replace(&mut self.counted, now);
        Traffic {
            sums: now.sums - before.sums,
            messages: now.messages - before.messages,
            bytes_up: now.bytes_up - before.bytes_up,
            bytes_down: now.bytes_down - before.bytes_down,
        }
    }
}

/// The inputs of the devices, computed in small groups, which keeps all threads busy and bounds the
/// memory.
struct MaskedInputs<'a, 'f, C, P> {
    fleet: &'a mut Fleet<'f, C, P>,
    round: &'a Round<'a>,
    queries: &'a [Query],
    ready: HashMap<usize, Vec<u64>>,
    /// What devices remember, per query.
    remembered: &'a mut [Vec<(TrainIndex, AlgorithmState)>],
    /// The error of a device that could not be computed; the sum is then discarded.
    failed: &'a mut Option<ExchangeError>,
}

impl<C: Compute, P: Peers> MaskedInputs<'_, '_, C, P> {
    /// The input of member `i` of the cohort. Devices are asked in the order of their ids.
    fn input(&mut self, i: usize) -> Vec<u64> {
        if !self.ready.contains_key(&i) {
            let wanted = self.round.cohort[i].device;
            let mut next: Vec<usize> = (0..self.round.cohort.len())
                .filter(|&j| !self.round.cohort[j].dropped && self.round.cohort[j].device >= wanted)
                .collect();
            next.sort_unstable_by_key(|&j| self.round.cohort[j].device);
            next.truncate(4 * self.fleet.compute().width() * self.fleet.peers().size());
            match self.fleet.answers(self.round, self.queries, &next) {
                Ok(mut answers) => {
                    for (query, remembered) in self.remembered.iter_mut().enumerate() {
                        remembered.extend(answers.remembered(self.round, query));
                    }
                    self.ready = next.into_iter().zip(answers.values).collect();
                }
                Err(error) => *self.failed = Some(error),
            }
        }
        self.ready.remove(&i).unwrap_or_default()
    }
}

fn share(thousandths: u16) -> Permille {
    Permille::new(thousandths).expect("at most 450 thousandths")
}

/// Bytes of the params that the protocol itself does not carry: once per round, to every device of
/// the cohort.
fn params_down(round: &Round<'_>, query: &Query) -> u64 {
    match query.ask {
        Ask::Quantile(_) | Ask::Evaluation(_) => 0,
        Ask::Update { .. } => round.cohort.len() as u64 * 4 * query.params.len() as u64,
    }
}
