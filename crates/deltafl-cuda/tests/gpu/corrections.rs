//! Clipped and noisy updates, and updates with a correction.

use deltafl::algorithm::{CONTROL_VARIATE, DYNAMIC_REGULARISER};
use deltafl::compute::{Compute, Remembered, TaskNoise, Threads, UpdateTask};
use deltafl::data::FederationIndex;
use deltafl::memory::AlgorithmState;
use deltafl::params::{Params, UpdateCode};
use deltafl::privacy::Noise;
use deltafl::question::RoundKey;
use deltafl::stream::{Purpose, Stream};
use deltafl::terms::{Clip, Terms};
use deltafl::trainer::{Correction, LocalPlan, LocalResult, Sgd, Work};
use deltafl_cuda::{Gpu, GpuOptions};

use crate::cases::{Case, every_case};
use crate::noise::sum_len;
use crate::reference::{cpu_drifting, distance, median};
use crate::{cohort, on_gpu, plan, round, task};

/// Returns a vector of small numbers.
fn drawn(case: &Case, seed: u64) -> Params {
    let mut stream = Stream::new(seed, Purpose::Synthesis, 0, 0);
    (0..case.params.len()).map(|_| stream.uniform(-0.02, 0.02) as f32).collect::<Vec<f32>>().into()
}

/// The question and the memories of a cohort with a correction.
struct Corrected {
    plan: LocalPlan,
    sent: Vec<Params>,
    /// The memory of each device. The first has none.
    own: Vec<Option<AlgorithmState>>,
    cohort: Vec<(FederationIndex, f64)>,
}

impl Corrected {
    fn new(case: &Case, correction: &'static Correction, proximal: f32, work: Work) -> Self {
        let cohort = cohort(case);
        let sent = correction.sent.iter().map(|_| drawn(case, 3)).collect();
        let own = |k: usize| {
            let mut memory = AlgorithmState::default();
            for name in ["control", "gradient"] {
                memory.set_vector(name, drawn(case, 10 + k as u64));
            }
            (k > 0).then_some(memory)
        };
        let plan = LocalPlan { proximal, correction: Some(correction), ..plan(case, work) };
        Self { plan, sent, own: (0..cohort.len()).map(own).collect(), cohort }
    }

    fn tasks<'a>(&'a self, case: &'a Case) -> Vec<UpdateTask<'a>> {
        let task = |(&member, own): (&(FederationIndex, f64), &'a Option<AlgorithmState>)| UpdateTask {
            sent: &self.sent,
            own: own.as_ref(),
            ..task(member, &case.params, &self.plan)
        };
        self.cohort.iter().zip(&self.own).map(task).collect()
    }

    fn sum_len(&self, case: &Case) -> usize {
        UpdateCode::len(case.params.len() * (1 + self.sent.len()))
    }

