//! The parts of a server other than its rounds: certificates, the store, the lease, and the HTTP
//! side.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use deltafl_wire::contract::DataContract;
use deltafl_wire::environment::Environment;
use deltafl_wire::identity::FederationName;
use deltafl_wire::roster::SignedRoster;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::config::ServerConfig;
use super::error::ServerError;
use super::{Server, ServerEvent, ServerEvents};
use crate::authority::{Authority, ServerIdentity};
use crate::committer::RunStore;
use crate::exchange::DrawChain;
use crate::http::{self, Access, Enrolment, HttpLimits, HttpState};
use crate::listener::Protection;
use crate::live::{About, Live};
use crate::roster_renewal::{RenewalError, RosterRenewal};
use crate::serve::Host;
use crate::store::{Lease, Store, StoreError, StoreSettings};

/// A server that cannot sign reports a roster that expires within this time.
const SOON: Duration = Duration::from_secs(7 * 86_400);
/// The validity of the certificate of a device that enrols over HTTP.
const DEVICE_DAYS: u32 = 365;

/// The parts of a server other than its rounds.
pub(super) struct Deployment {
    pub(super) federation: FederationName,
    pub(super) live: Live,
    pub(super) contract: Option<DataContract>,
    pub(super) run: RunStore,
    store: Store,
    server: Option<ServerIdentity>,
    roster_renewal: RosterRenewal,
    /// The version of the roster that the server started with.
    roster: AtomicU64,
    enrolled: Arc<Notify>,
    environment: Environment,
}

impl Deployment {
    /// Opens the store and reads the certificates.
    pub(super) async fn open(owner: &Server<'_>, events: &ServerEvents) -> Result<Self, ServerError> {
        let Server { config, experiment, environment, .. } = owner;
        let (contract, environment) = (owner.model.contract.as_ref(), environment.clone());
        let Certificates { federation, server, authority } = match &config.certs {
            Some(folder) => Certificates::read(folder, config.authority_here, events)?,
            None => {
                Certificates { federation: loopback_name(experiment.name()), server: None, authority: None }
            }
        };
        let store = match &owner.store {
            Some(store) => store.clone(),
            None => {
                let mut settings = StoreSettings::in_folder(&owner.out.join("server"));
                settings.database = config.database.clone().unwrap_or(settings.database);
                settings.blobs = config.blobs.clone().unwrap_or(settings.blobs);
                Store::open(&settings).await?
            }
        };
        store.create_federation(&federation).await?;
        store.set_experiment(&federation, experiment).await?;
        if config.drawn_cohorts {
            store.begin_draws(&federation).await?;
        }
        let live = Live::new(About {
            federation: federation.to_string(),
            experiment: experiment.name().to_owned(),
            model: experiment.model().spec().name().to_owned(),
            open: experiment.is_open(),
            rounds: experiment.rounds(),
            cohort: experiment.cohort() as u64,
            tracks: experiment.labels(),
        });
        let roster_renewal = match &server {
            Some(_) => RosterRenewal::new(store.clone(), federation.clone(), authority)
                .with_runs(experiment.seeds().iter().len() as u64),
            None => RosterRenewal::loopback(store.clone(), federation.clone()),
        }
        .with_clock(Arc::clone(&environment.clock));
        let run =
            RunStore::new(store.clone(), federation.clone(), live.clone(), experiment, contract.cloned());
        Ok(Self {
            federation,
            live,
            contract: contract.cloned(),
            run,
            store,
            server,
            roster_renewal,
            roster: AtomicU64::new(0),
            enrolled: Arc::default(),
            environment,
        })
    }

    /// The hash chain by which cohorts are drawn, if they are.
    pub(super) async fn chain(&self) -> Result<Option<DrawChain>, StoreError> {
        self.store.chain(&self.federation).await
    }

    /// The authentication of devices; loopback without certificates.
    pub(super) fn protection(&self) -> Result<Protection, ServerError> {
        let Some(server) = &self.server else { return Ok(Protection::Loopback) };
        let tls = server.mutual_tls(self.roster_renewal.revocations(), &[b"h2"])?;
        Ok(Protection::mutual(tls))
    }

