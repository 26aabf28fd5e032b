//! Many devices in one process over real sockets, for load tests, faults and demonstrations.
//!
//! Each device is a lightweight task with its own connection. The devices share the mapped data,
//! the trainer, a few threads and the download cache. Otherwise each behaves like a separate
//! device.

mod day;

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use deltafl::data::{Federation, FederationIndex};
use deltafl::trainer::LocalTrainer;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

pub use self::day::Day;
use crate::ServerEndpoint;
use crate::fault::{Faults, Misconduct};
use crate::{Backoff, BlobCache, Consent, Credentials, Device, DeviceData, NotAllowed, Workers};

/// A device of a swarm: its credentials, its server and its position in the data.
pub struct SimulatedDevice {
    /// The credentials of the device.
    pub credentials: Credentials,
    /// The server of the device.
    pub server: ServerEndpoint,
    /// The device's data in the federation.
    pub data: FederationIndex,
}

/// The configuration of a swarm.
#[derive(Clone)]
pub struct SwarmOptions {
    /// The agreement of the owners.
    pub consent: Consent,
    /// The injected faults.
    pub misconduct: Misconduct,
    /// The seed of the faults.
    pub seed: u64,
    /// The number of computing threads.
    pub threads: NonZeroUsize,
    /// The number of new connections per second. It limits the load on a server that has just
    /// started.
    pub arrivals: u32,
    /// The delays before reconnecting.
    pub backoff: Backoff,
    /// The times at which devices are online. They are always online if `None`.
    pub day: Option<Day>,
}

/// Running simulated devices. Dropping this disconnects every device.
pub struct Swarm(JoinSet<Result<(), NotAllowed>>);

impl Swarm {
    /// Starts the devices on the current runtime.
    ///
    /// # Panics
    /// If it is called outside of a tokio runtime.
    pub fn start(
        devices: Vec<SimulatedDevice>,
        trainer: &Arc<dyn LocalTrainer>,
        federation: &Arc<Federation>,
        options: &SwarmOptions,
    ) -> Self {
        let (workers, cache) = (Arc::new(Workers::new(options.threads.get())), Arc::<BlobCache>::default());
        let (mut swarm, held_out) = (JoinSet::new(), federation.held_out());
        let midnight = Instant::now();
        for (i, SimulatedDevice { credentials, server, data }) in (0..).zip(devices) {
            let (tell, presence) = watch::channel(options.day.is_none());
            let day = options.day.map(|day| day.for_device(options.seed, u64::from(data.0)));
            let device = Device::new(server, credentials, options.consent.clone())
                .sharing(Arc::clone(&workers), Arc::clone(&cache))
                .with_faults(Faults::new(options.misconduct, options.seed, u64::from(data.0)))
                .with_backoff(options.backoff)
                .with_presence(presence);
            let (trainer, data) = (Arc::clone(trainer), DeviceData::holding_out(federation, data, &held_out));
            let arrival = Duration::from_secs(1) / options.arrivals.max(1) * i;
            swarm.spawn(async move {
                sleep(arrival).await;
                let Some(day) = day else { return device.run(trainer, data).await };
                tokio::select! {
                    ended = device.run(trainer, data) => ended,
                    never = day.follow(midnight, tell) => match never {},
                }
            });
        }
        Self(swarm)
    }

    /// Waits until every device has ended because its consent refused the server. Returns the last
    /// reason, if any.
    pub async fn ended(&mut self) -> Option<NotAllowed> {
        let mut last = None;
        while let Some(ended) = self.0.join_next().await {
            if let Ok(Err(reason)) = ended {
                last = Some(reason);
            }
        }
        last
    }
}
