//! The column of the group of each device.

use std::cell::RefCell;
use std::collections::BTreeSet;

use deltafl::data::MAX_GROUPS;

use crate::import::Imported;
use crate::import::error::{ImportError, ImportProblem};
use crate::import::fast_hash::FastMap;

/// The groups of the devices of a table.
#[derive(Debug, Default)]
pub(super) struct DeclaredGroups {
    by_device: RefCell<FastMap<String>>,
    names: RefCell<BTreeSet<String>>,
}

impl DeclaredGroups {
    /// Adds the group of a row. All rows of a device have the same.
    pub(super) fn add(&self, device: &str, group: &str) -> Result<(), ImportProblem> {
        let mut groups = self.by_device.borrow_mut();
        if group.is_empty() {
            return Err(ImportProblem::NoGroup { device: device.to_owned() });
        }
        match groups.get(device) {
            Some(known) if known == group => Ok(()),
            Some(known) => Err(ImportProblem::TwoGroups {
                device: device.to_owned(),
                first: known.clone(),
                second: group.to_owned(),
            }),
            None => {
                groups.insert(device.to_owned(), group.to_owned());
                let mut names = self.names.borrow_mut();
                names.insert(group.to_owned());
                if names.len() > MAX_GROUPS {
                    Err(ImportProblem::Groups { most: MAX_GROUPS })
                } else {
                    Ok(())
                }
            }
        }
    }

    /// Writes the groups of the devices that were imported, if there are any.
    pub(super) fn write(&self, imported: &Imported) -> Result<(), ImportError> {
        let groups = self.by_device.borrow();
        if groups.is_empty() {
            return Ok(());
        }
        let failed = |source: std::io::Error| ImportError::file(&imported.out, source);
        let federation = imported.open().map_err(|error| failed(std::io::Error::other(error)))?;
        let declared = federation.devices().map(|device| {
            let id = federation.id(device);
            (id, groups.get(id).map_or("", String::as_str))
        });
        crate::write_groups(&imported.out, declared).map_err(failed)
    }
}
