//! Params and questions that devices do not accept.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use deltafl::data::Examples;
use deltafl::exchange::{CohortMember, Exchange as _, Round, TrainIndex};
use deltafl::memory::AlgorithmState;
use deltafl::model::Score;
use deltafl::params::Params;
use deltafl::question::{Ask, Query};
use deltafl::selection::Weighting;
use deltafl::stream::Stream;
use deltafl::superquantile::private::{Bins, QuantileQuery};
use deltafl::terms::{Terms, TrackSchedule};
use deltafl::trainer::{LocalPlan, LocalTask, LocalTrainer, TrainerError, Work, Worker};
use deltafl_device::swarm::Swarm;
use deltafl_device::{Defence, Defences, Device, DeviceData, DeviceState, ServerEndpoint, ServerTrust};
use deltafl_server::Deadlines;
use deltafl_server::exchange::{NetworkExchange, Rules};
use deltafl_wire::proto::from_device;
use deltafl_wire::threat::{ServerBehaviour, ThreatAssumptions};
use deltafl_wire::{BlobId, proto};
use tokio::task::JoinHandle;

use super::fleet::{TestFederation, TestHost, never};
use super::hostile::{Heard, Hostile};
use super::{EXPERIMENT, device, experiment, later, options, roster, watchdog};

/// A server that shows a device of the test a roster, and knows no newest params yet.
async fn alone(test: &TestFederation) -> Hostile {
    Hostile::start(experiment(test), roster(test, later(4), 10)).await
}

/// Params of a model of the test, as the newest that a server names.
fn newest(test: &TestFederation, value: f32) -> (blake3::Hash, Bytes, proto::Blob) {
    let bytes: Bytes = value.to_le_bytes().repeat(test.model.num_params()).into();
    let id = BlobId::for_bytes(&bytes);
    (id.hash, bytes, id.to_wire())
}

#[tokio::test]
async fn a_device_fetches_the_newest_params_before_it_is_ready() {
    let _limit = watchdog::start();
    let test = TestFederation::new(EXPERIMENT);
    let mut server = alone(&test).await;
    let (hash, bytes, blob) = newest(&test, 0.5);
    server.hand_out(hash, bytes);
    server.say_newest(vec![blob]);
    let _running = device(&test, test.devices()[0], &server, DeviceState::default());
    loop {
        match server.next().await {
            Heard::Fetched(fetched) if fetched == hash => break,
            Heard::Said(from_device::Body::Ready(_)) => panic!("it is ready without them"),
            _ => {}
        }
    }
    assert!(server.ready().await.is_some());
}

#[tokio::test]
async fn newest_params_that_are_too_many_of_another_size_or_other_bytes_send_a_device_away() {
    let _limit = watchdog::start();
    let test = TestFederation::new(EXPERIMENT);
    let (hash, bytes, blob) = newest(&test, 0.5);
    let huge = proto::Blob { len: u64::MAX, ..blob.clone() };
    let short = proto::Blob { len: blob.len - 4, ..blob.clone() };
    let nameless = proto::Blob { hash: Bytes::from_static(b"short"), ..blob.clone() };
    for told in [vec![blob.clone(); 65], vec![huge], vec![short], vec![nameless]] {
        let mut server = alone(&test).await;
        server.hand_out(hash, bytes.clone());
        server.say_newest(told);
        let _running = device(&test, test.devices()[0], &server, DeviceState::default());
        assert_eq!(server.ready().await, None);
    }
    let mut server = alone(&test).await;
    server.hand_out(hash, newest(&test, 0.25).1);
    server.say_newest(vec![blob]);
    let _running = device(&test, test.devices()[0], &server, DeviceState::default());
    assert_eq!(server.ready().await, None, "other bytes than the hash says");
}

