//! What a server keeps beside its rounds: certificates, the store, the lease, and the HTTP side.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use deltafl_data::experiment::Experiment;
use deltafl_server::authority::{Authority, ServerIdentity};
use deltafl_server::committer::RunStore;
use deltafl_server::engine::DrawChain;
use deltafl_server::http::{self, Access, Enrolment, HttpLimits, HttpState};
use deltafl_server::listener::Protection;
use deltafl_server::live::{About, Live};
use deltafl_server::roster_renewal::{RenewalError, RosterRenewal};
use deltafl_server::serve::Host;
use deltafl_server::store::{Lease, Store, StoreError, StoreSettings};
use deltafl_wire::contract::DataContract;
use deltafl_wire::identity::FederationName;
use deltafl_wire::roster::SignedRoster;
use miette::{IntoDiagnostic, Report, Result};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::error::bad_input;

/// From here on a server that cannot sign says that somebody has to.
const SOON: Duration = Duration::from_secs(7 * 86_400);
/// For how long a device that enrols over HTTP is certified.
const DEVICE_DAYS: u32 = 365;

/// The store, for commands that enrol and revoke.
#[derive(clap::Args, Debug)]
pub(crate) struct StoreArgs {
    /// The server's database: sqlite:PATH or postgres://…
    #[arg(long, value_name = "URL", env = "DELTAFL_DATABASE", hide_env_values = true)]
    pub(crate) database: String,
}

impl StoreArgs {
    /// Opens it; the blobs are not touched.
    pub(crate) async fn open(&self) -> Result<Store> {
        let settings = StoreSettings::new(self.database.clone(), String::new());
        Store::open(&settings).await.map_err(store_error)
    }
}

/// What a server keeps, and where.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "What the server keeps and serves")]
pub(crate) struct DeploymentArgs {
    /// The folder that `deltafl certs` filled: the server's certificate, and the authority unless it is kept elsewhere
    #[arg(long, value_name = "DIR", conflicts_with = "insecure")]
    pub(super) certs: Option<PathBuf>,
    /// Where rounds, devices and tokens are kept: sqlite:PATH or postgres://… [default: SQLite in the run folder]
    #[arg(long, value_name = "URL", env = "DELTAFL_DATABASE", hide_env_values = true)]
    database: Option<String>,
    /// Where the params of every round are kept: a folder, or s3://BUCKET/PREFIX [default: in the run folder]
    #[arg(long, value_name = "PLACE")]
    blobs: Option<String>,
    /// The address of the live page, the models and enrolment, over HTTP; off unless given
    #[arg(long, value_name = "ADDRESS")]
    http: Option<SocketAddr>,
    /// After the last round, go on serving the models until stopped
    #[arg(long, requires = "http")]
    pub(super) stay: bool,
    /// Draw cohorts so that devices can check it; needs at least half of the enrolled devices online, and lasts for the federation
    #[arg(long, requires = "certs")]
    drawn_cohorts: bool,
    /// Let anybody who reaches the HTTP side pull models, not only devices
    #[arg(long)]
    public_models: bool,
}

/// What a server keeps beside its rounds.
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
}

