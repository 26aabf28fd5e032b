//! What a device asks of the authority, what it is given, and what of that it signs with.

use rustls::pki_types::CertificateDer;
use zeroize::Zeroizing;

use super::{DeviceIdentity, DeviceName};

/// What a device asks to be certified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceRequest {
    /// What it wants to be called.
    pub name: DeviceName,
    /// The public half of its TLS key: an uncompressed point of P-256.
    pub tls_key: Vec<u8>,
    /// The public half of its signing key, Ed25519.
    pub signing_key: [u8; 32],
}

/// What the authority answers to a [`DeviceRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certified {
    /// The device's certificate.
    pub certificate: CertificateDer<'static>,
    /// Its number on the roster.
    pub number: u32,
    /// The authority's certificate.
    pub authority: CertificateDer<'static>,
    /// The key that rosters are signed with.
    pub authority_key: [u8; 32],
}

/// What a device was given when it enrolled, beside its certificate.
#[derive(Clone)]
pub struct Credentials {
    /// Its name on the roster.
    pub name: String,
    /// The secret half of its Ed25519 key.
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
