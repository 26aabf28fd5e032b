//! A server that dies in the middle of a round: the next one goes on with it.
//!
//! The server is this test program itself, started again to play one (`play_a_server`); it aborts
//! where it is told to. The devices stay with the test.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "field/fleet.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared by several tests")]
mod fleet;
#[path = "../../deltafl/tests/exchanges/intercepted.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared by several tests")]
mod intercepted;
#[path = "field/watchdog.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared by several tests")]
mod watchdog;

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use deltafl::exchange::{Exchange, Reachable, Simulation};
use deltafl::question::Ask;
use deltafl::trainer::Sgd;
use deltafl::training::{Event, Observer as _, State, train_with};
use deltafl_data::run_folder::RunFolder;
use deltafl_server::Deadlines;
use deltafl_server::committer::{RoundCommitter, RunStore};
use deltafl_server::exchange::Rules;
use deltafl_server::live::{About, Live};
use deltafl_server::serve::{Host, PhasePurpose, Setup};
use deltafl_server::store::{Store, StoreSettings};
use deltafl_wire::identity::FederationName;
use deltafl_wire::proto::federation_client::FederationClient;
use deltafl_wire::{VERSION, proto};
use fleet::{Records, TestFederation, never, options, start_host};
use intercepted::Intercepted;
use tonic::transport::Endpoint;

const EXPERIMENT: &str = r#"
    name = "resume"
    rounds = 4
    cohort = 10
    data = { source = { kind = "glyphs", devices = 40, seed = 3, train = 1.0 } }
    model = { kind = "linear" }
    local = { steps = 2, batch = 10, learning_rate = 0.1 }
    algorithm = [{ kind = "fedavg" }, { kind = "delta-fl", theta = 0.5, quantile = "histogram" }]
"#;

/// The round in which servers die.
const ROUND: u64 = 2;

/// Where a server dies in that round.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Dies {
    Never,
    /// Before it asks for the updates, with the sums of the losses behind it.
    BeforeUpdates,
    /// When the first device has answered for its update.
    InUpdates,
    /// When the first device has answered for its loss.
    InLosses,
    /// With all sums of the round, before it is committed.
    BeforeCommit,
}

impl Dies {
    const ALL: [Self; 5] =
        [Self::Never, Self::BeforeUpdates, Self::InUpdates, Self::InLosses, Self::BeforeCommit];

    fn named(name: &str) -> Self {
        Self::ALL.into_iter().find(|dies| format!("{dies:?}") == name).unwrap()
    }
}

fn federation() -> FederationName {
    "resume".parse().unwrap()
}

