//! The connections that the operations of one core use: by number, and by the incarnation of the peer whose
//! memory they are meant for.

use crate::base::member::MemberId;
use crate::base::near::Near;
use crate::base::qos::Share;
use crate::transport::conn::Conn;
use crate::transport::conn::Link;
use alloc::sync::Arc;
use alloc::vec::Vec;
use proto::NodeId;

/// The number of a peer's incarnation, the same on all cores.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MemberIndex(pub(super) u32);

impl MemberIndex {
    pub(crate) fn number(self) -> u32 {
        self.0
    }
}

/// The incarnations of peers that one-sided operations have been meant for. They are never removed, because
/// handles contain their numbers.
#[derive(Default)]
pub(super) struct MemberNumbers {
    members: Vec<MemberId>,
    /// The latest incarnation, by node number.
    by_node: Vec<Option<MemberIndex>>,
}

impl MemberNumbers {
    /// Returns the number of that incarnation, and adds it if need be.
    pub(super) fn index_of(&mut self, member: MemberId) -> MemberIndex {
        let node = usize::from(member.0.0);
        if self.by_node.len() <= node {
            self.by_node.resize(node + 1, None);
        }
        let known = self.by_node.get(node).copied().flatten();
        let known = known.filter(|index| self.members.get(index.0 as usize) == Some(&member));
        known.unwrap_or_else(|| {
            let new = MemberIndex(self.members.len() as u32);
            self.members.push(member);
            if let Some(last) = self.by_node.get_mut(node) {
                *last = Some(new);
            }
            new
        })
    }

    /// Returns the incarnation with that number.
    pub(super) fn member(&self, index: MemberIndex) -> Option<MemberId> {
        self.members.get(index.0 as usize).copied()
    }
}

/// The connection for one-sided operations to an incarnation of a peer.
pub(super) struct Route {
    /// One of [`Links::conns`] of its shard, which may be shut.
    pub(super) conn: Arc<Conn>,
    /// The number of the connection; [`Link::NONE`] if another shard has its queue pairs.
    pub(super) link: Link,
    /// The shard that has the queue pairs which operations of this shard's cores use.
    pub(super) shard: usize,
    /// The index of the only queue pair of this shard for operations without priority.
    pub(super) usual: Option<u32>,
}

impl Route {
    /// Returns the index of the queue pair for the next operation of `share`; `None` if another shard has the
    /// queue pairs.
    #[cold]
    pub(super) fn pick(&self, share: Share) -> Option<usize> {
        (self.link != Link::NONE).then(|| self.conn.group.lanes.pick(self.shard, share))
    }
}

/// The connections in use by one core.
pub(crate) struct Links {
    /// The shard of the core.
    shard: usize,
    /// The connections, until they are shut and nothing of them is on the wire.
    pub(super) conns: Vec<Option<Arc<Conn>>>,
    /// The connections for one-sided operations, by the numbers of incarnations.
    pub(super) routes: Vec<Option<Route>>,
    /// The latest incarnation that a connection was remembered for, by node number.
    by_node: Vec<Option<(MemberId, MemberIndex)>>,
    /// The connections for calls, by node number.
    near: Vec<Option<Near<Conn>>>,
}

/// The references to a connection that a shard has had.
pub(crate) type Forgotten = ([Option<Arc<Conn>>; 2], Option<Near<Conn>>);

impl Links {
    pub(super) fn new(shard: usize) -> Self {
        Self { shard, conns: Vec::new(), routes: Vec::new(), by_node: Vec::new(), near: Vec::new() }
    }

    /// Returns the connection with that number, unless it is shut.
    pub(super) fn open(&self, link: Link) -> Option<&Arc<Conn>> {
        self.conns.get(link.index())?.as_ref().filter(|conn| !conn.is_shut())
    }

