//! The private certificate authority of a federation.
//!
//! ```text
//! FOLDER/ca.pem        its certificate, trusted by the server and every device
//! FOLDER/ca.key        the key that issues certificates
//! FOLDER/roster.key    the Ed25519 key that signs rosters
//! ```

mod certificate;
mod fleet;
mod peer;
mod revocations;
mod server;
mod tls;

use std::fmt;
use std::path::Path;

use deltafl_wire::identity::{
    Certified, DeviceIdentity, DeviceKeys, DeviceName, DeviceRequest, FederationName, Fingerprint,
    IdentityError, folder, hex,
};
use ed25519_dalek::{Signer as _, SigningKey};
use rcgen::KeyPair;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use zeroize::Zeroizing;

use self::certificate::unmade;
use self::peer::authority_of;
pub use self::{
    fleet::FleetIdentities,
    peer::{NotADevice, Peer},
    revocations::Revocations,
    server::ServerIdentity,
};

/// The validity period of an authority, longer than any federation runs.
const DAYS: u32 = 3650;

/// The certificate authority of one federation.
pub struct Authority {
    federation: FederationName,
    certificate: CertificateDer<'static>,
    key: KeyPair,
    roster: SigningKey,
}

impl Authority {
    /// Creates a new authority in memory.
    pub fn generate(federation: FederationName, days: u32) -> Result<Self, IdentityError> {
        let key = certificate::new_key()?;
        let certificate = certificate::authority(&federation, days)?.self_signed(&key).map_err(unmade)?;
        let mut secret = Zeroizing::new([0; 32]);
        getrandom::fill(&mut *secret)?;
        let roster = SigningKey::from_bytes(&secret);
        Ok(Self { federation, certificate: certificate.der().clone(), key, roster })
    }

    /// Creates a new authority in a folder that contains none.
    pub fn create(path: &Path, federation: FederationName) -> Result<Self, IdentityError> {
        let authority = Self::generate(federation, DAYS)?;
        folder::create(path)?;
        let key = Zeroizing::new(folder::pem_block("PRIVATE KEY", authority.key.serialized_der()));
        folder::write_secret(&path.join("ca.key"), key.as_bytes())?;
        let roster = Zeroizing::new(hex(authority.roster.as_bytes()) + "\n");
        folder::write_secret(&path.join("roster.key"), roster.as_bytes())?;
        // Written last, so that a folder with a certificate is complete.
        folder::write_public(&path.join("ca.pem"), &folder::to_pem(&[&authority.certificate]))?;
        Ok(authority)
    }

    /// Reads the authority of a folder.
    pub fn open(path: &Path) -> Result<Self, IdentityError> {
        let file = path.join("ca.pem");
        let certificate = folder::read_certificates(&file)?.swap_remove(0);
        let federation = authority_of(&certificate)
            .ok_or_else(|| folder::malformed(&file, "certificate of an authority"))?;
        let key = folder::read_private_key(&path.join("ca.key"))?;
        let key = KeyPair::from_pkcs8_der_and_sign_algo(
            &PrivatePkcs8KeyDer::from(key.as_slice()),
            certificate::ALGORITHM,
        )
        .map_err(unmade)?;
        let roster = SigningKey::from_bytes(&*folder::read_secret_bytes(&path.join("roster.key"))?);
        Ok(Self { federation, certificate, key, roster })
    }

    /// The federation.
    pub fn federation(&self) -> &FederationName {
        &self.federation
    }

    /// The authority's certificate.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// The fingerprint of the certificate, which a token contains.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::for_certificate(&self.certificate)
    }

    /// The Ed25519 key that verifies signatures of [`Self::sign`].
    pub fn public_key(&self) -> [u8; 32] {
        self.roster.verifying_key().to_bytes()
    }

    /// Signs a message for the devices. The message must contain its type, so that it cannot be
    /// reused as another.
    pub fn sign(&self, message: &[u8]) -> [u8; 64] {
        self.roster.sign(message).to_bytes()
    }

    /// Issues a certificate and key for a server with these host names.
    pub fn issue_server(&self, hosts: &[String], days: u32) -> Result<ServerIdentity, IdentityError> {
        let key = certificate::new_key()?;
        let issuer = certificate::issuer(&self.federation, &self.key)?;
        let certificate = certificate::server(hosts, days)?.signed_by(&key, &issuer).map_err(unmade)?;
        Ok(ServerIdentity::new(certificate.der().clone(), self.certificate.clone(), &key))
    }

    /// Certifies a device that generated its own keys.
    pub fn certify(
        &self,
        request: &DeviceRequest,
        number: u32,
        days: u32,
    ) -> Result<Certified, IdentityError> {
        let refused = || IdentityError::PublicKey { device: request.name.clone() };
        let point = certificate::PublicPoint::new(&request.tls_key).ok_or_else(refused)?;
        let issuer = certificate::issuer(&self.federation, &self.key)?;
        let params = certificate::device(&self.federation, &request.name, days)?;
        Ok(Certified {
            certificate: params.signed_by(&point, &issuer).map_err(unmade)?.der().clone(),
            number,
            authority: self.certificate.clone(),
            authority_key: self.public_key(),
        })
    }

    /// Generates and certifies a device's keys, for an operator who distributes folders and for a
    /// swarm.
    pub fn issue_device(
        &self,
        name: &DeviceName,
        number: u32,
        days: u32,
    ) -> Result<DeviceIdentity, IdentityError> {
        let keys = DeviceKeys::generate()?;
        let certified = self.certify(&keys.request(name.clone()), number, days)?;
        Ok(DeviceIdentity::new(self.federation.clone(), name.clone(), keys, certified))
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Authority({}, {})", self.federation, self.fingerprint())
    }
}
