//! Identities in a deployed federation.
//!
//! A private certificate authority issues the server's certificate and one certificate per device.
//! Each device also has a signing key. The authority itself is implemented in `deltafl-server`.
//!
//! ```text
//! authority ── issues ──▶ server certificate   (hosts)          TLS 1.3, both sides authenticated
//!     │     ── issues ──▶ device certificate   (name)       ┘
//!     └────── signs ────▶ roster entry (number, Ed25519 key)    secure aggregation
//! ```
//!
//! The authority signs the roster entries, because the roster is the root of trust of secure
//! aggregation: a server that could invent devices could surround a device with them. To withhold
//! this power from the server, keep the authority's folder on another machine.
//!
//! Only the owner of a key file may read it. Keys are zeroized when dropped, and `Debug` omits
//! them.

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

/// The reason an identity cannot be created, stored or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// A file operation failed.
    #[error("{path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the file system.
        source: std::io::Error,
    },
    /// The file exists and would be overwritten.
    #[error("{path} exists already")]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// Other users of the machine can read the key.
    #[error("{path} can be read by other users (mode {mode:o}): run chmod 600 on it")]
    Exposed {
        /// The file.
        path: PathBuf,
        /// The permissions of the file.
        mode: u32,
    },
    /// The file has unexpected contents.
    #[error("{path} contains no {expected}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The expected contents.
        expected: &'static str,
    },
    /// The host cannot be named in a certificate.
    #[error("{host:?} is neither a host name nor an address")]
    Host {
        /// The given text.
        host: String,
    },
    /// The public key has the wrong format.
    #[error("the public key of {device} is not valid for a certificate")]
    PublicKey {
        /// The device.
        device: DeviceName,
    },
    /// The certificate could not be created.
    #[error("could not create a certificate")]
    Certificate(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The TLS key could not be created or read.
    #[error("the TLS key of the device cannot be created or read")]
    Key,
    /// TLS could not be set up with these keys.
    #[error("could not set up TLS")]
    Tls(#[from] rustls::Error),
    /// TLS does not accept the authority's certificate.
    #[error("the authority's certificate cannot be used")]
    Authority(#[from] rustls::server::VerifierBuilderError),
    /// The operating system returned no random numbers.
    #[error("the operating system returned no random numbers")]
    Random(#[from] getrandom::Error),
}
