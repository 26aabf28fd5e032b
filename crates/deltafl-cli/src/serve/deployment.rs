//! The options of `deltafl serve` about certificates, the store and HTTP.

use std::net::SocketAddr;
use std::path::PathBuf;

use deltafl_server::roster_renewal::RenewalError;
use deltafl_server::store::{Store, StoreError, StoreSettings};
use deltafl_server::{ServerConfig, ServerError};
use miette::{Report, Result};

use super::server_error;

/// The store, for commands that enrol and revoke.
#[derive(clap::Args, Debug)]
pub(crate) struct StoreArgs {
    /// The server's database: sqlite:PATH or postgres://…
    #[arg(long, value_name = "URL", env = "DELTAFL_DATABASE", hide_env_values = true)]
    pub(crate) database: String,
}

impl StoreArgs {
    /// Opens the store without its blobs.
    pub(crate) async fn open(&self) -> Result<Store> {
        let settings = StoreSettings::new(self.database.clone(), String::new());
        Store::open(&settings).await.map_err(store_error)
    }
}

/// The files and sockets of a server.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Files, database and HTTP")]
pub(crate) struct DeploymentArgs {
    /// The folder with the server's certificate, as `deltafl certs server` wrote it
    #[arg(long, value_name = "DIR", conflicts_with = "insecure")]
    pub(super) certs: Option<PathBuf>,
    /// Allow the authority's keys in the folder of --certs: an attacker who controls this machine
    /// can then create devices
    #[arg(long, requires = "certs")]
    authority_here: bool,
    /// The database of rounds, devices and tokens: sqlite:PATH or postgres://… [default: SQLite in
    /// the run folder]
    #[arg(long, value_name = "URL", env = "DELTAFL_DATABASE", hide_env_values = true)]
    database: Option<String>,
    /// The storage for the params of every round: a folder, or s3://BUCKET/PREFIX [default: in the
    /// run folder]
    #[arg(long, value_name = "PLACE")]
    blobs: Option<String>,
    /// The HTTP address of the live page, the models and enrolment [default: no HTTP]
    #[arg(long, value_name = "ADDRESS")]
    http: Option<SocketAddr>,
    /// Continue to serve the models after the last round
    #[arg(long, requires = "http")]
    stay: bool,
    /// Draw cohorts in a way that devices can verify; needs at least half of the enrolled devices
    /// online, and is permanent for the federation
    #[arg(long, requires = "certs")]
    drawn_cohorts: bool,
    /// Serve models to all HTTP clients, not only to devices
    #[arg(long)]
    public_models: bool,
}

impl DeploymentArgs {
    /// Puts the options into a configuration.
    pub(super) fn apply(&self, config: &mut ServerConfig) {
        config.certs.clone_from(&self.certs);
        config.authority_here = self.authority_here;
        config.database.clone_from(&self.database);
        config.blobs.clone_from(&self.blobs);
        config.http = self.http;
        config.stay = self.stay;
        config.drawn_cohorts = self.drawn_cohorts;
        config.public_models = self.public_models;
    }
}

/// A report of an error of the roster.
pub(crate) fn renewal_error(error: RenewalError) -> Report {
    server_error(ServerError::Renewal(error))
}

/// A report of an error of the store.
pub(crate) fn store_error(error: StoreError) -> Report {
    server_error(ServerError::Store(error))
}