    /// Returns the sum, the memories and w_k of tasks.
    fn train(
        &self,
        case: &Case,
        gpu: &mut Gpu<'_>,
        tasks: &[UpdateTask<'_>],
    ) -> (Vec<u64>, Remembered, Vec<Vec<f32>>) {
        let mut sums = [vec![0; self.sum_len(case)]];
        let remembered = gpu.updates(&round(self.cohort.len()), tasks, &mut sums).unwrap();
        let local = gpu.last_local(tasks.len()).unwrap();
        let [sum] = sums;
        (sum, remembered, local.chunks_exact(case.params.len()).map(<[f32]>::to_vec).collect())
    }
}

/// Returns every correction with the proximal term of its algorithm.
fn corrections() -> [(&'static Correction, f32); 2] {
    [(&CONTROL_VARIATE, 0.0), (&DYNAMIC_REGULARISER, 0.1)]
}

#[test]
fn corrected_steps_agree_with_the_cpu() {
    for case in every_case() {
        let Some(mut gpu) = on_gpu(&case, GpuOptions::default()) else { return };
        for (correction, proximal) in corrections() {
            let corrected = Corrected::new(&case, correction, proximal, Work::Steps(4));
            let (_, _, locals) = corrected.train(&case, &mut gpu, &corrected.tasks(&case));
            let error = |(k, local): (usize, &Vec<f32>)| {
                let mut drift = vec![0.0; case.params.len()];
                let own = corrected.own[k].clone().unwrap_or_default();
                (correction.drift)(&corrected.sent, &own, &mut drift);
                let (device, _) = corrected.cohort[k];
                let key = round(corrected.cohort.len());
                let expected = cpu_drifting(&case, device, &corrected.plan, &key, &drift);
                distance(local, &expected, case.params.as_slice())
            };
            let errors: Vec<f64> = locals.iter().enumerate().map(error).collect();
            println!("{}, {}: {:.1e}", case.name, correction.name, median(&errors));
            assert!(median(&errors) < 2e-5, "{}, {}: {errors:?}", case.name, correction.name);
        }
    }
}

#[test]
fn corrected_sums_and_memories_equal_those_of_the_cpu_for_the_same_local_parameters() {
    for case in every_case() {
        let Some(mut gpu) = on_gpu(&case, GpuOptions::default()) else { return };
        for (correction, proximal) in corrections() {
            let corrected = Corrected::new(&case, correction, proximal, Work::Steps(2));
            let (sum, remembered, locals) = corrected.train(&case, &mut gpu, &corrected.tasks(&case));
            let (params, len) = (case.params.as_slice(), case.params.len());
            let (zero, mut expected) = (vec![0.0; len], vec![0; sum.len()]);
            for (k, local) in locals.iter().enumerate() {
                let LocalPlan { learning_rate, proximal, .. } = corrected.plan;
                let sent = &corrected.sent;
                let trained = LocalResult { params, local, sent, steps: 2, learning_rate, proximal };
                let mut own = corrected.own[k].clone().unwrap_or_default();
                let mut changes = vec![0.0; len * sent.len()];
                (correction.finish)(&trained, &mut own, &mut changes);
                assert!(remembered[k] == (k, own), "{}, {}, device {k}", case.name, correction.name);
                let mut parts = vec![(&local[..], params)];
                parts.extend(changes.chunks(len).map(|change| (change, &zero[..])));
                let code = UpdateCode::new(locals.len());
                code.add_parts(&parts, corrected.cohort[k].1, &mut expected).unwrap();
            }
            assert!(sum == expected, "{}, {}", case.name, correction.name);
            // A device alone has the same bits as in the cohort.
            let (_, _, alone) = corrected.train(&case, &mut gpu, &corrected.tasks(&case)[1..2]);
            assert!(alone[0] == locals[1], "{}, {}", case.name, correction.name);
        }
    }
}

#[test]
fn clipped_sums_equal_the_cpu_sums_of_the_same_local_parameters() {
    for case in every_case() {
        let Some(mut gpu) = on_gpu(&case, GpuOptions::default()) else { return };
        let (cohort, plan) = (cohort(&case), plan(&case, Work::Steps(3)));
        let (_, locals) = crate::train(&mut gpu, &case.params, &plan, &cohort);
        let norm = |local: &Vec<f32>| UpdateCode::new(1).squared_norm(case.params.as_slice(), local).sqrt();
        let norms: Vec<f64> = locals.iter().map(norm).collect();
        // Half of the devices are clipped.
        let clip = Clip::try_from(median(&norms)).unwrap();
        let key = RoundKey { terms: Terms { clip: Some(clip), ..Terms::OPEN }, ..round(cohort.len()) };
        let task = |&member: &(FederationIndex, f64)| task(member, &case.params, &plan);
        let tasks: Vec<UpdateTask<'_>> = cohort.iter().map(task).collect();
        let mut sums = [vec![0; UpdateCode::len(case.params.len())]];
        gpu.updates(&key, &tasks, &mut sums).unwrap();
        let mut expected = vec![0; sums[0].len()];
        for (&(_, weight), local) in cohort.iter().zip(&locals) {
            key.code().add(case.params.as_slice(), local, weight, &mut expected).unwrap();
        }
        assert!(sums[0] == expected, "{}", case.name);
        assert!(norms.iter().any(|&norm| norm > clip.get()), "{}", case.name);
    }
}

#[test]
fn the_noise_of_devices_that_do_not_move_equals_that_of_the_cpu() {
    for case in every_case() {
        let Some(mut gpu) = on_gpu(&case, GpuOptions::default()) else { return };
        let trainer = Sgd::new(&*case.model);
        let mut cpu = Threads::new(&trainer, &case.federation, None).unwrap();
        let noise = Noise {
            variance: 90,
            units: 1024,
            honest: 1,
            clip: Some(Clip::try_from(1.0).unwrap()),
            excess: None,
        };
        let (still, moving) = (plan(&case, Work::Steps(0)), plan(&case, Work::Steps(2)));
        let task = |device, plan, weight| UpdateTask {
            noise: Some(TaskNoise { noise, query: 0, kept: None }),
            ..task((device, weight), &case.params, plan)
        };
        // A device without steps, and one outside of the tail.
        let [first, second] = [FederationIndex(0), FederationIndex(1)];
        let tasks = [task(first, &still, 1.0), task(second, &moving, 0.0)];
        let sum = |compute: &mut dyn Compute, tasks: &[UpdateTask<'_>]| {
            let mut sums = [vec![0; sum_len(&noise, still, &case.params)]];
            compute.updates(&round(2), tasks, &mut sums).unwrap();
            let [sum] = sums;
            sum
        };
        let expected = sum(&mut cpu, &tasks);
        assert!(sum(&mut gpu, &tasks) == expected, "{}", case.name);
        // The update of a device that moves is in the sum, beside the same noise.
        let moved = [tasks[0], task(second, &moving, 1.0)];
        assert!(sum(&mut gpu, &moved) != expected, "{}", case.name);
    }
}
