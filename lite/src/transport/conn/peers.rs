//! Tables of entries for peers, locked with the evidence that a peer's incarnation is live.
//!
//! The code that handles the end of a member marks an incarnation as ended first, and then locks
//! one table after the other to remove the entries of that incarnation. A task that finds the
//! incarnation live while it holds the lock of a table therefore installs its entry before that
//! removal, which finds the entry. A task that checked before it took the lock, or before an
//! `.await`, could install an entry after the removal, and the entry would stay for ever.

use super::{Conn, QpGroup};
use crate::Error;
use crate::base::local::Local;
use crate::base::lock::Mutex;
use crate::base::member::MemberId;
use crate::base::wait::Waiters;
use crate::planted::{Bug, planted};
use crate::sometimes::sometimes;
use crate::transport::connect::vouching::Voucher;
use crate::transport::connect::wire::Request;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::{Deref, DerefMut};
use core::time::Duration;
use platform::Instant;
use proto::{Incarnation, Member, NodeId};
use spin::MutexGuard;
use verbs::LinkKind;

/// A member, and the state of the connection to it.
pub(crate) struct Peer {
    pub(crate) member: Member,
    pub(crate) link: PeerLink,
    /// The last voucher for the peer, as long as its answers are expected.
    pub(crate) voucher: Option<Voucher>,
    /// The stamp of the newest attempt of either node that has made a connection or was handled here.
    pub(crate) newest: u64,
}

impl Peer {
    pub(crate) fn new(member: Member) -> Self {
        Self { member, link: PeerLink::Idle, voucher: None, newest: 0 }
    }
}

/// The state of the connection to a member.
pub(crate) enum PeerLink {
    /// No connection; the next use sends a request.
    Idle,
    /// Queue pairs are being created for a request.
    Preparing { attempt: u64 },
    /// This node wants a connection. It sends a request once one of its permits is free, not before `from`.
    Wanted { from: Instant, since: Instant },
    /// The peer has sent a request, and waits for a permit here.
    Asked { attempt: u64, request: Request, since: Instant },
    /// The manager has been asked for a voucher, or a request has been sent. The number of the attempt is
    /// this node's until there is a voucher.
    Asking { attempt: u64, link: LinkKind, group: QpGroup },
    /// A reply has been sent; the requester is not ready yet.
    Accepted(Arc<Conn>),
    /// Both sides are connected.
    Ready(Arc<Conn>),
    /// The queue pairs are sealed; the peer has been asked whether it still uses the connection.
    Closing { conn: Arc<Conn>, since: Instant, unused: Duration },
    /// The peer has refused a moment ago.
    Refused { error: Error, until: Instant },
    /// The member has left or is dead.
    Gone,
}

impl PeerLink {
    /// Returns true if the state waits for the other end of `attempt`.
    pub(crate) fn waits_for(&self, attempt: u64) -> bool {
        match self {
            Self::Asking { attempt: a, .. } => *a == attempt,
            Self::Accepted(conn) => conn.id == attempt,
            _ => false,
        }
    }

    /// Returns true if `attempt` is going on, or has made the connection that is open.
    pub(crate) fn is_of(&self, attempt: u64) -> bool {
        match self {
            Self::Preparing { attempt: a }
            | Self::Asked { attempt: a, .. }
            | Self::Asking { attempt: a, .. } => *a == attempt,
            Self::Accepted(conn) | Self::Ready(conn) | Self::Closing { conn, .. } => conn.id == attempt,
            Self::Idle | Self::Wanted { .. } | Self::Refused { .. } | Self::Gone => false,
        }
    }

    /// Returns true if the state is `conn`, in use.
    pub(crate) fn is_ready(&self, conn: &Arc<Conn>) -> bool {
        matches!(self, Self::Ready(c) if Arc::ptr_eq(c, conn))
    }
}

/// The members that this node knows, and the states of the connections to them. It extends [`Local`].
pub(crate) struct Peers {
    local: Arc<Local>,
    pub(crate) peers: Mutex<BTreeMap<NodeId, Peer>>,
    /// Tasks that wait for a change of a peer or of the connection to it.
    pub(crate) peer_change: Waiters,
}

impl Deref for Peers {
    type Target = Arc<Local>;

    #[inline]
    fn deref(&self) -> &Arc<Local> {
        &self.local
    }
}

