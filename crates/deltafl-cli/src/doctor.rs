//! `deltafl doctor`: finds the problems of a deployment and prints how to fix them.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use deltafl_server::authority::{Authority, ServerIdentity};
use deltafl_server::store::{Store, StoreSettings};
use deltafl_wire::chain;
use deltafl_wire::identity::{DeviceIdentity, IdentityError, Validity};
use miette::{IntoDiagnostic, Result};
use serde::Serialize;

use crate::certs::block_on;

/// Certificates that expire within this many days are reported.
const SOON: i64 = 30;
/// The largest difference of clocks in seconds; new certificates fail above it.
const SKEW: i64 = 300;
const PATIENCE: Duration = Duration::from_secs(5);

/// Check certificates, clock, ports, database and blobs, and print how to fix problems
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  deltafl doctor --certs certs --database sqlite:state/deltafl.sqlite --blobs state/blobs --listen 0.0.0.0:7700\n  deltafl doctor --identity identity --server https://fl.example.org:7780"
)]
pub(crate) struct Args {
    /// The folder of a server's certificates
    #[arg(long, value_name = "DIR")]
    certs: Option<PathBuf>,
    /// A device's identity
    #[arg(long, value_name = "DIR")]
    identity: Option<PathBuf>,
    /// The database
    #[arg(long, value_name = "URL", env = "DELTAFL_DATABASE", hide_env_values = true)]
    database: Option<String>,
    /// The storage of the params
    #[arg(long, value_name = "PLACE")]
    blobs: Option<String>,
    /// An address for a server to listen on; may be repeated
    #[arg(long, value_name = "ADDRESS")]
    listen: Vec<SocketAddr>,
    /// The HTTP address of a server that this machine must reach
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// The result of a check.
#[derive(Debug, Serialize)]
struct Finding {
    what: String,
    state: FindingState,
    found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum FindingState {
    Good,
    Worth,
    Bad,
}

fn good(what: &str, found: impl Into<String>) -> Finding {
    Finding { what: what.to_owned(), state: FindingState::Good, found: found.into(), advice: None }
}

fn bad(what: &str, found: impl Into<String>, advice: &str) -> Finding {
    Finding {
        what: what.to_owned(),
        state: FindingState::Bad,
        found: found.into(),
        advice: Some(advice.to_owned()),
    }
}

pub(crate) fn run(args: Args) -> Result<()> {
    let mut findings = Vec::new();
    certificates(&args, &mut findings);
    findings.extend(args.listen.iter().map(|&address| port(address)));
    if let Some(server) = &args.server {
        findings.extend(reach(server));
    }
    if let Some(database) = &args.database {
        let blobs = args.blobs.clone();
        block_on(async {
            findings.extend(store(database, blobs).await);
            Ok(())
        })?;
    }
    if findings.is_empty() {
        return Err(crate::error::bad_input("there is nothing to check")
            .help("use at least one of --certs, --identity, --database, --listen and --server")
            .into());
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&findings).into_diagnostic()?);
    } else {
        findings.iter().for_each(print);
    }
    let failed = findings.iter().filter(|finding| finding.state == FindingState::Bad).count();
    if failed == 0 { Ok(()) } else { Err(miette::miette!("{failed} of {} checks failed", findings.len())) }
}

fn print(finding: &Finding) {
    let mark = match finding.state {
        FindingState::Good => "ok  ",
        FindingState::Worth => "note",
        FindingState::Bad => "BAD ",
    };
    println!("{mark}  {}: {}", finding.what, finding.found);
    if let Some(advice) = &finding.advice {
        println!("      → {advice}");
    }
}

fn certificates(args: &Args, findings: &mut Vec<Finding>) {
    if let Some(folder) = &args.certs {
        let again = "deltafl certs init, then deltafl certs server";
        match Authority::open(&folder.join("ca")) {
            // A server does not need the keys if its roster is signed elsewhere.
            Err(IdentityError::Io { .. }) if folder.join("server").exists() => findings.push(Finding {
                state: FindingState::Worth,
                advice: Some(
                    "devices enrol on the machine with the keys; sign the roster there: deltafl certs roster"
                        .to_owned(),
                ),
                ..good("authority", "its keys are not here")
            }),
            Ok(authority) => {
                findings.push(expiry("authority", authority.certificate(), again));
                if folder.join("server").exists() {
                    findings.push(Finding {
                        state: FindingState::Worth,
                        advice: Some(format!(
                            "move {} to a machine that devices cannot reach: an attacker on this one can create devices",
                            folder.join("ca").display()
                        )),
                        ..good("authority", "its keys are on the machine of the server")
                    });
                }
            }
            Err(error) => findings.push(unreadable("authority", &error, again)),
        }
        let again = "move the folder server away and run deltafl certs server again";
        match ServerIdentity::open(&folder.join("server")) {
            Ok(server) => findings.push(expiry("server certificate", server.certificate(), again)),
            Err(error) => findings.push(unreadable("server certificate", &error, again)),
        }
    }
    if let Some(folder) = &args.identity {
        let again = "ask the operator for a token and enrol again: deltafl enrol device";
        match DeviceIdentity::open(folder) {
            Ok(device) => findings.push(expiry("device certificate", device.certificate(), again)),
            Err(error) => findings.push(unreadable("device certificate", &error, again)),
        }
    }
}

