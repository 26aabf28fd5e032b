//! SCAFFOLD against a plain reference in `f64`, written after option II of the paper (Karimireddy
//! et al., 2020, Algorithm 1).

use deltafl::data::{BatchBuffer, FederationIndex};
use deltafl::device::{stream_key, update_stream};
use deltafl::question::RoundKey;

use super::*;

const CLASSES: usize = 62;
const INPUTS: usize = 784;

/// A device's data, in `f64`.
struct Device {
    key: u64,
    inputs: Vec<Vec<f64>>,
    labels: Vec<usize>,
}

impl Device {
    fn new(federation: &Federation, device: FederationIndex) -> Self {
        let (examples, mut buffer) = (federation.examples(device), BatchBuffer::default());
        let batch = buffer.gather(&examples, 0..examples.len());
        let rows = batch.inputs.dense().chunks(INPUTS);
        Self {
            key: stream_key(federation.id(device)),
            inputs: rows.map(|row| row.iter().map(|&x| x.into()).collect()).collect(),
            labels: (0..examples.len()).map(|i| examples.label(i) as usize).collect(),
        }
    }

    /// g_i(y): the mean gradient of the cross-entropy over a batch, and λy.
    fn gradient(&self, y: &[f64], batch: &[u32], l2: f64) -> Vec<f64> {
        let mut gradient: Vec<f64> = y.iter().map(|y| l2 * y).collect();
        for &example in batch {
            let x = &self.inputs[example as usize];
            let mut logits = vec![0.0; CLASSES];
            for (x, row) in x.iter().zip(y.chunks(CLASSES)) {
                logits.iter_mut().zip(row).for_each(|(logit, w)| *logit += x * w);
            }
            let most = logits.iter().copied().fold(f64::MIN, f64::max);
            let total: f64 = logits.iter().map(|logit| (logit - most).exp()).sum();
            let slope = |class: usize| {
                let hit = f64::from(u8::from(class == self.labels[example as usize]));
                ((logits[class] - most).exp() / total - hit) / batch.len() as f64
            };
            let slopes: Vec<f64> = (0..CLASSES).map(slope).collect();
            for (x, row) in x.iter().zip(gradient.chunks_mut(CLASSES)) {
                row.iter_mut().zip(&slopes).for_each(|(g, slope)| *g += x * slope);
            }
        }
        gradient
    }
}

/// Lines 2 to 17 of Algorithm 1: x and c after the rounds of the plan.
fn reference(plan: &Plan, federation: &Federation, global_rate: f64) -> [Vec<f64>; 2] {
    let Work::Epochs(epochs) = plan.local().work else { panic!("epochs") };
    let rate = f64::from(plan.local().learning_rate as f32);
    let devices: Vec<Device> =
        federation.split(Split::Train).into_iter().map(|k| Device::new(federation, k)).collect();
    let l2 = f64::from(plan.tracks()[0].l2);
    let mut x = vec![0.0; INPUTS * CLASSES];
    let mut c = x.clone();
    let mut own = vec![x.clone(); devices.len()];
    for round in 0..plan.rounds() {
        let draw = Draw { seed: 7, round, attempt: 0 };
        let cohort = plan.sampling().cohort(devices.len(), draw, &Reachable::Everyone);
        let key = RoundKey { run: 0, seed: 7, round, members: cohort.len() as u32, terms: plan.terms() };
        let (mut moves, mut changes) = (vec![0.0; x.len()], vec![0.0; x.len()]);
        for drawn in &cohort {
            let (device, c_i) = (&devices[drawn.device.place()], &mut own[drawn.device.place()]);
            let (mut y, mut steps) = (x.clone(), 0.0);
            let mut stream = update_stream(&key, device.key);
            for _ in 0..epochs {
                let mut order: Vec<u32> = (0..device.labels.len() as u32).collect();
                stream.shuffle(&mut order);
                for batch in order.chunks(plan.local().batch) {
                    let gradient = device.gradient(&y, batch, l2);
                    for (i, y) in y.iter_mut().enumerate() {
                        *y -= rate * (gradient[i] - c_i[i] + c[i]);
                    }
                    steps += 1.0;
                }
            }
            for i in 0..x.len() {
                let next = c_i[i] - c[i] + (x[i] - y[i]) / (steps * rate);
                moves[i] += (y[i] - x[i]) / cohort.len() as f64;
                changes[i] += (next - c_i[i]) / cohort.len() as f64;
                c_i[i] = next;
            }
        }
        let share = cohort.len() as f64 / devices.len() as f64;
        x.iter_mut().zip(&moves).for_each(|(x, step)| *x += global_rate * step);
        c.iter_mut().zip(&changes).for_each(|(c, change)| *c += share * change);
    }
    [x, c]
}

fn scaffold_plan(global_rate: f64) -> Plan {
    let tracks = vec![track("scaffold", &[("global_rate", global_rate)])];
    let terms = Terms { weights: Weights::Uniform, ..Terms::OPEN };
    // Images are mostly white: at the rate of the other tests steps overshoot, and each would
    // magnify the rounding.
    plan(tracks).into_builder().rounds(6).terms(terms).learning_rate(1e-3).build().unwrap()
}

#[test]
fn scaffold_is_option_two_of_its_paper() {
    for rounds in [1, 2, 6] {
        let plan = scaffold_plan(0.8).into_builder().rounds(rounds).build().unwrap();
        let state = run(&plan, &[]);
        let [x, c] = reference(&plan, &federation(), 0.8);
        let control = state.tracks[0].memory.vector("control").unwrap();
        for (name, ours, reference) in [("w", &state.tracks[0].params, x), ("c", control, c)] {
            let size = reference.iter().map(|entry| entry * entry).sum::<f64>().sqrt();
            let squares = ours.as_slice().iter().zip(&reference).map(|(a, b)| (f64::from(*a) - b).powi(2));
            let off = squares.sum::<f64>().sqrt() / size;
            assert!(off < 2e-5 && size > 0.0, "{name} after {rounds} rounds is off by {off} of {size}");
        }
    }
}

#[test]
fn scaffold_goes_on_to_the_same_bits_after_an_interruption() {
    let tracks = [track("fedavg", &[]), track("scaffold", &[])];
    let plan = scaffold_plan(1.0).into_builder().tracks(tracks).build().unwrap();
    let whole = run(&plan, &[]);
    assert_eq!(run(&plan, &[1, 4]), whole);
    assert_ne!(whole.tracks[0].params, whole.tracks[1].params);
    assert!(whole.tracks[0].devices.is_empty(), "a device of FedAvg remembers nothing");
    let remembered: Vec<usize> =
        whole.tracks[1].devices.iter().map(|(_, memory)| memory.vectors().count()).collect();
    assert!(remembered.len() > 6 && remembered.iter().all(|&vectors| vectors == 1), "{remembered:?}");
}
