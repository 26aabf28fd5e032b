//! Enrolment over HTTP: the JSON request and response of `/v1/enrol`.

use serde::{Deserialize, Serialize};

use crate::identity::{DeviceName, FederationName, hexadecimal};

/// The request of a new device.
#[derive(Serialize, Deserialize)]
pub struct EnrolRequest {
    /// The enrolment token.
    pub token: String,
    /// The name that the device requests.
    pub name: DeviceName,
    /// The public TLS key: an uncompressed point of P-256, in hexadecimal.
    pub tls_key: String,
    /// The public Ed25519 key, in hexadecimal.
    #[serde(with = "hexadecimal")]
    pub signing_key: [u8; 32],
    /// The signature of [`Self::message`] by the Ed25519 key, in hexadecimal. It proves that the
    /// device has the key.
    pub proof: String,
}

impl EnrolRequest {
    /// Returns the message that the device signs: everything in the request except the proof.
    pub fn message(&self) -> Vec<u8> {
        let name = self.name.to_string();
        let mut message = b"deltafl enrolment v1\0".to_vec();
        for part in [self.token.as_bytes(), name.as_bytes(), self.tls_key.as_bytes(), &self.signing_key] {
            message.extend_from_slice(&(part.len() as u64).to_le_bytes());
            message.extend_from_slice(part);
        }
        message
    }
}

/// The response to an [`EnrolRequest`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EnrolAnswer {
    /// The name of the federation.
    pub federation: FederationName,
    /// The index of the device on the roster.
    pub number: u32,
    /// The device's certificate, in PEM.
    pub certificate: String,
    /// The authority's certificate, in PEM.
    pub authority: String,
    /// The public key that verifies rosters, in hexadecimal.
    #[serde(with = "hexadecimal")]
    pub authority_key: [u8; 32],
}
