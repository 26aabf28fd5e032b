//! The identity of the peer. Only this module reads names from certificates.

use deltafl_wire::identity::{DeviceName, FederationName, Fingerprint};
use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

/// The device at the other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The federation that certified it.
    pub federation: FederationName,
    /// Its name.
    pub device: DeviceName,
    /// The certificate that it presented.
    pub fingerprint: Fingerprint,
}

/// The error for a certificate without a device name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the certificate contains no device name of a federation")]
pub struct NotADevice;

impl Peer {
    /// Returns the device named in a certificate. The handshake verifies the certificate.
    pub fn from_certificate(certificate: &CertificateDer<'_>) -> Result<Self, NotADevice> {
        let name = only_name(certificate).ok_or(NotADevice)?;
        let (device, federation) = split(&name).ok_or(NotADevice)?;
        Ok(Self { federation, device, fingerprint: Fingerprint::for_certificate(certificate) })
    }
}

/// Returns the federation named in an authority's certificate.
pub(super) fn authority_of(certificate: &CertificateDer<'_>) -> Option<FederationName> {
    only_name(certificate)?.strip_suffix(".authority.deltafl")?.parse().ok()
}

/// Returns the DNS name of a certificate that has exactly one. With two names it would be
/// ambiguous.
fn only_name(certificate: &CertificateDer<'_>) -> Option<String> {
    let parsed = EndEntityCert::try_from(certificate).ok()?;
    let mut names = parsed.valid_dns_names();
    let name = names.next()?.to_owned();
    names.next().is_none().then_some(name)
}

fn split(name: &str) -> Option<(DeviceName, FederationName)> {
    let mut labels = name.split('.');
    let mut next = || labels.next();
    let (device, kind, federation, root) = (next()?, next()?, next()?, next()?);
    let shaped = kind == "device" && root == "deltafl" && next().is_none();
    if shaped { Some((device.parse().ok()?, federation.parse().ok()?)) } else { None }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::authority::Authority;

    #[test]
    fn a_name_has_exactly_four_labels() {
        let (device, federation) = split("phone-17.device.demo.deltafl").unwrap();
        assert_eq!((device.as_str(), federation.as_str()), ("phone-17", "demo"));
        for name in [
            "",
            "demo.authority.deltafl",
            "a.b.device.demo.deltafl",
            "phone.device.demo.deltafl.com",
            "phone.device.demo",
            "-.device.demo.deltafl",
            "example.org",
        ] {
            assert_eq!(split(name), None, "{name}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn any_bytes_are_answered(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            prop_assert_eq!(Peer::from_certificate(&CertificateDer::from(bytes)), Err(NotADevice));
        }

        #[test]
        fn a_damaged_certificate_is_answered(at in any::<prop::sample::Index>(), bit in 0u8..8, cut in any::<prop::sample::Index>()) {
            static CERTIFICATE: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
            let whole = CERTIFICATE.get_or_init(|| {
                let authority = Authority::generate("demo".parse().unwrap(), 1).unwrap();
                let device = authority.issue_device(&"phone-17".parse().unwrap(), 0, 1).unwrap();
                device.certificate().to_vec()
            });
            let mut bytes = whole.clone();
            bytes[at.index(whole.len())] ^= 1 << bit;
            let _ = Peer::from_certificate(&CertificateDer::from(bytes.as_slice()));
            bytes.truncate(cut.index(whole.len()));
            prop_assert_eq!(Peer::from_certificate(&CertificateDer::from(bytes)), Err(NotADevice));
        }
    }
}
