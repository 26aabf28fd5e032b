//! A server that announces one cohort of 300 devices and shows each 30 of them a list of their own,
//! to obtain ten sums in place of one.
//!
//! Ten server endpoints of one session run the real exchange, with 30 real devices each. The
//! devices have the default consent of an owner.

#![allow(clippy::unwrap_used, missing_docs)]

#[path = "field/fleet.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared by several tests")]
mod fleet;
#[path = "field/watchdog.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared by several tests")]
mod watchdog;

use std::sync::Arc;
use std::time::Duration;

use deltafl::exchange::{CohortMember, Exchange as _, Round, TrainIndex};
use deltafl::params::Params;
use deltafl::question::{Ask, Query};
use deltafl::selection::Weighting;
use deltafl::terms::Terms;
use deltafl_device::{
    BlobCache, Consent, Defences, Device, DeviceData, ServerEndpoint, ServerTrust, Workers,
};
use deltafl_secagg::defences::{Defence, Defences as ServerDefences};
use deltafl_server::Deadlines;
use deltafl_server::exchange::Rules;
use fleet::{TestFederation, never, options, start_host};
use tokio::task::JoinHandle;

const EXPERIMENT: &str = r#"
    name = "split"
    rounds = 1
    cohort = 300
    data = { source = { kind = "logistic", devices = 300, seed = 3 }, split = { within = { train = 0.7 } } }
    model = { kind = "linear" }
    local = { steps = 4, batch = 8, learning_rate = 0.1 }
    algorithm = [{ kind = "fedavg" }]
"#;

const INVITED: u32 = 300;
const PART: u32 = 30;

/// Returns the number of devices in each sum that the server obtains.
async fn sums(defences: Defences) -> Vec<u64> {
    let test = Arc::new(TestFederation::new(EXPERIMENT));
    let (workers, cache) = (Arc::new(Workers::new(2)), Arc::<BlobCache>::default());
    // All endpoints have one session, so that their invitations are one invitation.
    let session = test.setup().introduction.session;
    let mut sums = Vec::new();
    for part in 0..INVITED / PART {
        let mut setup = test.setup();
        setup.introduction.session = session;
        let mut host = start_host(setup, &test.roster(&[])).await;
        let second = Duration::from_secs(1);
        let deadlines = Deadlines { setup: 60 * second, input: 60 * second, unmask: 60 * second };
        let rules = Rules { deadlines, cohort: PART as usize, ..test.rules() };
        let mut exchange = host.exchange(rules, never());
        let lying = ServerDefences::ALL.without(Defence::MembersOfCohort).without(Defence::ThresholdOfCohort);
        exchange.announce(INVITED, lying);
        let members = part * PART..(part + 1) * PART;
        let devices: Vec<JoinHandle<()>> = members
            .clone()
            .map(|k| {
                let k = test.devices()[k as usize];
                let server =
                    ServerEndpoint { address: host.address().to_string(), trust: ServerTrust::Loopback };
                let device = Device::new(server, test.credentials(k), Consent::default())
                    .sharing(Arc::clone(&workers), Arc::clone(&cache))
                    .with_backoff(options().backoff)
                    .with_defences(defences);
                let (trainer, data) = (test.trainer(), DeviceData::new(Arc::clone(&test.federation), k));
                tokio::spawn(async move { device.run(trainer, data).await.unwrap() })
            })
            .collect();
        while host.presence().1 < PART as usize {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let test = Arc::clone(&test);
        let summed = tokio::task::spawn_blocking(move || {
            let member = |device| CohortMember { device: TrainIndex(device), times: 1, dropped: false };
            let cohort: Vec<CohortMember> = members.map(member).collect();
            let round = Round { seed: 1, index: 0, cohort: &cohort, terms: Terms::PRIVATE, own: &[] };
            let whole = test.experiment.plan();
            let plan = whole.local().plan(0, &whole.tracks()[0]);
            let params = Params::from(vec![0.0; test.model.num_params()]);
            let query = Query::new(params, Ask::Update { weighting: Weighting::everyone(), plan });
            exchange.secure_sum(&round, &[query]).ok().map(|sums| sums[0].answered)
        });
        sums.extend(summed.await.unwrap());
        host.shut_down().await;
        devices.iter().for_each(JoinHandle::abort);
    }
    sums
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_invitation_to_300_devices_does_not_give_ten_sums_of_30() {
    let _limit = watchdog::start();
    let undefended = Defences::default()
        .without_protocol(Defence::MembersOfCohort)
        .without_protocol(Defence::ThresholdOfCohort);
    assert_eq!(sums(undefended).await, [u64::from(PART); 10], "without the defence");
    assert_eq!(sums(Defences::default()).await, Vec::<u64>::new());
}
