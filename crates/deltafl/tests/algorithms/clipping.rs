//! Updates that are clipped: what it does to a run, and that it is done alike wherever devices compute.

use deltafl::device::{Member, UpdateRandomness, stream_key};
use deltafl::exchange::Masked;
use deltafl::memory::Memory;
use deltafl::params::UpdateCode;
use deltafl::question::{Ask, Query, RoundKey};
use deltafl::selection::Weighting;
use deltafl::terms::Clip;
use deltafl::trainer::LocalTrainer as _;

use super::*;

fn clipped(most: f64, tracks: Vec<Track>) -> Plan {
    Plan { terms: Terms { clip: Clip::try_from(most).ok(), ..together() }, ..plan(tracks) }
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
        let plan = Plan { rounds: stop, ..clipped(most, both()) };
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
    let free = Plan { terms: together(), ..plan(both()) };
    assert_eq!(run(&clipped(1e6, both()), &[]), run(&free, &[]));
}

#[test]
fn masked_sums_and_a_device_on_its_own_clip_alike() {
    let federation = federation();
    let model = ModelSpec::LINEAR.build(&federation, Isa::detect()).unwrap();
    let trainer = Sgd::new(&*model);
    let plan = Plan { rounds: 1, ..clipped(0.05, vec![track("fedavg", &[])]) };
    let sampling = Sampling { cohort_size: 12, ..plan.sampling };
    let plan = Plan { sampling, ..plan };
    let compute = Threads::new(&trainer, &federation, 2).unwrap();
    let mut masked = Masked::new(compute, &federation, 0.0).unwrap();
    let start = State::new(7, 1, &trainer);
    let mut state = start.clone();
    train(&mut masked, &plan, &mut state, &mut Records::default()).unwrap();
    assert_eq!(state.tracks, run(&plan, &[]).tracks);

    // Every train device is in the cohort.
    let key = RoundKey { run: 0, seed: 7, round: 0, members: 12, terms: plan.terms };
    let local = plan.local.plan(0, &plan.tracks[0]);
    let ask = Ask::Update { weighting: Weighting::everyone(), plan: local };
    let query = Query::new(start.tracks[0].params.clone(), ask);
    let mut sum = vec![0; UpdateCode::len(query.params.len())];
    for device in federation.split(Split::Train) {
        let member = Member {
            randomness: UpdateRandomness::Reproducible,
            examples: federation.examples(device),
            key: stream_key(federation.id(device)),
            held_out: None,
        };
        let (mut worker, mut own) = (trainer.worker(), Memory::default());
        member.answer(&key, &query, None, &mut *worker, &mut own, &mut sum).unwrap();
    }
    let sum = deltafl::params::UpdateSum::new(sum, query.params.len()).unwrap();
    assert_eq!(sum.tail(), 12);
    assert_eq!(sum.applied_to(&query.params), Some(state.tracks[0].params.clone()));
}

#[test]
fn an_algorithm_that_sends_more_than_w_is_not_clipped_in_silence() {
    let federation = federation();
    let model = ModelSpec::LINEAR.build(&federation, Isa::detect()).unwrap();
    let trainer = Sgd::new(&*model);
    let mut exchange = Direct::new(Threads::new(&trainer, &federation, 1).unwrap(), &federation).unwrap();
    let plan = clipped(0.05, vec![track("scaffold", &[])]);
    let trained = train(&mut exchange, &plan, &mut State::new(7, 1, &trainer), &mut Records::default());
    assert!(trained.unwrap_err().to_string().contains("updates are clipped"));
}
