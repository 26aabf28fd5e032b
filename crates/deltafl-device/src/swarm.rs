//! Many devices in one process, over real sockets: for load, faults and demonstrations.
//!
//! Each device is a light task with a connection of its own. They share the mapped data, the trainer, a few threads to
//! compute on, and the memory of what they fetched; everything else a device does as if it were alone.

use std::sync::Arc;
use std::time::Duration;

use deltafl::data::{Federation, FederationIndex};
use deltafl::trainer::LocalTrainer;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::Server;
use crate::fault::{Faults, Misconduct};
use crate::{Backoff, BlobCache, Consent, Credentials, Data, Device, NotAllowed, Workers};

/// A device of a swarm: who it is, which server it knows, and its place in the data.
pub struct SimulatedDevice {
    /// Who it is.
    pub credentials: Credentials,
    /// Its server.
    pub server: Server,
    /// Its device in the federation.
    pub data: FederationIndex,
}

/// How a swarm behaves.
#[derive(Clone)]
pub struct SwarmOptions {
    /// What the owners agreed to.
    pub consent: Consent,
    /// What goes wrong.
    pub misconduct: Misconduct,
    /// From which faults are drawn.
    pub seed: u64,
    /// Threads to compute on.
    pub threads: usize,
    /// New connections per second: a server that has just started is not met by everybody at once.
    pub arrivals: u32,
    /// Waits before connecting again.
    pub backoff: Backoff,
}

/// Simulated devices that run. Dropping this takes every device off the network.
pub struct Swarm(JoinSet<Result<(), NotAllowed>>);

impl Swarm {
    /// Starts the devices, on the present runtime.
    pub fn start(
        devices: Vec<SimulatedDevice>,
        trainer: &Arc<dyn LocalTrainer>,
        federation: &Arc<Federation>,
        options: &SwarmOptions,
    ) -> Self {
        let (workers, cache) = (Arc::new(Workers::new(options.threads)), Arc::<BlobCache>::default());
        let mut swarm = JoinSet::new();
        for (i, SimulatedDevice { credentials, server, data }) in (0..).zip(devices) {
            let device = Device::connect(server, credentials, options.consent.clone())
                .sharing(Arc::clone(&workers), Arc::clone(&cache))
                .with_faults(Faults::new(options.misconduct, options.seed, u64::from(data.0)))
                .with_backoff(options.backoff);
            let (trainer, data) = (Arc::clone(trainer), Data::of(Arc::clone(federation), data));
            let arrival = Duration::from_secs(1) / options.arrivals.max(1) * i;
            swarm.spawn(async move {
                sleep(arrival).await;
                device.serve(trainer, data).await
            });
        }
        Self(swarm)
    }

    /// Waits until every device has ended, because its own consent refused the server. Returns the last reason, if any.
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
