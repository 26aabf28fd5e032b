//! The sealed boxes that carry shares between devices.

use chacha20poly1305::aead::{Aead, Payload};
use chacha20poly1305::{ChaCha20Poly1305, KeyInit};
use zeroize::Zeroizing;

use crate::transcript::Sha256Digest;

/// ChaCha20-Poly1305 (RFC 8439) in one direction between two devices, for one message.
pub(crate) struct ShareBox {
    cipher: ChaCha20Poly1305,
    /// The digest of sender, recipient, keys and round.
    context: Sha256Digest,
}

/// A key seals one message, so the nonce is always zero.
const NONCE: [u8; 12] = [0; 12];

impl ShareBox {
    /// The number of bytes that sealing adds.
    pub(crate) const OVERHEAD: usize = 16;

    pub(super) fn new(key: &[u8; 32], context: Sha256Digest) -> Self {
        Self { cipher: ChaCha20Poly1305::new(key.into()), context }
    }

    pub(crate) fn seal(&self, plaintext: &[u8]) -> Vec<u8> {
        let payload = Payload { msg: plaintext, aad: &self.context };
        self.cipher.encrypt(&NONCE.into(), payload).expect("shares are shorter than 256 GiB")
    }

    /// Returns the contents, or `None` if the key, the context or the contents are wrong.
    pub(crate) fn open(&self, sealed: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        let payload = Payload { msg: sealed, aad: &self.context };
        self.cipher.decrypt(&NONCE.into(), payload).ok().map(Zeroizing::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_box_opens_only_with_its_key_and_context() {
        let mut sealed = ShareBox::new(&[1; 32], [2; 32]).seal(b"shares");
        assert_eq!(sealed.len(), b"shares".len() + ShareBox::OVERHEAD);
        let open = |key: u8, context: u8, sealed: &[u8]| {
            ShareBox::new(&[key; 32], [context; 32]).open(sealed).map(|plain| plain.to_vec())
        };
        assert_eq!(open(1, 2, &sealed), Some(b"shares".to_vec()));
        assert_eq!(open(3, 2, &sealed), None, "a different key");
        assert_eq!(open(1, 3, &sealed), None, "the same key in a different context");
        sealed[0] ^= 1;
        assert_eq!(open(1, 2, &sealed), None, "changed");
    }
}
