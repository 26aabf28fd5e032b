//! A fleet with publicly derivable keys, for demonstrations, tests and load on one machine.
//!
//! A server and devices started with `--insecure` use a loopback address without certificates, and
//! derive every key from a name. Secure aggregation runs as usual; only authentication is missing.

use ed25519_dalek::{Signer, SigningKey};
use zeroize::Zeroizing;

use crate::identity::Credentials;
use crate::roster::{Roster, RosterEntry, RosterError, RosterVersion, SignedRoster};

/// Returns the enrolment authority of every loopback fleet.
fn authority() -> SigningKey {
    SigningKey::from_bytes(&secret("authority", ""))
}

fn secret(role: &str, name: &str) -> Zeroizing<[u8; 32]> {
    let mut hasher = blake3::Hasher::new_derive_key("deltafl loopback fleet v1");
    hasher.update(role.as_bytes()).update(b"\0").update(name.as_bytes());
    Zeroizing::new(*hasher.finalize().as_bytes())
}

/// Returns the keys of the device with this name.
pub fn credentials(name: &str) -> Credentials {
    let signing = secret("device", name);
    Credentials { name: name.to_owned(), signing, authority: authority().verifying_key().to_bytes() }
}

/// Returns the signed roster of these devices, in this order. `revoked` selects the revoked ones.
///
/// # Errors
/// Fails if two names are equal.
pub fn roster<'n>(
    edition: RosterVersion,
    names: impl Iterator<Item = &'n str>,
    revoked: impl Fn(&str) -> bool,
) -> Result<SignedRoster, RosterError> {
    let entry = |name: &str| {
        let key = SigningKey::from_bytes(&secret("device", name)).verifying_key().to_bytes();
        RosterEntry { name: name.to_owned(), key, revoked: revoked(name) }
    };
    Ok(signed(&Roster::new(edition, names.map(entry).collect())?))
}

/// Signs a roster with the key of the loopback authority.
pub fn signed(roster: &Roster) -> SignedRoster {
    SignedRoster::new(roster, |message| authority().sign(message).to_bytes())
}
