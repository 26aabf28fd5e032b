//! Certification of a device: its request, the authority's response, and the resulting credentials.

use rustls::pki_types::CertificateDer;
use zeroize::Zeroizing;

use super::{DeviceIdentity, DeviceName};

/// A device's request for certification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceRequest {
    /// The requested name.
    pub name: DeviceName,
    /// The public TLS key: an uncompressed point of P-256.
    pub tls_key: Vec<u8>,
    /// The public Ed25519 signing key.
    pub signing_key: [u8; 32],
}

/// The authority's response to a [`DeviceRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certified {
    /// The device's certificate.
    pub certificate: CertificateDer<'static>,
    /// The index of the device on the roster.
    pub number: u32,
    /// The authority's certificate.
    pub authority: CertificateDer<'static>,
    /// The public key that verifies rosters.
    pub authority_key: [u8; 32],
}

/// The keys of an enrolled device, without its certificate.
#[derive(Clone)]
pub struct Credentials {
    /// The name of the device on the roster.
    pub name: String,
    /// The secret Ed25519 key of the device.
    pub signing: Zeroizing<[u8; 32]>,
    /// The public key of the enrolment authority.
    pub authority: [u8; 32],
}

impl From<&DeviceIdentity> for Credentials {
    fn from(identity: &DeviceIdentity) -> Self {
        Self {
            name: identity.name().to_string(),
            signing: identity.signing_secret().clone(),
            authority: identity.authority_key(),
        }
    }
}
