//! A device's identity: a certificate for TLS and a signing key for secure aggregation.
//!
//! ```text
//! FOLDER/device.json    federation, name, number, the authority's Ed25519 key
//! FOLDER/device.pem     the device's certificate
//! FOLDER/device.key     the key of that certificate
//! FOLDER/signing.key    the device's Ed25519 key
//! FOLDER/ca.pem         the certificate of the trusted authority
//! ```

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use deltafl_secagg::identity::{DeviceId, SigningIdentity};
use ed25519_dalek::{Signer as _, SigningKey};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING as P256, EcdsaKeyPair, KeyPair as _};
use rustls::ClientConfig;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::fingerprint::{from_hex, hex};
use super::{Certified, DeviceName, DeviceRequest, FederationName, Fingerprint, IdentityError, folder, tls};

/// The secret keys of a device, generated on the device.
pub struct DeviceKeys {
    /// PKCS #8.
    tls: Zeroizing<Vec<u8>>,
    tls_public: Vec<u8>,
    signing: Zeroizing<[u8; 32]>,
}

impl DeviceKeys {
    /// Generates new keys.
    pub fn generate() -> Result<Self, IdentityError> {
        let key =
            EcdsaKeyPair::generate_pkcs8(&P256, &SystemRandom::new()).map_err(|_| IdentityError::Key)?;
        let tls = Zeroizing::new(key.as_ref().to_vec());
        let mut signing = Zeroizing::new([0; 32]);
        getrandom::fill(&mut *signing)?;
        Ok(Self { tls_public: public_half(&tls)?, tls, signing })
    }

    /// Returns the request for the authority. It contains only public keys.
    pub fn request(&self, name: DeviceName) -> DeviceRequest {
        DeviceRequest { name, tls_key: self.tls_public.clone(), signing_key: self.signing_public() }
    }

    /// Signs a message with the Ed25519 key, to prove that the device has it.
    pub fn sign(&self, message: &[u8]) -> [u8; 64] {
        SigningKey::from_bytes(&self.signing).sign(message).to_bytes()
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

/// The name, certificate and keys of a device.
pub struct DeviceIdentity {
    about: IdentityInfo,
    certificate: CertificateDer<'static>,
    authority: CertificateDer<'static>,
    keys: DeviceKeys,
}

/// The part of an identity that is neither secret nor a certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct IdentityInfo {
    federation: FederationName,
    name: DeviceName,
    number: u32,
    #[serde(with = "hexadecimal")]
    authority_key: [u8; 32],
}

impl DeviceIdentity {
    /// Creates an identity from certified keys.
    pub fn new(federation: FederationName, name: DeviceName, keys: DeviceKeys, certified: Certified) -> Self {
        let Certified { certificate, number, authority, authority_key } = certified;
        Self { about: IdentityInfo { federation, name, number, authority_key }, certificate, authority, keys }
    }

