//! Enrolment over HTTP: what a new device posts to `/v1/enrol`, and what it is answered, as JSON.

use serde::{Deserialize, Serialize};

use crate::identity::{DeviceName, FederationName, hexadecimal};

/// What a device sends.
#[derive(Serialize, Deserialize)]
pub struct EnrolRequest {
    /// Its token.
    pub token: String,
    /// What it wants to be called.
    pub name: DeviceName,
    /// The public half of its TLS key, an uncompressed point of P-256, in hexadecimal.
    pub tls_key: String,
    /// The public half of its Ed25519 key, in hexadecimal.
    #[serde(with = "hexadecimal")]
    pub signing_key: [u8; 32],
}

/// What it gets.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EnrolAnswer {
    /// The federation that it is a device of.
    pub federation: FederationName,
    /// Its number on the roster.
    pub number: u32,
    /// Its certificate, PEM.
    pub certificate: String,
    /// The authority's certificate, PEM.
    pub authority: String,
    /// The key that rosters are signed with, in hexadecimal.
    #[serde(with = "hexadecimal")]
    pub authority_key: [u8; 32],
}
