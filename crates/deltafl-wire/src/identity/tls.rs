//! TLS 1.3 configuration of a device, and the cryptography that both sides share.

use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore};

use super::IdentityError;

/// Returns the TLS configuration of a device.
pub(super) fn client(
    authority: &CertificateDer<'static>,
    certificate: CertificateDer<'static>,
    key: PrivatePkcs8KeyDer<'static>,
    alpn: &[&[u8]],
) -> Result<Arc<ClientConfig>, IdentityError> {
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .with_root_certificates(roots(authority)?)
        .with_client_auth_cert(vec![certificate], PrivateKeyDer::Pkcs8(key))?;
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    // A revoked device must not reconnect with an old ticket.
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// Returns the cryptography provider of both sides.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// Returns a root store that contains only the authority.
pub fn roots(authority: &CertificateDer<'static>) -> Result<RootCertStore, IdentityError> {
    let mut roots = RootCertStore::empty();
    roots.add(authority.clone())?;
    Ok(roots)
}
