//! `deltafl certs`: the certificates of a federation.

use std::path::{Path, PathBuf};
use std::time::Duration;

use deltafl_server::authority::{Authority, FleetIdentities, ServerIdentity};
use deltafl_server::roster_renewal::{LIFETIME, signed};
use deltafl_server::store::{NewDevice, Store};
use deltafl_wire::environment::SystemClock;
use deltafl_wire::identity::{
    DeviceIdentity, DeviceName, FederationName, Fingerprint, IdentityError, Validity,
};
use deltafl_wire::roster::Roster;
use deltafl_wire::roster_log::{LoggedRoster, ROSTER_LOG};
use miette::{IntoDiagnostic, Report, Result};
use serde_json::json;

use crate::error::bad_input;
use crate::serve::{StoreArgs, renewal_error, store_error};

/// Create, show and revoke certificates
#[derive(clap::Subcommand, Debug)]
pub(crate) enum CertsCommand {
    /// Create the private authority of a new federation
    #[command(after_help = "Example:\n  deltafl certs init --federation clinics --out certs")]
    Init {
        /// The name of the federation: a–z, 0–9, '-' and '_'
        #[arg(long, value_name = "NAME")]
        federation: FederationName,
        /// The folder of the certificates
        #[arg(long, value_name = "DIR", default_value = "certs")]
        out: PathBuf,
    },
    /// Create the server's certificate
    #[command(
        after_help = "Examples:\n  deltafl certs server --host fl.example.org --host 10.0.0.5\n  deltafl certs server --certs authority --out certs --host fl.example.org"
    )]
    Server {
        /// A name or an address at which devices reach the server; may be repeated
        #[arg(long = "host", value_name = "HOST", required = true)]
        hosts: Vec<String>,
        /// The folder with the authority
        #[arg(long, value_name = "DIR", default_value = "certs")]
        certs: PathBuf,
        /// The folder for the server's machine, without the authority's keys [default: the folder
        /// of the authority]
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
        /// Days until the certificate expires
        #[arg(long, default_value_t = 365)]
        days: u32,
    },
    /// Create the certificates and keys of devices, and enrol them
    #[command(
        after_help = "Examples:\n  deltafl certs device phone-17 --out phone-17 --database sqlite:state/deltafl.sqlite\n  deltafl certs device --fleet 1000 --out fleet.json --database sqlite:state/deltafl.sqlite"
    )]
    Device(DeviceArgs),
    /// Sign the roster of the enrolled devices, for servers without the authority's keys
    #[command(
        after_help = "Example:\n  deltafl certs roster --database postgres://deltafl@db.example.org/deltafl"
    )]
    Roster {
        /// The folder of the certificates
        #[arg(long, value_name = "DIR", default_value = "certs")]
        certs: PathBuf,
        /// Days for which devices accept the roster; sign again before they end
        #[arg(long, default_value_t = (LIFETIME.as_secs() / 86_400) as u32, value_parser = clap::value_parser!(u32).range(1..))]
        days: u32,
        /// Runs that the devices may take part in, one per seed; never fewer than signed before. A
        /// server that lost its store needs one more
        #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
        runs: u64,
        #[command(flatten)]
        store: StoreArgs,
    },
    /// Show the content of a folder of certificates and when they expire
    #[command(after_help = "Example:\n  deltafl certs show certs")]
    Show {
        /// The folder
        folder: PathBuf,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Exclude a device permanently; servers notice within seconds
    #[command(
        after_help = "Example:\n  deltafl certs revoke phone-17 --database sqlite:state/deltafl.sqlite"
    )]
    Revoke {
        /// The device
        name: DeviceName,
        /// The folder of the certificates
        #[arg(long, value_name = "DIR", default_value = "certs")]
        certs: PathBuf,
        #[command(flatten)]
        store: StoreArgs,
    },
}

