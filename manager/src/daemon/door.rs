//! Admission of connections: those in their handshake, and those that have proved that they have a key.

use super::limits::Limits;
use super::lobby::{Lobby, Origin, Ticket};
use proto::channel::Role;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// The admission of all connections.
#[derive(Debug)]
pub(super) struct Door {
    rooms: Mutex<Rooms>,
    limits: Limits,
}

#[derive(Debug)]
struct Rooms {
    /// The connections in their handshake, each with a sender whose drop ends it.
    lobby: Lobby<oneshot::Sender<()>>,
    nodes: usize,
    clients: usize,
}

/// A connection in its handshake. It leaves the lobby when this is dropped.
#[derive(Debug)]
pub(super) struct Guest {
    door: Arc<Door>,
    ticket: Ticket,
    told_to_go: oneshot::Receiver<()>,
}

/// The permit of a connection whose peer has proved that it has a key. It is released when dropped.
#[derive(Debug)]
pub(super) struct Seat {
    door: Arc<Door>,
    role: Role,
}

/// The reason why a connection gets no permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoSeat {
    /// The connection had to end in favour of a newer one.
    Evicted,
    /// The maximum number of connections exists; with a text for people.
    Full(&'static str),
}

impl Door {
    pub(super) fn new(limits: Limits) -> Arc<Self> {
        let rooms = Rooms { lobby: Lobby::new(limits.handshakes), nodes: 0, clients: 0 };
        Arc::new(Self { rooms: Mutex::new(rooms), limits })
    }

    fn rooms(&self) -> MutexGuard<'_, Rooms> {
        self.rooms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits a connection to the lobby. If the lobby is full, the oldest connection of the busiest origin
    /// must go.
    pub(super) fn enter(self: &Arc<Self>, origin: Origin) -> Guest {
        let (stay, told_to_go) = oneshot::channel();
        let mut rooms = self.rooms();
        let ticket = rooms.lobby.ticket();
        rooms.lobby.enter(ticket, origin, stay);
        drop(rooms);
        Guest { door: self.clone(), ticket, told_to_go }
    }

    /// Ends the connection that would have to go for a newcomer, to free its descriptor.
    pub(super) fn evict(&self) {
        self.rooms().lobby.evict();
    }

    /// Ends all connections in their handshake.
    pub(super) fn clear(&self) {
        while self.rooms().lobby.evict().is_some() {}
    }
}

impl Guest {
    /// Returns when the connection must end.
    pub(super) async fn told_to_go(&mut self) {
        let _ = (&mut self.told_to_go).await;
    }

    /// Exchanges the place in the lobby for a permit, for the role that the key has proved.
    pub(super) fn sit(self, role: Role) -> Result<Seat, NoSeat> {
        let door = self.door.clone();
        let mut rooms = door.rooms();
        if rooms.lobby.leave(self.ticket).is_none() {
            return Err(NoSeat::Evicted);
        }
        if rooms.nodes + rooms.clients >= door.limits.connections {
            return Err(NoSeat::Full(
                "the manager has as many connections as its limit of open files allows",
            ));
        }
        match role {
            Role::Client if rooms.clients >= door.limits.clients => {
                return Err(NoSeat::Full("the manager has as many connections of clients as it takes"));
            }
            Role::Client => rooms.clients += 1,
            Role::Node => rooms.nodes += 1,
        }
        drop(rooms);
        Ok(Seat { door, role })
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.door.rooms().lobby.leave(self.ticket);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut rooms = self.door.rooms();
        match self.role {
            Role::Client => rooms.clients -= 1,
            Role::Node => rooms.nodes -= 1,
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
    fn who_is_evicted_gets_no_seat() {
        let door = door(1, 2, 1);
        let mut first = door.enter(origin());
        assert!(first.told_to_go.try_recv().is_err_and(|e| e == oneshot::error::TryRecvError::Empty));
        let second = door.enter(origin());
        assert!(first.told_to_go.try_recv().is_err_and(|e| e == oneshot::error::TryRecvError::Closed));
        assert_eq!(first.sit(Role::Node).unwrap_err(), NoSeat::Evicted);
        assert!(second.sit(Role::Node).is_ok());
    }

    #[test]
    fn clients_leave_seats_to_nodes() {
        let door = door(4, 2, 1);
        let client = door.enter(origin()).sit(Role::Client).unwrap();
        assert!(matches!(door.enter(origin()).sit(Role::Client), Err(NoSeat::Full(_))));
        let node = door.enter(origin()).sit(Role::Node).unwrap();
        assert!(matches!(door.enter(origin()).sit(Role::Node), Err(NoSeat::Full(_))));
        drop((client, node));
        assert!(door.enter(origin()).sit(Role::Client).is_ok());
    }
}
