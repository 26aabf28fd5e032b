//! Every model on a GPU against the same model on the CPU. Without a GPU the tests print that they
//! are skipped. `scripts/test-gpu` runs them on a machine with a GPU.

#![allow(clippy::unwrap_used)]

mod cases;
mod corrections;
mod noise;
mod reference;

use cases::{Case, device, every_case};
use deltafl::compute::{Block, Compute, UpdateTask};
use deltafl::data::FederationIndex;
use deltafl::device::blocks;
use deltafl::model::Score;
use deltafl::params::{Params, UpdateCode};
use deltafl::question::RoundKey;
use deltafl::task::ERRORS;
use deltafl::terms::Terms;
use deltafl::trainer::{LocalPlan, Work};
use deltafl_cuda::{Gpu, GpuOptions};
use reference::{cpu_local, cpu_scores, distance, median};

fn round(members: usize) -> RoundKey {
    RoundKey { run: 0, seed: 7, round: 3, members: members as u32, terms: Terms::OPEN }
}

fn plan(case: &Case, work: Work) -> LocalPlan {
    LocalPlan { work, batch: case.batch, learning_rate: case.rate, l2: 0.0, proximal: 0.0, correction: None }
}

/// Returns the task of a member of a cohort.
fn task<'a>(
    (device, weight): (FederationIndex, f64),
    params: &'a Params,
    plan: &'a LocalPlan,
) -> UpdateTask<'a> {
    UpdateTask::new(device, weight, params, plan)
}

/// Returns the coded sum of a cohort's updates.
fn sum(gpu: &mut Gpu<'_>, params: &Params, plan: &LocalPlan, devices: &[(FederationIndex, f64)]) -> Vec<u64> {
    sum_in(round(devices.len()).round, gpu, params, plan, devices)
}

/// Returns the coded sum in a round.
fn sum_in(
    round: u64,
    gpu: &mut Gpu<'_>,
    params: &Params,
    plan: &LocalPlan,
    devices: &[(FederationIndex, f64)],
) -> Vec<u64> {
    let mut sums = [vec![0; UpdateCode::len(params.len())]];
    let tasks: Vec<UpdateTask<'_>> = devices.iter().map(|&member| task(member, params, plan)).collect();
    let key = RoundKey { round, ..self::round(devices.len()) };
    gpu.updates(&key, &tasks, &mut sums).unwrap();
    let [sum] = sums;
    sum
}

/// Returns the scores of whole devices for each vector of parameters.
fn scores(
    case: &Case,
    gpu: &mut Gpu<'_>,
    devices: &[FederationIndex],
    params: &[&Params],
) -> Vec<Vec<Score>> {
    let of_device = |&device: &FederationIndex| {
        let blocks = blocks(case.federation.example_count(device) as usize);
        blocks.map(move |examples| Block { device, examples })
    };
    let all: Vec<Block> = devices.iter().flat_map(of_device).collect();
    let total = |scores: Vec<Score>| {
        let mut totals = vec![Score::default(); devices.len()];
        for (block, score) in all.iter().zip(scores) {
            totals[devices.iter().position(|&k| k == block.device).unwrap()] += score;
        }
        totals
    };
    gpu.scores(&all, params).unwrap().into_iter().map(total).collect()
}

/// Returns the sum of a cohort's updates, and its w_k.
fn train(
    gpu: &mut Gpu<'_>,
    params: &Params,
    plan: &LocalPlan,
    devices: &[(FederationIndex, f64)],
) -> (Vec<u64>, Vec<Vec<f32>>) {
    let sum = sum(gpu, params, plan, devices);
    let local = gpu.last_local(devices.len()).unwrap();
    (sum, local.chunks_exact(params.len()).map(<[f32]>::to_vec).collect())
}

/// Returns the devices with their weights in the order of the slots: largest first, as scheduled.
fn cohort(case: &Case) -> Vec<(FederationIndex, f64)> {
    let mut cohort: Vec<(FederationIndex, f64)> =
        case.federation.devices().map(|k| (k, case.federation.example_count(k) as f64)).collect();
    cohort.sort_by_key(|&(k, _)| std::cmp::Reverse(case.federation.example_count(k)));
    cohort
}

