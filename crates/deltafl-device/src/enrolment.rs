//! The device's client of the HTTP interface: enrolment and the knob.
//!
//! A device that has only a token fetches the authority's certificate without authentication and
//! compares it with the fingerprint in the token. From then on it trusts that authority, and only
//! then it sends the token's secret. The key that signs rosters comes with the token, not from the
//! server. A server that could substitute this key could invent devices.

use std::time::Duration;

use deltafl_wire::card::Card;
use deltafl_wire::enrolment::{EnrolAnswer, EnrolRequest};
use deltafl_wire::identity::{
    Certified, DeviceIdentity, DeviceKeys, DeviceName, Fingerprint, IdentityError, Token, from_pem, hex,
};
use rustls::pki_types::CertificateDer;
use ureq::Agent;
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};

const PATIENCE: Duration = Duration::from_secs(60);
/// The size limit for a downloaded model.
const LARGEST_MODEL: u64 = 4 << 30;

/// The reason for which a request failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// The server is unreachable or failed authentication.
    #[error("the request to the server failed")]
    Http(#[from] Box<ureq::Error>),
    /// The address has no scheme, or one without TLS.
    #[error("{0} is not the address of a server: https://HOST:PORT is expected")]
    Address(String),
    /// The server rejected the request.
    #[error("the server answered {status}: {reason}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// The reason given by the server.
        reason: String,
    },
    /// The server belongs to a different authority than the token.
    #[error("the server's authority is not the one that made the token")]
    OtherAuthority,
    /// The server's roster key differs from the token's.
    #[error(
        "the roster key of the server differs from the token's: do not use this server, and inform the authority's operator"
    )]
    OtherRosterKey,
    /// The response is invalid.
    #[error("invalid response of the server")]
    Malformed,
    /// The device's keys could not be generated.
    #[error(transparent)]
    Identity(#[from] IdentityError),
}

impl From<ureq::Error> for AskError {
    fn from(error: ureq::Error) -> Self {
        Self::Http(Box::new(error))
    }
}

/// Enrols a device: generates its keys and has them certified.
pub fn enrol(server: &str, token: &Token, name: DeviceName) -> Result<DeviceIdentity, AskError> {
    if !server.starts_with("https://") {
        return Err(AskError::Address(server.to_owned()));
    }
    let server = server.trim_end_matches('/');
    let authority = authority(server, token)?;
    let keys = DeviceKeys::generate()?;
    let asked = keys.request(name.clone());
    let mut request = EnrolRequest {
        token: token.reveal().to_string(),
        name: name.clone(),
        tls_key: hex(&asked.tls_key),
        signing_key: asked.signing_key,
        proof: String::new(),
    };
    request.proof = hex(&keys.sign(&request.message()));
    let trusting = TlsConfig::builder().root_certs(only(&authority)).build();
    let body = serde_json::to_vec(&request).map_err(|_| AskError::Malformed)?;
    let answer = agent(trusting)
        .post(format!("{server}/v1/enrol"))
        .header("content-type", "application/json")
        .send(&body[..])?;
    let text = read(answer)?;
    let answer: EnrolAnswer = serde_json::from_slice(&text).map_err(|_| AskError::Malformed)?;
    if answer.authority_key != token.roster_key() {
        return Err(AskError::OtherRosterKey);
    }
    let first = |pem: &str| from_pem(pem).map(|mut list| list.swap_remove(0)).ok_or(AskError::Malformed);
    let certified = Certified {
        certificate: first(&answer.certificate)?,
        number: answer.number,
        authority,
        authority_key: token.roster_key(),
    };
    Ok(DeviceIdentity::new(answer.federation, name, keys, certified))
}

/// Fetches the authority that made the token.
fn authority(server: &str, token: &Token) -> Result<CertificateDer<'static>, AskError> {
    // The request contains no secret, and the response is trusted only if its fingerprint matches.
    let blind = TlsConfig::builder().disable_verification(true).build();
    let pem = read(agent(blind).get(format!("{server}/v1/authority")).call()?)?;
    let pem = String::from_utf8(pem).map_err(|_| AskError::Malformed)?;
    let found = from_pem(&pem).ok_or(AskError::Malformed)?.swap_remove(0);
    if Fingerprint::for_certificate(&found) == token.authority() {
        Ok(found)
    } else {
        Err(AskError::OtherAuthority)
    }
}

/// A client for a server's models, for one of its devices or, if models are public, for anyone.
#[derive(Debug)]
pub struct ModelApi {
    agent: Agent,
    server: String,
    federation: String,
}

impl ModelApi {
    /// Creates the client of a device.
    pub fn with_identity(server: &str, device: &DeviceIdentity) -> Self {
        let key = PrivateKey::from_pem(device.key_pem().as_bytes()).expect("a key that was just written");
        let certificate = Certificate::from_der(device.certificate()).to_owned();
        let tls = TlsConfig::builder()
            .root_certs(only(device.authority()))
            .client_cert(Some(ClientCert::new_with_certs(&[certificate], key)))
            .build();
        let server = server.trim_end_matches('/').to_owned();
        Self { agent: agent(tls), server, federation: device.federation().to_string() }
    }

    /// Creates an anonymous client for public models.
    pub fn anonymous(server: &str, federation: &str) -> Self {
        let server = server.trim_end_matches('/').to_owned();
        Self { agent: agent(TlsConfig::default()), server, federation: federation.to_owned() }
    }

    /// Returns the available models.
    pub fn models(&self) -> Result<Vec<Card>, AskError> {
        let text = read(self.agent.get(self.path("")).call()?)?;
        serde_json::from_slice(&text).map_err(|_| AskError::Malformed)
    }

    /// Returns the card of the model nearest to θ.
    pub fn card(&self, theta: f64) -> Result<Card, AskError> {
        let text = read(self.agent.get(self.path(&format!("/{theta}/card"))).call()?)?;
        serde_json::from_slice(&text).map_err(|_| AskError::Malformed)
    }

    /// Downloads the params of a card and checks them against its hash.
    pub fn params(&self, card: &Card) -> Result<Vec<u8>, AskError> {
        let path = format!("/{}?version={}&seed={}", card.theta, card.version, card.seed);
        let bytes = read(self.agent.get(self.path(&path)).call()?)?;
        let honest = blake3::hash(&bytes).to_hex().as_str() == card.blake3;
        if honest { Ok(bytes) } else { Err(AskError::Malformed) }
    }

    fn path(&self, rest: &str) -> String {
        format!("{}/v1/federations/{}/models{rest}", self.server, self.federation)
    }
}

fn agent(tls: TlsConfig) -> Agent {
    let config = Agent::config_builder()
        .tls_config(tls)
        .http_status_as_error(false)
        .timeout_global(Some(PATIENCE))
        .proxy(None)
        .build();
    Agent::new_with_config(config)
}

fn only(authority: &CertificateDer<'_>) -> RootCerts {
    RootCerts::new_with_certs(&[Certificate::from_der(authority).to_owned()])
}

fn read(mut answer: ureq::http::Response<ureq::Body>) -> Result<Vec<u8>, AskError> {
    let status = answer.status();
    let bytes = answer.body_mut().with_config().limit(LARGEST_MODEL).read_to_vec()?;
    if status.is_success() {
        return Ok(bytes);
    }
    let told: Option<serde_json::Value> = serde_json::from_slice(&bytes).ok();
    let reason = told.and_then(|told| told["error"].as_str().map(str::to_owned)).unwrap_or_default();
    Err(AskError::Refused { status: status.as_u16(), reason })
}