/// The devices and the destination of their keys.
#[derive(clap::Args, Debug)]
pub(crate) struct DeviceArgs {
    /// The name of the device
    #[arg(required_unless_present = "fleet", conflicts_with = "fleet")]
    name: Option<DeviceName>,
    /// Create N devices in one file, for `deltafl swarm`
    #[arg(long, value_name = "N")]
    fleet: Option<u32>,
    /// The device's folder, or the fleet's file
    #[arg(long, value_name = "PATH")]
    out: PathBuf,
    /// The folder of the certificates
    #[arg(long, value_name = "DIR", default_value = "certs")]
    certs: PathBuf,
    /// Days until the certificates expire
    #[arg(long, default_value_t = 365)]
    days: u32,
    #[command(flatten)]
    store: StoreArgs,
}

pub(crate) fn run(command: CertsCommand) -> Result<()> {
    match command {
        CertsCommand::Init { federation, out } => {
            let authority = Authority::create(&out.join("ca"), federation).map_err(identity_error)?;
            println!("Authority of {} in {}", authority.federation(), out.join("ca").display());
            println!("Fingerprint: {}", authority.fingerprint());
            println!("Keep {} secret: it suffices to create devices.", out.join("ca/ca.key").display());
        }
        CertsCommand::Server { hosts, certs, out, days } => {
            let authority = Authority::open(&certs.join("ca")).map_err(identity_error)?;
            let server = authority.issue_server(&hosts, days).map_err(identity_error)?;
            let folder = out.unwrap_or(certs).join("server");
            server.save(&folder).map_err(identity_error)?;
            println!("Server certificate for {} in {}", hosts.join(", "), folder.display());
        }
        CertsCommand::Device(args) => devices(&args)?,
        CertsCommand::Roster { certs, days, runs, store } => sign_roster(&certs, days, runs, &store)?,
        CertsCommand::Show { folder, json } => show(&folder, json)?,
        CertsCommand::Revoke { name, certs, store } => {
            // The database decides, so that a server revokes devices without the authority's keys.
            let (ca, server) = (certs.join("ca"), certs.join("server"));
            let federation = match server.exists() && !ca.exists() {
                true => federation_of(&ServerIdentity::open(&server).map_err(identity_error)?)?,
                false => Authority::open(&ca).map_err(identity_error)?.federation().clone(),
            };
            block_on(async {
                let store = store.open().await?;
                store.revoke(&federation, &name).await.map_err(store_error)
            })?;
            println!("{name} is revoked");
        }
    }
    Ok(())
}

fn devices(args: &DeviceArgs) -> Result<()> {
    let authority = Authority::open(&args.certs.join("ca")).map_err(identity_error)?;
    block_on(async {
        let store = args.store.open().await?;
        let federation = authority.federation();
        store.create_federation(federation).await.map_err(store_error)?;
        let next = store.devices(federation).await.map_err(store_error)?.len() as u32;
        if let Some(count) = args.fleet {
            let fleet = FleetIdentities::issue(&authority, next, count, args.days).map_err(identity_error)?;
            fleet.write(&args.out).map_err(identity_error)?;
            enrol(&store, federation, &fleet.devices).await?;
            println!("{count} devices in {}", args.out.display());
        } else if let Some(name) = &args.name {
            let device = authority.issue_device(name, next, args.days).map_err(identity_error)?;
            device.save(&args.out).map_err(identity_error)?;
            enrol(&store, federation, std::slice::from_ref(&device)).await?;
            println!("{name} is device {next} of {federation}; its keys are in {}", args.out.display());
        }
        Ok(())
    })
}

fn sign_roster(certs: &Path, days: u32, runs: u64, store: &StoreArgs) -> Result<()> {
    let authority = Authority::open(&certs.join("ca")).map_err(identity_error)?;
    let federation = authority.federation();
    block_on(async {
        let store = store.open().await?;
        store.create_federation(federation).await.map_err(store_error)?;
        let lifetime = Duration::from_secs(86_400 * u64::from(days));
        let roster = signed(&store, &authority, lifetime, runs, &SystemClock).await.map_err(renewal_error)?;
        let logged = LoggedRoster::new(&roster, authority.public_key()).into_diagnostic()?;
        logged.append(&certs.join("ca").join(ROSTER_LOG)).into_diagnostic()?;
        let roster = Roster::decode(roster.bytes).into_diagnostic()?;
        let (edition, runs) = (roster.edition(), roster.runs());
        let devices = store.device_count(federation).await.map_err(store_error)?;
        let left = edition.time_left(&SystemClock).map_or(0, |left| left.as_secs().div_ceil(86_400));
        println!(
            "Signed: the roster of {federation}, {devices} devices, version {}, for {left} days and {runs} {}",
            edition.version,
            if runs == 1 { "run" } else { "runs" }
        );
        Ok(())
    })
}

