//! A device's side of the HTTP interface: enrolment and the knob.
//!
//! A device that has nothing but a token fetches the authority's certificate without trusting anybody, compares it with
//! the fingerprint in the token, and trusts that authority from then on. Only then it says the token's secret. The key that
//! signs rosters comes with the token and not from the server: whoever hands out another one can make devices up.

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
/// The largest model that is pulled.
const LARGEST_MODEL: u64 = 4 << 30;

/// Why a server could not be asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// It could not be reached, or not be trusted.
    #[error("the server could not be asked")]
    Http(#[from] Box<ureq::Error>),
    /// It said no.
    #[error("the server answered {status}: {reason}")]
    Refused {
        /// The status.
        status: u16,
        /// Why.
        reason: String,
    },
    /// It belongs to another authority than the token.
    #[error("the server's authority is not the one that made the token")]
    OtherAuthority,
    /// It names another key for rosters than the token.
    #[error(
        "the server names another roster key than the token: do not use this server, and tell whoever keeps the authority"
    )]
    OtherRosterKey,
    /// It said something that makes no sense.
    #[error("the server's answer makes no sense")]
    Malformed,
    /// The device's keys could not be made.
    #[error(transparent)]
    Identity(#[from] IdentityError),
}

impl From<ureq::Error> for AskError {
    fn from(error: ureq::Error) -> Self {
        Self::Http(Box::new(error))
    }
}

/// Enrols a device: makes its keys, and has them certified.
pub fn enrol(server: &str, token: &Token, name: DeviceName) -> Result<DeviceIdentity, AskError> {
    let server = server.trim_end_matches('/');
    let authority = authority(server, token)?;
    let keys = DeviceKeys::generate()?;
    let asked = keys.request(name.clone());
    let request = EnrolRequest {
        token: token.reveal().to_string(),
        name: name.clone(),
        tls_key: hex(&asked.tls_key),
        signing_key: asked.signing_key,
    };
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

/// The authority that made the token, as the server shows it.
fn authority(server: &str, token: &Token) -> Result<CertificateDer<'static>, AskError> {
    // Nothing secret is said here, and what is heard is believed for its fingerprint only.
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

/// A server, as one of its devices asks it for models; or anybody, where models are public.
#[derive(Debug)]
pub struct Knob {
    agent: Agent,
    server: String,
    federation: String,
}

impl Knob {
    /// The knob of a device.
    pub fn of_device(server: &str, device: &DeviceIdentity) -> Self {
        let key = PrivateKey::from_pem(device.key_pem().as_bytes()).expect("a key that was just written");
        let certificate = Certificate::from_der(device.certificate()).to_owned();
        let tls = TlsConfig::builder()
            .root_certs(only(device.authority()))
            .client_cert(Some(ClientCert::new_with_certs(&[certificate], key)))
            .build();
        let server = server.trim_end_matches('/').to_owned();
        Self { agent: agent(tls), server, federation: device.federation().to_string() }
    }

    /// The knob for anybody, where models are public.
    pub fn of_anyone(server: &str, federation: &str) -> Self {
        let server = server.trim_end_matches('/').to_owned();
        Self { agent: agent(TlsConfig::default()), server, federation: federation.to_owned() }
    }

    /// The models that there are.
    pub fn models(&self) -> Result<Vec<Card>, AskError> {
        let text = read(self.agent.get(self.path("")).call()?)?;
        serde_json::from_slice(&text).map_err(|_| AskError::Malformed)
    }

    /// What is known of the model nearest to θ.
    pub fn card(&self, theta: f64) -> Result<Card, AskError> {
        let text = read(self.agent.get(self.path(&format!("/{theta}/card"))).call()?)?;
        serde_json::from_slice(&text).map_err(|_| AskError::Malformed)
    }

    /// The params that a card speaks of, checked against its hash.
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
