//! The connections that operations use: by number, and by the incarnation of the peer whose memory they are
//! meant for.

use crate::base::member::MemberId;
use crate::transport::conn::Conn;
use crate::transport::conn::Link;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// The number of a peer's incarnation in the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MemberIndex(u32);

impl MemberIndex {
    pub(crate) fn number(self) -> u32 {
        self.0
    }
}

/// An incarnation of a peer, and the connection to it for one-sided operations.
struct Place {
    life: MemberId,
    link: Link,
}

/// The connections in use, and the incarnations of peers.
#[derive(Default)]
pub(crate) struct Links {
    /// The connections, until they are shut and nothing of them is on the wire.
    links: Vec<Option<Arc<Conn>>>,
    /// The incarnations of peers that one-sided operations have been meant for. They are never removed,
    /// because handles contain their numbers.
    places: Vec<Place>,
    /// The latest incarnation, by node number.
    by_node: Vec<Option<MemberIndex>>,
}

impl Links {
    /// Returns the connection with that number, unless it is shut.
    #[inline]
    pub(super) fn open(&self, link: Link) -> Option<&Arc<Conn>> {
        self.get(link).filter(|conn| !conn.is_shut())
    }

    /// Returns the connection with that number.
    #[inline]
    pub(super) fn get(&self, link: Link) -> Option<&Arc<Conn>> {
        self.links.get(link.bits() as usize)?.as_ref()
    }

    /// Returns the number of that incarnation, and adds it if need be.
    pub(crate) fn place(&mut self, life: MemberId) -> MemberIndex {
        let node = usize::from(life.0.0);
        if self.by_node.len() <= node {
            self.by_node.resize(node + 1, None);
        }
        let known = self.known(life);
        known.unwrap_or_else(|| {
            let new = MemberIndex(self.places.len() as u32);
            self.places.push(Place { life, link: Link::NONE });
            if let Some(last) = self.by_node.get_mut(node) {
                *last = Some(new);
            }
            new
        })
    }

    /// Returns the incarnation with that number.
    pub(crate) fn life(&self, place: MemberIndex) -> Option<MemberId> {
        self.places.get(place.0 as usize).map(|p| p.life)
    }

    fn known(&self, life: MemberId) -> Option<MemberIndex> {
        let place = (*self.by_node.get(usize::from(life.0.0))?)?;
        self.places.get(place.0 as usize).filter(|p| p.life == life).map(|_| place)
    }

    /// Returns the connection for one-sided operations to that incarnation of that node.
    pub(crate) fn conn(&self, life: MemberId) -> Option<&Arc<Conn>> {
        self.conn_to(self.known(life)?).map(|(_, conn)| conn)
    }

    #[inline(always)]
    pub(super) fn conn_to(&self, place: MemberIndex) -> Option<(Link, &Arc<Conn>)> {
        let place = self.places.get(place.0 as usize)?;
        let conn = self.links.get(place.link.bits() as usize)?.as_ref()?;
        ((conn.peer, conn.incarnation) == place.life && !conn.is_shut()).then_some((place.link, conn))
    }

    /// Returns the number of a connection, and adds it if need be; [`Link::NONE`] if it is shut.
    pub(crate) fn link(&mut self, conn: &Arc<Conn>) -> Link {
        let known = conn.link();
        // The poller forgets a shut connection after this, or has done so before.
        if known != Link::NONE || conn.is_shut() {
            return known;
        }
        let free = self.links.iter().position(Option::is_none);
        let at = free.unwrap_or_else(|| {
            self.links.push(None);
            self.links.len() - 1
        });
        if let Some(place) = self.links.get_mut(at) {
            *place = Some(conn.clone());
            conn.set_link(Link::from_bits(at as u32));
        }
        conn.link()
    }

    /// Lets one-sided operations use a connection.
    pub(crate) fn remember(&mut self, conn: &Arc<Conn>) {
        let (link, place) = (self.link(conn), self.place((conn.peer, conn.incarnation)));
        if let Some(place) = self.places.get_mut(place.0 as usize) {
            place.link = link;
        }
    }

    /// Removes a connection that is shut and of which nothing is on the wire. Drop the returned reference
    /// outside of the table's lock.
    pub(crate) fn forget(&mut self, conn: &Conn) -> Option<Arc<Conn>> {
        let link = conn.link();
        conn.set_link(Link::NONE);
        self.links.get_mut(link.bits() as usize)?.take()
    }
}
