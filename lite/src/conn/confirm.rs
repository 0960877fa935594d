//! The confirmed end of a broken connection, on both sides.
//!
//! Operations in flight on a broken connection may still arrive: the peer's queue pair accepts a packet
//! that the network delays for as long as the queue pair exists. If operations that change memory were
//! lost, the peer is told through the manager that the connection is broken; it destroys its queue pairs
//! and acknowledges. Until then those operations count as in flight: their mappings are not drained, so
//! memory that is revoked or moved is not used again, and a lock that protects it is not released.

use super::Conn;
use super::broker::PeerLink;
use super::wire::Message;
use crate::membership::Life;
use crate::node::Node;
use crate::op::Moment;
use crate::planted::{Bug, planted};
use crate::sometimes::sometimes;
use crate::{Error, Lite};
use alloc::sync::Arc;
use proto::Member;

impl Node {
    /// Handles the end of a connection here. If this node has found it broken, or operations were lost on
    /// it, the peer is told to end it too.
    pub(crate) fn make_sure(&self, conn: &Conn) {
        let life = (conn.peer, conn.incarnation);
        if !conn.has_failed() && !self.ops.lock().unfinished.awaits(life, conn.id) {
            return;
        }
        let member = {
            let peers = self.peers.lock();
            let peer = peers.get(&conn.peer).filter(|p| p.member.incarnation == conn.incarnation);
            peer.filter(|p| !matches!(p.link, PeerLink::Gone)).map(|p| p.member.clone())
        };
        match member.filter(|_| !self.is_fenced() && !planted(Bug::LostUnconfirmed)) {
            Some(member) => self.tell(&member, conn.id, Message::Broken),
            // This check follows the noting of the operations: the code that ends a membership forgets them
            // after that.
            None => self.forget_lost(life),
        }
    }

    /// Handles the peer's message that connection `id` is broken: ends it here, and tells the peer
    /// afterwards.
    pub(super) fn on_broken(self: &Arc<Self>, member: &Member, id: u64) {
        // A connection is in this table until its queue pairs are destroyed.
        let is_meant = |conn: &&Arc<Conn>| {
            conn.id == id && (conn.peer, conn.incarnation) == (member.node, member.incarnation)
        };
        let conn = self.by_qp.lock().values().find(is_meant).cloned();
        match conn {
            Some(conn) => {
                sometimes!("a peer heard that a connection is broken");
                conn.owe_closed();
                self.end_conn(&conn);
                self.tell_closed(&conn);
            }
            None => {
                sometimes!("a broken connection had ended at its peer");
                self.tell(member, id, Message::Closed);
            }
        }
    }

    /// Tells the peer that a connection has ended here, if it has and the peer waits for that.
    pub(super) fn tell_closed(&self, conn: &Conn) {
        if !conn.lanes().is_gone() || !conn.pays_closed() {
            return;
        }
        let peers = self.peers.lock();
        let peer = peers.get(&conn.peer).filter(|p| p.member.incarnation == conn.incarnation);
        if let Some(peer) = peer {
            self.tell(&peer.member, conn.id, Message::Closed);
        }
    }

    /// Handles the peer's message that its queue pairs of connection `id` are destroyed.
    pub(super) fn on_silent(&self, member: &Member, id: u64) {
        self.ops.lock().unfinished.silent((member.node, member.incarnation), id);
        self.drains.wake_all();
    }

    /// Forgets the operations lost on the way to a departed peer, whose memory is not used any more.
    pub(crate) fn forget_lost(&self, peer: Life) {
        self.ops.lock().unfinished.forget(peer);
        self.drains.wake_all();
    }

    /// Returns true if a queue pair to that incarnation exists, also one that is being destroyed.
    pub(crate) fn is_served(&self, life: Life) -> bool {
        self.by_qp.lock().values().any(|conn| (conn.peer, conn.incarnation) == life)
    }

    /// Returns the present moment, for [`is_settled`](Self::is_settled).
    pub(crate) fn moment(&self) -> Moment {
        self.ops.lock().unfinished.now()
    }

    /// Returns true if no operation that was given up or lost since then may still change memory.
    pub(crate) fn is_settled(&self, since: Moment) -> bool {
        let ops = self.ops.lock();
        !ops.unfinished.any(&(since..ops.unfinished.now()))
    }

    /// Waits until [`is_settled`](Self::is_settled) holds for the time from `since` to the call. It takes
    /// as long as the transport takes to give up, plus a message to the peer and back through the manager.
    pub(crate) async fn settled(&self, since: Moment) {
        let time = since..self.moment();
        if self.ops.lock().unfinished.any(&time) {
            sometimes!("a task waited for operations of unknown outcome");
        }
        self.drains.until(|| (!self.ops.lock().unfinished.any(&time)).then_some(())).await;
    }
}

impl Lite {
    /// Waits until no write or atomic of this node that ended with [`Error::Unknown`], or whose future was
    /// dropped, can happen any more: each has reached its memory, or never will. Returns at once if there
    /// is none. The release of a [`LockGuard`](crate::LockGuard) waits by itself for the operations of its
    /// time.
    ///
    /// ```
    /// # use lite::{Error, Lite, Lmr};
    /// # async fn example(lite: &Lite, lmr: &Lmr) -> Result<(), Error> {
    /// if lmr.write(0, b"new").await == Err(Error::Unknown) {
    ///     lite.settled().await?;
    ///     // The present content is final.
    ///     lmr.read(0, &mut [0; 3]).await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn settled(&self) -> Result<(), Error> {
        let node = &self.by.node;
        let settled = async {
            node.settled(Moment::FIRST).await;
            Ok(())
        };
        node.timers.before(self.deadline(), settled).await.unwrap_or(Err(Error::Deadline))
    }
}
