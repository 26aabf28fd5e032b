//! Writes files atomically.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// Writes a file under a temporary name, syncs it, and renames it.
pub(super) fn write(path: &Path, contents: &[u8]) -> io::Result<()> {
    write_with(path, |file| file.write_all(contents))
}

/// Like [`write`], for contents that a function writes.
pub(super) fn write_with<E: From<io::Error>>(
    path: &Path,
    contents: impl FnOnce(&mut File) -> Result<(), E>,
) -> Result<(), E> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".part");
    let part = path.with_file_name(name);
    let written = write_part(&part, contents).and_then(|()| Ok(fs::rename(&part, path)?));
    if written.is_err() {
        // The disk may be full: remove the incomplete file. The first error is reported.
        let _ = fs::remove_file(&part);
    }
    written?;
    // The rename itself must reach the disk before any operation that relies on it.
    if let Some(parent) = path.parent() {
        File::open(parent)?.sync_all()?;
    }
    Ok(())
}

fn write_part<E: From<io::Error>>(
    part: &Path,
    contents: impl FnOnce(&mut File) -> Result<(), E>,
) -> Result<(), E> {
    let mut file = File::create(part)?;
    contents(&mut file)?;
    Ok(file.sync_all()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_leaves_the_old_file_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        write(&path, b"old").unwrap();
        let failed = write_with(&path, |file| {
            file.write_all(b"ne")?;
            Err(io::Error::other("disk full"))
        });
        assert!(failed.is_err());
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
