//! The fingerprint of a certificate.

use std::fmt;
use std::str::FromStr;

use rustls::pki_types::CertificateDer;
use sha2::{Digest, Sha256};

/// The SHA-256 hash of a certificate's DER bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(pub [u8; 32]);

/// The error of a text that is not a fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a fingerprint is 64 hexadecimal digits")]
pub struct NotAFingerprint;

impl Fingerprint {
    /// Computes the fingerprint of a certificate.
    pub fn for_certificate(certificate: &CertificateDer<'_>) -> Self {
        Self(Sha256::digest(certificate.as_ref()).into())
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl FromStr for Fingerprint {
    type Err = NotAFingerprint;

    fn from_str(text: &str) -> Result<Self, NotAFingerprint> {
        from_hex(text).map(Self).ok_or(NotAFingerprint)
    }
}

/// Encodes bytes as lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Decodes exactly `N` bytes from hexadecimal digits.
pub fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |d: u8| char::from(d).to_digit(16);
        *byte = (digit(pair[0])? * 16 + digit(pair[1])?) as u8;
    }
    Some(bytes)
}

/// Decodes any number of bytes from hexadecimal digits.
pub fn from_bytes_hex(text: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = text.as_bytes().as_chunks();
    let byte = |pair: &[u8; 2]| from_hex::<1>(std::str::from_utf8(pair).ok()?).map(|[byte]| byte);
    if rest.is_empty() { pairs.iter().map(byte).collect() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_is_read_as_it_is_written() {
        let fingerprint = Fingerprint::for_certificate(&CertificateDer::from(vec![1, 2, 3]));
        let text = fingerprint.to_string();
        // sha256sum of the bytes 01 02 03.
        assert_eq!(text, "039058c6f2c0cb492c533b0a4d14ef77cc0f78abccced5287d84a1a2011cfb81");
        assert_eq!(text.parse(), Ok(fingerprint));
        for wrong in ["", "03", &text[1..], &text.replace('0', "g"), &format!("{text}00")] {
            assert_eq!(wrong.parse::<Fingerprint>(), Err(NotAFingerprint), "{wrong}");
        }
    }
}
