//! Who is who in a deployed federation: a private certificate authority, the server's certificate, and for each
//! device a certificate and a signing key. The authority itself is in `deltafl-server`.
//!
//! ```text
//! authority ── issues ──▶ server certificate   (hosts)          TLS 1.3, both sides authenticated
//!     │     ── issues ──▶ device certificate   (name)       ┘
//!     └────── signs ────▶ roster entry (number, Ed25519 key)    secure aggregation
//! ```
//!
//! The roster entry is signed by the authority and not by the server, because the roster is the root of trust of secure
//! aggregation: a server that could make devices up could surround a device with them. An operator who keeps the
//! authority's folder off the server's machine takes that power from the server altogether.
//!
//! Keys lie in files that only their owner may read; they are wiped from memory when dropped, and no `Debug` shows them.

use std::path::PathBuf;

mod credentials;
mod device;
mod fingerprint;
pub mod folder;
mod name;
pub mod tls;
mod token;
mod validity;

pub use rustls::pki_types::CertificateDer;

pub use credentials::{Certified, Credentials, DeviceRequest};
pub use device::{DeviceIdentity, DeviceKeys, hexadecimal};
pub use fingerprint::{Fingerprint, NotAFingerprint, from_bytes_hex, from_hex, hex};
pub use folder::{from_pem, to_pem};
pub use name::{DeviceName, FederationName, InvalidName};
pub use token::{InvalidToken, Token, TokenHash};
pub use validity::{NotACertificate, Validity};

/// Why an identity cannot be made, kept or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// The file system said no.
    #[error("{path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file that would be overwritten.
    #[error("{path} exists already")]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// A key that others on the machine can read.
    #[error("{path} can be read by others (mode {mode:o}): chmod 600 it")]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// A file that holds something else.
    #[error("{path} holds no {expected}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        expected: &'static str,
    },
    /// A host that no certificate can name.
    #[error("{host:?} is neither a host name nor an address")]
    Host {
        /// What was given.
        host: String,
    },
    /// A public key of the wrong shape.
    #[error("the public key of {device} is not one that a certificate can hold")]
    PublicKey {
        /// The device.
        device: DeviceName,
    },
    /// The certificate could not be made.
    #[error("could not make a certificate")]
    Certificate(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The TLS key could not be made or read.
    #[error("the TLS key of the device cannot be made or read")]
    Key,
    /// TLS could not be set up with these keys.
    #[error("could not set up TLS")]
    Tls(#[from] rustls::Error),
    /// The authority's certificate is not one that TLS can trust.
    #[error("the authority's certificate cannot be used")]
    Authority(#[from] rustls::server::VerifierBuilderError),
    /// The operating system gave no random numbers.
    #[error("the operating system gave no random numbers")]
    Random(#[from] getrandom::Error),
}
