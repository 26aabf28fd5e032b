//! Every model on a GPU against the same model on the CPU. Without a GPU the tests say so and pass over;
//! `scripts/test-gpu` runs them where there is one.

#![allow(clippy::unwrap_used)]

mod cases;
mod reference;

use cases::{Case, device, every_case};
use deltafl::device::{LocalPlan, Work};
use deltafl::model::Step;
use deltafl::params::{Params, UpdateCode};
use deltafl_cuda::{Gpu, Options, Update};
use reference::{cpu_local, cpu_scores, distance, median};

const SEED: u64 = 7;
const ROUND: u64 = 3;

fn plan(case: &Case, work: Work) -> LocalPlan {
    LocalPlan { work, batch: case.batch, step: Step { learning_rate: case.rate, l2: 0.0 } }
}

/// What one query leaves: its sum and the w_k of its devices.
fn train(
    gpu: &mut Gpu<'_>,
    params: &Params,
    plan: LocalPlan,
    mu: f32,
    devices: &[(u32, f64)],
) -> (Vec<u64>, Vec<Vec<f32>>) {
    let mut sums = vec![0; UpdateCode::len(params.len())];
    let update = Update { params, plan, proximal: mu, place: 0..sums.len(), devices };
    gpu.answers((SEED, ROUND), devices.len(), &[update], &mut sums).unwrap();
    let local = gpu.last_local(devices.len()).unwrap();
    (sums, local.chunks_exact(params.len()).map(<[f32]>::to_vec).collect())
}

/// The devices with their weights, in the order of the slots: largest first, as they are scheduled.
fn cohort(case: &Case) -> Vec<(u32, f64)> {
    let mut cohort: Vec<(u32, f64)> =
        (0..case.federation.len() as u32).map(|k| (k, case.federation.count(k) as f64)).collect();
    cohort.sort_by_key(|&(k, _)| std::cmp::Reverse(case.federation.count(k)));
    cohort
}

fn on_gpu(case: &Case, options: Options) -> Option<Gpu<'_>> {
    let device = device()?;
    Some(Gpu::new(&device, &case.federation, &case.spec, case.params.len(), options).unwrap())
}

/// Relative errors of the updates of all devices, largest device first.
fn errors(case: &Case, gpu: &mut Gpu<'_>, plan: LocalPlan, mu: f32) -> Vec<f64> {
    let cohort = cohort(case);
    let (_, locals) = train(gpu, &case.params, plan, mu, &cohort);
    let of_device = |(&(k, _), local): (&(u32, f64), &Vec<f32>)| {
        let expected = cpu_local(case, k, &plan, mu, SEED, ROUND);
        distance(local, &expected, case.params.as_slice())
    };
    cohort.iter().zip(&locals).map(of_device).collect()
}

#[test]
fn losses_agree_with_the_cpu() {
    for case in every_case() {
        let Some(mut gpu) = on_gpu(&case, Options::default()) else { return };
        let devices: Vec<u32> = (0..case.federation.len() as u32).rev().collect();
        let other = case.other_params();
        let scores = gpu.scores(&devices, &[&case.params, &other]).unwrap();
        let (mut worst, mut missed) = (0.0f64, 0);
        for (params, scores) in [&case.params, &other].into_iter().zip(&scores) {
            for (&k, score) in devices.iter().zip(scores) {
                let expected = cpu_scores(&case, k, params);
                worst = worst.max((score.loss / expected.loss - 1.0).abs());
                missed += score.errors.abs_diff(expected.errors);
            }
        }
        println!("{}: losses differ by {worst:.1e}, errors by {missed} examples", case.name);
        assert!(worst < 1e-5 && missed <= 1, "{}: {worst} {missed}", case.name);
    }
}

#[test]
fn a_step_agrees_with_the_cpu() {
    for case in every_case() {
        let Some(mut gpu) = on_gpu(&case, Options::default()) else { return };
        let errors = errors(&case, &mut gpu, plan(&case, Work::Steps(1)), 0.0);
        let worst = errors.iter().copied().fold(0.0, f64::max);
        println!("{}: a step differs by {worst:.1e}, median {:.1e}", case.name, median(&errors));
        assert!(median(&errors) < 1e-5 && worst < case.step_tolerance, "{}: {errors:?}", case.name);
    }
}

