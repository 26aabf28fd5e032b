//! Handshakes in progress, limited in total and per network address.
//!
//! A client without a certificate can open sockets and stay silent. When a limit is reached, the
//! oldest handshake from which no byte has arrived ends in favour of the new one. One address
//! cannot displace handshakes of addresses that have fewer.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::quota::NetworkPrefix;

/// The handshakes of a server.
#[derive(Debug)]
pub(super) struct Handshakes {
    total: usize,
    per_address: usize,
    pending: Mutex<Pending>,
}

#[derive(Debug, Default)]
struct Pending {
    next: u64,
    /// In the order in which they began.
    handshakes: BTreeMap<u64, OpenHandshake>,
    by_network: HashMap<NetworkPrefix, usize>,
}

#[derive(Debug)]
struct OpenHandshake {
    network: NetworkPrefix,
    is_silent: bool,
    evicted: Arc<Notify>,
}

/// A handshake, counted until it is dropped or evicted.
#[derive(Debug)]
pub(super) struct Handshake {
    id: u64,
    evicted: Arc<Notify>,
    all: Arc<Handshakes>,
}

impl Handshakes {
    pub(super) fn new(total: usize, per_address: usize) -> Arc<Self> {
        Arc::new(Self { total, per_address, pending: Mutex::default() })
    }

    /// Begins a handshake. May end an older one. Returns `None` if there is no room.
    pub(super) fn begin(self: &Arc<Self>, address: IpAddr) -> Option<Handshake> {
        let network = NetworkPrefix::from(address);
        let mut pending = self.pending();
        let of = |pending: &Pending, network| pending.by_network.get(&network).copied().unwrap_or(0);
        if of(&pending, network) >= self.per_address {
            pending.evict(|entry| entry.is_silent && entry.network == network).then_some(())?;
        } else if pending.handshakes.len() >= self.total {
            // Only networks with more handshakes than this one make room.
            let own = of(&pending, network);
            let larger: Vec<NetworkPrefix> =
                pending.by_network.iter().filter(|(_, count)| **count > own).map(|(it, _)| *it).collect();
            let made_room = pending.evict(|entry| entry.is_silent && larger.contains(&entry.network))
                || pending.evict(|entry| larger.contains(&entry.network));
            made_room.then_some(())?;
        }
        let (id, evicted) = (pending.next, Arc::new(Notify::new()));
        pending.next += 1;
        *pending.by_network.entry(network).or_default() += 1;
        let entry = OpenHandshake { network, is_silent: true, evicted: Arc::clone(&evicted) };
        pending.handshakes.insert(id, entry);
        Some(Handshake { id, evicted, all: Arc::clone(self) })
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pending {
    /// Ends the oldest handshake of this kind. Returns `false` if there is none.
    fn evict(&mut self, kind: impl Fn(&OpenHandshake) -> bool) -> bool {
        let oldest = self.handshakes.iter().find(|(_, entry)| kind(entry)).map(|(&id, _)| id);
        oldest.and_then(|id| self.remove(id)).is_some_and(|entry| {
            entry.evicted.notify_one();
            true
        })
    }

    fn remove(&mut self, id: u64) -> Option<OpenHandshake> {
        let entry = self.handshakes.remove(&id)?;
        if let Some(count) = self.by_network.get_mut(&entry.network) {
            *count -= 1;
            if *count == 0 {
                self.by_network.remove(&entry.network);
            }
        }
        Some(entry)
    }
}

impl Handshake {
    /// Records that a byte has arrived.
    pub(super) fn set_heard(&self) {
        if let Some(entry) = self.all.pending().handshakes.get_mut(&self.id) {
            entry.is_silent = false;
        }
    }

    /// Returns when the handshake has to make room for another one.
    pub(super) async fn evicted(&self) {
        self.evicted.notified().await;
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        self.all.pending().remove(self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    /// The handshakes that were evicted.
    fn evicted(all: &Arc<Handshakes>, begun: &[Handshake]) -> Vec<u64> {
        let pending = all.pending();
        begun.iter().map(|it| it.id).filter(|id| !pending.handshakes.contains_key(id)).collect()
    }

    #[test]
    fn the_oldest_silent_handshake_of_an_address_makes_room_for_its_next_one() {
        let all = Handshakes::new(10, 3);
        let mut begun: Vec<Handshake> = (0..3).map(|_| all.begin(address(1)).unwrap()).collect();
        begun[0].set_heard();
        begun.push(all.begin(address(1)).unwrap());
        assert_eq!(evicted(&all, &begun), [1], "the oldest has spoken");
        begun[2].set_heard();
        begun[3].set_heard();
        assert!(all.begin(address(1)).is_none(), "none is silent");
        assert!(all.begin(address(2)).is_some(), "another address has its own quota");
        drop(begun);
        assert!(all.pending().by_network.is_empty());
    }

    #[test]
    fn an_address_with_many_handshakes_makes_room_for_one_with_fewer_and_not_the_reverse() {
        let all = Handshakes::new(4, 3);
        let mut begun: Vec<Handshake> = (0..3).map(|_| all.begin(address(1)).unwrap()).collect();
        begun.push(all.begin(address(2)).unwrap());
        begun.push(all.begin(address(3)).unwrap());
        assert_eq!(evicted(&all, &begun), [0]);
        begun.iter().for_each(Handshake::set_heard);
        begun.push(all.begin(address(4)).unwrap());
        assert_eq!(evicted(&all, &begun), [0, 1], "also if it has spoken");
        assert!(all.begin(address(1)).is_none(), "all have one");
    }
}
