//! Declared groups of devices, for example regions or kinds of hardware.
//!
//! A group belongs to the identity of a device. It therefore stays the same when a federation is
//! split or sampled. Algorithms use it through
//! [`DeviceFacts::group`](crate::selection::DeviceFacts::group).

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::{Federation, FederationIndex};

/// The largest number of groups. Each group adds two numbers to the sum of the updates.
pub const MAX_GROUPS: usize = 8;

/// The groups of the devices of a federation.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeviceGroups {
    /// In alphabetical order.
    names: Vec<String>,
    by_id: HashMap<String, usize>,
}

/// The reason why groups are rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidGroups {
    /// There are too many groups.
    #[error("there are {got} groups; at most {MAX_GROUPS} are possible")]
    TooMany {
        /// The number of groups.
        got: usize,
    },
    /// A device of the federation has no group.
    #[error("device {id:?} has no group")]
    Missing {
        /// The device.
        id: String,
    },
}

impl DeviceGroups {
    fn new(groups: impl IntoIterator<Item = (String, String)>) -> Self {
        let groups: Vec<(String, String)> = groups.into_iter().collect();
        let names: BTreeSet<&String> = groups.iter().map(|(_, group)| group).collect();
        let names: Vec<String> = names.into_iter().cloned().collect();
        let place = |group: &String| names.binary_search(group).expect("the group is in the list");
        let by_id = groups.iter().map(|(id, group)| (id.clone(), place(group))).collect();
        Self { names, by_id }
    }
}

impl Federation {
    /// Returns the federation with a declared group for each device, as pairs of identity and
    /// group. Pairs of unknown devices are ignored.
    ///
    /// # Errors
    ///
    /// Returns an error if a device has no group, or if there are more than [`MAX_GROUPS`] groups.
    ///
    /// ```
    /// use deltafl::data::{DeviceExamples, FederationBuilder, InputKind, Split};
    /// let mut builder = FederationBuilder::new("tiny", InputKind::Bytes { dim: 1 }, 2);
    /// builder.push("a", Split::Train, DeviceExamples::Bytes(&[1]), &[0]).unwrap();
    /// builder.push("b", Split::Train, DeviceExamples::Bytes(&[2]), &[1]).unwrap();
    /// let groups = [("a", "north"), ("b", "south")].map(|(id, group)| (id.to_owned(), group.to_owned()));
    /// let federation = builder.build().with_groups(groups).unwrap();
    /// let of_devices: Vec<_> = federation.devices().map(|k| federation.group(k)).collect();
    /// assert_eq!(of_devices, [Some("north"), Some("south")]);
    /// ```
    pub fn with_groups(
        self,
        groups: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, InvalidGroups> {
        let mut federation = self.with_derived_groups(groups)?;
        let mut text = format!("{} groups", federation.hash);
        for device in federation.devices() {
            text.push_str(&format!(" {:?}", federation.group(device).unwrap_or_default()));
        }
        federation.hash = blake3::hash(text.as_bytes()).to_hex().to_string();
        Ok(federation)
    }

    /// Sets groups that follow from the contents, so that the hash stays.
    pub(super) fn with_derived_groups(
        mut self,
        groups: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, InvalidGroups> {
        let groups = DeviceGroups::new(groups);
        if groups.names.len() > MAX_GROUPS {
            return Err(InvalidGroups::TooMany { got: groups.names.len() });
        }
        if let Some(k) = self.devices().find(|&k| !groups.by_id.contains_key(self.id(k))) {
            return Err(InvalidGroups::Missing { id: self.id(k).to_owned() });
        }
        self.groups = Some(Arc::new(groups));
        Ok(self)
    }

    /// Returns the names of the groups in alphabetical order, or an empty list if devices have
    /// none.
    pub fn group_names(&self) -> &[String] {
        self.groups.as_ref().map_or(&[], |groups| &groups.names)
    }

    /// Returns the group of a device, if groups are declared.
    pub fn group(&self, device: FederationIndex) -> Option<&str> {
        Some(&self.group_names()[self.group_place(device)?])
    }

    /// Returns the index of the group of a device among [`Self::group_names`].
    pub(crate) fn group_place(&self, device: FederationIndex) -> Option<usize> {
        self.groups.as_ref()?.by_id.get(self.id(device)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::synthetic::Glyphs;
    use crate::data::{DeviceSplit, Split};

    #[test]
    fn groups_follow_the_devices_through_a_split_and_change_the_hash() {
        let glyphs = Glyphs { devices: 12.try_into().unwrap(), ..Glyphs::default() }.build();
        let parity = |federation: &Federation| -> Vec<(String, String)> {
            let group = |k: FederationIndex| if k.place().is_multiple_of(2) { "even" } else { "odd" };
            federation.devices().map(|k| (federation.id(k).to_owned(), group(k).to_owned())).collect()
        };
        let grouped = glyphs.clone().with_groups(parity(&glyphs)).unwrap();
        assert_eq!(grouped.group_names(), ["even", "odd"]);
        assert_ne!(grouped.hash(), glyphs.hash());
        let groups: HashMap<String, String> = parity(&glyphs).into_iter().collect();
        let split = grouped.split_devices(&DeviceSplit { seed: 3, ..DeviceSplit::default() }).unwrap();
        for k in split.split(Split::Train) {
            assert_eq!(split.group(k), Some(groups[split.id(k)].as_str()));
        }
    }

    #[test]
    fn a_device_without_a_group_and_too_many_groups_are_refused() {
        let glyphs = Glyphs { devices: 12.try_into().unwrap(), ..Glyphs::default() }.build();
        let missing = glyphs.clone().with_groups([]).unwrap_err();
        assert!(matches!(missing, InvalidGroups::Missing { .. }), "{missing}");
        let each = glyphs.devices().map(|k| (glyphs.id(k).to_owned(), k.place().to_string()));
        let many = glyphs.clone().with_groups(each.collect::<Vec<_>>()).unwrap_err();
        assert_eq!(many, InvalidGroups::TooMany { got: 12 });
    }
}