#[test]
fn an_epoch_of_the_median_device_agrees_with_the_cpu() {
    for case in every_case() {
        let Some(mut gpu) = on_gpu(&case, Options::default()) else { return };
        let errors = errors(&case, &mut gpu, plan(&case, Work::Epochs(1)), 0.0);
        println!("{}: an epoch differs by {:.1e}", case.name, median(&errors));
        assert!(median(&errors) < 1e-5, "{}: {errors:?}", case.name);
    }
}

#[test]
fn several_epochs_steps_decay_and_the_proximal_term_agree_with_the_cpu() {
    for case in every_case() {
        let Some(mut gpu) = on_gpu(&case, Options::default()) else { return };
        for (work, l2, mu) in [
            (Work::Epochs(2), 0.0, 0.0),
            (Work::Steps(5), 0.01, 0.0),
            (Work::Epochs(1), 0.0, 0.3),
            (Work::Steps(7), 0.02, 0.1),
        ] {
            let mut plan = plan(&case, work);
            plan.step.l2 = l2;
            let errors = errors(&case, &mut gpu, plan, mu);
            println!("{}: {work:?}, λ = {l2}, μ = {mu} differ by {:.1e}", case.name, median(&errors));
            assert!(median(&errors) < 2e-5, "{}: {work:?} {l2} {mu} {errors:?}", case.name);
        }
    }
}

#[test]
fn smaller_batches_agree_with_the_cpu() {
    for case in every_case() {
        let Some(mut gpu) = on_gpu(&case, Options::default()) else { return };
        let mut plan = plan(&case, Work::Epochs(1));
        plan.batch = 7;
        let errors = errors(&case, &mut gpu, plan, 0.0);
        println!("{}: batches of 7 differ by {:.1e}", case.name, median(&errors));
        assert!(median(&errors) < 1e-5, "{}: {errors:?}", case.name);
    }
}

#[test]
fn the_sum_is_the_cpus_code_of_the_same_local_parameters() {
    for case in every_case() {
        let Some(mut gpu) = on_gpu(&case, Options::default()) else { return };
        let cohort: Vec<(u32, f64)> = cohort(&case).iter().map(|&(k, weight)| (k, weight * 0.37)).collect();
        // The last rate sends parameters to infinity: those devices are refused and counted.
        for rate in [case.rate, 1e38] {
            let mut plan = plan(&case, Work::Steps(3));
            plan.step.learning_rate = rate;
            let (sums, locals) = train(&mut gpu, &case.params, plan, 0.0, &cohort);
            let mut expected = vec![0; sums.len()];
            for (&(_, weight), local) in cohort.iter().zip(&locals) {
                let _ =
                    UpdateCode::new(cohort.len()).add(case.params.as_slice(), local, weight, &mut expected);
            }
            assert_eq!(sums, expected, "{} at rate {rate}", case.name);
            let refused = sums[sums.len() - 1];
            assert_eq!(refused > 0, rate > 1.0, "{} at rate {rate}: {refused} refused", case.name);
        }
    }
}

#[test]
fn the_bits_are_the_same_whatever_runs_beside() {
    for case in every_case() {
        let Some(mut gpu) = on_gpu(&case, Options::default()) else { return };
        let (cohort, other) = (cohort(&case), case.other_params());
        let plan = plan(&case, Work::Epochs(1));
        let devices: Vec<u32> = cohort.iter().map(|&(k, _)| k).collect();
        let (expected, locals) = train(&mut gpu, &case.params, plan, 0.0, &cohort);
        let losses = gpu.scores(&devices, &[&case.params]).unwrap();
        let mut beside = gpu.beside().unwrap();
        std::thread::scope(|scope| {
            let work = scope.spawn(|| {
                for i in 0..10 {
                    train(&mut beside, &other, plan, 0.0, &cohort[i % cohort.len()..]);
                    beside.scores(&devices, &[&other, &other]).unwrap();
                }
            });
            for repetition in 0..10 {
                let again = train(&mut gpu, &case.params, plan, 0.0, &cohort);
                assert!(again.0 == expected && again.1 == locals, "{}, repetition {repetition}", case.name);
                assert_eq!(gpu.scores(&devices, &[&case.params]).unwrap(), losses, "{}", case.name);
            }
            work.join().unwrap();
        });
        // A device alone trains as in the cohort, among other queries too.
        let (alone, _) = train(&mut gpu, &case.params, plan, 0.0, &cohort[1..2]);
        let mut expected = vec![0; alone.len()];
        UpdateCode::new(1).add(case.params.as_slice(), &locals[1], cohort[1].1, &mut expected).unwrap();
        assert_eq!(alone, expected, "{}", case.name);
    }
}

