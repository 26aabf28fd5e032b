//! The training that a server offers, before a device decides to participate.

use std::sync::Arc;

use deltafl_wire::contract::{DataContract, MAX_CONTRACT};
use deltafl_wire::environment::Network;
use deltafl_wire::proto::federation_client::FederationClient;
use deltafl_wire::proto::{FromDevice, FromServer, Hello, Welcome, from_device, from_server};
use deltafl_wire::{BlobId, VERSION, malformed};
use tokio_stream::once;
use tonic::transport::Channel;

use super::SessionError;
use crate::ServerEndpoint;
use crate::fault::Faults;
use crate::fetch::{Link, PartialBlob};
use crate::limits::{TimeLimits, within};

/// The training that a server offers.
#[derive(Clone, Debug, PartialEq)]
pub struct Offer {
    /// The name of the federation.
    pub federation: String,
    /// The name of the experiment.
    pub experiment: String,
    /// The model in JSON, as written in the experiment file.
    pub model: String,
    /// Whether the server asks devices for individual losses.
    pub open: bool,
    /// The data contract, or `None` if devices have their own trainer.
    pub contract: Option<DataContract>,
}

/// Connects under a device's name, receives the offer, and disconnects.
pub async fn offer(
    server: &ServerEndpoint,
    device: &str,
    network: &Arc<dyn Network>,
) -> Result<Offer, SessionError> {
    let limits = TimeLimits::default();
    let (mut client, welcome) =
        within(limits.welcome, "the Welcome", welcomed(server, device, network)).await?;
    let experiment = welcome.experiment.ok_or(malformed("experiment"))?;
    let contract = match experiment.contract {
        Some(blob) => {
            let (id, limit) = (BlobId::from_wire(Some(blob))?, MAX_CONTRACT as u64);
            let link = Link { limits: &limits, faults: &Faults::none() };
            let bytes = PartialBlob::default().fetch(&mut client, id, limit, link).await?;
            Some(DataContract::from_bytes(&bytes).map_err(deltafl_wire::Malformed::from)?)
        }
        None => None,
    };
    Ok(Offer {
        federation: welcome.federation,
        experiment: experiment.name,
        model: experiment.model,
        open: experiment.open,
        contract,
    })
}

/// Sends Hello as the only message, so that the session ends on its own.
async fn welcomed(
    server: &ServerEndpoint,
    device: &str,
    network: &Arc<dyn Network>,
) -> Result<(FederationClient<Channel>, Welcome), SessionError> {
    let mut client = server.dial(network).await?;
    let hello = from_device::Body::Hello(Hello { version: VERSION, device: device.to_owned() });
    let mut incoming = client.attend(once(FromDevice { body: Some(hello) })).await?.into_inner();
    match incoming.message().await? {
        Some(FromServer { body: Some(from_server::Body::Welcome(welcome)) }) => Ok((client, welcome)),
        _ => Err(malformed("welcome").into()),
    }
}
