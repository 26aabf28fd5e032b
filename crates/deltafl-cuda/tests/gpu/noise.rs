//! Noisy sums of the GPU against the CPU code for the same w_k, to the bit.

use deltafl::compute::{Compute, KeptParts, NoisyEncoding, TaskNoise, TrainedTask, UpdateTask, add_trained};
use deltafl::data::FederationIndex;
use deltafl::params::Params;
use deltafl::privacy::{Excess, Noise};
use deltafl::question::{Ask, RoundKey};
use deltafl::selection::Weighting;
use deltafl::terms::{Clip, Terms};
use deltafl::trainer::{LocalPlan, Work};
use deltafl_cuda::{Gpu, GpuOptions};

use crate::cases::{Case, every_case};
use crate::{on_gpu, plan, task};

/// One device in one track.
#[derive(Clone, Copy)]
struct Share {
    device: FederationIndex,
    weight: f64,
    track: usize,
}

/// The noise of the tracks of a round.
#[derive(Clone, Copy)]
struct Setting {
    noise: Noise,
    kept: Option<KeptParts>,
    round: u64,
    rate: f32,
}

fn setting(clip: f64, variance: u32) -> Setting {
    let noise =
        Noise { variance, units: 2048, honest: 3, clip: Some(Clip::try_from(clip).unwrap()), excess: None };
    Setting { noise, kept: None, round: 3, rate: 0.05 }
}

/// Returns the length of a noisy sum of updates.
pub(crate) fn sum_len(noise: &Noise, plan: LocalPlan, params: &Params) -> usize {
    noise.answer_len(&Ask::Update { weighting: Weighting::everyone(), plan }, params.len())
}

/// Compares the sums of two tracks with the CPU. Returns the sums of the GPU.
fn compare(case: &Case, gpu: &mut Gpu<'_>, setting: &Setting, shares: &[Share]) -> Vec<Vec<u64>> {
    let mut plan = plan(case, Work::Steps(2));
    plan.learning_rate = setting.rate;
    let other = case.other_params();
    let tracks = [&case.params, &other];
    let task = |share: &Share| UpdateTask {
        noise: Some(TaskNoise { noise: setting.noise, query: 2 + share.track as u32, kept: setting.kept }),
        sum: share.track,
        ..task((share.device, share.weight), tracks[share.track], &plan)
    };
    let tasks: Vec<UpdateTask<'_>> = shares.iter().map(task).collect();
    let key = RoundKey { run: 0, seed: 7, round: setting.round, members: 9, terms: Terms::PRIVATE };
    let len = sum_len(&setting.noise, plan, &case.params);
    let mut found = vec![vec![5; len]; 2];
    gpu.updates(&key, &tasks, &mut found).unwrap();
    let trained = tasks.iter().filter(|task| task.weight > 0.0).count();
    let locals = gpu.last_local(trained).unwrap();
    let mut locals = locals.chunks_exact(case.params.len());
    let with_local = tasks.iter().enumerate().map(|(index, &task)| {
        let local = if task.weight > 0.0 { locals.next().unwrap() } else { &[] };
        TrainedTask { task, index, local }
    });
    let trained: Vec<TrainedTask<'_>> = with_local.collect();
    let mut expected = vec![vec![5; len]; 2];
    add_trained(&key, &case.federation, &trained, &mut expected).unwrap();
    for (track, (found, expected)) in found.iter().zip(&expected).enumerate() {
        let differing = found.iter().zip(expected).filter(|(a, b)| a != b).count();
        let first = found.iter().zip(expected).position(|(a, b)| a != b);
        assert_eq!(differing, 0, "{}, track {track}: of {len} entries, first {first:?}", case.name);
    }
    found
}

/// Every device in both tracks; some have no weight in one of them.
fn shares(case: &Case) -> Vec<Share> {
    let all = |track| {
        case.federation.devices().enumerate().map(move |(k, device)| {
            let weight = if (k + track) % 3 == 0 { 0.0 } else { 1.0 / (1.0 + track as f64) };
            Share { device, weight, track }
        })
    };
    all(0).chain(all(1)).collect()
}

fn cases() -> impl Iterator<Item = Case> {
    every_case().filter(|case| {
        let name = case.name.as_str();
        ["linear", "conv-net", "logistic", "gru, texts", "general linear"]
            .iter()
            .any(|part| name.starts_with(part))
    })
}