#[tokio::test]
async fn newest_params_that_are_never_there_do_not_keep_a_device_for_ever() {
    let _limit = watchdog::start();
    let test = TestFederation::new(EXPERIMENT);
    let mut server = alone(&test).await;
    server.say_newest(vec![newest(&test, 0.5).2]);
    let _running = device(&test, test.devices()[0], &server, DeviceState::default());
    assert!(server.ready().await.is_some(), "it goes on without them");
}

/// Asks ten devices for a sum of their updates under these rules; how many answered.
async fn asked(rules: impl FnOnce(Rules) -> Rules, plan: impl FnOnce(LocalPlan) -> LocalPlan) -> Option<u64> {
    let test = TestFederation::new(EXPERIMENT);
    let mut host = test.host().await;
    let _swarm = test.swarm(host.address(), &options());
    let second = Duration::from_secs(1);
    let deadlines = Deadlines { setup: 20 * second, input: 20 * second, unmask: 20 * second };
    let mut exchange = host.exchange(rules(Rules { deadlines, cohort: 10, ..test.rules() }), never());
    let whole = test.experiment.plan();
    let plan = plan(whole.local().plan(0, &whole.tracks()[0]));
    let summed = tokio::task::spawn_blocking(move || {
        exchange.reachable().unwrap();
        let cohort: Vec<CohortMember> = (0..10)
            .map(|device| CohortMember { device: TrainIndex(device), times: 1, dropped: false })
            .collect();
        let round = Round { seed: 1, index: 0, cohort: &cohort, terms: Terms::PRIVATE, own: &[] };
        let params = Params::from(vec![0.0; test.model.num_params()]);
        let query = Query::new(params, Ask::Update { weighting: Weighting::everyone(), plan });
        exchange.secure_sum(&round, &[query]).ok().map(|sums| sums[0].answered)
    });
    let answered = summed.await.unwrap();
    host.shut_down().await;
    answered
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn devices_stay_away_from_rounds_that_do_not_hold_against_a_server_that_lies() {
    let _limit = watchdog::start();
    let offered = |guard: ThreatAssumptions| asked(move |rules| Rules { guard, ..rules }, |plan| plan);
    assert_eq!(offered(ThreatAssumptions::default()).await, Some(10));
    assert_eq!(
        offered(ThreatAssumptions { adversary: ServerBehaviour::Curious, ..ThreatAssumptions::default() })
            .await,
        None
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_question_without_end_is_not_begun() {
    let _limit = watchdog::start();
    let endless = |plan| LocalPlan { work: Work::Epochs(u32::MAX), ..plan };
    assert_eq!(asked(|rules| rules, endless).await, None);
    let vast = |plan| LocalPlan { batch: 1 << 20, ..plan };
    assert_eq!(asked(|rules| rules, vast).await, None);
}

/// Devices of an honest fleet, asked by a server that can ask anything.
struct Asking {
    test: TestFederation,
    host: Option<TestHost>,
    exchange: Option<NetworkExchange>,
    _swarm: Swarm,
}

impl Asking {
    async fn start() -> Self {
        let test = TestFederation::new(EXPERIMENT);
        let mut host = test.host().await;
        let swarm = test.swarm(host.address(), &options());
        let exchange = host.exchange(Rules { cohort: 10, ..test.rules() }, never());
        Self { test, host: Some(host), exchange: Some(exchange), _swarm: swarm }
    }

    /// The sum over these devices of their updates at w = 0 in a round, under each of these
    /// thresholds; how many answered.
    async fn updates(&mut self, round: u64, devices: std::ops::Range<u32>, etas: &[f64]) -> Option<u64> {
        // An honest engine would not ask anybody twice: this one does not ask it whom to ask.
        let host = self.host.as_ref().unwrap();
        while host.presence().1 < self.test.devices().len() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let mut exchange = self.exchange.take().unwrap();
        let params = Params::from(vec![0.0; self.test.model.num_params()]);
        let whole = self.test.experiment.plan();
        let plan = whole.local().plan(0, &whole.tracks()[0]);
        let etas = etas.to_vec();
        let summed = tokio::task::spawn_blocking(move || {
            let cohort: Vec<CohortMember> = devices
                .map(|device| CohortMember { device: TrainIndex(device), times: 1, dropped: false })
                .collect();
            let round = Round { seed: 1, index: round, cohort: &cohort, terms: Terms::PRIVATE, own: &[] };
            let query = |&eta: &f64| {
                let ask = Ask::Update { weighting: Weighting::tail(eta), plan };
                Query::new(params.clone(), ask)
            };
            let queries: Vec<Query> = etas.iter().map(query).collect();
            let answered = exchange.secure_sum(&round, &queries).ok().map(|sums| sums[0].answered);
            (exchange, answered)
        });
        let (exchange, answered) = summed.await.unwrap();
        self.exchange = Some(exchange);
        answered
    }

    async fn stop(mut self) {
        self.host.take().unwrap().shut_down().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_question_again_without_one_device_gets_no_answer() {
    let _limit = watchdog::start();
    let mut server = Asking::start().await;
    assert_eq!(server.updates(0, 0..10, &[0.0]).await, Some(10));
    // Answered, the difference of the two sums would be the update of the last device.
    assert_eq!(server.updates(0, 0..9, &[0.0]).await, None);
    // Nor under another threshold, which would tell the devices between the two.
    assert_eq!(server.updates(0, 0..10, &[0.5]).await, None);
    assert_eq!(server.updates(1, 0..10, &[0.0]).await, Some(10), "the next round is another question");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cohort_is_not_taken_apart_by_many_thresholds_in_one_question() {
    let _limit = watchdog::start();
    let mut server = Asking::start().await;
    let many: Vec<f64> = (0..64).map(|n| f64::from(n) / 16.0).collect();
    assert_eq!(server.updates(0, 0..10, &many).await, None);
    assert_eq!(server.updates(0, 0..10, &many[..2]).await, None);
    assert_eq!(server.updates(0, 0..10, &many[..1]).await, Some(10));
    server.stop().await;
}

/// Counts the updates that devices compute, and their forward passes.
struct CountingTrainer {
    trainer: Arc<dyn LocalTrainer>,
    updates: AtomicUsize,
    passes: AtomicUsize,
}

struct CountingWorker<'a> {
    worker: Box<dyn Worker + 'a>,
    updates: &'a AtomicUsize,
    passes: &'a AtomicUsize,
}

impl LocalTrainer for CountingTrainer {
    fn num_params(&self) -> usize {
        self.trainer.num_params()
    }

    fn init(&self, stream: &mut Stream, params: &mut [f32]) {
        self.trainer.init(stream, params);
    }

    fn worker(&self) -> Box<dyn Worker + '_> {
        let (updates, passes) = (&self.updates, &self.passes);
        Box::new(CountingWorker { worker: self.trainer.worker(), updates, passes })
    }
}

impl Worker for CountingWorker<'_> {
    fn load(&mut self, params: &[f32]) {
        self.passes.fetch_add(1, Ordering::Relaxed);
        self.worker.load(params);
    }

    fn score(&mut self, examples: &Examples<'_>, block: Range<usize>) -> Result<Score, TrainerError> {
        self.worker.score(examples, block)
    }

    fn update(
        &mut self,
        task: &LocalTask<'_>,
        own: &mut AlgorithmState,
        stream: &mut Stream,
    ) -> Result<&[f32], TrainerError> {
        self.updates.fetch_add(1, Ordering::Relaxed);
        self.worker.update(task, own, stream)
    }
}

/// Asks ten devices. Returns the sum of all entries of the sum, and the trainer of the devices.
async fn ask_counting(defences: Defences, terms: Terms, ask: Ask) -> (u64, Arc<CountingTrainer>) {
    let test = TestFederation::new(EXPERIMENT);
    let mut host = test.host().await;
    let trainer = Arc::new(CountingTrainer {
        trainer: test.trainer(),
        updates: AtomicUsize::new(0),
        passes: AtomicUsize::new(0),
    });
    let devices: Vec<JoinHandle<()>> = test
        .devices()
        .into_iter()
        .map(|k| {
            let server = ServerEndpoint { address: host.address().to_string(), trust: ServerTrust::Loopback };
            let device = Device::new(server, test.credentials(k), options().consent).with_defences(defences);
            let data = DeviceData::new(Arc::clone(&test.federation), k);
            let trainer = Arc::clone(&trainer) as Arc<dyn LocalTrainer>;
            tokio::spawn(async move { device.run(trainer, data).await.unwrap() })
        })
        .collect();
    let mut exchange = host.exchange(Rules { cohort: 10, ..test.rules() }, never());
    let params = Params::from(vec![0.0; test.model.num_params()]);
    let summed = tokio::task::spawn_blocking(move || {
        exchange.reachable().unwrap();
        let cohort: Vec<CohortMember> = (0..10)
            .map(|device| CohortMember { device: TrainIndex(device), times: 1, dropped: false })
            .collect();
        let round = Round { seed: 1, index: 0, cohort: &cohort, terms, own: &[] };
        let sums = exchange.secure_sum(&round, &[Query::new(params, ask)]).unwrap();
        assert_eq!(sums[0].answered, 10);
        sums[0].values.iter().sum()
    });
    let sum = summed.await.unwrap();
    host.shut_down().await;
    devices.iter().for_each(JoinHandle::abort);
    (sum, trainer)
}

/// Asks ten devices for their updates above a loss that none of them has. Returns the size of the
/// tail and the number of devices that train.
async fn ask_outside_of_the_tail(defences: Defences) -> (u64, usize) {
    let test = TestFederation::new(EXPERIMENT);
    let whole = test.experiment.plan();
    let plan = whole.local().plan(0, &whole.tracks()[0]);
    let ask = Ask::Update { weighting: Weighting::tail(1e9), plan };
    let (sum, trainer) = ask_counting(defences, Terms::PRIVATE, ask).await;
    (sum, trainer.updates.load(Ordering::Relaxed))
}

/// Asks ten devices for the losses of one of ten tracks among which they are divided. Returns the
/// number of devices that serve the track, and the number of devices that compute their loss.
async fn ask_one_of_ten_tracks(defences: Defences) -> (u64, usize) {
    let bins = Bins::new(0.0, 8.0, 2).unwrap();
    let terms = Terms { schedule: TrackSchedule::Apart, tracks: 10, ..Terms::PRIVATE };
    let ask = Ask::Quantile(QuantileQuery::Histogram(bins));
    let (sum, trainer) = ask_counting(defences, terms, ask).await;
    (sum, trainer.passes.load(Ordering::Relaxed))
}

/// A device outside of the tail that does not train answers early, and the server learns that its
/// loss is below η.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_work_of_a_device_does_not_depend_on_its_loss() {
    let _limit = watchdog::start();
    assert_eq!(ask_outside_of_the_tail(Defences::default().without(Defence::EqualWork)).await, (0, 0));
    assert_eq!(ask_outside_of_the_tail(Defences::default()).await, (0, 10));
}

/// A device of another track that does not compute its loss answers early, and the server learns
/// that it does not serve the track.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_work_of_a_device_does_not_depend_on_its_track() {
    let _limit = watchdog::start();
    let undefended = Defences::default().without(Defence::EqualWork);
    let (devices, computed) = ask_one_of_ten_tracks(undefended).await;
    assert!(devices < 10 && computed == devices as usize, "{computed} of {devices}");
    let (devices, computed) = ask_one_of_ten_tracks(Defences::default()).await;
    assert!(devices < 10 && computed == 10, "{computed}");
}
