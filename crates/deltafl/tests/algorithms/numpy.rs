//! Every algorithm against `reference.py`, a plain numpy program, over the same cohorts and
//! batches.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use deltafl::data::BatchBuffer;
use deltafl::device::{stream_key, update_stream};
use deltafl::question::RoundKey;
use deltafl::stream::{Purpose, Stream};
use deltafl::trainer::PERSONAL;
use serde_json::{Value, json};

use super::small::{SEED, devices, grouped, last_state, small_plan};
use super::*;

/// The largest difference of an entry of w.
const TOLERANCE: f64 = 1e-5;

/// The algorithms with their options.
const TRACKS: &[(&str, &[(&str, f64)])] = &[
    ("fedavg", &[]),
    ("fedprox", &[("mu", 0.5)]),
    ("fedavgm", &[("server_rate", 0.7), ("momentum", 0.8)]),
    ("fedadam", &[("server_rate", 0.05), ("beta1", 0.8), ("beta2", 0.95), ("tau", 0.01)]),
    ("fedyogi", &[("server_rate", 0.05), ("beta1", 0.8), ("beta2", 0.95), ("tau", 0.01)]),
    ("fedadagrad", &[("server_rate", 0.05), ("beta1", 0.3), ("tau", 0.01)]),
    ("fedprox-adaptive", &[("first_mu", 0.2), ("mu_step", 0.3)]),
    ("fednova", &[]),
    ("feddyn", &[("regularisation", 0.4)]),
    ("scaffold", &[("global_rate", 0.8)]),
    ("q-ffl", &[("q", 0.0)]),
    ("q-ffl", &[("q", 1.0)]),
    ("q-ffl", &[("q", 2.5)]),
    ("term", &[("tilt", 0.7)]),
    ("term", &[("tilt", 4.0)]),
    ("propfair", &[("baseline", 3.0), ("utility_floor", 0.5)]),
    ("semivred", &[("penalty", 0.6)]),
    ("gifair", &[("rank_penalty", 0.8)]),
    ("gifair-sums", &[("rank_penalty", 0.8)]),
    ("afl", &[("lambda_rate", 0.5)]),
    ("drfa", &[("lambda_rate", 0.5)]),
    ("agnostic-groups", &[("lambda_rate", 0.8)]),
    ("median", &[]),
    ("trimmed-mean", &[("trim", 0.25)]),
    ("geometric-median", &[]),
    ("krum", &[("liars", 0.2)]),
    ("delta-fl", &[("theta", 0.4)]),
    (
        "delta-fl+fedadam",
        &[("theta", 0.4), ("server_rate", 0.05), ("beta1", 0.8), ("beta2", 0.95), ("tau", 0.01)],
    ),
    ("delta-fl+fedprox", &[("theta", 0.4), ("mu", 0.5)]),
    ("delta-fl+scaffold", &[("theta", 0.4), ("global_rate", 0.8)]),
    ("ditto", &[("personal_mu", 0.5)]),
    ("apfl", &[("mixing", 0.6)]),
    ("delta-fl+ditto", &[("theta", 0.4), ("personal_mu", 0.5)]),
];

