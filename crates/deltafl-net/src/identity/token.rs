//! Enrolment tokens: what lets a new device of a fleet in.
//!
//! A token holds the fingerprint of the federation's authority beside its secret, so that a device which has nothing else
//! knows whether it talks to the right server before it says the secret. The server keeps a hash of the secret.

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
    secret: Zeroizing<[u8; SECRET_LEN]>,
}

/// What the server keeps of a token: SHA-256 of its secret, in hexadecimal. 128 random bits need no salt.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TokenHash(pub String);

/// A text that is no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an enrolment token: it starts with deltafl- and is {} characters long", PREFIX.len() + 64)]
pub struct InvalidToken;

impl Token {
    /// A new token for the federation of an authority.
    pub fn generate(authority: Fingerprint) -> Result<Self, IdentityError> {
        let mut secret = Zeroizing::new([0; SECRET_LEN]);
        getrandom::fill(&mut *secret)?;
        Ok(Self { authority, secret })
    }

    /// The authority whose server may be told the secret.
    pub fn authority(&self) -> Fingerprint {
        self.authority
    }

    /// What the server keeps of it.
    pub fn hash(&self) -> TokenHash {
        let mut hasher = Sha256::new_with_prefix(b"deltafl enrolment token\0");
        hasher.update(*self.secret);
        TokenHash(hex(&hasher.finalize()))
    }

    /// The text to hand to a device. Whoever has it can enrol.
    pub fn reveal(&self) -> Zeroizing<String> {
        let mut bytes = Zeroizing::new(self.authority.0.to_vec());
        bytes.extend_from_slice(&*self.secret);
        Zeroizing::new(PREFIX.to_owned() + &URL_SAFE_NO_PAD.encode(&*bytes))
    }
}

impl FromStr for Token {
    type Err = InvalidToken;

    fn from_str(text: &str) -> Result<Self, InvalidToken> {
        let coded = text.trim().strip_prefix(PREFIX).ok_or(InvalidToken)?;
        let bytes = Zeroizing::new(URL_SAFE_NO_PAD.decode(coded).map_err(|_| InvalidToken)?);
        let (authority, secret) = bytes.split_first_chunk().ok_or(InvalidToken)?;
        let secret = secret.try_into().map_err(|_| InvalidToken)?;
        Ok(Self { authority: Fingerprint(*authority), secret: Zeroizing::new(secret) })
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
        let token = Token::generate(Fingerprint([7; 32])).unwrap();
        let text = token.reveal();
        assert_eq!(text.len(), 72);
        let read: Token = text.parse().unwrap();
        assert_eq!((read.authority(), read.hash()), (token.authority(), token.hash()));
        let secret = URL_SAFE_NO_PAD.encode(*token.secret);
        let shown = format!("{token:?}");
        assert!(!shown.contains(&secret) && !shown.contains(&hex(&*token.secret)), "{shown}");
        for wrong in ["", "deltafl-", &text[..71], &text[1..], &format!("{}AAAA", *text)] {
            assert!(wrong.parse::<Token>().is_err(), "{wrong}");
        }
    }
}
