//! The files of an identity. A file is written completely or not at all; only its owner reads a
//! key.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use zeroize::Zeroizing;

use super::IdentityError;
use super::fingerprint::from_hex;

/// Encodes certificates as PEM.
pub fn to_pem(certificates: &[&CertificateDer<'_>]) -> String {
    certificates.iter().map(|certificate| pem_block("CERTIFICATE", certificate.as_ref())).collect()
}

/// Decodes the certificates of a PEM text. Returns `None` if it is malformed or contains none.
pub fn from_pem(text: &str) -> Option<Vec<CertificateDer<'static>>> {
    let certificates: Vec<_> =
        CertificateDer::pem_slice_iter(text.as_bytes()).collect::<Result<_, _>>().ok()?;
    (!certificates.is_empty()).then_some(certificates)
}

/// Encodes a PEM block with base64 lines of 64 characters.
pub fn pem_block(label: &str, der: &[u8]) -> String {
    let text = Zeroizing::new(STANDARD.encode(der));
    let mut pem = String::with_capacity(text.len() + text.len() / 64 + 2 * label.len() + 40);
    pem.push_str(&format!("-----BEGIN {label}-----\n"));
    for line in text.as_bytes().chunks(64) {
        pem.push_str(std::str::from_utf8(line).expect("base64 is ASCII"));
        pem.push('\n');
    }
    pem.push_str(&format!("-----END {label}-----\n"));
    pem
}

/// Creates a folder and its parents.
pub fn create(folder: &Path) -> Result<(), IdentityError> {
    fs::create_dir_all(folder).map_err(io_error(folder))
}

/// Writes a new file that every user may read.
pub fn write_public(path: &Path, text: &str) -> Result<(), IdentityError> {
    write(path, text.as_bytes(), 0o644)
}

/// Writes a new file that only its owner may read.
pub fn write_secret(path: &Path, text: &[u8]) -> Result<(), IdentityError> {
    write(path, text, 0o600)
}

fn write(path: &Path, contents: &[u8], mode: u32) -> Result<(), IdentityError> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    with_mode(&mut options, mode);
    let written = options.open(path).and_then(|mut file| {
        file.write_all(contents)?;
        file.sync_all()
    });
    written.map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => IdentityError::Exists { path: path.to_owned() },
        _ => io_error(path)(source),
    })
}

#[cfg(unix)]
fn with_mode(options: &mut OpenOptions, mode: u32) {
    use std::os::unix::fs::OpenOptionsExt as _;
    options.mode(mode);
}

#[cfg(not(unix))]
fn with_mode(_: &mut OpenOptions, _: u32) {}

/// Reads a key file. Fails if other users can read it.
pub fn read_secret(path: &Path) -> Result<Zeroizing<String>, IdentityError> {
    let mut file = File::open(path).map_err(io_error(path))?;
    refuse_exposed(path, &file)?;
    let mut text = Zeroizing::new(String::new());
    file.read_to_string(&mut text).map_err(io_error(path))?;
    Ok(text)
}

#[cfg(unix)]
fn refuse_exposed(path: &Path, file: &File) -> Result<(), IdentityError> {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = file.metadata().map_err(io_error(path))?.permissions().mode() & 0o777;
    if mode & 0o077 == 0 { Ok(()) } else { Err(IdentityError::Exposed { path: path.to_owned(), mode }) }
}

#[cfg(not(unix))]
fn refuse_exposed(_: &Path, _: &File) -> Result<(), IdentityError> {
    Ok(())
}

/// Reads a secret of 32 bytes from hexadecimal digits.
pub fn read_secret_bytes(path: &Path) -> Result<Zeroizing<[u8; 32]>, IdentityError> {
    let text = read_secret(path)?;
    from_hex(text.trim()).map(Zeroizing::new).ok_or_else(|| malformed(path, "key of 64 hexadecimal digits"))
}

/// Reads a file of certificates.
pub fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let text = fs::read_to_string(path).map_err(io_error(path))?;
    from_pem(&text).ok_or_else(|| malformed(path, "certificate"))
}

/// Reads a PKCS #8 private key in PEM.
pub fn read_private_key(path: &Path) -> Result<Zeroizing<Vec<u8>>, IdentityError> {
    let text = read_secret(path)?;
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from_pem_slice(text.as_bytes())
        .map_err(|_| malformed(path, "private key"))?;
    Ok(Zeroizing::new(key.secret_pkcs8_der().to_vec()))
}

/// Returns the error for a file with unexpected contents.
pub fn malformed(path: &Path, expected: &'static str) -> IdentityError {
    IdentityError::Malformed { path: path.to_owned(), expected }
}

/// Returns a converter from I/O errors of `path`.
pub fn io_error(path: &Path) -> impl Fn(io::Error) -> IdentityError + use<> {
    let path: PathBuf = path.to_owned();
    move |source| IdentityError::Io { path: path.clone(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_read_as_they_are_written() {
        let certificates = [vec![7; 100], vec![1]].map(CertificateDer::from);
        let pem = to_pem(&certificates.each_ref());
        assert!(pem.lines().all(|line| line.len() <= 64), "{pem}");
        assert_eq!(from_pem(&pem).unwrap(), certificates);
        assert_eq!(from_pem("no certificate"), None);
        assert_eq!(from_pem("-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n"), None);
    }

    #[test]
    fn nothing_is_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.key");
        write_secret(&path, b"one").unwrap();
        assert!(matches!(write_secret(&path, b"two"), Err(IdentityError::Exists { .. })));
        assert_eq!(*read_secret(&path).unwrap(), "one");
    }

    #[cfg(unix)]
    #[test]
    fn a_key_that_others_can_read_is_refused() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.key");
        write_secret(&path, b"one").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        for mode in [0o640, 0o604, 0o644] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert!(matches!(read_secret(&path), Err(IdentityError::Exposed { .. })), "{mode:o}");
        }
    }
}