/// The devices, cohorts and batches of a plan.
fn problem(plan: &Plan, federation: &Federation) -> Value {
    let train = federation.split(Split::Train);
    let device = |&k| {
        let (examples, mut buffer) = (federation.examples(k), BatchBuffer::default());
        let batch = buffer.gather(&examples, 0..examples.len());
        let dense = batch.inputs.dense();
        let rows: Vec<&[f32]> = dense.chunks(dense.len() / examples.len()).collect();
        let labels: Vec<u32> = (0..examples.len()).map(|i| examples.label(i)).collect();
        json!([rows, labels])
    };
    let Work::Epochs(epochs) = plan.local().work else { panic!("epochs") };
    let round = |round: u64| {
        let draw = Draw { seed: SEED, round, attempt: 0 };
        let cohort = plan.sampling().cohort(train.len(), draw, &Reachable::Everyone);
        let key = RoundKey { run: 0, seed: SEED, round, members: cohort.len() as u32, terms: plan.terms() };
        let member = |drawn: &CohortMember| {
            let k = train[drawn.device.place()];
            let mut stream = update_stream(&key, stream_key(federation.id(k)));
            let mut batches = || {
                let mut batches: Vec<Vec<u32>> = Vec::new();
                for _ in 0..epochs {
                    let mut order: Vec<u32> = (0..federation.example_count(k) as u32).collect();
                    stream.shuffle(&mut order);
                    batches.extend(order.chunks(plan.local().batch).map(<[u32]>::to_vec));
                }
                batches
            };
            // The second list is that of a personal model.
            json!([drawn.device.0, batches(), batches()])
        };
        cohort.iter().map(member).collect::<Vec<Value>>()
    };
    json!({
        "classes": federation.classes(),
        "devices": train.iter().map(device).collect::<Vec<Value>>(),
        "rounds": (0..plan.rounds()).map(round).collect::<Vec<_>>(),
        "rate": plan.local().learning_rate as f32,
        "l2": plan.tracks()[0].l2,
        "groups": train.iter().map(|&k| federation.group(k)).collect::<Vec<_>>(),
    })
}

/// Runs `reference.py`. Returns `None` and prints a message if numpy is missing.
fn reference(problem: &Value) -> Option<Vec<Vec<f64>>> {
    let python = std::env::var("DELTAFL_PYTHON").unwrap_or_else(|_| "python3".into());
    let found = Command::new(&python).args(["-c", "import numpy"]).output();
    if !found.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: python3 has no numpy (pip install numpy, or set DELTAFL_PYTHON)");
        return None;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/algorithms/reference.py");
    let mut child =
        Command::new(&python).arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(problem.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

#[test]
fn every_rule_agrees_with_a_plain_numpy_program() {
    let federation = grouped(devices());
    // All losses are equal at w₀ = 0, so the histogram of GIFAIR in sums is known in the fourth
    // round.
    let tracks = TRACKS.iter().map(|(kind, given)| track(kind, given)).collect();
    let plan = small_plan(tracks).into_builder().rounds(4).build().unwrap();
    let mut problem = problem(&plan, &federation);
    let units = |track: usize| {
        let unit = |round| {
            let mut stream = Stream::new(SEED, Purpose::Selection, round, track as u64);
            (0..plan.sampling().cohort_size).map(move |_| stream.unit()).collect::<Vec<f64>>()
        };
        (0..plan.rounds()).map(unit).collect::<Vec<_>>()
    };
    let named = TRACKS.iter().enumerate().map(|(i, (kind, given))| {
        let options: serde_json::Map<String, Value> =
            given.iter().map(|&(name, value)| (name.to_owned(), value.into())).collect();
        json!({ "kind": kind, "options": options, "units": units(i) })
    });
    problem["tracks"] = named.collect();
    let Some(expected) = reference(&problem) else { return };
    let state = last_state(&plan, &federation, &[]);
    let fed_avg = &expected[0];
    for (((kind, given), ours), expected) in TRACKS.iter().zip(&state.tracks).zip(&expected) {
        let off = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        let personal = ours.devices.iter().filter_map(|(_, memory)| memory.vector(PERSONAL));
        let ours: Vec<f64> = [&ours.params]
            .into_iter()
            .chain(personal)
            .flat_map(|params| params.as_slice().iter().map(|&w| f64::from(w)))
            .collect();
        assert_eq!(ours.len(), expected.len(), "{kind}");
        let error = off(&ours, expected);
        println!("{kind} {given:?}: off by {error:.1e}, {:.1e} from FedAvg", off(expected, fed_avg));
        assert!(error < TOLERANCE, "{kind} {given:?} is off by {error}");
        let is_fed_avg = ["fedavg", "ditto", "apfl"].contains(kind) || given.contains(&("q", 0.0));
        assert!(
            is_fed_avg || off(expected, fed_avg) > 10.0 * TOLERANCE,
            "{kind} does not differ from FedAvg"
        );
    }
}
