//! Stores to test with: SQLite always, Postgres where `DELTAFL_POSTGRES` names one.
#![allow(dead_code, unreachable_pub)]

use std::path::Path;

use deltafl::algorithm::TrackLabel;
use deltafl::evaluation::{CohortEvaluation, Measure, answer, answer_len};
use deltafl::exchange::Evaluation;
use deltafl::memory::AlgorithmState;
use deltafl::model::ModelSpec;
use deltafl::superquantile::private::Bins;
use deltafl::superquantile::{Conformity, Histogram, LossDistribution};
use deltafl::task::Task;
use deltafl::training::{RoundRecord, State, TrackState};
use deltafl_data::run_folder::RoundLine;
use deltafl_server::serve::{Phase, PhasePurpose};
use deltafl_server::store::{Commit, RoundLosses, Store, StoreSettings};
use deltafl_wire::environment::{Network as _, Tcp};
use deltafl_wire::identity::FederationName;

/// The settings of every database there is, blobs in a folder.
pub fn settings(folder: &Path) -> Vec<StoreSettings> {
    let mut all = vec![StoreSettings::in_folder(folder)];
    match postgres(folder) {
        Some(settings) => all.push(settings),
        None => eprintln!("without Postgres: DELTAFL_POSTGRES names none (scripts/test starts one)"),
    }
    all
}

/// The Postgres of the tests.
pub fn postgres(folder: &Path) -> Option<StoreSettings> {
    let url = std::env::var("DELTAFL_POSTGRES").ok()?;
    Some(StoreSettings::new(url, folder.join("blobs").display().to_string()))
}

/// A federation that no other test knows.
pub async fn federation(store: &Store) -> FederationName {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).unwrap();
    let name: FederationName = format!("f{:016x}", u64::from_le_bytes(bytes)).parse().unwrap();
    store.create_federation(&name).await.unwrap();
    name
}

pub fn labels() -> Vec<TrackLabel> {
    let of = |name: &str, algorithm: &str, theta| TrackLabel {
        name: name.to_owned(),
        algorithm: algorithm.to_owned(),
        theta: Conformity::try_from(theta).unwrap(),
    };
    vec![of("FedAvg", "fedavg", 1.0), of("Δ-FL θ=0.5", "delta-fl", 0.5), of("Δ-FL θ=0.1", "delta-fl", 0.1)]
}

/// What training would have reached after some rounds: numbers that depend on nothing else.
pub fn state(round: u64) -> State {
    let track = |i: u64| {
        let params = (0..50).map(|j| (round * 31 + i * 7 + j) as f32 / 3.0).collect::<Vec<f32>>();
        let mut memory = AlgorithmState::default();
        if i > 0 {
            memory.set_number("eta", 0.1 * round as f64 + 0.2);
        }
        if i > 1 {
            memory.set_vector("moment", params.iter().map(|entry| 0.5 * entry).collect::<Vec<f32>>().into());
        }
        TrackState { memory, ..TrackState::new(params.into()) }
    };
    let tensors = [deltafl::model::Tensor::new("fc.weight", &[10, 5])].into();
    State { seed: 1, round, tensors, tracks: (0..3).map(track).collect() }
}

/// The records of round t.
pub fn lines(round: u64) -> Vec<RoundLine> {
    let line = |(track, label): (usize, TrackLabel)| RoundLine {
        record: RoundRecord {
            seed: 1,
            track,
            name: label.name,
            round,
            eta: None,
            eta_age: None,
            loss: None,
            cohort: 40,
            dropped: 2,
            tail: 19,
            tail_weight: 77.0,
            refused: 0,
            sums: 3,
            messages: 100,
            bytes_up: 1000,
            bytes_down: 2000,
            evaluations: Vec::new(),
            privacy: None,
        },
        seconds: 0.5,
    };
    labels().into_iter().enumerate().map(line).collect()
}

/// What the cohort of round t told about its losses: FedAvg was not asked.
pub fn losses(round: u64) -> Vec<Option<LossDistribution>> {
    let bins = Bins::new(0.0, 4.0, 64).unwrap();
    let of = |track: u64| {
        let mut sum = vec![0; bins.places()];
        for device in 0..38 {
            let loss =
                (0.2 + 0.08 * device as f64) * (20.0 / (20.0 + round as f64)) / (1.0 + 0.2 * track as f64);
            sum[bins.place(loss)] += 10 + device;
        }
        LossDistribution::private(vec![Histogram::new(bins, 38, &sum)])
    };
    vec![None, of(1), of(2)]
}

/// What the cohort of round t told of the examples that it holds out.
pub fn held_out(round: u64, track: usize) -> CohortEvaluation {
    let asked = Measure::of_task(Task::Classes);
    let mut sum = vec![0; answer_len(&asked)];
    for device in 0..38 {
        let error =
            (0.1 + 0.02 * f64::from(device)) * (20.0 / (20.0 + round as f64)) / (1.0 + 0.1 * track as f64);
        answer(&asked, Task::Classes, &Evaluation::of_primary(2.0 * error, error), &mut sum);
    }
    CohortEvaluation::new(round, Task::Classes, &sum).unwrap()
}

