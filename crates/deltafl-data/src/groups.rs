//! `groups.csv` in a federation folder: the declared group of each device.
//!
//! ```text
//! device,group
//! anna,north
//! boris,south
//! ```

use std::io;
use std::path::Path;

use deltafl::data::Federation;

use super::open::OpenError;

/// The name of the file.
const FILE_NAME: &str = "groups.csv";

/// Writes the declared groups of the devices of a federation folder, as pairs of identity and
/// group. An importer calls it after it has written the folder.
///
/// # Errors
///
/// Fails if the file cannot be written.
pub fn write_groups<'a>(
    folder: impl AsRef<Path>,
    groups: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> io::Result<()> {
    let mut writer = csv::Writer::from_path(folder.as_ref().join(FILE_NAME)).map_err(io::Error::other)?;
    writer.write_record(["device", "group"]).map_err(io::Error::other)?;
    for (device, group) in groups {
        writer.write_record([device, group]).map_err(io::Error::other)?;
    }
    writer.flush()
}

/// Returns whether the devices of a federation folder have declared groups.
pub fn has_groups(folder: impl AsRef<Path>) -> bool {
    folder.as_ref().join(FILE_NAME).is_file()
}

/// Adds the declared groups of a folder to its federation, if it has any.
pub(super) fn declared(folder: &Path, federation: Federation) -> Result<Federation, OpenError> {
    if !has_groups(folder) {
        return Ok(federation);
    }
    let path = folder.join(FILE_NAME);
    let invalid = |problem: String| OpenError::Groups { path: path.clone(), problem };
    let mut reader = csv::Reader::from_path(&path).map_err(|error| invalid(error.to_string()))?;
    let mut groups: Vec<(String, String)> = Vec::new();
    for record in reader.deserialize() {
        groups.push(record.map_err(|error| invalid(error.to_string()))?);
    }
    federation.with_groups(groups).map_err(|error| invalid(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use deltafl::data::synthetic::Glyphs;

    #[test]
    fn groups_are_read_with_the_folder_and_invalid_ones_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        let glyphs = Glyphs { devices: 4.try_into().unwrap(), ..Glyphs::default() }.build();
        crate::save(&glyphs, &path).unwrap();
        let without = crate::open(&path).unwrap();
        assert!(without.group_names().is_empty() && !has_groups(&path));
        let group = |k: deltafl::data::FederationIndex| if k.place() < 2 { "a, b" } else { "c" };
        write_groups(&path, glyphs.devices().map(|k| (glyphs.id(k), group(k)))).unwrap();
        let with = crate::open(&path).unwrap();
        assert_eq!(with.group_names(), ["a, b", "c"]);
        assert!(with.devices().all(|k| with.group(k) == Some(group(k))));
        assert_ne!(with.hash(), without.hash());
        write_groups(&path, [("nobody", "a")]).unwrap();
        assert!(crate::open(&path).unwrap_err().to_string().contains("has no group"));
    }
}
