//! The devices of a test with certificates.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use deltafl::data::FederationIndex;
use deltafl_device::Credentials;
use deltafl_device::ServerEndpoint;
use deltafl_device::swarm::{SimulatedDevice, Swarm, SwarmOptions};
use deltafl_server::authority::{Authority, FleetIdentities, Revocations, ServerIdentity};
use deltafl_server::listener::Protection;
use deltafl_server::serve::Setup;
use deltafl_wire::environment::SystemClock;
use deltafl_wire::roster::{Roster, RosterEntry, RosterVersion, SignedRoster};
use rustls::pki_types::UnixTime;
use rustls::time_provider::TimeProvider;

use super::fleet::{TestFederation, TestHost, start_host};

/// An authority, its server and its fleet.
pub struct Certified {
    pub authority: Authority,
    pub fleet: FleetIdentities,
    pub revocations: Revocations,
    server: ServerIdentity,
}

impl Certified {
    /// Certificates for every device of a test.
    pub fn new(test: &TestFederation, federation: &str) -> Self {
        let authority = Authority::generate(federation.parse().unwrap(), 30).unwrap();
        let fleet = FleetIdentities::issue(&authority, 0, test.devices().len() as u32, 30).unwrap();
        let server = authority.issue_server(&["127.0.0.1".to_owned()], 30).unwrap();
        Self { authority, fleet, revocations: Revocations::new(), server }
    }

    /// The roster of the devices that are not revoked.
    pub fn roster(&self) -> SignedRoster {
        let entry = |device: &deltafl_wire::identity::DeviceIdentity| RosterEntry {
            name: device.name().to_string(),
            key: device.signing_public(),
            revoked: self.revocations.contains(&device.fingerprint()),
        };
        let entries: Vec<RosterEntry> = self.fleet.devices.iter().map(entry).collect();
        let version = 1 + entries.iter().filter(|entry| entry.revoked).count() as u64;
        let edition = RosterVersion::expiring_in(version, Duration::from_secs(86_400), &SystemClock);
        let roster = Roster::new(edition, entries).unwrap();
        SignedRoster::new(&roster, |message| self.authority.sign(message))
    }

    pub async fn host(&self, setup: Setup) -> TestHost {
        self.host_in(0, setup).await
    }

    /// A server whose clock is so many days ahead.
    pub async fn host_in(&self, days: u64, setup: Setup) -> TestHost {
        let mut tls = (*self.server.mutual_tls(&self.revocations, &[b"h2"]).unwrap()).clone();
        tls.time_provider = Arc::new(Ahead(Duration::from_secs(86_400 * days)));
        let setup = Setup { protection: Protection::mutual(Arc::new(tls)), ..setup };
        start_host(setup, &self.roster()).await
    }

    /// Every device of the test, at large with its certificate.
    pub fn swarm(&self, test: &TestFederation, address: SocketAddr, options: &SwarmOptions) -> Swarm {
        let device =
            |(identity, data): (&deltafl_wire::identity::DeviceIdentity, FederationIndex)| SimulatedDevice {
                credentials: Credentials::from(identity),
                server: ServerEndpoint::certified(&address.to_string(), identity).unwrap(),
                data,
            };
        let devices = self.fleet.devices.iter().zip(test.devices()).map(device).collect();
        Swarm::start(devices, &test.trainer(), &test.federation, options)
    }
}

/// A clock that is ahead.
#[derive(Debug)]
struct Ahead(Duration);

impl TimeProvider for Ahead {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_secs(UnixTime::now().as_secs()) + self.0))
    }
}