#[test]
fn noisy_sums_equal_the_cpu_sums_of_the_same_local_parameters() {
    for case in cases() {
        let Some(mut gpu) = on_gpu(&case, GpuOptions::default()) else { return };
        // Clipped and not clipped, small and large noise, no noise of devices.
        for (clip, variance) in [(1e-3, 100), (1e3, 1 << 20), (0.05, 0), (0.5, 16)] {
            compare(&case, &mut gpu, &setting(clip, variance), &shares(&case));
        }
        println!("{}: noisy sums agree", case.name);
    }
}

#[test]
fn noisy_sums_of_few_devices_and_of_none_in_the_tail_equal_the_cpu_sums() {
    for case in cases() {
        let Some(mut gpu) = on_gpu(&case, GpuOptions::default()) else { return };
        let (setting, all) = (setting(0.1, 300), shares(&case));
        // Devices that drop out are not among the tasks.
        let survivors: Vec<Share> = all.iter().copied().step_by(3).collect();
        compare(&case, &mut gpu, &setting, &survivors);
        compare(&case, &mut gpu, &setting, &all[1..2]);
        let outside: Vec<Share> = all.iter().map(|&share| Share { weight: 0.0, ..share }).collect();
        let noise = compare(&case, &mut gpu, &setting, &outside);
        assert!(noise[0].iter().any(|&entry| entry != 5));
        let refused: Vec<Share> = all.iter().map(|&share| Share { weight: f64::NAN, ..share }).collect();
        assert_eq!(compare(&case, &mut gpu, &setting, &refused), noise, "{}", case.name);
    }
}

#[test]
fn an_update_that_is_not_finite_adds_only_noise_on_the_gpu() {
    for case in cases() {
        let Some(mut gpu) = on_gpu(&case, GpuOptions::default()) else { return };
        compare(&case, &mut gpu, &Setting { rate: 1e38, ..setting(0.1, 300) }, &shares(&case));
    }
}

#[test]
fn parts_of_the_noise_that_stay_equal_those_of_the_cpu() {
    for case in cases().take(3) {
        let Some(mut gpu) = on_gpu(&case, GpuOptions::default()) else { return };
        let mut setting = setting(0.1, 4096);
        setting.noise =
            Noise { honest: 476, excess: Some(Excess { accomplices: 50, most: 1000 }), ..setting.noise };
        for parts in [0, 1, 4, 100] {
            setting.kept = Some(KeptParts { question: 2, parts });
            compare(&case, &mut gpu, &setting, &shares(&case));
        }
    }
}

#[test]
fn samples_that_a_word_does_not_decide_equal_those_of_the_cpu() {
    for case in cases().take(1) {
        let Some(mut gpu) = on_gpu(&case, GpuOptions::default()) else { return };
        // About one sample in 74,000 is undecided. The host adds the noise of the last variance.
        let (most, too_large) = (setting(0.1, 9_000_000), setting(0.1, 1 << 24));
        assert!(NoisyEncoding::has_short_tables(&most.noise));
        assert!(!NoisyEncoding::has_short_tables(&too_large.noise));
        for round in 0..10 {
            compare(&case, &mut gpu, &Setting { round, ..most }, &shares(&case));
        }
        compare(&case, &mut gpu, &too_large, &shares(&case));
    }
}

#[test]
fn noisy_sums_do_not_depend_on_the_memory() {
    for case in cases().take(2) {
        let Some(mut gpu) = on_gpu(&case, GpuOptions::default()) else { return };
        let mut small = on_gpu(&case, GpuOptions { memory: Some(1) }).unwrap();
        let plan = plan(&case, Work::Epochs(1));
        let noise = setting(0.1, 300).noise;
        let task = |device| UpdateTask {
            noise: Some(TaskNoise { noise, query: 0, kept: None }),
            ..task((device, 1.0), &case.params, &plan)
        };
        let tasks: Vec<UpdateTask<'_>> = case.federation.devices().map(task).collect();
        let key = RoundKey { run: 0, seed: 7, round: 1, members: 7, terms: Terms::PRIVATE };
        let sums = [&mut gpu, &mut small].map(|gpu| {
            let mut sums = [vec![0; sum_len(&noise, plan, &case.params)]];
            gpu.updates(&key, &tasks, &mut sums).unwrap();
            sums
        });
        assert_eq!(sums[0], sums[1], "{}", case.name);
    }
}
