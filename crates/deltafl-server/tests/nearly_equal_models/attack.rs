//! A server that asks any question, and its devices.

use std::sync::Arc;
use std::time::Duration;

use super::fleet::{TestFederation, TestHost, never, options, start_host};
use deltafl::device::{Member, UpdateRandomness, stream_key};
use deltafl::exchange::{CohortMember, CohortSum, Exchange as _, Round, TrainIndex};
use deltafl::memory::AlgorithmState;
use deltafl::params::Params;
use deltafl::question::{Ask, Query};
use deltafl::selection::Weighting;
use deltafl::terms::Terms;
use deltafl::trainer::{LocalPlan, Work};
use deltafl_device::{
    BlobCache, Consent, Defence, Defences, Device, DeviceData, ServerEndpoint, ServerTrust, Workers,
};
use deltafl_server::exchange::NetworkExchange;
use deltafl_server::serve::Setup;
use tokio::task::JoinHandle;

/// Forty devices that train, with examples that they hold out.
pub(super) const EXPERIMENT: &str = r#"
    name = "nearly-equal"
    rounds = 2
    cohort = 40
    data = { source = { kind = "logistic", devices = 40, seed = 3 }, split = { within = { train = 0.7 } } }
    model = { kind = "linear" }
    local = { steps = 1, batch = 1, learning_rate = 0.1 }
    algorithm = [{ kind = "fedavg" }, { kind = "delta-fl", theta = 0.5, quantile = "histogram" }]
"#;

pub(super) const DEVICES: u32 = 40;

/// One step on one example: the update of a device is the gradient of that example.
pub(super) const PLAN: LocalPlan = LocalPlan {
    work: Work::Steps(1),
    batch: 1,
    learning_rate: 0.1,
    l2: 0.0,
    proximal: 0.0,
    correction: None,
};

/// What devices agree to: their default, or nothing of the defences against these attacks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Owners {
    Default,
    Undefended,
}

/// A server that asks whatever it likes, and its devices.
pub(super) struct Attack {
    pub(super) test: TestFederation,
    pub(super) host: Option<TestHost>,
    pub(super) exchange: Option<NetworkExchange>,
    pub(super) devices: Vec<JoinHandle<()>>,
}

/// One question of the server.
#[derive(Clone)]
pub(super) struct Asked {
    pub(super) seed: u64,
    pub(super) round: u64,
    pub(super) terms: Terms,
    /// The cohort is every device but these.
    pub(super) without: Vec<u32>,
    pub(super) queries: Vec<Query>,
}

impl Asked {
    pub(super) fn new(round: u64, queries: Vec<Query>) -> Self {
        Self { seed: 1, round, terms: Terms::PRIVATE, without: Vec::new(), queries }
    }

    pub(super) fn without(self, device: u32) -> Self {
        Self { without: vec![device], ..self }
    }
}

impl Attack {
    pub(super) async fn start(owners: Owners) -> Self {
        Self::start_with(owners, Consent::default()).await
    }

    pub(super) async fn start_with(owners: Owners, consent: Consent) -> Self {
        // The attacks ask for the gradient of one example, which the default consent refuses.
        Self::start_exactly(owners, Consent { min_batch: 1, min_examples: 1, ..consent }).await
    }

    pub(super) async fn start_exactly(owners: Owners, consent: Consent) -> Self {
        let undefended = owners == Owners::Undefended;
        let consent = Consent { reproducible: undefended, ..consent };
        let defences = match owners {
            Owners::Default => Defences::default(),
            Owners::Undefended => {
                let attacked = [Defence::OncePerRound, Defence::OneTrackPerDevice, Defence::OneRoundCounter];
                attacked.into_iter().fold(Defences::default(), Defences::without)
            }
        };
        Self::start_devices(defences, consent).await
    }

    /// Starts devices with these defences, which give the gradient of one example.
    pub(super) async fn start_without(defences: Defences, consent: Consent) -> Self {
        Self::start_devices(defences, Consent { min_batch: 1, min_examples: 1, ..consent }).await
    }

    async fn start_devices(defences: Defences, consent: Consent) -> Self {
        let test = TestFederation::new(EXPERIMENT);
        assert_eq!(test.devices().len(), DEVICES as usize);
        let mut host = test.host().await;
        let exchange = Some(host.exchange(test.rules(), never()));
        let (workers, cache) = (Arc::new(Workers::new(2)), Arc::<BlobCache>::default());
        let device = |k| {
            let server = ServerEndpoint { address: host.address().to_string(), trust: ServerTrust::Loopback };
            let device = Device::new(server, test.credentials(k), consent.clone())
                .sharing(Arc::clone(&workers), Arc::clone(&cache))
                .with_backoff(options().backoff)
                .with_defences(defences);
            let (trainer, data) = (test.trainer(), DeviceData::new(Arc::clone(&test.federation), k));
            tokio::spawn(async move { device.run(trainer, data).await.unwrap() })
        };
        let devices = test.devices().into_iter().map(device).collect();
        Self { test, host: Some(host), exchange, devices }
    }