fn on_gpu(case: &Case, options: GpuOptions) -> Option<Gpu<'_>> {
    let device = device()?;
    Some(Gpu::new(&device, &case.federation, &case.spec, case.params.len(), options).unwrap())
}

/// Returns the relative errors of the updates of all devices, largest device first.
fn errors(case: &Case, gpu: &mut Gpu<'_>, plan: &LocalPlan) -> Vec<f64> {
    let cohort = cohort(case);
    let (_, locals) = train(gpu, &case.params, plan, &cohort);
    let of_device = |(&(k, _), local): (&(FederationIndex, f64), &Vec<f32>)| {
        let expected = cpu_local(case, k, plan, &round(cohort.len()));
        distance(local, &expected, case.params.as_slice())
    };
    cohort.iter().zip(&locals).map(of_device).collect()
}

#[test]
fn losses_agree_with_the_cpu() {
    for case in every_case() {
        let Some(mut gpu) = on_gpu(&case, GpuOptions::default()) else { return };
        let devices: Vec<FederationIndex> = case.federation.devices().rev().collect();
        let other = case.other_params();
        let scores = scores(&case, &mut gpu, &devices, &[&case.params, &other]);
        let (mut worst, mut missed) = (0.0f64, 0.0);
        for (params, scores) in [&case.params, &other].into_iter().zip(&scores) {
            for (&k, score) in devices.iter().zip(scores) {
                let expected = cpu_scores(&case, k, params);
                worst = worst.max((score.loss / expected.loss - 1.0).abs());
                missed += (score.sums[ERRORS] - expected.sums[ERRORS]).abs();
            }
        }
        println!("{}: losses differ by {worst:.1e}, errors by {missed} examples", case.name);
        assert!(worst < 1e-5 && missed <= 1.0, "{}: {worst} {missed}", case.name);
    }
}

#[test]
fn a_step_agrees_with_the_cpu() {
    for case in every_case() {
        let Some(mut gpu) = on_gpu(&case, GpuOptions::default()) else { return };
        let errors = errors(&case, &mut gpu, &plan(&case, Work::Steps(1)));
        let worst = errors.iter().copied().fold(0.0, f64::max);
        println!("{}: a step differs by {worst:.1e}, median {:.1e}", case.name, median(&errors));
        assert!(median(&errors) < 1e-5 && worst < case.step_tolerance, "{}: {errors:?}", case.name);
    }
}

#[test]
fn an_epoch_of_the_median_device_agrees_with_the_cpu() {
    for case in every_case() {
        let Some(mut gpu) = on_gpu(&case, GpuOptions::default()) else { return };
        let errors = errors(&case, &mut gpu, &plan(&case, Work::Epochs(1)));
        println!("{}: an epoch differs by {:.1e}", case.name, median(&errors));
        assert!(median(&errors) < 1e-5, "{}: {errors:?}", case.name);
    }
}

#[test]
fn several_epochs_steps_decay_and_the_proximal_term_agree_with_the_cpu() {
    for case in every_case() {
        let Some(mut gpu) = on_gpu(&case, GpuOptions::default()) else { return };
        for (work, l2, mu) in [
            (Work::Epochs(2), 0.0, 0.0),
            (Work::Steps(5), 0.01, 0.0),
            (Work::Epochs(1), 0.0, 0.3),
            (Work::Steps(7), 0.02, 0.1),
        ] {
            let mut plan = plan(&case, work);
            (plan.l2, plan.proximal) = (l2, mu);
            let errors = errors(&case, &mut gpu, &plan);
            println!("{}: {work:?}, λ = {l2}, μ = {mu} differ by {:.1e}", case.name, median(&errors));
            assert!(median(&errors) < 2e-5, "{}: {work:?} {l2} {mu} {errors:?}", case.name);
        }
    }
}

#[test]
fn smaller_batches_agree_with_the_cpu() {
    for case in every_case() {
        let Some(mut gpu) = on_gpu(&case, GpuOptions::default()) else { return };
        let mut plan = plan(&case, Work::Epochs(1));
        plan.batch = 7;
        let errors = errors(&case, &mut gpu, &plan);
        println!("{}: batches of 7 differ by {:.1e}", case.name, median(&errors));
        assert!(median(&errors) < 1e-5, "{}: {errors:?}", case.name);
    }
}

