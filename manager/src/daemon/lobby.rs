//! The connections in their handshake: their maximum number, and the choice of the one that must go for a
//! newcomer.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};

/// The origin of a connection. All addresses that one host can choose are one origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Origin(IpAddr);

impl Origin {
    /// Returns the origin of an address: an IPv4 address, or the upper half of an IPv6 address, because hosts
    /// choose the lower half.
    pub(super) fn of(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX))),
            address => address,
        })
    }
}

/// The number of a connection in the lobby. A number is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket(u64);

/// The connections of a lobby, each with a value that ends it.
#[derive(Debug)]
pub(super) struct Lobby<T> {
    /// The connections, the oldest first.
    pending: BTreeMap<Ticket, (Origin, T)>,
    counts: HashMap<Origin, usize>,
    capacity: usize,
    next: u64,
}

impl<T> Lobby<T> {
    pub(super) fn new(capacity: usize) -> Self {
        Self { pending: BTreeMap::new(), counts: HashMap::new(), capacity, next: 0 }
    }

    /// Returns the ticket of the next connection.
    pub(super) fn ticket(&mut self) -> Ticket {
        self.next += 1;
        Ticket(self.next)
    }

    /// Admits a connection. If the lobby is full, removes and returns the oldest connection of the busiest
    /// origin: no newcomer waits, and an origin with many connections pays for it.
    pub(super) fn enter(&mut self, ticket: Ticket, origin: Origin, end: T) -> Option<T> {
        let evicted = if self.pending.len() < self.capacity { None } else { self.evict() };
        self.pending.insert(ticket, (origin, end));
        *self.counts.entry(origin).or_default() += 1;
        evicted
    }

    /// Removes and returns the oldest connection of the busiest origin.
    pub(super) fn evict(&mut self) -> Option<T> {
        let most = self.counts.values().copied().max()?;
        let busiest = |(_, (origin, _)): &(&Ticket, &(Origin, T))| self.counts.get(origin) == Some(&most);
        let ticket = self.pending.iter().find(busiest).map(|(&ticket, _)| ticket)?;
        self.leave(ticket)
    }

    /// Removes a connection. Returns `None` if it was evicted before.
    pub(super) fn leave(&mut self, ticket: Ticket) -> Option<T> {
        let (origin, end) = self.pending.remove(&ticket)?;
        if let Some(count) = self.counts.get_mut(&origin) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&origin);
            }
        }
        Some(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(last: u8) -> Origin {
        Origin::of(IpAddr::from([10, 0, 0, last]))
    }

    fn enter(lobby: &mut Lobby<u32>, from: u8, end: u32) -> (Ticket, Option<u32>) {
        let ticket = lobby.ticket();
        (ticket, lobby.enter(ticket, origin(from), end))
    }

    #[test]
    fn the_busiest_origin_pays_with_its_oldest() {
        let mut lobby = Lobby::new(4);
        let (quiet, _) = enter(&mut lobby, 1, 10);
        for end in 20..23 {
            assert_eq!(enter(&mut lobby, 2, end).1, None);
        }
        // A newcomer from anywhere, also from the busiest origin, costs that origin its oldest connection.
        assert_eq!(enter(&mut lobby, 2, 23).1, Some(20));
        assert_eq!(enter(&mut lobby, 3, 30).1, Some(21));
        assert_eq!(lobby.leave(quiet), Some(10));
        assert_eq!(lobby.leave(quiet), None);
        assert_eq!(enter(&mut lobby, 1, 11).1, None, "there was room again");
    }

    #[test]
    fn among_equals_the_oldest_goes() {
        let mut lobby = Lobby::new(3);
        let tickets = [1, 2, 3].map(|from| enter(&mut lobby, from, u32::from(from)).0);
        assert_eq!(enter(&mut lobby, 4, 4).1, Some(1));
        assert_eq!(lobby.leave(tickets[0]), None, "evicted");
        assert_eq!(lobby.leave(tickets[1]), Some(2));
    }

    #[test]
    fn an_ipv6_network_is_one_origin() {
        let of = |text: &str| Origin::of(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1:2"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
    }
}
