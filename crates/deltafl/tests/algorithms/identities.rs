//! Algorithms whose effect is switched off, and runs that are interrupted.

use deltafl::algorithm::{ALGORITHMS, Algorithm, Requires};
use deltafl::options::OptionDefault;

use super::small::{SEED, devices, grouped, last_state, one_device, small_plan};
use super::*;

#[test]
fn an_algorithm_without_its_effect_is_fed_avg_to_the_bit() {
    let without_effect: &[(&str, &[(&str, f64)])] = &[
        ("fedavg", &[]),
        ("delta-fl", &[("theta", 1.0)]),
        ("fedprox", &[("mu", 0.0)]),
        ("fedprox-adaptive", &[("first_mu", 0.0), ("mu_step", 0.0)]),
        ("fedavgm", &[("server_rate", 1.0), ("momentum", 0.0)]),
        ("q-ffl", &[("q", 0.0)]),
        ("term", &[("tilt", 0.0)]),
        ("semivred", &[("penalty", 0.0)]),
        ("gifair", &[("rank_penalty", 0.0)]),
        ("gifair-sums", &[("rank_penalty", 0.0)]),
        ("agnostic-groups", &[("lambda_rate", 0.0)]),
        ("afl", &[("lambda_rate", 0.0)]),
        ("ditto", &[]),
        ("fine-tuning", &[]),
        ("apfl", &[]),
        ("delta-fl+fedprox", &[("theta", 1.0), ("mu", 0.0)]),
    ];
    let tracks = without_effect.iter().map(|(kind, given)| track(kind, given)).collect();
    let (plan, federation) = (small_plan(tracks), grouped(devices()));
    let state = last_state(&plan, &federation, &[]);
    for (at, (kind, _)) in state.tracks.iter().zip(without_effect) {
        assert_eq!(at.params, state.tracks[0].params, "{kind}");
    }
}

#[test]
fn a_small_tilt_is_near_fed_avg_and_a_smaller_one_is_nearer() {
    let tilts = [0.0, 1e-3, 1e-2].map(|tilt| track("term", &[("tilt", tilt)]));
    let state = last_state(&small_plan(tilts.into()), &devices(), &[]);
    let [near, far] = [1, 2].map(|i| distance(&state.tracks[i].params, &state.tracks[0].params));
    assert!(0.0 < near && 5.0 * near < far && far < 0.1, "{near} {far}");
}

#[test]
fn scaffold_with_one_device_is_fed_avg() {
    let plan = small_plan(vec![track("fedavg", &[]), track("scaffold", &[])]);
    let state = last_state(&plan, &one_device(), &[]);
    // c equals c_k up to the rounding of the sum, and the correction vanishes up to it.
    let off = distance(&state.tracks[0].params, &state.tracks[1].params);
    assert!(off < 1e-6, "{off}");
}

#[test]
fn algorithms_with_reports_and_state_go_on_to_the_same_bits_after_an_interruption() {
    let kinds = [
        "fedavgm",
        "fedyogi",
        "fedprox-adaptive",
        "feddyn",
        "q-ffl",
        "term",
        "semivred",
        "gifair",
        "gifair-sums",
        "agnostic-groups",
        "afl",
        "drfa",
        "krum",
        "ditto",
    ];
    let tracks = kinds.map(|kind| track(kind, &[])).into();
    let plan = small_plan(tracks).into_builder().rounds(5).build().unwrap();
    let federation = grouped(devices());
    let whole = last_state(&plan, &federation, &[]);
    assert_eq!(last_state(&plan, &federation, &[1, 3]), whole);
    for (i, at) in whole.tracks.iter().enumerate() {
        assert!(whole.tracks[..i].iter().all(|other| other != at), "{}", kinds[i]);
    }
}

#[test]
fn algorithms_that_need_sums_alone_have_the_same_bits_under_masked_sums() {
    let in_sums = |algorithm: &&&Algorithm| !matches!(algorithm.requires, Requires::Open(_));
    let algorithms: Vec<&Algorithm> = ALGORITHMS.iter().filter(in_sums).copied().collect();
    let of_examples = |algorithm: &&'static Algorithm| {
        let required = algorithm.options.iter().filter(|option| option.default == OptionDefault::Required);
        let options = algorithm.options_with(required.map(|option| (option.name, option.example))).unwrap();
        Track::from_options(algorithm, &options, 1e-4).unwrap()
    };
    let tracks = || ALGORITHMS.iter().filter(in_sums).map(of_examples).collect();
    let (plan, federation) = (small_plan(tracks()), grouped(devices()));
    let model = ModelSpec::LINEAR.build(&federation, Isa::detect()).unwrap();
    let trainer = Sgd::new(&*model);
    let simulation = Simulation::with_threads(&trainer, &federation, NonZeroUsize::new(1)).unwrap();
    let mut state = plan.start(SEED, &trainer);
    train(&mut simulation.masked(0.0), &plan, &mut state, &mut Records::default()).unwrap();
    let plain = last_state(&plan, &federation, &[]);
    for ((masked, plain), algorithm) in state.tracks.iter().zip(&plain.tracks).zip(algorithms) {
        assert_eq!(masked, plain, "{}", algorithm.kind);
    }
}
