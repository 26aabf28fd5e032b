//! The validity period of a certificate.
//!
//! TLS checks it during the handshake; this module displays it to operators. The DER encoding of a
//! certificate starts with
//!
//! ```text
//! SEQUENCE { SEQUENCE { [0] version, serial, algorithm, issuer, SEQUENCE { not before, not after }, …
//! ```

use chrono::{DateTime, NaiveDateTime, Utc};
use rustls::pki_types::CertificateDer;

const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// The validity period of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// The first valid second.
    pub not_before: DateTime<Utc>,
    /// The last valid second.
    pub not_after: DateTime<Utc>,
}

/// The error of bytes that are not a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a certificate")]
pub struct NotACertificate;

impl Validity {
    /// Parses the validity period of a certificate.
    ///
    /// # Errors
    /// Fails if the bytes are not a certificate.
    pub fn from_certificate(certificate: &CertificateDer<'_>) -> Result<Self, NotACertificate> {
        read(certificate).ok_or(NotACertificate)
    }

    /// Returns the whole days from `now` to expiry. Negative after expiry.
    pub fn days_left(&self, now: DateTime<Utc>) -> i64 {
        (self.not_after - now).num_days()
    }
}

fn read(certificate: &[u8]) -> Option<Validity> {
    let (SEQUENCE, whole, _) = element(certificate)? else { return None };
    let (SEQUENCE, mut fields, _) = element(whole)? else { return None };
    if fields.first() == Some(&VERSION) {
        fields = element(fields)?.2;
    }
    for _ in ["serial", "algorithm", "issuer"] {
        fields = element(fields)?.2;
    }
    let (SEQUENCE, validity, _) = element(fields)? else { return None };
    let (kind, not_before, rest) = element(validity)?;
    let (other, not_after, _) = element(rest)?;
    Some(Validity { not_before: instant(kind, not_before)?, not_after: instant(other, not_after)? })
}

/// Splits off the first DER element: its tag, its content, and the remaining bytes.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (len, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x84 => {
            let (digits, rest) = rest.split_at_checked(usize::from(first - 0x80))?;
            (digits.iter().fold(0, |len, &digit| len << 8 | usize::from(digit)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(len)?;
    Some((tag, content, rest))
}

fn instant(kind: u8, text: &[u8]) -> Option<DateTime<Utc>> {
    let text = std::str::from_utf8(text).ok()?;
    let text = match kind {
        // Two digits of the year: 1950 to 2049 (RFC 5280, section 4.1.2.5.1).
        UTC_TIME => format!("{}{text}", if text.get(..2)? < "50" { "20" } else { "19" }),
        GENERALIZED_TIME => text.to_owned(),
        _ => return None,
    };
    Some(NaiveDateTime::parse_from_str(&text, "%Y%m%d%H%M%SZ").ok()?.and_utc())
}