    /// Reads an identity from a folder.
    pub fn open(path: &Path) -> Result<Self, IdentityError> {
        let file = path.join("device.json");
        let text = std::fs::read_to_string(&file).map_err(folder::io_error(&file))?;
        let about: IdentityInfo =
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

    /// Checks that an identity can be saved into a folder, and creates the folder. A device does
    /// this before it uses up its token.
    pub fn prepare(path: &Path) -> Result<(), IdentityError> {
        folder::create(path)?;
        let files = ["device.json", "device.pem", "device.key", "signing.key", "ca.pem"];
        if let Some(path) = files.map(|name| path.join(name)).into_iter().find(|file| file.exists()) {
            return Err(IdentityError::Exists { path });
        }
        let probe = path.join(".probe");
        let written = folder::write_secret(&probe, &[b' '; 8192]);
        if matches!(written, Err(IdentityError::Exists { .. })) {
            return written;
        }
        let removed = std::fs::remove_file(&probe).map_err(folder::io_error(&probe));
        written.and(removed)
    }

    /// Writes the identity into a folder that contains none.
    pub fn save(&self, path: &Path) -> Result<(), IdentityError> {
        folder::create(path)?;
        let key = Zeroizing::new(folder::pem_block("PRIVATE KEY", &self.keys.tls));
        folder::write_secret(&path.join("device.key"), key.as_bytes())?;
        let signing = Zeroizing::new(hex(&*self.keys.signing) + "\n");
        folder::write_secret(&path.join("signing.key"), signing.as_bytes())?;
        folder::write_public(&path.join("device.pem"), &folder::to_pem(&[&self.certificate]))?;
        folder::write_public(&path.join("ca.pem"), &folder::to_pem(&[&self.authority]))?;
        let about = serde_json::to_string_pretty(&self.about).expect("names and numbers are JSON");
        // Written last: a folder with this file is complete.
        folder::write_public(&path.join("device.json"), &(about + "\n"))
    }

    /// Returns the name of the federation.
    pub fn federation(&self) -> &FederationName {
        &self.about.federation
    }

    /// Returns the name of the device, as in its certificate.
    pub fn name(&self) -> &DeviceName {
        &self.about.name
    }

    /// Returns k, the index of the device on the roster.
    pub fn number(&self) -> u32 {
        self.about.number
    }

    /// Returns the device's certificate.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// Returns the certificate of the trusted authority.
    pub fn authority(&self) -> &CertificateDer<'static> {
        &self.authority
    }

    /// Returns the Ed25519 key that verifies the authority's signatures.
    pub fn authority_key(&self) -> [u8; 32] {
        self.about.authority_key
    }

    /// Returns the fingerprint of the device's certificate.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::for_certificate(&self.certificate)
    }

    /// Returns the public signing key, as on the roster.
    pub fn signing_public(&self) -> [u8; 32] {
        self.keys.signing_public()
    }

    /// Returns the secret signing key.
    pub fn signing_secret(&self) -> &Zeroizing<[u8; 32]> {
        &self.keys.signing
    }

    /// Returns the signing identity for secure aggregation.
    pub fn signing(&self) -> SigningIdentity {
        SigningIdentity::from_secret(DeviceId(self.number()), &self.keys.signing)
    }

    /// Returns the TLS 1.3 configuration for connections to the server, with the device's
    /// certificate.
    pub fn client_tls(&self, alpn: &[&[u8]]) -> Result<Arc<ClientConfig>, IdentityError> {
        let key = PrivatePkcs8KeyDer::from(self.keys.tls.to_vec());
        tls::client(&self.authority, self.certificate.clone(), key, alpn)
    }

    /// Returns the secret key of the certificate, in PEM.
    pub fn key_pem(&self) -> Zeroizing<String> {
        Zeroizing::new(folder::pem_block("PRIVATE KEY", &self.keys.tls))
    }

    /// Returns the secret key of the certificate, in PKCS #8.
    pub fn tls_secret(&self) -> &[u8] {
        &self.keys.tls
    }

    /// Creates an identity from stored keys and certificates.
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

/// Returns the public key of a PKCS #8 TLS key: an uncompressed point of P-256.
fn public_half(tls: &[u8]) -> Result<Vec<u8>, IdentityError> {
    let key = EcdsaKeyPair::from_pkcs8(&P256, tls, &SystemRandom::new()).map_err(|_| IdentityError::Key)?;
    Ok(key.public_key().as_ref().to_vec())
}

/// Serialisation of keys as hexadecimal digits.
pub mod hexadecimal {
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    /// Serialises a key.
    pub fn serialize<S: Serializer>(bytes: &[u8; 32], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&super::hex(bytes))
    }

    /// Deserialises a key.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[u8; 32], D::Error> {
        let text = String::deserialize(deserializer)?;
        super::from_hex(&text).ok_or_else(|| D::Error::custom("a key is 64 hexadecimal digits"))
    }
}
