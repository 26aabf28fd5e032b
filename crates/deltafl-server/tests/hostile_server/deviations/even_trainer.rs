//! A trainer whose answers have even entries, and an environment of a seed.

use std::ops::Range;
use std::sync::Mutex;
use std::time::Duration;

use chacha20::ChaCha20Rng;
use deltafl::data::Examples;
use deltafl::memory::AlgorithmState;
use deltafl::model::Score;
use deltafl::stream::Stream;
use deltafl::trainer::{LocalTask, LocalTrainer, TrainerError, Worker};
use deltafl_secagg::identity::DeviceId;
use deltafl_wire::environment::{Clock, RandomSource};
use rand_core::Rng as _;

use super::{PARAMS, loss};

/// Adds the same even number to every entry, so that an answer has no odd entry.
pub(super) struct EvenTrainer(pub(super) u32);

struct EvenWorker(u32, Vec<f32>);

impl LocalTrainer for EvenTrainer {
    fn num_params(&self) -> usize {
        PARAMS
    }

    fn init(&self, _: &mut Stream, params: &mut [f32]) {
        params.fill(0.5);
    }

    fn worker(&self) -> Box<dyn Worker + '_> {
        Box::new(EvenWorker(self.0, Vec::new()))
    }
}

impl Worker for EvenWorker {
    fn load(&mut self, _: &[f32]) {}

    fn score(&mut self, _: &Examples<'_>, block: Range<usize>) -> Result<Score, TrainerError> {
        Ok(Score { loss: loss(DeviceId(self.0)) * block.len() as f64, ..Score::default() })
    }

    fn update(
        &mut self,
        task: &LocalTask<'_>,
        _: &mut AlgorithmState,
        _: &mut Stream,
    ) -> Result<&[f32], TrainerError> {
        // A multiple of 2⁻²³: an answer counts in units of 2⁻²⁴.
        let step = (1 + self.0) as f32 * 2f32.powi(-20);
        self.1 = task.params.iter().map(|w| w + step).collect();
        Ok(&self.1)
    }
}

#[derive(Debug)]
pub(super) struct FixedDate;

impl Clock for FixedDate {
    fn since_1970(&self) -> Duration {
        Duration::from_secs(1_700_000_000)
    }
}

#[derive(Debug)]
pub(super) struct SeededRandom(pub(super) Mutex<ChaCha20Rng>);

impl RandomSource for SeededRandom {
    fn fill(&self, bytes: &mut [u8]) -> Result<(), getrandom::Error> {
        self.0.lock().unwrap().fill_bytes(bytes);
        Ok(())
    }
}
