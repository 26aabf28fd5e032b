//! The reference on the CPU: losses and local updates from `Model::gradient`, step by step.

use deltafl::data::{BatchBuffer, FederationIndex};
use deltafl::device::{blocks, stream_key, update_stream};
use deltafl::model::Score;
use deltafl::params::Params;
use deltafl::question::RoundKey;
use deltafl::trainer::{LocalPlan, LocalTrainer, Sgd, Work};

use crate::cases::Case;

/// Returns the loss of a device.
pub(crate) fn cpu_scores(case: &Case, device: FederationIndex, params: &Params) -> Score {
    let examples = case.federation.examples(device);
    let trainer = Sgd::new(&*case.model);
    let mut worker = trainer.worker();
    worker.load(params.as_slice());
    let mut total = Score::default();
    for block in blocks(examples.len()) {
        total += worker.score(&examples, block).unwrap();
    }
    total
}

/// Computes w ← w − γ(∇f + λw + μ(w − w_t)), in f64 between gradients.
pub(crate) fn cpu_local(
    case: &Case,
    device: FederationIndex,
    plan: &LocalPlan,
    round: &RoundKey,
) -> Vec<f32> {
    cpu_drifting(case, device, plan, round, &vec![0.0; case.params.len()])
}

/// Computes w ← w − γ(∇f + λw + μ(w − w_t) + drift), in f64 between gradients.
pub(crate) fn cpu_drifting(
    case: &Case,
    device: FederationIndex,
    plan: &LocalPlan,
    round: &RoundKey,
    drift: &[f32],
) -> Vec<f32> {
    let examples = case.federation.examples(device);
    let mut stream = update_stream(round, stream_key(case.federation.id(device)));
    let start: Vec<f64> = case.params.as_slice().iter().map(|&w| f64::from(w)).collect();
    let mut w = start.clone();
    let mut step = |indices: &[u32]| {
        let mut buffer = BatchBuffer::default();
        let batch = buffer.gather(&examples, indices.iter().map(|&i| i as usize));
        let mut gradient = vec![0.0; w.len()];
        let mut scratch = vec![0.0; case.model.scratch_len(indices.len())];
        let now: Vec<f32> = w.iter().map(|&w| w as f32).collect();
        case.model.gradient(&now, batch, &mut gradient, &mut scratch);
        let [rate, l2, mu] = [plan.learning_rate, plan.l2, plan.proximal].map(f64::from);
        for (((w, &start), &slope), &drift) in w.iter_mut().zip(&start).zip(&gradient).zip(drift) {
            *w -= rate * (f64::from(slope) + l2 * *w + mu * (*w - start) + f64::from(drift));
        }
    };
    match plan.work {
        Work::Epochs(epochs) => {
            for _ in 0..epochs {
                let mut order: Vec<u32> = (0..examples.len() as u32).collect();
                stream.shuffle(&mut order);
                order.chunks(plan.batch).for_each(&mut step);
            }
        }
        Work::Steps(steps) => {
            for _ in 0..steps {
                let draw = |_| stream.below(examples.len() as u64) as u32;
                let order: Vec<u32> = (0..plan.batch).map(draw).collect();
                step(&order);
            }
        }
    }
    w.iter().map(|&w| w as f32).collect()
}

/// Returns ‖got − expected‖ / ‖expected − start‖.
pub(crate) fn distance(got: &[f32], expected: &[f32], start: &[f32]) -> f64 {
    let norm = |pairs: &mut dyn Iterator<Item = (f32, f32)>| {
        pairs.map(|(a, b)| (f64::from(a) - f64::from(b)).powi(2)).sum::<f64>().sqrt()
    };
    let error = norm(&mut got.iter().copied().zip(expected.iter().copied()));
    let moved = norm(&mut expected.iter().copied().zip(start.iter().copied()));
    if error.is_nan() { f64::INFINITY } else { error / moved }
}

/// Returns the median.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