/// A locked table, and an incarnation that was a member when the lock was taken. Functions that install an
/// entry of a peer take this instead of the table, and install the entry for that incarnation.
pub(crate) struct LockedFor<'a, T> {
    table: MutexGuard<'a, T>,
    member: MemberId,
}

impl<T> LockedFor<'_, T> {
    /// Returns the incarnation that was a member when the lock was taken.
    pub(crate) fn member(&self) -> MemberId {
        self.member
    }
}

impl<T> Deref for LockedFor<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.table
    }
}

impl<T> DerefMut for LockedFor<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.table
    }
}

impl Peers {
    pub(crate) fn new(local: Arc<Local>) -> Self {
        Self { local, peers: Mutex::default(), peer_change: Waiters::default() }
    }

    /// Returns the connection to `node`, if there is one.
    pub(crate) fn connected(&self, node: NodeId) -> Option<Arc<Conn>> {
        match &self.peers.lock().get(&node)?.link {
            PeerLink::Ready(conn) => Some(conn.clone()),
            _ => None,
        }
    }

    /// Returns true if a node was a member and is none any more. An unknown node may just have joined.
    pub(crate) fn has_left(&self, node: NodeId) -> bool {
        self.peers.lock().get(&node).is_some_and(|p| matches!(p.link, PeerLink::Gone))
    }

    /// Returns true if an incarnation was a member and is none any more. One that this node does not know may
    /// just have joined.
    pub(crate) fn has_ended(&self, member: MemberId) -> bool {
        self.peers.lock().get(&member.0).is_some_and(|peer| {
            let known = peer.member.incarnation;
            known > member.1 || known == member.1 && matches!(peer.link, PeerLink::Gone)
        })
    }

    /// Returns the present incarnation of a peer, if it is a live member.
    pub(crate) fn incarnation_of(&self, node: NodeId) -> Option<Incarnation> {
        let peers = self.peers.lock();
        peers.get(&node).filter(|p| !matches!(p.link, PeerLink::Gone)).map(|p| p.member.incarnation)
    }

    /// Returns the present incarnations of all peers that are live members.
    pub(crate) fn live_peers(&self) -> Vec<MemberId> {
        let peers = self.peers.lock();
        let live = peers.iter().filter(|(_, p)| !matches!(p.link, PeerLink::Gone));
        live.map(|(node, p)| (*node, p.member.incarnation)).collect()
    }

    /// Returns the error for operations on a node's incarnation, if it has ended.
    pub(crate) fn gone(&self, node: NodeId, incarnation: Incarnation) -> Option<Error> {
        if self.is_fenced() {
            return Some(Error::LinkDown);
        }
        (node != self.me && self.incarnation_of(node) != Some(incarnation)).then_some(Error::NodeDown(node))
    }

    /// Returns the present incarnation of a node, which new objects there belong to.
    pub(crate) fn member_now(&self, node: NodeId) -> Result<MemberId, Error> {
        if self.is_fenced() {
            return Err(Error::LinkDown);
        }
        if node == self.me {
            return Ok((node, self.incarnation));
        }
        match self.incarnation_of(node) {
            Some(incarnation) => Ok((node, incarnation)),
            None if self.has_left(node) => Err(Error::NodeDown(node)),
            None => Err(Error::NoSuchNode),
        }
    }

    /// Locks `table`, one of those that the end of a member cleans up, in order to install an entry
    /// for `member`. Fails with `NodeDown` if that incarnation has ended, and with `LinkDown` if this node's
    /// membership has.
    pub(crate) fn lock_for<'a, T>(
        &self,
        table: &'a Mutex<T>,
        member: MemberId,
    ) -> Result<LockedFor<'a, T>, Error> {
        let table = table.lock();
        // The check must follow the lock: see the top of this file.
        if self.is_live(member) || planted(Bug::InstalledForTheDead) {
            return Ok(LockedFor { table, member });
        }
        sometimes!("a life that had ended was to install something");
        Err(self.gone(member.0, member.1).unwrap_or(Error::NodeDown(member.0)))
    }

    /// Returns true if the incarnation is a member, as far as this node knows; true for this node itself.
    pub(crate) fn is_live(&self, member: MemberId) -> bool {
        member == (self.me, self.incarnation) || self.incarnation_of(member.0) == Some(member.1)
    }
}
