//! Enrolment tokens, which authorise a new device to join a fleet.
//!
//! A token contains a secret, the fingerprint of the authority and the key that verifies rosters.
//! The device therefore authenticates the server before it sends the secret, and accepts only
//! rosters of this authority. The server stores a hash of the secret.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use super::fingerprint::hex;
use super::{Fingerprint, IdentityError};

const PREFIX: &str = "deltafl-";
const SECRET_LEN: usize = 16;

/// An enrolment token.
#[derive(Clone)]
pub struct Token {
    authority: Fingerprint,
    roster_key: [u8; 32],
    secret: Zeroizing<[u8; SECRET_LEN]>,
}

/// The SHA-256 hash of a token's secret, in hexadecimal, as the server stores it.
///
/// A salt is unnecessary, because the secret has 128 random bits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TokenHash(pub String);

/// The error of a text that is not a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an enrolment token: it starts with deltafl- and is {} characters long", PREFIX.len() + 107)]
pub struct InvalidToken;

impl Token {
    /// Generates a token for the federation of an authority.
    pub fn generate(authority: Fingerprint, roster_key: [u8; 32]) -> Result<Self, IdentityError> {
        let mut secret = Zeroizing::new([0; SECRET_LEN]);
        getrandom::fill(&mut *secret)?;
        Ok(Self { authority, roster_key, secret })
    }

    /// Returns the fingerprint of the authority whose server may receive the secret.
    pub fn authority(&self) -> Fingerprint {
        self.authority
    }

    /// Returns the Ed25519 key that verifies the rosters of the federation.
    pub fn roster_key(&self) -> [u8; 32] {
        self.roster_key
    }

    /// Returns the hash that the server stores.
    pub fn hash(&self) -> TokenHash {
        let mut hasher = Sha256::new_with_prefix(b"deltafl enrolment token\0");
        hasher.update(*self.secret);
        TokenHash(hex(&hasher.finalize()))
    }

    /// Returns the text to give to a device. Its possession is sufficient to enrol.
    pub fn reveal(&self) -> Zeroizing<String> {
        let bytes = Zeroizing::new([&self.authority.0[..], &self.roster_key, &*self.secret].concat());
        Zeroizing::new(PREFIX.to_owned() + &URL_SAFE_NO_PAD.encode(&*bytes))
    }
}

impl FromStr for Token {
    type Err = InvalidToken;

    fn from_str(text: &str) -> Result<Self, InvalidToken> {
        let coded = text.trim().strip_prefix(PREFIX).ok_or(InvalidToken)?;
        let bytes = Zeroizing::new(URL_SAFE_NO_PAD.decode(coded).map_err(|_| InvalidToken)?);
        let (authority, rest) = bytes.split_first_chunk().ok_or(InvalidToken)?;
        let (roster_key, secret) = rest.split_first_chunk().ok_or(InvalidToken)?;
        let secret = Zeroizing::new(secret.try_into().map_err(|_| InvalidToken)?);
        Ok(Self { authority: Fingerprint(*authority), roster_key: *roster_key, secret })
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token(for {})", self.authority)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_as_it_is_written_and_debug_hides_it() {
        let token = Token::generate(Fingerprint([7; 32]), [8; 32]).unwrap();
        let text = token.reveal();
        assert_eq!(text.len(), 115);
        let read: Token = text.parse().unwrap();
        assert_eq!((read.authority(), read.hash()), (token.authority(), token.hash()));
        assert_eq!(read.roster_key(), [8; 32]);
        let secret = URL_SAFE_NO_PAD.encode(*token.secret);
        let shown = format!("{token:?}");
        assert!(!shown.contains(&secret) && !shown.contains(&hex(&*token.secret)), "{shown}");
        for wrong in ["", "deltafl-", &text[..114], &text[1..], &format!("{}AAAA", *text)] {
            assert!(wrong.parse::<Token>().is_err(), "{wrong}");
        }
    }
}
