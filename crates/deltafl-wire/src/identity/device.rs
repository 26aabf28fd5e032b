//! A device's identity: a certificate for TLS and a key to sign with in secure aggregation.
//!
//! ```text
//! FOLDER/device.json    federation, name, number, the authority's Ed25519 key
//! FOLDER/device.pem     its certificate
//! FOLDER/device.key     the key of that certificate
//! FOLDER/signing.key    its Ed25519 key
//! FOLDER/ca.pem         the authority that it trusts
//! ```

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use deltafl_secagg::identity::{DeviceId, SigningIdentity};
use ed25519_dalek::SigningKey;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING as P256, EcdsaKeyPair, KeyPair as _};
use rustls::ClientConfig;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::fingerprint::{from_hex, hex};
use super::{Certified, DeviceName, DeviceRequest, FederationName, Fingerprint, IdentityError, folder, tls};

/// The secrets of a device, made on the device.
pub struct DeviceKeys {
    /// PKCS #8.
    tls: Zeroizing<Vec<u8>>,
    tls_public: Vec<u8>,
    signing: Zeroizing<[u8; 32]>,
}

impl DeviceKeys {
    /// New keys.
    pub fn generate() -> Result<Self, IdentityError> {
        let key =
            EcdsaKeyPair::generate_pkcs8(&P256, &SystemRandom::new()).map_err(|_| IdentityError::Key)?;
        let tls = Zeroizing::new(key.as_ref().to_vec());
        let mut signing = Zeroizing::new([0; 32]);
        getrandom::fill(&mut *signing)?;
        Ok(Self { tls_public: public_half(&tls)?, tls, signing })
    }

    /// What to send to the authority: public halves only.
    pub fn request(&self, name: DeviceName) -> DeviceRequest {
        DeviceRequest { name, tls_key: self.tls_public.clone(), signing_key: self.signing_public() }
    }

    fn signing_public(&self) -> [u8; 32] {
        SigningKey::from_bytes(&self.signing).verifying_key().to_bytes()
    }
}

impl fmt::Debug for DeviceKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DeviceKeys(…)")
    }
}

/// What a device is, and what proves it.
pub struct DeviceIdentity {
    about: About,
    certificate: CertificateDer<'static>,
    authority: CertificateDer<'static>,
    keys: DeviceKeys,
}

/// The part of an identity that is no secret and no certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct About {
    federation: FederationName,
    name: DeviceName,
    number: u32,
    #[serde(with = "hexadecimal")]
    authority_key: [u8; 32],
}

impl DeviceIdentity {
    /// The identity of a device whose keys have been certified.
    pub fn new(federation: FederationName, name: DeviceName, keys: DeviceKeys, certified: Certified) -> Self {
        let Certified { certificate, number, authority, authority_key } = certified;
        Self { about: About { federation, name, number, authority_key }, certificate, authority, keys }
    }

    /// The identity in a folder.
    pub fn open(path: &Path) -> Result<Self, IdentityError> {
        let file = path.join("device.json");
        let text = std::fs::read_to_string(&file).map_err(folder::io_error(&file))?;
        let about: About =
            serde_json::from_str(&text).map_err(|_| folder::malformed(&file, "device of a federation"))?;
        let tls = folder::read_private_key(&path.join("device.key"))?;
        let signing = folder::read_secret_bytes(&path.join("signing.key"))?;
        Ok(Self {
            about,
            certificate: folder::read_certificates(&path.join("device.pem"))?.swap_remove(0),
            authority: folder::read_certificates(&path.join("ca.pem"))?.swap_remove(0),
            keys: DeviceKeys { tls_public: public_half(&tls)?, tls, signing },
        })
    }

