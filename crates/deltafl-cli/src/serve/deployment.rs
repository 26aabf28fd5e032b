//! What a server keeps beside its rounds: certificates, the store, the lease, and the HTTP side.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use deltafl::algorithm::TrackLabel;
use deltafl::model::ModelSpec;
use deltafl::training::State;
use deltafl_data::experiment::Experiment;
use deltafl_data::run_folder::RunFolder;

use deltafl_server::authority::{Authority, Revocations, ServerIdentity};
use deltafl_server::engine::Chain;
use deltafl_server::http;
use deltafl_server::http::{Access, Enrolment, HttpLimits, HttpState};
use deltafl_server::listener::Protection;
use deltafl_server::live::{About, Fresh, Live, Role};
use deltafl_server::serve::{Host, Phase};
use deltafl_server::store::{Commit, Lease, LossPercentiles, Store, StoreError, StoreSettings};
use deltafl_wire::identity::FederationName;
use deltafl_wire::roster::SignedRoster;
use miette::{IntoDiagnostic, Report, Result};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::recorder::Observed;
use super::roster_renewal::RosterRenewal;
use crate::error::bad_input;
use crate::session::folder_error;

/// How often a server looks for devices that were enrolled or revoked by another process.
const LOOK: Duration = Duration::from_secs(2);
/// For how long a device that enrols over HTTP is certified.
const DEVICE_DAYS: u32 = 365;
/// Committed rounds read at once.
const CHUNK: u32 = 500;

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
pub(crate) struct DeploymentArgs {
    /// The folder that `deltafl certs` filled: the server's certificate, and the authority unless it is kept elsewhere
    #[arg(long, value_name = "DIR", conflicts_with = "insecure")]
    pub(super) certs: Option<PathBuf>,
    /// sqlite:PATH or postgres://… [default: SQLite in the run folder]
    #[arg(long, value_name = "URL", env = "DELTAFL_DATABASE", hide_env_values = true)]
    database: Option<String>,
    /// Where params are kept: a folder, or s3://BUCKET/PREFIX [default: in the run folder]
    #[arg(long, value_name = "PLACE")]
    blobs: Option<String>,
    /// Where the live page, the models and enrolment are served; off unless given
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

/// The state of a server beside its rounds.
pub(super) struct Deployment {
    pub(super) federation: FederationName,
    pub(super) live: Live,
    pub(super) evaluate_every: u64,
    store: Store,
    server: Option<ServerIdentity>,
    roster_renewal: RosterRenewal,
    /// The version of the roster that the server started with.
    roster: AtomicU64,
    labels: Vec<TrackLabel>,
    model: ModelSpec,
    seeds: Vec<u64>,
    enrolled: Arc<Notify>,
}

impl Deployment {
    /// Opens the store and reads the certificates.
    pub(super) async fn open(args: &DeploymentArgs, experiment: &Experiment, out: &Path) -> Result<Self> {
        let Certificates { federation, server, authority } = match &args.certs {
            Some(folder) => Certificates::read(folder)?,
            None => {
                Certificates { federation: loopback_name(&experiment.name), server: None, authority: None }
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
        let labels = experiment.labels();
        let model = experiment.model.spec();
        let live = Live::new(About {
            federation: federation.to_string(),
            experiment: experiment.name.clone(),
            model: model.name().to_owned(),
            open: experiment.is_open(),
            rounds: experiment.rounds.get(),
            cohort: experiment.cohort.get() as u64,
            tracks: labels.clone(),
        });
        let roster_renewal = RosterRenewal {
            store: store.clone(),
            federation: federation.clone(),
            authority,
            revocations: Revocations::new(),
            expires: Arc::default(),
        };
        Ok(Self {
            federation,
            live,
            evaluate_every: experiment.evaluate_every.get(),
            store,
            server,
            roster_renewal,
            roster: AtomicU64::new(0),
            labels,
            model,
            seeds: experiment.seeds.iter().copied().collect(),
            enrolled: Arc::default(),
        })
    }

    /// What cohorts are drawn by, where they are.
    pub(super) async fn chain(&self) -> Result<Option<Chain>> {
        self.store.chain(&self.federation).await.map_err(store_error)
    }

    /// How devices prove who they are; loopback without certificates.
    pub(super) fn protection(&self) -> Result<Protection> {
        let Some(server) = &self.server else { return Ok(Protection::Loopback) };
        let config = server.mutual_tls(&self.roster_renewal.revocations, &[b"h2"]).into_diagnostic()?;
        Ok(Protection::mutual(config))
    }

    /// The enrolled devices, signed; `None` without certificates.
    pub(super) async fn roster(&self) -> Result<Option<SignedRoster>> {
        if self.server.is_none() {
            return Ok(None);
        }
        self.roster.store(self.roster_renewal.version().await?, Ordering::Relaxed);
        self.roster_renewal.roster().await.map(Some)
    }

    /// Serves HTTP until the process ends: before this server leads, too, so that whoever asks learns that it stands by.
    pub(super) async fn serve_http(&self, args: &DeploymentArgs) -> Result<Option<Arc<HttpState>>> {
        let Some(address) = args.http else { return Ok(None) };
        if self.server.is_none() && !address.ip().is_loopback() {
            return Err(bad_input("--insecure serves HTTP on a loopback address only").into());
        }
        self.roster_renewal.renew_revocations().await?;
        let tls = match &self.server {
            Some(server) => {
                Some(server.open_tls(&self.roster_renewal.revocations, &[b"http/1.1"]).into_diagnostic()?)
            }
            None => None,
        };
        let enrolment = self.roster_renewal.authority.clone().map(|authority| Enrolment {
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
            access: if public { Access::Anyone } else { Access::Devices },
            answered: http::Answered::default(),
        });
        let listener = TcpListener::bind(address)
            .await
            .map_err(|e| bad_input(format!("cannot listen on {address}")).because(e))?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        eprintln!("live page: {scheme}://{}", listener.local_addr().into_diagnostic()?);
        let shown = Arc::clone(&state);
        tokio::spawn(http::serve(listener, tls, shown, HttpLimits::default(), std::future::pending()));
        Ok(Some(state))
    }

    /// Waits until this server leads; `None` if it is to stop before.
    pub(super) async fn lead(&self, stop: &AtomicBool) -> Result<Option<Lease>> {
        let holder = format!("process {}", std::process::id());
        let attempt = async || self.store.try_lead(&self.federation, &holder).await.map_err(store_error);
        let mut read = vec![0; self.seeds.len()];
        let mut lease = attempt().await?;
        if lease.is_none() {
            eprintln!("another server leads; standing by");
        }
        while lease.is_none() && !stop.load(Ordering::Relaxed) {
            self.look_on(&mut read).await?;
            // Two looks a second: a leader is missed when its lease has run out, and not much later.
            tokio::time::sleep(LOOK / 4).await;
            lease = attempt().await?;
        }
        if lease.is_some() {
            self.live.role(Role::Leading);
        }
        Ok(lease)
    }

    /// Takes in what another server has committed, so that the page of one that stands by is true; `read` counts the rounds of
    /// each seed.
    async fn look_on(&self, read: &mut [u64]) -> Result<()> {
        for (&seed, next) in self.seeds.iter().zip(read) {
            for round in self.store.rounds(&self.federation, seed, *next, CHUNK).await.map_err(store_error)? {
                self.live.remember(&round);
                *next = round.round + 1;
            }
        }
        let enrolled = self.store.device_count(&self.federation).await.map_err(store_error)?;
        self.live.presence(0, 0, enrolled);
        Ok(())
    }

    /// Keeps the page and the roster true while the rounds run.
    pub(super) fn follow(&self, host: &Arc<Host>) -> JoinHandle<()> {
        tokio::spawn(self.live.clone().follow(host.status()));
        let (host, live, roster_renewal) = (Arc::clone(host), self.live.clone(), self.roster_renewal.clone());
        let (certified, enrolled) = (self.server.is_some(), Arc::clone(&self.enrolled));
        let mut known = Some(self.roster.load(Ordering::Relaxed));
        tokio::spawn(async move {
            loop {
                let devices =
                    roster_renewal.store.device_count(&roster_renewal.federation).await.unwrap_or_default();
                let (online, ready) = host.presence();
                live.presence(online, ready, devices.max(online as u64));
                if certified && let Err(error) = renew(&roster_renewal, &mut known, &host).await {
                    eprintln!("the roster could not be renewed: {error}");
                    known = None;
                }
                let _ = tokio::time::timeout(LOOK, enrolled.notified()).await;
            }
        })
    }

    /// The state that the store has committed, with the run folder brought up to it.
    pub(super) async fn catch_up(
        &self,
        folder: &mut RunFolder,
        seed: u64,
        local: Option<State>,
    ) -> Result<Option<State>> {
        let committed = self.store.state(&self.federation, seed).await.map_err(store_error)?;
        let Some(state) = committed else { return Ok(local) };
        let mut next = local.map_or(0, |state| state.round);
        for from in (0..state.round).step_by(CHUNK as usize) {
            let rounds = self.store.rounds(&self.federation, seed, from, CHUNK).await.map_err(store_error)?;
            for round in rounds {
                self.live.remember(&round);
                if round.round == next {
                    for line in &round.lines {
                        folder
                            .append(std::slice::from_ref(&line.record), line.seconds)
                            .map_err(folder_error)?;
                    }
                    next += 1;
                }
            }
        }
        folder.checkpoint(&state).map_err(folder_error)?;
        Ok(Some(state))
    }

    /// Commits what was observed since the last commit; the phases are those of the last round.
    pub(super) async fn commit(
        &self,
        lease: &Lease,
        state: &State,
        observed: &Observed,
        phases: &[Phase],
        publish: bool,
    ) -> Result<(), StoreError> {
        let Observed { lines, losses } = observed;
        let (labels, model) = (&self.labels, &self.model);
        let commit = Commit { state, labels, model, lines, timeline: phases, publish, losses };
        self.store.commit(lease, &commit).await?;
        for lines in lines.chunk_by(|a, b| a.record.round == b.record.round) {
            let round = lines[0].record.round;
            let known = losses.iter().find(|known| known.round == round);
            let percentiles = known.iter().flat_map(|known| &known.tracks);
            let losses: Vec<_> =
                percentiles.map(|known| known.as_ref().and_then(LossPercentiles::of)).collect();
            let phases = if round + 1 == state.round { phases } else { &[] };
            self.live.committed(Fresh { lines, phases, losses: &losses });
        }
        Ok(())
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

/// Takes in the roster if it has changed, and certificates that were revoked.
async fn renew(roster_renewal: &RosterRenewal, known: &mut Option<u64>, host: &Host) -> Result<()> {
    roster_renewal.renew_revocations().await?;
    let version = roster_renewal.version().await?;
    if known.replace(version) != Some(version) {
        host.change_roster(&roster_renewal.roster().await?).into_diagnostic()?;
    }
    Ok(())
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
