//! Admission of connections: those in their handshake, and those that have proved that they have a key.

use super::limits::Limits;
use super::lobby::{Lobby, Origin, Ticket};
use proto::channel::Role;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// The admission of all connections.
#[derive(Debug)]
pub(super) struct Door {
    counts: Mutex<Counts>,
    limits: Limits,
}

#[derive(Debug)]
struct Counts {
    /// The connections in their handshake, each with a sender whose drop ends it.
    lobby: Lobby<oneshot::Sender<()>>,
    nodes: usize,
    clients: usize,
}

/// A connection in its handshake. It leaves the lobby when this is dropped.
#[derive(Debug)]
pub(super) struct Pending {
    door: Arc<Door>,
    ticket: Ticket,
    evicted: oneshot::Receiver<()>,
}

/// The permit of a connection whose peer has proved that it has a key. It is released when dropped.
#[derive(Debug)]
pub(super) struct Permit {
    door: Arc<Door>,
    role: Role,
}

/// The reason why a connection gets no permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Denied {
    /// The connection had to end in favour of a newer one.
    Evicted,
    /// The maximum number of connections exists; with a text for people.
    Full(&'static str),
}

impl Door {
    pub(super) fn new(limits: Limits) -> Arc<Self> {
        let counts = Counts { lobby: Lobby::new(limits.handshakes), nodes: 0, clients: 0 };
        Arc::new(Self { counts: Mutex::new(counts), limits })
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits a connection to the lobby. If the lobby is full, the oldest connection of the busiest origin
    /// must go.
    pub(super) fn enter(self: &Arc<Self>, origin: Origin) -> Pending {
        let (stay, evicted) = oneshot::channel();
        let mut counts = self.counts();
        let ticket = counts.lobby.ticket();
        counts.lobby.enter(ticket, origin, stay);
        drop(counts);
        Pending { door: self.clone(), ticket, evicted }
    }

    /// Ends the connection that would have to go for a newcomer, to free its descriptor.
    pub(super) fn evict(&self) {
        self.counts().lobby.evict();
    }

    /// Ends all connections in their handshake.
    pub(super) fn clear(&self) {
        while self.counts().lobby.evict().is_some() {}
    }
}

impl Pending {
    /// Returns when the connection must end.
    pub(super) async fn evicted(&mut self) {
        let _ = (&mut self.evicted).await;
    }

    /// Exchanges the place in the lobby for a permit, for the role that the key has proved.
    pub(super) fn admit(self, role: Role) -> Result<Permit, Denied> {
        let door = self.door.clone();
        let mut counts = door.counts();
        if counts.lobby.leave(self.ticket).is_none() {
            return Err(Denied::Evicted);
        }
        if counts.nodes + counts.clients >= door.limits.connections {
            return Err(Denied::Full(
                "the manager has as many connections as its limit of open files allows",
            ));
        }
        match role {
            Role::Client if counts.clients >= door.limits.clients => {
                return Err(Denied::Full("the manager has the maximum number of client connections"));
            }
            Role::Client => counts.clients += 1,
            Role::Node => counts.nodes += 1,
        }
        drop(counts);
        Ok(Permit { door, role })
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.door.counts().lobby.leave(self.ticket);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut counts = self.door.counts();
        match self.role {
            Role::Client => counts.clients -= 1,
            Role::Node => counts.nodes -= 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn door(handshakes: usize, connections: usize, clients: usize) -> Arc<Door> {
        Door::new(Limits { handshakes, connections, clients })
    }

    fn origin() -> Origin {
        Origin::of(std::net::Ipv4Addr::LOCALHOST.into())
    }

    #[test]
    fn an_evicted_connection_gets_no_permit() {
        let door = door(1, 2, 1);
        let mut first = door.enter(origin());
        assert!(first.evicted.try_recv().is_err_and(|e| e == oneshot::error::TryRecvError::Empty));
        let second = door.enter(origin());
        assert!(first.evicted.try_recv().is_err_and(|e| e == oneshot::error::TryRecvError::Closed));
        assert_eq!(first.admit(Role::Node).unwrap_err(), Denied::Evicted);
        assert!(second.admit(Role::Node).is_ok());
    }

    #[test]
    fn clients_leave_permits_to_nodes() {
        let door = door(4, 2, 1);
        let client = door.enter(origin()).admit(Role::Client).unwrap();
        assert!(matches!(door.enter(origin()).admit(Role::Client), Err(Denied::Full(_))));
        let node = door.enter(origin()).admit(Role::Node).unwrap();
        assert!(matches!(door.enter(origin()).admit(Role::Node), Err(Denied::Full(_))));
        drop((client, node));
        assert!(door.enter(origin()).admit(Role::Client).is_ok());
    }
}