#[test]
fn a_federation_larger_than_the_memory_is_streamed_with_the_same_bits() {
    for case in every_case() {
        let Some(mut gpu) = on_gpu(&case, Options::default()) else { return };
        let mut small = on_gpu(&case, Options { memory: Some(1) }).unwrap();
        assert!(gpu.is_resident() && !small.is_resident(), "{}", case.name);
        let devices: Vec<u32> = (0..case.federation.len() as u32).collect();
        let scores = |gpu: &mut Gpu<'_>| gpu.scores(&devices, &[&case.params]).unwrap();
        assert_eq!(scores(&mut gpu), scores(&mut small), "{}", case.name);
        let (plan, cohort) = (plan(&case, Work::Epochs(1)), cohort(&case));
        let sum = |gpu: &mut Gpu<'_>| train(gpu, &case.params, plan, 0.0, &cohort[..1]).0;
        assert_eq!(sum(&mut gpu), sum(&mut small), "{}", case.name);
        let sums = |gpu: &mut Gpu<'_>| {
            let mut sums = vec![0; UpdateCode::len(case.params.len())];
            let update =
                Update { params: &case.params, plan, proximal: 0.0, place: 0..sums.len(), devices: &cohort };
            gpu.answers((SEED, ROUND), cohort.len(), &[update], &mut sums).unwrap();
            sums
        };
        assert_eq!(sums(&mut gpu), sums(&mut small), "{}", case.name);
    }
}

#[test]
fn queries_of_several_tracks_keep_their_sums_apart() {
    for case in every_case() {
        let Some(mut gpu) = on_gpu(&case, Options::default()) else { return };
        let (cohort, other, plan) = (cohort(&case), case.other_params(), plan(&case, Work::Steps(2)));
        let len = UpdateCode::len(case.params.len());
        fn update<'a>(
            params: &'a Params,
            plan: LocalPlan,
            devices: &'a [(u32, f64)],
            place: std::ops::Range<usize>,
        ) -> Update<'a> {
            Update { params, plan, proximal: 0.0, place, devices }
        }
        let mut sums = vec![5; 3 * len + 4];
        let queries = [
            update(&case.params, plan, &cohort[..], 4..4 + len),
            update(&other, plan, &cohort[..2], 4 + len..4 + 2 * len),
            update(&case.params, plan, &[], 4 + 2 * len..4 + 3 * len),
        ];
        gpu.answers((SEED, ROUND), cohort.len(), &queries, &mut sums).unwrap();
        let single = |gpu: &mut Gpu<'_>, params: &Params, devices: &[(u32, f64)]| {
            let mut sums = vec![5; len];
            gpu.answers((SEED, ROUND), cohort.len(), &[update(params, plan, devices, 0..len)], &mut sums)
                .unwrap();
            sums
        };
        assert!(sums[..4].iter().all(|&sum| sum == 5));
        assert_eq!(sums[4..4 + len], single(&mut gpu, &case.params, &cohort)[..], "{}", case.name);
        assert_eq!(sums[4 + len..4 + 2 * len], single(&mut gpu, &other, &cohort[..2])[..], "{}", case.name);
        assert!(sums[4 + 2 * len..].iter().all(|&sum| sum == 5), "{}", case.name);
    }
}

#[test]
fn a_model_without_kernels_for_its_shape_is_refused_by_name() {
    let Some(device) = device() else { return };
    for case in cases::unsupported() {
        let error =
            Gpu::new(&device, &case.federation, &case.spec, case.params.len(), Options::default()).err();
        let message = error.map(|error| error.to_string()).unwrap_or_default();
        assert!(message.contains(&case.name), "{}: {message}", case.name);
    }
}