#[test]
fn the_sum_equals_the_cpu_sum_of_the_same_local_parameters() {
    for case in every_case() {
        let Some(mut gpu) = on_gpu(&case, GpuOptions::default()) else { return };
        let cohort: Vec<(FederationIndex, f64)> =
            cohort(&case).iter().map(|&(k, weight)| (k, weight * 0.37)).collect();
        // The last rate sends parameters to infinity. Those devices are rejected and counted.
        for rate in [case.rate, 1e38] {
            let mut plan = plan(&case, Work::Steps(3));
            plan.learning_rate = rate;
            let (sums, locals) = train(&mut gpu, &case.params, &plan, &cohort);
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
fn the_bits_do_not_depend_on_concurrent_work() {
    for case in every_case() {
        let Some(mut gpu) = on_gpu(&case, GpuOptions::default()) else { return };
        let (cohort, other) = (cohort(&case), case.other_params());
        let plan = plan(&case, Work::Epochs(1));
        let devices: Vec<FederationIndex> = cohort.iter().map(|&(k, _)| k).collect();
        let (expected, locals) = train(&mut gpu, &case.params, &plan, &cohort);
        let losses = scores(&case, &mut gpu, &devices, &[&case.params]);
        let mut beside = gpu.beside().unwrap();
        std::thread::scope(|scope| {
            let work = scope.spawn(|| {
                for i in 0..10 {
                    train(&mut beside, &other, &plan, &cohort[i % cohort.len()..]);
                    scores(&case, &mut beside, &devices, &[&other, &other]);
                }
            });
            for repetition in 0..10 {
                let again = train(&mut gpu, &case.params, &plan, &cohort);
                assert!(again.0 == expected && again.1 == locals, "{}, repetition {repetition}", case.name);
                assert_eq!(scores(&case, &mut gpu, &devices, &[&case.params]), losses, "{}", case.name);
            }
            work.join().unwrap();
        });
        // A device alone trains as in the cohort, also among other queries.
        let (alone, _) = train(&mut gpu, &case.params, &plan, &cohort[1..2]);
        let mut expected = vec![0; alone.len()];
        UpdateCode::new(1).add(case.params.as_slice(), &locals[1], cohort[1].1, &mut expected).unwrap();
        assert_eq!(alone, expected, "{}", case.name);
    }
}

#[test]
fn a_federation_larger_than_the_memory_is_streamed_with_the_same_bits() {
    for case in every_case() {
        let Some(mut gpu) = on_gpu(&case, GpuOptions::default()) else { return };
        let mut small = on_gpu(&case, GpuOptions { memory: Some(1) }).unwrap();
        assert!(gpu.is_resident() && !small.is_resident(), "{}", case.name);
        let devices: Vec<FederationIndex> = case.federation.devices().collect();
        let all = |gpu: &mut Gpu<'_>| scores(&case, gpu, &devices, &[&case.params]);
        assert_eq!(all(&mut gpu), all(&mut small), "{}", case.name);
        let (plan, cohort) = (plan(&case, Work::Epochs(1)), cohort(&case));
        let expected = sum(&mut gpu, &case.params, &plan, &cohort);
        assert_eq!(sum(&mut small, &case.params, &plan, &cohort), expected, "{}", case.name);
    }
}

#[test]
fn a_round_that_was_prepared_in_advance_has_the_same_bits() {
    for case in every_case() {
        let Some(mut gpu) = on_gpu(&case, GpuOptions::default()) else { return };
        // The largest memory that does not contain the whole federation.
        let sizes = (4..40).rev().map(|bits| GpuOptions { memory: Some(1 << bits) });
        let mut small =
            sizes.map(|options| on_gpu(&case, options).unwrap()).find(|gpu| !gpu.is_resident()).unwrap();
        let all = cohort(&case);
        let few = &all[all.len() - 3..];
        let announced: Vec<FederationIndex> = few.iter().map(|&(device, _)| device).collect();
        for work in [Work::Epochs(2), Work::Steps(3)] {
            let plan = plan(&case, work);
            let expected = sum_in(4, &mut gpu, &case.params, &plan, few);
            for gpu in [&mut gpu, &mut small] {
                gpu.prefetch(&announced);
                sum_in(3, gpu, &case.params, &plan, &all);
                assert_eq!(gpu.has_ready(&announced), !gpu.is_resident(), "{}", case.name);
                let scores = scores(&case, gpu, &announced, &[&case.params]);
                assert_eq!(sum_in(4, gpu, &case.params, &plan, few), expected, "{}", case.name);
                // An order announced for a different round or plan is drawn again.
                gpu.prefetch(&announced);
                sum_in(8, gpu, &case.params, &plan, &all);
                assert_eq!(sum_in(4, gpu, &case.params, &plan, few), expected, "{}", case.name);
                assert_eq!(scores_among_all(&case, gpu, &announced), scores, "{}", case.name);
            }
        }
    }
}

/// Scores without preparation: the last announcement does not include all devices.
fn scores_among_all(case: &Case, gpu: &mut Gpu<'_>, devices: &[FederationIndex]) -> Vec<Vec<Score>> {
    let all: Vec<FederationIndex> = case.federation.devices().collect();
    let whole = scores(case, gpu, &all, &[&case.params]);
    whole.iter().map(|scores| devices.iter().map(|&k| scores[k.place()]).collect()).collect()
}

#[test]
fn the_updates_of_a_cohort_split_over_two_runs_add_up_to_the_same_sum() {
    for case in every_case() {
        let Some(gpu) = on_gpu(&case, GpuOptions::default()) else { return };
        let mut ranks = gpu.split(2).unwrap();
        let (cohort, plan) = (cohort(&case), plan(&case, Work::Epochs(1)));
        let whole = sum(&mut ranks[0], &case.params, &plan, &cohort);
        // Two ranks use one GPU concurrently. The code of a sum depends on the members of the
        // round.
        let parts = std::thread::scope(|scope| {
            let work = |(gpu, part): (_, usize)| {
                let (case, cohort, plan) = (&case, &cohort, &plan);
                let members = cohort.iter().skip(part).step_by(2);
                let tasks: Vec<UpdateTask<'_>> =
                    members.map(|&member| task(member, &case.params, plan)).collect();
                scope.spawn(move || {
                    let gpu: &mut Gpu<'_> = gpu;
                    let mut sums = [vec![0; UpdateCode::len(case.params.len())]];
                    gpu.updates(&round(cohort.len()), &tasks, &mut sums).unwrap();
                    let [sum] = sums;
                    sum
                })
            };
            let running: Vec<_> = ranks.iter_mut().zip(0..).map(work).collect();
            running.into_iter().map(|part| part.join().unwrap()).collect::<Vec<_>>()
        });
        let together: Vec<u64> = parts[0].iter().zip(&parts[1]).map(|(a, b)| a.wrapping_add(*b)).collect();
        assert_eq!(together, whole, "{}", case.name);
    }
}

#[test]
fn several_sums_are_independent() {
    for case in every_case() {
        let Some(mut gpu) = on_gpu(&case, GpuOptions::default()) else { return };
        let (cohort, other, plan) = (cohort(&case), case.other_params(), plan(&case, Work::Steps(2)));
        let len = UpdateCode::len(case.params.len());
        let task = |params, member, sum| UpdateTask { sum, ..task(member, params, &plan) };
        // The previous contents of a sum remain, and a weight that is not a number is rejected.
        let mut sums = [vec![5; len], vec![0; len], vec![5; len]];
        let mut tasks: Vec<UpdateTask<'_>> =
            cohort.iter().map(|&device| task(&case.params, device, 0)).collect();
        tasks.extend(cohort[..2].iter().map(|&device| task(&other, device, 1)));
        tasks.push(task(&other, (FederationIndex(0), f64::NAN), 1));
        gpu.updates(&round(cohort.len()), &tasks, &mut sums).unwrap();
        let first: Vec<u64> =
            sum(&mut gpu, &case.params, &plan, &cohort).iter().map(|sum| sum.wrapping_add(5)).collect();
        // The code of a sum depends on the members of the round, not on the part that answers.
        let mut second = [vec![0; len]];
        let two: Vec<UpdateTask<'_>> = cohort[..2].iter().map(|&device| task(&other, device, 0)).collect();
        gpu.updates(&round(cohort.len()), &two, &mut second).unwrap();
        UpdateCode::refuse(&mut second[0]);
        assert!(sums[0] == first && sums[1] == second[0] && sums[2] == vec![5; len], "{}", case.name);
    }
}

#[test]
fn a_cohort_may_have_more_devices_than_a_grid_has_rows() {
    let case = cases::many_devices();
    let Some(mut gpu) = on_gpu(&case, GpuOptions::default()) else { return };
    let (cohort, plan) = (cohort(&case), plan(&case, Work::Epochs(1)));
    let tasks: Vec<UpdateTask<'_>> = cohort.iter().map(|&member| task(member, &case.params, &plan)).collect();
    let mut sum = |parts: &[&[UpdateTask<'_>]]| {
        let mut sums = [vec![0; UpdateCode::len(case.params.len())]];
        for part in parts {
            gpu.updates(&round(cohort.len()), part, &mut sums).unwrap();
        }
        let [sum] = sums;
        sum
    };
    let (first, second) = tasks.split_at(cohort.len() / 2);
    let whole = sum(&[&tasks]);
    assert_eq!(whole[whole.len() - 2..], [cohort.len() as u64, 0]);
    assert_eq!(sum(&[first, second]), whole);
}

#[test]
fn a_device_without_steps_keeps_its_parameters_and_counts() {
    for case in every_case() {
        let Some(mut gpu) = on_gpu(&case, GpuOptions::default()) else { return };
        let cohort = cohort(&case);
        for work in [Work::Epochs(0), Work::Steps(0)] {
            let sum = sum(&mut gpu, &case.params, &plan(&case, work), &cohort);
            let (entries, footer) = sum.split_at(case.params.len());
            assert!(entries.iter().all(|&entry| entry == 0), "{}", case.name);
            assert_eq!(footer[1..], [cohort.len() as u64, 0], "{}", case.name);
        }
    }
}

#[test]
fn epochs_and_steps_of_the_same_length_draw_different_orders() {
    let Some(case) = every_case().next() else { return };
    let Some(mut gpu) = on_gpu(&case, GpuOptions::default()) else { return };
    // The second device has 16 examples.
    let (batch, device) = (4, FederationIndex(1));
    let plans = [Work::Epochs(1), Work::Steps(4)].map(|work| LocalPlan { batch, ..plan(&case, work) });
    let [epochs, steps] = &plans;
    let len = UpdateCode::len(case.params.len());
    let task = |plan, sum| UpdateTask { sum, ..task((device, 1.0), &case.params, plan) };
    let mut together = [vec![0; len], vec![0; len]];
    gpu.updates(&round(2), &[task(epochs, 0), task(steps, 1)], &mut together).unwrap();
    for (plan, together) in plans.iter().zip(&together) {
        let mut alone = [vec![0; len]];
        gpu.updates(&round(2), &[task(plan, 0)], &mut alone).unwrap();
        assert!(alone[0] == *together, "{}: {:?}", case.name, plan.work);
    }
    assert!(together[0] != together[1], "{}", case.name);
}

#[test]
fn a_model_of_one_class_has_no_loss_and_does_not_move() {
    let case = cases::one_class();
    let Some(mut gpu) = on_gpu(&case, GpuOptions::default()) else { return };
    let devices: Vec<FederationIndex> = case.federation.devices().collect();
    for score in scores(&case, &mut gpu, &devices, &[&case.params]).concat() {
        assert_eq!((score.loss, score.sums[ERRORS]), (0.0, 0.0));
    }
    let (_, locals) = train(&mut gpu, &case.params, &plan(&case, Work::Epochs(1)), &cohort(&case));
    assert!(locals.iter().all(|local| local == case.params.as_slice()));
}

#[test]
fn a_model_without_kernels_for_its_shape_is_rejected_by_name() {
    let Some(device) = device() else { return };
    for case in cases::unsupported() {
        let error =
            Gpu::new(&device, &case.federation, &case.spec, case.params.len(), GpuOptions::default()).err();
        let message = error.map(|error| error.to_string()).unwrap_or_default();
        assert!(message.contains(&case.name), "{}: {message}", case.name);
    }
}
