//! A server's identity: `server.pem` (its certificate and the authority's) and `server.key` in a
//! folder.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use deltafl_wire::identity::{FederationName, Fingerprint, IdentityError, folder};
use rcgen::KeyPair;
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use zeroize::Zeroizing;

use super::Revocations;
use super::peer::authority_of;
use super::tls::{self, Clients};

/// The credentials that identify a server to the devices of its federation.
pub struct ServerIdentity {
    certificate: CertificateDer<'static>,
    authority: CertificateDer<'static>,
    key: Zeroizing<Vec<u8>>,
}

impl ServerIdentity {
    pub(super) fn new(
        certificate: CertificateDer<'static>,
        authority: CertificateDer<'static>,
        key: &KeyPair,
    ) -> Self {
        Self { certificate, authority, key: Zeroizing::new(key.serialize_der()) }
    }

    /// Reads the identity from a folder.
    pub fn open(path: &Path) -> Result<Self, IdentityError> {
        let file = path.join("server.pem");
        let mut chain = folder::read_certificates(&file)?.into_iter();
        let (Some(certificate), Some(authority)) = (chain.next(), chain.next()) else {
            return Err(folder::malformed(&file, "certificate followed by that of its authority"));
        };
        Ok(Self { certificate, authority, key: folder::read_private_key(&path.join("server.key"))? })
    }

    /// Writes the identity to a folder that contains none.
    pub fn save(&self, path: &Path) -> Result<(), IdentityError> {
        folder::create(path)?;
        let key = Zeroizing::new(folder::pem_block("PRIVATE KEY", &self.key));
        folder::write_secret(&path.join("server.key"), key.as_bytes())?;
        let chain = folder::to_pem(&[&self.certificate, &self.authority]);
        folder::write_public(&path.join("server.pem"), &chain)
    }

    /// The server's certificate.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// The authority's certificate.
    pub fn authority(&self) -> &CertificateDer<'static> {
        &self.authority
    }

    /// The federation of the server, or `None` if a foreign authority issued its certificate.
    pub fn federation(&self) -> Option<FederationName> {
        authority_of(&self.authority)
    }

    /// Returns a TLS configuration that requires the certificate of a device that is not revoked.
    pub fn mutual_tls(
        &self,
        revocations: &Revocations,
        alpn: &[&[u8]],
    ) -> Result<Arc<ServerConfig>, IdentityError> {
        self.tls(Clients::Certified, revocations, alpn)
    }

    /// Returns a TLS configuration for clients with or without a certificate, such as browsers and
    /// devices that enrol.
    pub fn open_tls(
        &self,
        revocations: &Revocations,
        alpn: &[&[u8]],
    ) -> Result<Arc<ServerConfig>, IdentityError> {
        self.tls(Clients::Anyone, revocations, alpn)
    }

    fn tls(
        &self,
        clients: Clients,
        revocations: &Revocations,
        alpn: &[&[u8]],
    ) -> Result<Arc<ServerConfig>, IdentityError> {
        let chain = vec![self.certificate.clone(), self.authority.clone()];
        let key = PrivatePkcs8KeyDer::from(self.key.to_vec());
        tls::server(chain, key, clients, revocations, alpn)
    }
}

impl fmt::Debug for ServerIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServerIdentity({})", Fingerprint::for_certificate(&self.certificate))
    }
}
