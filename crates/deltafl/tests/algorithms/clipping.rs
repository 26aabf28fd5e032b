//! Updates that are clipped: what it does to a run, and that it is done alike wherever devices
//! compute.

use deltafl::device::{Member, UpdateRandomness, stream_key};
use deltafl::exchange::Simulation;
use deltafl::memory::AlgorithmState;
use deltafl::params::UpdateCode;
use deltafl::question::{Ask, Query, RoundKey};
use deltafl::selection::Weighting;
use deltafl::terms::Clip;
use deltafl::trainer::LocalTrainer as _;

use super::*;

fn clip(most: f64) -> Terms {
    Terms { clip: Clip::try_from(most).ok(), ..together() }
}

fn clipped(most: f64, tracks: Vec<Track>) -> Plan {
    plan(tracks).into_builder().terms(clip(most)).build().unwrap()
}

/// Private terms, under which every track trains in every round.
fn together() -> Terms {
    Terms { schedule: TrackSchedule::Together, ..Terms::PRIVATE }
}

fn both() -> Vec<Track> {
    let quantile = Quantile::Private(PrivateQuantile::TwoLevel);
    let tail = Tail { quantile, ..Tail::new(Conformity::try_from(0.5).unwrap()) };
    vec![track("fedavg", &[]), tail.into()]
}

#[test]
fn no_round_moves_w_further_than_the_bound() {
    let moved = |most: f64, stop: u64| {
        let plan = clipped(most, both()).into_builder().rounds(stop).build().unwrap();
        run(&plan, &[]).tracks.into_iter().map(|track| track.params).collect::<Vec<_>>()
    };
    for round in 0..4 {
        for (before, after) in moved(0.05, round).iter().zip(moved(0.05, round + 1)) {
            let step = distance(before, &after);
            assert!(step > 0.0 && step <= 0.05 * (1.0 + 1e-4), "round {round}: {step}");
        }
    }
    let free: Vec<f64> = moved(1e6, 1).iter().zip(moved(1e6, 2)).map(|(a, b)| distance(a, &b)).collect();
    assert!(free.iter().all(|&step| step > 0.1), "without it they go further: {free:?}");
}

#[test]
fn a_bound_that_nobody_reaches_changes_no_bit() {
    let free = plan(both()).into_builder().terms(together()).build().unwrap();
    assert_eq!(run(&clipped(1e6, both()), &[]), run(&free, &[]));
}

#[test]
fn masked_sums_and_a_device_on_its_own_clip_alike() {
    let federation = federation();
    let model = ModelSpec::LINEAR.build(&federation, Isa::detect()).unwrap();
    let trainer = Sgd::new(&*model);
    let plan = clipped(0.05, vec![track("fedavg", &[])]);
    let plan = plan.into_builder().rounds(1).cohort(12).build().unwrap();
    let threads = NonZeroUsize::new(2);
    let mut masked = Simulation::with_threads(&trainer, &federation, threads).unwrap().masked(0.0);
    let start = plan.start(7, &trainer);
    let mut state = start.clone();
    train(&mut masked, &plan, &mut state, &mut Records::default()).unwrap();
    assert_eq!(state.tracks, run(&plan, &[]).tracks);

    // Every train device is in the cohort.
    let key = RoundKey { run: 0, seed: 7, round: 0, members: 12, terms: plan.terms() };
    let local = plan.local().plan(0, &plan.tracks()[0]);
    let ask = Ask::Update { weighting: Weighting::everyone(), plan: local };
    let query = Query::new(start.tracks[0].params.clone(), ask);
    let mut sum = vec![0; UpdateCode::len(query.params.len())];
    for device in federation.split(Split::Train) {
        let member = Member {
            randomness: UpdateRandomness::Reproducible,
            examples: federation.examples(device),
            key: stream_key(federation.id(device)),
            held_out: None,
            trains_always: false,
        };
        let (mut worker, mut own) = (trainer.worker(), AlgorithmState::default());
        member.answer(&key, &query, None, &mut *worker, &mut own, &mut sum).unwrap();
    }
    let sum = deltafl::params::UpdateSum::new(sum, query.params.len()).unwrap();
    assert_eq!(sum.tail(), 12);
    assert_eq!(sum.applied_to(&query.params), Some(state.tracks[0].params.clone()));
}

#[test]
fn an_algorithm_that_sends_more_than_w_is_not_clipped_in_silence() {
    let scaffold = plan(vec![track("scaffold", &[])]);
    let (local, terms) = (scaffold.local().plan(0, &scaffold.tracks()[0]), clip(0.05));
    let refused = scaffold.into_builder().terms(terms).build().err().unwrap();
    assert!(refused.to_string().contains("updates are clipped"));

    // A device that is asked nevertheless refuses as well.
    let federation = federation();
    let model = ModelSpec::LINEAR.build(&federation, Isa::detect()).unwrap();
    let (trainer, device) = (Sgd::new(&*model), federation.split(Split::Train)[0]);
    let member = Member {
        examples: federation.examples(device),
        key: stream_key(federation.id(device)),
        randomness: UpdateRandomness::Reproducible,
        held_out: None,
        trains_always: false,
    };
    let w = Params::from(vec![0.0; model.num_params()]);
    let ask = Ask::Update { weighting: Weighting::everyone(), plan: local };
    let query = Query { sent: vec![w.clone()], ..Query::new(w, ask) };
    let key = RoundKey { run: 0, seed: 7, round: 0, members: 6, terms };
    let (mut own, mut sum) = (AlgorithmState::default(), vec![0; query.answer_len()]);
    let answered = member.answer(&key, &query, None, &mut *trainer.worker(), &mut own, &mut sum);
    assert!(answered.unwrap_err().to_string().contains("updates are clipped"));
}