async fn enrol(store: &Store, federation: &FederationName, devices: &[DeviceIdentity]) -> Result<()> {
    let row = |device: &DeviceIdentity| NewDevice {
        name: device.name().clone(),
        number: Some(device.number()),
        signing_key: device.signing_public(),
        fingerprint: device.fingerprint(),
    };
    let rows: Vec<NewDevice> = devices.iter().map(row).collect();
    store.enrol(federation, &rows).await.map_err(store_error)?;
    Ok(())
}

/// The federation of a server.
fn federation_of(server: &ServerIdentity) -> Result<FederationName> {
    let foreign = || bad_input("the server's certificate is not issued by a federation's authority");
    Ok(server.federation().ok_or_else(foreign)?)
}

fn show(folder: &Path, as_json: bool) -> Result<()> {
    let mut found = Vec::new();
    let mut add = |what: String, certificate| {
        let validity = Validity::from_certificate(certificate).map_err(|e| bad_input(e.to_string()))?;
        found.push((what, Fingerprint::for_certificate(certificate), validity.not_after));
        Ok::<_, Report>(())
    };
    if folder.join("device.json").exists() {
        let device = DeviceIdentity::open(folder).map_err(identity_error)?;
        add(
            format!("device {} ({} of {})", device.name(), device.number(), device.federation()),
            device.certificate(),
        )?;
        add("authority".to_owned(), device.authority())?;
    } else {
        let authority = |federation: &FederationName| format!("authority of {federation}");
        let server = match folder.join("server") {
            server if server.exists() => Some(ServerIdentity::open(&server).map_err(identity_error)?),
            _ => None,
        };
        // The folder of a server contains the certificate of its authority, and not the keys.
        let ca = folder.join("ca");
        let known = match &server {
            Some(_) if !ca.exists() => None,
            _ => Some(Authority::open(&ca).map_err(identity_error)?),
        };
        if let Some(known) = &known {
            add(authority(known.federation()), known.certificate())?;
        } else if let Some(server) = &server {
            add(authority(&federation_of(server)?), server.authority())?;
        }
        if let Some(server) = &server {
            add("server".to_owned(), server.certificate())?;
        }
    }
    if as_json {
        let rows: Vec<_> = found
            .iter()
            .map(|(what, fingerprint, until)| {
                json!({ "what": what, "sha256": fingerprint.to_string(), "not_after": until.timestamp() })
            })
            .collect();
        println!("{}", serde_json::to_string_pretty(&rows).into_diagnostic()?);
        return Ok(());
    }
    for (what, fingerprint, until) in found {
        println!("{what}\n  until {}\n  SHA-256 {fingerprint}", until.date_naive());
    }
    Ok(())
}

/// Runs something asynchronous to its end.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Runtime::new().into_diagnostic()?.block_on(work)
}

/// An error of a certificate, with what to do about it.
pub(crate) fn identity_error(error: IdentityError) -> Report {
    let text = error.to_string();
    match error {
        IdentityError::Exists { .. } => {
            bad_input(text).help("it is kept; choose another folder, or move it away").into()
        }
        IdentityError::Io { source, path } if source.kind() == std::io::ErrorKind::NotFound => {
            let help = match path.file_name().and_then(std::ffi::OsStr::to_str) {
                Some("device.json") => "deltafl enrol device makes an identity",
                Some("server.pem") => "deltafl certs server makes a server's certificate",
                _ => {
                    "run this where the authority's keys are; deltafl certs init makes an authority for a new \
                     federation"
                }
            };
            bad_input(format!("{text} is not there")).help(help).into()
        }
        error @ (IdentityError::Exposed { .. }
        | IdentityError::Malformed { .. }
        | IdentityError::Host { .. }) => bad_input(error.to_string()).into(),
        error => Report::from_err(error),
    }
}
