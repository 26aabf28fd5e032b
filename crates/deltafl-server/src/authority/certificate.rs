//! The contents of the three kinds of certificates.
//!
//! ```text
//! authority   FEDERATION.authority.deltafl            may sign certificates
//! server      the hosts it is reached at              server authentication
//! device      NAME.device.FEDERATION.deltafl          client authentication
//! ```
//!
//! Names are DNS names in the subject alternative names, the one field that every TLS library
//! parses strictly.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use deltafl_wire::identity::{DeviceName, FederationName, IdentityError};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose,
    PublicKeyData, SanType, SignatureAlgorithm, SigningKey,
};

/// ECDSA on P-256, which browsers, curl and every TLS library support.
pub(super) static ALGORITHM: &SignatureAlgorithm = &rcgen::PKCS_ECDSA_P256_SHA256;

/// The length of an uncompressed point of P-256.
const POINT_LEN: usize = 65;

/// The clock difference between machines that a new certificate tolerates.
const SLACK: Duration = Duration::from_secs(10 * 60);

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Returns the name of the authority in its certificate.
pub(super) fn authority_name(federation: &FederationName) -> String {
    format!("{federation}.authority.deltafl")
}

/// Returns the name of a device in its certificate.
pub(super) fn device_name(federation: &FederationName, device: &DeviceName) -> String {
    format!("{device}.device.{federation}.deltafl")
}

/// Returns the authority's certificate. Its subject depends only on the federation, so that the
/// issuer can be restored from the stored key.
pub(super) fn authority(federation: &FederationName, days: u32) -> Result<CertificateParams, IdentityError> {
    let mut params = named(&authority_name(federation), days)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    Ok(params)
}

/// Returns a server's certificate.
pub(super) fn server(hosts: &[String], days: u32) -> Result<CertificateParams, IdentityError> {
    let mut params = valid_for(days);
    for host in hosts {
        params.subject_alt_names.push(host_name(host)?);
    }
    params.distinguished_name.push(DnType::CommonName, "deltafl server");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

/// Returns a device's certificate.
pub(super) fn device(
    federation: &FederationName,
    device: &DeviceName,
    days: u32,
) -> Result<CertificateParams, IdentityError> {
    let mut params = named(&device_name(federation, device), days)?;
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

/// Generates a TLS key.
pub(super) fn new_key() -> Result<KeyPair, IdentityError> {
    KeyPair::generate_for(ALGORITHM).map_err(unmade)
}

/// The public part of a device's TLS key, as received from the network.
pub(super) struct PublicPoint<'a>(&'a [u8]);

impl<'a> PublicPoint<'a> {
    /// Parses an uncompressed point. The first handshake checks that it is on the curve.
    pub(super) fn new(bytes: &'a [u8]) -> Option<Self> {
        (bytes.len() == POINT_LEN && bytes[0] == 4).then_some(Self(bytes))
    }
}

impl PublicKeyData for PublicPoint<'_> {
    fn der_bytes(&self) -> &[u8] {
        self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        ALGORITHM
    }
}

/// Returns the error for a certificate that could not be issued.
pub(super) fn unmade(error: rcgen::Error) -> IdentityError {
    IdentityError::Certificate(Box::new(error))
}

/// Restores the issuer from its key.
pub(super) fn issuer<S: SigningKey>(
    federation: &FederationName,
    key: S,
) -> Result<rcgen::Issuer<'static, S>, IdentityError> {
    Ok(rcgen::Issuer::new(authority(federation, 0)?, key))
}

fn named(name: &str, days: u32) -> Result<CertificateParams, IdentityError> {
    let mut params = valid_for(days);
    params.subject_alt_names.push(host_name(name)?);
    params.distinguished_name.push(DnType::CommonName, name);
    Ok(params)
}

fn valid_for(days: u32) -> CertificateParams {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = rcgen::date_time_ymd(1970, 1, 1) + since_1970;
    let mut params = CertificateParams::default();
    params.not_before = now - SLACK;
    params.not_after = now + DAY * days;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
}

fn host_name(host: &str) -> Result<SanType, IdentityError> {
    if let Ok(address) = host.parse() {
        return Ok(SanType::IpAddress(address));
    }
    let refused = || IdentityError::Host { host: host.to_owned() };
    rustls::pki_types::DnsName::try_from(host).map_err(|_| refused())?;
    Ok(SanType::DnsName(host.to_owned().try_into().map_err(|_| refused())?))
}
