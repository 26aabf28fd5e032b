//! A fleet whose keys anybody can compute: for demonstrations, tests and load on one machine.
//!
//! Server and devices that are started with `--insecure` talk over a loopback address without certificates, and derive
//! every key from a name. Secure aggregation runs as in the field; only the question who is who is left open.

use ed25519_dalek::{Signer, SigningKey};
use zeroize::Zeroizing;

use crate::identity::Credentials;
use crate::roster::{Edition, Entry, Roster, RosterError, SignedRoster};

/// The enrolment authority of every such fleet.
fn authority() -> SigningKey {
    SigningKey::from_bytes(&secret("authority", ""))
}

fn secret(role: &str, name: &str) -> Zeroizing<[u8; 32]> {
    let mut hasher = blake3::Hasher::new_derive_key("deltafl loopback fleet v1");
    hasher.update(role.as_bytes()).update(b"\0").update(name.as_bytes());
    Zeroizing::new(*hasher.finalize().as_bytes())
}

/// The keys of the device of this name.
pub fn credentials(name: &str) -> Credentials {
    let signing = secret("device", name);
    Credentials { name: name.to_owned(), signing, authority: authority().verifying_key().to_bytes() }
}

/// The roster of these devices, in this order; those whom `revoked` picks are revoked.
pub fn roster<'n>(
    edition: Edition,
    names: impl Iterator<Item = &'n str>,
    revoked: impl Fn(&str) -> bool,
) -> Result<SignedRoster, RosterError> {
    let entry = |name: &str| {
        let key = SigningKey::from_bytes(&secret("device", name)).verifying_key().to_bytes();
        Entry { name: name.to_owned(), key, revoked: revoked(name) }
    };
    Ok(signed(&Roster::new(edition, names.map(entry).collect())?))
}

/// A roster with the signature of the authority of every such fleet.
pub fn signed(roster: &Roster) -> SignedRoster {
    SignedRoster::new(roster, |message| authority().sign(message).to_bytes())
}
