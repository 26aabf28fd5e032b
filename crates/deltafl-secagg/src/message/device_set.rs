//! A sorted set of devices.

use thiserror::Error;

use crate::identity::DeviceId;

/// A set of devices with strictly increasing ids, so that each set has one encoding.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeviceSet(Vec<DeviceId>);

/// The ids of a list are not strictly increasing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("device {0} is repeated or out of order")]
pub struct UnsortedDevices(pub DeviceId);

impl DeviceSet {
    /// Returns the ids in increasing order.
    pub fn as_slice(&self) -> &[DeviceId] {
        &self.0
    }

    /// Returns the number of devices.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true if the device is in the set. O(log n).
    pub fn contains(&self, id: DeviceId) -> bool {
        self.0.binary_search(&id).is_ok()
    }

    /// Returns an iterator over the devices in increasing order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = DeviceId> + '_ {
        self.0.iter().copied()
    }

    /// Converts the set into a vector of ids in increasing order.
    pub fn into_vec(self) -> Vec<DeviceId> {
        self.0
    }

    /// Returns the first device that is not in `other`, or `None` for a subset.
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

/// Sorts the ids and removes duplicates.
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
    fn repeated_and_unsorted_ids_are_rejected() {
        assert!(DeviceSet::try_from(ids(&[1, 2, 5])).is_ok());
        assert_eq!(DeviceSet::try_from(ids(&[1, 2, 2])), Err(UnsortedDevices(DeviceId(2))));
        assert_eq!(DeviceSet::try_from(ids(&[2, 1])), Err(UnsortedDevices(DeviceId(1))));
    }

    #[test]
    fn first_outside_returns_the_first_device_of_the_difference() {
        let all: DeviceSet = ids(&[4, 1, 2]).into_iter().collect();
        let some: DeviceSet = ids(&[1, 3]).into_iter().collect();
        assert_eq!(some.first_outside(&all), Some(DeviceId(3)));
        assert_eq!(all.first_outside(&all), None);
    }
}