    /// Returns the connection for one-sided operations to that incarnation of that node, and the shard that
    /// has the queue pairs for them.
    pub(crate) fn conn(&self, member: MemberId) -> Option<(&Arc<Conn>, usize)> {
        let (known, index) = (*self.by_node.get(usize::from(member.0.0))?)?;
        let route = self.routes.get(index.0 as usize).filter(|_| known == member)?.as_ref()?;
        (!route.conn.is_shut()).then_some((&route.conn, route.shard))
    }

    /// Returns the connection for calls to a node.
    #[inline]
    pub(super) fn near(&self, node: NodeId) -> Option<Near<Conn>> {
        let near = self.near.get(usize::from(node.0))?.as_ref()?;
        (!near.is_shut()).then(|| near.clone())
    }

    /// Lets calls use a connection, unless it is shut, and returns the one before.
    pub(super) fn set_near(&mut self, near: &Near<Conn>) -> Option<Near<Conn>> {
        let node = usize::from(near.peer.0);
        if self.near.len() <= node {
            self.near.resize_with(node + 1, || None);
        }
        // The poller looks at the shards of a connection that has been shut after this, or has done so
        // before.
        let place = self.near.get_mut(node).filter(|_| !near.is_shut())?;
        place.replace(near.clone())
    }

    /// Returns the shard whose queue pairs one-sided operations to that incarnation use.
    pub(super) fn shard_to(&self, member: MemberIndex) -> Option<usize> {
        self.routes.get(member.0 as usize)?.as_ref().map(|route| route.shard)
    }

    /// Returns the number of a connection, and adds it if need be; [`Link::NONE`] if it is shut.
    #[inline]
    pub(crate) fn link(&mut self, conn: &Arc<Conn>) -> Link {
        let known = conn.link(self.shard);
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
            conn.set_link(self.shard, Link::from_bits(at as u32));
        }
        conn.link(self.shard)
    }

    /// Lets one-sided operations use a connection that has queue pairs of this shard.
    pub(super) fn remember(&mut self, conn: &Arc<Conn>, index: MemberIndex) {
        let link = self.link(conn);
        if link != Link::NONE {
            let usual = conn.group.lanes.usual(self.shard);
            self.set_route(index, Route { conn: conn.clone(), link, shard: self.shard, usual });
        }
    }

    /// Lets one-sided operations use the queue pairs that shard `used` has of a connection.
    #[cold]
    pub(super) fn redirect(&mut self, conn: &Arc<Conn>, index: MemberIndex, used: usize) {
        // The poller looks at the shards of a connection that has been shut after this, or has done so
        // before.
        if !conn.is_shut() {
            self.set_route(index, Route { conn: conn.clone(), link: Link::NONE, shard: used, usual: None });
        }
    }

    fn set_route(&mut self, index: MemberIndex, route: Route) {
        let (at, node) = (index.0 as usize, usize::from(route.conn.peer.0));
        if self.routes.len() <= at {
            self.routes.resize_with(at + 1, || None);
        }
        if self.by_node.len() <= node {
            self.by_node.resize(node + 1, None);
        }
        if let Some(latest) = self.by_node.get_mut(node) {
            *latest = Some(((route.conn.peer, route.conn.incarnation), index));
        }
        if let Some(place) = self.routes.get_mut(at) {
            *place = Some(route);
        }
    }

    /// Removes a connection that is shut and of which nothing is on the wire. Drop the returned references
    /// outside of the table's lock.
    pub(crate) fn forget(&mut self, conn: &Conn) -> Forgotten {
        let link = conn.link(self.shard);
        conn.set_link(self.shard, Link::NONE);
        let is_meant = |route: &&mut Option<Route>| {
            route.as_ref().is_some_and(|route| core::ptr::eq(&*route.conn, conn))
        };
        let route = self.routes.iter_mut().find(is_meant).and_then(Option::take);
        let conns = [route.map(|route| route.conn), self.conns.get_mut(link.index()).and_then(Option::take)];
        let is_meant =
            |near: &&mut Option<Near<Conn>>| near.as_ref().is_some_and(|near| core::ptr::eq(&***near, conn));
        (conns, self.near.iter_mut().find(is_meant).and_then(Option::take))
    }
}