fn unreadable(what: &str, error: &IdentityError, advice: &str) -> Finding {
    match error {
        IdentityError::Exposed { path, .. } => {
            bad(what, error.to_string(), &format!("chmod 600 {}", path.display()))
        }
        IdentityError::Io { source, .. } => bad(what, format!("{error}: {source}"), advice),
        _ => bad(what, error.to_string(), advice),
    }
}

fn expiry(what: &str, certificate: &deltafl_wire::identity::CertificateDer<'_>, advice: &str) -> Finding {
    let Ok(validity) = Validity::from_certificate(certificate) else {
        return bad(what, "not a certificate", advice);
    };
    let now = Utc::now();
    if now < validity.not_before {
        return bad(what, format!("not valid before {}", validity.not_before), "set this machine's clock");
    }
    match validity.days_left(now) {
        _ if now > validity.not_after => {
            bad(what, format!("expired on {}", validity.not_after.date_naive()), advice)
        }
        days if days < SOON => Finding {
            state: FindingState::Worth,
            advice: Some(advice.to_owned()),
            ..good(what, format!("expires in {days} days"))
        },
        days => good(what, format!("valid for {days} more days")),
    }
}

fn port(address: SocketAddr) -> Finding {
    let what = format!("port {address}");
    match TcpListener::bind(address) {
        Ok(_) => good(&what, "free"),
        Err(error) => {
            bad(&what, error.to_string(), "stop the program that listens there, or choose another --listen")
        }
    }
}

/// Checks that the server responds and leads, and that its clock agrees with this machine's.
fn reach(server: &str) -> Vec<Finding> {
    let tls = ureq::tls::TlsConfig::builder().disable_verification(true).build();
    let config = ureq::Agent::config_builder()
        .tls_config(tls)
        .timeout_global(Some(PATIENCE))
        .http_status_as_error(false)
        .build();
    let agent = ureq::Agent::new_with_config(config);
    let server = server.trim_end_matches('/');
    let answer = match agent.get(format!("{server}/healthz")).call() {
        Ok(answer) => answer,
        Err(error) => {
            return vec![bad(
                "server",
                error.to_string(),
                "check the address, the firewall, and that deltafl serve runs with --http",
            )];
        }
    };
    let mut findings = vec![good("server", format!("{server} answers"))];
    if let Ok(mut ready) = agent.get(format!("{server}/readyz")).call() {
        let said = ready.body_mut().read_to_string().unwrap_or_default();
        findings.push(match (ready.status().is_success(), said.trim()) {
            (true, _) => good("leader", "it runs the rounds"),
            (false, "standby") => good("leader", "another server runs the rounds; this one is on standby"),
            (false, trouble) => {
                bad("leader", trouble, "look at the server's log, and run deltafl doctor --database there")
            }
        });
    }
    let said = answer.headers().get("date").and_then(|date| date.to_str().ok());
    if let Some(theirs) = said.and_then(|date| DateTime::parse_from_rfc2822(date).ok()) {
        let skew = (Utc::now() - theirs.to_utc()).num_seconds();
        findings.push(if skew.abs() > SKEW {
            bad(
                "clock",
                format!("{skew} s off the server's"),
                "synchronise both machines' clocks (chrony, systemd-timesyncd)",
            )
        } else {
            good("clock", format!("within {} s of the server's", skew.abs().max(1)))
        });
    }
    findings
}

async fn store(database: &str, blobs: Option<String>) -> Vec<Finding> {
    let mut settings = StoreSettings::new(database.to_owned(), blobs.clone().unwrap_or_default());
    settings.patience = PATIENCE;
    let store = match Store::open(&settings).await {
        Ok(store) => store,
        Err(error) => {
            let advice = "check the URL, that the database runs, and that this user may write to it";
            return vec![bad("database", chain(&error), advice)];
        }
    };
    let names =
        store.federations().await.map(|all| all.iter().map(|f| f.name.to_string()).collect::<Vec<_>>());
    let names = names.unwrap_or_default().join(", ");
    let mut findings = vec![good("database", format!("answers; federations: {names}"))];
    if blobs.is_some() {
        let probe = Bytes::from_static(b"deltafl doctor");
        let written = async { store.blob(&store.put_blob(&probe).await?).await };
        findings.push(match written.await {
            Ok(_) => good("blobs", "written and read back"),
            Err(error) => {
                bad("blobs", chain(&error), "check the folder's permissions and the space on its disk")
            }
        });
    }
    findings
}