fn server(folder: &Path, address: SocketAddr, dies: Dies) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "play_a_server", "--ignored", "--nocapture", "--test-threads=1"])
        .env("PLAY_FOLDER", folder)
        .env("PLAY_ADDRESS", address.to_string())
        .env("PLAY_DIES", format!("{dies:?}"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Where a server that has just been started listens.
fn address(server: &mut Child) -> SocketAddr {
    let lines = BufReader::new(server.stdout.take().unwrap()).lines().map_while(Result::ok);
    let told = lines.into_iter().find_map(|line| line.strip_prefix("listening on ").map(str::to_owned));
    told.unwrap().parse().unwrap()
}

#[test]
#[ignore = "the other tests start it as a process of its own"]
fn play_a_server() {
    let _limit = watchdog::start();
    let told = |name: &str| std::env::var(name).unwrap();
    let (folder, dies) = (std::path::PathBuf::from(told("PLAY_FOLDER")), Dies::named(&told("PLAY_DIES")));
    let test = TestFederation::new(EXPERIMENT);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut setup = Setup { address: told("PLAY_ADDRESS").parse().unwrap(), ..test.setup() };
    // Each process has a session of its own: devices join no round of a session twice.
    getrandom::fill(&mut setup.introduction.session).unwrap();
    let (store, lease, mut host) = runtime.block_on(async {
        let store = Store::open(&StoreSettings::in_folder(&folder)).await.unwrap();
        store.create_federation(&federation()).await.unwrap();
        let lease = store.lead(&federation(), "child").await.unwrap();
        (store, lease, start_host(setup, &test.roster(&[])).await)
    });
    println!("\nlistening on {}", host.address());
    let about = About {
        federation: federation().to_string(),
        experiment: test.experiment.name().to_owned(),
        model: "linear".to_owned(),
        open: false,
        rounds: 4,
        cohort: 10,
        tracks: test.experiment.labels(),
    };
    let run = RunStore::new(store, federation(), Live::new(about), &test.experiment, None);
    let out = folder.join("run");
    let begun = out.join("experiment.toml").exists();
    let opened = if begun { RunFolder::resume } else { RunFolder::create };
    let mut folder = opened(&out, &test.experiment).unwrap();
    let rules = Rules { come_back: Duration::from_secs(120), deadlines: patient(), ..test.rules() };
    let saved = run.begin(runtime.handle(), &mut folder, 1, test.model.num_params()).unwrap();
    let exchange = {
        let _entered = runtime.enter();
        host.exchange(rules, never())
    };
    let mut exchange =
        Intercepted::new(exchange.kept_in(run.journal(&lease))).before_sum(move |round, queries| {
            let updates = queries.iter().any(|query| matches!(query.ask, Ask::Update { .. }));
            if dies == Dies::BeforeUpdates && round.index == ROUND && updates {
                std::process::abort();
            }
        });
    runtime.spawn(die_in_a_question(host.status(), dies));
    let stop = never();
    let mut committer = RoundCommitter::new(&run, &lease, &host, runtime.handle(), &mut folder, &stop);
    let options = committer.train_options();
    let mut observer = |event: Event<'_>| match event {
        Event::RoundFinished { records } if dies == Dies::BeforeCommit && records[0].round == ROUND => {
            std::process::abort()
        }
        event => committer.handle(event),
    };
    let plan = test.experiment.plan();
    let mut state = saved.unwrap_or_else(|| plan.start(1, &Sgd::new(&*test.model)));
    exchange.inner.resume(&state).unwrap();
    assert_eq!(runtime.block_on(newest(&host, &test)), hashes(&state), "as the store has them");
    train_with(&mut exchange, &plan, &mut state, options, &mut observer).unwrap();
    assert_eq!(runtime.block_on(newest(&host, &test)), hashes(&state), "as the last round left them");
}

/// What a device that comes now would learn before it can be drawn.
async fn newest(host: &Host, test: &TestFederation) -> Vec<blake3::Hash> {
    let endpoint = Endpoint::from_shared(format!("http://{}", host.address())).unwrap();
    let mut client = FederationClient::new(endpoint.connect().await.unwrap());
    let device = test.federation.id(test.devices()[0]).to_owned();
    let hello = proto::from_device::Body::Hello(proto::Hello { version: VERSION, device });
    let outgoing = tokio_stream::once(proto::FromDevice { body: Some(hello) });
    let _attends = client.attend(outgoing).await.unwrap();
    let told = client.newest(proto::NewestRequest { held: Vec::new() }).await.unwrap().into_inner();
    told.missing.iter().map(|blob| deltafl_wire::hash(&blob.hash).unwrap()).collect()
}

/// The params of a state, each vector once.
fn hashes(state: &State) -> Vec<blake3::Hash> {
    let mut hashes: Vec<_> = state.tracks.iter().map(|track| track.params.hash()).collect();
    hashes.dedup();
    hashes
}

/// Deadlines that a machine that stands still for a minute does not miss: here devices are to be
/// lost by a kill alone. With the usual half minute for a key set-up, devices vanish from the round
/// in which both ends are stopped for longer than that.
fn patient() -> Deadlines {
    let long = Duration::from_secs(600);
    Deadlines { setup: long, input: long, unmask: long }
}

/// Aborts this process when a device has answered a question of the round.
async fn die_in_a_question(
    mut status: tokio::sync::watch::Receiver<deltafl_server::serve::Status>,
    dies: Dies,
) {
    let purpose = match dies {
        Dies::InUpdates => PhasePurpose::Updates,
        Dies::InLosses => PhasePurpose::Losses,
        _ => return,
    };
    let answers = status.wait_for(|status| {
        (status.round, status.purpose, status.phase) == (ROUND, purpose, "masked answers")
            && status.answered > 0
    });
    if answers.await.is_ok() {
        std::process::abort();
    }
}

/// Lets a server die, and another one train to the end: the committed state, and the cohort and
/// drop-outs of each round.
async fn trained_by_two(dies: Dies) -> (State, Vec<(u64, u64)>) {
    let folder = tempfile::tempdir().unwrap();
    let test = TestFederation::new(EXPERIMENT);
    let mut first = server(folder.path(), SocketAddr::from(([127, 0, 0, 1], 0)), dies);
    let address = address(&mut first);
    let _swarm = test.swarm(address, &options());
    let ended = |mut child: Child| tokio::task::spawn_blocking(move || child.wait().unwrap());
    assert!(!ended(first).await.unwrap().success(), "it died");
    let store = Store::open(&StoreSettings::in_folder(folder.path())).await.unwrap();
    let committed = store.state(&federation(), 1).await.unwrap().unwrap();
    assert_eq!(committed.round, ROUND, "in the middle of the round");
    assert!(!store.slots(&federation(), 1, ROUND).await.unwrap().is_empty(), "which was under way");
    assert!(ended(server(folder.path(), address, Dies::Never)).await.unwrap().success());
    let rounds = store.rounds(&federation(), 1, 0, 10).await.unwrap();
    assert!(rounds.iter().map(|round| round.round).eq(0..4), "every round is committed once");
    for round in 0..4 {
        assert!(store.slots(&federation(), 1, round).await.unwrap().is_empty(), "nothing is left of {round}");
    }
    let told = rounds.iter().map(|round| &round.lines[0].record);
    let told = told.map(|record| (record.cohort, record.dropped)).collect();
    (store.state(&federation(), 1).await.unwrap().unwrap(), told)
}

/// The simulation in which the cohort of the round is one of devices that were not drawn for it
/// first.
fn simulated_with_another_cohort(test: &TestFederation) -> State {
    let trainer = Sgd::new(&*test.model);
    let threads = NonZeroUsize::new(2);
    let inner = Simulation::with_threads(&trainer, &test.federation, threads).unwrap();
    let draw = deltafl::cohort::Draw { seed: 1, round: ROUND, attempt: 0 };
    let drawn = test.experiment.plan().sampling().cohort(inner.devices(), draw, &Reachable::Everyone);
    let mut reachable = vec![true; inner.devices()];
    drawn.iter().for_each(|drawn| reachable[drawn.device.place()] = false);
    let mut rounds = 0..;
    let mut exchange = Intercepted::new(inner).on_reachable(move || match rounds.next() {
        Some(ROUND) => Some(Reachable::Some(reachable.clone())),
        _ => Some(Reachable::Everyone),
    });
    test.train(&mut exchange, &mut Records::default()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_killed_between_two_sums_is_followed_to_the_bits_of_the_simulation() {
    let _limit = watchdog::start();
    let expected = TestFederation::new(EXPERIMENT).simulate(&mut Records::default());
    for dies in [Dies::BeforeUpdates, Dies::BeforeCommit] {
        let (state, told) = trained_by_two(dies).await;
        assert_eq!(told, [(10, 0); 4], "{dies:?}: nobody was asked twice");
        assert_eq!(state, expected, "{dies:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_round_killed_in_a_sum_goes_on_with_devices_that_were_not_asked() {
    let _limit = watchdog::start();
    let expected = simulated_with_another_cohort(&TestFederation::new(EXPERIMENT));
    for dies in [Dies::InLosses, Dies::InUpdates] {
        let (state, told) = trained_by_two(dies).await;
        assert_eq!(told, [(10, 0); 4], "{dies:?}: nobody was asked twice");
        assert_eq!(state, expected, "{dies:?}");
    }
}
