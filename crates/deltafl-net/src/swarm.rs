//! Many devices in one process, over real sockets: for load, faults and demonstrations.
//!
//! Each device is a light task with a connection of its own. They share the mapped data, the model's code, a few threads to
//! compute on, and the memory of what they fetched; everything else a device does as if it were alone.

use std::sync::Arc;
use std::time::Duration;

use deltafl::data::Federation;
use deltafl::model::Model;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::device::{Backoff, Consent, Credentials, Data, Device, Library, NotAllowed, Workers};
use crate::fault::{Faults, Misconduct};
use crate::link::Server;

/// A device of a swarm: who it is, which server it knows, and its place in the data.
pub struct Bee {
    /// Who it is.
    pub credentials: Credentials,
    /// Its server.
    pub server: Server,
    /// Its device in the federation.
    pub data: u32,
}

/// How a swarm behaves.
#[derive(Clone)]
pub struct Conduct {
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

/// A swarm at large. Dropping it takes every device off the network.
pub struct Swarm(JoinSet<Result<(), NotAllowed>>);

impl Swarm {
    /// Sends the devices out, on the present runtime.
    pub fn release(
        bees: Vec<Bee>,
        model: &Arc<dyn Model>,
        federation: &Arc<Federation>,
        conduct: &Conduct,
    ) -> Self {
        let (workers, library) = (Arc::new(Workers::new(conduct.threads)), Arc::<Library>::default());
        let mut swarm = JoinSet::new();
        for (i, bee) in (0..).zip(bees) {
            let device = Device::connect(bee.server, bee.credentials, conduct.consent.clone())
                .sharing(Arc::clone(&workers), Arc::clone(&library))
                .with_faults(Faults::new(conduct.misconduct, conduct.seed, u64::from(bee.data)))
                .with_backoff(conduct.backoff);
            let (model, data) = (Arc::clone(model), Data::of(Arc::clone(federation), bee.data));
            let arrival = Duration::from_secs(1) / conduct.arrivals.max(1) * i;
            swarm.spawn(async move {
                sleep(arrival).await;
                device.serve(model, data).await
            });
        }
        Self(swarm)
    }

    /// Waits until no device is left: each was refused by its own owner's consent. The last reason, if any.
    pub async fn dispersed(&mut self) -> Option<NotAllowed> {
        let mut last = None;
        while let Some(ended) = self.0.join_next().await {
            if let Ok(Err(reason)) = ended {
                last = Some(reason);
            }
        }
        last
    }
}
