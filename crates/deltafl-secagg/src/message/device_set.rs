//! A set of devices, sorted.

use thiserror::Error;

use crate::identity::DeviceId;

/// A set of devices: strictly increasing ids, so that it has one form only and no duplicates.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeviceSet(Vec<DeviceId>);

/// A list of ids that is not strictly increasing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("device {0} is out of order or there twice")]
pub struct UnsortedDevices(pub DeviceId);

impl DeviceSet {
    /// The ids in increasing order.
    pub fn as_slice(&self) -> &[DeviceId] {
        &self.0
    }

    /// The number of devices.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the device is in the set. O(log n).
    pub fn contains(&self, id: DeviceId) -> bool {
        self.0.binary_search(&id).is_ok()
    }

    /// The devices in increasing order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = DeviceId> + '_ {
        self.0.iter().copied()
    }

    /// The ids in increasing order, without the set.
    pub fn into_vec(self) -> Vec<DeviceId> {
        self.0
    }

    /// The first device that is not in `other`; `None` for a subset.
    pub fn first_outside(&self, other: &Self) -> Option<DeviceId> {
        self.iter().find(|&id| !other.contains(id))
    }
}

impl TryFrom<Vec<DeviceId>> for DeviceSet {
    type Error = UnsortedDevices;

    fn try_from(ids: Vec<DeviceId>) -> Result<Self, UnsortedDevices> {
        match ids.windows(2).find(|pair| pair[0] >= pair[1]) {
            Some(pair) => Err(UnsortedDevices(pair[1])),
            None => Ok(Self(ids)),
        }
    }
}

/// Sorts and drops duplicates.
impl FromIterator<DeviceId> for DeviceSet {
    fn from_iter<I: IntoIterator<Item = DeviceId>>(ids: I) -> Self {
        let mut ids: Vec<DeviceId> = ids.into_iter().collect();
        ids.sort_unstable();
        ids.dedup();
        Self(ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(ids: &[u32]) -> Vec<DeviceId> {
        ids.iter().copied().map(DeviceId).collect()
    }

    #[test]
    fn a_list_with_a_duplicate_or_out_of_order_is_no_set() {
        assert!(DeviceSet::try_from(ids(&[1, 2, 5])).is_ok());
        assert_eq!(DeviceSet::try_from(ids(&[1, 2, 2])), Err(UnsortedDevices(DeviceId(2))));
        assert_eq!(DeviceSet::try_from(ids(&[2, 1])), Err(UnsortedDevices(DeviceId(1))));
    }

    #[test]
    fn the_first_stranger_is_found() {
        let all: DeviceSet = ids(&[4, 1, 2]).into_iter().collect();
        let some: DeviceSet = ids(&[1, 3]).into_iter().collect();
        assert_eq!(some.first_outside(&all), Some(DeviceId(3)));
        assert_eq!(all.first_outside(&all), None);
    }
}
