//! The server side of TLS 1.3. Older versions are not supported.

use std::sync::Arc;

use deltafl_wire::identity::IdentityError;
use deltafl_wire::identity::tls::{provider, roots};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::version::TLS13;
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, ServerConfig, SignatureScheme,
};

use super::{Peer, Revocations};

/// Whether a client must present a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Clients {
    /// Every client must present one.
    Certified,
    /// A certificate is optional, but must be valid if presented.
    Anyone,
}

/// Returns the TLS configuration of the server.
pub(super) fn server(
    chain: Vec<CertificateDer<'static>>,
    key: PrivatePkcs8KeyDer<'static>,
    clients: Clients,
    revocations: &Revocations,
    alpn: &[&[u8]],
) -> Result<Arc<ServerConfig>, IdentityError> {
    let authority = chain.last().expect("the last certificate of a chain is the authority's");
    let builder = WebPkiClientVerifier::builder_with_provider(roots(authority)?.into(), provider());
    let inner = match clients {
        Clients::Certified => builder.build()?,
        Clients::Anyone => builder.allow_unauthenticated().build()?,
    };
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(Arc::new(Unrevoked { inner, revocations: revocations.clone() }))
        .with_single_cert(chain, PrivateKeyDer::Pkcs8(key))?;
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// Verifies like rustls. Then checks that the certificate names a device and is not revoked.
#[derive(Debug)]
struct Unrevoked {
    inner: Arc<dyn ClientCertVerifier>,
    revocations: Revocations,
}

impl ClientCertVerifier for Unrevoked {
    fn offer_client_auth(&self) -> bool {
        self.inner.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.inner.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.inner.verify_client_cert(end_entity, intermediates, now)?;
        let peer = Peer::from_certificate(end_entity)
            .map_err(|_| Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))?;
        if self.revocations.contains(&peer.fingerprint) {
            return Err(Error::InvalidCertificate(CertificateError::Revoked));
        }
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}
