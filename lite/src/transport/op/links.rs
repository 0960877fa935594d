//! The connections that operations use: by number, and by the incarnation of the peer whose memory they are
//! meant for.

use crate::base::member::MemberId;
use crate::transport::conn::Conn;
use crate::transport::conn::Link;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// The number of a peer's incarnation in the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MemberIndex(pub(super) u32);

impl MemberIndex {
    pub(crate) fn number(self) -> u32 {
        self.0
    }
}

/// The connections in use, and the incarnations of peers.
#[derive(Default)]
pub(crate) struct Links {
    /// The connections, until they are shut and nothing of them is on the wire.
    pub(super) conns: Vec<Option<Arc<Conn>>>,
    /// The incarnations of peers that one-sided operations have been meant for. They are never removed,
    /// because handles contain their numbers.
    members: Vec<MemberId>,
    /// The connection for one-sided operations to each of these incarnations. It is one of `conns`, and may
    /// be shut.
    pub(super) routes: Vec<Option<Arc<Conn>>>,
    /// The latest incarnation, by node number.
    by_node: Vec<Option<MemberIndex>>,
}

impl Links {
    /// Returns the connection with that number, unless it is shut.
    pub(super) fn open(&self, link: Link) -> Option<&Arc<Conn>> {
        self.conns.get(link.index())?.as_ref().filter(|conn| !conn.is_shut())
    }

    /// Returns the number of that incarnation, and adds it if need be.
    pub(crate) fn index_of(&mut self, member: MemberId) -> MemberIndex {
        let node = usize::from(member.0.0);
        if self.by_node.len() <= node {
            self.by_node.resize(node + 1, None);
        }
        let known = self.known(member);
        known.unwrap_or_else(|| {
            let new = MemberIndex(self.members.len() as u32);
            self.members.push(member);
            self.routes.push(None);
            if let Some(last) = self.by_node.get_mut(node) {
                *last = Some(new);
            }
            new
        })
    }

    /// Returns the incarnation with that number.
    pub(crate) fn member(&self, index: MemberIndex) -> Option<MemberId> {
        self.members.get(index.0 as usize).copied()
    }

    fn known(&self, member: MemberId) -> Option<MemberIndex> {
        let index = (*self.by_node.get(usize::from(member.0.0))?)?;
        self.members.get(index.0 as usize).filter(|known| **known == member).map(|_| index)
    }

    /// Returns the connection for one-sided operations to that incarnation of that node.
    pub(crate) fn conn(&self, member: MemberId) -> Option<&Arc<Conn>> {
        self.routes.get(self.known(member)?.0 as usize)?.as_ref().filter(|conn| !conn.is_shut())
    }

    /// Returns the number of a connection, and adds it if need be; [`Link::NONE`] if it is shut.
    #[inline]
    pub(crate) fn link(&mut self, conn: &Arc<Conn>) -> Link {
        let known = conn.link();
        // The poller forgets a shut connection after this, or has done so before.
        if known != Link::NONE || conn.is_shut() { known } else { self.add_link(conn) }
    }

    /// Adds a connection, and returns its number.
    #[cold]
    fn add_link(&mut self, conn: &Arc<Conn>) -> Link {
        let free = self.conns.iter().position(Option::is_none);
        let at = free.unwrap_or_else(|| {
            self.conns.push(None);
            self.conns.len() - 1
        });
        if let Some(entry) = self.conns.get_mut(at) {
            *entry = Some(conn.clone());
            conn.set_link(Link::from_bits(at as u32));
        }
        conn.link()
    }

    /// Lets one-sided operations use a connection.
    pub(crate) fn remember(&mut self, conn: &Arc<Conn>) {
        let (link, index) = (self.link(conn), self.index_of((conn.peer, conn.incarnation)));
        if let Some(route) = self.routes.get_mut(index.0 as usize).filter(|_| link != Link::NONE) {
            *route = Some(conn.clone());
        }
    }

    /// Removes a connection that is shut and of which nothing is on the wire. Drop the returned references
    /// outside of the table's lock.
    pub(crate) fn forget(&mut self, conn: &Conn) -> [Option<Arc<Conn>>; 2] {
        let link = conn.link();
        conn.set_link(Link::NONE);
        let route = self.known((conn.peer, conn.incarnation));
        let route = route.and_then(|index| self.routes.get_mut(index.0 as usize));
        let route =
            route.filter(|route| route.as_ref().is_some_and(|c| c.id == conn.id && c.link() == Link::NONE));
        [route.and_then(Option::take), self.conns.get_mut(link.index()).and_then(Option::take)]
    }
}
