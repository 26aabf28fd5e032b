//! A device's side of TLS 1.3, and nothing older; and what both sides stand on.

use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore};

use super::IdentityError;

/// A device's side.
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
    // A revoked device must not come back on an old ticket.
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// The cryptography of both sides.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// The only root that both sides trust.
pub fn roots(authority: &CertificateDer<'static>) -> Result<RootCertStore, IdentityError> {
    let mut roots = RootCertStore::empty();
    roots.add(authority.clone())?;
    Ok(roots)
}
