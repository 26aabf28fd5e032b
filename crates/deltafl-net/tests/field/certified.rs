//! The devices of a field with certificates.

use std::net::SocketAddr;

use deltafl_net::device::Credentials;
use deltafl_net::identity::{Authority, Fleet, Revocations, ServerIdentity};
use deltafl_net::link::{Protection, Server};
use deltafl_net::roster::{Entry, Roster, SignedRoster};
use deltafl_net::serve::{Host, Setup};
use deltafl_net::swarm::{Bee, Conduct, Swarm};

use super::fleet::Field;

/// An authority, its server and its fleet.
pub struct Certified {
    pub authority: Authority,
    pub fleet: Fleet,
    pub revocations: Revocations,
    server: ServerIdentity,
}

impl Certified {
    /// Certificates for every device of a field.
    pub fn new(field: &Field, federation: &str) -> Self {
        let authority = Authority::generate(federation.parse().unwrap(), 30).unwrap();
        let fleet = Fleet::issue(&authority, 0, field.devices().len() as u32, 30).unwrap();
        let server = authority.issue_server(&["127.0.0.1".to_owned()], 30).unwrap();
        Self { authority, fleet, revocations: Revocations::new(), server }
    }

    pub fn roster(&self) -> SignedRoster {
        let entry = |device: &deltafl_net::identity::DeviceIdentity| Entry {
            name: device.name().to_string(),
            key: device.signing_public(),
            revoked: false,
        };
        let roster = Roster::new(self.fleet.devices.iter().map(entry).collect()).unwrap();
        SignedRoster::new(&roster, |message| self.authority.sign(message))
    }

    pub async fn host(&self, setup: Setup) -> Host {
        let tls = self.server.mutual_tls(&self.revocations, &[b"h2"]).unwrap();
        let setup = Setup { protection: Protection::mutual(tls), ..setup };
        Host::start(setup, &self.roster()).await.unwrap()
    }

    /// Every device of the field, at large with its certificate.
    pub fn swarm(&self, field: &Field, address: SocketAddr, conduct: &Conduct) -> Swarm {
        let bee = |(identity, data): (&deltafl_net::identity::DeviceIdentity, u32)| Bee {
            credentials: Credentials::from(identity),
            server: Server::certified(&address.to_string(), identity).unwrap(),
            data,
        };
        let bees = self.fleet.devices.iter().zip(field.devices()).map(bee).collect();
        Swarm::release(bees, &field.model, &field.federation, conduct)
    }
}