    /// Ends the server and starts another one at the same address: another session, which continues
    /// the numbers of the first.
    pub(super) async fn begin_another_session(&mut self) {
        let setup = self.exchange.as_ref().unwrap().last_setup();
        self.begin_another_session_after(setup).await;
    }

    /// Starts another session whose first key set-up has the number after this one.
    pub(super) async fn begin_another_session_after(&mut self, setup: u64) {
        let host = self.host.take().unwrap();
        let address = host.address();
        self.exchange = None;
        host.shut_down().await;
        let endpoint = Setup { address, ..self.test.setup() };
        let mut host = start_host(endpoint, &self.test.roster(&[])).await;
        self.exchange = Some(host.exchange(self.test.rules(), never()).after_setup(setup));
        self.host = Some(host);
    }

    /// The sums of a question; `None` where the devices do not answer.
    pub(super) async fn ask(&mut self, asked: Asked) -> Option<Vec<CohortSum>> {
        self.ask_in_run(0, asked).await
    }

    pub(super) async fn ask_in_run(&mut self, run: u64, asked: Asked) -> Option<Vec<CohortSum>> {
        // An honest engine would not ask anybody twice: this one does not ask it whom to ask.
        while self.host.as_ref().unwrap().presence().1 < DEVICES as usize {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        self.ask_now(run, asked).await
    }

    /// Asks without waiting until all devices are ready.
    pub(super) async fn ask_those_present(&mut self, asked: Asked) -> Option<Vec<CohortSum>> {
        self.ask_now(0, asked).await
    }

    pub(super) async fn ask_now(&mut self, run: u64, asked: Asked) -> Option<Vec<CohortSum>> {
        let mut exchange = self.exchange.take().unwrap();
        let summed = tokio::task::spawn_blocking(move || {
            let cohort: Vec<CohortMember> = (0..DEVICES)
                .filter(|device| !asked.without.contains(device))
                .map(|device| CohortMember { device: TrainIndex(device), times: 1, dropped: false })
                .collect();
            let Asked { seed, round: index, terms, queries, .. } = asked;
            exchange.set_run(run);
            let sums =
                exchange.secure_sum(&Round { seed, index, cohort: &cohort, terms, own: &[] }, &queries);
            (exchange, sums.ok())
        });
        let (exchange, sums) = summed.await.unwrap();
        self.exchange = Some(exchange);
        sums
    }

    /// Each device's loss at w and its update from there in a reproducible round, as only the
    /// device should know them.
    pub(super) fn secrets(&self, w: &Params) -> Vec<(f64, Vec<u64>)> {
        let (trainer, federation) = (self.test.trainer(), &self.test.federation);
        let mut worker = trainer.worker();
        let key = Round {
            seed: 1,
            index: 0,
            cohort: &[CohortMember { device: TrainIndex(0), times: 1, dropped: false }; DEVICES as usize],
            terms: Terms::PRIVATE,
            own: &[],
        }
        .key();
        let of_device = |k| {
            let member = Member {
                examples: federation.examples(k),
                key: stream_key(federation.id(k)),
                randomness: UpdateRandomness::Reproducible,
                held_out: None,
                trains_always: false,
            };
            let query = update(w.clone(), Weighting::everyone());
            let mut sum = vec![0; query.answer_len()];
            let loss = member.loss(w, &mut *worker).unwrap();
            member
                .answer(&key, &query, Some(loss), &mut *worker, &mut AlgorithmState::default(), &mut sum)
                .unwrap();
            (loss, sum)
        };
        self.test.devices().into_iter().map(of_device).collect()
    }

    pub(super) fn model(&self) -> Params {
        let entries = (0..self.test.model.num_params()).map(|i| 0.01 * ((i * 7) % 11) as f32);
        Params::from(entries.collect::<Vec<f32>>())
    }

    /// Asks something in another round, so that the next question is asked under new keys, of
    /// another cohort.
    pub(super) async fn let_the_keys_go(&mut self) {
        let asked = Asked::new(1000, vec![update(self.model(), Weighting::everyone())]);
        self.ask(asked).await.unwrap();
    }

    /// Ends the current keys, so that the next question goes to another cohort.
    pub(super) fn end_setup(&mut self) {
        self.exchange.as_mut().unwrap().end_setup();
    }

    pub(super) async fn stop(mut self) {
        self.host.take().unwrap().shut_down().await;
        self.devices.iter().for_each(JoinHandle::abort);
    }
}

pub(super) fn update(params: Params, weighting: Weighting) -> Query {
    Query::new(params, Ask::Update { weighting, plan: PLAN })
}