/// The phases of a round from which two devices vanished.
pub fn phases() -> Vec<Phase> {
    let phase = |purpose, name: &str, seconds, answered| Phase {
        purpose,
        name: name.to_owned(),
        seconds,
        asked: 40,
        answered,
        failed: false,
    };
    vec![
        phase(PhasePurpose::Keys, "advertise keys", 0.2, 40),
        phase(PhasePurpose::Keys, "share keys", 0.1, 40),
        phase(PhasePurpose::Losses, "masked answers", 0.3, 39),
        phase(PhasePurpose::Losses, "unmask", 0.1, 39),
        phase(PhasePurpose::Updates, "masked answers", 0.5, 38),
        phase(PhasePurpose::Updates, "unmask", 0.1, 38),
    ]
}

/// The model of the committed rounds.
static LINEAR: ModelSpec = ModelSpec::LINEAR;

/// Commits the round that ends with `state(round)`.
pub fn commit<'a>(
    state: &'a State,
    labels: &'a [TrackLabel],
    lines: &'a [RoundLine],
    publish: bool,
) -> Commit<'a> {
    Commit { state, labels, model: &LINEAR, lines, timeline: &[], publish, losses: &[], contract: None }
}

/// A server's HTTP side on a port of its own, with three levels in two versions.
pub struct TestServer {
    pub address: std::net::SocketAddr,
    pub state: std::sync::Arc<deltafl_server::http::HttpState>,
    pub revocations: deltafl_server::authority::Revocations,
    pub authority: deltafl_server::authority::Authority,
    pub folder: tempfile::TempDir,
}

/// How it is set up.
pub struct TestServerOptions {
    pub tls: bool,
    pub access: deltafl_server::http::Access,
    pub limits: deltafl_server::http::HttpLimits,
}

impl Default for TestServerOptions {
    fn default() -> Self {
        Self { tls: true, access: Default::default(), limits: Default::default() }
    }
}

pub async fn host(hosting: TestServerOptions) -> TestServer {
    use deltafl_server::authority::{Authority, Revocations};
    use deltafl_server::http;
    use deltafl_server::http::{Enrolment, HttpState};
    use deltafl_server::live::{About, Fresh, Live, Role};
    use deltafl_server::store::CommittedRound;

    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&StoreSettings::in_folder(folder.path())).await.unwrap();
    let federation: FederationName = "demo".parse().unwrap();
    store.create_federation(&federation).await.unwrap();
    let lease = store.lead(&federation, "test").await.unwrap();
    let live = Live::new(About {
        federation: "demo".to_owned(),
        experiment: "glyphs".to_owned(),
        model: "linear".to_owned(),
        open: false,
        rounds: 40,
        cohort: 40,
        tracks: labels(),
    });
    for round in 1..=2 {
        let (state, mut lines, phases) = (state(round), lines(round - 1), phases());
        // Only the first round is one of an evaluation.
        for (track, line) in lines.iter_mut().enumerate().filter(|_| round == 1) {
            line.record.evaluations.push(held_out(0, track));
        }
        let losses = [RoundLosses { round: round - 1, tracks: losses(round - 1) }];
        let labels = labels();
        let commit = Commit { timeline: &phases, losses: &losses, ..commit(&state, &labels, &lines, true) };
        store.commit(&lease, &commit).await.unwrap();
    }
    for round in store.rounds(&federation, 1, 0, 2).await.unwrap() {
        let CommittedRound { lines, timeline, losses, .. } = &round;
        live.committed(Fresh { lines, phases: timeline, losses });
    }
    live.role(Role::Leading);
    Authority::create(&folder.path().join("ca"), federation.clone()).unwrap();
    let open = || Authority::open(&folder.path().join("ca")).unwrap();
    let revocations = Revocations::new();
    let server = open().issue_server(&["localhost".to_owned(), "127.0.0.1".to_owned()], 1).unwrap();
    let tls = hosting.tls.then(|| server.open_tls(&revocations, &[b"http/1.1"]).unwrap());
    let state = std::sync::Arc::new(HttpState {
        federation,
        store,
        live,
        refusals: Default::default(),
        enrolment: Some(Enrolment { authority: open().into(), days: 1, enrolled: Default::default() }),
        contract: Some("c0ffee".to_owned()),
        access: hosting.access,
        answered: Default::default(),
    });
    let listener = Tcp.listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = listener.local_addr().unwrap();
    let shown = std::sync::Arc::clone(&state);
    tokio::spawn(http::serve(listener, tls, shown, hosting.limits, std::future::pending()));
    TestServer { address, state, revocations, authority: open(), folder }
}