    /// The enrolled devices, signed; `None` without certificates.
    pub(super) async fn roster(&self, events: &ServerEvents) -> Result<Option<SignedRoster>, ServerError> {
        if self.server.is_none() {
            return Ok(None);
        }
        let version = self.roster_renewal.version().await?;
        self.roster.store(version, Ordering::Relaxed);
        let (roster, left) = self.roster_renewal.roster().await?;
        if left < SOON {
            events.send(ServerEvent::RosterExpires { days: left.as_secs() / 86_400 });
        }
        Ok(Some(roster))
    }

    /// Serves HTTP until the runtime ends, also while this server is on standby. Returns its state
    /// and its URL.
    pub(super) async fn serve_http(
        &self,
        config: &ServerConfig,
    ) -> Result<Option<(Arc<HttpState>, String)>, ServerError> {
        let Some(address) = config.http else { return Ok(None) };
        if self.server.is_none() && !address.ip().is_loopback() {
            return Err(ServerError::InsecureHttp { address });
        }
        self.roster_renewal.renew_revocations().await?;
        let tls = match &self.server {
            Some(server) => Some(server.open_tls(self.roster_renewal.revocations(), &[b"http/1.1"])?),
            None => None,
        };
        let enrolment = self.roster_renewal.authority().cloned().map(|authority| Enrolment {
            authority,
            days: DEVICE_DAYS,
            enrolled: Arc::clone(&self.enrolled),
        });
        let public = config.public_models || self.server.is_none();
        let state = Arc::new(HttpState {
            federation: self.federation.clone(),
            store: self.store.clone(),
            live: self.live.clone(),
            refusals: OnceLock::new(),
            enrolment,
            contract: self.contract.as_ref().map(|contract| contract.hash().to_hex().to_string()),
            access: if public { Access::Anyone } else { Access::Devices },
            answered: http::ResponseCounts::default(),
        });
        let failed = |source| ServerError::Http { address, source };
        let listener = self.environment.network.listen(address).await.map_err(failed)?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        let url = format!("{scheme}://{}", listener.local_addr().map_err(failed)?);
        let shown = Arc::clone(&state);
        tokio::spawn(http::serve(listener, tls, shown, HttpLimits::default(), std::future::pending()));
        Ok(Some((state, url)))
    }

    /// Waits until this server leads; `None` if it is stopped before.
    pub(super) async fn lead(
        &self,
        stop: &AtomicBool,
        events: &ServerEvents,
    ) -> Result<Option<Lease>, StoreError> {
        self.run.lead(stop, || events.send(ServerEvent::StandingBy)).await
    }

    /// Updates the live page and the roster while the rounds run.
    pub(super) fn follow(&self, host: &Arc<Host>, events: &ServerEvents) -> JoinHandle<()> {
        let known = Some(self.roster.load(Ordering::Relaxed));
        let events = events.clone();
        let failed = move |error: &RenewalError| events.send(ServerEvent::RosterNotRenewed { error });
        let (live, enrolled) = (self.live.clone(), Arc::clone(&self.enrolled));
        self.roster_renewal.clone().follow(Arc::clone(host), live, known, enrolled, failed)
    }
}

/// The contents of a folder of certificates.
struct Certificates {
    federation: FederationName,
    server: Option<ServerIdentity>,
    authority: Option<Arc<Authority>>,
}

impl Certificates {
    fn read(folder: &Path, authority_here: bool, events: &ServerEvents) -> Result<Self, ServerError> {
        let ca = folder.join("ca");
        // The authority may be kept elsewhere.
        let kept_elsewhere = !ca.join("ca.key").exists() && !ca.join("roster.key").exists();
        if !kept_elsewhere && !authority_here {
            return Err(ServerError::AuthorityHere { folder: ca });
        }
        let server = ServerIdentity::open(&folder.join("server")).map_err(ServerError::Certificates)?;
        let federation = server.federation().ok_or(ServerError::NoFederation)?;
        let authority = match kept_elsewhere {
            true => None,
            false => Some(Arc::new(Authority::open(&ca).map_err(ServerError::Certificates)?)),
        };
        if authority.is_none() {
            events.send(ServerEvent::NoAuthorityKeys);
        }
        Ok(Self { federation, server: Some(server), authority })
    }
}

/// A name for a federation that has no authority to name it.
fn loopback_name(experiment: &str) -> FederationName {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name: String = experiment.chars().map(plain).take(40).collect();
    name.trim_matches('-').parse().unwrap_or_else(|_| "loopback".parse().expect("letters only"))
}
