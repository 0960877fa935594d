//! Making sure that a connection that broke is at its end on both sides.
//!
//! What was under way on it may still arrive: a packet that the network delays is taken by the peer's queue pair for as long as
//! that lives. If operations were lost that change memory, the peer is told through the manager that the connection is broken;
//! it destroys its queue pairs and says so. Until then those operations count as under way: their mappings are not drained, so
//! memory that is revoked or moved is not used again, and a lock that protects it is not given back.

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
    /// A connection is at its end here. If this node has found it broken, or operations were lost on it, the peer is told to end
    /// it too.
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
            // Looked at after the operations were noted: whoever ends the membership forgets them after that.
            None => self.forget_lost(life),
        }
    }

    /// The peer says that connection `id` has broken: it is ended here, and the peer is told once it is.
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

    /// Says that a connection is at its end here, if it is and the peer waits to hear it.
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

    /// The peer has destroyed its queue pairs of connection `id`.
    pub(super) fn on_silent(&self, member: &Member, id: u64) {
        self.ops.lock().unfinished.silent((member.node, member.incarnation), id);
        self.drains.wake_all();
    }

    /// A peer is gone: what was lost on the way to it changes nothing that anybody uses.
    pub(crate) fn forget_lost(&self, peer: Life) {
        self.ops.lock().unfinished.forget(peer);
        self.drains.wake_all();
    }

    /// Whether a queue pair to that life of a node is still there, also one that is being destroyed.
    pub(crate) fn is_served(&self, life: Life) -> bool {
        self.by_qp.lock().values().any(|conn| (conn.peer, conn.incarnation) == life)
    }

    /// Now, for [`is_settled`](Self::is_settled).
    pub(crate) fn moment(&self) -> Moment {
        self.ops.lock().unfinished.now()
    }

    /// Whether no operation that was given up or lost since then may still change memory.
    pub(crate) fn is_settled(&self, since: Moment) -> bool {
        let ops = self.ops.lock();
        !ops.unfinished.any(&(since..ops.unfinished.now()))
    }

    /// Waits until that is so of those that were given up or lost between then and the call. It takes as long as the transport
    /// takes to give up, and as a message to the peer and back through the manager.
    pub(crate) async fn settled(&self, since: Moment) {
        let time = since..self.moment();
        if self.ops.lock().unfinished.any(&time) {
            sometimes!("a task waited for operations of unknown outcome");
        }
        self.drains.until(|| (!self.ops.lock().unfinished.any(&time)).then_some(())).await;
    }
}

impl Lite {
    /// Waits until no operation of this node can happen any more that has ended with [`Error::Unknown`] or whose future was
    /// dropped, as far as it was a write or an atomic: each has reached its memory by then, or never will. At once if there is
    /// none. Giving back a [`LockGuard`](crate::LockGuard) waits for those of its time by itself.
    ///
    /// ```
    /// # use lite::{Error, Lite, Lmr};
    /// # async fn example(lite: &Lite, lmr: &Lmr) -> Result<(), Error> {
    /// if lmr.write(0, b"new").await == Err(Error::Unknown) {
    ///     lite.settled().await?;
    ///     // What is there now stays there.
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