    /// Writes the identity into a folder that holds none.
    pub fn save(&self, path: &Path) -> Result<(), IdentityError> {
        folder::create(path)?;
        let key = Zeroizing::new(folder::pem_block("PRIVATE KEY", &self.keys.tls));
        folder::write_secret(&path.join("device.key"), key.as_bytes())?;
        let signing = Zeroizing::new(hex(&*self.keys.signing) + "\n");
        folder::write_secret(&path.join("signing.key"), signing.as_bytes())?;
        folder::write_public(&path.join("device.pem"), &folder::to_pem(&[&self.certificate]))?;
        folder::write_public(&path.join("ca.pem"), &folder::to_pem(&[&self.authority]))?;
        let about = serde_json::to_string_pretty(&self.about).expect("names and numbers are JSON");
        // Last, so that a folder that names a device is whole.
        folder::write_public(&path.join("device.json"), &(about + "\n"))
    }

    /// The federation that it belongs to.
    pub fn federation(&self) -> &FederationName {
        &self.about.federation
    }

    /// Its name, as its certificate says it.
    pub fn name(&self) -> &DeviceName {
        &self.about.name
    }

    /// Its place on the roster: k.
    pub fn number(&self) -> u32 {
        self.about.number
    }

    /// Its certificate.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// The certificate of the authority that it trusts.
    pub fn authority(&self) -> &CertificateDer<'static> {
        &self.authority
    }

    /// The Ed25519 key that verifies what the authority signed.
    pub fn authority_key(&self) -> [u8; 32] {
        self.about.authority_key
    }

    /// The fingerprint of its certificate.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(&self.certificate)
    }

    /// The public half of its signing key, as the roster holds it.
    pub fn signing_public(&self) -> [u8; 32] {
        self.keys.signing_public()
    }

    /// The secret half of its signing key.
    pub fn signing_secret(&self) -> &Zeroizing<[u8; 32]> {
        &self.keys.signing
    }

    /// What it signs with in secure aggregation.
    pub fn signing(&self) -> SigningIdentity {
        SigningIdentity::from_secret(DeviceId(self.number()), &self.keys.signing)
    }

    /// TLS 1.3 towards the server of its federation, with its own certificate.
    pub fn client_tls(&self, alpn: &[&[u8]]) -> Result<Arc<ClientConfig>, IdentityError> {
        let key = PrivatePkcs8KeyDer::from(self.keys.tls.to_vec());
        tls::client(&self.authority, self.certificate.clone(), key, alpn)
    }

    /// The key of its certificate, as PEM.
    pub fn key_pem(&self) -> Zeroizing<String> {
        Zeroizing::new(folder::pem_block("PRIVATE KEY", &self.keys.tls))
    }

    /// The key of its certificate, PKCS #8.
    pub fn tls_secret(&self) -> &[u8] {
        &self.keys.tls
    }

    /// The identity of secrets and certificates that were stored together.
    pub fn from_parts(
        federation: FederationName,
        name: DeviceName,
        certified: Certified,
        tls: Zeroizing<Vec<u8>>,
        signing: Zeroizing<[u8; 32]>,
    ) -> Result<Self, IdentityError> {
        let keys = DeviceKeys { tls_public: public_half(&tls)?, tls, signing };
        Ok(Self::new(federation, name, keys, certified))
    }
}

impl fmt::Debug for DeviceIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceIdentity({} {} of {})", self.number(), self.name(), self.federation())
    }
}

/// The public half of a TLS key in PKCS #8: an uncompressed point of P-256.
fn public_half(tls: &[u8]) -> Result<Vec<u8>, IdentityError> {
    let key = EcdsaKeyPair::from_pkcs8(&P256, tls, &SystemRandom::new()).map_err(|_| IdentityError::Key)?;
    Ok(key.public_key().as_ref().to_vec())
}

/// Keys as hexadecimal digits in JSON.
pub mod hexadecimal {
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    /// Writes a key.
    pub fn serialize<S: Serializer>(bytes: &[u8; 32], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&super::hex(bytes))
    }

    /// Reads a key.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[u8; 32], D::Error> {
        let text = String::deserialize(deserializer)?;
        super::from_hex(&text).ok_or_else(|| D::Error::custom("a key is 64 hexadecimal digits"))
    }
}
