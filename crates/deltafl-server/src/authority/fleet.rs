//! Many devices in one file, for `deltafl swarm`.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use deltafl_wire::identity::{
    Certified, DeviceIdentity, DeviceName, FederationName, IdentityError, folder, hexadecimal,
};
use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, Zeroizing};

use super::Authority;

/// Devices of one federation, by number.
#[derive(Debug)]
pub struct FleetIdentities {
    /// The devices.
    pub devices: Vec<DeviceIdentity>,
}

#[derive(Serialize, Deserialize)]
struct File {
    federation: FederationName,
    authority: String,
    #[serde(with = "hexadecimal")]
    authority_key: [u8; 32],
    devices: Vec<FleetEntry>,
}

#[derive(Serialize, Deserialize)]
struct FleetEntry {
    name: DeviceName,
    number: u32,
    certificate: String,
    tls: String,
    #[serde(with = "hexadecimal")]
    signing: [u8; 32],
}

impl Drop for FleetEntry {
    fn drop(&mut self) {
        self.tls.zeroize();
        self.signing.zeroize();
    }
}

impl FleetIdentities {
    /// Issues `count` devices numbered from `first`, named `device-00000` and so on.
    pub fn issue(authority: &Authority, first: u32, count: u32, days: u32) -> Result<Self, IdentityError> {
        let issue = |number: u32| {
            let name = DeviceName::try_from(format!("device-{number:05}")).expect("letters and digits");
            authority.issue_device(&name, number, days)
        };
        Ok(Self { devices: (first..first.saturating_add(count)).map(issue).collect::<Result<_, _>>()? })
    }

    /// Writes the devices to a new file that only its owner can read.
    pub fn write(&self, path: &Path) -> Result<(), IdentityError> {
        let Some(first) = self.devices.first() else {
            return Err(folder::malformed(path, "device"));
        };
        let entry = |device: &DeviceIdentity| FleetEntry {
            name: device.name().clone(),
            number: device.number(),
            certificate: STANDARD.encode(device.certificate()),
            tls: STANDARD.encode(device.tls_secret()),
            signing: **device.signing_secret(),
        };
        let file = File {
            federation: first.federation().clone(),
            authority: STANDARD.encode(first.authority()),
            authority_key: first.authority_key(),
            devices: self.devices.iter().map(entry).collect(),
        };
        let json = Zeroizing::new(serde_json::to_vec(&file).expect("text and numbers serialise to JSON"));
        folder::write_secret(path, &json)
    }

    /// Reads the devices from a file.
    pub fn read(path: &Path) -> Result<Self, IdentityError> {
        let text = folder::read_secret(path)?;
        let refused = || folder::malformed(path, "fleet of devices");
        let file: File = serde_json::from_str(&text).map_err(|_| refused())?;
        let decoded = |text: &str| STANDARD.decode(text).map_err(|_| refused());
        let authority = CertificateDer::from(decoded(&file.authority)?);
        let device = |entry: &FleetEntry| {
            let certified = Certified {
                certificate: decoded(&entry.certificate)?.into(),
                number: entry.number,
                authority: authority.clone(),
                authority_key: file.authority_key,
            };
            let (tls, signing) = (Zeroizing::new(decoded(&entry.tls)?), Zeroizing::new(entry.signing));
            DeviceIdentity::from_parts(file.federation.clone(), entry.name.clone(), certified, tls, signing)
        };
        Ok(Self { devices: file.devices.iter().map(device).collect::<Result<_, _>>()? })
    }
}
