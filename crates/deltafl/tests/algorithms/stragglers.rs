//! FedProx and FedAvg with devices that complete only a part of their work (Li et al., "Federated
//! Optimization in Heterogeneous Networks", 2020, figure 1).

use std::ops::Range;

use deltafl::cohort::{Availability, Sampling};
use deltafl::data::Examples;
use deltafl::data::synthetic::{ExamplesPerDevice, Fraction, SyntheticLogistic};
use deltafl::exchange::SplitEvaluation;
use deltafl::memory::AlgorithmState;
use deltafl::model::Score;
use deltafl::stream::Stream;
use deltafl::trainer::{LocalPlan, LocalTask, LocalTrainer, TrainerError, Worker};

use super::documented::document;
use super::*;

/// Trains like the inner trainer, but a share of the devices completes only some of its epochs.
struct Stragglers<'a> {
    inner: &'a dyn LocalTrainer,
    share: f64,
}

struct StragglingWorker<'a> {
    inner: Box<dyn Worker + 'a>,
    share: f64,
}

impl LocalTrainer for Stragglers<'_> {
    fn num_params(&self) -> usize {
        self.inner.num_params()
    }

    fn init(&self, stream: &mut Stream, params: &mut [f32]) {
        self.inner.init(stream, params);
    }

    fn worker(&self) -> Box<dyn Worker + '_> {
        Box::new(StragglingWorker { inner: self.inner.worker(), share: self.share })
    }
}

impl Worker for StragglingWorker<'_> {
    fn load(&mut self, params: &[f32]) {
        self.inner.load(params);
    }

    fn score(&mut self, examples: &Examples<'_>, block: Range<usize>) -> Result<Score, TrainerError> {
        self.inner.score(examples, block)
    }

    fn update(
        &mut self,
        task: &LocalTask<'_>,
        own: &mut AlgorithmState,
        stream: &mut Stream,
    ) -> Result<&[f32], TrainerError> {
        let Work::Epochs(epochs) = task.plan.work else { return self.inner.update(task, own, stream) };
        let straggles = stream.unit() < self.share;
        let done = if straggles { 1 + stream.below(epochs.into()) as u32 } else { epochs };
        let plan = LocalPlan { work: Work::Epochs(done), ..*task.plan };
        self.inner.update(&LocalTask { plan: &plan, ..*task }, own, stream)
    }
}

/// What happens to the devices that straggle.
#[derive(Clone, Copy, PartialEq)]
enum Partial {
    /// Their updates count.
    Counts,
    /// They drop out.
    Dropped,
}

/// The mean train loss after each of 40 rounds on synthetic(1, 1), with nine tenths of stragglers.
fn losses_by_round(track: Track, partial: Partial, seed: u64) -> Vec<f64> {
    let examples = ExamplesPerDevice::new(20, 40, 80).unwrap();
    let train_all = Fraction::new(1.0).unwrap();
    let federation = SyntheticLogistic {
        devices: 30.try_into().unwrap(),
        examples,
        train: train_all,
        ..Default::default()
    };
    let federation = federation.build();
    let model = ModelSpec::LINEAR.build(&federation, Isa::detect()).unwrap();
    let sgd = Sgd::new(&*model);
    let [share, drop_out] = if partial == Partial::Counts { [0.9, 0.0] } else { [0.0, 0.9] };
    let trainer = Stragglers { inner: &sgd, share };
    let availability = Availability { drop_out: drop_out.try_into().unwrap(), ..Availability::default() };
    let sampling = Sampling { cohort_size: 10, with_replacement: false, availability };
    let builder = Plan::builder().rounds(40).sampling(sampling).work(Work::Epochs(20)).evaluate_every(1);
    let plan = builder.learning_rate(0.05).track(track).build().unwrap();
    let mut exchange = Simulation::with_threads(&trainer, &federation, NonZeroUsize::new(1)).unwrap();
    let (mut state, mut records) = (plan.start(seed, &trainer), Records::default());
    train(&mut exchange, &plan, &mut state, &mut records).unwrap();
    let loss = |splits: &Vec<SplitEvaluation>| {
        let devices = &splits[0].tracks[0];
        devices.iter().map(|device| device.loss).sum::<f64>() / devices.len() as f64
    };
    let losses: Vec<f64> = records.evaluations.iter().skip(1).map(|(_, splits)| loss(splits)).collect();
    assert_eq!(losses.len(), 40, "one evaluation before the first round and one after each");
    losses
}

#[test]
fn fed_prox_with_partial_updates_is_better_and_steadier_than_fed_avg_without_stragglers() {
    let statistics = |losses: &[f64]| {
        let mean = losses.iter().sum::<f64>() / losses.len() as f64;
        let variance = losses.iter().map(|loss| (loss - mean).powi(2)).sum::<f64>() / losses.len() as f64;
        (mean, variance)
    };
    let mut curves = vec![[0.0; 2]; 40];
    for seed in [7, 8, 9] {
        let fed_avg = losses_by_round(track("fedavg", &[]), Partial::Dropped, seed);
        let fed_prox = losses_by_round(track("fedprox", &[("mu", 1.0)]), Partial::Counts, seed);
        for (sums, losses) in curves.iter_mut().zip(fed_avg.iter().zip(&fed_prox)) {
            *sums = [sums[0] + losses.0 / 3.0, sums[1] + losses.1 / 3.0];
        }
        let [fed_avg, fed_prox] = [fed_avg, fed_prox].map(|losses| statistics(&losses[30..]));
        println!("seed {seed}: FedAvg {fed_avg:?}, FedProx {fed_prox:?}");
        assert!(fed_prox.0 < 0.8 * fed_avg.0 && fed_prox.1 < 0.25 * fed_avg.1, "{fed_avg:?} {fed_prox:?}");
    }
    let lines = curves.iter().enumerate().map(|(t, [a, b])| format!("{},{a:.6},{b:.6}", t + 1));
    document("stragglers", "round,fedavg_without_stragglers,fedprox_with_partial_updates", lines);
}
