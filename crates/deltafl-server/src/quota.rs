//! Limits per network address.
//!
//! An IPv6 customer usually has a whole /64. Its addresses therefore share one limit.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An IPv4 address or the /64 of an IPv6 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NetworkPrefix(IpAddr);

impl From<IpAddr> for NetworkPrefix {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(address) => {
                let prefix = address.to_bits() & !u128::from(u64::MAX);
                Self(IpAddr::V6(Ipv6Addr::from_bits(prefix)))
            }
            address => Self(address),
        }
    }
}

/// The number of uses of a resource by each network.
#[derive(Debug)]
pub(crate) struct AddressQuota {
    most: usize,
    used: Mutex<HashMap<NetworkPrefix, usize>>,
}

/// One use of a resource, counted until it is dropped.
#[derive(Debug)]
pub(crate) struct QuotaUse {
    network: NetworkPrefix,
    quota: Arc<AddressQuota>,
}

impl AddressQuota {
    /// Allows `most` concurrent uses per network.
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, used: Mutex::default() })
    }

    /// Counts one use. Returns `None` if the network has used up its quota.
    pub(crate) fn take(self: &Arc<Self>, address: IpAddr) -> Option<QuotaUse> {
        let network = NetworkPrefix::from(address);
        let mut used = self.used();
        let uses = used.entry(network).or_default();
        if *uses >= self.most {
            return None;
        }
        *uses += 1;
        Some(QuotaUse { network, quota: Arc::clone(self) })
    }

    fn used(&self) -> MutexGuard<'_, HashMap<NetworkPrefix, usize>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for QuotaUse {
    fn drop(&mut self) {
        let mut used = self.quota.used();
        if let Some(uses) = used.get_mut(&self.network) {
            *uses -= 1;
            if *uses == 0 {
                used.remove(&self.network);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_64_share_a_quota_and_others_have_their_own() {
        let quota = AddressQuota::new(2);
        let take = |address: &str| quota.take(address.parse().unwrap());
        let (one, _other) = (take("2001:db8::1").unwrap(), take("2001:db8::ffff").unwrap());
        assert!(take("2001:db8::2").is_none());
        let _next = take("2001:db8:0:1::1").unwrap();
        drop(one);
        let _again = take("2001:db8::3").unwrap();
        let (_four, _mapped) = (take("192.0.2.1").unwrap(), take("::ffff:192.0.2.1").unwrap());
        assert!(take("192.0.2.1").is_none(), "a mapped address is the IPv4 address");
        assert!(take("192.0.2.2").is_some());
    }
}
