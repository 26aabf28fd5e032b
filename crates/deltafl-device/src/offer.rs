//! What a server trains, before a device decides to take part.

use deltafl_wire::contract::{DataContract, MAX_CONTRACT};
use deltafl_wire::proto::{FromDevice, FromServer, Hello, from_device, from_server};
use deltafl_wire::{BlobId, VERSION, malformed};
use tokio_stream::once;

use super::SessionError;
use crate::Server;
use crate::fault::Faults;
use crate::fetch::Partial;

/// What a server trains.
#[derive(Clone, Debug, PartialEq)]
pub struct Offer {
    /// The name of the federation.
    pub federation: String,
    /// The name of the experiment.
    pub experiment: String,
    /// The model, as the experiment file writes it, in JSON.
    pub model: String,
    /// Whether devices are asked for their losses one by one.
    pub open: bool,
    /// The contract of the data; none where devices bring their own trainer.
    pub contract: Option<DataContract>,
}

/// Says hello under a device's name, hears what is trained, and leaves.
pub async fn offer(server: &Server, device: &str) -> Result<Offer, SessionError> {
    let mut client = server.dial().await?;
    let hello = from_device::Body::Hello(Hello { version: VERSION, device: device.to_owned() });
    let mut incoming = client.attend(once(FromDevice { body: Some(hello) })).await?.into_inner();
    let Some(FromServer { body: Some(from_server::Body::Welcome(welcome)) }) = incoming.message().await?
    else {
        return Err(malformed("welcome").into());
    };
    let experiment = welcome.experiment.ok_or(malformed("experiment"))?;
    let contract = match experiment.contract {
        Some(blob) => {
            let (id, limit) = (BlobId::from_wire(Some(blob))?, MAX_CONTRACT as u64);
            let bytes = Partial::default().fetch(&mut client, id, limit, &Faults::none()).await?;
            Some(DataContract::from_bytes(&bytes)?)
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