impl Deployment {
    /// Opens the store and reads the certificates.
    pub(super) async fn open(
        args: &DeploymentArgs,
        experiment: &Experiment,
        contract: Option<&DataContract>,
        out: &Path,
    ) -> Result<Self> {
        let Certificates { federation, server, authority } = match &args.certs {
            Some(folder) => Certificates::read(folder)?,
            None => {
                Certificates { federation: loopback_name(experiment.name()), server: None, authority: None }
            }
        };
        let mut settings = StoreSettings::in_folder(&out.join("server"));
        settings.database = args.database.clone().unwrap_or(settings.database);
        settings.blobs = args.blobs.clone().unwrap_or(settings.blobs);
        let store = Store::open(&settings).await.map_err(store_error)?;
        store.create_federation(&federation).await.map_err(store_error)?;
        store.set_experiment(&federation, experiment).await.map_err(store_error)?;
        if args.drawn_cohorts {
            store.begin_draws(&federation).await.map_err(store_error)?;
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
        };
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
        })
    }

    /// What cohorts are drawn by, where they are.
    pub(super) async fn chain(&self) -> Result<Option<DrawChain>> {
        self.store.chain(&self.federation).await.map_err(store_error)
    }

    /// How devices prove who they are; loopback without certificates.
    pub(super) fn protection(&self) -> Result<Protection> {
        let Some(server) = &self.server else { return Ok(Protection::Loopback) };
        let config = server.mutual_tls(self.roster_renewal.revocations(), &[b"h2"]).into_diagnostic()?;
        Ok(Protection::mutual(config))
    }

    /// The enrolled devices, signed; `None` without certificates.
    pub(super) async fn roster(&self) -> Result<Option<SignedRoster>> {
        if self.server.is_none() {
            return Ok(None);
        }
        let version = self.roster_renewal.version().await.map_err(store_error)?;
        self.roster.store(version, Ordering::Relaxed);
        let (roster, left) = self.roster_renewal.roster().await.map_err(renewal_error)?;
        if left < SOON {
            eprintln!("the roster expires in {} days; {SIGN}", left.as_secs() / 86_400);
        }
        Ok(Some(roster))
    }

    /// Serves HTTP until the runtime ends: before this server leads, too, so that whoever asks learns that it stands by. Returns
    /// what it shows, and where.
    pub(super) async fn serve_http(&self, args: &DeploymentArgs) -> Result<Option<(Arc<HttpState>, String)>> {
        let Some(address) = args.http else { return Ok(None) };
        if self.server.is_none() && !address.ip().is_loopback() {
            return Err(bad_input("--insecure serves HTTP on a loopback address only").into());
        }
        self.roster_renewal.renew_revocations().await.map_err(store_error)?;
        let tls = match &self.server {
            Some(server) => {
                Some(server.open_tls(self.roster_renewal.revocations(), &[b"http/1.1"]).into_diagnostic()?)
            }
            None => None,
        };
        let enrolment = self.roster_renewal.authority().cloned().map(|authority| Enrolment {
            authority,
            days: DEVICE_DAYS,
            enrolled: Arc::clone(&self.enrolled),
        });
        let public = args.public_models || self.server.is_none();
        let state = Arc::new(HttpState {
            federation: self.federation.clone(),
            store: self.store.clone(),
            live: self.live.clone(),
            refusals: OnceLock::new(),
            enrolment,
            contract: self.contract.as_ref().map(|contract| contract.hash().to_hex().to_string()),
            access: if public { Access::Anyone } else { Access::Devices },
            answered: http::Answered::default(),
        });
        let listener = TcpListener::bind(address)
            .await
            .map_err(|e| bad_input(format!("cannot listen on {address}")).because(e))?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        let url = format!("{scheme}://{}", listener.local_addr().into_diagnostic()?);
        let shown = Arc::clone(&state);
        tokio::spawn(http::serve(listener, tls, shown, HttpLimits::default(), std::future::pending()));
        Ok(Some((state, url)))
    }

    /// Waits until this server leads; `None` if it is to stop before.
    pub(super) async fn lead(&self, stop: &AtomicBool) -> Result<Option<Lease>> {
        let standing_by = || eprintln!("another server leads; standing by");
        self.run.lead(stop, standing_by).await.map_err(store_error)
    }

    /// Keeps the page and the roster true while the rounds run.
    pub(super) fn follow(&self, host: &Arc<Host>) -> JoinHandle<()> {
        let known = Some(self.roster.load(Ordering::Relaxed));
        let failed = |error: &RenewalError| eprintln!("the roster could not be renewed: {error}");
        let (live, enrolled) = (self.live.clone(), Arc::clone(&self.enrolled));
        self.roster_renewal.clone().follow(Arc::clone(host), live, known, enrolled, failed)
    }
}

/// What a folder of certificates holds.
struct Certificates {
    federation: FederationName,
    server: Option<ServerIdentity>,
    authority: Option<Arc<Authority>>,
}

impl Certificates {
    fn read(folder: &Path) -> Result<Self> {
        let refused =
            |e| bad_input("the certificates cannot be used").help("make them with deltafl certs").because(e);
        let server = ServerIdentity::open(&folder.join("server")).map_err(refused)?;
        let federation = server
            .federation()
            .ok_or_else(|| bad_input("the server's certificate is not of a federation's authority"))?;
        let ca = folder.join("ca");
        // A folder from which the keys were taken away, or that never had them, is a choice.
        let kept_elsewhere = !ca.join("ca.key").exists() && !ca.join("roster.key").exists();
        let authority = match kept_elsewhere {
            true => None,
            false => Some(Arc::new(Authority::open(&ca).map_err(refused)?)),
        };
        if authority.is_none() {
            eprintln!(
                "the authority's keys are not here: devices enrol elsewhere, and `deltafl certs roster` signs the roster"
            );
        }
        Ok(Self { federation, server: Some(server), authority })
    }
}

/// Where to sign a roster, if the authority's keys are elsewhere.
const SIGN: &str = "where they are:  deltafl certs roster --certs certs --database URL";

/// Why there is no roster, with what to do about it.
pub(crate) fn renewal_error(error: RenewalError) -> Report {
    match error {
        RenewalError::Store(error) => store_error(error),
        RenewalError::Unsigned | RenewalError::Expired => bad_input(error.to_string()).help(SIGN).into(),
        error => Report::from_err(error),
    }
}

/// A name for a federation that has no authority to name it.
fn loopback_name(experiment: &str) -> FederationName {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name: String = experiment.chars().map(plain).take(40).collect();
    name.trim_matches('-').parse().unwrap_or_else(|_| "loopback".parse().expect("letters only"))
}

/// An error of the store, with what to do about it.
pub(crate) fn store_error(error: StoreError) -> Report {
    match &error {
        StoreError::Changed { differences, .. } => {
            let keys: Vec<&str> = differences.iter().map(|difference| difference.key.as_str()).collect();
            bad_input(error.to_string())
                .help(format!("restore {}, or use another --database", keys.join(", ")))
                .into()
        }
        StoreError::Place { .. }
        | StoreError::Newer { .. }
        | StoreError::NoFederation { .. }
        | StoreError::NoDevice { .. }
        | StoreError::DeviceExists { .. }
        | StoreError::Number { .. } => bad_input(error.to_string()).into(),
        _ => Report::from_err(error),
    }
}
